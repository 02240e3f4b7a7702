"""A child process that speaks MCP over its standard streams.

Owns the spawn, the framing of lines with its bounds, and the death of the child with everything it started.
Knows nothing of sessions or calls. Protocol: newline-delimited JSON-RPC, one message a line,
https://modelcontextprotocol.io/specification/2025-11-25/basic/transports#stdio

Not `mcp.client.stdio`: that hands parts of our environment to the child, reads lines of any length, and drops a
line it cannot parse, which leaves the call it answered open for ever.
"""

import contextlib
import fcntl
import json
import math
import os
import re
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

import anyio
import anyio.lowlevel
import anyio.to_thread
import mcp_types as types
from anyio.abc import ByteReceiveStream, Process
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.shared.message import SessionMessage
from pydantic import ValidationError

from agentic_rag.base.token_bucket import TokenBucket
from agentic_rag.tools.errors import ServerElsewhere
from agentic_rag.tools.launch.leftovers import sweep_leftovers
from agentic_rag.tools.launch.policy import StdioCommand
from agentic_rag.tools.launch.usage import PERIOD_SECONDS, Meter
from agentic_rag.tools.transports.network import Refused, unheard

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

LINE_BYTES = 1024 * 1024
"""A longer line is thrown away, and the call it answered gets an error."""

FLOOD_BYTES = 256 * 1024 * 1024
"""A line still without end after this many bytes costs the server its connection."""

EDGE_BYTES = 4096
"""How much of both ends of a thrown-away line is kept, to find the call it answered."""

NOT_STARTED, NOT_STARTED_CODE = "not started: ", 126
"""How `launcher` says that what was approved is not what is there any more, and with which exit code."""

STDERR_CHARS = 500
"""Longer lines of stderr are cut."""

WRITE_SECONDS = 30.0
"""A child that does not take a message in this time is lost."""

EXIT_SECONDS = 1.0
"""How long a child may take to exit when its input closes, and again after SIGTERM, before SIGKILL."""

LOCK_SECONDS, LOCK_LOOK_SECONDS = 5.0, 0.1
"""How long a child that keeps a state waits for the end of the one before it."""

REAP_SECONDS = 2.0
"""How long we wait to see a killed child dead."""

OUTBOX = 256
"""Messages that may wait for a slow child; more make their senders wait."""

BURST, BURST_BYTES = 8, 64 * 1024
"""After so many lines, or so many bytes of them, others get their turn, however much the child has said at once."""

READ_BYTES, READ_BYTES_A_SECOND = 32 * 1024 * 1024, 16 * 1024 * 1024
"""What is read as messages at once and on average. A child that says more waits: that slows nobody but itself."""

GARBAGE, GARBAGE_A_SECOND = 2_000, 100.0
"""Lines that are no messages; one that writes more is no MCP server."""

STDERR_BYTES, STDERR_BYTES_A_SECOND = 8 * 1024 * 1024, 1024 * 1024
"""What is read of stderr; a line costs at least `STDERR_LINE` of it."""

STDERR_LINE = 512

POLL_SECONDS, WATCH_SECONDS = 0.01, 0.25
"""How often the exit is looked for while closing and while serving (there, end of output tells earlier)."""

_LAUNCHER = str(Path(__file__).parent.parent / "launch" / "launcher.py")
_HIGH, _LOW = rb"[dD][89abAB][0-9a-fA-F]{2}", rb"[dD][c-fC-F][0-9a-fA-F]{2}"
_LONE_SURROGATE = re.compile(  # begins with a literal, which is searched for fast; "\\ud800" is text, and stays
    rb"\\u(?<!\\\\u)(?:" + _HIGH + rb"(?!\\u" + _LOW + rb")|" + _LOW + rb"(?<!\\u" + _HIGH + rb"\\u" + _LOW + rb"))"
)
_ID_AT_START = re.compile(rb'\s*\{\s*(?:"jsonrpc"\s*:\s*"2\.0"\s*,\s*)?"id"\s*:\s*(\d{1,15})\s*,\s*"(?:result|error)"')
_ID_AT_END = re.compile(rb'"id"\s*:\s*(\d{1,15})\s*(?:,\s*"jsonrpc"\s*:\s*"2\.0"\s*)?\}\s*$')

Streams = tuple["_Inbox", MemoryObjectSendStream[SessionMessage]]


