"""What a process has in memory is moved to huge pages, unchanged."""

import ctypes
import mmap
import os
import re
from pathlib import Path

import pytest

from agentic_rag.base import huge_pages

MEGABYTE = 1 << 20
AREA = 8 * MEGABYTE


def switched_on() -> bool:
    try:
        return "[never]" not in (huge_pages.SETTINGS / "enabled").read_text()
    except OSError:
        return False


pytestmark = pytest.mark.skipif(
    not switched_on() or tuple(map(int, re.findall(r"\d+", os.uname().release)[:2])) < (6, 1),
    reason="huge pages are made on demand from Linux 6.1 on",
)


def kilobytes(area: mmap.mmap, what: str) -> int:
    """Return a figure of the mapping that has an area in it (``AnonHugePages``, ``Rss``); see proc_pid_smaps(5)."""
    start = ctypes.addressof(ctypes.c_char.from_buffer(area))
    for part in re.split(r"\n(?=[0-9a-f]+-[0-9a-f]+ )", Path("/proc/self/smaps").read_text()):
        begin, end = (int(edge, 16) for edge in part.split(" ", 1)[0].split("-"))
        if begin <= start < end:
            found = re.search(rf"^{what}: +(\d+) kB$", part, re.MULTILINE)
            assert found is not None
            return int(found[1])
    raise AssertionError("there is no such mapping")


def own_area() -> mmap.mmap:
    """Return memory as Python's allocator has it, in a mapping of its own."""
    area = mmap.mmap(-1, AREA, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    area.madvise(mmap.MADV_DONTDUMP)  # one that differs is not joined with its neighbours
    return area


async def test_memory_that_is_in_use_is_moved_to_huge_pages_unchanged() -> None:
    area = own_area()
    said = os.urandom(AREA)
    area[:] = said
    assert kilobytes(area, "AnonHugePages") == 0
    await huge_pages.use_huge_pages(0)
    assert kilobytes(area, "AnonHugePages") >= (AREA - 2 * 2 * MEGABYTE) // 1024
    assert area[:] == said


async def test_memory_that_is_hardly_used_grows_by_nothing() -> None:
    area = own_area()
    for at in range(0, AREA, MEGABYTE):
        area[at] = 1
    before = kilobytes(area, "Rss")
    await huge_pages.use_huge_pages(0)
    assert kilobytes(area, "Rss") == before


async def test_nothing_happens_where_they_are_switched_off(tmp_path: Path) -> None:
    (tmp_path / "enabled").write_text("always madvise [never]\n")
    (tmp_path / "hpage_pmd_size").write_text(f"{2 * MEGABYTE}\n")
    area = own_area()
    area[:] = bytes([1]) * AREA
    await huge_pages.use_huge_pages(0, tmp_path)
    assert kilobytes(area, "AnonHugePages") == 0


async def test_a_system_without_them_has_none(tmp_path: Path) -> None:
    area = own_area()
    area[:] = bytes([1]) * AREA
    await huge_pages.use_huge_pages(0, tmp_path / "not there")
    assert kilobytes(area, "AnonHugePages") == 0
