"""Send the image of a document's page as a PNG that browsers may store but revalidate on each use.

This module sets the headers and the entity tag. It knows no document and no PDF.
"""

import hashlib

from starlette.requests import Request
from starlette.types import Receive, Scope, Send

from agentic_rag.server.replies import SANDBOX

DRAWN_AS = "1"
"""Version of the rendering, part of every tag. Change it when pages would look different."""


def tag_of(*facts: object) -> str:
    """Return an ETag derived from some facts."""
    return '"' + hashlib.sha256("\0".join(map(str, (DRAWN_AS, *facts))).encode()).hexdigest()[:32] + '"'


def knows(request: Request, tag: str) -> bool:
    """Return True if the client already has the content with this tag (``If-None-Match``)."""
    named = request.headers.get("if-none-match", "")
    return tag in [candidate.strip().removeprefix("W/") for candidate in named.split(",")]


class PageFile:
    """The ASGI answer that sends an image, or 304 if ``png`` is None."""

    def __init__(self, png: bytes | None, tag: str) -> None:
        self._png = png
        self._tag = tag

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = [
            (b"etag", self._tag.encode()),
            (b"cache-control", b"private, no-cache"),  # revalidated, because the permission may have ended
            (b"content-security-policy", SANDBOX.encode()),
            (b"x-content-type-options", b"nosniff"),
        ]
        body = b""
        if self._png is not None:
            body = self._png
            headers += [(b"content-type", b"image/png"), (b"content-length", str(len(body)).encode())]
        await send({"type": "http.response.start", "status": 304 if self._png is None else 200, "headers": headers})
        await send({"type": "http.response.body", "body": body, "more_body": False})
