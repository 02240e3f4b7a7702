"""Upgrades of tables of an older version: backed up first, rehearsed on a copy, and reversible.

The backup before an upgrade holds only the records, because nothing else changes. A crash at any point leaves the old
tables or the new ones, and the next start continues.
"""

import logging
import shutil
import sqlite3
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import anyio.to_thread
from sqlalchemy import Connection, text

from agentic_rag.access.acts import Acts, act
from agentic_rag.archive.files import move_durably
from agentic_rag.backup.archive import Header, no_progress, read_archive, verify
from agentic_rag.backup.backups_folder import FOLDER, before_upgrade, name_by_time
from agentic_rag.backup.contents import RECORDS, BackupOptions
from agentic_rag.backup.making import make_backup
from agentic_rag.backup.restoring import load_records
from agentic_rag.base import failpoints
from agentic_rag.base.errors import BackupRefused, StorageUnavailable
from agentic_rag.base.settings import Settings
from agentic_rag.operations.contents import Inconsistency
from agentic_rag.operations.doctor import examine_records
from agentic_rag.store.database import Database, find_revision, is_server
from agentic_rag.store.integrity import find_file_damage
from agentic_rag.store.migrations import OWN, Revisions, explain_unknown, list_steps
from agentic_rag.store.raw_tables import RawTable, count_rows, list_tables

log = logging.getLogger(__name__)

REHEARSAL = "agentic_rag_rehearsal"
"""Name of PostgreSQL's schema for the copy, and, after a dot, of the folder in the backups folder."""
RECORDS_ONLY = BackupOptions(records_only=True)


async def open_database(settings: Settings, revisions: Revisions = OWN) -> Database:
    """Open the database of the settings; older tables are backed up, then migrated to the newest version.

    Raises:
        BadConfiguration, StorageError: as `Database.open`.
        BackupNotWritten: there is not enough space for the backup, and nothing was changed.
    """
    await back_up_before(settings, revisions)
    return await Database.open(settings.database, revisions)


async def back_up_before(settings: Settings, revisions: Revisions) -> Path | None:
    """Back up the records if their tables are of an older version; return the path of the backup.

    Raises:
        BackupNotWritten: there is not enough space.
        StorageUnavailable: another server is making the backup.
    """
    revision = await find_revision(settings.database)
    if revision is None or revision == revisions.head or not _knows(revisions, revision):
        return None
    target = before_upgrade(settings.data, revisions.head)
    try:
        await make_backup(
            settings.database, settings.data, target, RECORDS_ONLY, no_progress, replaces_before=revisions.head
        )
    except BackupRefused as exc:  # the server starts again and then finds the other server's tables or backup
        raise StorageUnavailable(f"another server backs it up before it changes its tables ({exc})") from exc
    log.warning(
        "the tables are brought from version %s to %s; as they were they are in %s (agentic-rag downgrade)",
        revision,
        revisions.head,
        target,
    )
    return target


def _knows(revisions: Revisions, revision: str) -> bool:
    try:
        list_steps(revisions, revision)
    except KeyError:
        return False
    return True


# The rehearsal


@dataclass(frozen=True, slots=True)
class Rehearsal:
    """The result of a rehearsed upgrade.

    ``steps`` are its migrations (revision, description), ``changes`` its changes of tables in words. Backup and
    migration times are in seconds. ``findings`` are those of the doctor among the migrated records.
    """

    revision: str
    steps: list[tuple[str, str]]
    changes: list[str]
    backup_seconds: float
    migration_seconds: float
    findings: list[Inconsistency]


