"""Prompt components: order, limits, cleaning, and broken files."""

import os
import re
import tempfile
import unicodedata
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agentic_rag.domains.components import (
    FILE_LIMIT,
    READ_LIMIT,
    TOTAL_LIMIT,
    ComponentFiles,
    Components,
    clean,
    clean_within,
    cut,
)

PATIENT = settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow])
MARK = re.compile(r"\n?\[truncated: kept (\d+) of (\d+) characters\]$")

WORDS = ["system", "SYSTEM", "ｓｙｓｔｅｍ", "ѕуѕtem", "sys", "tem", "antml:", "invoke", "a", "你", "x='1'"]
MARKS = ["<", ">", "＜", "＞", "/", "<system>", "</user>", "[IN", "ST]", "[INST]", "<|", "|>", "<<SYS>>"]
TAG_PIECES = st.sampled_from([*WORDS, *MARKS, " ", "\n", "\u200b", "\ufe0f"])


def test_files_are_joined_in_name_order_and_an_edit_applies_at_once(tmp_path: Path) -> None:
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


def test_a_broken_file_keeps_its_last_good_text_and_gives_the_reason(tmp_path: Path) -> None:
    prompt, files = tmp_path / "prompt", ComponentFiles()
    prompt.mkdir()
    path = prompt / "10-identity.md"
    path.write_text("Good")
    assert files.read(tmp_path).texts == ("Good",)
    path.write_bytes(b"bad \xff")
    result = files.read(tmp_path)
    assert result.texts == ("Good",)
    assert result.problems == (("10-identity.md", "not UTF-8 at byte 4"),)
    path.write_text("Good again")
    assert files.read(tmp_path) == Components(("Good again",), (), ("10-identity.md",))
    path.write_bytes(b"x" * (READ_LIMIT + 1))
    assert files.read(tmp_path).problems == (("10-identity.md", "it has more than 256 KiB"),)
    path.unlink()
    assert files.read(tmp_path) == Components()
    path.write_bytes(b"\xff")
    assert files.read(tmp_path).texts == ()  # the text of the deleted file must not reappear


def test_a_folder_that_cannot_be_listed_keeps_what_was_read(tmp_path: Path) -> None:
    prompt, files = tmp_path / "prompt", ComponentFiles()
    prompt.mkdir()
    (prompt / "10-identity.md").write_text("Good")
    assert files.read(tmp_path).texts == ("Good",)
    prompt.chmod(0)
    try:
        result = files.read(tmp_path)
    finally:
        prompt.chmod(0o700)
    assert result.texts == ("Good",)
    assert result.problems or os.geteuid() == 0  # the superuser can list it nevertheless


def test_long_texts_are_cut_with_a_visible_mark(tmp_path: Path) -> None:
    prompt = tmp_path / "prompt"
    prompt.mkdir()
    for number in range(6):
        (prompt / f"{number}.md").write_text("x" * (FILE_LIMIT + 5))
    texts = ComponentFiles().read(tmp_path).texts
    assert texts[0].endswith(f"[truncated: kept {FILE_LIMIT} of {FILE_LIMIT + 5} characters]")
    assert sum(text.count("x") for text in texts) <= TOTAL_LIMIT
    assert texts[-1] == f"[truncated: kept 0 of {FILE_LIMIT + 5} characters]"


@pytest.mark.attack(kind="files")
def test_links_out_of_the_workspace_do_not_count(tmp_path: Path) -> None:
    (tmp_path / "secret.md").write_text("secret")
    workspace = tmp_path / "workspace"
    (workspace / "prompt").mkdir(parents=True)
    (workspace / "prompt" / "a.md").symlink_to(tmp_path / "secret.md")
    assert ComponentFiles().read(workspace).texts == ()


