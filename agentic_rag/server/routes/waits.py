"""REST routes for waits: requests for input that turns make, and the answers.

This module defines the forms and answers. ``conversations.waits`` decides who may see and answer a wait.
"""

from collections.abc import Sequence
from typing import Literal

from pydantic import Field

from agentic_rag.access.users import User
from agentic_rag.base.errors import ChangeHeld, ChangeOnTrial, Forbidden, WaitAnswered
from agentic_rag.base.events import Answerer, WaitAction, WaitKind
from agentic_rag.base.forms import AnswerJson, Form
from agentic_rag.base.ids import ConversationId, WaitId
from agentic_rag.base.json_form import Absent, Json
from agentic_rag.conversations.waits import Waits
from agentic_rag.server.replies import CountedPage, Redacted, answer, answer_from
from agentic_rag.server.routing import route
from agentic_rag.store.waits import WaitRecord, WaitState

WAITS = "/api/waits"


class WaitQuery(Form):
    """Filters for waits. Without ``state`` all stored waits are listed."""

    state: WaitState | None = None
    conversation_id: ConversationId | None = None
    page: int = Field(1, ge=1, le=1_000_000)
    page_size: int = Field(50, ge=1, le=100)


class WaitAnswerForm(Form):
    """An answer to a wait.

    ``content`` of an accepted approval: ``{"arguments"?, "scope"?: "once" | "conversation" | "domain"}``. Of a
    form: its fields. Of a question: ``{"choices"?, "text"?}``. Of any other action than ``accept``: ``{"reason"?}``.
    """

    action: Literal["accept", "decline", "cancel"]
    content: AnswerJson = None


@answer(kw_only=True)
class WaitAnswer:
    """A turn's request for input from a person.

    ``answerer`` may answer until ``expiresAt``. See the event ``input_required``.
    """

    id: str
    kind: WaitKind
    state: WaitState
    answerer: Answerer
    conversation_id: ConversationId
    turn_id: str
    domain_id: str
    tool_call_id: str
    agent: str
    title: str
    message: str
    opened_at: str
    expires_at: str
    answered_by: str
    answered_at: str | None
    server: Absent[str] = None
    tool_name: Absent[str] = None
    arguments: Absent[Json] = None
    schema: Absent[Json] = None
    url: Absent[str] = None
    options: Absent[Sequence[Json]] = None
    multiple: Absent[bool] = None
    warning: Absent[str] = None
    sources: Absent[Sequence[Json]] = None


_SHOWN = {
    "server": "server",
    "tool_name": "toolName",
    "arguments": "arguments",
    "schema": "schema",
    "url": "url",
    "options": "options",
    "multiple": "multiple",
    "warning": "warning",
    "sources": "sources",
}


def show_wait(record: WaitRecord) -> Redacted[WaitAnswer]:
    """Return a wait as an answer, without the secrets of its domain."""
    request = record.request
    others = {name: request.get(key) for name, key in _SHOWN.items()}
    shown = answer_from(
        WaitAnswer, record, turn_id=record.root_turn_id, title=request["title"], message=request["message"], **others
    )
    return Redacted(record.domain_id, shown)


class WaitRoutes:
    """Requests for input that turns make."""

    def __init__(self, waits: Waits) -> None:
        self._waits = waits

    @route("GET", WAITS, allow="user")
    async def list(self, user: User, query: WaitQuery) -> CountedPage[Redacted[WaitAnswer]]:
        """List the waits of the caller's turns, and those that the caller may answer as an admin; newest first."""
        page = await self._waits.list_page(
            user, query.state, query.conversation_id, page=query.page, page_size=query.page_size
        )
        more = query.page * query.page_size < page.total
        return CountedPage([show_wait(wait) for wait in page.items], more, page.total, query.page, query.page_size)

    @route("GET", f"{WAITS}/{{wait}}", allow="user")
    async def show(self, user: User, wait: WaitId) -> Redacted[WaitAnswer]:
        """Show one wait."""
        return show_wait(await self._waits.get(user, wait))

    @route("POST", f"{WAITS}/{{wait}}", allow="user", errors=(WaitAnswered, Forbidden, ChangeHeld, ChangeOnTrial))
    async def answer(self, user: User, wait: WaitId, body: WaitAnswerForm) -> Redacted[WaitAnswer]:
        """Answer a wait. The first answer counts, and the turn continues."""
        return show_wait(await self._waits.answer(user, wait, WaitAction(body.action), dict(body.content or {})))
