"""Words, questions and ratings: the comparisons of the extractive model."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentic_rag.models.extractive import FoundPassage, question_terms, rate
from agentic_rag.models.words import content_words, language_of, stem, terms


def best_sentence(question: str, *sentences: str, title: str = "") -> str:
    """The sentence with the highest rating."""
    ratings = rate(question_terms(question), FoundPassage(title, sentences))
    return sentences[ratings.index(max(ratings))]


@pytest.mark.parametrize(
    ("inflection", "base"),
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
def test_inflections_of_a_word_have_one_stem(inflection: str, base: str) -> None:
    assert stem(inflection) == stem(base)


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


def test_a_running_title_is_not_an_answer() -> None:
    sentences = ("Pump manual, page 3 of 9", "It lifts 40 litres.")
    assert best_sentence("What does the pump manual say about litres?", *sentences, title="Pump manual") == sentences[1]


def test_a_part_of_a_compound_is_another_word() -> None:
    sentences = ("Each part has a number.", "Part-timers get half of it.")
    assert best_sentence("What do part-timers get?", *sentences) == sentences[1]
    assert "part" not in terms("part-timers")


def test_a_code_is_found_in_its_row() -> None:
    rows = ("E4 | tray full | empty it", "E6 | no signal | call service")
    assert best_sentence("What on earth does error Ｅ６ on my display want from me?", *rows) == rows[1]


def test_question_words_have_no_weight() -> None:
    assert content_words("请问多少钱？") == []
    assert content_words("How much does the filter cost?") == ["filter", "cost"]
    assert question_terms("一共多少钱").keys() == {"一共"}


@settings(deadline=None)
@given(st.text(), st.lists(st.text(), max_size=4), st.text())
def test_any_text_can_be_rated(question: str, sentences: list[str], title: str) -> None:
    ratings = rate(question_terms(question), FoundPassage(title, tuple(sentences)))
    assert len(ratings) == len(sentences)
    assert all(0 <= rating <= 1.001 for rating in ratings)
