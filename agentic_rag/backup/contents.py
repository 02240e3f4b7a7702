"""The contents of a backup in order: records, workspaces, payloads, and the operator's permissions.

This module selects the files of a data folder and reads them while a server runs: those of a workspace through
`mcp_servers.safe_files`, and a memory through its own ledger. ``archive`` defines the file format. All functions here
block.
"""

import errno
import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import orjson
from sqlalchemy import Connection

from agentic_rag import __version__
from agentic_rag.backup.archive import FORMAT, HEADER, ArchiveWriter, Header, Progress
from agentic_rag.base import failpoints
from agentic_rag.base.errors import BackupNotWritten, StorageUnavailable, disk_errors
from agentic_rag.base.json_form import to_json, to_text
from agentic_rag.store import migrations, origin
from agentic_rag.store.clock import new_id
from agentic_rag.store.raw_tables import RawTable, Row, list_tables, read_rows
from mcp_servers.promptx.errors import MemoryUnavailable
from mcp_servers.promptx.ledger import COMPANIONS, DATABASE, LOCK_FILE, Ledger
from mcp_servers.safe_files import Folder, Refused

RECORDS, WORKSPACES, PAYLOADS, INDEX, KEY = "database/", "workspaces/", "payloads/", "index/", "secret.key"
GRANTS = ("mcp/allowed.json", "mcp/catalogue.toml")
"""The operator's permissions for MCP servers, in addition to the built-in catalogue."""
FOLDERS = ("mcp/homes", "mcp/local", "mcp/bundles", "acts")
"""MCP servers' own data, programs and bundles that no registry has, and command-line acts without an audit row yet."""
ROWS_BYTES = 1 << 20
"""Size in bytes after which a new member begins."""


@dataclass(frozen=True, slots=True)
class BackupOptions:
    """The optional contents of a backup. ``records_only``: only the records."""

    with_key: bool = False
    with_index: bool = False
    records_only: bool = False


@dataclass(frozen=True, slots=True)
class BackupSources:
    """The source of a backup: a data folder, and a scratch path for temporary copies of databases."""

    data: Path
    scratch: Path


def read_header(conn: Connection, data: Path, choice: BackupOptions, began: str) -> Header:
    """Return the header of a backup of these records. ``began``: the time before the records were copied."""
    tables = tuple(list_tables(conn))
    has_origin = any(table.name == origin.ORIGIN.name for table in tables)
    from_where = origin.get(conn) if has_origin else None
    return Header(
        format=FORMAT,
        id=new_id("backup"),
        made_at=began,
        version=__version__,
        revision=migrations.version(conn) or "",
        database=conn.dialect.name,
        store_id=from_where.store_id if from_where else "",
        folder=str(data.absolute()),
        with_key=choice.with_key,
        with_index=choice.with_index,
        records_only=choice.records_only,
        tables=tables,
    )


def write_contents(
    conn: Connection, out: ArchiveWriter, header: Header, ground: BackupSources, progress: Progress
) -> None:
    """Add all contents; ``conn`` reads the snapshot."""
    _Contents(conn, out, header, ground, progress).write()


