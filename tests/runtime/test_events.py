"""The JSON form of events."""

from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentic_rag.base.events import (
    Delegate,
    IterationStart,
    Text,
    Thinking,
    ToolArguments,
    ToolCall,
    ToolResult,
    ToolStatus,
    decode,
)
from agentic_rag.base.ids import ConversationId, TurnId
from agentic_rag.base.redaction import Redaction
from agentic_rag.runtime.log.encoder import Encoder

TS = "2026-01-01T00:00:00.000Z"
WORDS = st.text(st.characters(exclude_categories=["Cs"]))


@given(
    text=WORDS,
    agent=WORDS,
    conversation=WORDS,
    turn=WORDS,
    seq=st.integers(1, 2**31),
    kind=st.sampled_from((Text, Thinking)),
)
def test_a_delta_has_the_same_form_as_every_event(
    text: str, agent: str, conversation: str, turn: str, seq: int, kind: type[Text | Thinking]
) -> None:
    expected: dict[str, Any] = {
        "type": kind.type,
        "conversationId": conversation,
        "turnId": turn,
        "seq": seq,
        "ts": TS,
        **({"agent": agent, "parentToolCallId": conversation} if agent else {}),
        "text": text,
    }
    encoder = Encoder(ConversationId(conversation), TurnId(turn))
    for _ in range(2):  # the second one from the preparation of the first
        event = encoder.encode(kind(text), seq, TS, Delegate(agent, conversation) if agent else None)
        assert event.data == orjson.dumps(expected)
        assert event == decode(turn, seq, event.data)


@given(text=WORDS, agent=WORDS, conversation=WORDS, turn=WORDS, seq=st.integers(1, 2**31))
def test_an_event_equals_its_expanded_short_form(text: str, agent: str, conversation: str, turn: str, seq: int) -> None:
    encoder = Encoder(ConversationId(conversation), TurnId(turn))
    delegate = Delegate(agent, conversation) if agent else None
    for body in (Text(text), Thinking(text), IterationStart(seq), ToolArguments("call_1", text)):
        event = encoder.encode(body, seq, TS, delegate)
        short_form = encoder.shorten(event)
        assert encoder.restore(seq, short_form) == event
        assert len(short_form) < len(event.data)
        assert not short_form.startswith(b"{")
    full_event, short_form = encoder.encode_text("text", text, seq, TS, delegate)
    assert (full_event, short_form) == (encoder.encode(Text(text), seq, TS, delegate), encoder.shorten(full_event))


def test_an_event_encoded_by_another_library_is_stored_unchanged() -> None:
    encoder = Encoder(ConversationId("conv_1"), TurnId("turn_1"))
    event = encoder.encode(ToolCall("call_1", "add", "numbers", {"number": 2**70}), 1, TS)
    assert encoder.shorten(event) == event.data
    assert encoder.restore(1, event.data) == event


def test_secrets_are_redacted_in_deltas_too() -> None:
    redaction = Redaction()
    redaction.add("KEY", "hunter2-hunter2")
    encoder = Encoder(ConversationId("conv_1"), TurnId("turn_1"), redaction)
    assert encoder.encode(Text("it is hunter2-hunter2"), 1, TS).fields()["text"] == "it is [secret KEY]"


def test_an_event_is_redacted_in_every_json_notation() -> None:
    redaction = Redaction()
    redaction.add("KEY", 'hunter"2-hunter"2')
    encoder = Encoder(ConversationId("conv_1"), TurnId("turn_1"), redaction)
    for notation in ('hunter"2-hunter"2', "hunter&quot;2-hunter&quot;2", "aHVudGVyIjItaHVudGVyIjI="):
        result = ToolResult(
            "toolu_1", "fs__read", "fs", ToolStatus.OK, notation, False, 3, structured={"a": [notation, 7]}
        )
        fields = encoder.encode(result, 1, TS).fields()
        assert (fields["content"], fields["structured"]) == ("[secret KEY]", {"a": ["[secret KEY]", 7]})
        assert (fields["status"], fields["truncated"], fields["durationMs"], "ref" in fields) == ("ok", False, 3, False)


def test_a_text_that_is_not_unicode_is_refused() -> None:
    with pytest.raises(TypeError):
        Encoder(ConversationId("conv_1"), TurnId("turn_1")).encode(Text("\ud800"), 1, TS)
