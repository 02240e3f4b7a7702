"""A restore of a backup contains everything, and a failed one changes nothing."""

import os
import shutil
from io import FileIO
from pathlib import Path
from random import Random
from typing import Any

import pytest

from agentic_rag.backup.archive import check_name, read_archive, verify, write_archive
from agentic_rag.backup.backups_folder import keep_newest, list_kept, name_by_time
from agentic_rag.backup.contents import BackupOptions
from agentic_rag.backup.making import make_backup
from agentic_rag.backup.restoring import Plan, Restored, restore
from agentic_rag.base.errors import BackupDamaged, BackupNotWritten, BackupRefused
from agentic_rag.base.startup_errors import DataFolderOwned, RestoreUnfinished
from agentic_rag.commands.doctor import examine
from agentic_rag.operations.data_folder import RESTORE_MARK, DataFolder
from agentic_rag.store.clock import now
from agentic_rag.testing.steps import say
from agentic_rag.tools.launch.allowed import LaunchCatalogue
from agentic_rag.tools.launch.catalogue import Program
from tests.server.rig import Rig, settings_for

from .making import ANSWER, DOCUMENT, SECRET, fill, read_files, read_rows

DATABASE = "agentic-rag.db"
CHANGED = {"origin", "audit", "audit_head", "documents", "domains", "collections", "alembic_version", "turns"}
"""Tables that a restore writes itself."""


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


async def restore_into(folder: Path, backup: Path, **options: Any) -> Restored:
    return await restore(Plan(backup, folder, folder / DATABASE, **options))


async def test_a_restore_is_complete_and_the_doctor_finds_no_problem(
    data_and_backup: tuple[Path, Path], tmp_path: Path
) -> None:
    data, backup = data_and_backup
    copy = tmp_path / "data"
    restored = await restore_into(copy, backup)
    assert (restored.settled.documents, restored.settled.documents_gone, restored.settled.payloads_gone) == (1, 0, 0)
    before, after = read_rows(data / DATABASE), read_rows(copy / DATABASE)
    assert {name: before[name] for name in before.keys() - CHANGED} == {
        name: after[name] for name in after.keys() - CHANGED
    }
    assert read_files(copy) == read_files(data)
    assert not (copy / RESTORE_MARK).exists()
    assert await examine(settings_for(tmp_path), False) == []
    async with Rig(tmp_path, say("Still three.")) as rig:
        rig.application.begin()
        domain = (await rig.ok("GET", "/api/domains"))["items"][0]["id"]
        assert Path((await rig.application.parts.directory.get(domain)).workspace) == copy / "workspaces" / domain
        await rig.taken_up(domain)
        hits = await rig.ok("POST", f"/api/domains/{domain}/documents/search", {"query": "pump", "threshold": 0})
        assert hits["hits"][0]["documentName"] == "pump.md"
        conversation = (await rig.ok("GET", "/api/conversations"))["items"][0]["id"]
        items = (await rig.ok("GET", f"/api/conversations/{conversation}/messages"))["items"]
        assert items[-1]["content"] == ANSWER
        assert await rig.application.parts.vault.values(domain) == {"TOKEN": SECRET}
        assert (await rig.say(conversation, "And now?"))[-1]["type"] == "done"


