"""A domain as an A2A agent, over JSON-RPC and server-sent events, for clients of versions 1.0 and 0.3.

A task is a turn, and a context is a conversation. `dialects.a2a` builds the protocol's objects. The name of a method
decides the version: ``SendMessage`` is 1.0, ``message/send`` is 0.3. The protocol's library is not used here, because
it takes seconds to import; the tests run its client and its linter against this door.

Errors of a method are JSON-RPC errors in an answer with status 200. A request without a valid key, to an unknown
domain, or beyond a limit keeps its HTTP status.
"""

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Final

import anyio
from pydantic import ConfigDict, Field
from starlette.requests import Request
from starlette.responses import Response

from agentic_rag import __version__
from agentic_rag.access.users import User
from agentic_rag.base.budget_errors import BudgetExceeded
from agentic_rag.base.errors import (
    AgenticRagError,
    BodyTooLarge,
    ImageUnsupported,
    InvalidInput,
    NotFound,
    RateLimited,
    ServerStopping,
)
from agentic_rag.base.events import AgentEvent, WaitAction, WaitKind
from agentic_rag.base.forms import Form as InputForm
from agentic_rag.base.forms import read_form
from agentic_rag.base.ids import TurnId
from agentic_rag.base.json_form import Json
from agentic_rag.base.redaction import Redactor
from agentic_rag.conversations.client_names import MAX_NAME, ClientNames, check_name
from agentic_rag.conversations.conversations import Conversations
from agentic_rag.conversations.sent_images import MAX_IMAGES_JSON, PlacedImage, image_in
from agentic_rag.conversations.waits import Waits
from agentic_rag.directory.directory import Directory
from agentic_rag.operations.calls import Calls, StoredTurn
from agentic_rag.operations.deletion import Deletion
from agentic_rag.server.auth import Caller, own_url_of
from agentic_rag.server.dialects.a2a import INTERNAL_ERROR, A2aForm, A2aStream, A2aTask, TaskSeed, TaskState
from agentic_rag.server.dialects.base import KnownWaits
from agentic_rag.server.doors.stored_responses import turn_events
from agentic_rag.server.error_shapes import INVALID_REQUEST, RPC_REFUSED, a2a_details
from agentic_rag.server.json_response import CollectedAnswer
from agentic_rag.server.replies import json_response, redaction_for, request_id
from agentic_rag.server.routing import route
from agentic_rag.server.sse import EventStream
from agentic_rag.store.conversations import Awaits, ConversationRecord
from agentic_rag.store.turns import FINISHED, TurnRecord, TurnStatus
from agentic_rag.store.waits import WaitRecord

A2A: Final = "/a2a/{domain}"
CARD: Final = "/.well-known/agent-card.json"
CANCEL_SECONDS: Final = 10.0
"""How long a cancelling request waits for the end of its turn."""
PAGE: Final = 50
OUTPUT_MODES: Final = ("text/markdown", "text/plain")
INPUT_MODES: Final = ("text/plain", "image/png", "image/jpeg", "image/gif", "image/webp", "application/json")
_FITTING: Final = frozenset({*OUTPUT_MODES, "text/*", "*/*", "*", "text"})
_VERSIONS: Final = ("1", "0.3")

METHOD_NOT_FOUND: Final = -32601
INVALID_PARAMS: Final = -32602
TASK_NOT_FOUND: Final = -32001
TASK_NOT_CANCELABLE: Final = -32002
PUSH_NOT_SUPPORTED: Final = -32003
UNSUPPORTED_OPERATION: Final = -32004
CONTENT_TYPE_NOT_SUPPORTED: Final = -32005
EXTENDED_CARD_NOT_CONFIGURED: Final = -32007
VERSION_NOT_SUPPORTED: Final = -32009
_REASONS: Final = {
    METHOD_NOT_FOUND: "METHOD_NOT_FOUND",
    INVALID_REQUEST: "INVALID_REQUEST",
    INVALID_PARAMS: "INVALID_PARAMS",
    INTERNAL_ERROR: "INTERNAL_ERROR",
    TASK_NOT_FOUND: "TASK_NOT_FOUND",
    TASK_NOT_CANCELABLE: "TASK_NOT_CANCELABLE",
    PUSH_NOT_SUPPORTED: "PUSH_NOTIFICATION_NOT_SUPPORTED",
    UNSUPPORTED_OPERATION: "UNSUPPORTED_OPERATION",
    CONTENT_TYPE_NOT_SUPPORTED: "CONTENT_TYPE_NOT_SUPPORTED",
    EXTENDED_CARD_NOT_CONFIGURED: "EXTENDED_AGENT_CARD_NOT_CONFIGURED",
    VERSION_NOT_SUPPORTED: "VERSION_NOT_SUPPORTED",
}

