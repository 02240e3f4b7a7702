"""A child process that speaks MCP over its standard streams.

Owns the spawn, the framing of lines with its bounds, and the termination of the child with all its descendants. Knows
nothing of sessions or calls. Protocol: newline-delimited JSON-RPC, one message per line,
https://modelcontextprotocol.io/specification/2025-11-25/basic/transports#stdio

The way through this file:

- `_spawn` starts the child through `launcher`, which checks the command once more.
- `_Inbox` reads messages in the session's own task: `_Lines` cuts and bounds lines, `parse_line` repairs what servers
  get wrong.
- Four tasks beside it write the child's input, keep its stderr, watch for its exit and measure its usage.
- `_end` stops the child in the order of the specification: close its input, wait, SIGTERM, SIGKILL.

`mcp.client.stdio` is not used: it passes parts of our environment to the child, reads lines of any length, and drops a
line it cannot parse, which leaves the call of that answer open for ever.
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
from contextlib import asynccontextmanager
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

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
from agentic_rag.tools.transports.network import RefusalListener, unheard

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

LINE_BYTES = 1024 * 1024
"""A longer line is discarded, and the call that it answered gets an error."""

FLOOD_BYTES = 256 * 1024 * 1024
"""A line without an end after this many bytes costs the server its connection."""

EDGE_BYTES = 4096
"""Bytes kept at both ends of a discarded line, to find the call that it answered."""

NOT_STARTED, NOT_STARTED_CODE = "not started: ", 126
"""Prefix and exit code with which `launcher` reports that a file differs from the approved one."""

STDERR_CHARS = 500
"""Longer lines of stderr are truncated."""

WRITE_SECONDS = 30.0
"""A child that does not accept a message in this time is lost."""

EXIT_SECONDS = 1.0
"""Time limit for a child's exit after its input closes, and again after SIGTERM, before SIGKILL."""

LOCK_SECONDS, LOCK_LOOK_SECONDS = 5.0, 0.1
"""Time limit of a stateful child's wait for the end of its predecessor, and the interval of its checks."""

REAP_SECONDS = 2.0
"""Time limit for the death of a killed child."""

OUTBOX = 256
"""Maximum number of messages that wait for a slow child; further ones make their senders wait."""

BURST, BURST_BYTES = 8, 64 * 1024
"""After this many lines, or bytes of lines, other tasks get a turn, however much the child has written."""

READ_BYTES, READ_BYTES_A_SECOND = 32 * 1024 * 1024, 16 * 1024 * 1024
"""Messages that are read: burst size, and average per second. A child that writes more slows down only itself."""

BATCH = 1_000
"""Maximum number of messages in a batch; a longer one is no message."""

GARBAGE, GARBAGE_A_SECOND = 2_000, 100.0
"""Lines that are not messages: burst size, and average per second. A child that exceeds this is no MCP server."""

STDERR_BYTES, STDERR_BYTES_A_SECOND = 8 * 1024 * 1024, 1024 * 1024
"""Stderr that is read: burst size, and average per second. A line costs at least `STDERR_LINE` bytes."""

STDERR_LINE = 512

POLL_SECONDS, WATCH_SECONDS = 0.01, 0.25
"""Polling intervals for the exit: while closing, and while serving, when the end of output shows the exit earlier."""

ERROR_CHARS, NUMBER_CHARS = 2_000, 300
"""Maximum characters of an error's text, and of a number, in a response that does not follow the protocol."""

_LAUNCHER = str(Path(__file__).parent.parent / "launch" / "launcher.py")
_DIGITS = bytes.maketrans(b"123456789E", b"000000000e")
_MARK = b"\xef\xbb\xbf"
"""Byte order mark of UTF-8."""
_HIGH, _LOW = rb"[dD][89abAB][0-9a-fA-F]{2}", rb"[dD][c-fC-F][0-9a-fA-F]{2}"
_LONE_SURROGATE = re.compile(  # begins with a literal, which is fast to search for; "\\ud800" is text, and is kept
    rb"\\u(?<!\\\\u)(?:" + _HIGH + rb"(?!\\u" + _LOW + rb")|" + _LOW + rb"(?<!\\u" + _HIGH + rb"\\u" + _LOW + rb"))"
)
_ID_AT_START = re.compile(rb'\s*\{\s*(?:"jsonrpc"\s*:\s*"2\.0"\s*,\s*)?"id"\s*:\s*(\d{1,15})\s*,\s*"(?:result|error)"')
_ID_AT_END = re.compile(rb'"id"\s*:\s*(\d{1,15})\s*(?:,\s*"jsonrpc"\s*:\s*"2\.0"\s*)?\}\s*$')

