"""Rows that conversations and the audit log keep about turns.

The rows are written in the turns' own transactions. This module also decides whether a conversation takes a message.
"""

from collections.abc import Sequence

from sqlalchemy import Connection

from agentic_rag.access.auditing import denied_call, made_call
from agentic_rag.base.errors import ConversationArchived, ConversationFull, NotFound
from agentic_rag.base.events import Done, Error, EventBody, Terminal, Title, ToolStatus
from agentic_rag.base.ids import SessionId
from agentic_rag.base.messages import plain_text
from agentic_rag.conversations.naming import Naming
from agentic_rag.conversations.titles import title_of
from agentic_rag.roles.extraction import note_turn
from agentic_rag.runtime.core.calls import PlannedCall
from agentic_rag.runtime.spending import Spending
from agentic_rag.store import conversations, deliveries, message_texts, schedules, sessions
from agentic_rag.store.budgets import Payer
from agentic_rag.store.clock import now
from agentic_rag.store.conversations import ConversationPlace, ConversationStatus, TitleSource
from agentic_rag.store.deliveries import Event
from agentic_rag.store.endpoints import EventKind
from agentic_rag.store.message_texts import TextScope
from agentic_rag.store.schedules import FIRING_PREFIX, FiringState
from agentic_rag.store.turns import TurnRecord, TurnStatus

MAX_MESSAGES = 1_000
"""Maximum messages of a conversation as clients count them, without those that a summary replaces."""
MAX_DETAIL = 1_000
"""Maximum characters of the error of a schedule's run."""


class TurnBookkeeping:
    """Writes conversation and audit rows inside the turns' own transactions.

    Implements `agentic_rag.runtime.services.TurnHooks`. ``naming`` is notified of first turns. ``spending`` checks the
    budgets.
    """

    def __init__(self, naming: Naming, spending: Spending) -> None:
        self._naming = naming
        self._spending = spending

    def turn_accepted(self, conn: Connection, turn: TurnRecord) -> Sequence[EventBody]:
        """Refuse a message that the conversation cannot take; otherwise record it and set a missing title.

        The check reads the conversation in this transaction, not from a cache.

        Raises:
            NotFound: the conversation was deleted.
            ConversationArchived, ConversationFull: the conversation takes no message.
            BudgetExceeded: the budget of the domain, the user or the key is used up.
        """
        current = conversations.note_message(conn, turn.conversation_id, turn.started_at, turn.image_id)
        if current is None:
            raise NotFound("conversation", turn.conversation_id)
        if current.status is ConversationStatus.ARCHIVED:
            raise ConversationArchived
        if current.open_count >= MAX_MESSAGES:
            raise ConversationFull(MAX_MESSAGES)
        self._spending.check_in(conn, Payer(current.domain_id, current.owner_id, turn.key_id))
        # The first question was asked again in other words, and the title was its beginning.
        other_words = turn.branch_of is not None and turn.branch_of != turn.user_message_id
        is_first = not current.title or (other_words and turn.parent_message_id is None)
        is_named = is_first and turn.content.strip() and current.title_source is TitleSource.AUTO
        title = title_of(turn.content) if is_named else None
        title = None if title == current.title else title
        if title is None:
            return ()
        conversations.set_title(conn, turn.conversation_id, title)
        return (Title(title),)

    def turn_ended(self, conn: Connection, turn: TurnRecord, final: Terminal) -> None:
        """Record the end of a turn, and queue it for a title or for memory extraction."""
        place = record_end(conn, turn, final)
        if place is None:
            return
        if not isinstance(final, Done) or final.stop_reason == "refusal":
            return
        note_turn(conn, turn, place.domain_id, place.owner_id, place.memory)
        # Only a turn without a message before it can give the conversation its title.
        first = conversations.get(conn, turn.conversation_id) if turn.parent_message_id is None else None
        if first is not None:
            self._naming.note_turn(turn, first)

    def session_branched(self, conn: Connection, session_id: SessionId) -> None:
        """Update the message counts to those of the newly active branch."""
        counts = sessions.count_messages(conn, session_id)
        conversations.update_of_session(
            conn, session_id, message_count=counts.every, compacted_count=counts.compacted, outcome=None
        )

    def session_compacted(self, conn: Connection, session_id: SessionId) -> None:
        """Update the number of messages that a summary replaces."""
        counts = sessions.count_messages(conn, session_id)
        conversations.update_of_session(conn, session_id, compacted_count=counts.compacted)

    def call_denied(self, conn: Connection, turn: TurnRecord, call: PlannedCall) -> None:
        """Write a denied call to the audit log."""
        denied_call(conn, turn, call)

    def call_made(self, conn: Connection, turn: TurnRecord, call: PlannedCall, status: ToolStatus) -> None:
        """Write a call that changes server data to the audit log."""
        made_call(conn, turn, call, status)


