"""What conversations and the audit log keep of turns.

Owns the rows that are stored in the turns' own transactions, and which message a conversation cannot take.
"""

from collections.abc import Sequence

from sqlalchemy import Connection

from agentic_rag.access.auditing import denied_call, made_call
from agentic_rag.conversations.naming import Naming
from agentic_rag.conversations.titles import title_of
from agentic_rag.errors import ConversationArchived, ConversationFull, NotFound
from agentic_rag.events import Done, Error, EventBody, Terminal, Title, ToolStatus
from agentic_rag.ids import SessionId
from agentic_rag.roles.extraction import note_turn
from agentic_rag.runtime.core.calls import PlannedCall
from agentic_rag.runtime.spending import Spending
from agentic_rag.store import conversations, sessions
from agentic_rag.store.budgets import Payer
from agentic_rag.store.clock import now
from agentic_rag.store.conversations import ConversationStatus, TitleSource
from agentic_rag.store.turns import TurnRecord

MAX_MESSAGES = 1_000
"""Of a conversation, as clients count; those that a summary stands for do not count."""


class TurnBookkeeping:
    """What conversations and the audit log keep of turns, inside the turns' own transactions.

    Implements `agentic_rag.runtime.services.TurnHooks`. ``naming``: hears of first turns; ``spending``: what may be
    spent on them.
    """

    def __init__(self, naming: Naming, spending: Spending) -> None:
        self._naming = naming
        self._spending = spending

    def turn_accepted(self, conn: Connection, turn: TurnRecord) -> Sequence[EventBody]:
        """Refuse a message that the conversation cannot take; else note it and give an untitled one its title.

        The state that counts is the one in this transaction, not one that was remembered.

        Raises:
            NotFound: the conversation was deleted.
            ConversationArchived, ConversationFull: it takes no message.
            BudgetExceeded: the domain, the user or the key has nothing left to spend.
        """
        current = conversations.note_message(conn, turn.conversation_id, turn.started_at, turn.image_id)
        if current is None:
            raise NotFound("conversation", turn.conversation_id)
        if current.status is ConversationStatus.ARCHIVED:
            raise ConversationArchived
        if current.open_count >= MAX_MESSAGES:
            raise ConversationFull(MAX_MESSAGES)
        self._spending.check_in(conn, Payer(current.domain_id, current.owner_id, turn.key_id))
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
        """Count a turn's messages, and note it where a title or memories are made from what was said."""
        place = conversations.add_messages(conn, turn.conversation_id, _count_of(conn, turn, final), now())
        if place is None or not isinstance(final, Done) or final.stop_reason == "refusal":
            return
        note_turn(conn, turn, place.domain_id, place.owner_id, place.memory)
        first = conversations.get(conn, turn.conversation_id) if turn.parent_message_id is None else None
        if first is not None:
            self._naming.note_turn(turn, first)

    def session_branched(self, conn: Connection, session_id: SessionId) -> None:
        """Count the messages of the branch that is the conversation from now on."""
        counts = sessions.count_messages(conn, session_id)
        conversations.update_of_session(conn, session_id, message_count=counts.every, compacted_count=counts.compacted)

    def session_compacted(self, conn: Connection, session_id: SessionId) -> None:
        """Count the messages that a summary stands for."""
        counts = sessions.count_messages(conn, session_id)
        conversations.update_of_session(conn, session_id, compacted_count=counts.compacted)

    def call_denied(self, conn: Connection, turn: TurnRecord, call: PlannedCall) -> None:
        """Write a call that was denied into the audit log."""
        denied_call(conn, turn, call)

    def call_made(self, conn: Connection, turn: TurnRecord, call: PlannedCall, status: ToolStatus) -> None:
        """Write a call that changes something of ours into the audit log."""
        made_call(conn, turn, call, status)


def _count_of(conn: Connection, turn: TurnRecord, final: Terminal) -> int:
    """Return how many messages of a turn that has ended clients see."""
    if isinstance(final, Done):
        return 2
    if not sessions.has_message(conn, turn.session_id, turn.user_message_id):  # it was queued and never began
        return 0
    failed = isinstance(final, Error)
    return 2 if failed or sessions.has_message(conn, turn.session_id, turn.message_id) else 1
