"""The life of the index process: started, asked, ended, and started again when it died.

Owns one process at a time, the requests that wait for its answers, and the pauses between two starts. A process that
dies takes nothing with it but what was asked of it at that moment: that is asked once more, and then fails with the
reason. Knows no method of `Index`.
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

from mcp_servers.retriever.document import Json
from mcp_servers.retriever.errors import IndexClosed, IndexDamaged, IndexFault, IndexUnavailable
from mcp_servers.retriever.index import split_name
from mcp_servers.retriever.index_frames import Frame, FrameReader, FrameTooLarge, unpack_fault

log = logging.getLogger(__name__)

PAUSE_SECONDS = 0.2
"""Before the first new start; doubled after each process that did not live `STEADY_SECONDS`."""
PAUSE_LIMIT = 30.0
STEADY_SECONDS = 60.0
WAIT_SECONDS = 5.0
"""How long a request waits for a process that is being started; one that starts later than that is not waited for."""
STUCK_SECONDS = 30.0
"""A process that is asked and answers nothing for so long is ended."""
CLOSE_SECONDS = 10.0
"""For what it does at its end, flushing; then it is killed."""
KILL_SECONDS = 5.0
READ_BYTES = 2**18
FAULTS = 2
"""Processes in a row that died of a fault over one collection, before it is put aside."""
KILLS = 5
"""Processes in a row that ended in whatever way, killed for want of memory perhaps, within `KILLS_SECONDS`."""
KILLS_SECONDS = 600.0
PROGRAM = "mcp_servers.retriever.index_process"


@dataclass(frozen=True, slots=True)
class Request:
    """What is asked: a method of `Index` with its arguments, and within how many seconds it has to be answered.

    ``action`` says it in words; ``repeatable``: to do it twice does what doing it once does; ``writes``: it may change
    the collection.
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
    """The end of a process: what collection it worked on ("" for none), whether it was killed, and when (seconds)."""

    collection: str
    killed: bool
    at: float


class Deaths:
    """Tells which collection the index process dies of: a fault tells it sooner than a kill, which may have had
    another reason."""

    def __init__(self) -> None:
        self._last: deque[Death] = deque(maxlen=KILLS)

    def note(self, death: Death) -> None:
        """Remember how one more process ended."""
        self._last.append(death)

    def take_suspect(self) -> str | None:
        """Return the collection to be put aside, and forget about it; None while none is to blame."""
        last = [*self._last]
        faults, kills = last[-FAULTS:], last[-KILLS:]
        died = len(faults) == FAULTS and not any(each.killed for each in faults) and _same(faults)
        ended = len(kills) == KILLS and kills[-1].at - kills[0].at <= KILLS_SECONDS and _same(kills)
        if not (died or ended):
            return None
        self._last.clear()
        return last[-1].collection


def _same(deaths: Sequence[Death]) -> bool:
    """Whether all were over one collection."""
    return all(each.collection for each in deaths) and len({split_name(each.collection)[0] for each in deaths}) == 1


class _ProcessEnded(Exception):
    """The process died before it answered."""


@dataclass(slots=True)
class _Waiting:
    """A request that was sent; no answer came if ``done`` is set without one."""

    request: Request
    done: anyio.Event
    answer: Frame | None = None


