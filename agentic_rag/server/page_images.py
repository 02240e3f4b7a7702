"""A document's page as an answer: a PNG that a browser may keep, but asks about each time.

Owns its headers and the tag by which a browser says what it has. Knows no document and no PDF.
"""

import hashlib

from starlette.requests import Request
from starlette.types import Receive, Scope, Send

from agentic_rag.server.replies import SANDBOX

DRAWN_AS = "1"
"""Part of every tag: change it when pages would come out differently."""


def tag_of(*facts: object) -> str:
    """Return the ETag of what follows from some facts."""
    return '"' + hashlib.sha256("\0".join(map(str, (DRAWN_AS, *facts))).encode()).hexdigest()[:32] + '"'


def knows(request: Request, tag: str) -> bool:
    """Whether the sender of a request has what a tag stands for."""
    named = request.headers.get("if-none-match", "")
    return tag in [each.strip().removeprefix("W/") for each in named.split(",")]


class PageFile:
    """The ASGI answer that sends an image, or says that the client's is the same (``png`` None)."""

    def __init__(self, png: bytes | None, tag: str) -> None:
        self._png = png
        self._tag = tag

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = [
            (b"etag", self._tag.encode()),
            (b"cache-control", b"private, no-cache"),  # it is kept, and whoever may see it no more does not see it
            (b"content-security-policy", SANDBOX.encode()),
            (b"x-content-type-options", b"nosniff"),
        ]
        body = b""
        if self._png is not None:
            body = self._png
            headers += [(b"content-type", b"image/png"), (b"content-length", str(len(body)).encode())]
        await send({"type": "http.response.start", "status": 304 if self._png is None else 200, "headers": headers})
        await send({"type": "http.response.body", "body": body, "more_body": False})
