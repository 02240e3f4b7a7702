"""Skills as folders: what is read, what is refused, and the messages to their authors."""

import hashlib
import os
import socket
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcp_servers.promptx.errors import SkillUnreadable, UnknownSkill
from mcp_servers.promptx.skills import (
    BODY,
    MAX_BODY_BYTES,
    MAX_DEPTH,
    MAX_DESCRIPTION,
    MAX_FILES,
    MAX_SKILLS,
    SkillLibrary,
    read_front_matter,
    role_as_skill,
)

FRONT = "---\nname: {name}\ndescription: Reads tables. Use it for tables.\nmetadata:\n  version: 2\n---\n"
GOOD = FRONT + "\n# Steps\n\nRead."


def make_skill(workspace: Path, name: str = "tables", text: str | None = None, **files: bytes) -> Path:
    folder = workspace / "skills" / name
    folder.mkdir(parents=True)
    (folder / BODY).write_text(GOOD.format(name=name) if text is None else text)
    for path, content in files.items():
        (folder / path).write_bytes(content)
    return folder


def finding_codes(workspace: Path) -> list[tuple[str, int, str, str]]:
    return [
        (finding.file, finding.line, finding.severity, finding.code) for finding in SkillLibrary(workspace).findings()
    ]


def test_a_skill_has_its_front_matter_body_and_files_with_digests(tmp_path: Path) -> None:
    folder = make_skill(tmp_path)
    (folder / "scripts").mkdir()
    (folder / "scripts" / "run.py").write_bytes(b"print(1)")
    (skill,) = SkillLibrary(tmp_path).list()
    assert (skill.name, skill.description, skill.findings) == ("tables", "Reads tables. Use it for tables.", ())
    assert skill.front_matter["metadata"] == {"version": 2}
    assert skill.body == "# Steps\n\nRead."
    assert [file.path for file in skill.files] == [BODY, "scripts/run.py"]
    assert skill.files[1].digest == f"sha256:{hashlib.sha256(b'print(1)').hexdigest()}"
    before = skill.digest
    (folder / "scripts" / "run.py").write_bytes(b"print(2)")
    assert SkillLibrary(tmp_path).get("tables").digest != before
    assert SkillLibrary(tmp_path).read("tables", "scripts/run.py") == b"print(2)"


def test_front_matter_is_read_up_to_a_depth_limit(tmp_path: Path) -> None:
    nested_value = "[" * (MAX_DEPTH - 1) + "]" * (MAX_DEPTH - 1)
    front, _, findings = read_front_matter(f"---\na: {nested_value}\n---\nx", BODY)
    assert (len(front), findings) == (1, [])
    _, _, (finding,) = read_front_matter(f"---\nname: x\na: [{nested_value}]\n---\nx", BODY)
    assert (finding.line, finding.message) == (3, f"the front matter nests more than {MAX_DEPTH} levels")


def test_front_matter_is_json_whatever_its_yaml_holds() -> None:
    text = '---\nname: a\ndescription: "half \\ud83d"\nfirst: .nan\nsecond: -.inf\n---\nbody\n'
    front, _, findings = read_front_matter(text, "a/SKILL.md")
    assert front == {"name": "a", "description": "half \ufffd", "first": "NaN", "second": "-Infinity"}
    assert not findings


def test_a_workspace_without_skills_has_none(tmp_path: Path) -> None:
    assert SkillLibrary(tmp_path).list() == []
    (tmp_path / "skills").write_text("no folder")
    assert SkillLibrary(tmp_path).list() == []
    with pytest.raises(UnknownSkill, match="Skills: none"):
        SkillLibrary(tmp_path).get("tables")


@pytest.mark.parametrize(
    ("text", "line", "code"),
    [
        ("# No front matter", 1, "skill-front-matter"),
        ("", 1, "skill-front-matter"),
        ("---\nname: tables\n", 1, "skill-front-matter"),
        ("---\nname: tables\ndescription: [\n---\nx", 3, "skill-front-matter"),
        ("---\n- name\n---\nx", 2, "skill-front-matter"),
        ("---\na: &a [x]\nb: *a\n---\nx", 2, "skill-front-matter"),
        ("---\na: " + "[" * 4_000 + "\n---\nx", 2, "skill-front-matter"),
        ("---\na: !!python/object/apply:os.system ['id']\n---\nx", 2, "skill-front-matter"),
        ("---\na: " + "x" * 20_000 + "\n---\nx", 1, "skill-front-matter"),
        ("---\nname: tables\n---\nx", 1, "skill-description"),
        ("---\nname: tables\ndescription: ' '\n---\nx", 3, "skill-description"),
        ("---\nname: tables\ndescription: 7\n---\nx", 3, "skill-description"),
        ("---\nname: tables\ndescription: <b></b>\n---\nx", 3, "skill-description"),
    ],
)
def test_a_broken_skill_is_not_offered_and_its_author_sees_the_place(
    tmp_path: Path, text: str, line: int, code: str
) -> None:
    make_skill(tmp_path, text=text)
    assert finding_codes(tmp_path) == [("skills/tables/SKILL.md", line, "error", code)]
    assert SkillLibrary(tmp_path).summaries() == []
    with pytest.raises(UnknownSkill):
        SkillLibrary(tmp_path).read("tables", BODY)


@pytest.mark.parametrize("name", ["Tables", "-x", "x-", "a--b", "a b", "表格", "x" * 65, "a_b"])
def test_a_name_that_other_hosts_refuse_is_reported(tmp_path: Path, name: str) -> None:
    make_skill(tmp_path, name)
    assert [(severity, code) for _, _, severity, code in finding_codes(tmp_path)] == [("error", "skill-name")]


