"""Tasks of MCP servers (SEP-2663, extension ``io.modelcontextprotocol/tasks``): calls whose result is fetched later.

A server of the newer protocol era may answer ``tools/call`` with a task instead of a result. This module reads a task's
state, follows it to its result, answers its questions and cancels it. It knows neither connections nor turns; the turn
stores the task's id, so that after a kill the result is fetched and the call is not repeated.
"""

import math
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Literal

import anyio
import mcp_types as types
from mcp.client import ClientSession
from mcp.client.extension import ClaimContext, ClientExtension, ResultClaim, UnexpectedClaimedResult
from pydantic import ConfigDict, Field, ValidationError

from agentic_rag.base.json_form import Json, is_finite_number
from agentic_rag.tools.elicitation import InputRound, Unfit, round_of
from agentic_rag.tools.listing import clean

TASKS: Final = "io.modelcontextprotocol/tasks"
TASK_ID_CHARS: Final = 1_024
"""A task with a longer id is refused."""
POLL_SECONDS, SHORTEST_POLL, LONGEST_POLL = 1.0, 0.05, 30.0
"""Pause between two questions about a task: if the server suggests none, and the limits of its suggestion."""
MESSAGE_CHARS: Final = 500
_STATES: Final = ("working", "input_required", "completed", "failed", "cancelled")


class CreatedTask(types.Result):
    """The answer to ``tools/call`` that is a task. Only its tag is read here; `read_task` reads the rest."""

    result_type: Literal["task"]


class _Report(types.Result):
    """Any result. Its members, except ``_meta``, are in ``model_extra`` as the server sent them."""

    model_config = ConfigDict(extra="allow")


class TasksExtension(ClientExtension):
    """Tells servers of the newer era that this host accepts tasks."""

    identifier = TASKS

    def claims(self) -> tuple[ResultClaim[Any], ...]:
        return (ResultClaim(result_type="task", model=CreatedTask, resolve=_refuse_claim),)


async def _refuse_claim(result: CreatedTask, context: ClaimContext) -> types.CallToolResult:
    """Refuse to resolve a task inside the library: `exchange.call_tool` does it, with this host's clock and bounds."""
    raise UnexpectedClaimedResult(result)


class _TaskParams(types.RequestParams):
    task_id: str


class _UpdateParams(_TaskParams):
    responses: types.InputResponses = Field(serialization_alias="inputResponses")


class _GetTask(types.Request[_TaskParams, Literal["tasks/get"]]):
    name_param: ClassVar[str | None] = "taskId"
    method: Literal["tasks/get"] = "tasks/get"
    params: _TaskParams


class _UpdateTask(types.Request[_UpdateParams, Literal["tasks/update"]]):
    name_param: ClassVar[str | None] = "taskId"
    method: Literal["tasks/update"] = "tasks/update"
    params: _UpdateParams


class _CancelTask(types.Request[_TaskParams, Literal["tasks/cancel"]]):
    name_param: ClassVar[str | None] = "taskId"
    method: Literal["tasks/cancel"] = "tasks/cancel"
    params: _TaskParams


@dataclass(frozen=True, slots=True)
class TaskReport:
    """A task's state as its server reports it. ``result`` is the result of the call once it is completed."""

    id: str
    status: str
    message: str = ""
    poll: float = POLL_SECONDS
    result: Json | None = None
    error: str = ""
    requests: Json | None = None


class UnreadableTask(Exception):
    """A server reported a task in an unreadable form; the text describes the problem."""


def is_task(answer: Json) -> bool:
    """Return whether an answer to ``tools/call`` is a task."""
    return answer.get("resultType") == "task"


def read_task(sent: Json) -> TaskReport:
    """Return the report that a server sent.

    Raises:
        UnreadableTask: The report has no valid id or state.
    """
    ident, status = sent.get("taskId"), sent.get("status")
    if not isinstance(ident, str) or not 0 < len(ident) <= TASK_ID_CHARS:
        raise UnreadableTask(f"the task has no id of 1 to {TASK_ID_CHARS} characters")
    if status not in _STATES:
        raise UnreadableTask(f"the state of the task is none of {', '.join(_STATES)}")
    message, interval, error = sent.get("statusMessage"), sent.get("pollIntervalMs"), sent.get("error")
    poll = POLL_SECONDS
    if is_finite_number(interval):
        # The server's wish within limits, because polling too often would cost both sides.
        poll = min(max(interval / 1000, SHORTEST_POLL), LONGEST_POLL)
    problem = error.get("message") if isinstance(error, dict) else None
    result, requests = sent.get("result"), sent.get("inputRequests")
    return TaskReport(
        ident,
        status,
        clean(message[:MESSAGE_CHARS]) if isinstance(message, str) else "",
        poll,
        result if isinstance(result, dict) else None,
        clean(problem[:MESSAGE_CHARS]) if isinstance(problem, str) else "",
        requests if isinstance(requests, dict) else None,
    )


async def fetch(session: ClientSession, task_id: str) -> TaskReport:
    """Ask for the state of a task. Raises `UnreadableTask`, and `MCPError` if the server does not know the task."""
    request = _GetTask(params=_TaskParams(task_id=task_id))
    return read_task((await session.send_request(request, _Report, math.inf)).model_extra or {})


async def update(session: ClientSession, task_id: str, responses: types.InputResponses) -> None:
    """Send the answers to a task's questions."""
    request = _UpdateTask(params=_UpdateParams(task_id=task_id, responses=responses))
    await session.send_request(request, types.EmptyResult, math.inf)


async def cancel(session: ClientSession, task_id: str) -> None:
    """Ask the server to stop a task. The server may finish it all the same."""
    request = _CancelTask(params=_TaskParams(task_id=task_id))
    await session.send_request(request, types.EmptyResult, math.inf)


def questions_of(report: TaskReport, answered: Collection[str]) -> InputRound | Unfit | None:
    """Return the questions of a task that were not answered yet, or None.

    ``answered``: the keys of earlier answers, which a server may report a while longer.
    """
    unanswered = {key: value for key, value in (report.requests or {}).items() if key not in answered}
    if not unanswered:
        return None
    try:
        required = types.InputRequiredResult.model_validate({"inputRequests": unanswered}, by_name=False)
    except ValidationError:
        return Unfit("it cannot be read")
    return round_of(required)


async def follow(
    session: ClientSession,
    report: TaskReport,
    on_progress: Callable[[float, float | None, str | None], Awaitable[None]],
    answered: Collection[str] = (),
    longest: float = LONGEST_POLL,
) -> TaskReport:
    """Follow a task until it has ended or asks something new.

    ``on_progress`` gets each report as progress, which renews the call's time. ``longest``: most seconds between two
    polls.
    """
    polls = 0
    # A server may report questions for a while after they were answered. Then it still works.
    while report.status == "working" or (report.status == "input_required" and questions_of(report, answered) is None):
        polls += 1
        await on_progress(polls, None, report.message or None)
        await anyio.sleep(min(report.poll, longest))
        report = await fetch(session, report.id)
    return report
