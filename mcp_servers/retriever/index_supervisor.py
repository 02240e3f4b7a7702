"""Supervision of the index process: start it, send requests to it, end it, and restart it when it died.

Owns one process at a time, the requests that wait for its answers, and the backoff between two starts. When a process
dies, only its unanswered requests are affected: the supervisor sends a repeatable request once more, and then raises
an error with the reason. The module does not know the methods of `Index`.
"""

import logging
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import anyio
from anyio.abc import Process

from mcp_servers.child_processes import RestartDelay, end_process, kill_group, python_environment
from mcp_servers.frames import BadFrame, Frame, FrameReader
from mcp_servers.retriever.document import Json
from mcp_servers.retriever.errors import IndexClosed, IndexDamaged, IndexFault, IndexUnavailable
from mcp_servers.retriever.index import split_name
from mcp_servers.retriever.index_frames import unpack_fault

log = logging.getLogger(__name__)

WAIT_SECONDS = 5.0
"""Time a request waits for the process to start; the request fails at once if the next start is further away."""
STUCK_SECONDS = 30.0
"""A process that has requests and sends nothing for this long is killed."""
CLOSE_SECONDS = 10.0
"""Time the process has to flush when the index closes; then the supervisor kills it."""
EXIT_SECONDS = 2.5
"""Time the process has for its exit after its pipe closed; then the supervisor kills it."""
READ_BYTES = 2**18
FAULTS = 2
"""Consecutive crashes while working on one collection before the collection is quarantined."""
KILLS = 5
"""Consecutive ends of any kind (for example the out-of-memory killer) within `KILLS_SECONDS` before the quarantine."""
KILLS_SECONDS = 600.0
PROGRAM = "mcp_servers.retriever.index_process"


@dataclass(frozen=True, slots=True)
class Request:
    """A call of an `Index` method: its arguments and its timeout in ``seconds``.

    ``action`` describes the call in error texts. ``repeatable`` means that the call is idempotent. ``writes`` means
    that it may change the collection.
    """

    method: str
    action: str
    data: Json
    floats: bytes = b""
    seconds: float = 10.0
    repeatable: bool = True
    writes: bool = False


@dataclass(frozen=True, slots=True)
class Death:
    """The end of a process: the collection it worked on ("" for none), whether it was killed, and when (seconds)."""

    collection: str
    killed: bool
    at: float


class Deaths:
    """The last deaths of the index process, from which a collection is found that causes them.

    A crash points to the collection sooner than a kill, which may have had another reason.
    """

    def __init__(self) -> None:
        self._last: deque[Death] = deque(maxlen=KILLS)

    def note(self, death: Death) -> None:
        """Record the end of one more process."""
        self._last.append(death)

    def take_suspect(self) -> str | None:
        """Return the collection to quarantine and clear the record, or return None if no collection is suspected."""
        last = [*self._last]  # at most `KILLS` of them
        faults, kills = last[-FAULTS:], last[-KILLS:]
        died = len(faults) == FAULTS and not any(death.killed for death in faults) and _same(faults)
        ended = len(kills) == KILLS and kills[-1].at - kills[0].at <= KILLS_SECONDS and _same(kills)
        if not (died or ended):
            return None
        self._last.clear()
        return last[-1].collection


def _same(deaths: Sequence[Death]) -> bool:
    """Return whether all deaths happened over one collection."""
    return all(death.collection for death in deaths) and len({split_name(death.collection)[0] for death in deaths}) == 1


class _ProcessEnded(Exception):
    """The process died before it answered."""


@dataclass(slots=True)
class _Waiting:
    """A request that was sent. If ``done`` is set while ``answer`` is None, the process died without an answer."""

    request: Request
    done: anyio.Event
    answer: Frame | None = None


