"""Several processes of one machine that are one server behind one port: ``agentic-rag serve --workers N``.

Owns the parent: it keeps the address, begins the workers as forks of itself, starts again who ended, and passes signals
on. A worker is one of several servers of one PostgreSQL database, as it would be on a machine of its own: it has a
name, a folder and a socket of its own, and the system spreads connections among the sockets. Knows no application.

A worker ends when its parent has, however that ended: nothing is ever sent down the line between the two, and a line
that closes tells it.
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
from dataclasses import dataclass
from types import FrameType
from typing import Final

from agentic_rag.access.keys import new_secret
from agentic_rag.app.serving import END_SECONDS, STOPS, address_of, bind, end_at_last
from agentic_rag.base.settings import Settings
from agentic_rag.base.startup_errors import BadConfiguration
from agentic_rag.operations.data_folder import WORKERS

log = logging.getLogger(__name__)

PAUSE_SECONDS: Final = 0.2
"""Before a worker that ended is started again; doubled after each one that did not live `STEADY_SECONDS`."""
PAUSE_LIMIT: Final = 30.0
STEADY_SECONDS: Final = 60.0
KILL_SECONDS: Final = 5.0
"""How much longer than it gives itself a worker may take to stop: one that was paused has no time."""
AT_ONCE: Final = frozenset({signal.SIGINT})
"""What ends a stopping worker at once. SIGTERM does not: who ends a service may send it to all its processes, and the
parent passes it on."""
HEARD: Final = STOPS | {signal.SIGCHLD}
READY: Final = b"r"


@dataclass(frozen=True, slots=True)
class Worker:
    """What a process serves with that is one of several. ``local_key``: the same for all of them."""

    settings: Settings
    listener: socket.socket
    local_key: str
    _line: socket.socket

    def tell_ready(self) -> None:
        """Tell the parent that this process answers."""
        with suppress(OSError):  # it ended a moment ago
            self._line.send(READY)

    def end_with_parent(self) -> None:
        """Wait for the parent's end, then end as by SIGTERM. Blocks: it has a thread of its own."""
        with suppress(OSError):
            self._line.recv(1)
        log.error("the process that began this worker has ended: it ends, too")
        end_at_last(self.settings.drain_seconds + END_SECONDS)
        os.kill(os.getpid(), signal.SIGTERM)


@dataclass(slots=True)
class _Place:
    """One of N: who is in it (``pid`` 0: nobody), and when the next one is begun (of `time.monotonic`)."""

    number: int
    due: float = math.inf
    pause: float = PAUSE_SECONDS
    pid: int = 0
    line: socket.socket | None = None
    ready: bool = False
    began: float = 0.0


