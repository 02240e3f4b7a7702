"""REST of conversations, messages and turns; a turn's events as a stream.

Owns the request models and the choice between a stream and a plain answer. Knows no rule.
"""

from typing import Any, Literal

from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from agentic_rag.business import Business
from agentic_rag.errors import InvalidInput
from agentic_rag.events import ToolStatus
from agentic_rag.forms import Form
from agentic_rag.server import views
from agentic_rag.server.auth import user_of
from agentic_rag.server.bodies import json_form, query_form
from agentic_rag.server.dialects import DEFAULT_DIALECT, get_dialect
from agentic_rag.server.replies import nothing, redacted, reply
from agentic_rag.server.sse import EventStream
from agentic_rag.store.conversations import ConversationStatus, SortBy

_SORT_KEYS: dict[str, SortBy] = {
    "startedAt": "started_at",
    "updatedAt": "updated_at",
    "lastMessageAt": "last_message_at",
    "title": "title",
    "messageCount": "message_count",
}


class NewConversation(Form):
    """``POST /api/conversations``"""

    domain_id: str
    title: str | None = None
    context_document_ids: list[str] = Field(default_factory=list)


class ConversationQuery(Form):
    """``GET /api/conversations``"""

    page: int = Field(1, ge=1, le=1_000_000)
    page_size: int = Field(20, ge=1, le=100)
    sort_by: Literal["startedAt", "updatedAt", "lastMessageAt", "title", "messageCount"] = "updatedAt"
    sort_order: Literal["asc", "desc"] = "desc"
    domain_id: str | None = None
    status: ConversationStatus | None = None
    q: str | None = Field(None, max_length=200)


class ConversationChange(Form):
    """``PATCH /api/conversations/{id}``"""

    title: str | None = None
    status: ConversationStatus | None = None
    metadata: dict[str, Any] | None = None


class MessageQuery(Form):
    """``GET /api/conversations/{id}/messages``"""

    limit: int = Field(50, ge=1, le=200)
    before: str | None = None


class NewMessage(Form):
    """``POST /api/conversations/{id}/messages``"""

    cleaned = frozenset({"content"})
    content: str
    client_message_id: str | None = Field(None, min_length=1, max_length=200)
    on_busy: Literal["reject", "queue"] = "reject"


class Interruption(Form):
    """``POST /api/conversations/{id}/interrupt``"""

    turn_id: str | None = None
    queued: bool = False


class ToolCallQuery(Form):
    """``GET /api/conversations/{id}/tool-calls``: the last ones in order."""

    tool_name: str | None = Field(None, max_length=200)
    status: ToolStatus | None = None
    limit: int = Field(100, ge=1, le=500)


def conversation_routes(business: Business) -> list[Route]:
    """Return the routes of conversations and their messages."""
    ends = _Endpoints(business)
    base = "/api/conversations"
    return [
        Route(base, ends.create, methods=["POST"]),
        Route(base, ends.list_page, methods=["GET"]),
        Route(base + "/{conversation}", ends.get, methods=["GET"]),
        Route(base + "/{conversation}", ends.change, methods=["PATCH"]),
        Route(base + "/{conversation}", ends.delete, methods=["DELETE"]),
        Route(base + "/{conversation}/messages", ends.messages, methods=["GET"]),
        Route(base + "/{conversation}/messages", ends.send, methods=["POST"]),
        Route(base + "/{conversation}/interrupt", ends.interrupt, methods=["POST"]),
        Route(base + "/{conversation}/compact", ends.compact, methods=["POST"]),
        Route(base + "/{conversation}/archives", ends.archives, methods=["GET"]),
        Route(base + "/{conversation}/archives/{archive}/messages", ends.archived, methods=["GET"]),
        Route(base + "/{conversation}/tool-calls", ends.tool_calls, methods=["GET"]),
    ]