_METHODS: Final = {
    "SendMessage": "send",
    "message/send": "send",
    "SendStreamingMessage": "stream",
    "message/stream": "stream",
    "GetTask": "get",
    "tasks/get": "get",
    "ListTasks": "list",
    "tasks/list": "list",
    "CancelTask": "cancel",
    "tasks/cancel": "cancel",
    "SubscribeToTask": "subscribe",
    "tasks/resubscribe": "subscribe",
}
_PUSH: Final = "pushnotificationconfig"
NO_PUSH: Final = "This agent sends no push notifications; follow the task's stream."
_EXTENDED: Final = ("GetExtendedAgentCard", "agent/getAuthenticatedExtendedCard")

_SUSPENDED: Final = (TurnStatus.RUNNING, TurnStatus.WAITING)
_STATUSES: Final[Mapping[TaskState, tuple[tuple[TurnStatus, ...], Awaits | None]]] = {
    TaskState.SUBMITTED: ((TurnStatus.QUEUED,), None),
    TaskState.WORKING: (_SUSPENDED, "nothing"),
    TaskState.INPUT_REQUIRED: (_SUSPENDED, "input"),
    TaskState.AUTH_REQUIRED: (_SUSPENDED, "address"),
    TaskState.COMPLETED: ((TurnStatus.DONE,), None),
    TaskState.CANCELED: ((TurnStatus.INTERRUPTED,), None),
    TaskState.FAILED: ((TurnStatus.FAILED,), None),
}
_STATES: Final = {
    TurnStatus.QUEUED: TaskState.SUBMITTED,
    TurnStatus.RUNNING: TaskState.WORKING,
    TurnStatus.WAITING: TaskState.INPUT_REQUIRED,
    TurnStatus.DONE: TaskState.COMPLETED,
    TurnStatus.INTERRUPTED: TaskState.CANCELED,
    TurnStatus.FAILED: TaskState.FAILED,
}
_ACTIONS: Final = ("accept", "decline", "cancel")
_YES: Final = frozenset({"yes", "y", "ok", "okay", "approve", "approved", "allow", "是", "好", "同意", "批准"})
_NO: Final = frozenset({"no", "n", "decline", "declined", "deny", "reject", "refuse", "否", "不", "拒绝", "不同意"})


class RpcError(Exception):
    """The JSON-RPC error of a method."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


class _Lenient(InputForm):
    """Parameters of a method. The protocol allows keys that a server does not know."""

    model_config = ConfigDict(extra="ignore")


class SentMessage(_Lenient):
    """A message of the client. ``task_id`` names the task whose question it answers."""

    message_id: str = Field(min_length=1, max_length=MAX_NAME)
    context_id: str | None = None
    task_id: str | None = None
    role: str
    parts: list[dict[str, Any]] = Field(min_length=1)


class SendConfiguration(_Lenient):
    """The client's wishes for the answer to a message. ``blocking`` is the name in version 0.3."""

    accepted_output_modes: list[str] | None = None
    history_length: int | None = Field(None, ge=0)
    return_immediately: bool = False
    blocking: bool = True
    push_notification_config: Any = None
    task_push_notification_config: Any = None


class SendParams(_Lenient):
    """The parameters of sending a message."""

    message: SentMessage
    configuration: SendConfiguration = Field(default_factory=SendConfiguration)


class TaskQuery(_Lenient):
    """The parameters of a method on one task."""

    id: str = Field(min_length=1, max_length=MAX_NAME)
    history_length: int | None = Field(None, ge=0)


