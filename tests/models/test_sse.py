"""The SSE reader: the same events for all chunkings, line ends and spellings."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from agentic_rag.base.errors import EventTooLarge
from agentic_rag.models.sse import SSEReader

Events = list[tuple[str, bytes]]


def read_events(*chunks: bytes, limit: int = 1000) -> Events:
    reader = SSEReader(limit)
    return [event for chunk in chunks for event in reader.feed(chunk)]


def cut_data(data: bytes, offsets: list[int]) -> list[bytes]:
    ends = sorted({offset % (len(data) + 1) for offset in offsets} | {len(data)})
    return [data[start:end] for start, end in zip([0, *ends], ends, strict=False)]


SPELLINGS = """data: x|data:y|data|data: |data:  two|event: ping|event:named|event|: note||id: 7|retry: 5|unknown: z
|data: 你好 🚀|event: é|\ufeffdata: marked""".replace("\n", "")
LINES = st.sampled_from([line.encode() for line in SPELLINGS.split("|")])
WORDS = st.binary(max_size=3).filter(lambda data: data != b"" and not set(data) & set(b"\r\n"))
ENDS = st.sampled_from([b"\n", b"\r\n", b"\r"])


@given(st.lists(st.tuples(LINES, ENDS)), st.lists(st.integers(0, 10_000)))
def test_any_chunking_of_a_stream_gives_the_same_events(lines: list[tuple[bytes, bytes]], offsets: list[int]) -> None:
    data = b"".join(line + end for line, end in lines)
    assert (
        read_events(*cut_data(data, offsets))
        == read_events(data)
        == read_events(*(data[start : start + 1] for start in range(len(data))))
    )


@given(st.lists(LINES.filter(lambda line: line != b"")))
def test_the_kind_of_line_end_does_not_change_the_events(lines: list[bytes]) -> None:
    all_lines = [*lines, b"", b"data: last", b"", b""]
    assert (
        read_events(b"\n".join(all_lines)) == read_events(b"\r\n".join(all_lines)) == read_events(b"\r".join(all_lines))
    )


USUAL = st.builds(b"event: %b\ndata: %b\n\n".__mod__, st.tuples(st.sampled_from((b"", b"a", b"\xff")), WORDS))
ODD = st.sampled_from((b"\xef\xbb\xbf", b"\r", b"\n", b": note\n", b"data: x\n", b"event: named\n", b"data:"))


@given(st.lists(USUAL | USUAL | ODD, max_size=8), st.lists(st.integers(0, 200), max_size=4))
@example([b"data: x\n", b"event: a\ndata: y\n\n"], [])
@example([b"event: named\n", b"event: a\ndata: y\n\n", b"data: x\n\n"], [])
def test_events_in_the_usual_notation_take_the_fast_path_with_equal_results(
    pieces: list[bytes], offsets: list[int]
) -> None:
    data = b"".join(pieces)
    assert (
        read_events(data)
        == read_events(*cut_data(data, offsets))
        == read_events(*pieces)
        == read_events(*(bytes([byte]) for byte in data))
    )


@given(st.binary(max_size=300), st.lists(st.integers(0, 300)))
def test_any_bytes_are_decoded_equally_in_any_chunking(data: bytes, offsets: list[int]) -> None:
    assert read_events(*cut_data(data, offsets)) == read_events(data)


def test_an_event_has_its_name_and_its_data() -> None:
    assert read_events(b"event: ping\ndata: {}\n\n") == [("ping", b"{}")]


def test_an_event_without_a_name_is_a_message_event() -> None:
    assert read_events(b"data: 1\n\n") == [("message", b"1")]


def test_an_event_name_applies_to_one_event_only() -> None:
    assert read_events(b"event: a\ndata: 1\n\ndata: 2\n\n") == [("a", b"1"), ("message", b"2")]


def test_lines_of_data_are_joined_by_a_line_feed() -> None:
    assert read_events(b"data: a\ndata:\ndata: b\n\n") == [("message", b"a\n\nb")]


def test_only_one_leading_space_is_dropped() -> None:
    assert read_events(b"data:  a\n\n") == [("message", b" a")]


def test_comments_ids_and_unknown_fields_are_skipped() -> None:
    assert read_events(b": hello\nid: 3\nretry: 9\nfoo: bar\ndata: x\n\n") == [("message", b"x")]


def test_an_event_without_data_is_ignored() -> None:
    assert read_events(b"event: a\n\ndata\n\n\n\n") == []


def test_an_unfinished_event_at_the_end_is_ignored() -> None:
    assert read_events(b"data: x\n") == []


def test_an_event_is_emitted_at_its_empty_line() -> None:
    reader = SSEReader()
    assert reader.feed(b"data: x\r\n\r") == [("message", b"x")]
    assert reader.feed(b"\ndata: y\n\n") == [("message", b"y")]


def test_a_byte_order_mark_is_removed_from_the_first_line_only() -> None:
    assert read_events(b"\xef\xbb\xbfdata: x\n\n\xef\xbb\xbfdata: y\n\n") == [("message", b"x")]


@pytest.mark.parametrize("chunks", [[b"data: " + b"x" * 200], [b"x"] * 200, [b"data: xxxxxxxxx\n"] * 20])
def test_an_endless_line_or_event_is_refused_within_bounded_memory(chunks: list[bytes]) -> None:
    with pytest.raises(EventTooLarge, match="larger than 100 bytes"):
        read_events(*chunks, limit=100)


def test_small_events_do_not_add_up_to_the_size_limit() -> None:
    assert len(read_events(*[b"data: xxxxxxxxx\n\n"] * 50, limit=100)) == 50


@given(st.integers(1, 4), st.integers(0, 40))
def test_events_before_an_oversize_one_are_read_in_any_chunking(count: int, cut_at: int) -> None:
    data = b"data: small\n\n" * count + b"data: " + b"x" * 200 + b"\n\n"
    reader = SSEReader(100)
    events: Events = []

    def read_all() -> None:
        for chunk in (data[:cut_at], data[cut_at:], b""):
            events.extend(reader.feed(chunk))

    with pytest.raises(EventTooLarge):
        read_all()
    assert events == [("message", b"small")] * count