class _Endpoints:
    def __init__(self, business: Business) -> None:
        self._conversations = business.conversations
        self._deletion = business.deletion

    async def create(self, request: Request) -> Response:
        form = await json_form(request, NewConversation)
        made = await self._conversations.create(
            user_of(request.scope), form.domain_id, form.title, form.context_document_ids
        )
        return redacted(request, made.domain_id, views.conversation(made), 201)

    async def list_page(self, request: Request) -> Response:
        form = query_form(request, ConversationQuery)
        page = await self._conversations.list_page(
            user_of(request.scope),
            page=form.page,
            page_size=form.page_size,
            sort_by=_SORT_KEYS[form.sort_by],
            sort_order=form.sort_order,
            domain_id=form.domain_id,
            status=form.status,
            q=form.q,
        )
        redact = request.app.state.redact
        items = [redact.of(item.domain_id).json(views.conversation(item)) for item in page.items]
        return reply({"items": items, "total": page.total, "page": page.page, "pageSize": page.page_size})

    async def get(self, request: Request) -> Response:
        found = await self._conversations.get(user_of(request.scope), _id(request))
        return redacted(request, found.domain_id, views.conversation(found))

    async def change(self, request: Request) -> Response:
        form = await json_form(request, ConversationChange)
        changed = await self._conversations.change(
            user_of(request.scope), _id(request), title=form.title, status=form.status, metadata=form.metadata
        )
        return redacted(request, changed.domain_id, views.conversation(changed))

    async def delete(self, request: Request) -> Response:
        await self._deletion.conversation(user_of(request.scope), _id(request))
        return nothing()

    async def messages(self, request: Request) -> Response:
        form = query_form(request, MessageQuery)
        found = await self._conversations.messages(user_of(request.scope), _id(request), form.limit, form.before)
        return await self._redacted(request, {"items": [views.message(message) for message in found]})

    async def send(self, request: Request) -> Response | EventStream:
        dialect = get_dialect(request.query_params.get("dialect", DEFAULT_DIALECT))
        form = await json_form(request, NewMessage)
        user = user_of(request.scope)
        accepted = await self._conversations.send(
            user, _id(request), form.content, client_message_id=form.client_message_id, on_busy=form.on_busy
        )
        if not _wants_json(request):
            return EventStream(self._conversations.events(accepted.turn_id), dialect)
        shown = views.turn(await self._conversations.turn(user, accepted.turn_id))
        ids = {
            "userMessageId": accepted.user_message_id,
            "messageId": accepted.message_id,
            "clientMessageId": accepted.client_message_id,
        }
        return await self._redacted(request, {**shown, **ids}, 202)

    async def interrupt(self, request: Request) -> Response:
        form = await json_form(request, Interruption)
        done = await self._conversations.interrupt(
            user_of(request.scope), _id(request), turn_id=form.turn_id, queued=form.queued
        )
        return reply({"interrupted": done})

    async def compact(self, request: Request) -> Response:
        made = await self._conversations.compact(user_of(request.scope), _id(request))
        return await self._redacted(request, views.archive(made))

    async def archives(self, request: Request) -> Response:
        found = await self._conversations.archives(user_of(request.scope), _id(request))
        return await self._redacted(request, {"items": [views.archive(each) for each in found]})

    async def archived(self, request: Request) -> Response:
        form = query_form(request, MessageQuery)
        archive = str(request.path_params["archive"])
        found = await self._conversations.archived_messages(
            user_of(request.scope), _id(request), archive, form.limit, form.before
        )
        return await self._redacted(request, {"items": [views.message(message) for message in found]})

    async def tool_calls(self, request: Request) -> Response:
        form = query_form(request, ToolCallQuery)
        found = await self._conversations.tool_calls(
            user_of(request.scope), _id(request), limit=form.limit, tool_name=form.tool_name, status=form.status
        )
        return await self._redacted(request, {"items": [views.tool_call(each) for each in found]})

    async def _redacted(self, request: Request, value: Any, status: int = 200) -> Response:
        """Return an answer about what was said in the conversation that the path names."""
        found = await self._conversations.get(user_of(request.scope), _id(request))
        return redacted(request, found.domain_id, value, status)


def turn_routes(business: Business) -> list[Route]:
    """Return the routes of turns."""
    conversations = business.conversations

    async def get(request: Request) -> Response:
        user = user_of(request.scope)
        found = await conversations.turn(user, request.path_params["turn"])
        conversation = await conversations.get(user, found.conversation_id)
        return redacted(request, conversation.domain_id, views.turn(found))

    async def events(request: Request) -> EventStream:
        turn_id = request.path_params["turn"]
        dialect = get_dialect(request.query_params.get("dialect", DEFAULT_DIALECT))
        after = _after(request, turn_id)
        await conversations.turn(user_of(request.scope), turn_id)
        return EventStream(conversations.events(turn_id, after), dialect)

    return [
        Route("/api/turns/{turn}", get, methods=["GET"]),
        Route("/api/turns/{turn}/events", events, methods=["GET"]),
    ]


def _id(request: Request) -> str:
    return str(request.path_params["conversation"])


def _wants_json(request: Request) -> bool:
    accept = request.headers.get("accept", "")
    return "application/json" in accept and "text/event-stream" not in accept


def _after(request: Request, turn_id: str) -> int:
    """Return the number to go on after: ``Last-Event-ID`` (what a reconnecting client got) before ``?after=``."""
    last = request.headers.get("last-event-id")
    name, given = ("after", request.query_params.get("after", "0")) if last is None else ("Last-Event-ID", last)
    if last is not None:
        turn, _, given = last.rpartition(":")
        if turn != turn_id:
            raise InvalidInput(name, f"expected {turn_id}:<number>.")
    if not given.isdecimal() or len(given) > 15:
        raise InvalidInput(name, "the number of an event is expected.")
    return int(given)