class ListParams(_Lenient):
    """The parameters of listing tasks. Empty texts count as absent, as in the protocol's binary form."""

    context_id: str = ""
    status: str = ""
    page_size: int = Field(PAGE, ge=1, le=100)
    page_token: str = Field("", max_length=MAX_NAME)
    history_length: int | None = Field(None, ge=0)
    status_timestamp_after: str | None = None
    include_artifacts: bool = False


@dataclass(frozen=True, slots=True)
class MessageContent:
    """The parts of a message by kind."""

    text: str = ""
    images: Sequence[PlacedImage] = ()
    data: Sequence[Json] = ()


@dataclass(frozen=True, slots=True)
class Visit:
    """One request: its sender, its domain, the version's form and the client's id of it."""

    request: Request
    user: User
    caller: Caller
    domain: str
    form: A2aForm
    request_id: str | int | None = None

    @property
    def base(self) -> str:
        """The address of the server."""
        return own_url_of(self.request.scope)

    def result(self, value: Json) -> Json:
        return {"jsonrpc": "2.0", "id": self.request_id, "result": value}


class AgentRoutes:
    """Domains as A2A agents."""

    def __init__(
        self,
        directory: Directory,
        conversations: Conversations,
        names: ClientNames,
        waits: Waits,
        deletion: Deletion,
        calls: Calls,
        redactor: Redactor,
    ) -> None:
        self._directory = directory
        self._conversations = conversations
        self._names = names
        self._waits = waits
        self._deletion = deletion
        self._calls = calls
        self._redactor = redactor

    @route("GET", f"{A2A}{CARD}", allow="member")
    async def card(self, request: Request, domain: str) -> Response:
        """Show the agent card of a domain, with the fields of versions 1.0 and 0.3."""
        return json_response(await self._card(request, domain))

    @route("GET", CARD, allow="user", errors=[NotFound])
    async def default_card(self, request: Request, user: User) -> Response:
        """Show the agent card of the default domain."""
        domain = self._conversations.default_domain
        if not user.sees(domain):
            raise NotFound("page", CARD)
        return json_response(await self._card(request, domain))

    async def _card(self, request: Request, domain: str) -> Json:
        record = await self._directory.get(domain)
        settings = await self._directory.settings(domain)
        about = record.description.strip() or f"Answers questions from the documents of {record.name}, with citations."
        card = make_card(own_url_of(request.scope), domain, record.name, about, settings.starters or ())
        return dict(self._redactor.of(domain).json(card))

    @route(
        "POST",
        A2A,
        allow="member",
        streams=True,
        max_bytes=MAX_IMAGES_JSON,
        errors=[BodyTooLarge, RateLimited, BudgetExceeded, ServerStopping],
    )
    async def call(
        self, request: Request, user: User, caller: Caller, domain: str, body: Json
    ) -> EventStream | CollectedAnswer | Response:
        """Handle a JSON-RPC request of an A2A client: messages, and tasks with their streams."""
        received: object = body  # any JSON value, since the body has no form; `_read_request` checks it
        ident, legacy = _identify(received)
        visit = Visit(request, user, caller, domain, A2aForm(legacy), ident)
        method = ""
        try:
            method, params = _read_request(received, request.headers.get("a2a-version", "").strip())
            await self._directory.get(domain)
            match method:
                case "send":
                    return await self._send(visit, read_form(SendParams, params))
                case "stream":
                    return await self._stream(visit, read_form(SendParams, params))
                case "get":
                    return self._answer(visit, await self._get(visit, read_form(TaskQuery, params)))
                case "list":
                    return self._answer(visit, await self._list(visit, read_form(ListParams, params)))
                case "cancel":
                    return self._answer(visit, await self._cancel(visit, read_form(TaskQuery, params)))
                case _:
                    return await self._subscribe(visit, read_form(TaskQuery, params))
        except RpcError as exc:
            return self._refuse(visit, exc.code, str(exc), _REASONS[exc.code], {})
        except AgenticRagError as exc:
            if exc.status in (401, 429, 503):
                raise  # the status and its headers tell the client when to try again
            path, reference = request.url.path, request_id(request.scope)
            await caller.note_refusal(exc, f"A2A {method}", path, reference)
            code = _code_of(exc)
            message = str(exc) if user.operator else exc.plain
            facts: Json = {"code": exc.code, "details": exc.details or None}
            return self._refuse(visit, code, message, _REASONS.get(code, exc.code), facts)

    def _refuse(self, visit: Visit, code: int, message: str, reason: str, facts: Json) -> Response:
        details = a2a_details(reason, {**facts, "requestId": request_id(visit.request.scope)})
        error: Json = {"code": code, "message": message, "data": details}
        redact = redaction_for(self._redactor, visit.user, visit.domain)
        return json_response(redact({"jsonrpc": "2.0", "id": visit.request_id, "error": error}))

    def _answer(self, visit: Visit, result: Json) -> Response:
        redact = redaction_for(self._redactor, visit.user, visit.domain)
        return json_response(redact(visit.result(result)))

    # Messages

    async def _send(self, visit: Visit, params: SendParams) -> CollectedAnswer | Response:
        stored, waits = await self._accept(visit, params)
        configuration = params.configuration
        if configuration.return_immediately or not configuration.blocking:
            task = await self._task_of(visit, stored, configuration.history_length)
            return self._answer(visit, visit.form.wrap_task(task))
        collected = _Collected(visit, A2aTask(visit.form, self._seed(visit, stored), waits.ended), waits, configuration)
        return CollectedAnswer(_until_done(self._conversations.events(stored.turn.id), collected), collected)

    async def _stream(self, visit: Visit, params: SendParams) -> EventStream:
        stored, waits = await self._accept(visit, params)
        task = A2aTask(visit.form, self._seed(visit, stored), waits.ended)
        encoder = A2aStream(visit.request_id, task, waits=waits, history=params.configuration.history_length)
        return EventStream(self._conversations.events(stored.turn.id), encoder)

    async def _accept(self, visit: Visit, params: SendParams) -> tuple[StoredTurn, KnownWaits]:
        """Start a task, find the one that this message has started, or answer the waits of a task."""
        visit.caller.take_message()
        message, configuration = params.message, params.configuration
        if configuration.push_notification_config or configuration.task_push_notification_config:
            raise RpcError(PUSH_NOT_SUPPORTED, NO_PUSH)
        modes = configuration.accepted_output_modes
        if modes and not any(mode.partition(";")[0].strip().lower() in _FITTING for mode in modes):
            problem = f"This agent answers in {' or '.join(OUTPUT_MODES)}, not in {', '.join(modes)[:200]}."
            raise RpcError(CONTENT_TYPE_NOT_SUPPORTED, problem)
        if message.role not in ("user", "ROLE_USER"):
            raise InvalidInput("message.role", 'only messages of the client are accepted: "user", or "ROLE_USER".')
        content = _read_parts(message.parts)
        if message.task_id:
            return await self._go_on(visit, message, content)
        if content.data:
            problem = "A question is text, with images; data parts only answer a task that waits for input."
            raise RpcError(CONTENT_TYPE_NOT_SUPPORTED, problem)
        names, user, domain = self._names, visit.user, visit.domain
        if not message.context_id:  # only the message's id can tell a repeated message from a new task
            earlier = await self._earlier(visit, message.message_id, content.text)
            if earlier is not None:
                return earlier, KnownWaits(await self._waits.ended_of(earlier.turn.id))
            return await self._begin(visit, message, content), KnownWaits()
        else:
            conversation = await names.find_or_begin(user, domain, message.context_id)
        if conversation.transient:  # it belongs to one call and is deleted with it
            raise NotFound("conversation", message.context_id or "")
        accepted = await self._conversations.send(
            user, conversation.id, content.text, client_message_id=message.message_id, images=content.images
        )
        ended = await self._waits.ended_of(accepted.turn_id) if accepted.duplicate else frozenset[str]()
        turn = await self._conversations.turn(user, accepted.turn_id)
        return StoredTurn(conversation, turn, None), KnownWaits(ended)

    async def _begin(self, visit: Visit, message: SentMessage, content: MessageContent) -> StoredTurn:
        """Start a task in a new conversation, which is deleted again if the message is refused."""
        user, conversation = visit.user, await self._conversations.create(visit.user, visit.domain)
        try:
            accepted = await self._conversations.send(
                user, conversation.id, content.text, client_message_id=message.message_id, images=content.images
            )
        except BaseException:
            await self._deletion.end_call(conversation)
            raise
        return StoredTurn(conversation, await self._conversations.turn(user, accepted.turn_id), None)

    async def _earlier(self, visit: Visit, message_id: str, text: str) -> StoredTurn | None:
        """Return the task that a repeated message without a context has started, or None."""
        check_name("message.messageId", message_id)
        try:
            turn = await self._names.turn(visit.user, visit.domain, message_id)
        except NotFound:
            return None
        if turn.content != text:
            return None  # another client of this user chose the same id
        await self._conversations.check_replay(visit.user, turn)
        conversation = await self._conversations.get(visit.user, turn.conversation_id)
        return None if conversation.transient else StoredTurn(conversation, turn, None)

    async def _go_on(
        self, visit: Visit, message: SentMessage, content: MessageContent
    ) -> tuple[StoredTurn, KnownWaits]:
        """Answer the waits of a task with a message."""
        stored = await self._find(visit, message.task_id or "")
        if message.context_id and message.context_id not in (stored.conversation.id, stored.conversation.client_name):
            raise InvalidInput("message.contextId", f"the task belongs to the context {_context_of(stored)!r}.")
        if stored.turn.status in FINISHED:
            problem = f"The task {stored.turn.id} has ended; send the message without its taskId, in the same context."
            raise RpcError(UNSUPPORTED_OPERATION, problem)
        waits = await self._waits.list_open(stored.turn.id)
        if not waits:
            problem = f"The task {stored.turn.id} is working and waits for no input; cancel it, or wait for its end."
            raise RpcError(UNSUPPORTED_OPERATION, problem)
        answers = _read_answers(content, waits)
        for wait, action, answer in answers:
            await self._waits.settle(visit.user, wait, action, answer)
        ended = await self._waits.ended_of(stored.turn.id)
        return stored, KnownWaits(ended, frozenset(wait.id for wait, _, _ in answers))

    # Tasks

    async def _find(self, visit: Visit, task_id: str) -> StoredTurn:
        stored = await self._calls.find_stored(visit.user, TurnId(task_id))
        if stored.conversation.domain_id != visit.domain:
            raise NotFound("turn", task_id)
        return stored

    def _seed(self, visit: Visit, stored: StoredTurn) -> TaskSeed:
        turn = stored.turn
        return TaskSeed(
            turn.id,
            _context_of(stored),
            turn.content,
            turn.client_message_id or turn.user_message_id,
            turn.ended_at or turn.started_at,
            f"{visit.base}/api/domains/{visit.domain}/chunks",
            _STATES[turn.status],
        )

    async def _replay(self, visit: Visit, stored: StoredTurn) -> tuple[A2aTask, int]:
        """Return a task in its current state, and the number of its last event."""
        ended = await self._waits.ended_of(stored.turn.id)
        task, last = A2aTask(visit.form, self._seed(visit, stored), ended), 0
        for event in await turn_events(self._conversations, visit.user, stored):
            task.take(event, event.fields())
            last = event.seq
        return task, last

    async def _task_of(
        self, visit: Visit, stored: StoredTurn, history: int | None = None, *, artifacts: bool = True
    ) -> Json:
        if not artifacts and stored.turn.status in FINISHED:  # without its log, because a page has many tasks
            return A2aTask(visit.form, self._seed(visit, stored)).task(history, artifacts=False)
        task, _ = await self._replay(visit, stored)
        return task.task(history, artifacts=artifacts)

    async def _get(self, visit: Visit, params: TaskQuery) -> Json:
        stored = await self._find(visit, params.id)
        return visit.form.task(await self._task_of(visit, stored, params.history_length))

    async def _list(self, visit: Visit, params: ListParams) -> Json:
        """Return a page of the user's tasks in the domain, newest first, by default without artifacts."""
        conversation: ConversationRecord | None = None
        if params.context_id:
            conversation = await self._names.find(visit.user, visit.domain, params.context_id)
        statuses, awaits = _statuses_of(params.status)
        turns, total = list[TurnRecord](), 0
        if conversation is not None or not params.context_id:
            turns, total = await self._conversations.turns_page(
                visit.user,
                visit.domain,
                conversation_id=None if conversation is None else conversation.id,
                statuses=statuses,
                awaits=awaits,
                since=params.status_timestamp_after,
                before=params.page_token or None,
                limit=params.page_size + 1,  # one more than shown tells whether another page exists
            )
        page, tasks = turns[: params.page_size], []
        for turn in page:
            owner = conversation or await self._conversations.get(visit.user, turn.conversation_id)
            stored = StoredTurn(owner, turn, None)
            task = await self._task_of(visit, stored, params.history_length, artifacts=params.include_artifacts)
            tasks.append(visit.form.task(task))
        more = len(turns) > params.page_size
        return {
            "tasks": tasks,
            "nextPageToken": page[-1].id if more else "",
            "pageSize": params.page_size,
            "totalSize": total,
        }

    async def _cancel(self, visit: Visit, params: TaskQuery) -> Json:
        stored = await self._find(visit, params.id)
        if stored.turn.status in FINISHED:
            raise RpcError(TASK_NOT_CANCELABLE, f"The task {stored.turn.id} has already ended.")
        await self._conversations.interrupt(visit.user, stored.conversation.id, turn_id=stored.turn.id, queued=True)
        # An interrupt is a request: the turn has ended once its log says so.
        with anyio.move_on_after(CANCEL_SECONDS):
            async with aclosing(self._conversations.events(stored.turn.id)) as events:
                async for event in events:
                    if event.terminal:
                        break
        stored = await self._find(visit, params.id)
        if stored.turn.status is TurnStatus.DONE:
            raise RpcError(TASK_NOT_CANCELABLE, f"The task {stored.turn.id} ended before it could be canceled.")
        return visit.form.task(await self._task_of(visit, stored, params.history_length))

    async def _subscribe(self, visit: Visit, params: TaskQuery) -> EventStream:
        """Follow a task from its current state to its end, also across waits that others answer."""
        stored = await self._find(visit, params.id)
        if stored.turn.status in FINISHED:
            raise RpcError(UNSUPPORTED_OPERATION, f"The task {stored.turn.id} has ended; get it instead.")
        # The stream begins with the task after event ``last``, so that the client gets no event twice.
        _, last = await self._replay(visit, stored)
        task = A2aTask(visit.form, self._seed(visit, stored), await self._waits.ended_of(stored.turn.id))
        encoder = A2aStream(visit.request_id, task, after=last, history=params.history_length, to_end=True)
        return EventStream(self._conversations.events(stored.turn.id), encoder)


