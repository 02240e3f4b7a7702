"""The REST routes for apps of MCP servers: their pages, and the requests that the pages make.

The page is a stranger's program. It is served with a policy under which a browser gives it no origin and no network,
also if a person opens its address in a window. So it cannot send these requests itself: the page that frames it does,
as the person. `conversations.server_apps` decides who gets which page, and what an app may do.
"""

from collections.abc import Awaitable
from typing import Final, Literal, TypeVar

import anyio
from pydantic import Field
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse

from agentic_rag.access.users import User
from agentic_rag.base.budget_errors import BudgetExceeded
from agentic_rag.base.errors import (
    AgenticRagError,
    ChangeHeld,
    ChangeOnTrial,
    ConversationArchived,
    Forbidden,
    RateLimited,
    Unauthenticated,
)
from agentic_rag.base.events import WaitAction
from agentic_rag.base.forms import AnswerJson, Form
from agentic_rag.base.ids import TurnId
from agentic_rag.base.json_form import Absent, Json
from agentic_rag.conversations.server_apps import AppCallApproval, ServerApps
from agentic_rag.server.auth import caller_of
from agentic_rag.server.replies import answer
from agentic_rag.server.routes.waits import WaitAnswer, show_wait
from agentic_rag.server.routing import route
from agentic_rag.tools.apps import PERMISSIONS, POLICY, URI_CHARS
from agentic_rag.tools.errors import AppNotAllowed, AppToolUnavailable, AppUnreadable, RequestFailed

HEADERS: Final = {
    "content-security-policy": POLICY,
    "permissions-policy": PERMISSIONS,
    "x-frame-options": "SAMEORIGIN",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-store",
}
"""Headers of an app's page."""
APP: Final = "/api/turns/{turn}/tool-calls/{call}/app"

T = TypeVar("T")


class AppApproval(Form):
    """A person's answer to the question that an earlier attempt of this call got; as the answer to a wait."""

    action: Literal["accept", "decline"]
    content: AnswerJson = None


class AppToolCall(Form):
    """A call of a tool. ``name``: as the server lists it. ``approval``: only after the person was asked."""

    name: str = Field(min_length=1, max_length=200)
    arguments: AnswerJson = None
    approval: AppApproval | None = None


class AppResource(Form):
    """A resource of the app's own server."""

    uri: str = Field(min_length=1, max_length=URI_CHARS)


@answer(kw_only=True)
class AppToolAnswer:
    """The answer to an app's call of a tool.

    ``result`` is the server's result. Or the call needs a person's approval: then ``question`` describes it, nothing
    ran, and the same call with an ``approval`` answers it.
    """

    result: Absent[Json] = None
    question: Absent[WaitAnswer] = None


@answer()
class AppResourceAnswer:
    """The content of a resource, as its server sent it."""

    contents: list[Json]


class AppRoutes:
    """Apps of MCP servers."""

    def __init__(self, apps: ServerApps) -> None:
        self._apps = apps

    @route("GET", APP, allow="user", errors=[AppNotAllowed, AppUnreadable], large=True)
    async def page(self, user: User, turn: TurnId, call: str) -> HTMLResponse:
        """Show the page in which an MCP server's app presents the result of a tool call.

        The page runs without an origin and without network. It speaks the protocol of MCP Apps (SEP-1865) with the
        page that frames it.
        """
        return HTMLResponse(await self._apps.page_of_call(user, turn, call), headers=HEADERS)

    @route(
        "POST",
        f"{APP}/tools",
        allow="user",
        errors=[
            AppNotAllowed,
            AppToolUnavailable,
            BudgetExceeded,
            ChangeHeld,
            ChangeOnTrial,
            ConversationArchived,
            Forbidden,
            RateLimited,
        ],
        large=True,
    )
    async def call_tool(
        self, user: User, request: Request, turn: TurnId, call: str, body: AppToolCall
    ) -> AppToolAnswer:
        """Call a tool of the app's own server for the app (its ``tools/call``).

        The domain's policy decides as for a call of the model. The call ends with this request.
        """
        decision = body.approval
        approval = (
            None if decision is None else AppCallApproval(WaitAction(decision.action), dict(decision.content or {}))
        )
        arguments = dict(body.arguments or {})
        work = self._apps.call_tool(user, turn, call, body.name, arguments, approval)
        outcome = await _while_connected(request, work)
        question = None if outcome.question is None else show_wait(outcome.question).value  # both are redacted
        return AppToolAnswer(result=outcome.result, question=question)

    @route(
        "POST",
        f"{APP}/resources",
        allow="user",
        errors=[AppNotAllowed, BudgetExceeded, ConversationArchived, RateLimited, RequestFailed],
        large=True,
    )
    async def read_resource(
        self, user: User, request: Request, turn: TurnId, call: str, body: AppResource
    ) -> AppResourceAnswer:
        """Read a resource of the app's own server for the app (its ``resources/read``)."""
        resource = await _while_connected(request, self._apps.read_resource(user, turn, call, body.uri))
        return AppResourceAnswer(resource["contents"])


async def _while_connected(request: Request, work: Awaitable[T]) -> T:
    """Return the result of work that is cancelled when the client disconnects or its key is revoked.

    Raises:
        ClientDisconnect, Unauthenticated: the work was cancelled.
        AgenticRagError: as the work.
    """
    left, refused = anyio.Event(), None
    results: list[T] = []

    async def watch(scope: anyio.CancelScope) -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass
        left.set()
        scope.cancel()

    with anyio.CancelScope() as lifetime, caller_of(request.scope).connection(lifetime):
        async with anyio.create_task_group() as group:
            group.start_soon(watch, group.cancel_scope)
            try:
                results.append(await work)
            except AgenticRagError as exc:  # leaves the task group as itself, not inside an ExceptionGroup
                refused = exc
            group.cancel_scope.cancel()
    if refused is not None:
        raise refused
    if not results:  # one of two cancelled the work
        raise ClientDisconnect if left.is_set() else Unauthenticated("The key was revoked.")
    return results[0]
