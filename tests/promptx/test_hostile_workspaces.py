"""Foreign objects in a workspace do no harm: links, pipes and databases that are no memory.

The tests reach everything as the server does: through `memory_folder` and `RoleLibrary`. Nothing may read or change
``outside``.
"""

import os
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from mcp_servers.promptx.errors import MemoryUnavailable, RoleRefused
from mcp_servers.promptx.ledger import Ledger, has_memory
from mcp_servers.promptx.memory import Memory, memory_folder
from mcp_servers.promptx.new_engrams import NewEngram
from mcp_servers.promptx.nuwa import RoleFile
from mcp_servers.promptx.roles import RoleLibrary
from mcp_servers.safe_files import Folder
from tests.promptx.conftest import DATA, ROLE

pytestmark = pytest.mark.attack(kind="files")

NOW = 1_790_000_000_000
SECRET = b"the key that opens everything"
SAVED = NewEngram("content", "one two", 0.5, "ATOMIC")
ROLE_TEXT = "<role><personality>I am</personality></role>"
ENDLESS = "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n)"


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    folder = tmp_path / "outside"
    folder.mkdir()
    (folder / "key").write_bytes(SECRET)
    return folder


def make_memory_folder(workspace: Path) -> Path:
    folder = workspace / ".promptx" / "cognition" / ROLE
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def use_memory(workspace: Path) -> None:
    """Run all actions of a memory. Refusals are fine; the tests check the result."""
    memory = Memory(memory_folder(workspace, "domain", None, ROLE))
    actions: tuple[Callable[[], object], ...] = (
        lambda: memory.remember([SAVED], NOW),
        lambda: memory.recall("one", "balanced", NOW),
        memory.save,
        lambda: memory.delete([engram.id for engram in memory.export()]),
        memory.close,
    )
    for action in actions:
        with suppress(MemoryUnavailable):
            action()


@pytest.mark.parametrize("name", ["network.json.tmp", "network.json", "state.json"])
def test_a_link_at_a_memorys_file_name_changes_nothing_outside(workspace: Path, outside: Path, name: str) -> None:
    (make_memory_folder(workspace) / name).symlink_to(outside / "key")
    use_memory(workspace)
    assert (outside / "key").read_bytes() == SECRET
    assert [path.name for path in outside.iterdir()] == ["key"]


@pytest.mark.parametrize(
    "name",
    ["engrams.db", "engrams.db-wal", "engrams.db-shm", "engrams.db-journal", ".engrams.lock", ".network.lock"],
)
def test_a_dangling_link_at_a_database_name_creates_nothing_outside(workspace: Path, outside: Path, name: str) -> None:
    (make_memory_folder(workspace) / name).symlink_to(outside / "made")
    use_memory(workspace)
    assert [path.name for path in outside.iterdir()] == ["key"]


@pytest.mark.parametrize("suffix", ["", "/..", "/../.."])
def test_a_memory_folder_that_is_a_link_is_neither_read_nor_written(
    workspace: Path, outside: Path, suffix: str
) -> None:
    foreign_folder = outside / "theirs"
    foreign_memory = foreign_folder.joinpath(*[".promptx", "cognition", ROLE][3 - suffix.count("..") :])
    foreign_memory.mkdir(parents=True)
    for name in ("engrams.db", "network.json"):
        shutil.copyfile(DATA / name, foreign_memory / name)
    before = {path: path.read_bytes() for path in sorted(foreign_folder.rglob("*")) if path.is_file()}
    folder = make_memory_folder(workspace)
    link = Path(os.path.normpath(f"{folder}{suffix}"))
    shutil.rmtree(link)
    link.symlink_to(foreign_folder)
    memory_path = memory_folder(workspace, "domain", None, ROLE)
    assert not has_memory(memory_path)
    with pytest.raises(MemoryUnavailable, match="it is a link, and links are not followed"):
        Memory(memory_path).remember([SAVED], NOW)
    with pytest.raises(MemoryUnavailable, match="it is a link"):
        Memory(memory_path).recall("w00", "balanced", NOW)
    use_memory(workspace)
    assert {path: path.read_bytes() for path in sorted(foreign_folder.rglob("*")) if path.is_file()} == before


@pytest.mark.parametrize(
    "name",
    [
        *("engrams.db", "engrams.db-wal", "engrams.db-shm", "engrams.db-journal"),
        *(".engrams.lock", ".network.lock", "network.json", "state.json"),
    ],
)
def test_a_pipe_at_any_file_name_of_a_memory_blocks_no_caller(workspace: Path, name: str) -> None:
    os.mkfifo(make_memory_folder(workspace) / name)
    use_memory(workspace)


def test_a_pipe_in_place_of_a_role_or_its_folder_blocks_no_caller(workspace: Path, resources: Path) -> None:
    os.mkfifo(resources / "piped.role.md")
    os.mkfifo(resources / "role")
    library = RoleLibrary(workspace)
    assert "piped" in library.ids()
    assert [finding.code for finding in library.check("piped")] == ["not-a-file"]
    with pytest.raises(RoleRefused, match="a file stands where a folder should be"):
        library.write("new", [RoleFile("role", "new", ROLE_TEXT)])