class _Collected:
    """Collects a task until it ends or waits for input."""

    def __init__(self, visit: Visit, task: A2aTask, waits: KnownWaits, configuration: SendConfiguration) -> None:
        self._visit = visit
        self._task = task
        self._answered = set(waits.answered)
        self._history = configuration.history_length

    @property
    def done(self) -> bool:
        # The log is read from its start, where the waits that this message answered are still open.
        return self._task.over or (self._task.paused and not self._answered)

    def collect(self, event: AgentEvent) -> None:
        fields = event.fields()
        self._task.take(event, fields)
        if event.type == "input_answered":
            self._answered.discard(fields["waitId"])

    def result(self) -> Json:
        if not self.done:
            raise ServerStopping
        return self._visit.result(self._visit.form.wrap_task(self._task.task(self._history)))


async def _until_done(events: AsyncGenerator[AgentEvent], collected: _Collected) -> AsyncGenerator[AgentEvent]:
    async with aclosing(events):
        async for event in events:
            yield event
            if collected.done:
                return


def _context_of(stored: StoredTurn) -> str:
    return stored.conversation.client_name or stored.conversation.id


def _identify(body: object) -> tuple[str | int | None, bool]:
    """Return the client's id of a request, if it is valid, and whether the request is of version 0.3."""
    if not isinstance(body, dict):
        return None, False
    ident, method = body.get("id"), body.get("method")
    is_valid = isinstance(ident, str | int) and not isinstance(ident, bool)  # a bool is an int in Python
    return ident if is_valid else None, isinstance(method, str) and "/" in method


