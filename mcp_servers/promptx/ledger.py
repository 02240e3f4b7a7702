"""The source of truth of one memory: ``engrams.db``, in PromptX's schema.

Owns the SQL, the connection, the check of a database's schema, and the file lock between processes. Knows nothing of
the network, of recall or of threads: the caller serialises calls. Only this module converts SQLite errors into
`MemoryUnavailable`.

A database may be untrusted: a person copied the folder, or another program wrote it. The module opens a database only
by a path without links, and only if it has PromptX's tables and nothing else. SQLite does not trust its schema, and
each statement ends at a deadline.
"""

import errno
import fcntl
import json
import math
import os
import re
import sqlite3
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, NotRequired, TypedDict

from mcp_servers.promptx.errors import BadEngram, MemoryFull, MemoryUnavailable, UnknownReplaced
from mcp_servers.promptx.ids import is_plain
from mcp_servers.promptx.network import Trace
from mcp_servers.safe_files import Folder, leads_to

DATABASE: Final = "engrams.db"
LOCK_FILE: Final = ".engrams.lock"
LOCK_SECONDS: Final = 10.0
"""How long a writer waits for another process before it fails, in seconds."""
LOCK_POLL_SECONDS: Final = 0.002

STATEMENT_SECONDS: Final = 10.0
"""Time limit of a statement, or of each `RENEWED_EVERY` rows of a long one. Afterwards the statement is interrupted."""
RENEWED_EVERY: Final = 1000
STEPS: Final = 100_000
"""SQLite virtual machine steps between two checks of the clock, about a millisecond."""
MAX_BYTES: Final = 1 << 30
"""Maximum size of the database, and of its log. A hundred thousand engrams take about a tenth of it."""
MAX_VALUE: Final = 16 * 2**20
"""Maximum bytes of one stored value."""
DBCONFIG_DEFENSIVE, DBCONFIG_ENABLE_TRIGGER, DBCONFIG_ENABLE_VIEW = 1010, 1003, 1015
"""Constants from ``sqlite3.h``. Python has their names since 3.12."""
COMPANIONS: Final = (f"{DATABASE}-wal", f"{DATABASE}-shm", f"{DATABASE}-journal")
"""Files next to the database that SQLite opens by name."""

SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS engrams (
  id TEXT PRIMARY KEY, content TEXT, schema TEXT, type TEXT, timestamp INTEGER, strength REAL, metadata TEXT
);
CREATE TABLE IF NOT EXISTS cue_index (
  word TEXT, engram_id TEXT, PRIMARY KEY (word, engram_id),
  FOREIGN KEY (engram_id) REFERENCES engrams(id) ON DELETE CASCADE
);
CREATE INDEX IF NOT EXISTS idx_engrams_type ON engrams(type);
CREATE INDEX IF NOT EXISTS idx_engrams_timestamp ON engrams(timestamp);
CREATE INDEX IF NOT EXISTS idx_cue_word ON cue_index(word);
"""

COLUMNS: Final = "id, content, schema, type, timestamp, strength, metadata"
BATCH: Final = 500
"""Maximum number of bound variables of a statement. SQLite allows at least 999."""
NEWEST: Final = 100
"""Number of newest engrams that are compared with a new one, because most repetitions follow soon."""
SHARING: Final = 50
"""Maximum number of engrams with a common cue that are compared with a new one."""

_REPLACED: Final = """instr(coalesce(metadata, ''), '"replacedBy": "') > 0"""
_WHICH: Final = {
    "current": f"NOT {_REPLACED}",
    "replaced": _REPLACED,
    "proposed": f"""NOT {_REPLACED} AND instr(coalesce(metadata, ''), '"proposed": "') > 0""",
    "all": "1",
}
Which = Literal["current", "replaced", "proposed", "all"]
"""Engrams to list: the recalled ones, the replaced ones, the ones that the server proposed, or all."""


class EngramJson(TypedDict):
    """The JSON form of an engram for clients. `createdAt` is in milliseconds since 1970."""

    id: str
    content: str
    type: str
    strength: float
    createdAt: int
    cues: list[str]
    replaces: NotRequired[str]
    replacedBy: NotRequired[str]


@dataclass(frozen=True, slots=True)
class Engram:
    """One memory. `created_at` is in milliseconds since 1970; `cues` are its keywords in order, repeats included."""

    id: str
    content: str
    type: str
    strength: float
    created_at: int
    cues: tuple[str, ...]
    author: str = ""
    """Id of the user whose turn saved the engram, or who added it. Empty if unknown."""
    turn: str = ""
    """Id of the turn that saved the engram."""
    replaces: str = ""
    """Id of the engram that this one replaced."""
    replaced_by: str = ""
    """Id of the engram that replaced this one. A replaced engram is stored but not recalled."""
    proposed: bool = False
    """Whether the server derived the engram from the turn on its own, without a request."""

    def to_json(self) -> EngramJson:
        document: EngramJson = {
            "id": self.id,
            "content": self.content,
            "type": self.type,
            "strength": self.strength,
            "createdAt": self.created_at,
            "cues": list(self.cues),
        }
        if self.replaces:
            document["replaces"] = self.replaces
        if self.replaced_by:
            document["replacedBy"] = self.replaced_by
        return document

    @classmethod
    def from_json(cls, document: EngramJson) -> "Engram":
        """Return the engram of a document from `to_json`."""
        return cls(
            document["id"],
            document["content"],
            document["type"],
            document["strength"],
            document["createdAt"],
            tuple(document["cues"]),
            replaces=document.get("replaces", ""),
            replaced_by=document.get("replacedBy", ""),
        )


class Tip(NamedTuple):
    """The newest row and the number of rows of the table. Equal tips mean that no row was added or removed."""

    rowid: int
    id: str
    size: int


EMPTY: Final = Tip(0, "", 0)


class NewerEngrams(Exception):
    """Another process has saved engrams since the caller compared its own ones with those of the memory."""


Lesson = tuple[str, tuple[str, ...], Trace, bool]
"""Id, keywords and ranking data of one engram, and whether it is recalled (no other engram has replaced it)."""


def has_memory(folder: Folder) -> bool:
    """Return whether a folder has a memory."""
    return folder.is_file(DATABASE)


@contextmanager
def file_lock(folder: Folder, name: str) -> Iterator[None]:
    """Hold an exclusive lock on `folder/name`, between processes and between holders in one process.

    Raises:
        MemoryUnavailable: another holder kept the lock for `LOCK_SECONDS`, or the folder cannot be written.
    """
    try:
        descriptor = folder.open_lock(name)
    except OSError as exc:
        raise MemoryUnavailable(folder.path, exc.strerror or type(exc).__name__) from exc
    try:
        deadline = time.monotonic() + LOCK_SECONDS
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise MemoryUnavailable(folder.path, "another process keeps it locked") from None
                time.sleep(LOCK_POLL_SECONDS)  # in a worker thread; flock has no timeout
        yield
    finally:
        os.close(descriptor)


class Ledger:
    """SQLite access to one memory folder. A folder without a database reads as empty, and reading does not create it.

    ``seconds``: time limit of a statement.
    """

    def __init__(self, folder: Folder, read_only: bool = False, seconds: float = STATEMENT_SECONDS) -> None:
        self._folder = folder
        self._read_only = read_only
        self._seconds = seconds
        self._deadline = 0.0
        self._looking = False
        """Whether `reading` is active. It has checked the database already."""
        self._connection: sqlite3.Connection | None = None
        self._inode: tuple[int, int] | None = None

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as exc:
            late = f"a statement took more than {self._seconds:g} s and was stopped"
            reason = late if str(exc) == "interrupted" else str(exc) or type(exc).__name__
            raise MemoryUnavailable(self._folder.path, reason) from exc
        except OSError as exc:
            raise MemoryUnavailable(self._folder.path, exc.strerror or type(exc).__name__) from exc

    def _begin(self) -> None:
        """Set the deadline of the next statement."""
        self._deadline = time.monotonic() + self._seconds

    def _is_late(self) -> bool:
        return time.monotonic() > self._deadline

    def _connect(self, create: bool) -> sqlite3.Connection | None:
        """Return the open connection, or None if there is no database and ``create`` is False.

        A database that was replaced or removed meanwhile (a restored copy, a deleted domain) is reopened.
        """
        if self._looking and self._connection is not None:
            return self._connection
        status = self._folder.check(DATABASE)
        inode = None if status is None else (status.st_dev, status.st_ino)
        if self._connection is not None and inode == self._inode:
            return self._connection
        self.close()
        if inode is None and not create:
            return None
        self._begin()
        self._connection, self._inode = self._open()
        return self._connection

    def _open(self) -> tuple[sqlite3.Connection, tuple[int, int]]:
        with self._folder.real_path(make=not self._read_only) as (folder, path):
            if not self._folder.is_writable():  # a read-only medium, which no process can change meanwhile
                return self._open_at(folder, path, "immutable=1")
            if self._read_only:
                return self._open_at(folder, path, "mode=ro")
            # One writer at a time, also while opening (recovery, journal mode): two connections that checkpoint at
            # once can corrupt a WAL in the SQLite versions Python ships (before 3.51.3).
            with file_lock(self._folder, LOCK_FILE):
                self._folder.create(DATABASE)  # SQLite would follow a link and create the file at its target
                connection, inode = self._open_at(folder, path, "mode=rw")
                try:
                    connection.execute("PRAGMA journal_mode=WAL")
                    connection.execute("PRAGMA synchronous=FULL")
                    connection.execute("PRAGMA foreign_keys=ON")
                    connection.execute("PRAGMA secure_delete=ON")
                    if connection.execute("SELECT count(*) FROM sqlite_master WHERE name='engrams'").fetchone()[0] == 0:
                        connection.executescript(f"BEGIN IMMEDIATE; {SCHEMA} COMMIT;")
                except BaseException:
                    connection.close()
                    raise
            return connection, inode

    def _open_at(self, folder: int, path: str, mode: str) -> tuple[sqlite3.Connection, tuple[int, int]]:
        """Open the database of an open folder by the folder's path, and verify that SQLite opened this database.

        The method checks the files by name and never opens them, because closing a file would end SQLite's locks on it.
        SQLite opens the last component of its path without following links.
        """
        for name in (DATABASE, *COMPANIONS):
            file_status = self._folder.check(name)
            if file_status is not None and file_status.st_size > MAX_BYTES:
                raise MemoryUnavailable(self._folder.path, f"{name} has more than {MAX_BYTES >> 20} MiB")
        connection = sqlite3.connect(
            f"{Path(path, DATABASE).as_uri()}?{mode}",
            timeout=LOCK_SECONDS,
            isolation_level=None,
            check_same_thread=False,
            uri=True,
        )
        try:
            connection.set_progress_handler(self._is_late, STEPS)
            opened = connection.execute("PRAGMA database_list").fetchone()[2]
            status = self._folder.check(DATABASE)
            if status is None or opened != os.path.join(path, DATABASE) or not leads_to(path, folder):
                raise MemoryUnavailable(self._folder.path, "its files were exchanged while they were opened")
            _distrust(connection)
            self._check_schema(connection)
        except BaseException:
            connection.close()
            raise
        return connection, (status.st_dev, status.st_ino)

    def _check_schema(self, connection: sqlite3.Connection) -> None:
        """Refuse a database with anything but PromptX's tables, because other objects may run code on reading."""
        rows = connection.execute("SELECT type, name, tbl_name, sql FROM sqlite_master LIMIT 20")
        for kind, name, table, sql in rows:
            own_index = sql is None and kind == "index" and table in ("engrams", "cue_index")
            if not own_index and _plain_sql(str(sql)) not in _STATEMENTS:
                problem = f"{DATABASE} holds the {str(kind)[:20]} {str(name)[:40]!a}, which is not of a memory's schema"
                raise MemoryUnavailable(self._folder.path, f"{problem}; it is not opened")

    def close(self) -> None:
        """Close the connection under the writers' lock, because closing the last connection also checkpoints."""
        connection, self._connection, self._inode = self._connection, None, None
        if connection is None:
            return
        try:
            with file_lock(self._folder, LOCK_FILE):
                connection.close()
        except MemoryUnavailable:  # the folder is removed or busy; closing without a checkpoint loses nothing
            connection.close()

    def _rows(self, sql: str, values: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        with self._errors():
            connection = self._connect(create=False)
            self._begin()
            return [] if connection is None else connection.execute(sql, values).fetchall()

    def copy_to(self, path: Path) -> None:
        """Copy a consistent snapshot of the database into a new file. Writers may continue. Blocks.

        Raises:
            MemoryUnavailable: there is no readable database.
            OSError: the disk has no room for the copy.
        """
        with self._errors():
            connection = self._connect(create=False)
        if connection is None:
            raise MemoryUnavailable(self._folder.path, "it has no database")
        try:
            with closing(sqlite3.connect(path)) as copy:
                connection.backup(copy)
        except sqlite3.Error as exc:
            # These two are about the file of the copy, not about the memory. Extended codes have more than 8 bits.
            if exc.sqlite_errorcode & 0xFF in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_CANTOPEN):
                raise OSError(errno.ENOSPC, str(exc), str(path)) from exc
            raise MemoryUnavailable(self._folder.path, str(exc)) from exc

    @contextmanager
    def writing(self) -> Iterator[sqlite3.Connection]:
        """Run one write transaction, exclusive among all processes."""
        with self._errors():
            connection = self._connect(create=True)
            assert connection is not None
            with file_lock(self._folder, LOCK_FILE):
                self._begin()
                connection.execute("BEGIN IMMEDIATE")
                try:
                    yield connection
                    connection.execute("COMMIT")
                except BaseException:
                    if connection.in_transaction:
                        connection.execute("ROLLBACK")
                    raise

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Run several reads on one snapshot of the database."""
        with self._errors():
            connection = self._connect(create=False)
        if connection is None:
            yield
            return
        with self._errors():
            self._begin()
            connection.execute("BEGIN")
            self._looking = True
            try:
                yield
            finally:
                self._looking = False
                if connection.in_transaction:
                    connection.execute("COMMIT")

    def insert(self, engrams: Sequence[Engram], limit: int | None = None, after: int | None = None) -> int:
        """Add engrams in one transaction, except those whose ids exist. Return the number of added engrams.

        Raises:
            MemoryFull: there would be more than ``limit`` engrams; none was added.
            NewerEngrams: a row has a greater number than ``after``; none was added.
        """
        with self.writing() as connection:
            return self._add(connection, engrams, limit, after)

    def _add(
        self, connection: sqlite3.Connection, engrams: Sequence[Engram], limit: int | None, after: int | None
    ) -> int:
        if after is not None and connection.execute("SELECT 1 FROM engrams WHERE rowid > ?", (after,)).fetchone():
            raise NewerEngrams
        before = connection.total_changes
        connection.executemany(
            f"INSERT OR IGNORE INTO engrams ({COLUMNS}) VALUES (?,?,?,?,?,?,?)",
            [(e.id, e.content, schema_of(e.cues), e.type, e.created_at, e.strength, _metadata(e)) for e in engrams],
        )
        added = connection.total_changes - before
        connection.executemany(
            "INSERT OR IGNORE INTO cue_index (word, engram_id) VALUES (?,?)",
            [(word, e.id) for e in engrams if not e.replaced_by for word in e.cues],
        )
        # Counted afterwards, because ids that exist add nothing. The error rolls the transaction back.
        if limit is not None and added:
            (count,) = connection.execute("SELECT count(*) FROM engrams").fetchone()
            if count > limit:
                raise MemoryFull(self._folder.path, limit)
        return added

    def replace(self, engrams: Sequence[Engram], limit: int | None = None, after: int | None = None) -> int:
        """Add new engrams as `insert` does, and mark the engrams in their ``replaces`` as replaced.

        A replaced engram keeps its row but loses its cues, so that neither this package nor PromptX recalls it.

        Raises:
            MemoryFull: there would be more than ``limit`` engrams.
            NewerEngrams: a row has a greater number than ``after``; none was added.
            BadEngram: the engram to replace does not exist, or was replaced before.
        """
        with self.writing() as connection:
            added = self._add(connection, engrams, limit, after)
            for index, engram in enumerate(engrams):
                if engram.replaces:
                    self._supersede(connection, index, engram)
        return added

    def _supersede(self, connection: sqlite3.Connection, index: int, new: Engram) -> None:
        rows = connection.execute(f"SELECT {COLUMNS} FROM engrams WHERE id=?", (new.replaces,)).fetchall()
        old = _engram(rows[0]) if rows else None
        if old is None:
            raise UnknownReplaced(index, new.replaces)
        if old.replaced_by:
            raise BadEngram(index, f"replaces: {old.id} was replaced before, by {old.replaced_by}.")
        changed = _metadata(replace(old, replaced_by=new.id))
        connection.execute("UPDATE engrams SET metadata=? WHERE id=?", (changed, old.id))
        connection.execute("DELETE FROM cue_index WHERE engram_id=?", (old.id,))

    def delete(self, ids: Sequence[str]) -> int:
        """Delete engrams by id in one transaction and erase their bytes. Return the number of deleted engrams."""
        if not self._rows("SELECT 1 FROM engrams LIMIT 1"):  # writing would create a database that does not exist
            return 0
        removed = 0
        with self.writing() as connection:
            for start in range(0, len(ids), BATCH):
                part = ids[start : start + BATCH]
                marks = ",".join("?" * len(part))
                connection.execute(f"DELETE FROM cue_index WHERE engram_id IN ({marks})", part)
                removed += connection.execute(f"DELETE FROM engrams WHERE id IN ({marks})", part).rowcount
        with self._errors(), file_lock(self._folder, LOCK_FILE):
            self._begin()
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")  # otherwise the log still has their bytes
        return removed

    def find_damage(self) -> list[str]:
        """Return the first three messages of SQLite's quick check; empty if the database is intact."""
        problems = [str(row[0]) for row in self._rows("PRAGMA quick_check(3)")]
        return [] if problems == ["ok"] else problems

    def tip(self) -> Tip:
        """Return the newest row and the number of rows."""
        rows = self._rows("SELECT rowid, id, (SELECT count(*) FROM engrams) FROM engrams ORDER BY rowid DESC LIMIT 1")
        return Tip(*rows[0]) if rows else EMPTY

    def newest_row(self) -> int:
        """Return the number of the newest row. It is a cheap estimate of the number of engrams that were ever saved."""
        rows = self._rows("SELECT rowid FROM engrams ORDER BY rowid DESC LIMIT 1")
        return int(rows[0][0]) if rows else 0

    def count_since(self, since: Tip, upto: Tip) -> int | None:
        """Return the number of rows after `since` up to `upto`, or None if the row of `since` is deleted."""
        if since != EMPTY and not self._rows("SELECT 1 FROM engrams WHERE rowid=? AND id=?", (since.rowid, since.id)):
            return None
        rows = self._rows("SELECT count(*) FROM engrams WHERE rowid > ? AND rowid <= ?", (since.rowid, upto.rowid))
        return int(rows[0][0]) if rows else 0

    def lessons(self, after: int, upto: Tip) -> Iterator[Lesson]:
        """Yield the lessons of the rows after rowid `after` up to a tip, in (timestamp, rowid) order.

        The rows are read one by one, because the garbage collector would pause the process for a list of 100 000 rows.
        """
        with self._errors():
            if (connection := self._connect(create=False)) is None:
                return
            self._begin()
            rows = connection.execute(
                f"SELECT id, schema, type, strength, timestamp, {_REPLACED} FROM engrams "
                "WHERE rowid > ? AND rowid <= ? ORDER BY timestamp, rowid",
                (after, upto.rowid),
            )
            for number, (key, schema, kind, strength, timestamp, replaced) in enumerate(rows):
                # The caller works between the rows, so the time limit holds for so many rows, not for all.
                if number % RENEWED_EVERY == 0:
                    self._begin()
                yield str(key), keywords_of(schema), (str(kind), _number(strength), _number(timestamp)), not replaced

    def replaced_since(self, after: int, upto: Tip) -> list[Engram]:
        """Return the engrams that were replaced by the rows after rowid `after` up to a tip."""
        rows = self._rows(
            f"SELECT {COLUMNS} FROM engrams WHERE rowid > ? AND rowid <= ? "
            "AND instr(coalesce(metadata, ''), '\"replaces\": \"') > 0",
            (after, upto.rowid),
        )
        return self.fetch([engram.replaces for engram in map(_engram, rows)])

    def texts(self, after: int) -> Iterator[tuple[int, str, tuple[str, ...], str]]:
        """Yield rowid, id, keywords and content of the engrams after rowid `after`, ordered by rowid."""
        with self._errors():
            if (connection := self._connect(create=False)) is None:
                return
            self._begin()
            rows = connection.execute(
                "SELECT rowid, id, schema, content FROM engrams WHERE rowid > ? ORDER BY rowid", (after,)
            )
            for number, (row, key, schema, content) in enumerate(rows):
                if number % RENEWED_EVERY == 0:
                    self._begin()
                yield int(row), str(key), keywords_of(schema), str(content or "")

    def near(self, words: Sequence[str]) -> list[Engram]:
        """Return the engrams to compare with a new one: the newest, and those with most of ``words`` as cues."""
        marks = ",".join("?" * len(words))
        sharing = f"SELECT engram_id FROM cue_index WHERE word IN ({marks}) GROUP BY engram_id "
        sharing += "ORDER BY count(*) DESC, engram_id"
        newest = "SELECT id FROM engrams ORDER BY rowid DESC"
        rows = self._rows(
            f"SELECT {COLUMNS} FROM engrams WHERE NOT {_REPLACED} AND id IN "
            f"(SELECT * FROM ({sharing} LIMIT {SHARING}) UNION SELECT * FROM ({newest} LIMIT {NEWEST})) ORDER BY rowid",
            words,
        )
        return [_engram(row) for row in rows]

    def fetch(self, ids: Sequence[str]) -> list[Engram]:
        """Return the existing engrams of these ids, in the order of the ids."""
        marks = ",".join("?" * len(ids))
        rows = self._rows(f"SELECT {COLUMNS} FROM engrams WHERE id IN ({marks})", ids)
        engrams = {row[0]: _engram(row) for row in rows}
        return [engrams[key] for key in ids if key in engrams]

    def strongest(self, limit: int) -> list[Engram]:
        """Return the engrams with the greatest strength, newest first among equals. Replaced ones are left out."""
        rows = self._rows(
            f"SELECT {COLUMNS} FROM engrams WHERE NOT {_REPLACED} "
            "ORDER BY strength DESC, timestamp DESC, rowid DESC LIMIT ?",
            (limit,),
        )
        return [_engram(row) for row in rows]

    def page(self, offset: int, limit: int, text: str, which: Which = "current") -> tuple[int, list[Engram]]:
        """Return the number and one page of the engrams whose content or keywords contain `text`, newest first."""
        having = "(instr(lower(content), lower(?1)) OR instr(lower(schema), lower(?1)))" if text else "?1 = ''"
        where = f"WHERE {having} AND {_WHICH[which]}"
        total = self._rows(f"SELECT count(*) FROM engrams {where}", (text,))
        rows = self._rows(
            f"SELECT {COLUMNS} FROM engrams {where} ORDER BY timestamp DESC, rowid DESC LIMIT ?2 OFFSET ?3",
            (text, limit, offset),
        )
        return (total[0][0] if total else 0), [_engram(row) for row in rows]

    def all(self) -> list[Engram]:
        """Return every engram, oldest first."""
        return [_engram(row) for row in self._rows(f"SELECT {COLUMNS} FROM engrams ORDER BY timestamp, rowid")]


