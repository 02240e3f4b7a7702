"""The token of one connection: sent with each of its requests, to the server's own origin and nowhere else.

Owns the reaction to a refusal: one retry with a newer token, then the refusal becomes an answer to the refused request,
so that its caller learns of it and all other calls continue. `Accounts` provides the tokens. Knows no store and no
authorization server.
"""

from collections import OrderedDict
from collections.abc import Callable
from typing import Protocol

import httpx2
from mcp import MCPError
from mcp_types import INTERNAL_ERROR

from agentic_rag.base.errors import AgenticRagError, ServerUnavailable
from agentic_rag.tools.launch.spec import LaunchSpec
from agentic_rag.tools.oauth.discovery import REASON, Challenge, challenge_of
from agentic_rag.tools.oauth.errors import SignInNeeded

REFUSED = -32_401
"""The code of our own answer to a request that the server refused because of its token."""

KEPT_CHALLENGES = 64
Lost = Callable[[str], None]
"""Receives the reason for which a connection is over."""
WANTED = "it wants a sign-in"


class Accounts(Protocol):
    """The sign-ins of users and domains at servers, and the way to new ones."""

    async def token(self, spec: LaunchSpec) -> str | None:
        """Return the token for a connection, renewed if it is about to expire; None if there is none.

        Raises:
            SignInNeeded: There is no token, and a sign-in is open that would bring one.
            ServerUnavailable: The token could not be renewed now.
        """
        ...

    async def newer(self, spec: LaunchSpec, refused: str) -> str | None:
        """Return a token that differs from a refused one, or None if no other token is available."""
        ...

    async def answer(self, spec: LaunchSpec, challenge: Challenge) -> None:
        """Answer a refusal: after this returns there is a token that the server may accept.

        Raises:
            SignInNeeded: A person has to sign in.
            ServerUnavailable: The refusal cannot be answered; the text gives the reason.
        """
        ...


class Credentials:
    """The credentials of one connection, provided by ``accounts``."""

    def __init__(self, spec: LaunchSpec, accounts: Accounts) -> None:
        self._spec = spec
        self._accounts = accounts
        self._challenges: OrderedDict[int, Challenge] = OrderedDict()
        self._count = 0

    async def token(self) -> str | None:
        """See `Accounts.token`."""
        return await self._accounts.token(self._spec)

    async def newer(self, refused: str) -> str | None:
        """See `Accounts.newer`."""
        return await self._accounts.newer(self._spec, refused)

    async def answer(self, challenge: Challenge) -> None:
        """See `Accounts.answer`."""
        await self._accounts.answer(self._spec, challenge)

    def note(self, challenge: Challenge) -> dict[str, object]:
        """Store a challenge; return the JSON-RPC error by which `challenge_in` finds it."""
        self._count += 1
        self._challenges[self._count] = challenge
        if len(self._challenges) > KEPT_CHALLENGES:
            self._challenges.popitem(last=False)
        error = {"code": REFUSED, "message": WANTED, "data": {"challenge": self._count}}
        return {"jsonrpc": "2.0", "id": None, "error": error}

    def challenge_in(self, error: MCPError) -> Challenge | None:
        """Return the challenge because of which a request failed, once; None for another failure."""
        data = error.error.data if error.error.code == REFUSED else None
        number = data.get("challenge") if isinstance(data, dict) else None
        return self._challenges.pop(number, None) if isinstance(number, int) else None

    def take_last(self) -> Challenge | None:
        """Return the last challenge of a start that failed, and forget all of them."""
        last = next(reversed(self._challenges.values()), None)
        self._challenges.clear()
        return last


class SignedTransport(httpx2.AsyncBaseTransport):
    """Sends requests with the connection's token, over another transport. ``url``: the server's."""

    def __init__(
        self, inner: httpx2.AsyncBaseTransport, credentials: Credentials, url: str, on_lost: Lost | None
    ) -> None:
        """Store the inner transport.

        ``on_lost`` is called if no caller waits for the answer to a refused message (the older transport).
        """
        self._inner = inner
        self._lost = on_lost
        self._credentials = credentials
        self._origin = _origin(httpx2.URL(url))

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        # A redirect or an announced address may lead elsewhere, where the token must not go.
        if _origin(request.url) != self._origin:
            return await self._inner.handle_async_request(request)
        try:
            token = await self._credentials.token()
        except SignInNeeded:
            return self._refuse(request, 401, Challenge(None))
        except AgenticRagError as exc:
            error = {"code": INTERNAL_ERROR, "message": exc.reason if isinstance(exc, ServerUnavailable) else str(exc)}
            return httpx2.Response(503, json={"jsonrpc": "2.0", "id": None, "error": error}, request=request)
        response = await self._send(request, token)
        if token is not None and response.status_code == 401:
            # Another connection may have renewed the token since this request began.
            newer = await self._credentials.newer(token)
            if newer is not None:
                await response.aclose()
                token, response = newer, await self._send(request, newer)
        challenge = challenge_of(response, token)
        if challenge is None:
            reason = response.extensions.get(REASON)
            if self._lost is not None and isinstance(reason, str):  # the older transport: no caller reads this answer
                raise httpx2.RemoteProtocolError(reason, request=request)
            return response
        await response.aclose()
        return self._refuse(request, response.status_code, challenge)

    def _refuse(self, request: httpx2.Request, status: int, challenge: Challenge) -> httpx2.Response:
        """Return our own answer in place of a refusal."""
        if self._lost is not None and request.method == "POST":
            self._lost(WANTED)
        return httpx2.Response(status, json=self._credentials.note(challenge), request=request)

    async def _send(self, request: httpx2.Request, token: str | None) -> httpx2.Response:
        if token is not None:
            request.headers["authorization"] = f"Bearer {token}"
        return await self._inner.handle_async_request(request)

    async def aclose(self) -> None:
        await self._inner.aclose()


def _origin(url: httpx2.URL) -> tuple[str, str, int | None]:
    return url.scheme, url.host, url.port
