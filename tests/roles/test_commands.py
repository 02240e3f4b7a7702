"""`agentic-rag roles` and `agentic-rag memory` as an author uses them: real processes, exit codes, plain lines."""

import shutil
import sqlite3
import subprocess
from pathlib import Path

from mcp_servers.promptx.memory import Memory
from mcp_servers.safe_files import Folder
from tests.e2e.serving import environment
from tests.programs import run_program
from tests.server.test_cli import assert_one_line, run, serving

HERE = Path(__file__).parent
RECORDED = HERE.parent / "promptx" / "data"


def read_engrams(folder: Path) -> list[tuple[str, ...]]:
    with sqlite3.connect(f"{(folder / 'engrams.db').as_uri()}?mode=ro", uri=True) as database:
        result = database.execute("SELECT id, content, schema, type, timestamp, strength FROM engrams ORDER BY id")
        return result.fetchall()


def check(folder: Path, roles: str) -> subprocess.CompletedProcess[str]:
    """Check the roles below a folder, which gets no data folder."""
    return run_program(("roles", "check", roles), cwd=folder, env=environment())


def test_twenty_broken_roles_print_the_expected_lines_and_exit_with_1() -> None:
    files = [path for path in (HERE / "broken").rglob("*") if path.is_file()]
    assert len({path.name[:2] for path in files}) == 20
    process = check(HERE, "./broken")
    assert (process.returncode, process.stderr) == (1, "")
    assert process.stdout == (HERE / "broken.txt").read_text("utf-8")


def test_a_folder_is_checked_without_a_data_folder(tmp_path: Path) -> None:
    resource = tmp_path / "work" / ".promptx" / "resource"
    resource.mkdir(parents=True)
    (resource / "clerk.role.md").write_text("<role><personality>@!thought://memory-sense</personality></role>")
    clean = check(tmp_path, "work")
    assert (clean.returncode, clean.stdout) == (0, "")
    (resource / "clerk.role.md").write_text("half")
    broken = check(tmp_path, "./work")
    assert broken.returncode == 1
    assert broken.stdout.startswith("work/.promptx/resource/clerk.role.md:1:1: error no-tag: ")
    assert_one_line(check(tmp_path, "./nowhere"), 1, "no folder 'nowhere'")
    assert not (tmp_path / "data").exists()


def test_a_new_role_is_created_shown_and_never_overwritten(tmp_path: Path) -> None:
    domain = run(tmp_path, "domains", "create", "Law").stdout.strip()
    with serving(tmp_path):
        process = run(tmp_path, "roles", "new", domain, "clerk")
        assert (process.returncode, process.stderr) == (0, "")
        assert process.stdout.splitlines() == [
            ".promptx/resource/role/clerk/thought/clerk-thought.thought.md",
            ".promptx/resource/role/clerk/execution/clerk-work.execution.md",
            ".promptx/resource/role/clerk/clerk.role.md",
        ]
        lines = run(tmp_path, "roles", "list", domain).stdout.splitlines()
        assert "clerk\tclerk\tworkspace\t0" in lines
        assert "## execution: clerk-work" in run(tmp_path, "roles", "show", domain, "clerk").stdout
        assert run(tmp_path, "roles", "check", domain).returncode == 0
        second_process = run(tmp_path, "roles", "new", domain, "clerk")
        assert second_process.returncode == 1
        assert second_process.stderr.count("exists already") == 3
        assert_one_line(run(tmp_path, "roles", "new", domain, "../x"), 1)
        assert_one_line(run(tmp_path, "roles", "show", domain, "nobody"), 1, "nobody")


def test_a_promptx_memory_is_imported_and_exported_unchanged(tmp_path: Path) -> None:
    source = tmp_path / "promptx" / "cognition" / "assistant"
    source.mkdir(parents=True)
    for name in ("engrams.db", "network.json"):
        shutil.copyfile(RECORDED / name, source / name)
    domain = run(tmp_path, "domains", "create", "Law").stdout.strip()
    with serving(tmp_path):
        count = len(read_engrams(source))
        first_import = run(tmp_path, "memory", "import", "assistant", "promptx", "--domain", domain)
        assert first_import.stdout == f"{count} added, 0 already there, 0 left out.\n", first_import.stderr
        second_import = run(tmp_path, "memory", "import", "assistant", str(source), "--domain", domain)
        assert not (source / ".engrams.lock").exists()
        assert second_import.stdout == f"0 added, {count} already there, 0 left out.\n"
        listing = run(tmp_path, "memory", "show", "assistant", "--domain", domain, "--limit", "2")
        rows = [line.split("\t") for line in listing.stdout.splitlines()]
        assert [len(row) for row in rows] == [6, 6]
        assert f"{count} in all" in listing.stderr
        export = run(tmp_path, "memory", "export", "assistant", "--domain", domain, "--to", "out/assistant")
        assert export.stdout == f"{count} memories written to out/assistant\n", export.stderr
        target = tmp_path / "out" / "assistant"
        assert sorted(path.name for path in target.iterdir()) == ["engrams.db", "network.json"]
        assert_one_line(run(tmp_path, "memory", "export", "assistant", "--domain", domain, "--to", "out/assistant"), 1)
        assert_one_line(run(tmp_path, "memory", "export", "nobody", "--domain", domain), 1, "nobody")
        assert_one_line(run(tmp_path, "memory", "import", "assistant", "out", "--domain", "nope"), 1, "nope")
    assert read_engrams(target) == read_engrams(source)
    now_ms = 1_800_000_000_000
    before, after = (Memory(Folder(folder)).recall(None, "balanced", now_ms) for folder in (source, target))
    assert (before.mindmap, before.mind.activated) == (after.mindmap, after.mind.activated)
    assert_one_line(run(tmp_path, "memory", "import", "x", "out/nothing", "--domain", domain), 1, "engrams.db")


def test_every_command_has_an_explanation(tmp_path: Path) -> None:
    for command in (*(("roles", name) for name in ("list", "show", "check", "new")), ("memory", "show")):
        assert "Usage" in run(tmp_path, *command, "--help").stdout
    assert run(tmp_path, "memory", "show", "assistant").returncode == 2  # --domain is required