class _IndexProcess:
    """A running index process and its unanswered requests.

    ``at_work`` is the descriptor of the number of the request that the process executes. ``changes`` are counted for
    `IndexSupervisor.mark`.
    """

    def __init__(self, process: Process, at_work: int, changes: Counter[str]) -> None:
        self._process = process
        self._at_work = at_work
        self._changes = changes
        self._numbers = count(1)
        self._waiting: dict[int, _Waiting] = {}
        """Unanswered requests by number. Cancelled ones stay here, because the process still executes them."""
        self._frames = FrameReader()
        self._over = False
        """Set when the process has ended: later requests would wait forever."""
        self.heard_at = time.monotonic()
        """When the process last sent something, or got the first request after having answered all."""

    @property
    def pid(self) -> int:
        return self._process.pid

    async def ask(self, request: Request) -> Frame:
        """Return the answer. Raises `_ProcessEnded`."""
        if self._over:
            raise _ProcessEnded
        waiting = _Waiting(request, anyio.Event())
        number = next(self._numbers)
        self._waiting[number] = waiting
        if len(self._waiting) == 1:
            self.heard_at = time.monotonic()  # an idle process had nothing to answer: restart its clock
        data = Frame({**request.data, "number": number, "method": request.method}, request.floats).encode()
        self._note_change(request)
        assert self._process.stdin is not None
        # `send` passes the whole frame on before it awaits, so a cancelled request leaves no partial frame.
        with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):  # `answer_all` notices the end
            await self._process.stdin.send(data)
        await waiting.done.wait()
        if waiting.answer is None:
            raise _ProcessEnded
        return waiting.answer

    async def greet(self) -> None:
        """Wait for the hello frame. Raises `_ProcessEnded`, or `IndexFault` if the process cannot have the folder."""
        first = (await self._receive())[0]
        if "fault" in first.data:
            raise unpack_fault(first.data["fault"])

    async def answer_all(self) -> None:
        """Deliver answers to their requests until the process ends. Raises `_ProcessEnded`."""
        while True:
            for frame in await self._receive():
                self._deliver(frame)

    async def _receive(self) -> list[Frame]:
        assert self._process.stdout is not None
        while True:
            try:
                data = await self._process.stdout.receive(READ_BYTES)
                self.heard_at = time.monotonic()
                if frames := [*self._frames.feed(data)]:
                    return frames
            except (anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError):
                raise _ProcessEnded from None
            except BadFrame as exc:
                log.error("the index process does not speak as it should: %r", exc)
                raise _ProcessEnded from exc

    def _deliver(self, frame: Frame) -> None:
        waiting = self._waiting.pop(frame.data["number"], None)
        if waiting is not None:
            if waiting.request.writes or "fault" in frame.data:  # a fault may have quarantined it
                self._note_change(waiting.request, answered=True)
            waiting.answer = frame
            waiting.done.set()

    def _note_change(self, request: Request, *, answered: bool = False) -> None:
        if request.writes or answered:
            self._changes[split_name(request.data["collection"])[0]] += 1

    def request_at_work(self) -> Request | None:
        """Return the request that the process worked on when it died."""
        waiting = self._waiting.get(int.from_bytes(os.pread(self._at_work, 8, 0), "little"))
        return waiting.request if waiting else None

    def give_up(self) -> None:
        """Wake all waiting requests without an answer."""
        self._over = True
        for waiting in self._waiting.values():
            waiting.done.set()

    @property
    def was_killed(self) -> bool:
        """Whether SIGKILL ended the process, so that its last request need not be the cause."""
        return self._process.returncode in (None, -signal.SIGKILL)

    async def close_input(self) -> None:
        """Close the stdin of the process, which makes it flush and exit."""
        assert self._process.stdin is not None
        with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
            await self._process.stdin.aclose()

    def kill(self) -> None:
        """Kill the process now."""
        kill_group(self._process)

    async def reap(self) -> str:
        """Wait for the exit of the process, kill it after `EXIT_SECONDS`, and return how it ended, in words."""
        await end_process(self._process, EXIT_SECONDS)
        code = self._process.returncode
        if code is None:
            return "does not end"
        return f"ended with {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"