@pytest.mark.sqlite("backs a file up")
async def test_local_programs_are_moved_with_their_permission(tmp_path: Path) -> None:
    data = await fill(tmp_path / "before")
    script, bundle = data / "mcp" / "local" / "tools" / "x.js", data / "mcp" / "bundles" / "ab.mcpb"
    for path in (script, bundle):
        path.parent.mkdir(parents=True)
        path.write_bytes(b"1;")
    (data / "mcp" / "allowed.json").unlink()
    table = {"id": "x", "executable": "/usr/bin/node", "command": "node", "sha256": "0" * 64, "args": ["./tools/x.js"]}
    files, places = {str(script): "1" * 64}, {"tools/x.js": str(script)}
    LaunchCatalogue(data / "mcp").put({**table, "files": files, "names": places})
    backup = tmp_path / "b.tar.zst"
    await make_backup(data / DATABASE, data, backup, BackupOptions())
    copy = tmp_path / "after"
    await restore_into(copy, backup)
    shutil.rmtree(data)
    (entry,) = LaunchCatalogue(copy / "mcp").allowed_entries()
    assert isinstance(entry.runs, Program)
    moved_program = copy / "mcp" / "local" / "tools" / "x.js"
    assert entry.runs.names == {"tools/x.js": str(moved_program)}
    assert entry.runs.files[str(moved_program)] == "1" * 64
    assert moved_program.read_bytes() == (copy / "mcp" / "bundles" / "ab.mcpb").read_bytes() == b"1;"
    (workspace,) = (path for path in (copy / "workspaces").iterdir() if path.is_dir())
    assert (workspace / "prompt").is_dir()


async def test_backups_keep_secrets_sealed_and_include_their_key_only_on_request(
    data_and_backup: tuple[Path, Path], tmp_path: Path
) -> None:
    data, _ = data_and_backup
    backup = tmp_path / "sealed.tar.zst"
    header = await make_backup(data / DATABASE, data, backup, BackupOptions())
    assert not header.with_key
    for path in (backup, data_and_backup[1]):
        with read_archive(path) as reader:
            content = {member.name: member.content.read() for member in reader.members()}
        assert ("secret.key" in content) == (path == data_and_backup[1])
        assert not [name for name, content_bytes in content.items() if SECRET.encode() in content_bytes]
    restored = await restore_into(tmp_path / "data", backup)
    assert restored.settled.secrets == 1
    codes = [finding.code for finding in await examine(settings_for(tmp_path), False)]
    assert codes == ["SECRETS_UNREADABLE"] or codes == ["SECRET_KEY_UNUSABLE"]
    shutil.copy(data / "secret.key", tmp_path / "data" / "secret.key")
    assert await examine(settings_for(tmp_path), False) == []


