"""Which file is a role, which one takes precedence, and what an activation returns while files change."""

import os
from pathlib import Path

import pytest

from mcp_servers.promptx.builtin import BUILTIN_ROLES
from mcp_servers.promptx.errors import BadRoleId, BrokenRole, UnknownRole
from mcp_servers.promptx.roles import RoleLibrary


def role_text(text: str) -> str:
    return f"<role><personality>{text}</personality></role>"


def write_file(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


@pytest.fixture
def library(workspace: Path, resources: Path, tmp_path: Path) -> RoleLibrary:
    write_file(tmp_path / "builtin" / "helper" / "helper.role.md", role_text("built-in helper @!thought://calm"))
    write_file(tmp_path / "builtin" / "calm.thought.md", "<thought>built-in calm</thought>")
    return RoleLibrary(workspace, tmp_path / "builtin")


@pytest.mark.parametrize("place", ["role/{}/{}.role.md", "role/{1}.role.md", "domain/x/{1}.role.md", "{1}.role.md"])
@pytest.mark.parametrize("name", ["lawyer", "律师", "адвокат", "2nd", "v1.2-b", "_x"])
def test_only_the_suffix_makes_a_role(library: RoleLibrary, resources: Path, place: str, name: str) -> None:
    write_file(resources / place.format(name, name), role_text("I am"))
    assert library.activate(name).text == "# personality\n\nI am"
    assert name in library.ids()


@pytest.mark.attack(kind="files")
@pytest.mark.parametrize("name", ["", "..", "../x", "a/b", "a\\b", ".x", "-x", "a b", "x" * 65, "a\0", "\ud800", "a\n"])
def test_an_invalid_role_id_is_refused(library: RoleLibrary, name: str) -> None:
    with pytest.raises(BadRoleId):
        library.activate(name)


def test_an_unknown_role_names_the_known_ones(library: RoleLibrary, resources: Path) -> None:
    write_file(resources / "律师.role.md", role_text("x"))
    with pytest.raises(UnknownRole, match=r"Unknown role 'nobody'\. Known roles: helper, 律师\."):
        library.activate("nobody")
    assert library.hash("nobody") is None


def test_a_workspace_file_overrides_the_built_in_one_file_by_file(library: RoleLibrary, resources: Path) -> None:
    assert "built-in calm" in library.activate("helper").text
    write_file(resources / "calm.thought.md", "<thought>my calm</thought>")
    text = library.activate("helper").text
    assert "built-in helper" in text
    assert "my calm" in text
    write_file(resources / "helper.role.md", role_text("my helper"))
    assert library.activate("helper").text == "# personality\n\nmy helper"
    assert [(info.id, info.source) for info in library.list()] == [("helper", "workspace")]


def test_the_last_of_two_files_with_one_id_counts(library: RoleLibrary, resources: Path) -> None:
    write_file(resources / "b" / "x.role.md", role_text("second"))
    write_file(resources / "a" / "x.role.md", role_text("first"))
    assert library.activate("x").text.endswith("second")


def test_new_changed_renamed_and_deleted_files_apply_from_the_next_call(library: RoleLibrary, resources: Path) -> None:
    path = resources / "x.role.md"
    write_file(path, role_text("one"))
    assert library.activate("x").text.endswith("one")
    write_file(path, role_text("two"))
    assert library.activate("x").text.endswith("two")
    write_file(resources / "draft", role_text("three"))
    (resources / "draft").replace(path)
    assert library.activate("x").text.endswith("three")
    path.rename(resources / "y.role.md")
    assert library.activate("y").text.endswith("three")
    with pytest.raises(UnknownRole):
        library.activate("x")


def test_a_half_written_role_keeps_its_last_good_text_and_has_a_note(library: RoleLibrary, resources: Path) -> None:
    path = resources / "x.role.md"
    write_file(path, role_text("good"))
    before = library.activate("x")
    for broken in ("", "<role><personality>half", "\0", "no tags"):
        write_file(path, broken)
        after = library.activate("x")
        assert (after.text, after.hash) == (before.text, before.hash)
        assert "the last good version is used" in after.notes[0]
    write_file(path, role_text("better"))
    assert library.activate("x").notes == ()


def test_a_role_broken_from_the_start_is_an_error_with_its_place(library: RoleLibrary, resources: Path) -> None:
    write_file(resources / "x.role.md", "\n <role><personality>half")
    with pytest.raises(BrokenRole, match=r"x\.role\.md:2:2: error unclosed: <role> is never closed"):
        library.activate("x")
    assert library.hash("x") is None
    (resources / "x.role.md").write_bytes(b"<role>\xff</role>")
    with pytest.raises(BrokenRole, match=r"x\.role\.md:1:7: error encoding"):
        library.activate("x")


def test_a_half_written_thought_keeps_its_last_good_text(library: RoleLibrary, resources: Path) -> None:
    write_file(resources / "x.role.md", role_text("@!thought://t"))
    write_file(resources / "t.thought.md", "<thought>whole</thought>")
    assert "whole" in library.activate("x").text
    write_file(resources / "t.thought.md", "<thought>who")
    active = library.activate("x")
    assert active.text.endswith("whole")
    assert "t.thought.md is broken (<thought> is not complete); the last good version is used." in active.notes[0]


def test_an_initially_broken_thought_is_used_as_far_as_it_is_valid(library: RoleLibrary, resources: Path) -> None:
    write_file(resources / "x.role.md", role_text("@!thought://fresh"))
    write_file(resources / "fresh.thought.md", "<thought>so far")
    active = library.activate("x")
    assert active.text.endswith("## thought: fresh\n\nso far")
    assert "is broken" in active.notes[0]


def test_missing_references_leave_a_line_and_a_note_and_the_role_works(library: RoleLibrary, resources: Path) -> None:
    write_file(resources / "x.role.md", role_text("a @!thought://none b"))
    active = library.activate("x")
    assert "> Not available: thought://none" in active.text
    assert [finding.code for finding in active.findings] == ["missing-reference"]
    assert active.notes == (str(active.findings[0]),)


def test_the_hash_covers_exactly_the_inlined_files(library: RoleLibrary, resources: Path) -> None:
    write_file(resources / "x.role.md", role_text("@!thought://t @!knowledge://later"))
    write_file(resources / "t.thought.md", "<thought>1</thought>")
    first = library.hash("x")
    write_file(resources / "other.thought.md", "<thought>1</thought>")
    assert library.hash("x") == library.activate("x").hash == library.activate("x", "principle").hash == first
    write_file(resources / "t.thought.md", "<thought>2</thought>")
    second = library.hash("x")
    write_file(resources / "later.knowledge.md", "now here")
    assert len({first, second, library.hash("x")}) == 3


def test_byte_order_marks_and_windows_line_ends_make_no_difference(library: RoleLibrary, resources: Path) -> None:
    text = "<role>\n  <personality>\n    a\n    b\n  </personality>\n</role>\n"
    write_file(resources / "x.role.md", text)
    before = library.activate("x")
    (resources / "x.role.md").write_bytes(b"\xef\xbb\xbf" + text.replace("\n", "\r\n").encode())
    assert library.activate("x") == before
    assert before.text == "# personality\n\na\nb"


def test_cyclic_role_references_end(library: RoleLibrary, resources: Path) -> None:
    write_file(resources / "a.role.md", role_text("A @!role://b"))
    write_file(resources / "b.role.md", role_text("B @!role://a"))
    assert library.activate("a").text == "# personality\n\nA \n\n## role: b\n\n### personality\n\nB @!role://a"


@pytest.mark.attack(kind="files")
def test_links_are_never_followed(library: RoleLibrary, resources: Path, workspace: Path) -> None:
    write_file(workspace / "elsewhere.md", role_text("outside"))
    write_file(resources / "real.md", role_text("inside"))
    (resources / "x.role.md").symlink_to(workspace / "elsewhere.md")
    (resources / "y.role.md").symlink_to(resources / "real.md")
    for role_id in ("x", "y"):
        with pytest.raises(BrokenRole, match="it is a link, and links are not followed"):
            library.activate(role_id)


@pytest.mark.attack(kind="files")
def test_a_resource_folder_that_is_a_link_out_of_the_workspace_is_ignored(tmp_path: Path) -> None:
    write_file(tmp_path / "other" / "x.role.md", role_text("outside"))
    (tmp_path / "workspace" / ".promptx").mkdir(parents=True)
    os.symlink(tmp_path / "other", tmp_path / "workspace" / ".promptx" / "resource")
    assert RoleLibrary(tmp_path / "workspace").ids() == ("assistant", "nuwa", "researcher")


def test_ids_are_found_in_every_unicode_form(library: RoleLibrary, resources: Path) -> None:
    write_file(resources / "cafe\u0301.role.md", role_text("@!thought://e\u0301"))
    write_file(resources / "\u00e9.thought.md", "<thought>accent</thought>")
    assert library.ids() == ("caf\u00e9", "helper")
    assert library.activate("caf\u00e9").text


@pytest.mark.parametrize("name", ["assistant", "researcher", "nuwa"])
def test_a_built_in_role_activates_without_notes(name: str) -> None:
    active = RoleLibrary(None, BUILTIN_ROLES).activate(name)
    assert active.notes == ()
    assert active.text.startswith("# personality\n\n# ")
    assert "# principle\n\n## execution: " in active.text
    assert len(active.text) < 6000