def _read_request(body: object, version: str) -> tuple[str, Json]:
    """Return the method and its parameters. ``version`` is the header ``A2A-Version``.

    Raises:
        RpcError: the request is not JSON-RPC, of an unsupported version, or for an unknown method.
    """
    if not isinstance(body, dict):
        raise RpcError(INVALID_REQUEST, "One JSON-RPC request is expected; batches are not supported.")
    method, params = body.get("method"), body.get("params")
    if body.get("jsonrpc") != "2.0":
        raise RpcError(INVALID_REQUEST, 'jsonrpc: "2.0" is expected.')
    if body.get("id") is not None and _identify(body)[0] is None:
        raise RpcError(INVALID_REQUEST, "id: a text, an integer or null is expected.")
    if not isinstance(method, str):
        raise RpcError(INVALID_REQUEST, "method: a text is expected.")
    if version and not any(version == supported or version.startswith(f"{supported}.") for supported in _VERSIONS):
        problem = f"Version {version[:50]!r} of A2A is not supported; supported are 1.0 and 0.3."
        raise RpcError(VERSION_NOT_SUPPORTED, problem)
    if method in _EXTENDED:
        problem = "There is no extended card: the agent's only card already depends on the key."
        raise RpcError(EXTENDED_CARD_NOT_CONFIGURED, problem)
    if _PUSH in method.lower():
        raise RpcError(PUSH_NOT_SUPPORTED, NO_PUSH)
    if method not in _METHODS:
        raise RpcError(METHOD_NOT_FOUND, f"There is no method {method[:100]!r}.")
    if params is not None and not isinstance(params, dict):
        raise RpcError(INVALID_PARAMS, "params: an object is expected.")
    return _METHODS[method], params or {}