def schema_of(words: Sequence[str]) -> str:
    """Return keywords in the form of ``JSON.stringify``."""
    return json.dumps(list(words), ensure_ascii=False, separators=(",", ":"))


def keywords_of(schema: object) -> tuple[str, ...]:
    """Return the keywords of a stored schema; none if another program damaged the row."""
    try:
        words = json.loads(schema) if isinstance(schema, str) else []
    except (ValueError, RecursionError):
        words = []
    return tuple(word for word in words if isinstance(word, str) and is_plain(word)) if isinstance(words, list) else ()


def _engram(row: Sequence[Any]) -> Engram:
    key, content, schema, kind, timestamp, strength, metadata = row
    noted = _read_notes(metadata)
    return Engram(
        str(key),
        str(content or ""),
        str(kind or "ATOMIC"),
        float(_number(strength)),
        int(_number(timestamp)),
        keywords_of(schema),
        noted.get("author", ""),
        noted.get("turn", ""),
        noted.get("replaces", ""),
        noted.get("replacedBy", ""),
        "proposed" in noted,
    )


def _metadata(engram: Engram) -> str:
    """Return the fields that PromptX's schema lacks, as JSON for its free-form ``metadata`` column."""
    fields = {
        "author": engram.author,
        "turn": engram.turn,
        "replaces": engram.replaces,
        "replacedBy": engram.replaced_by,
        "proposed": "yes" if engram.proposed else "",
    }
    return json.dumps({name: value for name, value in fields.items() if value}, ensure_ascii=False)


