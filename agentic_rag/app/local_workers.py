"""Run several processes of one machine as one server on one port: ``agentic-rag serve --workers N``.

This module is the parent process. It keeps the address, forks the workers, restarts workers that end, and passes on
signals. A worker is one of several servers of one PostgreSQL database, as if it ran on another machine. It has its own
name, folder and socket, and the kernel spreads connections over the sockets. This module knows no application.

A worker ends when its parent ends for any reason: the parent never sends data to a worker, and the worker notices when
their socket pair closes.
"""

import logging
import math
import os
import select
import signal
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from types import FrameType
from typing import Final

from agentic_rag.access.keys import new_secret
from agentic_rag.app.serving import END_SECONDS, STOPS, address_of, bind, end_at_last
from agentic_rag.base.settings import Settings
from agentic_rag.base.startup_errors import BadConfiguration
from agentic_rag.operations.data_folder import WORKERS
from mcp_servers.child_processes import RestartDelay

log = logging.getLogger(__name__)

KILL_SECONDS: Final = 5.0
"""Time added to a stopping worker's own limit before it is killed. A paused worker cannot obey its own limit."""
AT_ONCE: Final = frozenset({signal.SIGINT})
"""Signals that end a stopping worker immediately.

SIGTERM is not one of them. A service manager may send it to all processes, and the parent passes it on, too.
"""
HEARD: Final = STOPS | {signal.SIGCHLD}
READY: Final = b"r"


@dataclass(frozen=True, slots=True)
class Worker:
    """A worker's settings, its socket and its connection to the parent. All workers have the same ``local_key``."""

    settings: Settings
    listener: socket.socket
    local_key: str
    _line: socket.socket

    def tell_ready(self) -> None:
        """Notify the parent that this process answers requests."""
        with suppress(OSError):  # the parent has just ended
            self._line.send(READY)

    def end_with_parent(self) -> None:
        """Wait for the parent's end, then send SIGTERM to this process. Blocks, so it needs its own thread."""
        with suppress(OSError):
            self._line.recv(1)
        log.error("the process that began this worker has ended: it ends, too")
        end_at_last(self.settings.drain_seconds + END_SECONDS)
        os.kill(os.getpid(), signal.SIGTERM)


@dataclass(slots=True)
class _Place:
    """One of N places for a worker. ``pid`` is its process, 0 if the place is empty.

    ``due`` is the time of the next start (`time.monotonic`).
    """

    number: int
    due: float = math.inf
    delay: RestartDelay = field(default_factory=RestartDelay)
    pid: int = 0
    line: socket.socket | None = None
    ready: bool = False
    began: float = 0.0


