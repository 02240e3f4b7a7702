"""Tables of an older version are backed up, migrated, rehearsed and restored, with a migration of this test only."""

import sqlite3
from contextlib import closing
from pathlib import Path

import anyio.to_thread
import pytest

from agentic_rag.backup.archive import verify
from agentic_rag.backup.contents import BackupOptions
from agentic_rag.backup.making import make_backup
from agentic_rag.backup.restoring import Plan, restore
from agentic_rag.backup.upgrading import back_up_before, find_before, go_back, look_back, rehearse
from agentic_rag.base import failpoints
from agentic_rag.base.errors import BackupNotWritten, BackupRefused, BackupTooNew
from agentic_rag.base.settings import Settings
from agentic_rag.base.startup_errors import BadConfiguration
from agentic_rag.commands.doctor import examine
from agentic_rag.store.database import Database, find_revision
from agentic_rag.store.migrations import HEAD, OWN, Revisions
from agentic_rag.testing.steps import say
from tests.server.rig import Rig, settings_for

from .later import NEXT, STEP, make_later
from .making import ANSWER, read_rows


@pytest.fixture
def later_revisions(tmp_path: Path) -> Revisions:
    """The migrations of a later version."""
    return make_later(tmp_path / "migrations")


async def lay_out(data_and_backup: tuple[Path, Path], folder: Path) -> Path:
    """Copy the prepared content into a data folder."""
    data = folder / "data"
    await restore(Plan(data_and_backup[1], data, data / "agentic-rag.db"))
    return data


def columns(settings: Settings, table: str) -> set[str]:
    with closing(sqlite3.connect(settings.data / "agentic-rag.db")) as connection:
        return {row[1] for row in connection.execute(f"PRAGMA table_info({table})")}


async def test_a_start_backs_up_older_tables_migrates_them_and_can_be_downgraded(
    data_and_backup: tuple[Path, Path], tmp_path: Path, later_revisions: Revisions
) -> None:
    await lay_out(data_and_backup, tmp_path)
    settings = settings_for(tmp_path)
    old = read_rows(settings.data / "agentic-rag.db")
    async with Rig(tmp_path, say("New."), revisions=later_revisions) as rig:
        before = settings.data / "backups" / f"before-{NEXT}.tar.zst"
        header = verify(before)
        assert (header.revision, header.records_only) == (HEAD, True)
        assert "who" in columns(settings, "probe")
        domain = (await rig.ok("GET", "/api/domains"))["items"][0]
        assert domain["description"] == "touched"
        conversation = await rig.conversation(domain["id"])
        await rig.say(conversation, "This will be lost")
    with pytest.raises(BadConfiguration, match=f"version '{NEXT}'"):
        await Database.open(settings.database)
    assert await anyio.to_thread.run_sync(find_before, settings.data) == before
    way = await look_back(settings, before, later_revisions)
    assert ("conversations", 2, 1) in way.lost
    newer_backup = await go_back(settings, way, later_revisions)
    assert await find_revision(settings.database) == HEAD
    assert "who" not in columns(settings, "probe")
    assert {name: rows for name, rows in read_rows(settings.data / "agentic-rag.db").items() if name != "probe"} == {
        name: rows for name, rows in old.items() if name != "probe"
    }
    assert verify(newer_backup).revision == NEXT
    with pytest.raises(BackupTooNew):
        await go_back(settings, await look_back(settings, newer_backup), OWN)
    assert await examine(settings, False) == []
    async with Rig(tmp_path) as rig:
        conversation = (await rig.ok("GET", "/api/conversations"))["items"][0]["id"]
        items = (await rig.ok("GET", f"/api/conversations/{conversation}/messages"))["items"]
        assert items[-1]["content"] == ANSWER
        assert "downgrade" in [row["action"] for row in (await rig.ok("GET", "/api/audit"))["items"]]


