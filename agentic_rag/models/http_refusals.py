"""A size limit for the bodies of HTTP error answers.

The SDKs read such a body completely, so this module cuts the body off. Imported with the HTTP client, on first use.
Successful answers are read event by event, and `SSEReader` limits the size of each event.
"""

from collections.abc import AsyncIterator

import httpx2

REFUSAL_BYTES = 64 * 1024
"""Most bytes read of an error body. No service sends more, and errors quote only one line."""


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
    """Truncate the body of an error answer to `REFUSAL_BYTES`.

    A compressed body is dropped, because its first bytes may unpack to any size.
    """
    if response.status_code == httpx2.codes.OK:
        return
    assert isinstance(response.stream, httpx2.AsyncByteStream)
    packed = response.headers.pop("content-encoding", "identity") != "identity"
    response.stream = _Beginning(response.stream, 0 if packed else REFUSAL_BYTES)
