"""The operator's folder: the names that a command line may use, and the files that an approval binds."""

import os
from pathlib import Path

import pytest

from agentic_rag.base.errors import CommandNotAllowed
from agentic_rag.tools.launch.allowed import MAX_FILES
from agentic_rag.tools.launch.catalogue import LineRefusal
from agentic_rag.tools.launch.local_programs import LocalPrograms
from agentic_rag.tools.launch.requests import ProgramLine, local_name, plan_line


def list_files(folder: Path, *args: str) -> set[str]:
    plan = plan_line("python3", args, [])
    assert isinstance(plan, ProgramLine)
    return set(LocalPrograms(folder).find(plan, "mcpServers.x").facts.files) - {"/usr/bin/python3"}


def catch_refusal(folder: Path, *args: str) -> str:
    with pytest.raises(CommandNotAllowed) as refusal:
        list_files(folder, *args)
    return str(refusal.value)


def test_a_script_pins_its_file_or_its_whole_folder(tmp_path: Path) -> None:
    (tmp_path / "own" / "lib").mkdir(parents=True)
    for name in ("alone.py", "beside.py", "own/main.py", "own/lib/part.py", "own/.hidden"):
        (tmp_path / name).write_text(name)
    assert list_files(tmp_path, "./alone.py", "--flag") == {"alone.py"}
    assert list_files(tmp_path, "own/main.py") == {"own/main.py", "own/lib/part.py", "own/.hidden"}
    assert list_files(tmp_path, "./alone.py", "./beside.py") == {"alone.py", "beside.py"}


def test_links_pipes_and_missing_scripts_are_refused(tmp_path: Path) -> None:
    outside_script = tmp_path / "outside.py"
    outside_script.write_text("")
    folder = tmp_path / "local"
    (folder / "own").mkdir(parents=True)
    (folder / "own" / "main.py").write_text("")
    os.symlink(outside_script, folder / "link.py")
    os.link(outside_script, folder / "second.py")
    os.symlink(tmp_path, folder / "linked")
    os.mkfifo(folder / "pipe.py")
    for name in ("link.py", "second.py", "linked/outside.py", "pipe.py", "missing.py", "own"):
        assert "the operator's folder mcp/local" in catch_refusal(folder, name)
    os.symlink(outside_script, folder / "own" / "part.py")
    assert "own/part.py is a link" in catch_refusal(folder, "own/main.py")
    (folder / "own" / "part.py").unlink()
    for number in range(MAX_FILES):
        (folder / "own" / f"{number}.py").write_text("")
    assert f"more than {MAX_FILES} files" in catch_refusal(folder, "own/main.py")


@pytest.mark.parametrize("text", ["/etc/x.py", "../x.py", "own/../../x.py", "~/x.py", "a\\..\\x.py", "", "C:/x.py"])
def test_no_other_spelling_leaves_the_folder(tmp_path: Path, text: str) -> None:
    assert local_name(text) is None
    if text:
        assert "leads out" in catch_refusal(tmp_path, text)


@pytest.mark.parametrize(
    ("command", "args"),
    [
        *(("node", ["-r", "./x.js"]), ("python3.11", ["-c", "1"]), ("python", []), ("nodejs", ["--import=x"])),
        *(("/bin/sh", ["-c", "id"]), ("env", ["node", "./x.js"]), ("npm", ["exec", "x"]), ("Bash", [])),
        *(("./server", []), ("/opt/server", []), ("node", ["./x.js", "a\nb"]), ("node", ["x"] * 65)),
    ],
)
def test_a_command_line_with_programs_as_arguments_cannot_be_pinned(command: str, args: list[str]) -> None:
    assert isinstance(plan_line(command, args, []), LineRefusal)
