"""The linter's messages to role authors: a folder of twenty broken roles, and no message about valid ones."""

import os
import shutil
from pathlib import Path

import pytest

from mcp_servers.promptx.builtin import BUILTIN_ROLES
from mcp_servers.promptx.errors import UnknownRole
from mcp_servers.promptx.lint import _examine
from mcp_servers.promptx.roles import RoleLibrary

from .conftest import DATA

NO_BUILTIN = Path(__file__).parent / "none"


@pytest.fixture
def broken_library(workspace: Path) -> RoleLibrary:
    folder = workspace / ".promptx" / "resource"
    shutil.copytree(DATA / "broken_roles", folder)
    # Two that are not UTF-8, so they are not files of this repository.
    (folder / "17-latin1.role.md").write_bytes(
        "<role>\n  <personality>Grüße</personality>\n</role>\n".encode("latin-1")
    )
    (folder / "18-utf16.role.md").write_bytes("<role><personality>wide</personality></role>".encode("utf-16"))
    return RoleLibrary(workspace, NO_BUILTIN)


def test_twenty_broken_roles_have_the_expected_findings(broken_library: RoleLibrary) -> None:
    expected = (DATA / "broken_roles.txt").read_text("utf-8").splitlines()
    assert [str(finding) for finding in broken_library.check()] == expected


def test_every_broken_role_has_a_finding_with_place_and_hint(broken_library: RoleLibrary) -> None:
    findings = broken_library.check()
    numbers = {Path(finding.file).name[:2] for finding in findings}
    assert numbers == {f"{number:02}" for number in range(1, 21)}
    assert all(finding.line >= 1 and finding.column >= 1 and finding.hint for finding in findings)


def test_one_role_is_checked_with_the_files_it_names(resources: Path, workspace: Path) -> None:
    (resources / "a.role.md").write_text("<role><personality>@!thought://t</personality></role>")
    (resources / "t.thought.md").write_text("<thought>unclosed")
    (resources / "b.role.md").write_text("nothing")
    library = RoleLibrary(workspace, NO_BUILTIN)
    assert [(finding.file, finding.code) for finding in library.check("a")] == [
        (".promptx/resource/t.thought.md", "unclosed")
    ]
    with pytest.raises(UnknownRole):
        library.check("c")


def test_the_built_in_roles_are_clean() -> None:
    library = RoleLibrary(None, BUILTIN_ROLES)
    assert library.check() == []
    assert [info.id for info in library.list()] == ["assistant", "nuwa", "researcher"]


@pytest.mark.attack(kind="files")
def test_huge_files_devices_and_outside_links_are_refused_unread(resources: Path, workspace: Path) -> None:
    with (resources / "giant.role.md").open("wb") as file:
        file.truncate(50_000_000)
    (resources / "long.role.md").write_text("<role><personality>" + "é" * 1_000_001 + "</personality></role>")
    os.mkfifo(resources / "pipe.role.md")
    (workspace / "outside.md").write_text("<role><personality>secret</personality></role>")
    (resources / "out.role.md").symlink_to(workspace / "outside.md")
    (resources / "gone.role.md").symlink_to(resources / "nowhere.md")
    (resources / "loop.role.md").symlink_to(resources / "loop.role.md")
    codes = {Path(finding.file).name: finding.code for finding in RoleLibrary(workspace, NO_BUILTIN).check()}
    assert codes == {
        "giant.role.md": "too-large",
        "long.role.md": "too-large",
        "pipe.role.md": "not-a-file",
        "out.role.md": "link",
        "gone.role.md": "link",
        "loop.role.md": "link",
    }


def test_a_long_role_gets_a_warning_that_it_fills_the_context(resources: Path, workspace: Path) -> None:
    (resources / "long.role.md").write_text(f"<role><personality>{'word ' * 7000}</personality></role>")
    assert [finding.code for finding in RoleLibrary(workspace, NO_BUILTIN).check()] == ["long"]


@pytest.mark.parametrize("size", [128 * 1024, 128 * 1024 + 1])
def test_a_role_over_128_kib_is_refused_with_its_name_and_the_limit(
    resources: Path, workspace: Path, size: int
) -> None:
    frame = "<role><personality></personality></role>"
    (resources / "long.role.md").write_text(frame.replace("><", ">" + "x" * (size - len(frame)) + "<", 1))
    library = RoleLibrary(workspace, NO_BUILTIN)
    problems = [
        str(finding) for finding in library.check() if finding.severity == "error" and finding.code != "outside"
    ]
    assert bool(problems) is (size > 128 * 1024)
    assert all("long.role.md" in problem and "too-large" in problem and "128 KiB" in problem for problem in problems)


