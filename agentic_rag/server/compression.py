"""Compress answers with gzip for clients that accept it.

Only whole bodies of text are compressed: a body that is streamed, a file to download, a picture and an answer that is
compressed already are sent as they are. So events and downloads are never delayed.
"""

import gzip
from functools import partial
from typing import Final

import anyio.to_thread
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

MINIMUM: Final = 1_000
"""Minimum bytes of a compressed body: a smaller one fits in a packet anyway."""
LARGE: Final = 100_000
"""Bytes from which a thread compresses the body, so that the event loop stays free."""
LEVEL: Final = 5
TYPES: Final = ("application/json", "application/manifest+json", "image/svg+xml", "text/")


def accepts_gzip(headers: Headers) -> bool:
    """Return whether a client accepts gzip: it names gzip, or ``*``, without a weight of zero."""
    weights: dict[str, bool] = {}
    for coding in headers.get("accept-encoding", "").lower().split(","):
        name, _, parameter = coding.partition(";")
        weight = parameter.strip().removeprefix("q=").strip()
        weights[name.strip()] = weight not in ("0", "0.0", "0.00", "0.000")
    return weights.get("gzip", weights.get("*", False))


class Compression:
    """ASGI middleware that compresses whole text bodies."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not accepts_gzip(Headers(scope=scope)):
            await self.app(scope, receive, send)
            return
        start: Message | None = None

        async def sending(message: Message) -> None:
            nonlocal start
            if message["type"] == "http.response.start" and _may_compress(message):
                start = message  # until the size of the body is known
                return
            if start is not None:
                opening, start = start, None
                body = message.get("body", b"")
                if message["type"] == "http.response.body" and not message.get("more_body") and len(body) >= MINIMUM:
                    body = await _compress(body)
                    headers = MutableHeaders(raw=list(opening["headers"]))
                    headers["content-encoding"] = "gzip"
                    headers["content-length"] = str(len(body))
                    headers.add_vary_header("accept-encoding")
                    opening, message = {**opening, "headers": headers.raw}, {**message, "body": body}
                await send(opening)
            await send(message)

        await self.app(scope, receive, sending)


def _may_compress(message: Message) -> bool:
    headers = Headers(raw=message["headers"])
    return (
        message["status"] not in (204, 206, 304)  # 204 and 304 have no body, and a range counts the stored bytes
        and "content-encoding" not in headers
        and "content-disposition" not in headers
        and headers.get("content-type", "").startswith(TYPES)
        and not headers.get("content-type", "").startswith("text/event-stream")
    )


async def _compress(body: bytes) -> bytes:
    if len(body) < LARGE:
        return gzip.compress(body, LEVEL, mtime=0)  # no time: equal bodies are equal bytes
    return await anyio.to_thread.run_sync(partial(gzip.compress, body, LEVEL, mtime=0))
