"""One request to an MCP server, and the checks of its answer.

Owns the listing of tools, the progress of a call and its clock, the size of a result, the input that a server asks for
instead of answering, and the texts about failures. Knows neither connections nor their states.
"""

import contextlib
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import anyio
import httpx2
import mcp_types as types
from mcp import MCPError
from mcp.client import ClientSession
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import TypeAdapter, ValidationError

from agentic_rag.base.json_form import Json
from agentic_rag.base.silence_timers import SilenceScope, SilenceTimer
from agentic_rag.tools import remote_tasks
from agentic_rag.tools.base import META_PREFIX, ProgressSink
from agentic_rag.tools.elicitation import InputRound, Unfit, round_of, round_of_error
from agentic_rag.tools.remote_tasks import TaskReport, UnreadableTask, is_task, questions_of, read_task
from agentic_rag.tools.server_answers import ANSWER, NOT_READABLE, DroppedTool, read_result, read_tools, with_few_blocks

RESULT_BYTES = 8 * 1024 * 1024
"""A result whose texts and data are longer is refused."""

TOOL_PAGES = 100
"""Maximum number of pages of tools that a server is asked for."""

TOOLS = 512
"""Maximum number of tools that are read from one server."""

PROGRESS_BURST, PROGRESS_INTERVAL = 20, 0.25
"""After this many progress reports of a call, at most one per interval (seconds) is passed on."""

PROGRESS_FINISH = 1.0
"""Seconds that the end of a call waits for a report that is just being passed on."""

REASON_CHARS = 500
"""Longer progress messages and reasons are truncated."""

RETRIES, RETRY_SECONDS, LONGEST_RETRY = 10, 0.05, 0.25
"""Limits for repeating a call whose answer has a state but asks for nothing: attempts, first pause, and longest pause.

The pauses are in seconds and double each time.
"""

SESSION_ENDED = "the server ended the session"
SESSION_END: Json = {META_PREFIX + "sessionEnded": True}
"""The data of the error that a transport answers to a request whose session the server does not know any more."""

_BLOCKS: TypeAdapter[list[types.ContentBlock]] = TypeAdapter(list[types.ContentBlock])
_ANSWER: TypeAdapter[types.CallToolResult | types.InputRequiredResult] = TypeAdapter(
    types.CallToolResult | types.InputRequiredResult
)


class UnreadableAnswer(Exception):
    """A server answered a call in an unreadable form; the text describes the problem."""


class Relay:
    """Receives the progress of one call, renews its deadline and passes reports on, but none after the call's end.

    Reports arrive in tasks of the protocol library, so one may still be on its way when the answer is there. The clock
    stops while a person is asked (`pause`).
    """

    def __init__(
        self, silence: SilenceTimer | anyio.CancelScope, timeout: float, cap: float, sink: ProgressSink | None
    ) -> None:
        self.timeout = timeout
        self._silence, self._cap, self._sink = silence, cap, sink
        self._busy = anyio.Lock(fast_acquire=True)
        self._count = 0
        self._passed = 0.0
        self._pauses = 0
        self._paused_at = 0.0

    def pause(self) -> None:
        """Stop the clock. Each call needs one later call of `go_on`."""
        if self._pauses == 0:
            self._paused_at = anyio.current_time()
            self._silence.deadline = math.inf
        self._pauses += 1

    def go_on(self) -> None:
        """Undo one `pause`. A person's answer gives the server its whole time again, within the cap."""
        self._pauses -= 1
        if self._pauses == 0:
            now = anyio.current_time()
            # The cap limits the server's own time, and the person's is not part of it.
            self._cap += now - self._paused_at
            self._silence.deadline = min(now + self.timeout, self._cap)

    async def __call__(self, progress: float, total: float | None, message: str | None) -> None:
        now = anyio.current_time()
        if self._pauses == 0:
            self._silence.deadline = min(now + self.timeout, self._cap)
        self._count += 1
        # The clock was renewed above: a report counts as a sign of life even if it is not passed on.
        if self._count > PROGRESS_BURST and now - self._passed < PROGRESS_INTERVAL:
            return
        self._passed = now
        async with self._busy:
            if self._sink is not None:
                await self._sink(progress, total, None if message is None else message[:REASON_CHARS])

    async def finish(self) -> None:
        if self._sink is not None:
            with anyio.CancelScope(shield=True), anyio.move_on_after(PROGRESS_FINISH):
                async with self._busy:
                    self._sink = None
        self._sink = None


