r"""The server as an ASGI application, for an ASGI server of the operator's choice.

The application follows ASGI's lifespan events: startup opens the data folder, and shutdown drains running turns. If the
store is unavailable at startup, the application starts anyway and answers requests with an error until the store is
available. It knows no route. Settings come from the environment, as for ``agentic-rag serve``::

    hypercorn agentic_rag.app.asgi:app --bind 127.0.0.1:8000
    granian --interface asgi agentic_rag.app.asgi:app
    uvicorn agentic_rag.app.asgi:app --http agentic_rag.server.http_protocol:ENTRANCE \
        --ws agentic_rag.server.ws.fast_socket:SocketProtocol

Use one worker only: a data folder belongs to one process, and a second one refuses to start. The ASGI server's own
options define its address. ``AGENTIC_RAG_HOST`` and ``AGENTIC_RAG_PORT`` must have the same values, because addresses
beyond loopback require keys, and the command line uses them to find the server.
"""

import logging
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
from anyio.abc import TaskGroup
from starlette.types import ASGIApp, Receive, Scope, Send

from agentic_rag.app.application import open_application
from agentic_rag.base.errors import ServerStopping, first_cause
from agentic_rag.base.settings import Settings, load_settings
from agentic_rag.operations.process_user import warn_if_root
from agentic_rag.server.hosts import hosts_of, url_of
from agentic_rag.server.startup_app import make_waiting_app

log = logging.getLogger(__name__)


class HostedApplication:
    """An application that lives from a server's startup event to its shutdown event."""

    def __init__(self) -> None:
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
        async with anyio.create_task_group() as tasks:
            lifespan = _Lifespan(receive, send, tasks)
            try:
                settings = load_settings()
                warn_if_root()
                await self._serve(settings, lifespan)
            except Exception as exc:
                error = first_cause(exc)
                if error is None:
                    raise
                log.error("%s", error)
                await lifespan.fail(str(error))
            else:
                await lifespan.complete_shutdown()
            finally:
                self._app = None

    async def _serve(self, settings: Settings, lifespan: "_Lifespan") -> None:
        try:
            async with open_application(settings, meanwhile=self._answer_meanwhile(settings, lifespan)) as application:
                application.announce(url_of(settings.host, settings.port))
                application.begin()
                self._app = application.app
                await lifespan.complete_startup()
                await lifespan.stopping.wait()
                await application.drain(settings.drain_seconds)
        except ServerStopping:
            log.info("the server was stopped before there was a store")

    @asynccontextmanager
    async def _answer_meanwhile(self, settings: Settings, lifespan: "_Lifespan") -> AsyncIterator[None]:
        """Answer that the store is unavailable until the application itself answers.

        Raises:
            ServerStopping: the server stops and the block was cancelled.
        """
        self._app = make_waiting_app(hosts_of(settings))
        await lifespan.complete_startup()
        async with anyio.create_task_group() as waiting:
            waiting.start_soon(lifespan.cancel_when_stopping, waiting.cancel_scope)
            yield
            waiting.cancel_scope.cancel()
        if lifespan.stopping.is_set():
            raise ServerStopping


class _Lifespan:
    """The lifespan messages between server and application, each sent once. The shutdown event sets ``stopping``."""

    def __init__(self, receive: Receive, send: Send, tasks: TaskGroup) -> None:
        self._receive = receive
        self._send = send
        self._tasks = tasks
        self._started = False
        self.stopping = anyio.Event()

    async def complete_startup(self) -> None:
        """Report that requests are answered. Idempotent."""
        if not self._started:
            self._started = True
            await self._send({"type": "lifespan.startup.complete"})
            self._tasks.start_soon(self._hear)

    async def _hear(self) -> None:
        await self._receive()  # the shutdown
        self.stopping.set()

    async def cancel_when_stopping(self, scope: anyio.CancelScope) -> None:
        await self.stopping.wait()
        scope.cancel()

    async def complete_shutdown(self) -> None:
        await self._send({"type": "lifespan.shutdown.complete"})

    async def fail(self, problem: str) -> None:
        """Report that the application cannot continue."""
        if not self._started:
            await self._send({"type": "lifespan.startup.failed", "message": problem})
            return
        if not self.stopping.is_set():
            signal.raise_signal(signal.SIGTERM)  # to the ASGI server, which nothing else stops
            await self.stopping.wait()
        await self._send({"type": "lifespan.shutdown.failed", "message": problem})


app = HostedApplication()