@pytest.mark.nightly("backup/test_commands.py rehearses an upgrade every time")
async def test_a_rehearsal_reports_its_changes_and_makes_none(
    data_and_backup: tuple[Path, Path], tmp_path: Path, later_revisions: Revisions
) -> None:
    data = await lay_out(data_and_backup, tmp_path)
    settings = settings_for(tmp_path)
    async with Rig(tmp_path) as rig:  # next to a running server
        before = read_rows(data / "agentic-rag.db")
        rehearsal = await rehearse(settings, later_revisions)
        after = read_rows(data / "agentic-rag.db")
        await rig.ok("GET", "/api/domains")
    assert rehearsal.steps == [(NEXT, "A later step: the probe says who asked.")]
    assert rehearsal.changes == ["probe.who is new (text)"]
    assert rehearsal.findings == []
    assert {name: after[name] for name in after if name != "probe"} == {
        name: before[name] for name in before if name != "probe"
    }
    assert list((data / "backups").iterdir()) == []
    assert await find_revision(settings.database) == HEAD
    assert (await rehearse(settings)).steps == []


async def test_without_space_for_the_backup_nothing_is_changed(
    data_and_backup: tuple[Path, Path], tmp_path: Path, later_revisions: Revisions
) -> None:
    data = await lay_out(data_and_backup, tmp_path)
    (data / "backups").symlink_to("/dev/full")
    with pytest.raises(BackupNotWritten):
        await back_up_before(settings_for(tmp_path), later_revisions)
    assert await find_revision(data / "agentic-rag.db") == HEAD


async def test_a_failed_migration_or_an_interrupted_downgrade_keeps_the_old_tables(
    data_and_backup: tuple[Path, Path], tmp_path: Path, later_revisions: Revisions
) -> None:
    data = await lay_out(data_and_backup, tmp_path)
    settings = settings_for(tmp_path)
    step = later_revisions.folder / "versions" / "v9002_later.py"
    step.write_text(STEP + '    op.execute("UPDATE nowhere SET x = 1")\n')
    with pytest.raises(Exception, match="nowhere"):
        await Database.open(settings.database, later_revisions)
    assert await find_revision(settings.database) == HEAD
    step.write_text(STEP)
    assert await back_up_before(settings, later_revisions) is not None
    await (await Database.open(settings.database, later_revisions)).aclose()
    assert await back_up_before(settings, later_revisions) is None
    assert await back_up_before(settings, OWN) is None, "newer tables are refused, not backed up"
    with pytest.raises(BackupRefused, match="Use a newer one"):
        await rehearse(settings, OWN)

    class _Killed(Exception):
        pass

    way = await look_back(settings, find_before(data), later_revisions)
    for place in ("downgrade.built", "downgrade.closed"):

        def die(reached_place: str, place: str = place) -> None:
            if reached_place == place:
                raise _Killed

        with pytest.raises(_Killed), failpoints.heard_by(die):
            await go_back(settings, way, later_revisions)
        assert await find_revision(settings.database) == NEXT
    await go_back(settings, way, later_revisions)
    assert await find_revision(settings.database) == HEAD
    with pytest.raises(BackupRefused, match="version that is here"):
        await look_back(settings, find_before(data), later_revisions)


async def test_a_backup_of_an_older_version_is_restored_and_one_of_a_newer_is_refused(
    data_and_backup: tuple[Path, Path], tmp_path: Path, later_revisions: Revisions
) -> None:
    data = await lay_out(data_and_backup, tmp_path)
    old, new = tmp_path / "old.tar.zst", tmp_path / "new.tar.zst"
    await make_backup(data / "agentic-rag.db", data, old, BackupOptions(with_key=True))
    copy = tmp_path / "copy" / "data"
    await restore(Plan(old, copy, copy / "agentic-rag.db", revisions=later_revisions))
    assert await find_revision(copy / "agentic-rag.db") == NEXT
    await make_backup(copy / "agentic-rag.db", copy, new, BackupOptions(with_key=True))
    refused_folder = tmp_path / "refused" / "data"
    with pytest.raises(BackupTooNew, match="newer one"):
        await restore(Plan(new, refused_folder, refused_folder / "agentic-rag.db"))
