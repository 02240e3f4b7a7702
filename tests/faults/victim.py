"""The real server as a program that dies at a named place: ``python -m tests.faults.victim --data DIR``.

It has the same application, socket and signals as ``agentic-rag serve``, with additions around them. ``PUT /failpoint``
with ``name:n`` arms it (`Failpoints.arm`): the process kills itself (SIGKILL) when the place is reached for the n-th
time from then on. ``GET /failpoint`` returns how often each place was reached since. ``AGENTIC_RAG_FAILPOINT`` arms it
from the start. ``VICTIM_CLOCK`` is the initial error of the machine's clock in seconds; ``PUT /clock`` changes it.
``VICTIM_CALLBACKS`` names a file for the slow callbacks of the event loop, one JSON object a line (`SlowCallbacks`).
``VICTIM_TABLES`` is a folder of migrations and the newest revision, ``folder:revision``, instead of the program's own.
"""

import argparse
import asyncio
import json
import logging
import os
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

import anyio
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from agentic_rag.app.application import open_application
from agentic_rag.app.serving import address_of, bind, serve
from agentic_rag.base import failpoints
from agentic_rag.base.errors import StorageFull
from agentic_rag.base.settings import load_settings
from agentic_rag.server.ws.connection import EXTENSION, SocketConnection
from agentic_rag.store.migrations import OWN, Revisions
from agentic_rag.testing.failpoints import VARIABLE

CONTROL = "/failpoint"
CLOCK = "/clock"
SLOW_SECONDS = 0.01
SAMPLE_SECONDS = 0.002


class WrongClock:
    """Returns a wrong time of day in this process."""

    def __init__(self, offset: float) -> None:
        self.wrong = offset
        seconds, nanoseconds = time.time, time.time_ns
        time.time = lambda: seconds() + self.wrong
        time.time_ns = lambda: nanoseconds() + round(self.wrong * 10**9)


class SlowCallbacks:
    """Records each callback of the event loop that used the CPU for at least `SLOW_SECONDS`.

    ``cpu`` is the time of the loop's thread. ``process`` is that of all threads, one of which may hold the
    interpreter's lock meanwhile. ``wall`` is the time that passed. All are in milliseconds. ``frames`` are the
    functions in which a sampling thread most often found the loop.
    """

    def __init__(self, path: str) -> None:
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        run = asyncio.events.Handle._run
        loop, samples = threading.get_ident(), Counter[str]()
        running = threading.Event()

        def sample() -> None:
            while running.wait():
                if frame := sys._current_frames().get(loop):
                    samples[_names_of(frame)] += 1
                time.sleep(SAMPLE_SECONDS)

        threading.Thread(target=sample, daemon=True).start()

        def measured(handle: asyncio.events.Handle) -> None:
            samples.clear()
            running.set()
            start = time.thread_time(), time.process_time(), time.perf_counter()
            run(handle)
            running.clear()
            cpu, process, wall = (
                1000 * (clock_end - clock_start)
                for clock_end, clock_start in zip(
                    (time.thread_time(), time.process_time(), time.perf_counter()), start, strict=True
                )
            )
            if max(cpu, process) >= 1000 * SLOW_SECONDS:
                figures = {"cpu": cpu, "process": process, "wall": wall, "callback": _name_of(handle)}
                figures["frames"] = [f"{count} × {names}" for names, count in samples.most_common(3)]
                os.write(file, json.dumps(figures).encode() + b"\n")

        setattr(asyncio.events.Handle, "_run", measured)  # noqa: B010 - the type of a handle hides it


def _names_of(frame: FrameType) -> str:
    """Return the innermost functions of a stack, without those of the import system."""
    names: list[str] = []
    inner: FrameType | None = frame
    while inner is not None and len(names) < 6:
        if "importlib" not in inner.f_code.co_filename:
            names.append(f"{Path(inner.f_code.co_filename).stem}:{inner.f_lineno} {inner.f_code.co_name}")
        inner = inner.f_back
    return " < ".join(names)


def _name_of(handle: asyncio.events.Handle) -> str:
    """Return the callback of a handle; for a step of a task, the coroutines in which the task waits now."""
    callback: object = getattr(handle, "_callback", None)
    task = getattr(callback, "__self__", None)
    if not isinstance(task, asyncio.Task):
        return str(getattr(callback, "__qualname__", repr(callback)))[:200]
    names: list[str] = []
    coroutine: object = task.get_coro()
    while coroutine is not None and len(names) < 40:
        names.append(getattr(coroutine, "__qualname__", type(coroutine).__name__))
        coroutine = getattr(coroutine, "cr_await", None)
    return " > ".join(names[:1] + names[-4:])[:400]


