"""Restoring a backup into a folder and a database.

The steps run in this order: verify the backup, mark the folder as being restored, write the files, load all records in
one transaction, and remove the mark. Only another restore may use a marked folder, and it starts from the beginning. A
crash at any step therefore costs nothing but time.
"""

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import anyio.to_thread
import orjson
from sqlalchemy import Connection

from agentic_rag.access.acts import act
from agentic_rag.archive.files import sync_folder, write_all, write_new, write_whole
from agentic_rag.backup.archive import Header, Member, Progress, no_progress, read_archive, verify
from agentic_rag.backup.contents import RECORDS
from agentic_rag.backup.settlement import Settlement, settle
from agentic_rag.base import failpoints
from agentic_rag.base.errors import (
    BackupDamaged,
    BackupNotWritten,
    BackupRefused,
    BackupTooNew,
    InvalidInput,
    disk_errors,
)
from agentic_rag.base.startup_errors import BadConfiguration
from agentic_rag.operations.data_folder import RESTORE_MARK as MARK
from agentic_rag.operations.data_folder import SPARE, DataFolder, find_owner
from agentic_rag.store import migrations, origin
from agentic_rag.store.audit import append
from agentic_rag.store.database import Database, is_server
from agentic_rag.store.migrations import OWN, Revisions
from agentic_rag.store.raw_tables import (
    ROWS,
    RawTable,
    Row,
    count_rows,
    delete_rows,
    drop_tables,
    insert_rows,
    list_tables,
)
from agentic_rag.tools.launch.allowed import LaunchCatalogue
from agentic_rag.tools.launch.requests import LOCAL

ITS_OWN = frozenset({MARK, f".{MARK}.part", "lock", SPARE, "lost+found"})
"""Names that may exist in a folder that counts as empty."""
TOPS = ("workspaces/", "payloads/", "mcp/homes/", "mcp/local/", "mcp/bundles/", "acts/", "index/")
FILES = ("secret.key", "mcp/allowed.json", "mcp/catalogue.toml")
"""Files of a data folder that a backup may hold."""
ALWAYS_THERE = ("origin", "probe", "audit", "audit_head", "schema_support")
"""Tables that have rows even in an unused database."""


@dataclass(frozen=True, slots=True)
class Restored:
    """The result of a restore."""

    header: Header
    files: int
    settled: Settlement


@dataclass(frozen=True, slots=True)
class Plan:
    """The options of a restore. ``database`` is a PostgreSQL URL, or the path of a SQLite file in the folder.

    ``end_turns`` True: turns that ran when the backup was made are interrupted. False: the next start resumes them.
    None: the next start resumes them, but the restore refuses to run if the original server is alive on this machine.
    """

    backup: Path
    folder: Path
    database: str | Path
    end_turns: bool | None = None
    revisions: Revisions = OWN


async def restore(plan: Plan, progress: Progress = no_progress) -> Restored:
    """Restore a backup into an empty folder and an empty database.

    Raises:
        BackupDamaged, BackupTooNew: nothing was changed.
        BackupRefused: the folder or the database is not empty, the original is alive, or the backup holds records only.
        DataFolderOwned: another process owns the folder.
        BackupNotWritten, StorageError: there is not enough space; the folder keeps its mark, and the next restore
            starts from the beginning.
    """
    header = await anyio.to_thread.run_sync(verify, plan.backup)  # the whole file, before anything is changed
    if header.records_only:
        raise BackupRefused(f"{plan.backup} holds records only, as before an upgrade: agentic-rag downgrade uses it.")
    _ask_about_original(plan, header)
    folder = DataFolder.own(plan.folder, restoring=True)
    try:
        with disk_errors(partial(BackupNotWritten, place=str(plan.folder))):
            return await _restore(plan, header, progress)
    finally:
        folder.release()


