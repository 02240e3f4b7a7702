"""Rules for every dialect, with any stream."""

import orjson
import pytest

from agentic_rag.base.events import DELTA_TYPES, EventBody
from agentic_rag.server.dialects import join
from tests.server.dialects.encoders import ENCODERS, make_encoder
from tests.server.dialects.reading import frames, parse_sse, stream
from tests.server.dialects.streams import FULL, INTERRUPTED, RESET, RESET_OF_DELEGATE, RESUMED, STREAMS

everywhere = pytest.mark.parametrize("name", ENCODERS)


def test_the_streams_have_every_kind_of_event() -> None:
    kinds = {event.type for events in STREAMS.values() for event in events}
    assert kinds == {kind.type for kind in EventBody.__args__}
    assert len({event.fields().get("agent") for event in FULL}) == 3
    assert kinds > DELTA_TYPES


@everywhere
def test_each_encoded_event_is_complete_sse_and_complete_frames(name: str) -> None:
    for kind, events in STREAMS.items():
        by_sse, by_frames = make_encoder(name), make_encoder(name)
        for event in events:
            body = by_sse.sse(event)
            assert body == b"" or body.endswith(b"\n\n"), kind
            assert bool(body) == bool(parse_sse(body.decode())), kind
            texts = by_frames.frames(event)
            assert isinstance(texts, tuple), kind
            assert all(isinstance(orjson.loads(text), dict) for text in texts), kind
        assert by_sse.ended == by_frames.ended, kind


@everywhere
def test_an_encoder_is_a_function_of_its_stream_alone(name: str) -> None:
    for kind, events in STREAMS.items():
        first, second = make_encoder(name), make_encoder(name)
        pairs = [(first.sse(event), second.sse(event)) for event in events]
        assert all(a == b for a, b in pairs), kind
        single = make_encoder(name)
        assert [single.sse(event) for event in events] == [piece for piece, _ in pairs], kind


@everywhere
def test_the_end_of_a_turn_is_announced(name: str) -> None:
    for kind, events in STREAMS.items():
        by_sse, by_frames = make_encoder(name), make_encoder(name)
        last = [by_sse.sse(event) for event in events][-1]
        assert last or by_sse.ended, kind
        closing = [by_frames.frames(event) for event in events][-1]
        assert closing or by_frames.ended, kind


@everywhere
@pytest.mark.parametrize("share", [0.3, 0.7])
def test_continuing_later_gives_exactly_the_rest(name: str, share: float) -> None:
    for kind, events in STREAMS.items():
        cut = max(1, int(len(events) * share))
        after = events[cut - 1].seq
        encoder = make_encoder(name)
        pieces = [(event.seq, encoder.sse(event)) for event in events]
        resumed = join(make_encoder(name), after)
        following = events if resumed.needs_start else events[cut:]
        expected = [piece for seq, piece in pieces if seq > after and piece]
        assert [piece for event in following if event.seq and (piece := resumed.sse(event))] == expected, kind


@everywhere
def test_a_step_is_retracted_or_the_stream_ends_with_its_error(name: str) -> None:
    for events in (RESET, RESUMED):
        encoder = make_encoder(name)
        text = stream(encoder, events)
        assert encoder.ended == ("STEP_RESET" in text)
        assert encoder.ended == ("words." not in text and "after." not in text)
        by_frames = make_encoder(name)
        text_of_frames = b"\n".join(frames(by_frames, events))
        assert by_frames.ended == (b"STEP_RESET" in text_of_frames)


@everywhere
def test_a_delegates_reset_does_not_end_the_answer_in_dialects_without_delegate_text(name: str) -> None:
    encoder = make_encoder(name)
    text = stream(encoder, RESET_OF_DELEGATE)
    assert encoder.ended == ("STEP_RESET" in text)


@everywhere
def test_an_interrupt_is_reported(name: str) -> None:
    text = stream(make_encoder(name), INTERRUPTED).lower()
    assert any(word in text for word in ("interrupt", "generation_aborted", "abort"))


@everywhere
def test_cells_marked_as_headers_are_header_lines(name: str) -> None:
    for key, value in make_encoder(name).headers:
        assert key == key.lower()
        assert b"\n" not in key + value
