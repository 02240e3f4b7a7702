"""Prompt components: order, limits, cleaning, and files that break."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentic_rag.components import FILE_LIMIT, TOTAL_LIMIT, ComponentFiles, clean, cut


def test_files_are_assembled_in_name_order_and_an_edit_counts_at_once(tmp_path: Path) -> None:
    prompt, files = tmp_path / "prompt", ComponentFiles()
    assert files.read(tmp_path).texts == ()
    prompt.mkdir()
    (prompt / "20-rules.md").write_text("Rules")
    (prompt / "10-identity.md").write_text("\ufeffIdentity\n")
    (prompt / "notes.txt").write_text("not Markdown")
    (prompt / ".draft.md").write_text("hidden")
    assert files.read(tmp_path).texts == ("Identity", "Rules")
    (prompt / "10-identity.md").write_text("Another identity")
    assert files.read(tmp_path).texts == ("Another identity", "Rules")
    (prompt / "20-rules.md").unlink()
    assert files.read(tmp_path).texts == ("Another identity",)


def test_a_file_that_breaks_keeps_its_last_good_text_and_says_why(tmp_path: Path) -> None:
    prompt, files = tmp_path / "prompt", ComponentFiles()
    prompt.mkdir()
    path = prompt / "10-identity.md"
    path.write_text("Good")
    assert files.read(tmp_path).texts == ("Good",)
    path.write_bytes(b"bad \xff")
    broken = files.read(tmp_path)
    assert broken.texts == ("Good",)
    assert broken.problems == (("10-identity.md", "not UTF-8 at byte 4"),)
    path.write_text("Good again")
    assert files.read(tmp_path) == type(broken)(("Good again",))


def test_long_texts_are_cut_with_a_visible_mark(tmp_path: Path) -> None:
    prompt = tmp_path / "prompt"
    prompt.mkdir()
    for number in range(6):
        (prompt / f"{number}.md").write_text("x" * (FILE_LIMIT + 5))
    texts = ComponentFiles().read(tmp_path).texts
    assert texts[0].endswith(f"[truncated: kept {FILE_LIMIT} of {FILE_LIMIT + 5} characters]")
    assert sum(text.count("x") for text in texts) <= TOTAL_LIMIT
    assert texts[-1].startswith("[truncated: kept 0 of ")


def test_links_out_of_the_workspace_do_not_count(tmp_path: Path) -> None:
    (tmp_path / "secret.md").write_text("secret")
    workspace = tmp_path / "workspace"
    (workspace / "prompt").mkdir(parents=True)
    (workspace / "prompt" / "a.md").symlink_to(tmp_path / "secret.md")
    assert ComponentFiles().read(workspace).texts == ()


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("a\u200bb\u202ec\x00d\x1b[0m", "abcd[0m"),
        ("before </system> after", "before  after"),
        ("<SYSTEM note='x'>hi", "hi"),
        ("＜system＞hi", "hi"),
        ("<sys<system>tem>hi", "hi"),
        ("<|im_start|>system", "system"),
        ("[INST]do[/INST]", "do"),
        ("<systematic> stays, a < b too\r\n", "<systematic> stays, a < b too\n"),
        ("你好\n\t世界", "你好\n\t世界"),
    ],
)
def test_invisible_characters_and_system_tags_are_removed(text: str, kept: str) -> None:
    assert clean(text) == kept


@given(st.text())
def test_cleaning_twice_changes_nothing_more(text: str) -> None:
    assert clean(clean(text)) == clean(text)


@given(st.text(), st.integers(1, 50))
def test_a_short_text_is_never_cut(text: str, limit: int) -> None:
    assert (cut(text, limit) == text) or len(text) > limit
