"""Words, questions and ratings: what the extractive model compares."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentic_rag.models.extractive import Passage, rate, understand
from agentic_rag.models.words import content_words, language_of, numbered_things, stem, terms


def best(question: str, *sentences: str, title: str = "") -> str:
    """The sentence with the highest rating."""
    ratings = rate(understand(question), [Passage(title, sentences)])[0]
    return sentences[max(range(len(sentences)), key=lambda index: ratings[index].score)]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("filters", "filter"),
        ("replaced", "replacement"),
        ("replacing", "replace"),
        ("batteries", "battery"),
        ("stopped", "stop"),
        ("installation", "installed"),
        ("boxes", "box"),
    ],
)
def test_inflections_of_a_word_have_one_stem(one: str, other: str) -> None:
    assert stem(one) == stem(other)


@pytest.mark.parametrize(
    ("text", "language"),
    [
        ("How long is the warranty?", "en"),
        ("保修期多长？", "zh"),
        ("Brisa 300 的保修期多长？", "zh"),
        ("What does 微风 mean in English, please?", "en"),
        ("", "en"),
    ],
)
def test_the_language_is_that_of_most_words(text: str, language: str) -> None:
    assert language_of(text) == language


def test_a_question_for_a_number_prefers_the_sentence_that_has_one() -> None:
    sentences = ("Leave is granted by the manager of the team.", "Leave of 27 days is granted each year.")
    assert best("How many days of leave are granted?", *sentences) == sentences[1]
    assert best("Who grants leave?", *sentences) == sentences[0]


def test_a_question_for_a_time_prefers_the_sentence_that_has_one() -> None:
    sentences = ("食堂在二楼，供应午餐。", "食堂11:30开门供应午餐。")
    assert best("食堂什么时候供应午餐？", *sentences) == sentences[1]
    assert best("食堂在哪里？", *sentences) == sentences[0]


def test_a_running_title_is_no_answer() -> None:
    sentences = ("Pump manual, page 3 of 9", "It lifts 40 litres.")
    assert best("What does the pump manual say about litres?", *sentences, title="Pump manual") == sentences[1]


def test_a_code_alone_makes_a_sentence_relevant() -> None:
    passage = Passage("Codes", ("E4 | tray full | empty it", "E6 | no signal | call service"))
    ratings = rate(understand("What on earth does error E6 on my display want from me?"), [passage])[0]
    assert [rating.relevant for rating in ratings] == [False, True]


def test_numbered_things_are_found_in_both_scripts() -> None:
    assert numbered_things("Brisa 300, 微风900 and version 4.1") == {
        "brisa": frozenset({"300"}),
        "微风": frozenset({"900"}),
        "version": frozenset({"4.1"}),
    }


def test_question_words_carry_nothing() -> None:
    assert content_words("请问多少钱？") == []
    assert content_words("How much does the filter cost?") == ["filter", "cost"]
    assert "多少" not in terms("一共多少钱", question=True)


@settings(deadline=None)
@given(st.text(), st.lists(st.text(), max_size=4), st.text())
def test_any_text_can_be_rated(question: str, sentences: list[str], title: str) -> None:
    ratings = rate(understand(question), [Passage(title, tuple(sentences))])
    assert len(ratings[0]) == len(sentences)
    assert all(0 <= rating.score < 4 for rating in ratings[0])
