"""Titles, file names and languages: pure functions over foreign text."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentic_rag.conversations.titles import MAX_CHARACTERS, title_of
from agentic_rag.directory.collection import CollectionFacts, collection_note
from agentic_rag.directory.languages import languages_of
from agentic_rag.documents.files import MAX_NAME_BYTES, clean_name
from mcp_servers.retriever.formats import media_type


@pytest.mark.parametrize(
    ("content", "title"),
    [
        ("Hello", "Hello"),
        ("  two\n lines ", "two lines"),
        ("First. Second sentence that goes on and on beyond any limit there is.", "First."),
        ("word " * 30, "word word word word word word word word word word word…"),
        (
            "年假有多少天？试用期内可以请假吗？" * 5,
            "年假有多少天？试用期内可以请假吗？" * 3 + "年假有多少天？",
        ),
        ("x" * 80, "x" * 59 + "…"),
    ],
)
def test_a_title_ends_at_a_sentence_or_a_word(content: str, title: str) -> None:
    assert title_of(content) == title


@given(st.text(min_size=1).filter(lambda text: bool(text.strip())))
def test_a_title_is_short_and_never_empty(content: str) -> None:
    assert 0 < len(title_of(content)) <= MAX_CHARACTERS


@given(st.text())
def test_a_cleaned_name_is_one_harmless_path_component(name: str) -> None:
    cleaned = clean_name(name)
    assert cleaned
    assert cleaned not in (".", "..")
    assert not cleaned.startswith(".")
    assert not set(cleaned) & set("/\\\x00\n")
    assert len(cleaned.encode()) <= MAX_NAME_BYTES


def test_a_long_name_keeps_its_ending() -> None:
    assert clean_name("说" * 300 + ".md").endswith("说.md")


def test_media_types_follow_the_suffix() -> None:
    assert media_type("a.PDF") == "application/pdf"
    assert media_type("a.md") == "text/markdown"
    assert media_type("a.unheard") == "application/octet-stream"


@pytest.mark.parametrize(
    ("text", "languages"),
    [
        ("The notice period is one month and it begins with the letter.", ("en",)),
        ("员工每年享有二十五天带薪年假。", ("zh",)),
        ("Die Frist beginnt mit dem Brief und ist nicht verlängerbar.", ("de",)),
        ("The rule 规则 is the same for both 两个办公室都适用同一规则 and for all.", ("en", "zh")),
        ("これは日本語の文章です。漢字もあります。", ("ja",)),
        ("12345 67", ()),
        ("", ()),
    ],
)
def test_languages_are_recognised_by_script_and_common_words(text: str, languages: tuple[str, ...]) -> None:
    assert languages_of(text) == languages


def test_the_collections_description_is_stable_when_a_document_is_added() -> None:
    def note(count: int) -> str:
        return collection_note(CollectionFacts(count, ("en", "zh")), "labour law")

    assert note(0) == ""
    assert note(1) == "The collection holds 1 document in English, Chinese. Field: labour law"
    assert note(2) == note(9)
    assert note(9) != note(10)
    assert "fewer than 100 documents" in note(10)
