"""Chunks and sentences: spans, sizes, headings, and texts that are never split."""

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcp_servers.retriever.chunking import MINIMUM_TOKENS, TARGET_TOKENS, Chunk, chunk_document
from mcp_servers.retriever.document import SEPARATOR, Block, ParsedDocument, row_groups
from mcp_servers.retriever.sentences import MAX_SENTENCE_TOKENS, TextSpan, estimate_tokens, split_sentences

from .corpus import HANDBOOK, RULES, long_section

PIECES = st.sampled_from(
    [
        "word ",
        "Dr. ",
        "3.5 ",
        "e.g. this ",
        "End. ",
        "What? ",
        "年假",
        "规定。",
        "吗？",
        "；",
        "…",
        "\n",
        "\n- item ",
        "，",
        " ",
        "A",
    ]
)
TEXTS = st.one_of(st.lists(PIECES, max_size=60).map("".join), st.text(max_size=200))
BLOCKS = st.builds(
    Block,
    kind=st.sampled_from(["heading", "prose", "list", "code", "table"]),
    text=TEXTS,
    level=st.integers(1, 6),
    page=st.one_of(st.none(), st.integers(1, 3)),
)
DOCUMENTS = st.lists(BLOCKS, max_size=12).map(lambda blocks: ParsedDocument(tuple(blocks)))


def sentences_of(text: str) -> list[str]:
    return [text[start:end] for start, end in split_sentences(text)]


def visible_offsets(text: str, spans: list[TextSpan]) -> set[int]:
    return {offset for span in spans for offset in range(*span) if not text[offset].isspace()}


@given(TEXTS)
def test_sentences_cover_every_visible_character_once_and_in_order(text: str) -> None:
    spans = list(split_sentences(text))
    assert all(before.end <= after.start for before, after in pairwise(spans))
    assert all(text[start:end] == text[start:end].strip() != "" for start, end in spans)
    assert visible_offsets(text, spans) == {offset for offset, letter in enumerate(text) if not letter.isspace()}


@given(DOCUMENTS)
def test_spans_of_chunks_and_sentences_slice_to_their_text(parsed: ParsedDocument) -> None:
    text = parsed.text
    for ordinal, chunk in enumerate(chunk_document(parsed, "d", "n")):
        assert chunk.ordinal == ordinal
        assert chunk.text == text[chunk.start : chunk.end] != ""
        assert chunk.sentences
        assert all(0 <= start < end <= len(chunk.text) for start, end in chunk.sentences)


@given(DOCUMENTS)
def test_every_visible_character_belongs_to_a_sentence_or_a_heading_path(parsed: ParsedDocument) -> None:
    chunks = chunk_document(parsed, "d", "n")
    spans = [TextSpan(chunk.start + start, chunk.start + end) for chunk in chunks for start, end in chunk.sentences]
    covered = visible_offsets(parsed.text, spans)
    offset = 0
    for block in parsed.blocks:
        visible = {
            position for position in range(offset, offset + len(block.text)) if not parsed.text[position].isspace()
        }
        assert visible <= covered or any(block.text in chunk.heading_path for chunk in chunks)
        offset += len(block.text) + len(SEPARATOR)


@given(DOCUMENTS)
def test_chunks_keep_their_size_and_stay_on_one_page(parsed: ParsedDocument) -> None:
    pages = [block.page for block in parsed.blocks for _ in block.text + SEPARATOR]
    for chunk in chunk_document(parsed, "d", "n"):
        assert {pages[offset] for start, end in chunk.sentences for offset in (chunk.start + start,)} == {chunk.page}
        assert sum(estimate_tokens(chunk.text[a:b]) for a, b in chunk.sentences) <= TARGET_TOKENS + MAX_SENTENCE_TOKENS


def test_chinese_sentences_end_at_full_width_marks_and_keep_closing_quotes() -> None:
    assert sentences_of("他说：“好。”然后走了！真的？是；不是……完") == [
        "他说：“好。”",
        "然后走了！",
        "真的？",
        "是；",
        "不是……",
        "完",
    ]