Streams = tuple["_Inbox", MemoryObjectSendStream[SessionMessage]]


class StdioTransport(anyio.AsyncContextManagerMixin):
    """One run of one child, as a `mcp.client.Transport`. Single use."""

    def __init__(
        self,
        command: StdioCommand,
        on_lost: Callable[[str], None],
        tail: "deque[str]",
        refused: RefusalListener = unheard,
    ) -> None:
        """Store the command; nothing is started.

        ``on_lost`` gets the reason when the child sends nothing more. ``tail`` gets the lines of stderr. ``refused`` is
        awaited with the reason when the launcher did not start the server.
        """
        self._command = command
        self._lost = on_lost
        self._tail = tail
        self._refused = refused
        self._stderr_ended = anyio.Event()
        """Set once stderr has ended."""

    @asynccontextmanager
    async def __asynccontextmanager__(self) -> "AsyncIterator[Streams]":
        async with _lock(self._command.lock) as inherited_fds:
            process = await _spawn(self._command, inherited_fds)
        # No await between the spawn and the task group: a cancellation there would leak the child.
        inbox = _Inbox(process, self._lost, self._tail)
        write, outbox = anyio.create_memory_object_stream[SessionMessage](OUTBOX)
        with write, outbox:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._write, process, outbox, inbox)
                tasks.start_soon(self._keep_stderr, process)
                tasks.start_soon(self._watch, process, inbox)
                tasks.start_soon(self._measure, process, inbox)
                try:
                    yield inbox, write
                finally:
                    with anyio.CancelScope(shield=True):  # every wait in it is bounded
                        async with anyio.create_task_group() as closing:
                            # A child that is blocked by a full pipe cannot exit.
                            closing.start_soon(_drain, process)
                            await _end(process, self._command.marker)
                            closing.cancel_scope.cancel()
                        await self._report_refusal(process)
                    tasks.cancel_scope.cancel()

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
                # Sleep also when nothing is owed: the buffer may hold many short lines, and other tasks need a turn.
                await anyio.sleep(allowance.spend(anyio.current_time(), max(len(line), STDERR_LINE)))
                # A character has at most four bytes, so this prefix is enough.
                text = line[: STDERR_CHARS * 4].decode("utf-8", "replace").rstrip()
                if text:
                    self._tail.append(text[:STDERR_CHARS])
        self._stderr_ended.set()

    async def _report_refusal(self, process: Process) -> None:
        """Report the launcher's refusal. A server can imitate one, but then only its own start counts as refused."""
        if process.returncode != NOT_STARTED_CODE:
            return
        with anyio.move_on_after(WATCH_SECONDS):
            await self._stderr_ended.wait()
        # A launcher that refuses runs no server, so its reason is the last line.
        last_line = self._tail[-1] if self._tail else ""
        if last_line.startswith(NOT_STARTED):
            await self._refused(last_line.removeprefix(NOT_STARTED))

    async def _watch(self, process: Process, inbox: "_Inbox") -> None:
        """Notice the exit of a child whose output a descendant still holds open."""
        await _wait_exit(process, math.inf, WATCH_SECONDS)
        await anyio.sleep(WATCH_SECONDS)  # its last output is still being read
        inbox.lose(_exit_reason(process))

    async def _measure(self, process: Process, inbox: "_Inbox") -> None:
        """End a child that exceeds its limits: at once, since it would keep consuming."""
        meter = Meter(process.pid, self._command.allowance, self._command.places)
        own = anyio.CapacityLimiter(1)  # a folder that hangs blocks only this thread
        reason = ""
        while not reason:
            reason = await anyio.to_thread.run_sync(
                meter.exceeds, anyio.current_time(), abandon_on_cancel=True, limiter=own
            )
            await anyio.sleep(0 if reason else PERIOD_SECONDS)
        inbox.lose(reason)
        _signal_group(process, signal.SIGKILL)