class StdioTransport:
    """One run of one child, as a `mcp.client.Transport`. Single use."""

    def __init__(
        self, command: StdioCommand, lost: Callable[[str], None], tail: "deque[str]", refused: Refused = unheard
    ) -> None:
        """``lost`` is called, with the reason, when nothing more will come; ``tail`` gets the lines of stderr.

        ``refused`` is awaited, with the reason, when the launcher did not start the server.
        """
        self._command = command
        self._lost = lost
        self._tail = tail
        self._refused = refused
        self._heard = anyio.Event()
        """Set once stderr has ended."""
        self._context: AbstractAsyncContextManager[Streams] | None = None

    async def __aenter__(self) -> Streams:
        self._context = self._open()
        return await self._context.__aenter__()

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> bool | None:
        return None if self._context is None else await self._context.__aexit__(exc_type, exc, traceback)

    @asynccontextmanager
    async def _open(self) -> "AsyncIterator[Streams]":
        async with _lock(self._command.lock) as kept:
            process = await _spawn(self._command, kept)
        # No await between the spawn and the task group: a cancellation there would leak the child.
        inbox = _Inbox(process, self._lost, self._tail)
        write, outbox = anyio.create_memory_object_stream[SessionMessage](OUTBOX)
        with write, outbox:
            async with anyio.create_task_group() as pumps:
                pumps.start_soon(self._write, process, outbox, inbox)
                pumps.start_soon(self._keep_stderr, process)
                pumps.start_soon(self._watch, process, inbox)
                pumps.start_soon(self._measure, process, inbox)
                try:
                    yield inbox, write
                finally:
                    with anyio.CancelScope(shield=True):  # every wait in there is bounded
                        await _end(process, self._command.marker)
                        await self._tell_refusal(process)
                    pumps.cancel_scope.cancel()

    async def _write(
        self, process: Process, outbox: MemoryObjectReceiveStream[SessionMessage], inbox: "_Inbox"
    ) -> None:
        assert process.stdin is not None
        try:
            async for message in outbox:
                data = message.message.model_dump_json(by_alias=True, exclude_unset=True)
                with anyio.fail_after(WRITE_SECONDS):
                    await process.stdin.send(data.encode() + b"\n")
        except TimeoutError:
            inbox.lose(f"it did not read its input for {WRITE_SECONDS:g} s")
        except (anyio.BrokenResourceError, anyio.ClosedResourceError, OSError):
            inbox.lose("its input is closed")

    async def _keep_stderr(self, process: Process) -> None:
        assert process.stderr is not None
        allowance = TokenBucket(STDERR_BYTES_A_SECOND, STDERR_BYTES)
        with contextlib.suppress(anyio.BrokenResourceError, anyio.ClosedResourceError, OSError, _EndlessLine):
            async for line, _ in _Lines(process.stderr):
                # Also with nothing owed: many short lines may lie in the buffer, and others want their turn.
                await anyio.sleep(allowance.spend(anyio.current_time(), max(len(line), STDERR_LINE)))
                text = line[: STDERR_CHARS * 4].decode("utf-8", "replace").rstrip()
                if text:
                    self._tail.append(text[:STDERR_CHARS])
        self._heard.set()

    async def _tell_refusal(self, process: Process) -> None:
        """A server may say the same of itself: then its own start is told as refused, and nothing else happens."""
        if process.returncode != NOT_STARTED_CODE:
            return
        with anyio.move_on_after(WATCH_SECONDS):
            await self._heard.wait()
        said = self._tail[-1] if self._tail else ""
        if said.startswith(NOT_STARTED):
            await self._refused(said.removeprefix(NOT_STARTED))

    async def _watch(self, process: Process, inbox: "_Inbox") -> None:
        """See the exit of a child whose output something it started still holds open."""
        await _wait_exit(process, math.inf, WATCH_SECONDS)
        await anyio.sleep(WATCH_SECONDS)  # what it wrote last is still being read
        inbox.lose(_exit_reason(process))

    async def _measure(self, process: Process, inbox: "_Inbox") -> None:
        """End a child that takes more of the machine than it may: at once, since it would go on taking."""
        meter = Meter(process.pid, self._command.allowance, self._command.places)
        own = anyio.CapacityLimiter(1)  # a folder that hangs keeps this thread, and nobody else's
        reason = ""
        while not reason:
            reason = await anyio.to_thread.run_sync(
                meter.exceeds, anyio.current_time(), abandon_on_cancel=True, limiter=own
            )
            await anyio.sleep(0 if reason else PERIOD_SECONDS)
        inbox.lose(reason)
        _signal_group(process, signal.SIGKILL)