async def _restore(plan: Plan, header: Header, progress: Progress) -> Restored:
    target = RestoreTarget(plan.folder, plan.backup)
    again = await anyio.to_thread.run_sync(prepare_folder, target, header)
    database = await Database.open(plan.database, plan.revisions)
    try:
        await _check_database(database, plan, header, again)
        # The records last: their one transaction is the point after which nothing of the backup is missing.
        files = await anyio.to_thread.run_sync(extract_files, target, progress)
        await anyio.to_thread.run_sync(_settle_programs, plan.folder)
        settled = await database.change_all(partial(_load, plan=plan, progress=progress))
    finally:
        await database.aclose()
    await anyio.to_thread.run_sync(finish_folder, target)
    return Restored(header, files, settled)


def _ask_about_original(plan: Plan, header: Header) -> None:
    """Refuse to run a living server's turns a second time, unless ``end_turns`` decides about them."""
    original = Path(header.folder)
    if plan.end_turns is not None or original == plan.folder.absolute():
        return
    if (owner := find_owner(original)) is not None:
        raise BackupRefused(
            f"{original}, of which this is a backup, is in use by {owner}: turns that ran there would run twice. Say "
            "--end-turns to have them interrupted in the copy, or --resume-turns if the original will not run any more."
        )


async def _check_database(database: Database, plan: Plan, header: Header, again: bool) -> None:
    if not is_server(plan.database) or await database.read(is_empty):
        return
    if not (again and await database.read(partial(was_restored_from, header=header))):
        raise BackupRefused("The database is not empty. Restore into a new, empty database.")


def _settle_programs(folder: Path) -> None:
    """Point the operator's permissions for own programs to the restored copies."""
    local = folder.absolute() / LOCAL
    if local.is_dir():
        with suppress(InvalidInput):  # an unreadable catalogue permits nothing, and each start reports that
            LaunchCatalogue(local.parent).move_programs(local)


def _load(conn: Connection, plan: Plan, progress: Progress) -> Settlement:
    header = load_records(conn, plan.backup, progress, plan.revisions)
    settled = settle(conn, header.id, plan.folder, with_index=header.with_index, end_turns=plan.end_turns is True)
    failpoints.reached("restore.settled")
    append(conn, act("backup.restore", header.id, made=header.made_at))
    return settled


# The steps. These functions block.


@dataclass(frozen=True, slots=True)
class RestoreTarget:
    """The destination of a restore: an empty folder. ``backup`` is the file's path, stored in the mark."""

    folder: Path
    backup: Path


def prepare_folder(target: RestoreTarget, header: Header) -> bool:
    """Mark an empty folder, or clear a marked one; return whether a restore of the same backup was begun there before.

    Raises:
        BackupRefused: the folder is not empty.
    """
    mark = target.folder / MARK
    begun = mark.is_file()
    names = sorted(entry.name for entry in target.folder.iterdir() if entry.name not in ITS_OWN)
    if names and not begun:
        raise BackupRefused(
            f"{target.folder} is not empty ({', '.join(names[:3])}): a backup is restored into an empty folder. "
            "Choose another with --data, or move away what lies there."
        )
    same = begun and _begun_with(mark) == header.id
    for name in names:
        _remove(target.folder / name)
    with write_whole(mark, replace=True) as file:
        write_all(file, json.dumps({"backup": str(target.backup.absolute()), "id": header.id}).encode())
    failpoints.reached("restore.marked")
    return same


def _begun_with(mark: Path) -> str:
    try:
        return str(json.loads(mark.read_text(encoding="utf-8"))["id"])
    except (ValueError, KeyError, TypeError):
        return ""


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()


def finish_folder(target: RestoreTarget) -> None:
    """Remove the mark, because the folder is complete."""
    failpoints.reached("restore.loaded")
    (target.folder / MARK).unlink()
    sync_folder(target.folder)
    failpoints.reached("restore.done")