def _code_of(error: AgenticRagError) -> int:
    """Return the JSON-RPC code of an error."""
    if error.code == "TURN_NOT_FOUND":
        return TASK_NOT_FOUND
    if isinstance(error, ImageUnsupported):
        return CONTENT_TYPE_NOT_SUPPORTED
    return INVALID_PARAMS if error.status in (400, 404, 413, 422) else RPC_REFUSED


def _read_parts(parts: Sequence[Json]) -> MessageContent:
    """Return the parts of a message of either version.

    Raises:
        InvalidInput: a part is malformed, or its file has to be fetched.
        ImageUnsupported: a file is not an image.
    """
    texts, images, data = list[str](), list[PlacedImage](), list[Json]()
    for at, part in enumerate(parts):
        place, file = f"message.parts.{at}", part.get("file")
        raw, url, media_type = part.get("raw"), part.get("url"), part.get("mediaType")
        if isinstance(file, dict):
            raw, url, media_type = file.get("bytes"), file.get("uri"), file.get("mimeType")
        if isinstance(part.get("text"), str):
            texts.append(part["text"])
        elif isinstance(part.get("data"), dict):
            data.append(part["data"])
        elif isinstance(raw, str):
            images.append(image_in(place, raw, media_type if isinstance(media_type, str) else None))
        elif url is not None:
            raise InvalidInput(place, "nothing is fetched from addresses: send the image itself, as base64.")
        else:
            raise InvalidInput(place, "a text, an object as data, or an image as base64 is expected.")
    return MessageContent("\n".join(texts), images, data)


