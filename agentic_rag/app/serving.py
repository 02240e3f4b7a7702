"""Running the application under uvicorn: the socket, the signals, the order of stopping.

Owns how a serving process begins, waits for its store and ends. Knows no route.
"""

import asyncio
import logging
import os
import signal
import socket
import threading
from collections.abc import AsyncIterator, Callable, Collection, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial

import anyio
import uvicorn
from anyio.abc import TaskStatus
from starlette.types import ASGIApp

from agentic_rag.app.application import Application
from agentic_rag.base import garbage
from agentic_rag.base.errors import ServerStopping
from agentic_rag.base.settings import Settings
from agentic_rag.base.startup_errors import BadConfiguration, PortInUse
from agentic_rag.server.fast_socket import UVICORN_OPTIONS
from agentic_rag.server.hosts import hosts_of, url_of
from agentic_rag.server.http_protocol import ConnectionLimits, Entrance, descriptor_limit, raise_descriptor_limit
from agentic_rag.server.startup_app import make_waiting_app

log = logging.getLogger(__name__)

LEAST_DESCRIPTORS = 256
"""Some fifty are open in a server at rest. Where none is left, a part of it cannot be loaded, which ends it."""

BACKLOG = 2048
HTTP_CLOSE_SECONDS = 5
"""How long connections may take to close once no turn runs for them."""
END_SECONDS = 40.0
"""How long all the rest of a stop may take after the drain; after a second signal: everything."""


STOPS = frozenset({signal.SIGINT, signal.SIGTERM})
"""What ends a server; a second one ends it at once."""


def bind(host: str, port: int, *, shared: bool = False, listens: bool = True) -> socket.socket:
    """Return a listening socket.

    ``shared``: other sockets of this user may listen there beside it, among which the system spreads connections.
    ``listens``: False for one that only keeps the address for those, as long as nobody else has it.

    The protocol is named: with 0 the event loop would not switch Nagle's algorithm off, which costs 40 ms a delta.

    Raises:
        PortInUse: somebody listens there.
        BadConfiguration: the address is not one of this machine, or too few files can be open for serving at all.
    """
    raise_descriptor_limit()
    if descriptor_limit() < LEAST_DESCRIPTORS:
        problem = f"{descriptor_limit()} at once are allowed to this process; it needs {LEAST_DESCRIPTORS} (ulimit -n)"
        raise BadConfiguration("open files", problem)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        if shared and listens:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        listener.bind((host, port))
        if shared and not listens:  # after it was bound, which is refused where anybody listens, whoever shares or not
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        if listens:
            listener.listen(BACKLOG)
    except PermissionError as exc:
        listener.close()
        raise BadConfiguration("port", f"{port} needs rights this user does not have") from exc
    except (OSError, UnicodeError) as exc:
        listener.close()
        if isinstance(exc, OSError) and exc.errno is not None and "in use" in str(exc).lower():
            raise PortInUse(host, port) from exc
        raise BadConfiguration("host", f"{host!r} cannot be used: {exc}") from exc
    listener.setblocking(False)
    return listener


def address_of(listener: socket.socket) -> str:
    """Return the URL under which a client on this machine reaches the socket."""
    return url_of(*listener.getsockname()[:2])


class _Server(uvicorn.Server):
    """uvicorn without its signal handling: that one ends the process before our parts are closed."""

    def __init__(self, config: uvicorn.Config, on_listening: Callable[[], None]) -> None:
        super().__init__(config)
        self._on_listening = on_listening

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._on_listening()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


async def serve(
    application: Application,
    listener: socket.socket,
    on_listening: Callable[[], None],
    at_once: Collection[signal.Signals] = STOPS,
) -> None:
    """Serve until SIGINT or SIGTERM; then drain and stop. A second signal that is one of ``at_once`` stops at once.

    New connections are refused from the first signal on. What still runs after the drain resumes at the next start.
    """
    seconds = application.settings.drain_seconds

    def listening() -> None:
        application.announce(address_of(listener))
        application.begin()
        on_listening()

    server = _Server(_config(application.app, application.settings), listening)
    logging.getLogger("uvicorn.error").addFilter(_is_no_cancellation)
    async with anyio.create_task_group() as tasks:
        await tasks.start(partial(_obey_signals, server, application, seconds, at_once))
        await server.serve(sockets=[listener])
        tasks.cancel_scope.cancel()


@asynccontextmanager
async def answer_meanwhile(settings: Settings, listener: socket.socket) -> AsyncIterator[None]:
    """Answer that the store is not there yet, for as long as the block runs.

    Who connects after it is answered by `serve`: the socket stays open, connections wait in it.

    Raises:
        ServerStopping: SIGINT or SIGTERM came; the block was cancelled.
    """
    garbage.set_aside()  # a start looks for none, but this may take days

    def listening() -> None:
        log.warning("until the store is there, %s answers STORAGE_UNAVAILABLE", address_of(listener))

    server = _Server(_config(make_waiting_app(hosts_of(settings)), settings), listening)
    stopping = anyio.Event()
    async with anyio.create_task_group() as serving:
        serving.start_soon(partial(server.serve, sockets=[listener.dup()]))
        async with anyio.create_task_group() as waiting:
            await waiting.start(_cancel_at_signal, waiting.cancel_scope, stopping)
            yield
            waiting.cancel_scope.cancel()
        server.should_exit = True
    if stopping.is_set():
        raise ServerStopping


async def _cancel_at_signal(
    scope: anyio.CancelScope, stopping: anyio.Event, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED
) -> None:
    with anyio.open_signal_receiver(*STOPS) as signals:
        task_status.started()
        async for _ in signals:
            stopping.set()
            scope.cancel()


def _config(app: ASGIApp, settings: Settings) -> uvicorn.Config:
    raise_descriptor_limit()
    return uvicorn.Config(
        app,
        http=Entrance(ConnectionLimits(strangers=settings.unauthenticated_connections)),  # type: ignore[arg-type]
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        forwarded_allow_ips=[each.strip() for each in settings.trusted_proxies.split(",") if each.strip()],
        timeout_graceful_shutdown=HTTP_CLOSE_SECONDS,
        **UVICORN_OPTIONS,
    )


def _is_no_cancellation(record: logging.LogRecord) -> bool:
    """Whether a record is more than that a request was cut off by the stop, which is no error."""
    return record.exc_info is None or not isinstance(record.exc_info[1], asyncio.CancelledError)


async def _obey_signals(
    server: uvicorn.Server,
    application: Application,
    seconds: float,
    at_once: Collection[signal.Signals],
    *,
    task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED,
) -> None:
    with anyio.open_signal_receiver(*STOPS) as signals:
        task_status.started()
        async for _ in signals:
            break
        end_at_last(seconds + END_SECONDS)
        for listening in server.servers:
            listening.close()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_drain, server, application, seconds)
            async for number in signals:
                if number not in at_once:
                    continue
                end_at_last(END_SECONDS)
                server.should_exit = server.force_exit = True
                tasks.cancel_scope.cancel()


async def _drain(server: uvicorn.Server, application: Application, seconds: float) -> None:
    await application.drain(seconds)
    server.should_exit = True


def end_at_last(seconds: float) -> None:
    """End the process after so long, if it has not ended by then: nothing else ends a thread that a folder keeps.

    What is stored is whole, as after a kill; the next start goes on from it.
    """
    timer = threading.Timer(seconds, _end, [seconds])
    timer.daemon = True
    timer.start()


def _end(seconds: float) -> None:
    log.error(
        "the stop did not end within %g s: a folder or a device does not answer; the process ends without it", seconds
    )
    os._exit(1)
