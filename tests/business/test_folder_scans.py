"""A workspace is scanned after changes in it, and periodically in any case."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from agentic_rag.base.threads import DomainThreads
from agentic_rag.domains.workspaces import make_workspace
from agentic_rag.operations.folder_marks import WHOLE_EVERY, FolderMarks
from agentic_rag.store.domains import DomainRecord


def make_domain(tmp_path: Path) -> DomainRecord:
    workspace = tmp_path / "desk"
    make_workspace(workspace)
    (workspace / "documents" / "a.md").write_text("A.")
    return DomainRecord(id="desk", name="Desk", settings={}, workspace=str(workspace), created_at="", updated_at="")


async def find_change(marks: FolderMarks, domain: DomainRecord) -> bool:
    """Whether a round finds a change, which is then handled."""
    marks.begin()
    mark = await marks.new_mark(domain)
    if mark is not None:
        marks.keep(domain.id, mark)
    return mark is not None


def write(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("New.")


def rewrite(file: Path) -> None:
    """Different content of the same length and time."""
    before = file.stat()
    file.write_text("B.")
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))


CHANGES: dict[str, Callable[[Path], object]] = {
    "a document comes": lambda root: write(root / "documents" / "b.md"),
    "one comes further down": lambda root: write(root / "documents" / "x" / "y" / "b.md"),
    "a document goes": lambda root: (root / "documents" / "a.md").unlink(),
    "a document is renamed": lambda root: (root / "documents" / "a.md").rename(root / "documents" / "b.md"),
    "a document has other words of the same size and time": lambda root: rewrite(root / "documents" / "a.md"),
    "it can be read again": lambda root: (root / "documents" / "a.md").chmod(0o640),
    "a link comes": lambda root: (root / "documents" / "link").symlink_to("/etc/hostname"),
    "a component comes": lambda root: write(root / "prompt" / "tone.md"),
    "a role comes": lambda root: write(root / ".promptx" / "resource" / "role" / "clerk" / "clerk.role.md"),
    "a folder goes": lambda root: (root / "prompt").rmdir(),
}


@pytest.mark.parametrize("name", CHANGES)
async def test_a_file_change_is_noticed_in_the_next_scan_and_only_there(tmp_path: Path, name: str) -> None:
    domain, marks = make_domain(tmp_path), FolderMarks(DomainThreads())
    while await find_change(marks, domain):  # the first round; the second one is a complete scan
        pass
    CHANGES[name](tmp_path / "desk")
    assert await find_change(marks, domain)
    rounds = [await find_change(marks, domain) for _ in range(WHOLE_EVERY)]
    assert rounds.count(True) == 1, "a whole look, once in so many"


async def test_a_settings_change_triggers_a_scan(tmp_path: Path) -> None:
    domain, marks = make_domain(tmp_path), FolderMarks(DomainThreads())
    while await find_change(marks, domain):
        pass
    assert await find_change(marks, domain.replace(version=2))


async def test_a_folder_with_problems_is_scanned_again(tmp_path: Path) -> None:
    domain, marks = make_domain(tmp_path), FolderMarks(DomainThreads())
    for _ in range(3):
        marks.begin()
        assert await marks.new_mark(domain) is not None