class Failpoints:
    """Counts the reached places in all threads, and kills the process at the armed one."""

    def __init__(self, setting: str = "") -> None:
        self._lock = threading.Lock()
        self.counts: Counter[str] = Counter()
        self.arm(setting)

    def arm(self, setting: str) -> None:
        """Count from zero, and die at ``name:n``. An empty string disarms.

        With ``full=n*k,name:n`` the disk is full from the n-th write on, for k writes. Counting begins after that.
        """
        full, _, place = setting.rpartition(",")
        first, _, times = full.removeprefix("full=").partition("*")
        name, _, number = place.partition(":")
        with self._lock:
            self._full_at, self._refusals = int(first or 0), int(times or 0)
            self._writes = 0
            self._name, self._number = name, int(number or 1)
            self.counts.clear()

    def __call__(self, place: str) -> None:
        with self._lock:
            if self._refusals:
                self._writes += place == "commit.begin"
                if place == "commit.begin" and self._writes >= self._full_at:
                    self._refusals -= 1
                    raise StorageFull("no space left on device")
                return
            self.counts[place] += 1
            if place == self._name and self.counts[place] == self._number:
                os.kill(os.getpid(), signal.SIGKILL)


class WatchedConnection:
    """A connection whose direct sends are watched, too."""

    def __init__(self, connection: SocketConnection, points: Failpoints) -> None:
        self._connection = connection
        self._points = points

    @property
    def ready(self) -> bool:
        return self._connection.ready

    def write(self, texts: Sequence[bytes]) -> None:
        self._points("send.begin")
        self._connection.write(texts)
        self._points("send.end")

    def offer(self, text: bytes) -> bool:
        self._points("send.begin")
        is_written = self._connection.offer(text)
        self._points("send.end")
        return is_written

    def hold(self, texts: Sequence[bytes]) -> None:
        self._points("send.begin")
        self._connection.hold(texts)
        self._points("send.end")

    async def room(self) -> None:
        await self._connection.room()


class Watched:
    """ASGI middleware around everything. Each send is a place, and control requests are answered here."""

    def __init__(self, app: ASGIApp, points: Failpoints, clock: WrongClock) -> None:
        self._app = app
        self._points = points
        self._clock = clock

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] == CONTROL:
            await self._control(scope, receive, send)
            return
        if scope["type"] == "http" and scope["path"] == CLOCK:
            message = await receive()
            self._clock.wrong = float(json.loads(message["body"]))
            await JSONResponse(self._clock.wrong)(scope, receive, send)
            return

        async def watched(message: Message) -> None:
            self._points("send.begin")
            await send(message)
            self._points("send.end")

        extensions = scope.get("extensions") or {}
        if EXTENSION in extensions:
            connection: SocketConnection = WatchedConnection(extensions[EXTENSION]["connection"], self._points)
            extensions[EXTENSION] = {"connection": connection}
        await self._app(scope, receive, watched)

    async def _control(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] == "PUT":
            message = await receive()
            self._points.arm(json.loads(message["body"]))
        await JSONResponse(dict(self._points.counts))(scope, receive, send)


async def _run(data: Path, clock: WrongClock) -> None:
    points = Failpoints(os.environ.get(VARIABLE, ""))
    settings = load_settings(host="127.0.0.1", port=0, data=data)
    with bind(settings.host, settings.port) as listener:

        def say() -> None:
            sys.stdout.write(f"Agentic RAG serves {address_of(listener)}\n")
            sys.stdout.flush()

        with failpoints.heard_by(points):
            running = open_application(settings, any_command=True, unsandboxed=True, revisions=_tables())
            async with running as application:
                application.app.add_middleware(Watched, points=points, clock=clock)
                await serve(application, listener, say)


def _tables() -> Revisions:
    folder, _, head = os.environ.get("VICTIM_TABLES", "").rpartition(":")
    return Revisions(Path(folder), head) if folder else OWN


def main() -> None:
    """Serve until a signal or an armed place ends the process."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults.victim")
    parser.add_argument("--data", type=Path, required=True)
    options = parser.parse_args()
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr)
    if record := os.environ.get("VICTIM_CALLBACKS"):
        SlowCallbacks(record)
    clock = WrongClock(float(os.environ.get("VICTIM_CLOCK", "0")))
    anyio.run(_run, options.data, clock)


if __name__ == "__main__":
    main()