class _IndexProcess:
    """One process from its hello to its death."""

    def __init__(self, process: Process, at_work: int, changes: Counter[str]) -> None:
        self._process = process
        self._at_work = at_work
        self._changes = changes
        self._numbers = count(1)
        self._waiting: dict[int, _Waiting] = {}
        """What is unanswered, also when nobody waits for it any more: it is done nevertheless."""
        self._frames = FrameReader()
        self._over = False
        self.heard_at = time.monotonic()

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
            self.heard_at = time.monotonic()  # what nobody asked it could not answer
        data = Frame({**request.data, "number": number, "method": request.method}, request.floats).encode()
        self._note_change(request)
        assert self._process.stdin is not None
        # A frame is handed over whole before anything is awaited: a cancelled request leaves no half of one.
        with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):  # `answer_all` hears of its end
            await self._process.stdin.send(data)
        await waiting.done.wait()
        if waiting.answer is None:
            raise _ProcessEnded
        return waiting.answer

    async def greet(self) -> None:
        """Wait for its first word. Raises `_ProcessEnded`; `IndexFault` when it cannot have the folder."""
        first = (await self._receive())[0]
        if "fault" in first.data:
            raise unpack_fault(first.data["fault"])

    async def answer_all(self) -> None:
        """Hand out answers until it ends. Raises `_ProcessEnded`."""
        while True:
            for frame in await self._receive():
                self._hand_out(frame)

    async def _receive(self) -> list[Frame]:
        assert self._process.stdout is not None
        while True:
            try:
                data = await self._process.stdout.receive(READ_BYTES)
                self.heard_at = time.monotonic()
                if found := [*self._frames.feed(data)]:
                    return found
            except (anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError):
                raise _ProcessEnded from None
            except (FrameTooLarge, ValueError) as exc:
                log.error("the index process does not speak as it should: %r", exc)
                raise _ProcessEnded from exc

    def _hand_out(self, frame: Frame) -> None:
        waiting = self._waiting.pop(frame.data["number"], None)
        if waiting is not None:
            if waiting.request.writes or "fault" in frame.data:  # a fault may be damage that was put aside
                self._note_change(waiting.request, answered=True)
            waiting.answer = frame
            waiting.done.set()

    def _note_change(self, request: Request, *, answered: bool = False) -> None:
        if request.writes or answered:
            self._changes[split_name(request.data["collection"])[0]] += 1

    def request_at_work(self) -> Request | None:
        """Return what it worked on when it died."""
        waiting = self._waiting.get(int.from_bytes(os.pread(self._at_work, 8, 0), "little"))
        return waiting.request if waiting else None

    def give_up(self) -> None:
        """Tell everybody who waits that no answer comes."""
        self._over = True
        for waiting in self._waiting.values():
            waiting.done.set()

    @property
    def was_killed(self) -> bool:
        """Whether somebody ended it: what it worked on is not to blame."""
        return self._process.returncode in (None, -signal.SIGKILL)

    async def close_input(self) -> None:
        """Ask it to end."""
        assert self._process.stdin is not None
        with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
            await self._process.stdin.aclose()

    def kill(self) -> None:
        """End it now."""
        with suppress(ProcessLookupError):
            self._process.kill()

    async def reap(self) -> str:
        """Wait for its end, which is forced; return how it ended, in words."""
        with anyio.move_on_after(KILL_SECONDS, shield=True):  # bounded: only a stuck disk takes this long
            # Its pipe is closed, so that it is at its end: a moment for the exit code, then by force.
            with anyio.move_on_after(KILL_SECONDS / 2):
                await self._process.wait()
            self.kill()
            await self._process.aclose()
        code = self._process.returncode
        if code is None:
            return "does not end"
        return f"ended with {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"


