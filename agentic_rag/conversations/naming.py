"""Better titles: after a conversation's first turn, ask a model once for a title.

Naming neither delays nor fails a turn: it starts after the turn has ended. If the model fails, is slow, refuses or
returns no usable title, the conversation keeps its first message as the title. Pending conversations are held in memory
only, so a stop of the process also leaves that title. The prompt and the validation are in
`agentic_rag.conversations.titles`.
"""

import logging
from dataclasses import dataclass
from functools import partial
from typing import Final

import anyio
from sqlalchemy import Connection

from agentic_rag.base.errors import AgenticRagError
from agentic_rag.base.events import Title
from agentic_rag.base.ids import ConversationId, TurnId
from agentic_rag.base.redaction import Redactor
from agentic_rag.base.telemetry import working_for
from agentic_rag.conversations import titles
from agentic_rag.conversations.title_news import TitleNews
from agentic_rag.models.base import Model, ModelRequest, PartialAnswer
from agentic_rag.runtime.log.encoder import encode
from agentic_rag.runtime.spending import PATIENCE_SECONDS, Spending
from agentic_rag.runtime.turn_persistence import stored_definition
from agentic_rag.store import conversations, signals, usage
from agentic_rag.store.budgets import Payer
from agentic_rag.store.clock import new_id, now
from agentic_rag.store.conversations import ConversationRecord, TitleSource
from agentic_rag.store.database import Database
from agentic_rag.store.signals import SignalKind
from agentic_rag.store.turns import TurnRecord
from agentic_rag.store.usage import UsageRecord

log = logging.getLogger(__name__)

AGENT: Final = "(title)"
"""Agent name of these calls in the usage; no role can have this id."""
LOOK_SECONDS: Final = 1.0
CALL_SECONDS: Final = 3.0
MAX_AT_ONCE: Final = 4
MAX_WAITING: Final = 200
"""Maximum pending conversations; further ones keep the title of their first message."""


@dataclass(frozen=True, slots=True)
class _Untitled:
    """A conversation titled with its first message, and its first turn."""

    conversation: ConversationRecord
    turn: TurnRecord


class Naming:
    """Asks a model for titles. Call `run` repeatedly.

    ``model`` is None if there is no language model or the operator turned titles off.
    """

    def __init__(
        self, database: Database, model: Model | None, redactor: Redactor, news: TitleNews, spending: Spending
    ) -> None:
        self._db = database
        self._spending = spending
        self._model = model
        self._redactor = redactor
        self._news = news
        self._waiting: dict[str, _Untitled] = {}
        self._running = anyio.Lock()
        self._scope: anyio.CancelScope | None = None
        self._stopped = False

    def note_turn(self, turn: TurnRecord, conversation: ConversationRecord) -> None:
        """Queue a conversation after its first successful turn, unless a person has named it.

        Called in the thread that writes to the store.
        """
        is_first = turn.parent_message_id is None and conversation.title == titles.title_of(turn.content)
        if self._model is None or not is_first or conversation.title_source is not TitleSource.AUTO:
            return
        if len(self._waiting) < MAX_WAITING:
            self._waiting[conversation.id] = _Untitled(conversation, turn)

    async def run(self) -> None:
        """Ask for the titles of all pending conversations."""
        limiter = anyio.CapacityLimiter(MAX_AT_ONCE)
        async with self._running:
            if self._model is None or self._stopped:
                return
            with anyio.CancelScope() as self._scope:
                async with anyio.create_task_group() as tasks:
                    for conversation_id in tuple(self._waiting):
                        tasks.start_soon(self._improve, self._waiting.pop(conversation_id), self._model, limiter)

    async def stop(self) -> None:
        """Stop asking, cancel calls in progress and store their cost. Called before the process stops."""
        self._stopped = True
        if self._scope is not None:
            self._scope.cancel()
        async with self._running:
            return

    async def _improve(self, untitled: _Untitled, model: Model, limiter: anyio.CapacityLimiter) -> None:
        turn = untitled.turn
        try:
            async with limiter:
                definition = await self._db.read(partial(stored_definition, image_id=turn.image_id))
                if definition is None:
                    return
                request = titles.ask(definition.model, turn.content)
                title = await self._ask(model, request, _usage_row(untitled, definition.model))
                if title is not None:
                    redact = self._redactor.of(definition.domain_id)
                    await self._store(turn, titles.title_of(redact(title)))
        except AgenticRagError as exc:
            log.info("the conversation %s keeps the title of its first message: %s", turn.conversation_id, exc)

    async def _ask(self, model: Model, request: ModelRequest, row: UsageRecord) -> str | None:
        """Return the model's title, or None. The cost is stored in any case."""
        received = PartialAnswer(row.model)
        account = self._spending.account(Payer(row.domain_id, row.user_id, row.key_id))
        try:
            await account.reserve(request, CALL_SECONDS + PATIENCE_SECONDS)
        except BaseException:
            await account.aclose()
            raise
        try:
            with anyio.move_on_after(CALL_SECONDS), working_for(row.domain_id):
                async with model.stream(request) as events:
                    async for event in events:
                        received.add(event)
        finally:
            spent = row.replace(
                model=received.model,
                input=received.usage.input,
                cache_read=received.usage.cache_read,
                cache_write=received.usage.cache_write,
                output=received.usage.output,
            )

            def store(conn: Connection) -> None:
                usage.put(conn, [spent])
                account.release(conn)

            try:
                with anyio.CancelScope(shield=True):
                    await self._db.write(store)
                account.settle()
            finally:
                await account.aclose()
        return titles.read_title(received.text, received.stop_reason)

    async def _store(self, turn: TurnRecord, title: str) -> None:
        """Store a title unless the conversation was renamed meanwhile, and notify its followers."""
        before = titles.title_of(turn.content)

        def store(conn: Connection) -> bool:
            improved = conversations.improve_title(conn, turn.conversation_id, before, title)
            if improved:
                signals.send(conn, SignalKind.TITLE, turn.conversation_id, turn.id)
            return improved

        if title != before and await self._db.write(store, durable=True):
            self._tell(turn.conversation_id, turn.id, title)

    async def tell_stored(self, conversation_id: ConversationId, turn_id: TurnId) -> None:
        """Notify local followers of a conversation about a title that another process has stored."""
        if not self._news.is_heard(conversation_id):
            return
        record = await self._db.read(lambda conn: conversations.get(conn, conversation_id))
        if record is not None:
            self._tell(conversation_id, turn_id, record.title)

    def _tell(self, conversation_id: ConversationId, turn_id: TurnId, title: str) -> None:
        event = encode(Title(title), conversation_id=conversation_id, turn_id=turn_id, seq=0, ts=now())
        self._news.tell(conversation_id, event)


def _usage_row(untitled: _Untitled, model: str) -> UsageRecord:
    conversation = untitled.conversation
    return UsageRecord(
        id=new_id("usage"),
        session_id=conversation.session_id,
        conversation_id=conversation.id,
        domain_id=conversation.domain_id,
        user_id=conversation.owner_id,
        key_id=untitled.turn.key_id,
        agent=AGENT,
        model=model,
        input=0,
        cache_read=0,
        cache_write=0,
        output=0,
        created_at=now(),
    )
