"""The SDK's HTTP client with a shorter way for the requests of a stream. Imported with the SDK, on first use."""

import json
from typing import Any

import httpx2
from anthropic import APIConnectionError, APIStatusError, APITimeoutError, DefaultAioHttpClient

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


class RequestTemplate:
    """A request that the SDK has built and sent, to be sent again with another body."""

    def __init__(self, response: httpx2.Response) -> None:
        """``response``: the answer to the SDK's request. After redirects, its first request counts."""
        request = (response.history[0] if response.history else response).request
        self._method, self._url, self._extensions = request.method, request.url, request.extensions
        self._headers = request.headers.copy()
        for name in ("content-length", "cookie"):
            self._headers.pop(name, None)

    async def send(self, client: httpx2.AsyncClient, body: bytes) -> httpx2.Response:
        """Return the answer with an unread body.

        Raises:
            APIStatusError, APITimeoutError, APIConnectionError: as the SDK.
        """
        request = httpx2.Request(
            self._method,
            self._url,
            content=body,
            headers=self._headers,
            cookies=client.cookies,
            extensions=self._extensions,
        )
        try:
            response = await client.send(request, stream=True)
        except httpx2.TimeoutException as exc:
            raise APITimeoutError(request=request) from exc
        except Exception as exc:
            raise APIConnectionError(request=request) from exc
        if response.is_success:
            return response
        await response.aread()
        text = response.text.strip()
        try:
            content: object = json.loads(text)
        except (ValueError, RecursionError):
            content = text
        raise APIStatusError(f"Error code: {response.status_code}", response=response, body=content)