def _read_answers(content: MessageContent, waits: Sequence[WaitRecord]) -> list[tuple[WaitRecord, WaitAction, Json]]:
    """Return the answers to open waits that a message holds.

    A data part is ``{"action", "content"?, "waitId"?}``, as in the REST API. Without data parts, the text answers the
    only open wait: yes or no for an approval, the answer itself for a question.

    Raises:
        InvalidInput: the message is no answer to these waits.
    """
    if content.images:
        raise InvalidInput("message.parts", "an answer to a task that waits for input has no images.")
    by_id = {str(wait.id): wait for wait in waits}
    if not content.data:
        if len(waits) > 1:
            problem = (
                f"{len(waits)} answers are needed: send a data part with its waitId for each of {', '.join(by_id)}."
            )
            raise InvalidInput("message.parts", problem)
        return [(waits[0], *_read_text_answer(waits[0], content.text.strip()))]
    answers = []
    for part in content.data:
        named = part.get("waitId", waits[0].id if len(waits) == 1 else None)
        wait = by_id.get(named) if isinstance(named, str) else None
        if wait is None:
            raise InvalidInput("message.parts.data.waitId", f"one of {', '.join(by_id)} is expected.")
        action, answer = part.get("action"), part.get("content") or {}
        if action not in _ACTIONS:
            raise InvalidInput("message.parts.data.action", f"one of {', '.join(_ACTIONS)} is expected.")
        if not isinstance(answer, dict):
            raise InvalidInput("message.parts.data.content", "an object is expected.")
        answers.append((wait, WaitAction(action), answer))
    return answers


