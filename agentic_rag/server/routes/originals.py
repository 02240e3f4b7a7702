"""Send a document's original file, whole or as one range, under its own name and never executed by a browser.

This module sets the headers and parses the ``Range`` header. It knows no folder and no domain.
"""

import re
from urllib.parse import quote

from starlette.types import Receive, Scope, Send

from agentic_rag.base.silence_timers import SilenceScope
from agentic_rag.documents.files import Original, split_name
from agentic_rag.server.replies import SANDBOX

PIECE = 256 * 1024
"""Bytes that are read and sent at once."""
SEND_SECONDS = 60.0
"""Time limit for sending one piece. A slower client has stopped reading, and the connection is closed."""
_RANGE = re.compile(r"bytes=(\d{0,18})-(\d{0,18})")


class OriginalFile:
    """The ASGI answer that sends a document's file, or the range in ``range_header`` (a ``Range`` header).

    A malformed header, or one with several ranges, is ignored. The file is closed at the end.
    """

    def __init__(self, original: Original, range_header: str | None) -> None:
        self._original = original
        self._range_header = range_header

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await self._send(send)
        finally:
            self._original.close()

    async def _send(self, send: Send) -> None:
        size = self._original.size
        part = None if self._range_header is None else part_named(self._range_header, size)
        start, end = (0, size) if part is None else part
        status, headers = 200, self._headers()
        if part is not None:
            status, place = (206, f"{start}-{end - 1}") if start < end else (416, "*")
            headers.append((b"content-range", f"bytes {place}/{size}".encode()))
        headers.append((b"content-length", str(end - start).encode()))
        await send({"type": "http.response.start", "status": status, "headers": headers})
        while start < end:
            piece = await self._original.read(start, min(PIECE, end - start))
            if not piece:
                return  # the file was truncated meanwhile; the client notices the short answer
            start += len(piece)
            with SilenceScope(SEND_SECONDS) as sending:
                await send({"type": "http.response.body", "body": piece, "more_body": True})
            if sending.expired:
                return
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    def _headers(self) -> list[tuple[bytes, bytes]]:
        media_type = self._original.media_type.encode("latin-1", "replace") or b"application/octet-stream"
        return [
            (b"content-type", media_type),
            (b"content-disposition", disposition(self._original.name).encode()),
            (b"content-security-policy", SANDBOX.encode()),
            (b"x-content-type-options", b"nosniff"),
            (b"accept-ranges", b"bytes"),
        ]


def part_named(range_header: str, size: int) -> tuple[int, int] | None:
    """Return the start and end of the range in a ``Range`` header, for a file of ``size`` bytes.

    Returns None for the whole file, and start equal to end if the range is not satisfiable.
    """
    match = _RANGE.fullmatch(range_header.strip())
    if match is None or match.groups() == ("", ""):
        return None
    first, last = match.groups()
    if not first:  # ``bytes=-500`` names the last 500 bytes
        start, end = max(0, size - int(last)), size
    else:
        start, end = int(first), min(size, int(last) + 1) if last else size
        if last and int(last) < start:  # invalid (RFC 9110, 14.1.1): the header is ignored
            return None
    return (start, end) if start < end else (0, 0)


def disposition(name: str) -> str:
    """Return a ``Content-Disposition`` that saves a file under its name, with an ASCII fallback for older clients."""
    stem, ending = split_name(name)
    plain = "".join(re.sub(r"[^A-Za-z0-9._ -]", "_", part)[:100] for part in (stem, ending))
    return f"attachment; filename=\"{plain}\"; filename*=UTF-8''{quote(name, safe='')}"