def _read_notes(metadata: object) -> dict[str, str]:
    """Return the fields that `_metadata` wrote; none if another program wrote the column."""
    try:
        fields = json.loads(metadata) if isinstance(metadata, str) else {}
    except (ValueError, RecursionError):
        fields = {}
    items = fields.items() if isinstance(fields, dict) else ()
    return {name: value for name, value in items if isinstance(value, str) and is_plain(value)}


def _number(value: object) -> float | int:
    """Return a stored number, or 0 for any other value that another program stored."""
    return value if isinstance(value, int | float) and math.isfinite(value) else 0


def _plain_sql(statement: str) -> str:
    """Return a statement without spaces and `IF NOT EXISTS`, in which PromptX's schema and `SCHEMA` differ."""
    return re.sub(r"\s+", "", statement).lower().replace("ifnotexists", "")


_STATEMENTS: Final = frozenset(_plain_sql(statement) for statement in SCHEMA.split(";") if statement.strip())


def _distrust(connection: sqlite3.Connection) -> None:
    """Prevent code that is stored in a database from running, and limit the size of values."""
    connection.execute("PRAGMA trusted_schema=OFF")
    connection.execute("PRAGMA cell_size_check=ON")
    connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, MAX_VALUE)
    set_config = getattr(connection, "setconfig", None)  # from Python 3.12 on
    if set_config is not None:
        set_config(DBCONFIG_DEFENSIVE, True)
        for off in (DBCONFIG_ENABLE_TRIGGER, DBCONFIG_ENABLE_VIEW):
            set_config(off, False)
