"""One SQLite file: one thread that writes, a few that read.

Owns connections, pragmas, transactions and threads. Knows no table and maps no error.

Writes that are asked for while others run share a transaction: one commit and one fsync for all of them, and one
message to the event loop with their answers. Each is still whole or nothing by itself (a savepoint), and is
answered once the commit is through.

Pythons that bundle SQLite < 3.51.3 can corrupt a write-ahead log when two connections write or checkpoint
at once. So one connection does both, in the one thread that owns it; the readers are closed before it,
because the last connection to close checkpoints too.
"""

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from sqlalchemy import URL, Connection, create_engine
from sqlalchemy.pool import NullPool

from agentic_rag.json_form import from_text, to_text
from agentic_rag.store import migrations
from agentic_rag.store.migrations import Revisions
from agentic_rag.store.records import run_by_sqlite, sqlite_of

T = TypeVar("T")

READERS = 4
"""Threads, each with one connection, that run reads."""
BUSY_SECONDS = 5
"""How long a statement waits for a lock that another process holds (a backup, for example)."""
GROUP_SECONDS = 0.01
"""How long after its first write a transaction takes up others: those in it wait for their answers."""


@dataclass(slots=True, eq=False)
class _Write:
    """One write that was asked for, and what came of it."""

    run: Callable[[Connection], Any]
    durable: bool
    answer: asyncio.Future[Any]
    result: Any = None
    error: BaseException | None = None


class SqliteFile:
    """Runs functions in transactions of one file. Make it with `open`, end it with `aclose`."""

    def __init__(self, path: Path, revisions: Revisions = migrations.OWN) -> None:
        self._revisions = revisions
        self._engine = create_engine(
            URL.create("sqlite", database=str(path)),
            poolclass=NullPool,
            json_serializer=to_text,
            json_deserializer=from_text,
            # no implicit BEGIN; a reader is closed by another thread than the one that used it
            connect_args={"isolation_level": None, "check_same_thread": False, "timeout": BUSY_SECONDS},
        )
        self._writing = ThreadPoolExecutor(1, thread_name_prefix="store-write")
        self._reading = ThreadPoolExecutor(READERS, thread_name_prefix="store-read")
        self._loop = asyncio.get_running_loop()
        self._lock = threading.Lock()
        self._asked: deque[_Write] = deque()
        self._serving = False
        self._local = threading.local()
        self._readers: list[Connection] = []
        self._writer: Connection
        self._synchronous = ""

    def set_option(self, name: str, value: object) -> None:
        """Set an execution option of the engine."""
        self._engine.update_execution_options(**{name: value})

    @classmethod
    async def open(cls, path: Path, revisions: Revisions = migrations.OWN) -> "SqliteFile":
        """Open or make the file and bring its tables up to date."""
        self = cls(path, revisions)
        try:
            await asyncio.get_running_loop().run_in_executor(self._writing, self._start)
        except BaseException:
            self._writing.shutdown(wait=False)
            self._reading.shutdown(wait=False)
            raise
        return self

    def _connect(self, *pragmas: str) -> Connection:
        conn = self._engine.connect()
        try:
            for pragma in pragmas:
                conn.exec_driver_sql(f"PRAGMA {pragma}")
            conn.commit()
        except BaseException:
            conn.close()
            raise
        return conn

    def _start(self) -> None:
        self._writer = self._connect("journal_mode=WAL", "foreign_keys=ON")
        try:
            with self._writer.begin():
                self._begin(durable=True)
                migrations.upgrade(self._writer, self._revisions)
        except BaseException:
            self._writer.close()
            raise

    def _begin(self, durable: bool) -> None:
        synchronous = "FULL" if durable else "NORMAL"
        if synchronous != self._synchronous:  # SQLite takes it only outside a transaction: none has begun yet
            run_by_sqlite(self._writer, f"PRAGMA synchronous={synchronous}")
            self._synchronous = synchronous
        run_by_sqlite(self._writer, "BEGIN IMMEDIATE")

    # In the thread that writes

    def _serve(self) -> None:
        """Run what was asked for until nothing is left."""
        while (first := self._next()) is not None:
            group = [first]
            try:
                self._transact(group)
            except BaseException as exc:  # nothing of the group was kept, and each caller gets the error
                for write in group:
                    write.error = write.error or exc
            self._loop.call_soon_threadsafe(_answer, group)

    def _next(self) -> _Write | None:
        with self._lock:
            if not self._asked:
                self._serving = False
                return None
            return self._asked.popleft()

    def _take_joining(self, durable: bool) -> _Write | None:
        """Return the next write if a transaction with or without an fsync at its end will do for it."""
        with self._lock:
            if not self._asked or (self._asked[0].durable and not durable):
                return None
            return self._asked.popleft()

    def _transact(self, group: list[_Write]) -> None:
        """Run the first write, and those that are asked for meanwhile, in one transaction; ``group`` grows by them."""
        conn, first = self._writer, group[0]
        if first.answer.cancelled():
            return
        with self._lock:
            durable = first.durable or any(write.durable for write in self._asked)
        self._begin(durable)
        try:
            first.result = first.run(conn)
            until = time.monotonic() + GROUP_SECONDS
            while time.monotonic() < until and (write := self._take_joining(durable)) is not None:
                group.append(write)
                if not write.answer.cancelled():
                    self._join(conn, write)
            run_by_sqlite(conn, "COMMIT")
        finally:
            if conn.in_transaction():  # SQLAlchemy's own, which it begins with the first statement that it runs
                conn.rollback()
            sqlite_of(conn).rollback()  # of what was not committed

    def _join(self, conn: Connection, write: _Write) -> None:
        run_by_sqlite(conn, "SAVEPOINT joined")
        try:
            write.result = write.run(conn)
        except BaseException as exc:
            if not sqlite_of(conn).in_transaction:
                raise  # a full disk, for example: SQLite has undone the writes before this one too
            run_by_sqlite(conn, "ROLLBACK TO joined")
            write.error = exc
        run_by_sqlite(conn, "RELEASE joined")

    def _read(self, fn: Callable[[Connection], T]) -> T:
        conn: Connection | None = getattr(self._local, "conn", None)
        if conn is None:
            conn = self._local.conn = self._connect("query_only=ON")
            self._readers.append(conn)
        with conn.begin():
            conn.exec_driver_sql("BEGIN")
            return fn(conn)

    async def write(self, fn: Callable[[Connection], T], *, durable: bool) -> T:
        answer: asyncio.Future[T] = self._loop.create_future()
        with self._lock:
            if not self._serving:
                self._writing.submit(self._serve)  # raises once closed
                self._serving = True
            self._asked.append(_Write(fn, durable, answer))
        return await answer

    async def read(self, fn: Callable[[Connection], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._reading, self._read, fn)

    async def aclose(self) -> None:
        await asyncio.to_thread(self._close)

    def _close(self) -> None:
        self._reading.shutdown()
        self._writing.shutdown()
        for conn in self._readers:
            conn.close()
        self._writer.close()


def _answer(writes: Sequence[_Write]) -> None:
    """Give the results to those who wait for them; runs in the event loop."""
    for write in writes:
        if write.answer.done():
            continue  # who asked was cancelled
        if write.error is not None:
            write.answer.set_exception(write.error)
        else:
            write.answer.set_result(write.result)