async def rehearse(settings: Settings, revisions: Revisions = OWN) -> Rehearsal:
    """Rehearse an upgrade on a copy of the records while a server runs: backup, restore, migration, doctor.

    Raises:
        BackupRefused: there are no records to upgrade, or this program does not know their version.
        BackupNotWritten, StorageError: there is not enough space for the copy.
    """
    revision = await find_revision(settings.database)
    if revision is None:
        raise BackupRefused(f"There are no records at {settings.data} yet: nothing is to be upgraded.")
    if not _knows(revisions, revision):
        raise BackupRefused(f"Nothing can be upgraded: {explain_unknown(revision)}")
    async with _copy_place(settings) as (folder, url, schema):
        backup = folder / "before.tar.zst"
        begun = time.monotonic()
        await make_backup(settings.database, settings.data, backup, RECORDS_ONLY)
        backed_up = time.monotonic() - begun
        database = await Database.open(url, revisions, schema=schema)
        try:
            await database.change_all(partial(_load_old, backup=backup, revisions=revisions, revision=revision))
            before = await database.read(_shape)
        finally:
            await database.aclose()
        begun = time.monotonic()
        database = await Database.open(url, revisions, schema=schema)
        migrated = time.monotonic() - begun
        try:
            findings = await examine_records(database)
            after = await database.read(_shape)
        finally:
            await database.aclose()
        if not schema:
            damage = await anyio.to_thread.run_sync(find_file_damage, Path(url))
            findings += [
                Inconsistency("DATABASE_DAMAGED", "the copy", problem, "tell who made this", True) for problem in damage
            ]
    return Rehearsal(revision, list_steps(revisions, revision), _changes(before, after), backed_up, migrated, findings)


def _load_old(conn: Connection, backup: Path, revisions: Revisions, revision: str) -> Header:
    return load_records(conn, backup, no_progress, revisions, revision)


@asynccontextmanager
async def _copy_place(settings: Settings) -> AsyncIterator[tuple[Path, str | Path, str]]:
    """Yield a temporary folder, a database for the copy, and its schema (empty: a file in the folder)."""
    folder = settings.data / FOLDER / f".{REHEARSAL}"
    await anyio.to_thread.run_sync(partial(shutil.rmtree, folder, ignore_errors=True))
    await anyio.to_thread.run_sync(partial(folder.parent.mkdir, mode=0o700, exist_ok=True))  # the mode skips parents
    await anyio.to_thread.run_sync(partial(folder.mkdir, mode=0o700))
    try:
        if not is_server(settings.database):
            yield folder, folder / "agentic-rag.db", ""
            return
        await _change_schema(settings, f"DROP SCHEMA IF EXISTS {REHEARSAL} CASCADE", f"CREATE SCHEMA {REHEARSAL}")
        try:
            yield folder, settings.database, REHEARSAL
        finally:
            with anyio.CancelScope(shield=True):
                await _change_schema(settings, f"DROP SCHEMA {REHEARSAL} CASCADE")
    finally:
        with anyio.CancelScope(shield=True):
            await anyio.to_thread.run_sync(partial(shutil.rmtree, folder, ignore_errors=True))


async def _change_schema(settings: Settings, *statements: str) -> None:
    # imports PostgreSQL's driver
    from agentic_rag.store.postgres import PostgresDatabase

    engine = PostgresDatabase(settings.database_url)
    try:
        for statement in statements:
            await engine.change_all(lambda conn, sql=statement: conn.execute(text(sql)))
    finally:
        await engine.aclose()


@dataclass(frozen=True, slots=True)
class _Shape:
    """The tables of a database and their numbers of rows."""

    tables: dict[str, RawTable]
    rows: dict[str, int]


def _shape(conn: Connection) -> _Shape:
    tables = {table.name: table for table in list_tables(conn)}
    return _Shape(tables, {name: count_rows(conn, name) for name in tables})


def _changes(before: _Shape, after: _Shape) -> list[str]:
    """Return the differences in words."""
    changes = [f"the table {name} is new" for name in sorted(after.tables.keys() - before.tables.keys())]
    changes += [
        f"the table {name} goes, with {before.rows[name]} rows"
        for name in sorted(before.tables.keys() - after.tables.keys())
    ]
    for name in sorted(before.tables.keys() & after.tables.keys()):
        old = {column.name: column.kind for column in before.tables[name].columns}
        new = {column.name: column.kind for column in after.tables[name].columns}
        changes += [f"{name}.{column} is new ({new[column]})" for column in sorted(new.keys() - old.keys())]
        changes += [f"{name}.{column} goes" for column in sorted(old.keys() - new.keys())]
        changes += [
            f"{name}.{column} becomes {new[column]}, and was {old[column]}"
            for column in sorted(old.keys() & new.keys())
            if old[column] is not new[column]
        ]
        if before.rows[name] != after.rows[name]:
            changes.append(f"{name} has {after.rows[name]} rows, and had {before.rows[name]}")
    return changes


# The downgrade