class _Inbox:
    """The messages of the child, read in the session's own task: a pump would cost a task switch per answer."""

    def __init__(self, process: Process, on_lost: Callable[[str], None], tail: "deque[str]") -> None:
        assert process.stdout is not None
        self._process = process
        self._lines = _Lines(process.stdout)
        self._lost = on_lost
        self._tail = tail
        self._ended = False
        self._burst = self._burst_bytes = 0
        self._batch: deque[bytes] = deque()
        """Messages of a batch that are not read yet."""
        self._allowance = TokenBucket(READ_BYTES_A_SECOND, READ_BYTES)
        self._garbage = TokenBucket(GARBAGE_A_SECOND, GARBAGE)
        self._reading = anyio.CancelScope()

    def lose(self, reason: str) -> None:
        """End the session. The first reason counts."""
        self._ended = True
        self._lost(reason)  # before the session sees the end, so that calls fail with this reason
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
                next_line = await self._next()
            if self._reading.cancelled_caught or next_line is None:
                break
            line, whole = next_line
            await self._give_way(len(line))
            # A batch goes through the same loop message by message, so it gets the same limits.
            if whole and (batch := read_batch(line)):
                self._batch += batch
                continue
            message = parse_line(line) if whole else _refusal(line)
            if message is not None:
                return SessionMessage(message)
            # Some servers write blank lines between messages. They cost nothing.
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
        """Give other tasks a turn after each burst, and make a child wait that writes too much."""
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
        if self._batch:
            return self._batch.popleft(), True
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
    """Iterates ``(line, whole)``. For a line over `LINE_BYTES`, only both ends are returned, and ``whole`` is False."""

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
            # A long line is not searched again with each piece that arrives.
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
        data.decode()  # faster than a repair, and nearly every line is valid
    except UnicodeDecodeError:
        data = data.decode("utf-8", "replace").encode()
    return _LONE_SURROGATE.sub(rb"\\ufffd", data) if b"\\ud" in data or b"\\uD" in data else data


def read_batch(data: bytes) -> list[bytes]:
    """Return the messages of a JSON-RPC batch; empty for everything else.

    MCP has no batches since 2025-06-18, but some servers put each message in a list.
    """
    if data[:1] == b"{" or not data.removeprefix(_MARK).lstrip().startswith(b"["):
        return []
    try:
        batch = json.loads(repair_text(data.removeprefix(_MARK)))
    except (ValueError, RecursionError):
        return []
    if len(batch) > BATCH or not all(isinstance(message, dict) for message in batch):
        return []
    return [json.dumps(message, ensure_ascii=False).encode() for message in batch]


def parse_line(line: bytes) -> types.JSONRPCMessage | None:
    """Return the message on a line, or None if the line is not a message.

    Bytes that are not UTF-8 and lone surrogates become U+FFFD, and a byte order mark is skipped. A response that does
    not follow the protocol is read as far as possible (`_read_answer`). A response that cannot be read (nested deeper
    than the parser's 200 levels, for example) becomes an error response, so that the call of that response ends.
    """
    line = line.removeprefix(_MARK)
    try:
        return _with_finite_numbers(types.jsonrpc_message_adapter.validate_json(line, by_name=False), line)
    except ValidationError:
        repaired = repair_text(line)
    try:
        message = types.jsonrpc_message_adapter.validate_json(repaired, by_name=False)
        return _with_finite_numbers(message, repaired)
    except ValidationError:
        return _read_answer(repaired) or _refusal(repaired, "The server's answer cannot be read as a message.")


def _with_finite_numbers(message: types.JSONRPCMessage, line: bytes) -> types.JSONRPCMessage:
    """Return a message without NaN, infinite and absurdly long numbers in its answer, which the library accepts."""
    if not isinstance(message, types.JSONRPCResponse | types.JSONRPCError):
        return message
    # With all digits written as 0, one search each finds exponents of three digits and long numbers.
    digits = line.translate(_DIGITS, b"+")
    odd = b"NaN" in line or b"Infinity" in line or b"e000" in digits or b"0" * NUMBER_CHARS in digits
    return (_read_answer(line) or message) if odd else message


