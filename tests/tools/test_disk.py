"""When a child's folders are measured, and which files count. No child is started, and the clock is an argument."""

import os
from pathlib import Path

from agentic_rag.tools.launch.usage import GROWTH_BYTES, DiskMeter
from mcp_servers.safe_files import MEASURED_DEPTH, NAME_BYTES, Folder

MUCH = 1 << 60


def test_a_child_that_writes_nothing_keeps_running_while_the_disk_is_low(tmp_path: Path) -> None:
    (tmp_path / "before").write_bytes(b"x" * (4 * GROWTH_BYTES))
    meter = DiskMeter([tmp_path], MUCH, MUCH)
    assert [meter.exceeds(now, ()) for now in (0, 1000, 2000)] == ["", "", ""]
    (tmp_path / "log").write_bytes(b"x" * (GROWTH_BYTES // 2))
    assert meter.exceeds(3000, ()) == ""
    (tmp_path / "more").write_bytes(b"x" * GROWTH_BYTES)
    assert "and it went on writing" in meter.exceeds(4000, ())


def test_files_written_before_the_disk_was_low_do_not_count_as_growth(tmp_path: Path) -> None:
    meter = DiskMeter([tmp_path], MUCH, 0)
    assert meter.exceeds(0, ()) == ""
    (tmp_path / "file").write_bytes(b"x" * (4 * GROWTH_BYTES))
    assert meter.exceeds(1000, ()) == ""


def test_nested_folders_count_once_and_a_missing_folder_counts_as_nothing(tmp_path: Path) -> None:
    inner = tmp_path / "files" / "inner"
    inner.mkdir(parents=True)
    (inner / "file").write_bytes(b"x" * (3 << 20))
    places = [inner, tmp_path / "files", tmp_path / "gone"]
    assert DiskMeter(places, 4 << 20, 0).exceeds(0, ()) == ""
    assert "hold more than 2 MiB" in DiskMeter(places, 2 << 20, 0).exceeds(0, ())


def test_a_pipe_as_search_place_blocks_no_caller(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "files")
    assert DiskMeter([tmp_path / "files"], 1, MUCH).exceeds(0, ()) == ""


def test_disk_use_is_measured_without_links_and_only_up_to_the_limit(tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "large").write_bytes(b"x" * (1 << 20))
    place = tmp_path / "place"
    (place / "a" / "b").mkdir(parents=True)
    (place / "a" / "b" / "file").write_bytes(b"x" * (2 * NAME_BYTES))
    (place / "a" / "empty").touch()
    (place / "link").symlink_to(tmp_path / "outside")
    (place / "a" / "pipe").symlink_to("/dev/zero")
    (place / "a" / "b" / "sparse").touch()
    os.truncate(place / "a" / "b" / "sparse", 1 << 40)
    assert Folder(place).measure(1 << 30) == 8 * NAME_BYTES
    assert Folder(place).measure(2 * NAME_BYTES) == 3 * NAME_BYTES
    assert Folder(tmp_path / "nothing").measure(1) == 0


def test_folders_too_deep_to_measure_exceed_the_limit(tmp_path: Path) -> None:
    deep = tmp_path
    for _ in range(MEASURED_DEPTH + 1):
        deep /= "d"
        deep.mkdir()
    assert Folder(tmp_path).measure(1 << 30) > 1 << 30
