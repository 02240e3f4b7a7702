"""Steps of a restore from a backup to a data folder and a database.

The steps run in this order: verify the backup, mark the folder as being restored, write the files, load all records in
one transaction, and remove the mark. Only another restore may use a marked folder, and it starts from the beginning. A
crash at any step therefore costs nothing but time. All functions here block.
"""

import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import orjson
from sqlalchemy import Connection

from agentic_rag.backup.archive import Header, Member, read_archive
from agentic_rag.backup.contents import RECORDS, Progress
from agentic_rag.backup.whole_file import sync_folder
from agentic_rag.base import failpoints
from agentic_rag.base.errors import BackupDamaged, BackupNotWritten, BackupRefused, BackupTooNew
from agentic_rag.base.startup_errors import BadConfiguration
from agentic_rag.operations.data_folder import RESTORE_MARK as MARK
from agentic_rag.operations.data_folder import SPARE
from agentic_rag.store import migrations, origin
from agentic_rag.store.migrations import Revisions
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

ITS_OWN = frozenset({MARK, f".{MARK}", "lock", SPARE, "lost+found"})
"""Names that may exist in a folder that counts as empty."""
TOPS = ("workspaces/", "payloads/", "mcp/homes/", "mcp/local/", "mcp/bundles/", "acts/", "index/")
FILES = ("secret.key", "mcp/allowed.json", "mcp/catalogue.toml")
"""Files of a data folder that a backup may hold."""
ALWAYS_THERE = ("origin", "probe", "audit", "audit_head", "schema_support")
"""Tables that have rows even in an unused database."""


@dataclass(frozen=True, slots=True)
class Target:
    """The destination of a restore: an empty folder. ``backup`` is the file's path, stored in the mark."""

    folder: Path
    backup: Path


def prepare_folder(target: Target, header: Header) -> bool:
    """Mark an empty folder, or clear a marked one; return whether a restore of the same backup was begun there before.

    Raises:
        BackupRefused: the folder is not empty.
    """
    mark = target.folder / MARK
    begun = mark.is_file()
    left = sorted(each.name for each in target.folder.iterdir() if each.name not in ITS_OWN)
    if left and not begun:
        raise BackupRefused(
            f"{target.folder} is not empty ({', '.join(left[:3])}): a backup is restored into an empty folder. "
            "Choose another with --data, or move away what lies there."
        )
    same = begun and _begun_with(mark) == header.id
    for name in left:
        _remove(target.folder / name)
    draft = target.folder / f".{MARK}"
    draft.write_text(json.dumps({"backup": str(target.backup.absolute()), "id": header.id}), encoding="utf-8")
    draft.replace(mark)
    sync_folder(target.folder)
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


def finish_folder(target: Target) -> None:
    """Remove the mark, because the folder is complete."""
    failpoints.reached("restore.loaded")
    (target.folder / MARK).unlink()
    sync_folder(target.folder)
    failpoints.reached("restore.done")


def extract_files(target: Target, progress: Progress) -> int:
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
            progress.advance(member.name, member.size)
            failpoints.reached("restore.member")
            count += 1
    os.sync()  # once for all files: one fsync per file takes a hundred times as long with many small files
    failpoints.reached("restore.extracted")
    return count


def _extract(path: Path, member: Member) -> None:
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        with open(descriptor, "wb") as file:
            shutil.copyfileobj(member.content, file, 1 << 18)
            file.flush()
            os.utime(descriptor, ns=(member.modified, member.modified))
    except OSError as exc:
        raise BackupNotWritten(exc.strerror or "unknown reason", str(path)) from exc


def is_empty(conn: Connection) -> bool:
    """Return whether a database has only the rows of an unused database."""
    return not any(count_rows(conn, each.name) for each in list_tables(conn) if each.name not in ALWAYS_THERE)


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
        for table in tables.values():
            delete_rows(conn, table)
        for member in reader.members():
            if not member.name.startswith(RECORDS):
                break  # records come first
            name = member.name.removeprefix(RECORDS).partition("/")[0]
            if name not in tables:
                raise BackupDamaged(str(backup), f"{member.name[:200]!a} belongs to no table of it")
            _load(conn, backup, tables[name], member)
            progress.advance(member.name, member.size)
            failpoints.reached("restore.rows")
    migrations.upgrade(conn, revisions, to)
    return header


def _match(backup: Path, header: Header, there: list[RawTable]) -> dict[str, RawTable]:
    """Return the backup's tables by name, if they match the tables of its revision."""
    made = {table.name: table for table in there}
    for table in header.tables:
        same = made.get(table.name)
        if same is None or same.columns != table.columns:
            raise BackupDamaged(
                str(backup), f"its table {table.name[:60]!a} is not the one of revision {header.revision[:20]!a}"
            )
    return {table.name: table for table in header.tables}


def _load(conn: Connection, backup: Path, table: RawTable, member: Member) -> None:
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
    known = any(table.name == origin.ORIGIN.name for table in list_tables(conn))
    found = origin.get(conn) if known else None
    return found is not None and found.restored_from == header.id
