"""Answers of `FakeMessagesAPI` that no framework gives: paced, broken off, silent, in odd pieces.

Owns how a `Fault` is carried out on a connection. Knows nothing of scripts and requests.
"""

from collections.abc import Sequence

import anyio
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from agentic_rag.testing.frames import PING, error_json, frame
from agentic_rag.testing.replies import Fault

_DELTA = b"event: content_block_delta"


def hang_up(scope: Scope) -> None:
    """Close the connection after what was written, whatever the response still owes."""
    scope["extensions"]["hang_up"]["close"]()


class HungUp(Response):
    """Closes the connection instead of answering."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        hang_up(scope)


class FaultyStream(Response):
    """An SSE answer. ``left`` is set when the client goes before the end, ``done`` when nothing follows."""

    def __init__(
        self,
        frames: Sequence[bytes],
        fault: Fault,
        rate: float,
        *,
        request_id: str,
        left: anyio.Event,
        done: anyio.Event,
    ) -> None:
        headers = {"request-id": request_id, "cache-control": "no-cache", "content-type": fault.content_type}
        super().__init__(headers=headers)
        del self.headers["content-length"]
        self._frames = _with_faults(frames, fault, request_id)
        self._fault = fault
        self._rate = rate
        self._left = left
        self._done = done

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            async with anyio.create_task_group() as group:
                group.start_soon(self._watch, receive, group.cancel_scope)
                await self._send(scope, send)
                group.cancel_scope.cancel()
        finally:
            self._done.set()

    async def _watch(self, receive: Receive, scope: anyio.CancelScope) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        self._left.set()
        scope.cancel()

    async def _send(self, scope: Scope, send: Send) -> None:
        fault = self._fault
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        cut = fault.drop_at if fault.drop_at is not None else fault.end_at
        if cut is not None or fault.chunk is not None:
            body = b"".join(self._frames)[:cut]
            size = fault.chunk or max(1, len(body))
            for at in range(0, len(body), size):
                await self._write(send, body[at : at + size])
            await anyio.lowlevel.checkpoint()
        else:
            await self._paced(send)
        if fault.silent_after is not None:
            await self._silence(send)
        if fault.drop_at is not None:
            hang_up(scope)
        else:
            await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _paced(self, send: Send) -> None:
        """Send the frames, deltas at the rate; late ones follow at once, so that the mean rate holds."""
        start, deltas = anyio.current_time(), 0
        for each in self._frames:
            if self._rate and each.startswith(_DELTA):
                deltas += 1
                await anyio.sleep_until(start + deltas / self._rate)
            await self._write(send, each)

    async def _silence(self, send: Send) -> None:
        while self._fault.ping_seconds is not None:
            await self._write(send, PING)
            await anyio.sleep(self._fault.ping_seconds)
        await anyio.sleep_forever()

    @staticmethod
    async def _write(send: Send, data: bytes) -> None:
        await send({"type": "http.response.body", "body": data, "more_body": True})


def _with_faults(frames: Sequence[bytes], fault: Fault, request_id: str) -> list[bytes]:
    """Return the frames as the fault has them written, apart from pieces and cuts."""
    result = list(frames)
    if fault.error_after is not None:
        kind = fault.error_type or "overloaded_error"
        result[fault.error_after :] = [frame(error_json(kind, fault.message or "Overloaded", request_id))]
    if fault.garbage_after is not None:
        result.insert(fault.garbage_after, b"event: content_block_delta\ndata: %s\n\n" % fault.garbage.encode())
    if fault.silent_after is not None:
        del result[fault.silent_after :]
    if fault.newline != "\n":
        result = [each.replace(b"\n", fault.newline.encode()) for each in result]
    return result
