"""Serve the whole application below a path of a shared host, such as ``https://intranet.example/rag``.

The application itself knows nothing of the path: routes, cookies and redirects are those of a server at ``/``. This
middleware removes the path from requests below it, and adds the path to redirects and cookies. Some proxies remove the
path themselves and send ``X-Forwarded-Prefix``. Well-known addresses of the host that name the path are below it, too.
Local programs (health checks, the command line) use no path at all.
"""

import re
from typing import Final

from starlette.responses import RedirectResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

_KEY: Final = "agentic_rag.root_path"
_HOST_COOKIE: Final = b"__Host-"
_SECURE_COOKIE: Final = b"__Secure-"
"""The prefix of cookies below a path. Browsers accept ``__Host-`` with ``Path=/`` only."""
_WELL_KNOWN: Final = re.compile(r"/\.well-known/[a-z-]+")
_COOKIE_PATH: Final = re.compile(rb"; Path=/(?=;|$)")


def root_path_of(scope: Scope) -> str:
    """Return the path below which the client of this request sees the server: ``/rag``, or empty."""
    return str(scope.get(_KEY, ""))


class RootPath:
    """ASGI middleware for one root path, such as ``/rag``: it begins with ``/`` and does not end with one."""

    def __init__(self, app: ASGIApp, root: str) -> None:
        self._app = app
        self._root = root

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        headers, path = scope["headers"], scope["path"]
        # Well-known addresses of the host name the path after their own (RFC 8615, RFC 8414 3.1).
        own = _WELL_KNOWN.match(path)
        if own is not None and f"{path[own.end() :]}/".startswith(f"{self._root}/"):
            path = self._root + own[0] + path[own.end() + len(self._root) :]
            scope = {**scope, "path": path}
            scope.pop("raw_path", None)
        # A proxy that removes the path names it in this header.
        prefix = next((value for name, value in headers if name == b"x-forwarded-prefix"), b"").rstrip(b"/")
        below = path == self._root or path.startswith(f"{self._root}/")
        if not below and prefix != self._root.encode():
            await self._app(scope, receive, send)
            return
        if path == self._root and scope["type"] == "http":
            # The page names its files relative to its own address, which therefore ends with a slash.
            await RedirectResponse(f"{self._root}/", status_code=308)(scope, receive, send)
            return
        inner = {**scope, _KEY: self._root}
        if below:
            inner["path"] = path[len(self._root) :] or "/"
            raw = scope.get("raw_path")
            if raw is not None:
                inner["raw_path"] = raw[len(self._root) :] or b"/"
        inner["headers"] = [
            (name, value.replace(_SECURE_COOKIE, _HOST_COOKIE) if name == b"cookie" else value)
            for name, value in headers
        ]
        await self._app(inner, receive, self._translating(send))

    def _translating(self, send: Send) -> Send:
        root = self._root.encode()

        def translate(name: bytes, value: bytes) -> bytes:
            if name.lower() == b"location" and value.startswith(b"/") and not value.startswith(b"//"):
                return root + value
            if name.lower() == b"set-cookie":
                return _COOKIE_PATH.sub(b"; Path=" + root, value.replace(_HOST_COOKIE, _SECURE_COOKIE, 1))
            return value

        async def translating(message: Message) -> None:
            if "headers" in message:
                message = {**message, "headers": [(name, translate(name, value)) for name, value in message["headers"]]}
            await send(message)

        return translating