class _Inbox:
    """What the child says, read in the session's own task: a pump between them would cost each answer a task switch."""

    def __init__(self, process: Process, lost: Callable[[str], None], tail: "deque[str]") -> None:
        assert process.stdout is not None
        self._process = process
        self._lines = _Lines(process.stdout)
        self._lost = lost
        self._tail = tail
        self._ended = False
        self._burst = self._burst_bytes = 0
        self._allowance = TokenBucket(READ_BYTES_A_SECOND, READ_BYTES)
        self._garbage = TokenBucket(GARBAGE_A_SECOND, GARBAGE)
        self._reading = anyio.CancelScope()

    def lose(self, reason: str) -> None:
        """End the session; the first reason counts."""
        self._ended = True
        self._lost(reason)  # before the session sees the end, so that calls are told the reason
        self._reading.cancel()

    async def aclose(self) -> None:
        pass

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        pass

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> SessionMessage:
        while not self._ended:
            with anyio.CancelScope() as self._reading:
                found = await self._next()
            if self._reading.cancelled_caught or found is None:
                break
            line, whole = found
            await self._give_way(len(line))
            message = parse_line(line) if whole else _refusal(line)
            if message is not None:
                return SessionMessage(message)
            if line.strip():
                if self._garbage.take(anyio.current_time()) > 0:
                    self.lose(f"it wrote more than {GARBAGE} lines that are no messages")
                self._tail.append(f"stdout, not a message: {line[:STDERR_CHARS].decode('utf-8', 'replace')}")
        raise StopAsyncIteration

    async def receive(self) -> SessionMessage:
        try:
            return await self.__anext__()
        except StopAsyncIteration:
            raise anyio.EndOfStream from None

    async def _give_way(self, size: int) -> None:
        """Let others have their turn after each burst, and the child wait if it says too much."""
        self._burst += 1
        self._burst_bytes += size
        owed = self._allowance.spend(anyio.current_time(), size)
        if owed:
            await anyio.sleep(owed)
        elif self._burst >= BURST or self._burst_bytes >= BURST_BYTES:
            await anyio.lowlevel.checkpoint()
        else:
            return
        self._burst = self._burst_bytes = 0

    async def _next(self) -> tuple[bytes, bool] | None:
        try:
            return await self._lines.__anext__()
        except _EndlessLine:
            self.lose(f"it sent a line of more than {FLOOD_BYTES} bytes")
        except (anyio.BrokenResourceError, anyio.ClosedResourceError, OSError):
            self.lose("its output cannot be read")
        except StopAsyncIteration:
            await _wait_exit(self._process, WATCH_SECONDS)  # the exit code says more than the end of the output
            self.lose(_exit_reason(self._process))
        return None


class _EndlessLine(Exception):
    """More than `FLOOD_BYTES` without a line end."""


class _Lines:
    """Iterates ``(line, whole)``; of a line over `LINE_BYTES` only both ends are given, and ``whole`` is False."""

    def __init__(self, stream: ByteReceiveStream) -> None:
        self._stream = stream
        self._buffer = bytearray()
        self._searched = 0

    def __aiter__(self) -> "_Lines":
        return self

    async def __anext__(self) -> tuple[bytes, bool]:
        head, dropped = b"", 0
        while True:
            end = self._buffer.find(b"\n", self._searched)
            if end >= 0:
                line = bytes(self._buffer[:end])
                del self._buffer[: end + 1]
                self._searched = 0
                if dropped or len(line) > LINE_BYTES:
                    head = head or line[:EDGE_BYTES]
                    return head + b"\n" + line[-EDGE_BYTES:], False
                return line, True
            self._searched = len(self._buffer)
            if self._searched > LINE_BYTES:
                head = head or bytes(self._buffer[:EDGE_BYTES])
                drop = self._searched - EDGE_BYTES
                del self._buffer[:drop]
                dropped += drop
                self._searched = EDGE_BYTES
                if dropped > FLOOD_BYTES:
                    raise _EndlessLine
            try:
                self._buffer += await self._stream.receive(65536)
            except anyio.EndOfStream:
                raise StopAsyncIteration from None


def repair_text(data: bytes) -> bytes:
    """Return JSON text with U+FFFD in place of bytes that are not UTF-8 and of lone surrogates (half an emoji)."""
    try:
        data.decode()
    except UnicodeDecodeError:
        data = data.decode("utf-8", "replace").encode()
    return _LONE_SURROGATE.sub(rb"\\ufffd", data) if b"\\ud" in data or b"\\uD" in data else data


