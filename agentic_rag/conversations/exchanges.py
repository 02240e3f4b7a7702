"""Earlier questions and answers that a client brings into a new conversation.

They are stored as ended turns, so that model and clients see them like other messages. They contain text only: no tool
calls, results or citations.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import Connection

from agentic_rag.base.ids import ConversationId, MessageId, SessionId, TurnId
from agentic_rag.base.messages import text_block
from agentic_rag.store import sessions
from agentic_rag.store.clock import new_id
from agentic_rag.store.sessions import MessageRecord
from agentic_rag.store.turns import TurnRecord, TurnStatus

BROUGHT = "brought"
"""End reason of a turn that was brought in by a client."""


@dataclass(frozen=True, slots=True)
class Exchange:
    """A question and its answer; neither is blank."""

    question: str
    answer: str


def store_exchanges(
    conn: Connection, session_id: SessionId, conversation_id: ConversationId, exchanges: Sequence[Exchange], at: str
) -> None:
    """Store earlier exchanges as the first turns of an empty session."""
    last: MessageId | None = None
    for number, exchange in enumerate(exchanges):
        place = 2 * number + 1
        turn = TurnRecord(
            id=TurnId(new_id("turn")),
            session_id=session_id,
            conversation_id=conversation_id,
            content=exchange.question,
            user_message_id=MessageId(new_id("msg")),
            message_id=MessageId(new_id("msg")),
            parent_message_id=last,
            began=True,
            image_id="",
            status=TurnStatus.DONE,
            end_reason=BROUGHT,
            started_at=at,
            ended_at=at,
        )
        turn.insert(conn)
        sessions.append_question(conn, turn, place)
        answer = MessageRecord(
            session_id=session_id,
            seq=place + 1,
            turn_id=turn.id,
            step=1,
            role="assistant",
            content=[text_block(exchange.answer)],
            message_id=turn.message_id,
            parent_message_id=turn.user_message_id,
            created_at=at,
        )
        sessions.append_message(conn, answer)
        last = turn.message_id
