"""A backup moves data from one kind of database to the other and back, unchanged."""

import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import asyncpg
import pytest
from sqlalchemy import Connection

from agentic_rag.backup.archive import read_archive
from agentic_rag.backup.contents import RECORDS, BackupOptions
from agentic_rag.backup.making import make_backup
from agentic_rag.backup.restoring import Plan, restore
from agentic_rag.backup.upgrading import find_before, go_back, look_back, open_database, rehearse
from agentic_rag.base.errors import BackupRefused
from agentic_rag.commands.doctor import examine
from agentic_rag.store import leases, migrations, replicas, signals
from agentic_rag.store.database import Database, find_revision
from agentic_rag.store.signals import SignalKind
from agentic_rag.testing.steps import say
from tests.backup.later import NEXT, make_later
from tests.backup.making import ANSWER, fill, read_rows
from tests.server.rig import Rig, settings_for

from .conftest import needs_postgresql

pytestmark = needs_postgresql

SAID_ANEW = ("origin/", "audit/", "audit_head/", "domains/", "documents/")


@pytest.fixture(autouse=True)
def private_files() -> Iterator[None]:
    umask_before = os.umask(0o077)
    yield
    os.umask(umask_before)


@pytest.fixture
async def fresh_url(postgresql_url: str) -> AsyncIterator[str]:
    """A database that nobody has used and that no other test uses."""
    server = await asyncpg.connect(postgresql_url)
    await server.execute("DROP DATABASE IF EXISTS moves")
    await server.execute("CREATE DATABASE moves")
    yield postgresql_url.removesuffix("postgres") + "moves"
    await server.execute("DROP DATABASE moves WITH (FORCE)")
    await server.close()


def records(backup: Path) -> dict[str, bytes]:
    """Return the rows of a backup by member, without the tables that a restore writes itself."""
    with read_archive(backup) as reader:
        return {
            member.name: member.content.read()
            for member in reader.members()
            if member.name.startswith(RECORDS) and not member.name.removeprefix(RECORDS).startswith(SAID_ANEW)
        }


@pytest.mark.sqlite("begins with a file")
async def test_a_move_from_sqlite_to_postgresql_and_back_keeps_every_row(tmp_path: Path, fresh_url: str) -> None:
    first_backup, second_backup, third_backup = (tmp_path / f"{name}.tar.zst" for name in ("first", "second", "third"))
    choice = BackupOptions(with_key=True)
    data = await fill(tmp_path / "one")
    await make_backup(data / "agentic-rag.db", data, first_backup, choice)

    moved_data = tmp_path / "two" / "data"
    await restore(Plan(first_backup, moved_data, fresh_url))
    settings = settings_for(tmp_path / "two", database_url=fresh_url)
    assert await examine(settings, False) == []
    assert not (moved_data / "agentic-rag.db").exists()
    await make_backup(fresh_url, moved_data, second_backup, choice)

    returned_data = tmp_path / "three" / "data"
    await restore(Plan(second_backup, returned_data, returned_data / "agentic-rag.db"))
    assert await examine(settings_for(tmp_path / "three"), False) == []
    await make_backup(returned_data / "agentic-rag.db", returned_data, third_backup, choice)

    assert records(first_backup) == records(second_backup) == records(third_backup)
    assert len(records(first_backup)) > 8
    with pytest.raises(BackupRefused, match="database is not empty"):
        await restore(Plan(first_backup, tmp_path / "four" / "data", fresh_url))
    async with Rig(tmp_path / "two", say("On the server too."), database_url=fresh_url) as rig:
        conversation = (await rig.ok("GET", "/api/conversations"))["items"][0]["id"]
        items = (await rig.ok("GET", f"/api/conversations/{conversation}/messages"))["items"]
        assert items[-1]["content"] == ANSWER
        assert (await rig.say(conversation, "And there?"))[-1]["type"] == "done"


async def test_leases_replicas_and_signals_are_not_restored(tmp_path: Path, fresh_url: str) -> None:
    def add_live_rows(conn: Connection) -> None:
        assert leases.take(conn, "a job", "run_dead", 3600.0)
        assert replicas.join(conn, "one", "run_dead", "1", "")
        signals.send(conn, SignalKind.ACCESS)

    data = await fill(tmp_path / "one", database_url=fresh_url)
    database = await Database.open(fresh_url)
    await database.write(add_live_rows)
    await database.aclose()
    await make_backup(fresh_url, data, tmp_path / "b.tar.zst", BackupOptions(with_key=True))
    restored_data = tmp_path / "two" / "data"
    await restore(Plan(tmp_path / "b.tar.zst", restored_data, restored_data / "agentic-rag.db"))
    rows = read_rows(restored_data / "agentic-rag.db")
    assert {name: rows[name] for name in ("leases", "replicas", "signals")} == {
        "leases": [],
        "replicas": [],
        "signals": [],
    }


@pytest.mark.sqlite("begins with a file")
@pytest.mark.nightly("backup/test_kills.py cuts off restores into a file every time")
async def test_a_restore_interrupted_after_its_transaction_restarts_on_postgresql_too(
    tmp_path: Path, fresh_url: str
) -> None:
    from agentic_rag.base import failpoints

    class _Killed(Exception):
        pass

    def stop_at_load(place: str) -> None:
        if place == "restore.loaded":
            raise _Killed

    data = await fill(tmp_path / "one")
    backup = tmp_path / "b.tar.zst"
    await make_backup(data / "agentic-rag.db", data, backup, BackupOptions(with_key=True))
    plan = Plan(backup, tmp_path / "two" / "data", fresh_url)
    with pytest.raises(_Killed), failpoints.heard_by(stop_at_load):
        await restore(plan)
    await restore(plan)
    assert await examine(settings_for(tmp_path / "two", database_url=fresh_url), False) == []
    database = await Database.open(fresh_url)
    assert await database.read(migrations.version) == migrations.HEAD
    await database.aclose()


@pytest.mark.nightly("backup/test_upgrades.py does the same with a file every time")
async def test_a_postgresql_upgrade_is_rehearsed_backed_up_and_reverted(tmp_path: Path, fresh_url: str) -> None:
    later_migrations = make_later(tmp_path / "migrations")
    settings = settings_for(tmp_path, database_url=fresh_url)
    data = await fill(tmp_path, database_url=fresh_url)
    before = tmp_path / "before.tar.zst"
    await make_backup(fresh_url, data, before, BackupOptions())
    rehearsal = await rehearse(settings, later_migrations)
    assert (rehearsal.steps[0][0], rehearsal.changes, rehearsal.findings) == (NEXT, ["probe.who is new (text)"], [])
    assert await find_revision(fresh_url) == migrations.HEAD
    await (await open_database(settings, later_migrations)).aclose()
    assert await find_revision(fresh_url) == NEXT
    way_back = await look_back(settings, find_before(data), later_migrations)
    assert way_back.header.database == "postgresql"
    assert "domains" not in [name for name, _, _ in way_back.lost]
    await go_back(settings, way_back, later_migrations)
    assert await find_revision(fresh_url) == migrations.HEAD
    after = tmp_path / "after.tar.zst"
    await make_backup(fresh_url, data, after, BackupOptions())
    assert records(before) == records(after)