def parse_line(line: bytes) -> types.JSONRPCMessage | None:
    """Return the message on a line; None: it is none.

    Bytes that are not UTF-8 and lone surrogates become U+FFFD. A response that cannot be read (nested deeper than
    the parser's 200 levels, for example) becomes an error response, so that the call it answers ends.
    """
    try:
        return types.jsonrpc_message_adapter.validate_json(line, by_name=False)
    except ValidationError:
        repaired = repair_text(line)
    try:
        return types.jsonrpc_message_adapter.validate_json(repaired, by_name=False)
    except ValidationError:
        return _answer_without_object(repaired) or _refusal(
            repaired, "The server's answer cannot be read as a message."
        )


def _answer_without_object(line: bytes) -> types.JSONRPCResponse | None:
    """Return a response whose result is no object as one with an empty result: its reader says what is missing."""
    try:
        message = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(message, dict) or "result" not in message or isinstance(message["result"], dict):
        return None
    ident = message.get("id")
    if isinstance(ident, bool) or not isinstance(ident, int | str):
        return None
    return types.JSONRPCResponse(jsonrpc="2.0", id=ident, result={})


def _refusal(
    line: bytes, text: str = f"The answer was refused: longer than {LINE_BYTES} bytes."
) -> types.JSONRPCError | None:
    """Return an error response to the call that an unusable line answers, if its id can be found."""
    found = _ID_AT_START.match(line[:EDGE_BYTES]) or _ID_AT_END.search(line[-EDGE_BYTES:])
    if found is None:
        return None
    error = types.ErrorData(code=types.INTERNAL_ERROR, message=text)
    return types.JSONRPCError(jsonrpc="2.0", id=int(found.group(1)), error=error)


def _exit_reason(process: Process) -> str:
    code = process.returncode
    if code is None:
        return "it closed its output"
    if code < 0:
        return f"it was ended by {signal.Signals(-code).name}"
    return f"it ended with exit code {code}"


@asynccontextmanager
async def _lock(path: Path | None) -> "AsyncIterator[tuple[int, ...]]":
    """Lock a file for a child, which keeps the descriptors while it, or anything that it started, lives.

    So a child of a process that stands still, whose lease is another's by now, keeps a second one from starting.

    Raises:
        ServerElsewhere: the last child has not ended.
    """
    if path is None:
        yield ()
        return
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        end = anyio.current_time() + LOCK_SECONDS
        while not _is_locked(descriptor):
            if anyio.current_time() > end:
                raise ServerElsewhere(path.name, "the last process of it has not ended yet")
            await anyio.sleep(LOCK_LOOK_SECONDS)
        yield (descriptor,)
    finally:
        os.close(descriptor)


def _is_locked(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


async def _spawn(command: StdioCommand, kept: Sequence[int] = ()) -> Process:
    """Start the child through `launcher`, as the leader of its own session and process group.

    ``kept``: descriptors that it inherits.
    """
    return await anyio.open_process(
        [
            sys.executable,
            "-I",
            "-S",
            _LAUNCHER,
            str(os.getpid()),
            command.plan(),
            command.executable,
            *command.args,
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=dict(command.env),
        cwd=command.cwd,
        start_new_session=True,
        pass_fds=kept,
    )


async def _end(process: Process, marker: str) -> None:
    """Stop the child and all it started: close its input, SIGTERM, SIGKILL, then whatever carries its marker."""
    if process.stdin is not None:
        with contextlib.suppress(OSError, anyio.BrokenResourceError, anyio.ClosedResourceError):
            with anyio.move_on_after(EXIT_SECONDS):
                await process.stdin.aclose()
    if not await _wait_exit(process, EXIT_SECONDS):
        _signal_group(process, signal.SIGTERM)
        await _wait_exit(process, EXIT_SECONDS)
    _signal_group(process, signal.SIGKILL)
    await _wait_exit(process, REAP_SECONDS)
    # In a thread: it reads /proc. This finds what left the process group.
    await anyio.to_thread.run_sync(sweep_leftovers, marker)
    for stream in (process.stdout, process.stderr):
        if stream is not None:
            with contextlib.suppress(OSError, anyio.BrokenResourceError, anyio.ClosedResourceError):
                await stream.aclose()
    # Otherwise it warns when collected, while something that survived holds a pipe. Nothing public leads to it.
    transport = getattr(getattr(process, "_process", None), "_transport", None)
    if transport is not None:
        transport.close()


async def _wait_exit(process: Process, seconds: float, poll: float = POLL_SECONDS) -> bool:
    """Wait for the exit itself: `Process.wait` also waits for pipes that a grandchild may hold open."""
    with anyio.move_on_after(seconds):
        while process.returncode is None:  # noqa: ASYNC110 - there is no event to wait on
            await anyio.sleep(poll)
    return process.returncode is not None


def _signal_group(process: Process, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)