def _read_answer(line: bytes) -> types.JSONRPCMessage | None:
    """Return the response on a line that does not follow JSON-RPC or JSON; None if there is none.

    ``jsonrpc`` may be missing. NaN, infinite and absurdly long numbers become null, as in JavaScript. An error may be a
    text. A result that is not an object becomes an empty one; its reader reports the gaps.
    """
    try:
        message = json.loads(
            line, parse_constant=lambda _: None, parse_float=_finite, parse_int=lambda text: _finite(text, int)
        )
    except (ValueError, RecursionError):
        return None
    if not isinstance(message, dict) or "method" in message:
        return None
    ident, result, error = message.get("id"), message.get("result"), message.get("error")
    # `True` is an `int` in Python, and no id in JSON-RPC.
    if isinstance(ident, bool) or not isinstance(ident, int | str):
        return None
    answer: dict[str, Any] = {"jsonrpc": "2.0", "id": ident}
    if error is not None:
        fields = error if isinstance(error, dict) else {"message": error}
        text, code = fields.get("message"), fields.get("code")
        text = text if isinstance(text, str) else json.dumps(text)
        code = code if isinstance(code, int) and not isinstance(code, bool) else types.INTERNAL_ERROR
        answer["error"] = {"code": code, "message": text[:ERROR_CHARS]}
        if "data" in fields:
            answer["error"]["data"] = fields["data"]
    elif "result" in message:
        answer["result"] = result if isinstance(result, dict) else {}
    else:
        return None
    try:
        return types.jsonrpc_message_adapter.validate_json(json.dumps(answer), by_name=False)
    except (ValidationError, RecursionError):
        return None


def _finite(text: str, number: Callable[[str], float] = float) -> float | None:
    """Return a number, or None if it is not finite or has more than `NUMBER_CHARS` characters."""
    value = number(text) if len(text) <= NUMBER_CHARS else None
    return value if value is not None and math.isfinite(value) else None


def _refusal(
    line: bytes, text: str = f"The answer was refused: longer than {LINE_BYTES} bytes."
) -> types.JSONRPCError | None:
    """Return an error response to the call that an unusable line answers, if its id can be found."""
    match = _ID_AT_START.match(line[:EDGE_BYTES]) or _ID_AT_END.search(line[-EDGE_BYTES:])
    if match is None:
        return None
    error = types.ErrorData(code=types.INTERNAL_ERROR, message=text)
    return types.JSONRPCError(jsonrpc="2.0", id=int(match.group(1)), error=error)


def _exit_reason(process: Process) -> str:
    code = process.returncode
    if code is None:
        return "it closed its output"
    if code < 0:
        return f"it was ended by {signal.Signals(-code).name}"
    return f"it ended with exit code {code}"


@asynccontextmanager
async def _lock(path: Path | None) -> "AsyncIterator[tuple[int, ...]]":
    """Lock a file for a child. The child's process tree keeps the descriptors while any of it lives.

    This keeps a second child from starting while the child of a stalled process lives whose lease another process took.

    Raises:
        ServerElsewhere: The last child has not ended.
    """
    if path is None:
        yield ()
        return
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        end = anyio.current_time() + LOCK_SECONDS
        while not _is_locked(descriptor):
            if anyio.current_time() > end:
                raise ServerElsewhere(path.name, "its previous process has not ended yet")
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


async def _spawn(command: StdioCommand, inherited_fds: Sequence[int] = ()) -> Process:
    """Start the child through `launcher`, as the leader of its own session and process group.

    ``inherited_fds``: descriptors that the child inherits.
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
        # Signals to our own group (Ctrl-C in a terminal) must not reach the child, and its group can be killed as one.
        start_new_session=True,
        pass_fds=inherited_fds,
    )


async def _drain(process: Process) -> None:
    """Read and discard what a child writes after the session, until its output ends."""
    assert process.stdout is not None
    # A RuntimeError: the session still reads, which serves the same end.
    with contextlib.suppress(
        anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError, OSError, RuntimeError
    ):
        while True:
            await process.stdout.receive()


async def _end(process: Process, marker: str) -> None:
    """Stop the child and its descendants: close its input, SIGTERM, SIGKILL, then kill everything with its marker."""
    if process.stdin is not None:
        with contextlib.suppress(OSError, anyio.BrokenResourceError, anyio.ClosedResourceError):
            with anyio.move_on_after(EXIT_SECONDS):
                await process.stdin.aclose()
    if not await _wait_exit(process, EXIT_SECONDS):
        _signal_group(process, signal.SIGTERM)
        await _wait_exit(process, EXIT_SECONDS)
    # Also after a regular exit: its descendants may still run.
    _signal_group(process, signal.SIGKILL)
    await _wait_exit(process, REAP_SECONDS)
    # In a thread, because it reads /proc. This finds processes that left the process group.
    await anyio.to_thread.run_sync(sweep_leftovers, marker)
    for stream in (process.stdout, process.stderr):
        if stream is not None:
            with contextlib.suppress(OSError, anyio.BrokenResourceError, anyio.ClosedResourceError):
                await stream.aclose()
    # Otherwise asyncio warns at collection while a survivor holds a pipe. There is no public way to the transport.
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
