"""Earlier questions and answers that a client brings into a new conversation.

They are stored as ended turns, so that model and clients see them like other messages. They contain text, and the calls
of the client's own functions: no calls or results of the server's tools, and no citations.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from sqlalchemy import Connection

from agentic_rag.base.ids import MessageId, TurnId
from agentic_rag.base.json_form import Json
from agentic_rag.base.messages import OTHERS, Block, Message, text_block, tool_result_block
from agentic_rag.store import message_texts, sessions
from agentic_rag.store.clock import new_id
from agentic_rag.store.conversations import ConversationRecord
from agentic_rag.store.message_texts import TextScope
from agentic_rag.store.sessions import MessageRecord
from agentic_rag.store.turns import TurnRecord, TurnStatus

BROUGHT = "brought"
"""End reason of a turn that was brought in by a client."""


@dataclass(frozen=True, slots=True)
class PastCall:
    """A call of a client's function with its result."""

    name: str
    arguments: Json
    output: str


@dataclass(frozen=True, slots=True)
class PastStep:
    """A message of the assistant that called functions of the client. ``text`` may be empty."""

    text: str
    calls: tuple[PastCall, ...]


@dataclass(frozen=True, slots=True)
class Exchange:
    """A question and its answer; neither is blank. ``steps`` are the calls before the answer."""

    question: str
    answer: str
    steps: tuple[PastStep, ...] = ()


def store_exchanges(conn: Connection, conversation: ConversationRecord, exchanges: Sequence[Exchange], at: str) -> None:
    """Store earlier exchanges as the first turns of a conversation without messages."""
    session_id, conversation_id = conversation.session_id, conversation.id
    scope = TextScope(conversation.owner_id, conversation.domain_id)
    last: MessageId | None = None
    place = 0
    for exchange in exchanges:
        place += 1
        turn = TurnRecord(
            id=TurnId(new_id("turn")),
            session_id=session_id,
            conversation_id=conversation_id,
            content=exchange.question,
            user_message_id=MessageId(new_id("msg")),
            message_id=MessageId(new_id("msg")),
            parent_message_id=last,
            began=True,
            # No turn of this server ran, so there is no definition.
            image_id="",
            status=TurnStatus.DONE,
            end_reason=BROUGHT,
            started_at=at,
            ended_at=at,
        )
        turn.insert(conn)
        sessions.append_question(conn, turn, place)
        for step, message in _messages(exchange):
            place += 1
            record = MessageRecord(
                session_id=session_id,
                seq=place,
                turn_id=turn.id,
                step=step,
                role=message["role"],
                content=message["content"],
                message_id=turn.message_id,
                parent_message_id=turn.user_message_id,
                created_at=at,
            )
            sessions.append_message(conn, record)
        if not conversation.transient:
            indexed_in = (session_id, conversation_id)
            message_texts.add(conn, scope, *indexed_in, turn.user_message_id, "user", exchange.question)
            message_texts.add(conn, scope, *indexed_in, turn.message_id, "assistant", exchange.answer)
        last = turn.message_id


def _messages(exchange: Exchange) -> Iterator[tuple[int, Message]]:
    """Yield the messages after the question, each with the number of its step."""
    number = 1
    for number, step in enumerate(exchange.steps, 2):
        uses: list[Block] = []
        results: list[Block] = []
        for call in step.calls:
            ident = new_id("call")  # the client's own id may be one that a service refuses
            uses.append({"type": "tool_use", "id": ident, "name": call.name, "input": call.arguments})
            results.append({**tool_result_block(ident, [text_block(call.output)] if call.output else []), OTHERS: True})
        texts = [text_block(step.text)] if step.text.strip() else []
        yield number - 1, {"role": "assistant", "content": [*texts, *uses]}
        yield number - 1, {"role": "user", "content": results}
    yield number, {"role": "assistant", "content": [text_block(exchange.answer)]}
