"""The place of a passage in another reading of the same text. Pure, so tested with generated texts."""

import unicodedata

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from agentic_rag.documents.text_positions import Letters, Range, find_text, locate, sentences_within

WORDS = st.text(
    st.characters(codec="utf-8", categories=("Ll", "Lu", "Nd", "Lo", "Po", "Zs")) | st.sampled_from("ﬁﬀé年假。"),
    max_size=60,
)


def ranges_of(page: str, passage: str, cited: str = "") -> tuple[list[str], list[str]]:
    offset = passage.find(cited)
    location = locate(page, passage, [Range(0, len(passage))], Range(offset, offset + len(cited)) if cited else None)
    return [page[start:end] for start, end in location.passage], [page[start:end] for start, end in location.cited]


@pytest.mark.parametrize(
    ("page", "passage", "text_on_page"),
    [
        ("The e\ufb03cient of\ufb01ce.", "efficient office", "e\ufb03cient of\ufb01ce"),
        ("twenty-\nfive effi\x02cient days", "twenty-five efficient", "twenty-\nfive effi\x02cient"),
        ("every\xa0  full\u2010time \n employee", "full-time employee", "full\u2010time \n employee"),
        ("cafe\u0301 au lait", "caf\xe9 au", "cafe\u0301 au"),
        ("员工每年享有 二十五\n天带薪年假。", "享有二十五天带薪年假。", "享有 二十五\n天带薪年假"),
        ("He said \u201cno\u201d \u2013 twice", 'said "no" - twice', "said \u201cno\u201d \u2013 twice"),
        ("ＡＢＣ１２３ form", "abc123 Form", "ＡＢＣ１２３ form"),
        ("x 𠮷野 y", "𠮷野", "𠮷野"),
    ],
)
def test_other_readings_of_the_same_characters_are_found(page: str, passage: str, text_on_page: str) -> None:
    assert ranges_of(page, passage)[0] == [text_on_page]


@pytest.mark.parametrize(
    ("text", "row", "offset"),
    [
        ("Lead | 30\nLead | 3", "Lead | 3", 10),
        ("Team Lead | 3\nLead | 3", "Lead | 3", 14),
        ("12 mm or 2 mm", "2 mm", 9),
        ("共30天，3天", "3天", 5),
    ],
)
def test_a_row_is_not_found_inside_another_row(text: str, row: str, offset: int) -> None:
    assert find_text(text, row) == Range(offset, offset + len(row))


ROWS = "A12 5\nA1 25\nValve closed in\nwinter 40\nof each year\nPump 7\nPump 7"


@pytest.mark.parametrize(
    ("row", "marked"),
    [
        ("A1 | 25", ["A1 25"]),
        ("Valve | closed in winter of each year | 40", ["Valve closed in\nwinter 40\nof each year"]),
        ("25 | A1", ["A1 25"]),
        ("2 | A1 5", []),  # no line contains all of it
    ],
)
def test_a_row_is_marked_where_the_page_has_it_whole_and_once(row: str, marked: list[str]) -> None:
    assert ranges_of(ROWS, row, row)[1] == marked


@given(WORDS, WORDS, WORDS, st.integers(0, 60), st.integers(0, 60))
@example("", "ﬁ", "", 0, 1)
def test_a_part_of_a_text_is_found_where_it_has_the_same_letters(
    before: str, passage: str, after: str, first_offset: int, second_offset: int
) -> None:
    start, end = sorted((min(first_offset, len(passage)), min(second_offset, len(passage))))
    cited = Range(start, end) if start < end else None
    spread_passage = "\n ".join(passage)
    location = locate(f"{before}\n{spread_passage}\n{after}", passage, [Range(0, len(passage))], cited)
    page = f"{before}\n{spread_passage}\n{after}"
    letters = Letters.of(passage).text
    assert bool(location.passage) == bool(letters)
    assert location.whole == bool(letters)
    for part in location.passage:
        assert letters in Letters.of(page[part.start : part.end]).text
    for part in location.cited:
        assert location.passage[0].start <= part.start < part.end <= location.passage[0].end
        assert Letters.of(passage[start:end]).text in Letters.of(page[part.start : part.end]).text


@given(WORDS, WORDS)
def test_found_text_has_the_searched_letters_and_an_empty_text_is_not_found(text: str, passage: str) -> None:
    place = find_text(text, passage)
    if place is not None:
        assert Letters.of(passage).text in Letters.of(text[place.start : place.end]).text
        assert 0 <= place.start < place.end <= len(text)
    else:
        assert not passage.strip() or passage.strip() not in text


@given(st.text(max_size=40))
def test_extracted_letters_have_their_source_positions(text: str) -> None:
    letters = Letters.of(text)
    assert len(letters.text) == len(letters.places)
    assert letters.places == sorted(letters.places)
    for letter, place in zip(letters.text, letters.places, strict=True):
        assert letter in unicodedata.normalize("NFKD", text[place]).casefold()


def test_a_passage_not_present_in_one_piece_is_found_sentence_by_sentence() -> None:
    first, second = "Leave is twenty-five days.", "It is carried over."
    passage = f"{first} {second}"
    sentences = [Range(0, len(first)), Range(len(first) + 1, len(passage))]
    page = f"It is carried on. {first}\nFigure 3: a tree\n{second} It is carried over."
    location = locate(page, passage, sentences, sentences[1])
    assert not location.whole
    assert [page[start:end] for start, end in location.passage] == [first[:-1], second[:-1]]
    assert location.cited == location.passage[1:]
    assert locate(page, "Something else.", [Range(0, 15)], Range(0, 4)).passage == ()
    assert locate("", passage, sentences, None).passage == ()


def test_a_cited_text_beyond_its_passage_is_cut_to_the_passages_sentences() -> None:
    text = "One is here. Two is there. Three is nowhere."
    sentences = [Range(0, 12), Range(13, 26), Range(27, 44)]
    place = sentences_within(text, sentences, "Two is there. Three is nowhere. Four is beyond.")
    assert place is not None
    assert text[place.start : place.end] == "Two is there. Three is nowhere."
    assert sentences_within(text, sentences, "Nothing of it") is None
