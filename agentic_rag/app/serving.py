"""Run the application under uvicorn: the socket, the signals, and the order of stopping.

This module starts a serving process, lets it wait for its store, and ends it. It knows no route.
"""

import asyncio
import errno
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
from agentic_rag.server.hosts import hosts_of, url_of
from agentic_rag.server.http_protocol import ConnectionLimits, Entrance, descriptor_limit, raise_descriptor_limit
from agentic_rag.server.startup_app import make_waiting_app
from agentic_rag.server.ws.fast_socket import UVICORN_OPTIONS

log = logging.getLogger(__name__)

LEAST_DESCRIPTORS = 256
"""Minimum limit of open files.

An idle server uses about 50. Without a free one, a module cannot load and the server ends.
"""

BACKLOG = 2048
HTTP_CLOSE_SECONDS = 5
"""How long connections may take to close after their turns have ended."""
END_SECONDS = 40.0
"""How long a stop may take after the drain. After a second signal, how long it may take altogether."""


STOPS = frozenset({signal.SIGINT, signal.SIGTERM})
"""Signals that stop a server. A second one stops it immediately."""


def bind(host: str, port: int, *, shared: bool = False, listens: bool = True) -> socket.socket:
    """Return a listening socket.

    ``shared``: other sockets of the same user may listen at the address, too, and the kernel spreads connections over
    them. ``listens``: False for a socket that only reserves the address for those sockets.

    The protocol is given explicitly. With 0 the event loop would not disable Nagle's algorithm, which costs 40 ms a
    delta.

    Raises:
        PortInUse: another process listens there.
        BadConfiguration: the address is not one of this machine, or the limit of open files is too low for a server.
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
        if shared and not listens:  # after binding, which fails if any other socket listens there, sharing or not
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        if listens:
            listener.listen(BACKLOG)
    except PermissionError as exc:
        listener.close()
        raise BadConfiguration("port", f"{port} needs rights this user does not have") from exc
    except (OSError, UnicodeError) as exc:
        listener.close()
        if isinstance(exc, OSError) and exc.errno == errno.EADDRINUSE:
            raise PortInUse(host, port) from exc
        raise BadConfiguration("host", f"{host!r} cannot be used: {exc}") from exc
    listener.setblocking(False)
    return listener


def address_of(listener: socket.socket) -> str:
    """Return the URL at which a client on this machine reaches the socket."""
    return url_of(*listener.getsockname()[:2])


class _Server(uvicorn.Server):
    """uvicorn without its signal handling, which would end the process before our parts are closed."""

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
    """Serve until SIGINT or SIGTERM, then drain and stop. A second signal in ``at_once`` stops immediately.

    New connections are refused after the first signal. Turns that still run after the drain resume at the next start.
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
    """Answer that the store is unavailable while the block runs.

    Later connections wait in the open socket until `serve` answers them.

    Raises:
        ServerStopping: SIGINT or SIGTERM arrived and the block was cancelled.
    """
    garbage.set_aside()  # not needed during a start, but waiting for the store may take days

    def listening() -> None:
        log.warning("until the store is there, %s answers STORAGE_UNAVAILABLE", address_of(listener))

    server = _Server(_config(make_waiting_app(hosts_of(settings)), settings), listening)
    stopping = anyio.Event()
    async with anyio.create_task_group() as serving:
        # A duplicate, because uvicorn closes its sockets at the end, and `serve` needs the listener afterwards.
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
        lifespan="off",  # `open_application` opens and closes all parts
        log_config=None,
        access_log=False,
        server_header=False,
        forwarded_allow_ips=[proxy.strip() for proxy in settings.trusted_proxies.split(",") if proxy.strip()],
        timeout_graceful_shutdown=HTTP_CLOSE_SECONDS,
        **UVICORN_OPTIONS,
    )


def _is_no_cancellation(record: logging.LogRecord) -> bool:
    """Return False for a log record that only reports a request cancelled by the stop, which is not an error."""
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
        # Open connections are served until their turns have ended.
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
    """End the process after ``seconds`` if it has not ended, because a thread blocked on a folder cannot be stopped.

    The stored data stays consistent, as after a kill, and the next start continues from it.
    """
    timer = threading.Timer(seconds, _end, [seconds])
    timer.daemon = True
    timer.start()


def _end(seconds: float) -> None:
    log.error(
        "the stop did not end within %g s: a folder or a device does not answer; the process ends without it", seconds
    )
    os._exit(1)