def _read_text_answer(wait: WaitRecord, text: str) -> tuple[WaitAction, Json]:
    """Return the answer to a wait that a text gives.

    Raises:
        InvalidInput: a text cannot answer this wait.
    """
    word = text.rstrip(".!。！").casefold()
    if wait.kind is WaitKind.QUESTION:
        options = wait.request.get("options") or ()
        chosen = [
            option["value"] for option in options if word in (option["value"].casefold(), option["title"].casefold())
        ]
        return WaitAction.ACCEPT, {"choices": chosen[:1]} if chosen else {"text": text}
    if wait.kind is WaitKind.APPROVAL and word in _YES:
        return WaitAction.ACCEPT, {}
    if wait.kind is WaitKind.APPROVAL and word in _NO:
        return WaitAction.DECLINE, {}
    expected = 'the text "yes" or "no", or ' if wait.kind is WaitKind.APPROVAL else ""
    problem = f'{expected}a data part {{"action": "accept" | "decline" | "cancel", "content"}} is expected'
    raise InvalidInput("message.parts", f"{problem} for the {wait.kind} that the task waits for, not {text[:200]!r}.")


def _statuses_of(status: str) -> tuple[tuple[TurnStatus, ...], Awaits | None]:
    """Return the states of turns and their open waits for a task state of either version. Empty: all.

    Raises:
        InvalidInput: there is no such state.
    """
    word = status.removeprefix("TASK_STATE_").lower().replace("_", "-")
    if word in ("", "unspecified"):
        return (), None
    try:
        return _STATUSES[TaskState(word)]
    except (KeyError, ValueError):
        names = ", ".join(f"TASK_STATE_{state.name}" for state in _STATUSES)
        raise InvalidInput("status", f"one of {names} is expected, not {status[:100]!r}.") from None


def make_card(base: str, domain: str, name: str, description: str, examples: Sequence[str]) -> Json:
    """Return an agent card with the fields of both versions. ``base`` is the address of the server."""
    url = f"{base}{A2A.format(domain=domain)}"
    interfaces = [
        {"url": url, "protocolBinding": "JSONRPC", "protocolVersion": version, "transport": "JSONRPC"}
        for version in ("1.0", "0.3")
    ]
    skill: Json = {
        "id": "ask",
        "name": f"Ask {name}",
        "description": "Searches the documents of this knowledge base and answers with checked citations.",
        "tags": ["knowledge-base", "documents", "citations", "question-answering"],
        "examples": list(examples) or ["What do the documents say about this topic?"],
        "inputModes": list(INPUT_MODES),
        "outputModes": list(OUTPUT_MODES),
    }
    bearer = {"scheme": "bearer", "description": "A key of this server, or a token of its OpenID provider."}
    return {
        "name": name,
        "description": description,
        "version": __version__,
        "url": url,
        "protocolVersion": "0.3.0",
        "preferredTransport": "JSONRPC",
        "supportedInterfaces": interfaces,
        "capabilities": {"streaming": True, "pushNotifications": False, "extendedAgentCard": False},
        "defaultInputModes": list(INPUT_MODES),
        "defaultOutputModes": list(OUTPUT_MODES),
        "skills": [skill],
        "securitySchemes": {"bearer": {"type": "http", **bearer, "httpAuthSecurityScheme": bearer}},
        "security": [{"bearer": []}],
        "securityRequirements": [{"schemes": {"bearer": {"list": []}}}],
    }