async def list_tools(session: ClientSession) -> tuple[tuple[types.Tool, ...], tuple[DroppedTool, ...]]:
    """Return the tools of a server, and the unreadable ones of its list.

    A page that repeats the one before it ends the list: some servers ignore the cursor.

    Raises:
        MCPError: The server answered the first page with an error.
    """
    tools: list[types.Tool] = []
    dropped: list[DroppedTool] = []
    cursors: list[str | None] = [None]
    before: object = None
    for _ in range(TOOL_PAGES):
        try:
            page = await session.list_tools(params=types.PaginatedRequestParams(cursor=cursors[-1]))
        except MCPError as exc:
            if is_session_end(exc):
                raise
            if len(cursors) > 1:
                dropped.append(DroppedTool(f"(page {len(cursors)})", f"the server did not list it: {explain(exc)}"))
                break
            if exc.code == types.METHOD_NOT_FOUND:  # a server without tools
                break
            raise
        answer = (page.meta or {}).get(ANSWER)
        if answer is None:  # one of our own servers
            tools.extend(page.tools)
        elif before is not None and answer.get("tools") == before:
            break
        else:
            before = answer.get("tools")
            read, unread = read_tools(answer, len(tools) + len(dropped))
            tools.extend(types.Tool.model_validate(tool) for tool in read)
            dropped.extend(unread)
        # A cursor that was used before would lead round in a circle.
        if page.next_cursor is None or page.next_cursor in cursors or len(tools) >= TOOLS:
            break
        cursors.append(page.next_cursor)
    else:
        dropped.append(DroppedTool("(more)", f"at most {TOOL_PAGES} pages of tools are read of a server"))
    if tools[TOOLS:]:
        dropped.append(DroppedTool(f"({len(tools) - TOOLS} more)", f"at most {TOOLS} tools of a server are taken"))
    return tuple(tools[:TOOLS]), tuple(dropped[:TOOLS])


async def call_tool(
    session: ClientSession,
    tool: str,
    arguments: Mapping[str, Any],
    meta: Mapping[str, Any] | None,
    relay: Relay,
    answered: InputRound | None = None,
    note_task: Callable[[str], Awaitable[None]] | None = None,
) -> types.CallToolResult | InputRound:
    """Call a tool and check its answer, which may be a round of questions for a person.

    An answer that is a task is followed to its result. ``note_task`` gets the task's id first.

    ``relay`` has the call's clock. The protocol library gets no timeout, because that would not stop for a person.
    ``answered``: the questions of an earlier attempt of this call, with the answers.

    `ClientSession.call_tool` is not used: it applies the server's own output schema to the result, and a hostile schema
    (a regular expression that backtracks) would stop the event loop.
    """
    if answered is not None and answered.task:
        return await resume_task(session, answered.task, relay, answered)
    params = types.CallToolRequestParams(name=tool, arguments=dict(arguments))
    if meta:
        params.meta = types.RequestParamsMeta(**meta)  # type: ignore[typeddict-item]
    if answered is not None and session.protocol_version in MODERN_PROTOCOL_VERSIONS:  # the older era has another way
        params.input_responses, params.request_state = answered.responses, answered.state
    pause = RETRY_SECONDS
    for _ in range(RETRIES):
        request = types.CallToolRequest(params=params)
        try:
            answer = await session.send_request(request, _ANSWER, math.inf, progress_callback=relay)
        except MCPError as exc:
            if exc.code != types.URL_ELICITATION_REQUIRED:
                raise
            return _settle_round(round_of_error(exc.error.data))
        if not isinstance(answer, types.InputRequiredResult):
            sent = (answer.meta or {}).get(ANSWER) or {}
            if is_task(sent) and session.protocol_version in MODERN_PROTOCOL_VERSIONS:
                report = _read_report(sent)
                if note_task is not None:
                    await note_task(report.id)
                return await _finish_task(session, report, relay, ())
            return _fitting(_read_answer(answer))
        if answer.input_requests:
            return _settle_round(round_of(answer))
        # The server keeps its state with the client and wants it back, once more without an answer.
        params = params.model_copy(update={"input_responses": None, "request_state": answer.request_state})
        await anyio.sleep(pause)
        pause = min(2 * pause, LONGEST_RETRY)
    return error_result(f"The server wanted the call again {RETRIES} times without asking for anything.")


async def resume_task(
    session: ClientSession, task_id: str, relay: Relay, answered: InputRound | None = None
) -> types.CallToolResult | InputRound:
    """Follow a task that an earlier attempt of this call began. Its questions, if any, have been answered."""
    if answered is not None:
        await remote_tasks.update(session, task_id, answered.responses)
    try:
        report = await remote_tasks.fetch(session, task_id)
    except UnreadableTask as exc:
        raise UnreadableAnswer(str(exc)) from exc
    return await _finish_task(session, report, relay, () if answered is None else answered.keys)


async def _finish_task(
    session: ClientSession, report: TaskReport, relay: Relay, answered: tuple[str, ...]
) -> types.CallToolResult | InputRound:
    """Return the result of a task, or its questions."""
    try:
        report = await remote_tasks.follow(session, report, relay, answered, relay.timeout / 3)
    except UnreadableTask as exc:
        raise UnreadableAnswer(str(exc)) from exc
    match report.status:
        case "completed":
            if report.result is None:
                raise UnreadableAnswer("the completed task has no result")
            return _fitting(_read_sent(report.result))
        case "failed":
            return error_result(report.error or report.message or "The server's task failed without a reason.")
        case "cancelled":
            return error_result(f"The server cancelled its task. {report.message}".rstrip())
    questions = _settle_round(questions_of(report, answered) or Unfit("it asks for nothing"))
    return replace(questions, task=report.id, earlier=answered) if isinstance(questions, InputRound) else questions