@dataclass(frozen=True, slots=True)
class DowngradePlan:
    """A backup made before an upgrade, and the rows per table now and then, to show the losses of a downgrade."""

    backup: Path
    header: Header
    now: dict[str, int]
    then: dict[str, int]

    @property
    def lost(self) -> list[tuple[str, int, int]]:
        """The tables whose number of rows has changed, with the current and the former number."""
        names = sorted(self.now.keys() | self.then.keys())
        counts = [(name, self.now.get(name, 0), self.then.get(name, 0)) for name in names]
        return [count for count in counts if count[1] != count[2]]


def find_before(data: Path) -> Path:
    """Return the newest backup made before an upgrade.

    Raises:
        BackupRefused: there is none.
    """
    backups = sorted(data.glob(f"{FOLDER}/before-*.tar.zst"), key=lambda path: path.stat().st_mtime)
    if not backups:
        raise BackupRefused(f"{data / FOLDER} holds no backup from before an upgrade: there is nothing to go back to.")
    return backups[-1]


async def look_back(settings: Settings, backup: Path, revisions: Revisions = OWN) -> DowngradePlan:
    """Verify a backup made before an upgrade and compare it with the current records.

    Raises:
        BackupRefused: the backup's tables have the current version.
        BackupDamaged, BackupTooNew: the backup cannot be used.
    """
    header = await anyio.to_thread.run_sync(verify, backup)
    if header.revision == await find_revision(settings.database):
        raise BackupRefused(f"{backup} has tables of the version that is here: agentic-rag restore brings it back.")
    then = await anyio.to_thread.run_sync(_count, backup)
    database = await open_database(settings, revisions)
    try:
        return DowngradePlan(backup, header, (await database.read(_shape)).rows, then)
    finally:
        await database.aclose()


def _count(backup: Path) -> dict[str, int]:
    with read_archive(backup) as reader:
        counts = Counter({table.name: 0 for table in reader.header.tables})
        for member in reader.members():
            if member.name.startswith(RECORDS):
                name = member.name.removeprefix(RECORDS).partition("/")[0]
                counts[name] += len(member.content.read().splitlines())
        return dict(counts)


async def go_back(settings: Settings, way: DowngradePlan, revisions: Revisions = OWN) -> Path:
    """Replace the current records by those from before an upgrade, and return the path of a backup of the current ones.

    The caller owns the data folder, and no other server uses the database.
    """
    current_backup = await anyio.to_thread.run_sync(name_by_time, settings.data / FOLDER)
    await make_backup(settings.database, settings.data, current_backup, RECORDS_ONLY)
    entry = act("downgrade", way.header.id, revision=way.header.revision, kept=current_backup.name)
    # becomes an audit row in the version that starts next
    await anyio.to_thread.run_sync(Acts(settings.data).leave, entry)
    load = partial(_go_back, way=way, revisions=revisions)
    if is_server(settings.database):
        database = await Database.open(settings.database, revisions)
        try:
            await database.change_all(load)
        finally:
            await database.aclose()
        return current_backup
    path = Path(settings.database)
    fresh = path.with_name(f"{path.name}.new")
    await anyio.to_thread.run_sync(_remove, fresh)
    database = await Database.open(fresh, revisions)
    try:
        await database.change_all(load)
    finally:
        await database.aclose()
    failpoints.reached("downgrade.built")
    await anyio.to_thread.run_sync(_exchange, fresh, path)
    return current_backup


def _go_back(conn: Connection, way: DowngradePlan, revisions: Revisions) -> None:
    load_records(conn, way.backup, no_progress, revisions, way.header.revision)


def _exchange(fresh: Path, path: Path) -> None:
    """Replace the database file by a new one, after emptying the old write-ahead log.

    Otherwise the old log would apply to the new file.
    """
    with closing(sqlite3.connect(path)) as old:
        old.execute("PRAGMA journal_mode=DELETE")
    failpoints.reached("downgrade.closed")
    with closing(sqlite3.connect(fresh)) as new:
        new.execute("PRAGMA journal_mode=DELETE")
    move_durably(fresh, path)
    failpoints.reached("downgrade.done")


def _remove(path: Path) -> None:
    for ending in ("", "-wal", "-shm", "-journal"):
        path.with_name(path.name + ending).unlink(missing_ok=True)