class LocalWorkers:
    """The parent of the workers, in the process that the user started. It uses no threads and no event loop.

    Raises:
        PortInUse, BadConfiguration: as `bind`; or the settings do not fit several servers.
    """

    def __init__(self, settings: Settings) -> None:
        _check(settings)
        self._keeper = bind(settings.host, settings.port, shared=True, listens=False)
        self._settings = settings.model_copy(update={"port": self._keeper.getsockname()[1]})
        self._local_key = new_secret()
        self._places = [_Place(number) for number in range(1, settings.workers + 1)]
        self._serving = False
        self._stops = 0
        self._kill_at = math.inf
        self._code = 0
        self._woken, self._waking = socket.socketpair()

    @property
    def address(self) -> str:
        """The URL at which clients on this machine reach the workers."""
        return address_of(self._keeper)

    def begin(self) -> Worker | None:
        """Start the workers. Returns in each worker, and returns None in the parent when all workers answer.

        The first worker starts alone, because it creates the tables and the contents of the data folder.

        Raises:
            SystemExit: in the parent: a worker ended before (with its exit code), or the parent was told to stop (0).
        """
        self._listen_to_signals()
        self._places[0].due = 0.0
        while not all(place.ready for place in self._places):
            if (worker := self._go_on()) is not None:
                return worker
        self._serving = True
        return None

    def look_after(self) -> Worker:
        """Supervise the started workers. Returns in each replacement worker, and never in the parent.

        Raises:
            SystemExit: in the parent, at the end. The code is 1 if a worker did not stop properly, else 0.
        """
        while True:
            if (worker := self._go_on()) is not None:
                return worker

    def _go_on(self) -> Worker | None:
        """Start due workers and handle the next event. Returns the worker in a worker process, None in the parent."""
        for place in self._places:
            if place.due <= time.monotonic() and (worker := self._fork(place)) is not None:
                return worker
        if self._stops and not any(place.pid for place in self._places):
            raise SystemExit(self._code)
        self._wait()
        self._bury()
        return None

    def _listen_to_signals(self) -> None:
        # Python writes the number of each signal into this socket, so that `select` in `_wait` notices it.
        for end in (self._woken, self._waking):
            end.setblocking(False)
        signal.set_wakeup_fd(self._waking.fileno())
        for number in HEARD:
            signal.signal(number, _note)

    def _fork(self, place: _Place) -> Worker | None:
        """Fork a worker. Returns the worker in its process, None in the parent."""
        try:
            parent_end, worker_end = socket.socketpair()
            with _held_signals():
                pid = os.fork()
                if pid == 0:
                    signal.set_wakeup_fd(-1)  # it is the parent's: a child would wake the parent with its own signals
                    for number in HEARD:
                        signal.signal(number, signal.SIG_DFL)
        except OSError as exc:  # out of memory or descriptors, which may be temporary
            log.error("worker %d cannot be begun: %s", place.number, exc.strerror)
            place.due = math.inf
            self._follow(place, 1)
            return None
        if pid == 0:
            return self._become(place.number, parent_end, worker_end)
        worker_end.close()
        place.pid, place.line, place.ready = pid, parent_end, False
        place.began, place.due = time.monotonic(), math.inf
        return None

    def _become(self, number: int, parent_end: socket.socket, worker_end: socket.socket) -> Worker:
        """Set up a worker's process. Close all sockets of the parent, above all its ends of the socket pairs."""
        os.setsid()  # the parent passes on Ctrl-C
        for sock in (parent_end, self._keeper, self._woken, self._waking, *(place.line for place in self._places)):
            if sock is not None:
                sock.close()
        settings = settings_of(self._settings, number)
        worker = Worker(settings, bind(settings.host, settings.port, shared=True), self._local_key, worker_end)
        threading.Thread(target=worker.end_with_parent, name="the parent's end", daemon=True).start()
        return worker

    def _wait(self) -> None:
        """Wait for a signal, a ready worker, a due start, or the time to kill stopping workers."""
        starting = [place.line for place in self._places if place.line is not None and not place.ready]
        until = min(self._kill_at, *(place.due for place in self._places))
        seconds = None if until == math.inf else max(0.0, until - time.monotonic())
        readable = select.select([self._woken, *starting], [], [], seconds)[0]
        for place in self._places:
            if place.line is not None and place.line in readable:
                self._hear(place, place.line)
        if self._woken in readable:
            for number in self._woken.recv(4096):
                if number in STOPS:
                    self._stop()
        if time.monotonic() >= self._kill_at:
            log.error("workers did not stop in time: they are killed")
            self._kill_at = math.inf
            self._send(signal.SIGKILL)

    def _hear(self, place: _Place, line: socket.socket) -> None:
        """Handle data from a worker: the worker is ready, or it has closed its socket and SIGCHLD will follow."""
        place.ready = line.recv(1) == READY
        if not place.ready:
            line.close()
            place.line = None
        elif place.number == 1 and not (self._serving or self._stops):  # at the start, the others wait for the first
            for other in self._places[1:]:
                other.due = 0.0

    def _stop(self) -> None:
        """Stop all workers after draining. The second call stops them immediately."""
        self._stops += 1
        for place in self._places:
            place.due = math.inf
        patience = END_SECONDS + (self._settings.drain_seconds if self._stops == 1 else 0.0)
        self._kill_at = min(self._kill_at, time.monotonic() + patience + KILL_SECONDS)
        self._send(signal.SIGTERM if self._stops == 1 else signal.SIGINT)

    def _send(self, number: signal.Signals) -> None:
        for place in self._places:
            if place.pid:  # not reaped yet, so the pid cannot belong to another process
                os.kill(place.pid, number)

    def _bury(self) -> None:
        """Reap workers that have ended."""
        for place in self._places:
            if not place.pid:
                continue
            pid, status = os.waitpid(place.pid, os.WNOHANG)
            if pid:
                if place.line is not None:
                    place.line.close()
                place.pid, place.line, place.ready = 0, None, False
                self._follow(place, os.waitstatus_to_exitcode(status))

    def _follow(self, place: _Place, code: int) -> None:
        """Schedule a replacement for an ended worker, or stop everything if the server has not started up yet."""
        if self._stops:
            if code and -code not in STOPS:  # the signal ended a worker that was still starting
                self._code = self._code or 1
            return
        if not self._serving:
            self._code = code if code > 0 else 1
            self._stop()
            return
        now = time.monotonic()
        pause = place.delay.after(now - place.began)
        how = f"was ended by signal {-code}" if code < 0 else f"ended with {code}"
        log.warning("worker %d %s; it is started again in %.1f s", place.number, how, pause)
        place.due = now + pause


def _check(settings: Settings) -> None:
    """Refuse several workers if the settings do not let them share their data.

    Raises:
        BadConfiguration: the database or the index is not a server.
    """
    for variable, value, form, problem in (
        ("AGENTIC_RAG_DATABASE_URL", settings.database_url, "postgresql://…", "a SQLite file is one process's alone"),
        ("QDRANT_URL", settings.qdrant_url, "a Qdrant server's address", "the embedded index is one process's alone"),
    ):
        if not value:
            raise BadConfiguration(
                "--workers", f"{settings.workers} cannot be: {problem}. Set {variable} to {form}, or leave it at 1."
            )


def settings_of(settings: Settings, number: int) -> Settings:
    """Return the settings of one worker: its own name and folder, and its share of the machine's limits."""
    name = settings.replica or socket.gethostname().split(".")[0] or "server"
    turns, odd = divmod(settings.max_turns, settings.workers)
    return settings.model_copy(
        update={
            "workers": 1,
            "replica": f"{name}-{number}",
            "local": settings.own / WORKERS / str(number),
            # The first ``odd`` workers take the remainder. 0 means no limit.
            "max_turns": max(1, turns + (number <= odd)) if settings.max_turns else 0,
            "transcript_bytes": settings.transcript_bytes // settings.workers,
        }
    )


@contextmanager
def _held_signals() -> Iterator[None]:
    """Block signals while forking, because the child would handle them as if it were the parent."""
    signal.pthread_sigmask(signal.SIG_BLOCK, HEARD)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, HEARD)


def _note(_number: int, _frame: FrameType | None) -> None:
    """Do nothing. The wakeup descriptor delivers the signal's number."""
