"""Citations for endpoints without them: passages go in, marks come out."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentic_rag.base.events import Usage
from agentic_rag.base.messages import Block, Message, plain_text, tool_result_block, user_message
from agentic_rag.models.base import (
    BlockStarted,
    BlockStopped,
    Citation,
    CitationDelta,
    MessageCompleted,
    MessageStarted,
    ModelEvent,
    ModelRequest,
    TextDelta,
    ThinkingDelta,
)
from agentic_rag.models.mark_reader import MarkReader
from agentic_rag.models.marks import (
    INSTRUCTION,
    MarkedAnswer,
    best_blocks,
    claim_of,
    with_numbered_passages,
    words_of,
)
from tests.growth import growth


def passage(title: str, *sentences: str) -> Block:
    content = [{"type": "text", "text": sentence} for sentence in sentences]
    return {"type": "search_result", "source": f"src:{title}", "title": title, "content": content, "_passage": {}}


LEAVE = passage("Leave", "Staff get 25 days of leave. ", "Sick leave needs a note. ", "Ask HR.")
PARKING = passage("Parking", "Parking costs 40 pounds a month.")


def read_answer(pieces: Sequence[str], passages: Sequence[Block] = (LEAVE, PARKING)) -> list[ModelEvent]:
    answer = MarkedAnswer(passages)
    events: list[ModelEvent] = [MessageStarted("m"), BlockStarted(0, {"type": "text", "text": ""})]
    events += [TextDelta(0, piece) for piece in pieces]
    events += [
        BlockStopped(0, {"type": "text", "text": "".join(pieces)}),
        MessageCompleted("end_turn", Usage()),
    ]
    return [out for event in events for out in answer.take(event)]


def blocks(events: Sequence[ModelEvent]) -> list[Block]:
    return [event.block for event in events if isinstance(event, BlockStopped)]


def citations(events: Sequence[ModelEvent]) -> list[Citation]:
    return [event.citation for event in events if isinstance(event, CitationDelta)]


def test_search_results_become_text_numbered_over_the_whole_request() -> None:
    call: Message = {"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "look", "input": {}}]}
    answer: Message = {"role": "user", "content": [tool_result_block("t", [PARKING]), {"type": "text", "text": "and?"}]}
    question: Message = {"role": "user", "content": [LEAVE]}
    request, passages = with_numbered_passages(ModelRequest("m", 1, (), (question, call, answer)))
    assert passages == [LEAVE, PARKING]
    assert request.messages[0]["content"][0]["text"].startswith("[1] Leave\nStaff get 25 days of leave. \nSick")
    assert request.messages[2]["content"][0]["content"] == [
        {"type": "text", "text": "[2] Parking\nParking costs 40 pounds a month."}
    ]
    assert request.messages[1] == call
    assert request.system[-1]["text"] == INSTRUCTION


def test_the_instruction_precedes_the_first_search() -> None:
    request, passages = with_numbered_passages(ModelRequest("m", 1, (), (user_message("hi"),)))
    assert passages == []
    assert request.system[-1]["text"] == INSTRUCTION


def test_a_citation_mark_cites_the_most_similar_sentence() -> None:
    events = read_answer(["You need a note for sick leave [[1]]."])
    (citation,) = citations(events)
    assert (citation.search_result_index, citation.start, citation.end) == (0, 1, 2)
    assert citation.cited_text == "Sick leave needs a note. "
    assert citation.raw == {
        "type": "search_result_location",
        "cited_text": "Sick leave needs a note. ",
        "search_result_index": 0,
        "source": "src:Leave",
        "title": "Leave",
        "start_block_index": 1,
        "end_block_index": 2,
    }
    assert blocks(events) == [{"type": "text", "text": "You need a note for sick leave.", "citations": [citation.raw]}]


def test_each_marked_statement_gets_its_own_block_and_the_rest_follows() -> None:
    events = read_answer(["25 days [[1]]. Parking is 40 pounds[[2]][[1]]! Anything else?"])
    assert [block["text"] for block in blocks(events)] == ["25 days.", " Parking is 40 pounds!", " Anything else?"]
    assert [len(block.get("citations", [])) for block in blocks(events)] == [1, 2, 0]
    indexes = [event.index for event in events if isinstance(event, BlockStarted | BlockStopped)]
    assert indexes == [0, 0, 1, 1, 2, 2]


def test_a_citation_mark_at_the_end_leaves_no_empty_block() -> None:
    events = read_answer(["25 days [[1]]", ".\n"])
    assert [block["text"] for block in blocks(events)] == ["25 days.\n"]


def test_unknown_marks_are_removed_and_cite_nothing() -> None:
    events = read_answer(["A [[3]] b [[0]]."])
    assert plain_text(blocks(events)) == "A b."
    assert all("citations" not in block for block in blocks(events))
    assert [(citation.search_result_index, citation.start, citation.end) for citation in citations(events)] == [
        (2, 0, 0),
        (-1, 0, 0),
    ]


def test_a_citation_mark_before_any_text_cites_nothing() -> None:
    events = read_answer(["[[1]] So."])
    assert plain_text(blocks(events)) == " So."
    assert [(citation.start, citation.end) for citation in citations(events)] == [(0, 0)]


NO_MARKS = (
    "[[x]] [x] [^1] [ ]",
    "list[[",
    "[ [1]]",
    "[[1]",
    "[[1234567]] in [2024]",
    "x [[",
    "the items [0] and [0, 1] of it",
    "see [1](https://example.org) and [[2]](https://example.org)",
    "over [1-400] days, or [5-2]",
    "`a[1]` and ``b[[1]] ` 【2】`` end",
    "```\nx[1]\n```",
    "- so:\n  ```python\n  x[1] [[2]]\n  ```",
    "~~~\n[1]\n```\n[2]\n~~~",
    "````\n```\n[1]\n````",
)


@pytest.mark.parametrize("text", NO_MARKS)
def test_text_that_is_not_a_mark_stays_text(text: str) -> None:
    for pieces in ([text], list(text)):
        events = read_answer(pieces)
        assert plain_text(blocks(events)) == text
        assert citations(events) == []


@pytest.mark.parametrize(
    ("marks", "cited_results"),
    [
        ("[1]", [0]),
        ("【1】", [0]),
        ("【2†handbook.md】", [1]),
        ("[[1, 2]]", [0, 1]),
        ("[1,2]", [0, 1]),
        ("[1-2]", [0, 1]),
        ("[[1–2]]", [0, 1]),
        ("【1、2】", [0, 1]),
        ("[2][1]", [1, 0]),
        ("[1] [2]", [0, 1]),
        ("[1; 1]", [0]),
    ],
)
def test_variant_citation_marks_are_accepted(marks: str, cited_results: list[int]) -> None:
    for pieces in ([f"25 days {marks}."], list(f"25 days {marks}.")):
        events = read_answer(pieces)
        assert plain_text(blocks(events)) == "25 days."
        assert [citation.search_result_index for citation in citations(events)] == cited_results


@pytest.mark.parametrize("marks", ["[[9]]", "[9]", "【9】", "[9, 10]"])
def test_nonexistent_marks_are_removed_and_reported(marks: str) -> None:
    events = read_answer([f"25 days {marks}."])
    assert plain_text(blocks(events)) == "25 days."
    assert citations(events)
    assert all(citation.start == citation.end for citation in citations(events))


def test_without_passages_only_unambiguous_marks_are_removed() -> None:
    events = read_answer(["The matrix [1, 2] is small [[3]]【4】."], ())
    assert plain_text(blocks(events)) == "The matrix [1, 2] is small."
    assert [citation.search_result_index for citation in citations(events)] == [2, 3]


def test_citation_marks_after_code_are_read_again() -> None:
    text = "Use `x[1]` so [1].\n```py\ny[2]\n```\nParking costs 40 pounds [2]. A ` alone [1]\n\nends [1]."
    for pieces in ([text], list(text)):
        events = read_answer(pieces)
        assert [citation.search_result_index for citation in citations(events)] == [0, 1, 0]
        assert "`x[1]`" in plain_text(blocks(events))
        assert "y[2]" in plain_text(blocks(events))


def test_a_claim_that_shares_no_word_with_its_passage_is_not_verified() -> None:
    events = read_answer(["Parking costs 40 pounds [[2]]. The moon is made of cheese [[2]]. 新风机 [[1]]."])
    assert [citation.verified for citation in citations(events)] == [True, False, False]


def test_an_earlier_answer_is_sent_back_with_its_citation_marks() -> None:
    (answer,) = blocks(read_answer(["You need a note for sick leave [[1]][[2]]."]))
    result: Message = {"role": "user", "content": [tool_result_block("t", [LEAVE, PARKING])]}
    earlier_answer: Message = {"role": "assistant", "content": [answer]}
    request, _ = with_numbered_passages(ModelRequest("m", 1, (), (result, earlier_answer)))
    assert request.messages[1]["content"] == [{"type": "text", "text": "You need a note for sick leave.[[1]][[2]]"}]
    changed_answer = {**answer, "citations": [{**answer["citations"][0], "search_result_index": 1}, {"type": "odd"}]}
    request, _ = with_numbered_passages(
        ModelRequest("m", 1, (), (result, {**earlier_answer, "content": [changed_answer]}))
    )
    assert request.messages[1]["content"] == [{"type": "text", "text": "You need a note for sick leave."}]


def test_reading_marks_takes_linear_time() -> None:
    def feed(text: str) -> None:
        reader = MarkReader()
        for start in range(0, len(text), 8):
            list(reader.feed(text[start : start + 8]))
        list(reader.end())

    for piece in ("[", "`", "~", "[1,", " ", "【1†x", "\n", "a [[1]] "):
        short_text, long_text = piece * (16_000 // len(piece)), piece * (64_000 // len(piece))
        assert growth(feed, short_text, long_text) < 11, piece


PIECES = ("word ", "词。", "[[1]]", " [[2]]", "[[7]]", "[", "[[", "]]", "]", "1", " ", "\n", ".", "[[12", "[1, 2]", "(")
CODE = ("0", "`", "```", "~~~", "【1】", "†", "-", ",", "[2]")
TEXTS = st.lists(st.sampled_from((*PIECES, *CODE))).map("".join)


@given(TEXTS, st.lists(st.integers(0, 200)))
def test_any_chunking_of_an_answer_gives_the_same_blocks_without_marks(text: str, offsets: list[int]) -> None:
    ends = sorted({offset % (len(text) + 1) for offset in offsets} | {len(text)})
    pieces = [text[start:end] for start, end in zip([0, *ends], ends, strict=False)]
    events, whole_events = read_answer(pieces), read_answer([text])
    assert blocks(events) == blocks(whole_events)
    assert citations(events) == citations(whole_events)
    deltas = "".join(event.text for event in events if isinstance(event, TextDelta))
    assert deltas == plain_text(blocks(events))
    assert "[[1]] " not in text or set("`~") & set(text) or len(deltas) < len(text)


def test_blocks_of_other_kinds_keep_their_position_beside_split_text() -> None:
    answer = MarkedAnswer([LEAVE])
    use: Block = {"type": "tool_use", "id": "t", "name": "look", "input": {}}
    thought: Block = {"type": "thinking", "thinking": "hm", "signature": "s"}
    events: list[ModelEvent] = [
        BlockStarted(0, thought),
        ThinkingDelta(0, "hm"),
        BlockStopped(0, thought),
        BlockStarted(1, {"type": "text", "text": ""}),
        TextDelta(1, "25 days [[1]]. More"),
        BlockStopped(1, {"type": "text", "text": "25 days [[1]]. More"}),
        BlockStarted(2, use),
        BlockStopped(2, use),
    ]
    out = [out_event for event in events for out_event in answer.take(event)]
    assert [(event.index, event.block["type"]) for event in out if isinstance(event, BlockStopped)] == [
        (0, "thinking"),
        (1, "text"),
        (2, "text"),
        (3, "tool_use"),
    ]
    assert ThinkingDelta(0, "hm") in out


def test_without_a_shared_word_the_whole_passage_is_cited() -> None:
    assert best_blocks(words_of(LEAVE), claim_of("It is so.")) == (0, 3)


def test_only_the_last_sentence_before_the_mark_counts() -> None:
    assert best_blocks(words_of(LEAVE), claim_of("Sick leave needs a note. Staff get 25 days")) == (0, 1)


def test_scripts_without_spaces_are_matched_too() -> None:
    chinese = passage("假期", "员工每年有二十五天假期。", "病假需要医生证明。")
    assert best_blocks(words_of(chinese), claim_of("请病假要有医生的证明")) == (1, 2)


def test_a_passage_is_cited_once_after_a_statement() -> None:
    events = read_answer(["Staff get 25 days of leave [[1]][[1]] [[2]]. [[1]] Parking costs 40 [[2]]"])
    assert [len(block.get("citations", ())) for block in blocks(events)] == [2, 1]
    assert [citation.cited_text for citation in citations(events)] == [
        "Staff get 25 days of leave. ",
        "Parking costs 40 pounds a month.",
        "Parking costs 40 pounds a month.",
    ]
