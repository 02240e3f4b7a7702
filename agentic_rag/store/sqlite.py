"""One SQLite file: a single writing thread and a few reading threads.

This module owns connections, pragmas, transactions and threads. Errors are mapped by the caller.

Writes requested while others run share a transaction: one commit and one fsync for all of them, and one message to the
event loop with their results. Each write is still atomic (a savepoint), and its result is delivered after the commit.

Pythons that bundle SQLite < 3.51.3 can corrupt a write-ahead log when two connections write or checkpoint concurrently.
Therefore one connection does both, used by one thread at a time. The readers are closed before the writer, because the
last connection to close also checkpoints.
"""

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import Any, TypeVar

from sqlalchemy import URL, Connection, create_engine
from sqlalchemy.pool import NullPool

from agentic_rag.base.json_form import from_text, to_text
from agentic_rag.store import migrations
from agentic_rag.store.migrations import Revisions
from agentic_rag.store.statements import StatementCache, run_by_sqlite, sqlite_of

T = TypeVar("T")

READERS = 4
"""Number of threads that run reads, each with its own connection."""
BUSY_SECONDS = 5
"""Seconds that a statement waits for a lock held by another process (a backup, for example)."""
GROUP_SECONDS = 0.01
"""Seconds after its first write during which a transaction accepts further writes; all of them wait for the commit."""

_STATEMENTS = StatementCache()


@dataclass(slots=True, eq=False)
class _Write:
    """One requested write and its result."""

    run: Callable[[Connection], Any]
    durable: bool
    answer: asyncio.Future[Any]
    result: Any = None
    error: BaseException | None = None


class SqliteFile:
    """Runs functions in transactions of one file. Create it with `open` and end it with `aclose`."""

    def __init__(self, path: Path, revisions: Revisions = migrations.OWN) -> None:
        self._revisions = revisions
        self._engine = create_engine(
            URL.create("sqlite", database=str(path)),
            poolclass=NullPool,
            json_serializer=to_text,
            json_deserializer=from_text,
            # no implicit BEGIN; connections are opened and closed by other threads than those that use them
            connect_args={"isolation_level": None, "check_same_thread": False, "timeout": BUSY_SECONDS},
            execution_options={"compiled_cache": _STATEMENTS},
        )
        # A thread of its own, because an executor takes longer to wake its thread than a statement takes. A daemon, so
        # that a program that forgets `aclose` can end; `aclose` waits for all writes.
        self._writing = threading.Thread(target=self._serve_until_closed, daemon=True, name="store-write")
        self._wake: SimpleQueue[bool] = SimpleQueue()
        """True: there are writes to serve. False: end the thread."""
        self._reading = ThreadPoolExecutor(READERS, thread_name_prefix="store-read")
        self._loop = asyncio.get_running_loop()
        self._lock = threading.Lock()
        self._asked: deque[_Write] = deque()
        self._serving = False
        self._closed = False
        self._local = threading.local()
        self._readers: list[Connection] = []
        self._writer: Connection
        self._synchronous = ""

    def set_option(self, name: str, value: object) -> None:
        """Set an execution option of the engine."""
        self._engine.update_execution_options(**{name: value})

    @classmethod
    async def open(cls, path: Path, revisions: Revisions = migrations.OWN) -> "SqliteFile":
        """Open or create the file and migrate its tables."""
        self = cls(path, revisions)
        try:
            await asyncio.to_thread(self._start)
            self._writing.start()
        except BaseException:
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
        self._writer = self._connect("journal_mode=WAL")
        try:
            with self._writer.begin():
                self._begin(durable=True)
                migrations.upgrade(self._writer, self._revisions)
        except BaseException:
            self._writer.close()
            raise

    def _begin(self, durable: bool) -> None:
        synchronous = "FULL" if durable else "NORMAL"
        if synchronous != self._synchronous:  # SQLite accepts it only outside a transaction: none has begun yet
            run_by_sqlite(self._writer, f"PRAGMA synchronous={synchronous}")
            self._synchronous = synchronous
        run_by_sqlite(self._writer, "BEGIN IMMEDIATE")

    # In the writing thread

    def _serve_until_closed(self) -> None:
        while self._wake.get():
            self._serve()

    def _serve(self) -> None:
        """Run the requested writes until the queue is empty."""
        while (first := self._next()) is not None:
            group = [first]
            try:
                self._transact(group)
            except BaseException as exc:  # nothing of the group was stored, and each caller gets the error
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
        """Return the next write, unless it needs an fsync that this transaction lacks."""
        with self._lock:
            if not self._asked or (self._asked[0].durable and not durable):
                return None
            return self._asked.popleft()

    def _transact(self, group: list[_Write]) -> None:
        """Run the first write, and the writes requested meanwhile, in one transaction; ``group`` grows by them."""
        conn, first = self._writer, group[0]
        if first.answer.cancelled():
            return
        # Durable if a waiting write is, so that it can join and needs no transaction and fsync of its own.
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
            if conn.in_transaction():  # SQLAlchemy's own, begun with the first statement that SQLAlchemy ran
                conn.rollback()
            sqlite_of(conn).rollback()  # rolls back a transaction that was not committed

    def _join(self, conn: Connection, write: _Write) -> None:
        run_by_sqlite(conn, "SAVEPOINT joined")
        try:
            write.result = write.run(conn)
        except BaseException as exc:
            if not sqlite_of(conn).in_transaction:
                raise  # a full disk, for example: SQLite has rolled back the earlier writes too
            run_by_sqlite(conn, "ROLLBACK TO joined")
            write.error = exc
        run_by_sqlite(conn, "RELEASE joined")

    def _read(self, fn: Callable[[Connection], T]) -> T:
        conn: Connection | None = getattr(self._local, "conn", None)
        if conn is None:
            conn = self._local.conn = self._connect("query_only=ON")
            self._readers.append(conn)
        with conn.begin():
            # The driver begins no transaction by itself, and without one each statement would have its own snapshot.
            conn.exec_driver_sql("BEGIN")
            return fn(conn)

    async def write(self, fn: Callable[[Connection], T], *, durable: bool) -> T:
        answer: asyncio.Future[T] = self._loop.create_future()
        with self._lock:
            if self._closed:
                raise RuntimeError("the database is closed")
            if not self._serving:
                self._wake.put(True)
                self._serving = True
            self._asked.append(_Write(fn, durable, answer))
        return await answer

    async def read(self, fn: Callable[[Connection], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._reading, self._read, fn)

    async def aclose(self) -> None:
        await asyncio.to_thread(self._close)

    def _close(self) -> None:
        self._reading.shutdown()
        with self._lock:
            self._closed = True
        self._wake.put(False)
        self._writing.join()
        for conn in self._readers:
            conn.close()
        self._writer.close()


def _answer(writes: Sequence[_Write]) -> None:
    """Deliver results to the waiting callers; runs in the event loop."""
    for write in writes:
        if write.answer.done():
            continue  # the caller was cancelled
        if write.error is not None:
            write.answer.set_exception(write.error)
        else:
            write.answer.set_result(write.result)