def _read_report(sent: Json) -> TaskReport:
    try:
        return read_task(sent)
    except UnreadableTask as exc:
        raise UnreadableAnswer(str(exc)) from exc


def _settle_round(input_round: InputRound | Unfit) -> types.CallToolResult | InputRound:
    return error_result(input_round.text) if isinstance(input_round, Unfit) else input_round


def _read_answer(answer: types.CallToolResult) -> types.CallToolResult:
    """Return a result as its server sent it, in blocks that can be shown.

    Raises:
        UnreadableAnswer: There is nothing to show.
    """
    sent = (answer.meta or {}).get(ANSWER)
    if sent is None:  # one of our own servers
        return answer
    return _read_sent(sent)


def _read_sent(sent: Json) -> types.CallToolResult:
    read = read_result(with_few_blocks(sent))
    if read.problem:
        raise UnreadableAnswer(read.problem)
    meta = sent.get("_meta")  # for apps; models do not read it
    return types.CallToolResult(
        content=_BLOCKS.validate_python(read.content),
        structured_content=read.structured,
        is_error=read.is_error,
        meta=meta if isinstance(meta, dict) else None,
    )


def _fitting(answer: types.CallToolResult) -> types.CallToolResult:
    """Return a result, or an error result if it is too large."""
    size = 0
    for block in answer.content:
        inner = block.resource if isinstance(block, types.EmbeddedResource) else block
        size += sum(len(getattr(inner, name, None) or "") for name in ("text", "data", "blob"))
    if size > RESULT_BYTES:
        return error_result(f"The result of {size} characters was refused: at most {RESULT_BYTES} are taken.")
    return answer


async def is_answering(session: ClientSession, seconds: float) -> bool:
    """Ping a server and return whether any answer came within the given time.

    Any answer counts, including an error: some real servers do not implement ``ping``, and newer protocol versions do
    not have it. https://modelcontextprotocol.io/specification/2025-11-25/basic/utilities/ping
    """
    with SilenceScope(seconds):
        with contextlib.suppress(MCPError, ValidationError):
            await session.send_request(types.PingRequest(), types.EmptyResult, math.inf)
        return True
    return False


def error_result(text: str) -> types.CallToolResult:
    return types.CallToolResult(content=[types.TextContent(text=text)], is_error=True)


def with_notes(result: types.CallToolResult, notes: Sequence[str]) -> types.CallToolResult:
    """Return a result with our own notes in front."""
    if not notes:
        return result
    texts = [types.TextContent(text=f"[{note}]") for note in notes]
    return result.model_copy(update={"content": [*texts, *result.content]})


def describe_first_problem(exc: ValidationError) -> str:
    """Return where and why an answer violates the protocol, in a few words."""
    first = exc.errors(include_url=False, include_input=False, include_context=False)[0]
    return f"{'.'.join(map(str, first['loc']))}: {first['msg']}"[:REASON_CHARS]


def root_cause(exc: BaseException) -> BaseException:
    """Return the first plain exception inside nested exception groups."""
    # The protocol library runs tasks in groups, so even one failure arrives wrapped.
    while isinstance(exc, BaseExceptionGroup):
        exc = exc.exceptions[0]
    return exc


def is_session_end(exc: MCPError) -> bool:
    """Return whether a request was not run, because the server did not know its session any more."""
    data: object = exc.error.data
    return data == SESSION_END


def describe_unparsed(exc: MCPError) -> str:
    """Describe why the protocol library could not parse an answer. Returns "" for an error that the server sent."""
    message = str(exc.error.message)
    if exc.error.code != types.PARSE_ERROR or not message.startswith("Failed to parse "):
        return ""
    # The library has no code for this case. Its text is the only sign.
    _, marker, problem = message.partition("Invalid JSON: ")
    return f"it is not JSON: {problem.partition(' [type=')[0]}" if marker else "it is not a JSON-RPC message"


def explain(exc: BaseException) -> str:
    """Return one short line that explains a failure of a server."""
    cause = root_cause(exc)
    if isinstance(cause, MCPError):
        return (describe_unparsed(cause) or str(cause.error.message))[:REASON_CHARS]
    if isinstance(cause, TimeoutError):
        return "no answer in time"
    if isinstance(cause, ValidationError):
        return f"it {NOT_READABLE} ({describe_first_problem(cause)})"[:REASON_CHARS]
    text = str(cause).splitlines()[0] if str(cause) else ""
    if text and isinstance(cause, httpx2.TransportError | httpx2.InvalidURL):
        return text[:REASON_CHARS]  # its text is ours, or is sufficient
    return f"{type(cause).__name__}: {text}"[:REASON_CHARS]
