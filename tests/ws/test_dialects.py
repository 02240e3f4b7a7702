"""The native dialect and the choice of dialects."""

import orjson
import pytest

from agentic_rag.base.errors import InvalidInput
from agentic_rag.base.events import Text, ToolCall
from agentic_rag.runtime.log.encoder import encode
from agentic_rag.server.dialects import dialect_names, get_dialect


def test_native_frames_are_the_events_json_unchanged() -> None:
    event = encode(Text("día\n\n"), conversation_id="conv_1", turn_id="turn_1", seq=3, ts="t")
    assert get_dialect("native").frames(event)[0] is event.data


def test_native_sse_names_type_and_number_and_keeps_line_breaks_inside_the_json() -> None:
    event = encode(Text("a\r\nb\u2028c"), conversation_id="conv_1", turn_id="turn_1", seq=3, ts="t")
    lines = get_dialect("native").sse(event).split(b"\n")
    assert lines[:2] == [b"id: turn_1:3", b"event: text"]
    assert orjson.loads(lines[2].removeprefix(b"data: "))["text"] == "a\r\nb\u2028c"
    assert lines[3:] == [b"", b""]


def test_native_field_names_are_camel_case() -> None:
    event = encode(ToolCall("call_1", "search", "kb", {"top_k": 1}), conversation_id="c", turn_id="t", seq=1, ts="t")
    frame = orjson.loads(get_dialect("native").frames(event)[0])
    assert (frame["toolCallId"], frame["toolName"], frame["arguments"]) == ("call_1", "search", {"top_k": 1})


def test_an_unknown_dialect_is_refused_with_the_known_ones() -> None:
    with pytest.raises(InvalidInput, match="native"):
        get_dialect("klingon")
    assert [get_dialect(name).name for name in dialect_names()] == list(dialect_names())