@pytest.mark.parametrize(
    ("text", "cleaned"),
    [
        ("a\u200bb\u202ec\x00d\x1b[0m", "abcd[0m"),
        ("before </system> after", "before  after"),
        ("<SYSTEM note='x'>hi", "hi"),
        ("＜system＞hi", "hi"),
        ("＜ｓｙｓｔｅｍ＞hi", "hi"),
        ("<ѕуѕtem>hi</ѕуѕtem>", "hi"),
        ("<s\u200by\ufe0fs\U000e0100tem>hi", "hi"),
        ("<system-reminder>hi</system_prompt>", "hi"),
        ("</antml:invoke>hi", "hi"),
        ("a\u2028b\rc", "a\nb\nc"),
        ("<sys<system>tem>hi", "hi"),
        ("<|im_start|>system", "system"),
        ("[INST]do[/INST]", "do"),
        ("<systematic> stays, a < b too\r\n", "<systematic> stays, a < b too\n"),
        ("你好\n\t世界", "你好\n\t世界"),
    ],
)
def test_invisible_characters_and_system_tags_are_removed(text: str, cleaned: str) -> None:
    assert clean(text) == cleaned


@PATIENT
@given(st.lists(TAG_PIECES, max_size=60).map("".join))
def test_nested_tags_do_not_reappear_after_cleaning(text: str) -> None:
    cleaned = clean(text)
    assert clean(cleaned) == cleaned
    plain = unicodedata.normalize("NFKC", cleaned).lower()
    for tag in ("<system>", "</user>", "[inst]", "<<sys>>"):
        assert tag not in plain


def test_tags_nested_to_any_depth_are_all_removed() -> None:
    assert clean("<system " * 30_000) == "<system " * 30_000
    assert clean("<" + " " * 60_000) == "<" + " " * 60_000
    assert clean("a" + "<sys" * 20_000 + "tem>" * 20_000 + "b") == "ab"
    assert clean("a" + "<ѕуs" * 5_000 + "<<SYS>>" * 5_000 + "tem＞" * 5_000 + "b") == "ab"
    assert clean("[IN" * 5_000 + "ST]" * 5_000) == ""
    assert clean("<sys<<SYS>>tem>" + "<sys<b>tem>") == "<sys<b>tem>"


@pytest.mark.parametrize("letters", ["sys", "ѕуѕ", "ｓｙｓ", "[IN"])
def test_a_text_is_cut_to_its_bound_before_it_is_cleaned(letters: str) -> None:
    text = f"<{letters}" * 150_000 + "tem>" * 150_000
    assert clean_within(text, FILE_LIMIT) == (text[:FILE_LIMIT], len(text))
    assert clean_within(" \n" + "ab" * 3 + "\u200b" * 2, 6) == ("ababab", 8)
    assert clean_within("abc<system>", FILE_LIMIT) == ("abc", 3)


@PATIENT
@given(st.text())
def test_no_invisible_character_is_left(text: str) -> None:
    cleaned = [c for c in clean(text) if c not in "\n\t"]
    assert not [c for c in cleaned if unicodedata.category(c) in ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp")]


@PATIENT
@given(st.lists(st.integers(0, FILE_LIMIT * 2), max_size=8), st.sampled_from("x你é"))
def test_limits_are_kept_and_truncation_marks_are_correct(sizes: list[int], letter: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "prompt").mkdir()
        for number, size in enumerate(sizes):
            (Path(folder) / "prompt" / f"{number}.md").write_text(letter * size, encoding="utf-8")
        result = ComponentFiles().read(Path(folder))
    written_sizes = [size for size in sizes if size]
    assert len(result.texts) == len(result.names) == len(written_sizes)
    counts = [text.removesuffix(mark[0] if (mark := MARK.search(text)) else "").count(letter) for text in result.texts]
    assert all(count <= FILE_LIMIT for count in counts)
    assert sum(counts) == min(TOTAL_LIMIT, sum(min(size, FILE_LIMIT) for size in written_sizes))
    for text, count, size in zip(result.texts, counts, written_sizes, strict=True):
        mark = MARK.search(text)
        assert (mark is None) == (count == size)
        assert mark is None or mark.groups() == (str(count), str(size))


@given(st.text())
def test_cleaning_is_idempotent(text: str) -> None:
    assert clean(clean(text)) == clean(text)


@given(st.text(), st.integers(1, 50))
def test_a_short_text_is_never_cut(text: str, limit: int) -> None:
    assert (cut(text, limit) == text) or len(text) > limit