def test_features_that_other_hosts_may_refuse_are_warnings(tmp_path: Path) -> None:
    make_skill(tmp_path, "a", GOOD.format(name="b"))
    make_skill(tmp_path, "claude-tables")
    make_skill(tmp_path, "long", f"---\nname: long\ndescription: {'d' * 2_000}\n---\nx")
    make_skill(tmp_path, "tags", "---\nname: tags\ndescription: Reads <system>all</system>.\n---\nx")
    assert {(file.split("/")[1], severity) for file, _, severity, _ in finding_codes(tmp_path)} == {
        (name, "warning") for name in ("a", "claude-tables", "long", "tags")
    }
    summaries = dict(SkillLibrary(tmp_path).summaries())
    assert len(summaries["long"]) == MAX_DESCRIPTION
    assert summaries["tags"] == "Reads all ."


@pytest.mark.attack("files")
def test_no_file_outside_its_folder_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    workspace, secret = tmp_path / "workspace", tmp_path / "secret.txt"
    secret.write_text("secret")
    folder = make_skill(workspace)
    other_skill = make_skill(workspace, "other", own=b"theirs")
    (folder / "link.md").symlink_to(secret)
    (folder / "folder").symlink_to(tmp_path)
    (folder / "hard.md").hardlink_to(secret)
    os.mkfifo(folder / "pipe")
    (workspace / "skills" / "linked").symlink_to(other_skill)
    (workspace / "skills" / "bodyless").mkdir()
    (workspace / "skills" / "bodyless" / BODY).symlink_to(secret)
    os.mkfifo(workspace / "skills" / "fifo")
    with socket.socket(socket.AF_UNIX) as server_socket:
        monkeypatch.chdir(folder)  # the whole path may be too long for a socket
        server_socket.bind("socket")
    library = SkillLibrary(workspace)
    skills = {skill.name: skill for skill in library.list()}
    assert [name for name, skill in skills.items() if skill.usable] == ["other", "tables"]
    assert [file.path for file in skills["tables"].files] == [BODY]
    reported_files = {file for file, _, _, _ in finding_codes(workspace)}
    assert {f"skills/tables/{name}" for name in ("link.md", "folder", "hard.md", "pipe", "socket")} <= reported_files
    assert {"skills/linked/SKILL.md", "skills/bodyless/SKILL.md", "skills/fifo/SKILL.md"} <= reported_files
    paths = ("link.md", "folder/secret.txt", "hard.md", "pipe", "socket", "../other/own", "/etc/passwd", "..", ".")
    for path in (*paths, "", "a\x00b", "x" * 5_000, "../../../secret.txt", "none.md", "folder"):
        with pytest.raises(SkillUnreadable):
            library.read("tables", path)
    for name in ("linked", "bodyless", "..", "../workspace/skills/other", ".", "", "other/", "a\x00b"):
        with pytest.raises(UnknownSkill):
            library.read(name, BODY)


def test_huge_and_numerous_inputs_are_bounded(tmp_path: Path) -> None:
    folder = make_skill(tmp_path, big=b"x" * (MAX_BODY_BYTES * 5))
    for number in range(MAX_FILES + 5):
        (folder / f"f{number}").write_bytes(b"x")
    make_skill(tmp_path, "giant", "---\n" + "x" * MAX_BODY_BYTES)
    for number in range(MAX_SKILLS + 5):
        make_skill(tmp_path, f"s{number}")
    skills = {skill.name: skill for skill in SkillLibrary(tmp_path).list()}
    assert len(skills) == MAX_SKILLS
    assert not skills["giant"].usable
    assert len(SkillLibrary(tmp_path).list()[0].files) <= MAX_FILES
    library = SkillLibrary(tmp_path)
    with pytest.raises(UnknownSkill):
        library.read("giant", BODY)


def test_a_file_that_is_too_large_is_left_out_of_a_skill(tmp_path: Path) -> None:
    make_skill(tmp_path, big=b"x" * (MAX_BODY_BYTES * 5))
    (skill,) = SkillLibrary(tmp_path).list()
    assert [file.path for file in skill.files] == [BODY]
    assert finding_codes(tmp_path) == [("skills/tables/big", 1, "warning", "skill-link")]
    with pytest.raises(SkillUnreadable, match="more than"):
        SkillLibrary(tmp_path).read("tables", "big")


@given(st.text(max_size=300), st.text(max_size=100))
def test_any_text_is_read_or_reported(front: str, body: str) -> None:
    value, text, findings = read_front_matter(f"---\n{front}\n---\n{body}", "SKILL.md")
    assert isinstance(value, dict)
    assert isinstance(text, str)
    assert all(finding.line >= 1 for finding in findings)


@pytest.mark.parametrize(
    ("role", "name"), [("clerk", "clerk"), ("HR_Clerk.v2", "hr-clerk-v2"), ("書記", "role-"), ("é-x", "e-x")]
)
def test_a_role_becomes_a_skill_that_is_read_back(tmp_path: Path, role: str, name: str) -> None:
    skill_name, text = role_as_skill(
        role, "Clerk: counts <b>all</b> \u200b twice.", "# Clerk\n\nCount: twice.\n---\nEnd"
    )
    assert skill_name.startswith(name)
    make_skill(tmp_path, skill_name, text)
    (skill,) = SkillLibrary(tmp_path).list()
    assert skill.findings == ()
    values: dict[str, Any] = skill.front_matter
    assert (values["name"], values["metadata"]) == (skill_name, {"role": role})
    assert skill.description == f"Act as the role {role}. Clerk: counts all twice."
    assert skill.body == "# Clerk\n\nCount: twice.\n---\nEnd"