class IndexSupervisor:
    """Keeps an index process running for ``folder`` while `run` runs."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._process: _IndexProcess | None = None
        self._wanted = anyio.Event()
        """Set by the first who asks or listens: a command that searches nothing starts no process."""
        self._ready = anyio.Event()
        self._ended = anyio.Event()
        self._alarm = anyio.Event()
        self._closing = False
        self._problem = "its process is being started"
        self.asked = 0
        """Requests that were sent."""
        self._deaths = Deaths()
        self._lives = 0
        self._changes: Counter[str] = Counter()
        """By collection, how often a write was sent or answered, or something went wrong."""
        self._refusal: str | None = None
        """Why the last start failed; None once one succeeded."""
        self._next_start = time.monotonic()

    @property
    def pid(self) -> int | None:
        """The process's id; None while there is none."""
        return self._process.pid if self._process else None

    def mark(self, collection: str) -> tuple[int, int]:
        """Return what is another value once a collection may have changed: what was read under it holds until then."""
        return self._lives, self._changes[split_name(collection)[0]]

    async def run(self) -> None:
        """Start the process when it is wanted first, and again whenever it dies, until `close`."""
        pause = PAUSE_SECONDS
        try:
            await self._wanted.wait()
            while not self._closing:
                began = time.monotonic()
                reason = await self._live()
                if time.monotonic() - began > STEADY_SECONDS:
                    pause = PAUSE_SECONDS
                await self._rest(reason, pause)
                pause = min(pause * 2, PAUSE_LIMIT)
        finally:
            self._ended.set()

    async def _rest(self, reason: str, pause: float) -> None:
        if not self._closing:
            self._problem = f"its process {reason}"
            self._next_start = time.monotonic() + pause
            log.warning("the index process %s; it is started again in %.1f s", reason, pause)
            self._alarm.set()
            await anyio.sleep(pause)

    async def ask(self, request: Request) -> Frame:
        """Return the answer to a request.

        Raises:
            IndexFault: what the process answered; `IndexUnavailable` when it did not, with the reason.
        """
        began = time.monotonic()
        try:
            with anyio.fail_after(request.seconds):
                answer = await self._ask_twice(request)
        except TimeoutError:
            if self._process and self._process.heard_at < max(began, time.monotonic() - STUCK_SECONDS):
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
        """Return once the process was started anew, or put a damaged collection aside."""
        self._wanted.set()
        await self._alarm.wait()
        self._alarm = anyio.Event()

    async def close(self) -> None:
        """End the process in good order, within `CLOSE_SECONDS`. Idempotent."""
        self._closing = True
        process = self._process
        with anyio.move_on_after(CLOSE_SECONDS, shield=True):
            if process:
                await process.close_input()
                await self._ended.wait()
        if process and not self._ended.is_set():
            process.kill()

    async def _ask_twice(self, request: Request) -> Frame:
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

    async def _live(self) -> str:
        """Run one process to its end; return how it ended."""
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
            except BaseException:
                process.kill()
                raise
            finally:
                with anyio.CancelScope(shield=True):
                    reason = await self._bury(process, refusal)
            return reason

    async def _serve(self, process: _IndexProcess) -> None:
        if self._closing:  # while it was being started
            await process.close_input()
        await process.greet()
        self._refusal = None
        self._ready.set()
        self._alarm.set()
        await process.answer_all()

    async def _bury(self, process: _IndexProcess, refusal: str) -> str:
        """Wait for the end of a process that closed its pipe; return how, and over what, it ended."""
        ready = self._ready.is_set()
        self._process = None
        self._lives += 1
        reason = await process.reap()
        if refusal:
            return self._refuse(refusal)
        request = process.request_at_work()
        if request:
            reason += f" while it was to {request.action} ({request.data['collection']})"
        collection = request.data["collection"] if request else ""
        self._deaths.note(Death(collection, process.was_killed, time.monotonic()))
        self._problem = f"its process {reason}"
        if not ready:
            return self._refuse(reason)
        self._ready = anyio.Event()
        process.give_up()
        return reason

    def _refuse(self, reason: str) -> str:
        """Note that a start failed: whoever waits for the process hears why, until another start succeeds."""
        self._refusal = f"its process {reason}"
        waiting, self._ready = self._ready, anyio.Event()
        waiting.set()
        return reason

    async def _start(self, at_work: int) -> Process:
        # Where we find packages, the child does too. Nothing of our environment is its business.
        places = [str(Path(__file__).parents[2]), *filter(None, sys.path)]
        command = [sys.executable, "-P", "-m", PROGRAM, str(self._folder), str(os.getpid()), str(at_work)]
        if suspect := self._deaths.take_suspect():
            command.append(suspect)
        return await anyio.open_process(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=None,
            env={"PYTHONPATH": os.pathsep.join(places), "PYTHONUTF8": "1"},
            start_new_session=True,
            pass_fds=[at_work],
        )


@contextmanager
def _shared_number() -> Iterator[int]:
    """Yield a descriptor of eight bytes that two processes may map."""
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("index-at-work")
    else:
        with tempfile.TemporaryFile() as file:
            descriptor = os.dup(file.fileno())
    try:
        os.pwrite(descriptor, bytes(8), 0)
        yield descriptor
    finally:
        os.close(descriptor)