def test_a_role_that_is_swapped_for_a_link_is_not_read_through_it(resources: Path, outside: Path) -> None:
    """The checked file is the file that is read, so a swap between the two has no effect."""
    (resources / "x.role.md").write_text(ROLE_TEXT)
    folder = Folder(resources)
    with folder.open("x.role.md") as file:
        (resources / "x.role.md").unlink()
        (resources / "x.role.md").symlink_to(outside / "key")
        assert file.read() == ROLE_TEXT.encode()
    with pytest.raises(OSError, match="it is a link"):
        folder.open("x.role.md")


def test_a_hard_link_to_an_outside_file_is_not_a_role(workspace: Path, resources: Path, outside: Path) -> None:
    os.link(outside / "key", resources / "x.role.md")
    assert [finding.code for finding in RoleLibrary(workspace).check("x")] == ["second-name"]
    with pytest.raises(RoleRefused):
        RoleLibrary(workspace).write("x", [RoleFile("role", "x", "no role")])
    RoleLibrary(workspace).write("x", [RoleFile("role", "x", ROLE_TEXT)])
    assert (outside / "key").read_bytes() == SECRET


def run_sql(folder: Path, *statements: str) -> None:
    with sqlite3.connect(folder / "engrams.db") as connection:
        for statement in statements:
            connection.execute(statement)
    connection.close()


CUES = "CREATE TABLE cue_index (word TEXT, engram_id TEXT, PRIMARY KEY (word, engram_id))"
COLUMNS = "x AS id, 'c' AS content, '[]' AS schema, 'ATOMIC' AS type, x AS timestamp, 1.0 AS strength, '' AS metadata"


@pytest.mark.parametrize(
    "statements",
    [
        (f"CREATE VIEW engrams AS {ENDLESS} SELECT {COLUMNS} FROM n", CUES),
        ("CREATE TABLE engrams (id TEXT PRIMARY KEY, content TEXT AS (zeroblob(100000000)))", CUES),
        ("CREATE VIRTUAL TABLE engrams USING fts5(id, content, schema, type, timestamp, strength, metadata)",),
        ("CREATE TABLE engrams (id TEXT PRIMARY KEY, content TEXT, schema TEXT, type TEXT, timestamp INTEGER)", CUES),
    ],
    ids=["an endless view", "a computed column", "a virtual table", "other columns"],
)
def test_a_database_that_is_not_a_memory_is_named_and_not_read(workspace: Path, statements: tuple[str, ...]) -> None:
    run_sql(make_memory_folder(workspace), *statements)
    memory = Memory(memory_folder(workspace, "domain", None, ROLE))
    with pytest.raises(MemoryUnavailable, match="not of a memory's schema"):
        memory.recall("one", "balanced", NOW)
    with pytest.raises(MemoryUnavailable, match="not of a memory's schema"):
        memory.remember([SAVED], NOW)
    with pytest.raises(MemoryUnavailable, match="not of a memory's schema"):
        memory.browse()


def test_a_trigger_beside_our_tables_does_not_run(workspace: Path, recorded_folder: Path) -> None:
    statement = f"INSERT INTO cue_index SELECT x, x FROM ({ENDLESS} SELECT x FROM n)"
    run_sql(recorded_folder, f"CREATE TRIGGER t AFTER INSERT ON engrams BEGIN {statement}; END")
    with pytest.raises(MemoryUnavailable, match="holds the trigger 't'"):
        Memory(memory_folder(workspace, "domain", None, ROLE)).remember([SAVED], NOW)


def test_a_statement_that_runs_too_long_is_stopped(recorded_folder: Path) -> None:
    """A database may change under an open connection after its schema was checked. Then the deadline ends the query."""
    ledger = Ledger(Folder(recorded_folder), seconds=0.2)
    assert len(ledger.all()) == 72
    run_sql(
        recorded_folder,
        "DROP TABLE engrams",
        f"CREATE VIEW engrams AS {ENDLESS} SELECT {COLUMNS}, x AS rowid FROM n",
    )
    with pytest.raises(MemoryUnavailable, match=r"took more than 0\.2 s and was stopped"):
        ledger.tip()
    ledger.close()


def test_invalid_numbers_and_endless_keywords_are_ignored(workspace: Path, recorded_folder: Path) -> None:
    nested_schema = "[" * 100_000 + "]" * 100_000
    run_sql(
        recorded_folder,
        f"UPDATE engrams SET timestamp = 9e999, strength = -9e999, schema = '{nested_schema}' WHERE rowid = 1",
    )
    memory = Memory(memory_folder(workspace, "domain", None, ROLE))
    assert memory.recall("w00", "balanced", NOW).engrams
    assert memory.browse(0, 100).total == 72
