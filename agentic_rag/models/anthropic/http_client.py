"""The SDK's HTTP client with a shorter way for the requests of a stream. Imported with the SDK, on first use."""

from typing import Any

import httpx2
from anthropic import DefaultAioHttpClient

_COMPLETE = frozenset({"content", "headers", "timeout"})


class ModelHttpClient(DefaultAioHttpClient):
    """The SDK's aiohttp client, which does not merge its own defaults into a request that the SDK has completed.

    The SDK gives a URL and its headers; aiohttp adds ``Accept-Encoding``. Headers that were set on this client are not
    sent. Merging the client's defaults costs a tenth of all that the SDK does for a request, and each first token waits
    for that.
    """

    def build_request(self, method: str, url: httpx2.URL | str, **parts: Any) -> httpx2.Request:
        """Return a request of the SDK, with the cookies that the service has set."""
        content, timeout = parts.get("content"), parts.get("timeout")
        more = any(value for name, value in parts.items() if name not in _COMPLETE)
        if more or not isinstance(content, bytes) or not isinstance(timeout, httpx2.Timeout):
            return super().build_request(method, url, **parts)
        extensions = {"timeout": timeout.as_dict()}
        return httpx2.Request(
            method, url, content=content, headers=parts.get("headers"), cookies=self.cookies, extensions=extensions
        )