def extract_files(target: RestoreTarget, progress: Progress) -> int:
    """Write the files of a backup to the folder durably, and return their number.

    Raises:
        BackupDamaged: the backup has changed since its verification, or holds a name that no data folder has.
        BackupNotWritten: the disk is full.
    """
    count = 0
    with read_archive(target.backup) as reader:
        for member in reader.members():
            if member.name.startswith(RECORDS):
                continue
            if not (member.name in FILES or member.name.startswith(TOPS)):
                raise BackupDamaged(str(target.backup), f"{member.name[:200]!a} is no name of a data folder")
            _extract(target.folder / member.name, member)
            progress(member.name, member.size)
            failpoints.reached("restore.member")
            count += 1
    os.sync()  # once for all files: one fsync per file takes a hundred times as long with many small files
    failpoints.reached("restore.extracted")
    return count


def _extract(path: Path, member: Member) -> None:
    with disk_errors(partial(BackupNotWritten, place=str(path))):
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_new(path, member.content, modified=member.modified, sync=False)


def is_empty(conn: Connection) -> bool:
    """Return whether a database has only the rows of an unused database."""
    return not any(count_rows(conn, table.name) for table in list_tables(conn) if table.name not in ALWAYS_THERE)


def load_records(
    conn: Connection, backup: Path, progress: Progress, revisions: Revisions, to: str | None = None
) -> Header:
    """Replace all records by those of a backup, using the tables of the backup's version, in the caller's transaction.

    ``to`` is the revision to which the tables are migrated afterwards; None: the newest.

    Raises:
        BackupTooNew: this program does not know the version of the tables.
        BackupRefused: a development version before the first release made the tables.
        BackupDamaged: the rows do not match the tables.
    """
    with read_archive(backup) as reader:
        header = reader.header
        if migrations.is_unreleased(header.revision):
            raise BackupRefused(f"{backup} cannot be restored: {migrations.explain_unknown(header.revision)}")
        drop_tables(conn)
        try:
            migrations.upgrade(conn, revisions, header.revision)
        except BadConfiguration as exc:
            raise BackupTooNew(str(backup), header.version) from exc
        tables = _match(backup, header, list_tables(conn))
        for table in tables.values():  # a migration inserts rows, such as the one of `schema_support`
            delete_rows(conn, table)
        for member in reader.members():
            if not member.name.startswith(RECORDS):
                break  # records come first
            name = member.name.removeprefix(RECORDS).partition("/")[0]
            if name not in tables:
                raise BackupDamaged(str(backup), f"{member.name[:200]!a} belongs to no table of it")
            _insert(conn, backup, tables[name], member)
            progress(member.name, member.size)
            failpoints.reached("restore.rows")
    migrations.upgrade(conn, revisions, to)
    return header


def _match(backup: Path, header: Header, there: list[RawTable]) -> dict[str, RawTable]:
    """Return the backup's tables by name, if they match the tables of its revision."""
    by_name = {table.name: table for table in there}
    for table in header.tables:
        same = by_name.get(table.name)
        if same is None or same.columns != table.columns:
            raise BackupDamaged(
                str(backup), f"its table {table.name[:60]!a} is not the one of revision {header.revision[:20]!a}"
            )
    return {table.name: table for table in header.tables}


def _insert(conn: Connection, backup: Path, table: RawTable, member: Member) -> None:
    for rows in _rows(member):
        if any(not isinstance(row, list) or len(row) != len(table.columns) for row in rows):
            raise BackupDamaged(str(backup), f"{member.name!a} has a row that is none of its table")
        insert_rows(conn, table, rows)


def _rows(member: Member) -> Iterator[list[Row]]:
    """Yield the rows of a member in batches of `ROWS`."""
    rows: list[Row] = []
    for line in member.content.read().splitlines():
        rows.append(orjson.loads(line))
        if len(rows) == ROWS:
            yield rows
            rows = []
    if rows:
        yield rows


def was_restored_from(conn: Connection, header: Header) -> bool:
    """Return whether the records come from a restore of this backup that was interrupted after its transaction."""
    has_origin = any(table.name == origin.ORIGIN.name for table in list_tables(conn))
    restored = origin.get(conn) if has_origin else None
    return restored is not None and restored.restored_from == header.id
