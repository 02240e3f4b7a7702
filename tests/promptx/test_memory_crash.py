"""The files on disk after a process was killed, ran out of disk space, or shared the memory with another one."""

import subprocess
import sys
from pathlib import Path

import pytest

from mcp_servers.promptx.memory import Memory
from mcp_servers.safe_files import Folder

from .victim import REFUSED, SIZES, make_batch

ROOT = Path(__file__).parents[2]
BEFORE, AFTER = 3, 6


def start_victim(*arguments: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.promptx.victim", *map(str, arguments)]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)


def make_template(folder: Path) -> Path:
    """A memory with one batch in it."""
    memory = Memory(Folder(folder))
    memory.remember(make_batch("old", 0), 1_000)
    memory.save()
    memory.close()
    return folder


def count_sound_rows(folder: Path) -> int:
    """Return the number of engrams, after checking that everything is consistent and that the memory can be used."""
    memory = Memory(Folder(folder))
    engrams = memory.export()
    words = list(dict.fromkeys(cue for engram in engrams for cue in engram.cues))
    assert set(memory.recall(words, "focused", 3_000).mind.activated) == {"mind", *words}
    memory.remember(make_batch("later", 2), 3_000)
    memory.save()
    assert memory.browse().total == len(engrams) + 3
    memory.close()
    return len(engrams)


@pytest.mark.parametrize(
    ("step", "least"),
    [(75, 6), pytest.param(5, 100, marks=pytest.mark.nightly("a kill at every fifth line"))],
)
def test_a_batch_killed_anywhere_in_our_code_is_complete_or_absent(tmp_path: Path, step: int, least: int) -> None:
    (tmp_path / "out").mkdir()
    with start_victim("lines", make_template(tmp_path / "template"), tmp_path / "out", step) as process:
        assert process.wait(120) == 0
    counts = [count_sound_rows(folder) for folder in sorted((tmp_path / "out").iterdir())]
    assert counts == sorted(counts)  # an existing file stays
    assert set(counts) == {BEFORE, AFTER}
    assert len(counts) > least


def test_a_batch_on_a_disk_of_any_size_is_saved_or_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    with start_victim("sizes", make_template(tmp_path / "template"), tmp_path / "out") as process:
        assert process.wait(120) == 0
    codes = set()
    for folder in sorted((tmp_path / "out").iterdir()):
        code = int((folder / "code").read_text())
        count = count_sound_rows(folder)
        assert (code, count) in {(0, AFTER), (REFUSED, BEFORE)}, folder.name
        codes.add(code)
    assert codes == {0, REFUSED}
    assert len(SIZES) > 20


def test_a_killed_writer_loses_nothing_it_acknowledged(tmp_path: Path) -> None:
    folder = tmp_path / "memory"
    with start_victim("write", folder, "w", 10_000) as process:
        assert process.stdout is not None
        acknowledged = [process.stdout.readline() for _ in range(25)]
        process.kill()
        acknowledged += process.stdout.readlines()
    count = count_sound_rows(folder)
    assert count % 3 == 0
    assert count >= 3 * len(acknowledged)


def test_two_processes_writing_one_role_lose_nothing_and_a_third_reaches_every_keyword(tmp_path: Path) -> None:
    folder = tmp_path / "memory"
    with (
        start_victim("write", folder, "a", 40) as first_writer,
        start_victim("write", folder, "b", 40) as second_writer,
    ):
        first_writer.communicate(timeout=60)
        second_writer.communicate(timeout=60)
    assert (first_writer.returncode, second_writer.returncode) == (0, 0)
    memory = Memory(Folder(folder))
    assert memory.browse().total == 240
    words = ["shared", "a", "b", *(f"{name}{n}x{part}" for name in "ab" for n in range(40) for part in range(3))]
    assert set(memory.recall(words, "focused", 3_000).mind.activated) == {"mind", *words}