def test_an_unchanged_role_is_checked_once_and_a_changed_one_again(resources: Path, workspace: Path) -> None:
    path = resources / "once.role.md"
    library = RoleLibrary(workspace, NO_BUILTIN)
    miss_counts = []
    for _ in range(3):
        for word in ("first", "second"):
            path.write_text(f"<role><personality>{word} @!thought://missing</personality></role>")
            before = _examine.cache_info().misses
            assert [finding.code for finding in library.activate("once").findings] == ["missing-reference"]
            miss_counts.append(_examine.cache_info().misses - before)
    assert miss_counts == [1, 1, 0, 0, 0, 0]


def test_a_new_file_is_noticed_by_a_role_that_was_checked_before(resources: Path, workspace: Path) -> None:
    (resources / "a.role.md").write_text("<role><personality>@!thought://t</personality></role>")
    library = RoleLibrary(workspace, NO_BUILTIN)
    assert [finding.code for finding in library.activate("a").findings] == ["missing-reference"]
    (resources / "t.thought.md").write_text("<thought>here</thought>")
    assert library.activate("a").findings == ()


@pytest.mark.parametrize(
    ("code", "is_reported"),
    [
        ("```\n<plam>\n```", False),
        ("````\n```\n<plam>\n````", False),
        ("```\n<plam>\n`````", False),
        ("~~~\n```\n<plam>\n~~~", False),
        ("  ```md\n<plam>\n\t```  ", False),
        ("`<plam>` ```<plam>```", False),
        ("```\n<plam>", True),
        ("````\n<plam>\n```", True),
        ("```\n<plam>\n~~~", True),
        ("```\ncode\n```\n<plam>\n```", True),
        ("``` a ` b\n<plam>\n```", True),
    ],
)
def test_a_tag_in_a_closed_code_fence_is_an_example(
    resources: Path, workspace: Path, code: str, is_reported: bool
) -> None:
    (resources / "a.role.md").write_text(f"<role>\n<personality>\n{code}\n</personality>\n</role>")
    codes = [finding.code for finding in RoleLibrary(workspace, NO_BUILTIN).check()]
    assert codes == (["unknown-tag"] if is_reported else [])


FIELD = Path(__file__).parents[1] / "fixtures" / "field"


def test_a_commented_out_section_is_not_read_and_the_file_is_clean(resources: Path, workspace: Path) -> None:
    shutil.copy(FIELD / "comment.role.md", resources)
    library = RoleLibrary(workspace, NO_BUILTIN)
    assert library.check() == []
    assert library.activate("comment").text.count("New.") == 1
    assert "old" not in library.activate("comment").text
    assert [role.title for role in library.list()] == ["C"]


def test_references_in_comments_are_ignored_and_comments_in_code_are_text(resources: Path, workspace: Path) -> None:
    text = (
        "<role>\n<personality>\n<!-- @!thought://gone\n<principle> -->\n# Web\n\n```html\n<!-- kept -->\n```\n\n"
        "Write `<!-- so -->`. An end <!-- that never comes.\n</personality>\n</role>\n"
    )
    (resources / "web.role.md").write_text(text)
    library = RoleLibrary(workspace, NO_BUILTIN)
    assert library.check() == []
    text_shown = library.activate("web").text
    assert "<!-- kept -->" in text_shown
    assert "`<!-- so -->`" in text_shown
    assert "that never comes" in text_shown
    assert "gone" not in text_shown


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("clerk.role.md.txt", "clerk.role.md"),
        ("clerk.role", "clerk.role.md"),
        ("clerk.role.txt", "clerk.role.md"),
        ("clerk.Role.md", "clerk.role.md"),
        ("clerk.role.MD", "clerk.role.md"),
        ("clerk.roles.markdown", "clerk.role.md"),
        ("办公.thought.md.md", "办公.thought.md"),
    ],
)
def test_a_misspelt_role_file_name_is_reported_with_the_right_one(
    resources: Path, workspace: Path, name: str, meant: str
) -> None:
    (resources / name).write_text((FIELD / "clerk.role.md.txt").read_text())
    (finding,) = RoleLibrary(workspace, NO_BUILTIN).check()
    kind = meant.split(".")[1]
    assert (finding.severity, finding.message) == (
        "warning",
        f"{name} is not read: its name does not end in .{kind}.md",
    )
    assert meant in finding.hint


@pytest.mark.parametrize("name", ["README.md", "notes.txt", ".clerk.role.md.swp", "role.txt", "manual.pdf"])
def test_other_names_cause_no_finding(resources: Path, workspace: Path, name: str) -> None:
    (resources / name).write_text("x")
    assert RoleLibrary(workspace, NO_BUILTIN).check() == []
