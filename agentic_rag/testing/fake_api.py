"""`FakeMessagesAPI`: the Messages API over real HTTP, from a script.

Owns the endpoint, its authentication, the faults on the wire and the server's life. What it refuses is
`problems`', what it says `steps`' and `replies`', how that looks `frames`'.

    async with FakeMessagesAPI(use("search_documents", query="…"), say("Found.", Cite(0))) as api:
        model = AnthropicModel(api.key, api.url)

or as a process (prints ``{"url": …}`` on a line when it accepts connections; ends on SIGTERM or SIGINT)::

    python -m agentic_rag.testing.fake_api --port 8081 --script FILE.json [--speed DELTAS_PER_SECOND]
    python -m agentic_rag.testing.fake_api --demo DELTAS [--speed DELTAS_PER_SECOND]
"""

import argparse
import asyncio
import json
import signal
import socket
import sys
import uuid
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn, Self

import anyio
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from agentic_rag.models.anthropic.request import search_results
from agentic_rag.models.base import MessageCompleted, ModelEvent, TextDelta, ThinkingDelta
from agentic_rag.testing.frames import error_json, frames, message_json
from agentic_rag.testing.problems import problems
from agentic_rag.testing.prompt_cache import PromptCache
from agentic_rag.testing.replies import Reply, Scripted, as_reply, demo, reply_from_json
from agentic_rag.testing.steps import step_events
from agentic_rag.testing.wire import FaultyStream, HungUp

MAX_BODY = 32 * 1024 * 1024
KEEPALIVE_SECONDS = 75
"""Idle connections are kept as long as the service keeps them; uvicorn's own 5 s would race with steps."""
CLOSE_SECONDS = 5.0
"""How long answers in flight may take to notice that the server closes."""

_STATUS_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    504: "timeout_error",
    529: "overloaded_error",
}


@dataclass(slots=True)
class Call:
    """One call: the request's JSON, its headers (names in lower case; ``x-peer`` is added: the client's address
    and port, which tell connections apart), and how the answer ended.

    ``left`` is set when the client closed the connection before the answer was complete; ``done`` in any case.
    """

    request: dict[str, Any]
    headers: Mapping[str, str]
    left: anyio.Event = field(default_factory=anyio.Event)
    done: anyio.Event = field(default_factory=anyio.Event)


class _Refused(Exception):
    def __init__(self, status: int, message: str, kind: str = "", retry_after: str | None = None) -> None:
        super().__init__(status, message)
        self.status = status
        self.message = message
        self.kind = kind or _STATUS_TYPES.get(status, "api_error" if status >= 500 else "invalid_request_error")
        self.retry_after = retry_after


