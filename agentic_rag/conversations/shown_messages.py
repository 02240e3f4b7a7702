"""Messages as clients see them: two per turn, the user's message and the answer of all its steps.

Builds that view from transcript rows and replaces stored references (``{"_ref": …}``). Pure.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, Literal

from agentic_rag.base.events import Reference
from agentic_rag.base.ids import ConversationId, MessageId, TurnId
from agentic_rag.base.json_form import Json, to_json
from agentic_rag.base.messages import (
    CONTINUES,
    NOTE,
    REF,
    REFERENCES,
    RETRIEVALS,
    STRUCTURED,
    Block,
    KeptAttachment,
    plain_text,
    question_blocks,
    without_private,
)
from agentic_rag.store.sessions import MessageRecord
from agentic_rag.store.tool_calls import CallSummary
from agentic_rag.store.turns import TurnRecord, TurnStatus

MAX_DEPTH = 100
"""Maximum depth at which references are resolved; deeper JSON is shown unchanged."""


@dataclass(frozen=True, slots=True)
class ShownCitation:
    """A citation that ends at an offset (in Unicode code points) of a message's text."""

    end: int
    number: int


@dataclass(frozen=True, slots=True)
class ShownMessage:
    """One message. ``content`` is its plain text, ``blocks`` its content blocks with tool calls and results.

    ``citations`` say where in ``content`` each of the ``references`` is cited.
    """

    id: MessageId
    conversation_id: ConversationId
    turn_id: TurnId
    parent_message_id: MessageId | None
    """The message that this one follows or answers; None for the first message of a conversation."""
    role: Literal["user", "assistant"]
    content: str
    blocks: list[Block]
    created_at: str
    references: tuple[Reference, ...] = ()
    metadata: dict[str, Any] = field(default_factory=dict)
    citations: tuple[ShownCitation, ...] = ()
    attachments: tuple[KeptAttachment, ...] = ()


@dataclass(frozen=True, slots=True)
class TextRun:
    """Text of a message without a tool call in it.

    ``block`` is the index of its first block. ``citations`` are those inside the run.
    """

    block: int
    text: str
    citations: tuple[ShownCitation, ...]


def text_runs(message: ShownMessage) -> list[TextRun]:
    """Return the text runs between a message's tool calls. Joined by empty lines they equal ``content``."""
    runs: list[TextRun] = []
    at, start, first = 0, 0, -1
    for place, block in enumerate([*message.blocks, {"type": "end"}]):
        if block["type"] == "text" and block.get("text"):
            gap = "" if message.content.startswith(block["text"], at) else "\n\n"
            if not message.content.startswith(gap + block["text"], at):
                continue  # white space that is not part of the content
            if first < 0:
                at += len(gap)
                first, start, gap = place, at, ""
            at += len(gap) + len(block["text"])
        elif block["type"] != "text" and first >= 0:
            inside = [citation for citation in message.citations if start < citation.end <= at]
            shifted = tuple(ShownCitation(citation.end - start, citation.number) for citation in inside)
            runs.append(TextRun(first, message.content[start:at], shifted))
            first = -1
    return runs


ReferencedObjects = Mapping[str, Any]
"""The structured contents of calls by their reference, as JSON."""


def shown_messages(
    conversation_id: ConversationId,
    rows: Sequence[MessageRecord],
    of: Mapping[TurnId, TurnRecord],
    objects: ReferencedObjects | None = None,
    compacted_to: int = 0,
    calls: Mapping[TurnId, Sequence[CallSummary]] | None = None,
) -> list[ShownMessage]:
    """Group the rows of whole messages (in transcript order) into messages that clients see.

    ``of``: the turns by id. ``objects``: the objects that `refs_in` named. ``compacted_to``: the last message that a
    summary replaces in the model's context. ``calls`` become the ``toolCalls`` of an answer's metadata. A failed turn
    has an answer even if the model wrote no text.
    """
    messages = []
    answered = {row.message_id for row in rows if row.role == "assistant"}
    for message_id, group in groupby(rows, key=lambda row: row.message_id):
        parts = list(group)
        turn = of[parts[0].turn_id]
        compacted: Json = {"compacted": parts[-1].seq <= compacted_to}
        of_turn = (calls or {}).get(turn.id)
        summaries: Json = {"toolCalls": [_summary_of(call) for call in of_turn]} if of_turn else {}
        if message_id == turn.user_message_id:
            messages.append(_question(conversation_id, parts[0], turn, compacted))
            # No row has this answer: the turn failed before the model wrote anything. Clients still see its error.
            if turn.status is TurnStatus.FAILED and turn.message_id not in answered:
                messages.append(_answer(conversation_id, (), turn, {}, compacted | summaries))
        elif message_id in answered:
            messages.append(_answer(conversation_id, parts, turn, objects or {}, compacted | summaries))
    return messages


