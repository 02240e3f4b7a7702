"""Writing roles: validated before anything is replaced, inside the workspace, all or nothing."""

from pathlib import Path

import pytest

from mcp_servers.promptx.errors import BadRoleId, RoleRefused
from mcp_servers.promptx.nuwa import RoleFile, template
from mcp_servers.promptx.roles import RoleLibrary

ROLE = RoleFile("role", "客服", "<role><personality>@!thought://客服思维</personality></role>")
THOUGHT = RoleFile("thought", "客服思维", "<thought><plan>p</plan></thought>")


@pytest.fixture
def library(workspace: Path) -> RoleLibrary:
    return RoleLibrary(workspace)


def list_files(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


def test_a_role_is_written_in_promptx_layout_and_live_at_once(library: RoleLibrary, workspace: Path) -> None:
    outcome = library.write("客服", [ROLE, THOUGHT])
    assert [path.relative_to(workspace).as_posix() for path in outcome.paths] == [
        ".promptx/resource/role/客服/thought/客服思维.thought.md",
        ".promptx/resource/role/客服/客服.role.md",
    ]
    assert outcome.findings == ()
    assert "## thought: 客服思维" in library.activate("客服").text
    assert len(list_files(workspace)) == 2


def test_a_template_passes_lint_and_is_not_overwritten(library: RoleLibrary) -> None:
    library.write("new-role", template("new-role"), replace=False)
    assert library.check("new-role") == []
    with pytest.raises(RoleRefused, match=r"new-role\.role\.md exists already"):
        library.write("new-role", template("new-role"), replace=False)


def test_a_file_is_replaced_in_its_folder(library: RoleLibrary, resources: Path) -> None:
    (resources / "flat.role.md").write_text("<role><personality>old</personality></role>")
    library.write("flat", [RoleFile("role", "flat", "<role><personality>new</personality></role>")])
    assert list_files(resources) == ["flat.role.md"]
    assert library.activate("flat").text.endswith("new")


@pytest.mark.parametrize(
    ("files", "reason"),
    [
        ([ROLE], "missing-reference"),
        ([RoleFile("role", "客服", "<role><personality>half")], "unclosed"),
        ([RoleFile("role", "客服", "text")], "no-tag"),
        ([RoleFile("role", "客服", "<role></role>")], "no-section"),
        ([THOUGHT], "there is no role '客服' yet"),
        ([ROLE, THOUGHT, THOUGHT], "thought '客服思维' is given twice"),
        ([ROLE, THOUGHT, RoleFile("role", "other", ROLE.content)], "must have the role's id"),
        ([ROLE, RoleFile("thought", "客服思维", "<thought>a\0</thought>")], "contains NUL"),
        ([ROLE, RoleFile("thought", "客服思维", "<thought>\ud800</thought>")], "lone surrogate"),
        ([ROLE, RoleFile("thought", "客服思维", f"<thought>{'x' * 1_000_000}</thought>")], "keep it under 128 KiB"),
        ([], "give 1 to 50 files"),
    ],
)
def test_an_invalid_role_is_refused_and_nothing_is_changed(
    library: RoleLibrary, workspace: Path, files: list[RoleFile], reason: str
) -> None:
    with pytest.raises(RoleRefused, match=reason):
        library.write("客服", files)
    assert list_files(workspace) == []


def test_a_refused_edit_keeps_the_old_files(library: RoleLibrary) -> None:
    library.write("客服", [ROLE, THOUGHT])
    before = library.activate("客服")
    with pytest.raises(RoleRefused):
        library.write(
            "客服", [RoleFile("thought", "客服思维", "<thought>new</thought>"), RoleFile("role", "客服", "half")]
        )
    assert library.activate("客服") == before


def test_a_referenced_role_can_still_be_edited(library: RoleLibrary) -> None:
    base = RoleFile("role", "base", "<role><principle>one</principle></role>")
    library.write("base", [base])
    library.write("user", [RoleFile("role", "user", "<role><personality>@!role://base</personality></role>")])
    library.write("base", [RoleFile("role", "base", "<role><principle>two</principle></role>")])
    assert library.activate("user").text.endswith("### principle\n\ntwo")


@pytest.mark.attack(kind="files")
@pytest.mark.parametrize("name", ["../x", "a/b", "", ".x", "a\0"])
def test_ids_that_are_paths_are_refused(library: RoleLibrary, name: str) -> None:
    with pytest.raises(BadRoleId):
        library.write(name, [RoleFile("role", name, ROLE.content)])
    with pytest.raises(BadRoleId, match="id of the thought file"):
        library.write("客服", [RoleFile("thought", name, THOUGHT.content)])


def test_a_file_that_other_roles_use_is_not_changed(library: RoleLibrary) -> None:
    library.write("客服", [ROLE, THOUGHT])
    other_role = RoleFile("role", "other", "<role><personality>@!thought://客服思维</personality></role>")
    with pytest.raises(RoleRefused, match="thought '客服思维' is used by 客服 too"):
        library.write("other", [other_role, THOUGHT])
    library.write("other", [other_role])
    assert "## thought: 客服思维" in library.activate("other").text
    built_in = RoleFile("thought", "interview", "<thought>changed</thought>")
    with pytest.raises(RoleRefused, match="thought 'interview' is used by nuwa too"):
        library.write("客服", [built_in])


@pytest.mark.attack(kind="files")
def test_nothing_is_written_through_a_link_out_of_the_workspace(
    library: RoleLibrary, workspace: Path, tmp_path: Path
) -> None:
    (tmp_path / "outside").mkdir()
    (workspace / ".promptx" / "resource" / "role").mkdir(parents=True)
    (workspace / ".promptx" / "resource" / "role" / "客服").symlink_to(tmp_path / "outside")
    with pytest.raises(RoleRefused, match="it is a link, and links are not followed"):
        library.write("客服", [ROLE, THOUGHT])
    assert list_files(tmp_path / "outside") == []


def test_a_workspace_that_cannot_be_written_is_a_named_refusal(library: RoleLibrary, resources: Path) -> None:
    (resources / "role").write_text("a file in the way")
    with pytest.raises(RoleRefused, match="the workspace cannot be written: a file stands where a folder should be"):
        library.write("客服", [ROLE, THOUGHT])
    assert list_files(resources) == ["role"]


def test_a_library_without_a_workspace_writes_nothing() -> None:
    with pytest.raises(RoleRefused, match="there is no workspace to write to"):
        RoleLibrary(None).write("客服", [ROLE, THOUGHT])