class LocalWorkers:
    """The parent of the workers, in the process that was started. It has no thread, and nothing runs in it.

    Raises:
        PortInUse, BadConfiguration: as `bind`; or the settings are not those of several servers.
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
        """Under which a client on this machine reaches the workers."""
        return address_of(self._keeper)

    def begin(self) -> Worker | None:
        """Begin the workers. Returns in each of them, and None in the parent once all answer.

        The first one is alone until it does: it makes the tables and what lies in the data folder.

        Raises:
            SystemExit: in the parent; a worker ended before, with this code, or the parent was told to stop (0).
        """
        self._listen_to_signals()
        self._places[0].due = 0.0
        while not all(place.ready for place in self._places):
            if (worker := self._go_on()) is not None:
                return worker
        self._serving = True
        return None

    def look_after(self) -> Worker:
        """Look after workers that were begun. Returns in each that takes the place of one, never in the parent.

        Raises:
            SystemExit: in the parent, at its end: 0; 1 where a worker did not stop in order.
        """
        while True:
            if (worker := self._go_on()) is not None:
                return worker

    def _go_on(self) -> Worker | None:
        """Begin who is due, and wait for the next thing that happens; return a worker in itself."""
        for place in self._places:
            if place.due <= time.monotonic() and (worker := self._fork(place)) is not None:
                return worker
        if self._stops and not any(place.pid for place in self._places):
            raise SystemExit(self._code)
        self._wait()
        self._bury()
        return None

    def _listen_to_signals(self) -> None:
        for end in (self._woken, self._waking):
            end.setblocking(False)
        signal.set_wakeup_fd(self._waking.fileno())
        for number in HEARD:
            signal.signal(number, _note)

    def _fork(self, place: _Place) -> Worker | None:
        """Fork a worker; return it in itself, None in the parent."""
        try:
            ours, theirs = socket.socketpair()
            with _held_signals():
                pid = os.fork()
                if pid == 0:
                    signal.set_wakeup_fd(-1)
                    for number in HEARD:
                        signal.signal(number, signal.SIG_DFL)
        except OSError as exc:  # no memory, no descriptor: there may be one in a moment
            log.error("worker %d cannot be begun: %s", place.number, exc.strerror)
            place.due = math.inf
            self._follow(place, 1)
            return None
        if pid == 0:
            return self._become(place.number, ours, theirs)
        theirs.close()
        place.pid, place.line, place.ready = pid, ours, False
        place.began, place.due = time.monotonic(), math.inf
        return None

    def _become(self, number: int, ours: socket.socket, theirs: socket.socket) -> Worker:
        """Be a worker: nothing of the parent's stays open here, least of all the other ends of its lines."""
        os.setsid()  # Ctrl-C is the parent's to pass on
        for held in (ours, self._keeper, self._woken, self._waking, *(place.line for place in self._places)):
            if held is not None:
                held.close()
        settings = settings_of(self._settings, number)
        worker = Worker(settings, bind(settings.host, settings.port, shared=True), self._local_key, theirs)
        threading.Thread(target=worker.end_with_parent, name="the parent's end", daemon=True).start()
        return worker

    def _wait(self) -> None:
        """Wait until a signal comes, a worker is ready, one is to be begun, or time is up."""
        starting = [place.line for place in self._places if place.line is not None and not place.ready]
        until = min(self._kill_at, *(place.due for place in self._places))
        seconds = None if until == math.inf else max(0.0, until - time.monotonic())
        heard = select.select([self._woken, *starting], [], [], seconds)[0]
        for place in self._places:
            if place.line is not None and place.line in heard:
                self._hear(place, place.line)
        if self._woken in heard:
            for number in self._woken.recv(4096):
                if number in STOPS:
                    self._stop()
        if time.monotonic() >= self._kill_at:
            log.error("workers did not stop in time: they are killed")
            self._kill_at = math.inf
            self._send(signal.SIGKILL)

    def _hear(self, place: _Place, line: socket.socket) -> None:
        """Take notice that a worker answers, or has closed its line: it ends, as a signal will say."""
        place.ready = line.recv(1) == READY
        if not place.ready:
            line.close()
            place.line = None
        elif place.number == 1 and not (self._serving or self._stops):
            for other in self._places[1:]:
                other.due = 0.0

    def _stop(self) -> None:
        """Let all workers drain and end; the second time, at once."""
        self._stops += 1
        for place in self._places:
            place.due = math.inf
        patience = END_SECONDS + (self._settings.drain_seconds if self._stops == 1 else 0.0)
        self._kill_at = min(self._kill_at, time.monotonic() + patience + KILL_SECONDS)
        self._send(signal.SIGTERM if self._stops == 1 else signal.SIGINT)

    def _send(self, number: signal.Signals) -> None:
        for place in self._places:
            if place.pid:  # not reaped yet, so that the number is nobody else's
                os.kill(place.pid, number)

    def _bury(self) -> None:
        """Take notice of workers that ended."""
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
        """Begin the next one in a place; or stop, if the server does not get as far as to serve."""
        if self._stops:
            if code and -code not in STOPS:  # a signal ends one that is starting
                self._code = self._code or 1
            return
        if not self._serving:
            self._code = code if code > 0 else 1
            self._stop()
            return
        now = time.monotonic()
        if now - place.began > STEADY_SECONDS:
            place.pause = PAUSE_SECONDS
        how = f"was ended by signal {-code}" if code < 0 else f"ended with {code}"
        log.warning("worker %d %s; it is started again in %.1f s", place.number, how, place.pause)
        place.due, place.pause = now + place.pause, min(2 * place.pause, PAUSE_LIMIT)


def _check(settings: Settings) -> None:
    """Refuse several workers where they would not be one server."""
    for variable, value, form, problem in (
        ("AGENTIC_RAG_DATABASE_URL", settings.database_url, "postgresql://…", "a SQLite file is one process's alone"),
        ("QDRANT_URL", settings.qdrant_url, "a Qdrant server's address", "the embedded index is one process's alone"),
    ):
        if not value:
            raise BadConfiguration(
                "--workers", f"{settings.workers} cannot be: {problem}. Set {variable} to {form}, or leave it at 1."
            )


def settings_of(settings: Settings, number: int) -> Settings:
    """Return the settings of one worker: a name and a folder of its own, and its share of what the machine carries."""
    name = settings.replica or socket.gethostname().split(".")[0] or "server"
    turns, odd = divmod(settings.max_turns, settings.workers)
    return settings.model_copy(
        update={
            "workers": 1,
            "replica": f"{name}-{number}",
            "local": settings.own / WORKERS / str(number),
            "max_turns": max(1, turns + (number <= odd)) if settings.max_turns else 0,
            "transcript_bytes": settings.transcript_bytes // settings.workers,
        }
    )


@contextmanager
def _held_signals() -> Iterator[None]:
    """Hold signals back inside the block: a child would take them as if it were its parent."""
    signal.pthread_sigmask(signal.SIG_BLOCK, HEARD)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, HEARD)


def _note(_number: int, _frame: FrameType | None) -> None:
    """Do nothing: the signal's number comes by the descriptor that wakes."""
