"""The connection of the command line to the application, always over REST.

If a server runs on the data folder, commands call it. Otherwise they run the same application in this process, under
the folder's lock. Knows no command.
"""

from collections.abc import AsyncIterable, Awaitable, Callable, Mapping
from contextvars import ContextVar
from typing import IO, Any, TypeVar

import httpx2

from agentic_rag.base.errors import RequestRefused, ServerUnreachable
from agentic_rag.base.settings import Settings
from agentic_rag.operations.data_folder import find_key, find_server

T = TypeVar("T")

TIMEOUT_SECONDS = 60.0

given_key: ContextVar[str | None] = ContextVar("given_key", default=None)
"""The API key of the command line's ``--key``."""


class ServerClient:
    """REST calls that return JSON or text, or raise the server's error."""

    def __init__(self, http: httpx2.AsyncClient) -> None:
        self._http = http

    async def call(
        self,
        method: str,
        path: str,
        *,
        json: Any = None,
        params: Mapping[str, str] | None = None,
        file: tuple[str, IO[bytes]] | None = None,
        content: bytes | AsyncIterable[bytes] | None = None,
        headers: Mapping[str, str] | None = None,
        seconds: float = TIMEOUT_SECONDS,
    ) -> Any:
        """Send one request and return the answer.

        ``file`` is the name and open file of an upload. ``content`` is a raw body. ``seconds`` is the time limit.

        Raises:
            RequestRefused: the server refused the request.
            ServerUnreachable: there was no answer.
        """
        try:
            response = await self._http.request(
                method,
                path,
                json=json,
                content=content,
                headers=headers,
                params=params,
                files=None if file is None else {"file": file},
                timeout=seconds,
            )
        except httpx2.TransportError as exc:
            raise ServerUnreachable(str(self._http.base_url), type(exc).__name__) from exc
        if response.is_success and response.headers.get("content-type", "").startswith("text/"):
            return response.text
        if response.is_success:
            return response.json() if response.content else None
        raise self._refusal(response)

    async def fetch(self, path: str, params: Mapping[str, str], file: IO[bytes], seconds: float) -> Mapping[str, str]:
        """Stream the body of an answer into a file. Returns the answer's headers.

        Raises:
            RequestRefused: the server refused the request.
            ServerUnreachable: there was no answer, or it ended early, so the file is incomplete.
        """
        try:
            async with self._http.stream("GET", path, params=params, timeout=seconds) as response:
                if not response.is_success:
                    await response.aread()
                    raise self._refusal(response)
                size = 0
                async for piece in response.aiter_bytes():
                    size += len(piece)
                    file.write(piece)
        except httpx2.TransportError as exc:
            raise ServerUnreachable(str(self._http.base_url), type(exc).__name__) from exc
        if str(size) != response.headers.get("content-length", str(size)):
            raise ServerUnreachable(str(self._http.base_url), "the answer was cut off: something changed meanwhile")
        return response.headers

    def _refusal(self, response: httpx2.Response) -> RequestRefused | ServerUnreachable:
        try:
            error = response.json()["error"]
            return RequestRefused(response.status_code, error["code"], error["message"])
        except (ValueError, KeyError, TypeError):
            return ServerUnreachable(str(self._http.base_url), f"HTTP {response.status_code} of another program")


async def with_client(settings: Settings, url: str | None, command: Callable[[ServerClient], Awaitable[T]]) -> T:
    """Run a command against the server at ``url``, else the server on the data folder, else on the folder itself.

    Raises:
        DataFolderOwned: a process that does not listen has locked the folder.
    """
    address = url or find_server(settings.own)
    if address is not None:
        headers = bearer(key_for(settings, url))
        async with httpx2.AsyncClient(
            base_url=address, headers=headers, timeout=TIMEOUT_SECONDS, trust_env=False
        ) as http:
            return await command(ServerClient(http))
    # the whole application: a command that found a running server does not need it
    from agentic_rag.app.application import open_application

    async with open_application(settings, serving=False) as application:
        transport = httpx2.ASGITransport(application.app)
        headers = bearer(key_for(settings, url) or application.access.local_key)
        async with httpx2.AsyncClient(base_url="http://127.0.0.1", headers=headers, transport=transport) as http:
            return await command(ServerClient(http))


def key_for(settings: Settings, url: str | None) -> str | None:
    """Return the API key: the given one, else the configured one, else that of the folder's own user.

    The folder's key is for the server on the folder. It is never sent to an address that the user named.
    """
    if given_key.get() is not None:
        return given_key.get()
    if settings.key is not None:
        return settings.key.get_secret_value()
    return None if url else find_key(settings.own)


def bearer(key: str | None) -> dict[str, str]:
    """Return the headers with an API key."""
    return {"Authorization": f"Bearer {key}"} if key else {}
