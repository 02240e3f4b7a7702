"""What a role author is told: a folder of twenty broken roles, and nothing about sound ones."""

import os
import shutil
from pathlib import Path

import pytest

from mcp_servers.promptx.errors import UnknownRole
from mcp_servers.promptx.roles import BUILTIN_ROLES, RoleLibrary

from .conftest import DATA

NO_BUILTIN = Path(__file__).parent / "none"


@pytest.fixture
def broken(workspace: Path) -> RoleLibrary:
    folder = workspace / ".promptx" / "resource"
    shutil.copytree(DATA / "broken_roles", folder)
    # Two that are not UTF-8, which is why they are not files of this repository.
    (folder / "17-latin1.role.md").write_bytes(
        "<role>\n  <personality>Grüße</personality>\n</role>\n".encode("latin-1")
    )
    (folder / "18-utf16.role.md").write_bytes("<role><personality>wide</personality></role>".encode("utf-16"))
    return RoleLibrary(workspace, NO_BUILTIN)


def test_a_folder_of_twenty_broken_roles_gets_these_findings(broken: RoleLibrary) -> None:
    expected = (DATA / "broken_roles.txt").read_text("utf-8").splitlines()
    assert [str(finding) for finding in broken.check()] == expected


def test_every_broken_role_has_a_finding_with_place_and_hint(broken: RoleLibrary) -> None:
    findings = broken.check()
    numbers = {Path(finding.file).name[:2] for finding in findings}
    assert numbers == {f"{number:02}" for number in range(1, 21)}
    assert all(finding.line >= 1 and finding.column >= 1 and finding.hint for finding in findings)


def test_one_role_is_checked_with_the_files_it_names(resources: Path, workspace: Path) -> None:
    (resources / "a.role.md").write_text("<role><personality>@!thought://t</personality></role>")
    (resources / "t.thought.md").write_text("<thought>unclosed")
    (resources / "b.role.md").write_text("nothing")
    library = RoleLibrary(workspace, NO_BUILTIN)
    assert [(one.file, one.code) for one in library.check("a")] == [(".promptx/resource/t.thought.md", "unclosed")]
    with pytest.raises(UnknownRole):
        library.check("c")


def test_the_built_in_roles_are_clean() -> None:
    library = RoleLibrary(None, BUILTIN_ROLES)
    assert library.check() == []
    assert [info.id for info in library.list()] == ["assistant", "nuwa", "researcher"]


@pytest.mark.attack(kind="files")
def test_giants_devices_and_links_out_are_refused_without_being_read(resources: Path, workspace: Path) -> None:
    with (resources / "giant.role.md").open("wb") as giant:
        giant.truncate(50_000_000)
    (resources / "long.role.md").write_text("<role><personality>" + "é" * 1_000_001 + "</personality></role>")
    os.mkfifo(resources / "pipe.role.md")
    (workspace / "outside.md").write_text("<role><personality>secret</personality></role>")
    (resources / "out.role.md").symlink_to(workspace / "outside.md")
    (resources / "gone.role.md").symlink_to(resources / "nowhere.md")
    (resources / "loop.role.md").symlink_to(resources / "loop.role.md")
    codes = {Path(one.file).name: one.code for one in RoleLibrary(workspace, NO_BUILTIN).check()}
    assert codes == {
        "giant.role.md": "too-large",
        "long.role.md": "too-large",
        "pipe.role.md": "not-a-file",
        "out.role.md": "link",
        "gone.role.md": "unreadable",
        "loop.role.md": "link",
    }


def test_a_long_role_is_told_that_it_fills_the_context(resources: Path, workspace: Path) -> None:
    (resources / "long.role.md").write_text(f"<role><personality>{'word ' * 7000}</personality></role>")
    assert [one.code for one in RoleLibrary(workspace, NO_BUILTIN).check()] == ["long"]