class FakeMessagesAPI:
    """Answers calls from its script, in order of arrival.

    ``then`` answers what comes after the script. ``key``: the one key that is taken (None: any). ``rate``:
    deltas per second (0: as fast as they are read). ``also_allowed``: further top-level keys, for an older
    endpoint. ``cache_minimum``: tokens from which a prefix is cached.

    ``calls`` are all requests that were JSON, ``requests`` their bodies; ``refused`` is what was wrong with
    those that were refused. Leaving the context fails if a step was not asked for, if there were calls beyond
    the script, or if a scripted callable failed; `assert_consumed` does the same on demand.
    """

    def __init__(
        self,
        *script: Scripted,
        then: Scripted | None = None,
        key: str | None = "test-key",
        rate: float = 0,
        also_allowed: Collection[str] = (),
        cache_minimum: int = 1024,
    ) -> None:
        self._script = list(script)
        self._then = then
        self._key = key
        self._rate = rate
        self._also_allowed = also_allowed
        self._cache = PromptCache(cache_minimum)
        self._answered = 0
        self._failures: list[str] = []
        self._server: uvicorn.Server | None = None
        self.calls: list[Call] = []
        self.refused: list[str] = []
        self.url = ""
        self.app = Starlette(routes=[Route("/v1/messages", self._messages, methods=["POST"])])
        self.app.add_exception_handler(404, self._not_found)

    @property
    def key(self) -> str:
        """A key that is taken."""
        return self._key or "any-key"

    @property
    def requests(self) -> list[dict[str, Any]]:
        return [call.request for call in self.calls]

    def assert_consumed(self) -> None:
        """Fail unless every step was asked for and none beyond them."""
        assert not self._failures, f"the script failed: {self._failures}"
        left = len(self._script) - self._answered
        assert left <= 0, f"{left} of {len(self._script)} scripted steps were not asked for"

    # --- one call -------------------------------------------------------------------------------------------

    async def _messages(self, request: Request) -> Response:
        request_id = f"req_{uuid.uuid4().hex[:24]}"
        try:
            body = await self._accepted(request)
            peer = f"{request.client.host}:{request.client.port}" if request.client else ""
            call = Call(body, {**request.headers, "x-peer": peer})
            self.calls.append(call)
            found = problems(body, also_allowed=self._also_allowed)
            if found:
                self.refused += found
                raise _Refused(400, found[0])
            reply = self._reply(body)
            if reply.fault.status is not None:
                fault = reply.fault
                raise _Refused(reply.fault.status, fault.message or "scripted", fault.error_type, fault.retry_after)
            return self._answer(call, reply, request_id)
        except _Refused as refused:
            headers = {"request-id": request_id}
            if refused.retry_after is not None:
                headers["retry-after"] = refused.retry_after
            error = error_json(refused.kind, refused.message, request_id)
            return JSONResponse(error, status_code=refused.status, headers=headers)

    async def _accepted(self, request: Request) -> dict[str, Any]:
        """Return the request's JSON object, if key, version and form are right."""
        scheme, _, bearer = request.headers.get("authorization", "").partition(" ")
        given = bearer if scheme.lower() == "bearer" else request.headers.get("x-api-key", "")
        if not given or (self._key is not None and given != self._key):
            raise _Refused(401, "invalid x-api-key")
        if not request.headers.get("anthropic-version"):
            raise _Refused(400, "anthropic-version: header is required")
        body = await request.body()
        if len(body) > MAX_BODY:
            raise _Refused(413, "Request exceeds the maximum size")
        try:
            parsed = json.loads(body, parse_constant=_no_constant)
        except (ValueError, RecursionError) as exc:
            raise _Refused(400, f"The request body is not valid JSON: {exc}") from exc
        if not isinstance(parsed, dict):
            raise _Refused(400, "request: Input should be a valid dictionary")
        return parsed

    def _reply(self, body: dict[str, Any]) -> Reply:
        scripted = self._script[self._answered] if self._answered < len(self._script) else self._then
        self._answered += 1
        if scripted is None:
            self._failures.append(f"call {self._answered} of {len(self._script)} scripted steps")
            raise _Refused(500, "the script has no more steps")
        try:
            return as_reply(scripted(body) if callable(scripted) else scripted)
        except AssertionError as exc:
            self._failures.append(str(exc))
            raise _Refused(500, f"the script failed: {exc}") from exc

    def _answer(self, call: Call, reply: Reply, request_id: str) -> Response:
        events = self._events(call.request, reply)
        message_id = f"msg_{uuid.uuid4().hex[:24]}"
        if reply.fault.refuse:
            return HungUp()
        if not call.request.get("stream", False):
            call.done.set()
            return JSONResponse(message_json(events, message_id), headers={"request-id": request_id})
        rate = self._rate if reply.rate is None else reply.rate
        return FaultyStream(
            frames(events, message_id), reply.fault, rate, request_id=request_id, left=call.left, done=call.done
        )

    def _events(self, body: dict[str, Any], reply: Reply) -> list[ModelEvent]:
        lists = [message for message in body["messages"] if isinstance(message["content"], list)]
        results = search_results(lists)
        try:
            events = step_events(reply.step, model=body["model"], results=results)
        except AssertionError as exc:
            self._failures.append(str(exc))
            raise _Refused(500, f"the script failed: {exc}") from exc
        completed = events[-1]
        if reply.step.usage is None and isinstance(completed, MessageCompleted):
            output = sum(isinstance(event, TextDelta | ThinkingDelta) for event in events)
            events[-1] = MessageCompleted(completed.stop_reason, self._cache.count(body, max(1, output)))
        return events

    async def _not_found(self, request: Request, exc: Exception) -> Response:
        return JSONResponse(error_json("not_found_error", f"Not found: {request.url.path}", "req_0"), status_code=404)

    # --- the server -----------------------------------------------------------------------------------------

    async def start(self, port: int = 0) -> None:
        """Listen on loopback; ``url`` is set when this returns.

        Raises:
            OSError: the port is taken.
        """
        # Without the protocol number asyncio leaves Nagle's algorithm on, which holds small writes back for 40 ms.
        listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", port))
        listener.listen(1024)
        config = uvicorn.Config(
            self.app,
            http=_Protocol,
            ws="none",
            lifespan="off",
            proxy_headers=False,
            log_config=None,
            access_log=False,
            timeout_keep_alive=KEEPALIVE_SECONDS,
        )
        config.load()
        server = uvicorn.Server(config)
        server.lifespan = config.lifespan_class(config)
        await server.startup(sockets=[listener])
        self._server = server
        self.url = f"http://127.0.0.1:{listener.getsockname()[1]}"

    async def stop(self) -> None:
        """Close the port and every connection. Not by uvicorn's own shutdown, which waits for slow answers."""
        server, self._server = self._server, None
        if server is None:
            return
        for listener in server.servers:
            listener.close()
        for connection in list(server.server_state.connections):
            connection.transport.abort()
        if server.server_state.tasks:
            await asyncio.wait(set(server.server_state.tasks), timeout=CLOSE_SECONDS)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()
        if error is None:  # a test that failed already has its reason
            self.assert_consumed()


class _Protocol(HttpToolsProtocol):
    """Lets an answer close its connection: no ASGI message does that."""

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.scope["extensions"] = {"hang_up": {"close": self.transport.close}}


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON number")


# --- as a process -------------------------------------------------------------------------------------------


def from_script(script: Mapping[str, Any], rate: float = 0) -> FakeMessagesAPI:
    """Return the API of a script file's JSON (its form: see `replies`).

    Raises:
        KeyError, TypeError, ValueError: the script does not have that form.
    """
    then = script.get("then")
    return FakeMessagesAPI(
        *(reply_from_json(value) for value in script.get("steps", ())),
        then=None if then is None else reply_from_json(then),
        key=script.get("api_key"),
        rate=rate,
    )


async def _serve(api: FakeMessagesAPI, port: int) -> None:
    await api.start(port)
    sys.stdout.write(json.dumps({"url": api.url}) + "\n")
    sys.stdout.flush()
    with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        async for _ in signals:
            break
    await api.stop()


def main(arguments: list[str] | None = None) -> None:
    """Run the fake as a process (see the module)."""
    parser = argparse.ArgumentParser(prog="python -m agentic_rag.testing.fake_api")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--script", type=Path)
    parser.add_argument("--demo", type=int, default=200, help="without a script: text deltas of every answer")
    parser.add_argument("--speed", type=float, default=0, help="deltas per second; 0: as fast as they are read")
    given = parser.parse_args(arguments)
    if given.script is None:
        api = FakeMessagesAPI(then=demo(given.demo), key=None, rate=given.speed)
    else:
        api = from_script(json.loads(given.script.read_text("utf-8")), given.speed)
    anyio.run(_serve, api, given.port)


if __name__ == "__main__":
    main()