def record_end(conn: Connection, turn: TurnRecord, final: Terminal) -> ConversationPlace | None:
    """Count and index the messages of a turn, end the run of its schedule, and report a failure.

    Returns the conversation's place, or None if it was deleted while the turn ran.
    """
    count, outcome = _count_of(conn, turn, final), _outcome_of(final)
    place = conversations.add_messages(conn, turn.conversation_id, count, now(), outcome)
    if isinstance(final, Error):
        _announce_failure(conn, turn, final)
    if (turn.client_message_id or "").startswith(FIRING_PREFIX):
        _end_run(conn, turn, final)
    if place is not None and not place.transient:
        _index(conn, turn, TextScope(place.owner_id, place.domain_id), begun=count > 0)
    return place


def _index(conn: Connection, turn: TurnRecord, scope: TextScope, *, begun: bool) -> None:
    """Add the question and the answer of an ended turn to the full-text index."""
    place = (turn.session_id, turn.conversation_id)
    if begun and turn.branch_of != turn.user_message_id:  # otherwise an earlier answer's turn added the question
        message_texts.add(conn, scope, *place, turn.user_message_id, "user", turn.content)
    answer = "\n".join(plain_text(content) for content in sessions.words_in_turn(conn, turn))
    message_texts.add(conn, scope, *place, turn.message_id, "assistant", answer)


def _outcome_of(final: Terminal) -> TurnStatus:
    if isinstance(final, Done):
        return TurnStatus.DONE
    return TurnStatus.FAILED if isinstance(final, Error) else TurnStatus.INTERRUPTED


def _end_run(conn: Connection, turn: TurnRecord, final: Terminal) -> None:
    """End the run of a schedule whose firing sent the message of this turn."""
    firing = schedules.get_firing(conn, turn.client_message_id or "")
    schedule = None if firing is None else schedules.get(conn, firing.schedule_id)
    conversation = conversations.get(conn, turn.conversation_id)
    if firing is None or schedule is None or conversation is None or conversation.owner_id != schedule.owner_id:
        return  # a client chose an id that looks like a firing's
    state, detail, answer = FiringState.FAILED, "interrupted", ""
    if isinstance(final, Done):
        state, detail = FiringState.DONE, ""
        answer_rows = [row for row in sessions.of_turn(conn, turn) if row.role == "assistant"]
        answer = plain_text(answer_rows[-1].content) if answer_rows else ""
    elif isinstance(final, Error):
        detail = f"{final.code}: {final.message}"
    result = schedules.FiringResult(state, detail[:MAX_DETAIL], answer, turn.conversation_id, turn.id)
    schedules.end_run(conn, firing.id, result, now())


def _announce_failure(conn: Connection, turn: TurnRecord, error: Error) -> None:
    """Notify the domain's endpoints of a failed turn, except in a transient conversation, as evaluations use."""
    conversation = conversations.get(conn, turn.conversation_id)
    if conversation is None or conversation.transient:
        return
    facts = {
        "turnId": turn.id,
        "conversationId": conversation.id,
        "userId": conversation.owner_id,
        "code": error.code,
        "retryable": error.retryable,
    }
    texts, owner = {"message": error.message, "question": turn.content}, conversation.owner_id
    event = Event(EventKind.TURN_FAILED, conversation.domain_id, facts, texts, owner, conversation.id, private=True)
    deliveries.announce(conn, event)


def _count_of(conn: Connection, turn: TurnRecord, final: Terminal) -> int:
    """Return how many messages of an ended turn clients see."""
    if isinstance(final, Done):
        return 2
    if not sessions.has_message(conn, turn.session_id, turn.user_message_id):  # it was queued and never began
        return 0
    failed = isinstance(final, Error)
    return 2 if failed or sessions.has_message(conn, turn.session_id, turn.message_id) else 1
