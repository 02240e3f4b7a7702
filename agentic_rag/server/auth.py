"""Who may talk to this server: the loopback user, and the checks of Host and Origin that protect it.

Owns the caller's identity, the guard around the whole application, and the rule where the server may listen.
Until there are keys there is one user, ``local``, operator of everything, and nothing but loopback. Knows no
record and no route.
"""

import ipaddress
import logging
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from agentic_rag.errors import BadConfiguration, Forbidden
from agentic_rag.server.replies import failure, refusal
from agentic_rag.store.clock import new_id
from agentic_rag.users import User

__all__ = ["LOCAL", "Guard", "User", "check_bind", "is_loopback", "user_of"]

log = logging.getLogger("agentic_rag.server")


LOCAL = User("local", operator=True)


def user_of(scope: Scope) -> User:
    """Return the caller of an HTTP request or a WebSocket, as the guard found it."""
    user = scope["state"]["user"]
    assert isinstance(user, User)
    return user


def check_bind(host: str) -> None:
    """Refuse to listen where others could connect.

    Raises:
        BadConfiguration: ``host`` is not a loopback address.
    """
    if not is_loopback(host):
        raise BadConfiguration(
            "host", f"{host!r} is not a loopback address. Without API keys the server listens on 127.0.0.1 or ::1 only."
        )


def is_loopback(host: str) -> bool:
    """Whether a host name or address (without port and brackets) means this machine only."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class Guard:
    """ASGI middleware around everything: request id, Host and Origin, the caller, and the last error net.

    A page of a foreign site can make a browser send requests here, under our name (Origin differs) or under a
    name of its own that resolves to 127.0.0.1 (Host differs). Both are refused before any route runs.
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self.app(scope, receive, send)
            return
        reference = new_id("req")
        scope["state"] = {**scope.get("state", {}), "request_id": reference, "user": LOCAL}
        started = False

        async def sending(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).append("x-request-id", reference)
            started = True
            await send(message)

        refused = _refused(Headers(scope=scope))
        if refused is not None:
            await _answer(refusal(refused, reference), scope, receive, sending)
            return
        try:
            await self.app(scope, receive, sending)
        except Exception as exc:
            if started or scope["type"] == "websocket":
                log.error("request %s failed", reference, exc_info=exc)
                raise
            await _answer(failure(exc, reference), scope, receive, sending)


async def _answer(response: Response, scope: Scope, receive: Receive, send: Send) -> None:
    if scope["type"] == "http":
        await response(scope, receive, send)
    elif "websocket.http.response" in scope.get("extensions", {}):
        headers = response.raw_headers
        await send({"type": "websocket.http.response.start", "status": response.status_code, "headers": headers})
        await send({"type": "websocket.http.response.body", "body": response.body})
    else:
        await send({"type": "websocket.close", "code": 1008})


def _refused(headers: Headers) -> Forbidden | None:
    host = headers.get("host", "")
    if not is_loopback(_hostname(f"//{host}")):
        return Forbidden(f"Host {host!r} is not this server. Use http://127.0.0.1 or http://localhost.")
    origin = headers.get("origin")
    if origin is not None and urlsplit(origin).netloc.lower() != host.lower():
        return Forbidden(f"Origin {origin!r} may not use this server.")
    return None


def _hostname(url: str) -> str:
    """Return the name of an address, or nothing when it is no address at all."""
    try:
        parts = urlsplit(url)
        return "" if parts.username is not None or parts.path else parts.hostname or ""
    except ValueError:
        return ""
