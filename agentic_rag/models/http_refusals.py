"""The body of an answer that is no success: only its beginning is read.

Owns the bound, since the SDK reads such a body whole. Imported with the HTTP client, on first use. An answer itself is
read and unpacked event by event, and each event is bounded by `SSEReader`.
"""

from collections.abc import AsyncIterator

import httpx2

REFUSAL_BYTES = 64 * 1024
"""More than any service says of a refusal; a line of it is quoted."""


class _Beginning(httpx2.AsyncByteStream):
    """The first ``limit`` bytes of a body."""

    def __init__(self, body: httpx2.AsyncByteStream, limit: int) -> None:
        self._body = body
        self._limit = limit

    async def __aiter__(self) -> AsyncIterator[bytes]:
        left = self._limit
        async for part in self._body:
            yield part[:left]
            left -= len(part)
            if left <= 0:
                return

    async def aclose(self) -> None:
        await self._body.aclose()


async def shorten_refusal(response: httpx2.Response) -> None:
    """Leave of a refusal its beginning; of a packed one, whose beginning may stand for any size, nothing."""
    if response.status_code == httpx2.codes.OK:
        return
    assert isinstance(response.stream, httpx2.AsyncByteStream)
    packed = response.headers.pop("content-encoding", "identity") != "identity"
    response.stream = _Beginning(response.stream, 0 if packed else REFUSAL_BYTES)
