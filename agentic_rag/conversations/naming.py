"""Better titles: after a conversation's first turn, ask a model once for a title.

Naming neither delays nor fails a turn: it starts after the turn has ended. If the model fails, is slow, refuses or
returns no usable title, the conversation keeps its first message as the title. Pending conversations are held in memory
only, so a stop of the process also leaves that title. The prompt and the validation are in
`agentic_rag.conversations.titles`.
"""

import logging
from dataclasses import dataclass
from functools import partial
from typing import Final, Protocol

import anyio
from sqlalchemy import Connection

from agentic_rag.base.errors import AgenticRagError
from agentic_rag.base.events import AgentEvent, Title
from agentic_rag.base.ids import ConversationId, TurnId
from agentic_rag.base.redaction import Redactor
from agentic_rag.conversations import titles
from agentic_rag.runtime.log.encoder import encode
from agentic_rag.runtime.paid_calls import PaidCalls
from agentic_rag.runtime.turn_persistence import stored_definition
from agentic_rag.store import conversations, signals
from agentic_rag.store.clock import now
from agentic_rag.store.conversations import ConversationRecord, TitleSource
from agentic_rag.store.database import Database
from agentic_rag.store.signals import SignalKind
from agentic_rag.store.turns import TurnRecord
from agentic_rag.store.usage import UsageLabels

log = logging.getLogger(__name__)

AGENT: Final = "(title)"
"""Agent name of these calls in the usage; no role can have this id."""
LOOK_SECONDS: Final = 1.0
CALL_SECONDS: Final = 3.0
MAX_AT_ONCE: Final = 4
MAX_WAITING: Final = 200
"""Maximum pending conversations; further ones keep the title of their first message."""


class TitleListener(Protocol):
    """A client connection that follows conversations."""

    def hear_title(self, conversation_id: ConversationId, event: AgentEvent) -> None:
        """Handle a new title. The event is not part of a turn's log. Must neither block nor raise."""
        ...


class TitleNews:
    """The listeners of each conversation."""

    def __init__(self) -> None:
        self._listeners: dict[ConversationId, list[TitleListener]] = {}

    def listen(self, conversation_id: ConversationId, listener: TitleListener) -> None:
        """Register a listener for new titles of a conversation."""
        self._listeners.setdefault(conversation_id, []).append(listener)

    def unlisten(self, conversation_id: ConversationId, listener: TitleListener) -> None:
        """Undo `listen`."""
        remaining = [waiting for waiting in self._listeners.pop(conversation_id, ()) if waiting is not listener]
        if remaining:
            self._listeners[conversation_id] = remaining

    def is_heard(self, conversation_id: ConversationId) -> bool:
        """Return whether a conversation has listeners."""
        return conversation_id in self._listeners

    def tell(self, conversation_id: ConversationId, event: AgentEvent) -> None:
        """Notify all listeners of a conversation."""
        # A copy, since a listener may end its own registration.
        for listener in tuple(self._listeners.get(conversation_id, ())):
            listener.hear_title(conversation_id, event)


@dataclass(frozen=True, slots=True)
class _Untitled:
    """A conversation titled with its first message, and its first turn."""

    conversation: ConversationRecord
    turn: TurnRecord


class Naming:
    """Asks a model for titles. Call `run` repeatedly.

    ``calls`` is None if there is no language model or the operator turned titles off.
    """

    def __init__(self, database: Database, calls: PaidCalls | None, redactor: Redactor, news: TitleNews) -> None:
        self._db = database
        self._calls = calls
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
        if self._calls is None or not is_first or conversation.title_source is not TitleSource.AUTO:
            return
        # A title is a convenience: under load, new conversations keep their first message as the title.
        if len(self._waiting) < MAX_WAITING:
            self._waiting[conversation.id] = _Untitled(conversation, turn)

    async def run(self) -> None:
        """Ask for the titles of all pending conversations."""
        limiter = anyio.CapacityLimiter(MAX_AT_ONCE)
        async with self._running:
            if self._calls is None or self._stopped:
                return
            with anyio.CancelScope() as self._scope:
                async with anyio.create_task_group() as tasks:
                    # A copy: each task takes its conversation from the dictionary, and ended turns add others
                    # meanwhile.
                    for conversation_id in tuple(self._waiting):
                        tasks.start_soon(self._improve, self._waiting.pop(conversation_id), self._calls, limiter)

    async def stop(self) -> None:
        """Stop asking, cancel calls in progress and store their cost. Called before the process stops."""
        self._stopped = True
        if self._scope is not None:
            self._scope.cancel()
        # Held by `run`, so this waits until the cancelled calls have stored their cost.
        async with self._running:
            return

    async def _improve(self, untitled: _Untitled, calls: PaidCalls, limiter: anyio.CapacityLimiter) -> None:
        turn, conversation = untitled.turn, untitled.conversation
        labels = UsageLabels(
            domain_id=conversation.domain_id,
            agent=AGENT,
            session_id=conversation.session_id,
            conversation_id=conversation.id,
            user_id=conversation.owner_id,
            key_id=turn.key_id,
        )
        try:
            async with limiter:
                definition = await self._db.read(partial(stored_definition, image_id=turn.image_id))
                if definition is None:
                    return
                request = titles.ask(definition.model, turn.content)
                answer = await calls.ask(request, labels, "Naming the conversation", CALL_SECONDS)
                title = titles.read_title(answer.text, answer.stop_reason)
                if title is not None:
                    redact = self._redactor.of(definition.domain_id)
                    # The mark of a redacted secret can make the title longer than a title may be.
                    await self._store(turn, titles.title_of(redact(title)))
        except AgenticRagError as exc:
            log.info("the conversation %s keeps the title of its first message: %s", turn.conversation_id, exc)

    async def _store(self, turn: TurnRecord, title: str) -> None:
        """Store a title unless the conversation was renamed meanwhile, and notify its followers."""
        before = titles.title_of(turn.content)

        def store(conn: Connection) -> bool:
            # The statement compares the stored title, so that a name which a person gave meanwhile stays.
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