def _summary_of(call: CallSummary) -> Json:
    return {"id": call.tool_call_id, "server": call.server, "status": call.status, "durationMs": call.duration_ms}


def _question(conversation_id: ConversationId, row: MessageRecord, turn: TurnRecord, metadata: Json) -> ShownMessage:
    # The stored message may begin with notes for the model; the turn holds the user's own text.
    return ShownMessage(
        id=row.message_id,
        conversation_id=conversation_id,
        turn_id=turn.id,
        parent_message_id=row.parent_message_id,
        role="user",
        content=turn.content,
        blocks=[without_private(block) for block in question_blocks(turn.content, turn.images)],
        created_at=row.created_at,
        metadata=metadata,
        attachments=turn.attachments,
    )


def refs_in(rows: Sequence[MessageRecord]) -> set[str]:
    """Return the refs in the structured contents of these messages."""
    refs: set[str] = set()

    def note(ref: object) -> object:
        if isinstance(ref, str):
            refs.add(ref)
        return None

    for row in rows:
        for block in row.content:
            if STRUCTURED in block:
                _resolve(block[STRUCTURED], note)
    return refs


def unavailable(reason: str) -> dict[str, Any]:
    """Return the placeholder of an object that cannot be shown."""
    return {"unavailable": True, "reason": reason}


def _resolve(value: Any, look_up: Callable[[object], Any], depth: int = 0) -> Any:
    """Replace each ``{"_ref": …}`` in a JSON value by its object. Replacements are not searched for further refs."""
    if depth > MAX_DEPTH:
        return value
    if isinstance(value, dict):
        # A result of a server may contain this key too. Only an object that has nothing else is one of ours.
        if value.keys() == {REF}:
            return look_up(value[REF])
        return {key: _resolve(item, look_up, depth + 1) for key, item in value.items()}
    if isinstance(value, list):
        return [_resolve(item, look_up, depth + 1) for item in value]
    return value


def _shown_block(block: Block, objects: ReferencedObjects) -> Block:
    public: Block = without_private(block)
    if STRUCTURED in block:
        unknown = unavailable("the reference is not valid")

        def look_up(ref: object) -> Any:
            return objects.get(ref, unknown) if isinstance(ref, str) else unknown

        public["structuredContent"] = _resolve(block[STRUCTURED], look_up)
    return public


def _text_of(steps: Iterable[Sequence[Block]]) -> tuple[str, tuple[ShownCitation, ...]]:
    """Return the text and citations of an answer's steps. A continued step is joined to its beginning without a gap."""
    text = ""
    citations: list[ShownCitation] = []
    for content in steps:
        step_text = plain_text(content)
        joined = not text or any(CONTINUES in block for block in content)
        if not step_text or not (joined or step_text.strip()):
            continue
        text += "" if joined else "\n\n"
        for block in content:
            text += plain_text([block])
            citations += [ShownCitation(len(text), reference["number"]) for reference in block.get(REFERENCES, ())]
    return text, tuple(citations)


def _answer(
    conversation_id: ConversationId,
    rows: Sequence[MessageRecord],
    turn: TurnRecord,
    objects: ReferencedObjects,
    metadata: Json,
) -> ShownMessage:
    text, citations = _text_of([row.content for row in rows if row.role == "assistant"])
    return ShownMessage(
        id=turn.message_id,
        conversation_id=conversation_id,
        turn_id=turn.id,
        parent_message_id=turn.user_message_id,
        role="assistant",
        content=text,
        blocks=[_shown_block(block, objects) for row in rows for block in row.content if NOTE not in block],
        created_at=rows[0].created_at if rows else turn.ended_at or turn.started_at,
        references=turn.references,
        citations=citations,
        metadata=metadata
        | ({} if turn.error is None else {"error": to_json(turn.error)})
        | {
            "model": next((row.model for row in rows if row.model), None),
            "usage": turn.usage.to_json() if turn.usage else {},
            "retrievalTimeMs": turn.timings.get("retrieval"),
            "generationTimeMs": turn.timings.get("generation"),
            "stopReason": turn.end_reason,
            "interrupted": turn.status is TurnStatus.INTERRUPTED,
            "retrievalIds": [ident for row in rows for block in row.content for ident in block.get(RETRIEVALS, ())],
            "roles": [{"id": role, "hash": text_hash} for role, text_hash in turn.role_hashes.items()],
        },
    )