class IndexSupervisor:
    """Keeps an index process for ``folder`` running until `close`; `run` is its background task."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._process: _IndexProcess | None = None
        self._wanted = anyio.Event()
        """Set by the first `ask` or `wait_for_loss`, so that a command without searches starts no process."""
        self._ready = anyio.Event()
        """Set while a process runs that has the folder. A new event for each process."""
        self._ended = anyio.Event()
        """Set when `run` has ended."""
        self._alarm = anyio.Event()
        """Set when stored data may be lost; see `wait_for_loss`."""
        self._closing = False
        self._problem = "its process is being started"
        self.asked = 0
        """Number of requests sent, repetitions included."""
        self._deaths = Deaths()
        self._lives = 0
        """Number of starts and ends of processes."""
        self._changes: Counter[str] = Counter()
        """By collection, the number of writes sent, writes answered and faults."""
        self._refusal: str | None = None
        """The reason why the last start failed; None after a successful start."""
        self._next_start = time.monotonic()
        """When the next process starts: requests do not wait for a start that is too far away."""

    @property
    def pid(self) -> int | None:
        """Id of the running process; None while none runs."""
        return self._process.pid if self._process else None

    def mark(self, collection: str) -> tuple[int, int]:
        """Return a version of the collection for caches: it differs as soon as the collection may have changed."""
        return self._lives, self._changes[split_name(collection)[0]]

    async def run(self) -> None:
        """Start the process on first use and restart it each time it dies, until `close`."""
        delay = RestartDelay()
        try:
            await self._wanted.wait()
            while not self._closing:
                began = time.monotonic()
                reason = await self._run_process()
                await self._pause(reason, delay.after(time.monotonic() - began))
        finally:
            self._ended.set()

    async def _pause(self, reason: str, seconds: float) -> None:
        """Wait before the next start, unless the index closes."""
        if not self._closing:
            self._problem = f"its process {reason}"
            self._next_start = time.monotonic() + seconds
            log.warning("the index process %s; it is started again in %.1f s", reason, seconds)
            self._alarm.set()
            await anyio.sleep(seconds)

    async def ask(self, request: Request) -> Frame:
        """Send a request and return its answer.

        Raises:
            IndexFault: the process answered with this fault. `IndexUnavailable` if it did not answer, with the reason.
        """
        try:
            with anyio.fail_after(request.seconds):
                answer = await self._ask_repeatedly(request)
        except TimeoutError:
            # A read may wait longer than its own time limit for one step of a long write. Killing the process then
            # would interrupt the write again and again, and finally quarantine the collection.
            if self._process and self._process.heard_at < time.monotonic() - STUCK_SECONDS:
                log.error("the index process answered nothing for %.0f s: it is ended", STUCK_SECONDS)
                self._process.kill()
            raise IndexUnavailable(request.action, f"no answer within {request.seconds:g} s") from None
        if "fault" not in answer.data:
            return answer
        fault = unpack_fault(answer.data["fault"])
        if isinstance(fault, IndexDamaged):
            log.error("%s", fault)
            self._alarm.set()
        raise fault

    async def wait_for_loss(self) -> None:
        """Wait until the process was restarted or a damaged collection was quarantined."""
        self._wanted.set()
        await self._alarm.wait()
        self._alarm = anyio.Event()  # no `await` before this, so that no alarm is lost

    async def close(self) -> None:
        """Let the process flush and exit, and kill it after `CLOSE_SECONDS`. Idempotent."""
        self._closing = True
        process = self._process
        with anyio.move_on_after(CLOSE_SECONDS, shield=True):
            if process:
                await process.close_input()
                await self._ended.wait()
        if process and not self._ended.is_set():
            process.kill()

    async def _ask_repeatedly(self, request: Request) -> Frame:
        for _ in range(2 if request.repeatable else 1):
            process = await self._wait_for_process(request)
            self.asked += 1
            with suppress(_ProcessEnded):
                return await process.ask(request)
        raise IndexUnavailable(request.action, self._problem)

    async def _wait_for_process(self, request: Request) -> _IndexProcess:
        self._wanted.set()
        while not (self._process and self._ready.is_set()):
            if self._closing:
                raise IndexClosed
            if self._refusal or self._next_start - time.monotonic() > WAIT_SECONDS:
                raise IndexUnavailable(request.action, self._refusal or self._problem)
            with anyio.move_on_after(WAIT_SECONDS) as waiting:
                await self._ready.wait()
            if waiting.cancelled_caught:
                raise IndexUnavailable(request.action, self._problem)
        if self._closing:
            raise IndexClosed
        return self._process

    async def _run_process(self) -> str:
        """Start one process, serve it until it ends, and return how it ended."""
        # The descriptor outlives the process: it says what the process worked on when it died.
        with _shared_number() as at_work:
            try:
                process = _IndexProcess(await self._start(at_work), at_work, self._changes)
            except OSError as exc:
                return self._refuse(f"could not be started: {exc.strerror}")
            self._process = process
            self._lives += 1
            refusal = ""
            try:
                await self._serve(process)
            except IndexFault as fault:
                refusal = f"could not be started: {fault}"
            except _ProcessEnded:
                pass
            except BaseException:  # cancelled: nothing waits for answers any more
                process.kill()
                raise
            finally:
                with anyio.CancelScope(shield=True):
                    reason = await self._clean_up(process, refusal)
            return reason

    async def _serve(self, process: _IndexProcess) -> None:
        if self._closing:  # `close` ran during the start
            await process.close_input()
        await process.greet()
        self._refusal = None
        self._ready.set()
        self._alarm.set()
        await process.answer_all()

    async def _clean_up(self, process: _IndexProcess, refusal: str) -> str:
        """Wait for the exit of a process that closed its pipe; return how it ended and during which request."""
        ready = self._ready.is_set()
        self._process = None
        self._lives += 1  # also at the end, so that no cached answer hides that the process is down
        reason = await process.reap()
        if refusal:
            return self._refuse(refusal)
        request = process.request_at_work()
        if request:
            reason += f" while it was to {request.action} ({request.data['collection']})"
        collection = request.data["collection"] if request else ""
        self._deaths.note(Death(collection, process.was_killed, time.monotonic()))
        self._problem = f"its process {reason}"
        if not ready:  # the process died before its hello: none of its requests can have caused that
            return self._refuse(reason)
        # A new event before the requests wake up, so that those that are repeated wait for the next process.
        self._ready = anyio.Event()
        process.give_up()
        return reason

    def _refuse(self, reason: str) -> str:
        """Record a failed start and wake the waiting requests, which fail with its reason until a start succeeds."""
        self._refusal = f"its process {reason}"
        # The waiting requests wake up and find the reason. Later ones find it before they wait.
        waiting, self._ready = self._ready, anyio.Event()
        waiting.set()
        return reason

    async def _start(self, at_work: int) -> Process:
        command = [sys.executable, "-P", "-m", PROGRAM, str(self._folder), str(os.getpid()), str(at_work)]
        if suspect := self._deaths.take_suspect():
            command.append(suspect)
        return await anyio.open_process(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=None,
            env=python_environment(),
            start_new_session=True,  # a Ctrl+C in the terminal must not reach it: the server ends it after its searches
            pass_fds=[at_work],
        )


@contextmanager
def _shared_number() -> Iterator[int]:
    """Yield the descriptor of an eight-byte file that both processes can map."""
    if hasattr(os, "memfd_create"):  # Linux only
        descriptor = os.memfd_create("index-at-work")
    else:
        with tempfile.TemporaryFile() as file:
            descriptor = os.dup(file.fileno())
    try:
        os.pwrite(descriptor, bytes(8), 0)
        yield descriptor
    finally:
        os.close(descriptor)
