r"""The server as an ASGI application, for an ASGI server of the operator's choice.

Owns the application's life by ASGI's lifespan events: the data folder is opened when the server starts, running turns
are drained when it stops. Knows no route. Settings come from the environment, as for ``agentic-rag serve``::

    hypercorn agentic_rag.asgi:app --bind 127.0.0.1:8000
    granian --interface asgi agentic_rag.asgi:app
    uvicorn agentic_rag.asgi:app --http agentic_rag.server.entrance:ENTRANCE \
        --ws agentic_rag.server.fast_socket:SocketProtocol

One worker only: a data folder belongs to one process, and a second one refuses to start. Where the server listens is
its own setting; ``AGENTIC_RAG_HOST`` and ``AGENTIC_RAG_PORT`` have to say the same, for the rule that beyond loopback a
key is needed, and for the command line to find the server.
"""

import logging
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

from starlette.types import ASGIApp, Receive, Scope, Send

from agentic_rag.app import Application, open_application
from agentic_rag.errors import AgenticRagError
from agentic_rag.operations.data_folder import check_user
from agentic_rag.server.hosts import url_of
from agentic_rag.settings import load_settings

log = logging.getLogger(__name__)


class HostedApplication:
    """An application that lives from a server's startup event to its shutdown event. ``make`` opens one."""

    def __init__(self, make: Callable[[], AbstractAsyncContextManager[Application]]) -> None:
        self._make = make
        self._app: ASGIApp | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._live(receive, send)
        elif self._app is None:
            raise RuntimeError("The server sends no lifespan events: without them the data folder is not open.")
        else:
            await self._app(scope, receive, send)

    async def _live(self, receive: Receive, send: Send) -> None:
        await receive()  # the startup
        event = "startup"
        try:
            async with self._make() as application:
                settings = application.settings
                application.ground.folder.announce(url_of(settings.host, settings.port), application.access.local_key)
                application.begin()
                self._app = application.app
                await send({"type": "lifespan.startup.complete"})
                event = "shutdown"
                await receive()  # the shutdown
                await application.drain(settings.drain_seconds)
        except AgenticRagError as exc:
            log.error("%s", exc)
            await send({"type": f"lifespan.{event}.failed", "message": str(exc)})
        else:
            await send({"type": "lifespan.shutdown.complete"})
        finally:
            self._app = None


def _open() -> AbstractAsyncContextManager[Application]:
    settings = load_settings()
    check_user(allow_root=settings.allow_root)
    return open_application(settings)


app = HostedApplication(_open)
