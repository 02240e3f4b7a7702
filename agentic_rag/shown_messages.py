"""Messages as clients see them: two a turn, the user's and the answer of all its steps.

Owns that view of the transcript. Pure: rows in, values out.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, Literal

from agentic_rag.messages import Block, plain_text, text_block, without_private
from agentic_rag.store.sessions import StoredMessage
from agentic_rag.store.turns import StoredTurn


@dataclass(frozen=True, slots=True)
class ShownMessage:
    """One message. ``content`` is its plain text, ``blocks`` what it is made of, tool calls and results included."""

    id: str
    conversation_id: str
    turn_id: str
    role: Literal["user", "assistant"]
    content: str
    blocks: list[Block]
    created_at: str
    references: list[dict[str, Any]] = field(default_factory=list)
    metadata: dict[str, Any] = field(default_factory=dict)


def shown_messages(
    conversation_id: str, rows: Sequence[StoredMessage], of: Mapping[str, StoredTurn]
) -> list[ShownMessage]:
    """Group the rows of whole messages (in transcript order) into what clients see; ``of`` holds their turns."""
    shown = []
    for message_id, group in groupby(rows, key=lambda row: row.message_id):
        parts = list(group)
        turn = of[parts[0].turn_id]
        if message_id == turn.user_message_id:
            shown.append(_question(conversation_id, parts[0], turn))
        elif any(row.role == "assistant" for row in parts):
            shown.append(_answer(conversation_id, parts, turn))
    return shown


def _question(conversation_id: str, row: StoredMessage, turn: StoredTurn) -> ShownMessage:
    # The stored message may begin with notes to the model; the user's own words are the turn's.
    return ShownMessage(
        id=row.message_id,
        conversation_id=conversation_id,
        turn_id=turn.id,
        role="user",
        content=turn.content,
        blocks=[text_block(turn.content)],
        created_at=row.created_at,
    )


def _answer(conversation_id: str, rows: Sequence[StoredMessage], turn: StoredTurn) -> ShownMessage:
    texts = [plain_text(row.content) for row in rows if row.role == "assistant"]
    return ShownMessage(
        id=turn.message_id,
        conversation_id=conversation_id,
        turn_id=turn.id,
        role="assistant",
        content="\n\n".join(text for text in texts if text.strip()),
        blocks=[without_private(block) for row in rows for block in row.content],
        created_at=rows[0].created_at,
        references=turn.references,
        metadata={
            "model": next((row.model for row in rows if row.model), None),
            "usage": turn.usage,
            "retrievalTimeMs": turn.timings.get("retrieval"),
            "generationTimeMs": turn.timings.get("generation"),
            "stopReason": turn.end_reason,
            "interrupted": turn.status == "interrupted",
        },
    )
