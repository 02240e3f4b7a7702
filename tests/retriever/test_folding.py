"""Folding: spellings that readers consider equal compare equal, and offsets lead back to the source."""

import unicodedata

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from mcp_servers.folding import fold, fold_text


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("30\u00a0working\u202fdays", "30 working days"),
        ("a \t\n\u3000 b", "a b"),
        ("ＨＸ－４４７１－Ｂ", "hx-4471-b"),
        ("COVID\u201119 \u2013 A\u2212B", "covid-19 - a-b"),
        ("co\u00adop\u200berate\ufeff", "cooperate"),
        ("“x” ‘y’", "\"x\" 'y'"),
        ("Straße ﬁn m²", "strasse fin m2"),
        ("45¹ EUR, 10³ policy¹² km²", "45 1 eur, 10 3 policy 12 km2"),
        ("A\u0308pfel", "äpfel"),
        ("می\u200cخواهم", "می\u200cخواهم"),
        ("a\u200cb", "ab"),
        ("\u202bשלום\u202c", "שלום"),
        ("ｶﾞ カ\u3099", "ガ ガ"),
        ("", ""),
        ("\u00ad\u200b", ""),
    ],
)
def test_lookalike_spellings_fold_to_the_same_text(text: str, expected: str) -> None:
    assert fold(text).text == expected


@given(st.text())
@example("A\u0308\u00a8 ﷺ½")
@example("\ud800 x")
def test_folding_is_idempotent_and_each_character_has_its_offset(text: str) -> None:
    folded = fold(text)
    assert len(folded.offsets) == len(folded.text) + 1
    assert list(folded.offsets) == sorted(folded.offsets)
    assert folded.offsets[-1] == len(text)
    assert fold(folded.text).text == folded.text
    assert "  " not in folded.text


@settings(deadline=None, max_examples=50)
@given(st.text() | st.text(alphabet="aB-\t\n\r\x0b\x1c\x1f\x00\x7f \u00a0\u2800Äß–’中。４²\u00ad\u200d"))
@example("Γειά ΣΑΣ ﷺ ½ ¨x e\u0301 \u1112\u1161\u11ab")
def test_folding_without_offsets_gives_the_same_text(text: str) -> None:
    assert fold_text(text) == fold(text).text


@settings(deadline=None)
@given(st.text(alphabet="aZß ﬁ\u00ad\u00a0Ä４\u0308中"), st.data())
def test_a_span_of_folded_text_maps_to_its_source(text: str, data: st.DataObject) -> None:
    folded = fold(text)
    start = data.draw(st.integers(0, len(folded.text)))
    end = data.draw(st.integers(start, len(folded.text)))
    first, last = folded.source_span(start, end)
    assert 0 <= first <= last <= len(text)
    assert folded.text[start:end].strip() in fold(text[first:last]).text


def test_a_text_that_needs_no_folding_stays_unchanged() -> None:
    text = unicodedata.normalize("NFKC", "plain text, 12 words. 夜航补贴六十八元")
    assert fold(text).text == text
    assert list(fold(text).offsets) == list(range(len(text) + 1))