class _Contents:
    """One backup while being written."""

    def __init__(
        self, conn: Connection, out: ArchiveWriter, header: Header, ground: BackupSources, progress: Progress
    ) -> None:
        self._conn = conn
        self._out = out
        self._header = header
        self._tables = {table.name: table for table in header.tables}
        self._data = ground.data
        self._scratch = ground.scratch
        self._progress = progress

    def write(self) -> None:
        self._add(HEADER, to_text(to_json(self._header)).encode())
        for table in self._header.tables:
            self._write_table(table)
        failpoints.reached("backup.records")
        if self._header.records_only:
            return
        self._write_workspaces()
        for ref in self._column("payloads", "ref"):
            self._copy(Folder(self._data / "payloads", owned=False), str(ref), PAYLOADS)
        for name in (*GRANTS, *((KEY,) if self._header.with_key else ())):
            self._copy(Folder(self._data, owned=False), name, "")
        for name in (*FOLDERS, *(("index",) if self._header.with_index else ())):
            self._write_folder(Folder(self._data / name, owned=False), f"{name}/")
        failpoints.reached("backup.files")

    def _add(self, name: str, data: bytes) -> None:
        self._out.add(name, data)
        self._progress(name, len(data))
        failpoints.reached("backup.member")

    # Records

    def _write_table(self, table: RawTable) -> None:
        """Add a table's rows, one per line, in members of about `ROWS_BYTES`."""
        number, lines, size = 0, list[bytes](), 0
        for row in read_rows(self._conn, table):
            line = orjson.dumps(row)
            lines.append(line)
            size += len(line)
            if size >= ROWS_BYTES:
                number += 1
                self._add(f"{RECORDS}{table.name}/{number:06}.jsonl", b"\n".join([*lines, b""]))
                lines, size = [], 0
        if lines:
            self._add(f"{RECORDS}{table.name}/{number + 1:06}.jsonl", b"\n".join([*lines, b""]))

    def _column(self, name: str, *columns: str) -> Iterator[object]:
        """Yield the values of one column, or of several as tuples; nothing if the records lack the table."""
        table = self._tables.get(name)
        if table is None:
            return
        names = [column.name for column in table.columns]
        places = [names.index(column) for column in columns]

        def pick(row: Row) -> object:
            return row[places[0]] if len(places) == 1 else tuple(row[place] for place in places)

        for row in read_rows(self._conn, table):
            yield pick(row)

    # Files

    def _write_workspaces(self) -> None:
        """Add the domains' workspaces under the domains' ids, wherever they are, then other entries of the folder."""
        around = self._data / "workspaces"
        done = set()
        for row in self._column("domains", "id", "workspace"):
            ident, workspace = map(str, row)  # type: ignore[call-overload]
            root = Path(workspace)
            done.add(root.name if root.parent == around.absolute() else ident)
            self._write_folder(Folder(root, owned=False), f"{WORKSPACES}{ident}/")
        for entry in Folder(around, owned=False).entries():
            if entry.kind == "file":
                self._copy(Folder(around, owned=False), entry.name, WORKSPACES)
            elif entry.kind == "folder" and entry.name not in done:
                self._write_folder(Folder(around / entry.name, owned=False), f"{WORKSPACES}{entry.name}/")

    def _write_folder(self, folder: Folder, prefix: str) -> None:
        for entry in folder.walk():
            if entry.name in COMPANIONS or entry.name == LOCK_FILE:
                continue  # part of a memory, whose ledger is copied as a whole
            if entry.kind != "file":
                self._out.leave_out(prefix + entry.path, "it is a link, a pipe or a device")
            elif entry.name == DATABASE:
                self._copy_memory(folder, entry.path, prefix)
            else:
                self._copy(folder, entry.path, prefix)

    def _copy_memory(self, folder: Folder, path: str, prefix: str) -> None:
        """Add a memory as of one moment; files that the ledger cannot open are copied unchanged, to be inspected."""
        inside = path.rpartition("/")[0]
        copy = self._scratch.with_name(self._scratch.name + ".memory")
        ledger = Ledger(folder.at(inside), read_only=True)
        try:
            with disk_errors(partial(BackupNotWritten, place=str(copy))):
                copy.unlink(missing_ok=True)
                ledger.copy_to(copy)
                self._copy_open(copy, prefix + path)
        except MemoryUnavailable as exc:
            self._out.leave_out(prefix + path, f"is copied as it lies there: {exc}")
            for companion in ("", "-wal"):
                self._copy(folder, path + companion, prefix)
        finally:
            ledger.close()
            copy.unlink(missing_ok=True)

    def _copy_open(self, path: Path, name: str) -> None:
        with path.open("rb") as file:
            status = os.fstat(file.fileno())
            self._out.add_file(name, file, status.st_size, status.st_mtime_ns)
        self._progress(name, status.st_size)
        failpoints.reached("backup.member")

    def _copy(self, folder: Folder, name: str, prefix: str) -> None:
        """Add a file; a missing file was deleted after the records were read."""
        try:
            file = folder.open(name)
        except FileNotFoundError:
            return
        except Refused as exc:
            self._out.leave_out(prefix + name, exc.strerror or exc.why)
            return
        except OSError as exc:
            # a general failure, not one of this file
            if exc.errno in (errno.EIO, errno.ESTALE, errno.EMFILE, errno.ENFILE):
                raise StorageUnavailable(f"{folder.path / name} cannot be read: {exc.strerror}") from exc
            self._out.leave_out(prefix + name, exc.strerror or "it cannot be read")
            return
        with file:
            status = os.fstat(file.fileno())
            self._out.add_file(prefix + name, file, status.st_size, status.st_mtime_ns)
        self._progress(prefix + name, status.st_size)
        failpoints.reached("backup.member")