async def test_a_truncated_or_changed_backup_is_refused_before_the_restore_starts(
    data_and_backup: tuple[Path, Path], tmp_path: Path
) -> None:
    backup_bytes = data_and_backup[1].read_bytes()
    random = Random(7)
    bad = tmp_path / "bad.tar.zst"
    places = [
        0,
        4,
        5,
        len(backup_bytes) - 1,
        len(backup_bytes) - 40,
        *(random.randrange(len(backup_bytes)) for _ in range(40)),
    ]
    for place in places:
        content = bytearray(backup_bytes)
        content[place] ^= 1 << random.randrange(8)
        bad.write_bytes(content)
        with pytest.raises(BackupDamaged):
            verify(bad)
    for length in (0, 1, 55, 56, len(backup_bytes) // 2, len(backup_bytes) - 1):
        bad.write_bytes(backup_bytes[:length])
        with pytest.raises(BackupDamaged, match=r"cut|were written"):
            verify(bad)
    bad.write_bytes(backup_bytes + b"\0")
    with pytest.raises(BackupDamaged):
        await restore_into(tmp_path / "data", bad)
    assert not (tmp_path / "data").exists()
    assert verify(data_and_backup[1]).with_key


class FirstMember:
    """A progress callback that notes the first copied member, and moves the clock before the next one."""

    def __init__(self) -> None:
        self.at = ""

    def __call__(self, name: str, count: int) -> None:
        if not self.at:
            self.at = now()
            while now() == self.at:
                pass


async def test_a_backup_has_the_state_before_its_records_are_copied(
    data_and_backup: tuple[Path, Path], tmp_path: Path
) -> None:
    data, progress, before = data_and_backup[0], FirstMember(), now()
    summary = await make_backup(data / DATABASE, data, tmp_path / "b.tar.zst", BackupOptions(), progress)
    assert before <= summary.made_at <= progress.at < now()
    assert verify(tmp_path / "b.tar.zst").made_at == summary.made_at


async def test_a_restore_does_not_change_a_folder_that_is_in_use_or_not_empty(
    data_and_backup: tuple[Path, Path], tmp_path: Path
) -> None:
    folder = tmp_path / "data"
    owner = DataFolder.own(folder)
    with pytest.raises(DataFolderOwned):
        await restore_into(folder, data_and_backup[1])
    owner.release()
    (folder / "letter.txt").write_text("mine")
    with pytest.raises(BackupRefused, match=r"not empty \(letter.txt\)"):
        await restore_into(folder, data_and_backup[1])
    assert names(folder) == ["letter.txt", "lock", "spare"]


async def test_a_copied_data_folder_does_not_silently_run_the_originals_turns(
    data_and_backup: tuple[Path, Path], tmp_path: Path
) -> None:
    data, backup = data_and_backup
    owner = DataFolder.own(data)
    try:
        with pytest.raises(BackupRefused, match="would run twice"):
            await restore_into(tmp_path / "data", backup)
        restored = await restore_into(tmp_path / "data", backup, end_turns=True)
    finally:
        owner.release()
    assert restored.settled.ended
    rows = {name: read_rows(place / DATABASE)["origin"] for name, place in (("old", data), ("new", tmp_path / "data"))}
    assert rows["old"][0][1] != rows["new"][0][1]
    assert rows["old"][0][1] in rows["new"][0]


async def test_only_the_newest_scheduled_backups_are_kept(tmp_path: Path) -> None:
    for number in range(3):
        path = name_by_time(tmp_path)
        path.write_bytes(b"x")
        os.utime(path, (number, number))
    (tmp_path / ".agentic-rag-left.tar.zst.part").write_bytes(b"a killed writer's")
    (tmp_path / "agentic-rag-mine.tar.zst").write_bytes(b"another name")
    newest = list_kept(tmp_path)[0].path
    assert len(keep_newest(tmp_path, 1)) == 2
    assert newest.name.endswith("-2.tar.zst")
    assert names(tmp_path) == sorted(["agentic-rag-mine.tar.zst", newest.name])


async def test_an_existing_file_is_not_overwritten(data_and_backup: tuple[Path, Path], tmp_path: Path) -> None:
    target = tmp_path / "b.tar.zst"
    target.write_bytes(b"mine")
    with pytest.raises(BackupRefused, match="is there already"):
        await make_backup(data_and_backup[0] / DATABASE, data_and_backup[0], target, BackupOptions())
    assert names(tmp_path) == ["b.tar.zst"]
    assert target.read_bytes() == b"mine"


def test_paths_that_leave_a_folder_are_refused(data_and_backup: tuple[Path, Path]) -> None:
    for name in ("/etc/passwd", "../x", "workspaces/../../x", "workspaces//x", "workspaces/./x", "a\0b", ""):
        with pytest.raises(BackupDamaged, match="no name below a folder"):
            check_name(data_and_backup[1], name)


def test_a_full_disk_has_a_plain_error(tmp_path: Path) -> None:
    with (
        pytest.raises(BackupNotWritten, match="No space left on device"),
        FileIO("/dev/full", "w") as full,
        write_archive(full, tmp_path / "b.tar.zst") as archive,
    ):
        archive.add("backup.json", b"{}")


async def test_an_interrupted_restore_blocks_servers_and_can_be_restarted(
    data_and_backup: tuple[Path, Path], tmp_path: Path
) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / RESTORE_MARK).write_text('{"backup": "/mnt/b.tar.zst", "id": "backup_x"}')
    (folder / "workspaces").mkdir()
    (folder / "workspaces" / "half").write_bytes(b"x")
    with pytest.raises(RestoreUnfinished, match=r"/mnt/b\.tar\.zst"):
        DataFolder.own(folder)
    await restore_into(folder, data_and_backup[1])
    assert not (folder / "workspaces" / "half").exists()
    DataFolder.own(folder).release()
    assert DOCUMENT in [path.read_bytes() for path in folder.rglob("pump.md")]