def test_abbreviations_numbers_and_initials_do_not_end_a_latin_sentence() -> None:
    text = "Dr. J. Smith paid 3.5 m, e.g. for Fig. 2. He left. Was it No. 7? Yes!"
    assert sentences_of(text) == ["Dr. J. Smith paid 3.5 m, e.g. for Fig. 2.", "He left.", "Was it No. 7?", "Yes!"]


@pytest.mark.parametrize("piece", [".", "1. ", " ", "\n", "word", "。", "\n ", ",", "a. ", "年"])
def test_a_long_run_of_one_character_is_chunked_quickly(piece: str) -> None:
    text = piece * (200_000 // len(piece)) + "x"
    chunks = chunk_document(ParsedDocument((Block("prose", text), Block("code", text))), "d", "n")
    assert chunks[-1].end == 2 * len(text) + len(SEPARATOR)


def test_many_headings_are_chunked_without_hanging() -> None:
    blocks = tuple(Block("heading", f"h{number}", 1 + number % 6) for number in range(20_000))
    assert len(chunk_document(ParsedDocument(blocks), "d", "n")) > 3_000


def test_a_list_number_is_not_a_sentence() -> None:
    assert sentences_of("1. Turn it off. \n2. Wait.") == ["1. Turn it off.", "2. Wait."]


def test_a_sentence_without_an_end_is_cut_at_a_comma() -> None:
    pieces = sentences_of("，".join(["违约责任"] * 200))
    assert all(estimate_tokens(piece) <= MAX_SENTENCE_TOKENS for piece in pieces)
    assert all(piece.endswith("，") for piece in pieces[:-1])


def test_headings_become_the_path_of_the_text_below_them() -> None:
    chunks = chunk_document(HANDBOOK, "d", "handbook.md")
    assert [chunk.heading_path for chunk in chunks] == [("Handbook", "Annual leave"), ("Handbook", "Sick leave")]


def test_a_heading_with_nothing_below_it_is_kept_as_text() -> None:
    blocks = (Block("heading", "Reserved", 1), Block("heading", "Scope", 1), Block("prose", "All staff."))
    assert [chunk.text for chunk in chunk_document(ParsedDocument(blocks), "d", "n")] == ["Reserved", "All staff."]


def test_a_long_section_is_cut_near_the_target_with_one_sentence_of_overlap() -> None:
    chunks = long_section(80)
    sizes = [estimate_tokens(chunk.text) for chunk in chunks]
    assert len(chunks) > 3
    assert all(MINIMUM_TOKENS <= size <= TARGET_TOKENS + MINIMUM_TOKENS for size in sizes)
    for before, after in pairwise(chunks):
        assert before.end > after.start
        assert after.text[slice(*after.sentences[0])] == before.text[slice(*before.sentences[-1])]


def test_code_and_table_lines_are_never_cut_and_never_repeated() -> None:
    rows = "\n".join(f"row {n} | {'value ' * 12}{n}" for n in range(60))
    parsed = ParsedDocument((Block("table", rows),))
    chunks = chunk_document(parsed, "d", "n")
    lines = [chunk.text[start:end] for chunk in chunks for start, end in chunk.sentences]
    assert len(chunks) > 1
    assert lines == rows.split("\n")


def test_rows_of_a_sheet_are_grouped_below_a_repeated_header() -> None:
    rows = [["name", "days"], *([f"person {n}", "x" * 90] for n in range(40))]
    groups = list(row_groups(rows))
    assert len(groups) > 2
    assert all(text.startswith("name | days\n") for _, _, text in groups)
    assert [number for first, last, _ in groups for number in range(first, last + 1)] == list(range(1, 41))


def test_chunk_ids_are_the_same_for_the_same_document_and_differ_between_documents() -> None:
    first, first_again, second = (chunk_document(RULES, document, "n") for document in ("a", "a", "b"))
    assert first == first_again
    assert not {chunk.chunk_id for chunk in first} & {chunk.chunk_id for chunk in second}


def test_a_chunk_is_equal_after_a_json_round_trip() -> None:
    for chunk in chunk_document(HANDBOOK, "a", "n"):
        assert Chunk.from_json(json.loads(json.dumps(dict(chunk.to_json())))) == chunk
