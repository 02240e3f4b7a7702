"""One SQLite file: one thread that writes, a few that read.

Owns connections, pragmas, transactions and threads. Knows no table and maps no error.

Pythons that bundle SQLite < 3.51.3 can corrupt a write-ahead log when two connections write or checkpoint
at once. So one connection does both, in the one thread that owns it; the readers are closed before it,
because the last connection to close checkpoints too.
"""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from sqlalchemy import URL, Connection, create_engine
from sqlalchemy.pool import NullPool

from agentic_rag.store import json_text, migrations

T = TypeVar("T")

READERS = 4
"""Threads, each with one connection, that run reads."""
BUSY_SECONDS = 5
"""How long a statement waits for a lock that another process holds (a backup, for example)."""


class SqliteFile:
    """Runs functions in transactions of one file. Make it with `open`, end it with `aclose`."""

    def __init__(self, path: Path) -> None:
        self._engine = create_engine(
            URL.create("sqlite", database=str(path)),
            poolclass=NullPool,
            json_serializer=json_text.dumps,
            json_deserializer=json_text.loads,
            # no implicit BEGIN; a reader is closed by another thread than the one that used it
            connect_args={"isolation_level": None, "check_same_thread": False, "timeout": BUSY_SECONDS},
        )
        self._writing = ThreadPoolExecutor(1, thread_name_prefix="store-write")
        self._reading = ThreadPoolExecutor(READERS, thread_name_prefix="store-read")
        self._local = threading.local()
        self._readers: list[Connection] = []
        self._writer: Connection
        self._synchronous = ""

    @classmethod
    async def open(cls, path: Path) -> "SqliteFile":
        """Open or make the file and bring its tables up to date."""
        self = cls(path)
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
            self._write(migrations.upgrade, durable=True)
        except BaseException:
            self._writer.close()
            raise

    def _write(self, fn: Callable[[Connection], T], durable: bool) -> T:
        conn = self._writer
        synchronous = "FULL" if durable else "NORMAL"
        with conn.begin():
            if synchronous != self._synchronous:  # SQLite takes it only outside a transaction: none has begun yet
                conn.exec_driver_sql(f"PRAGMA synchronous={synchronous}")
                self._synchronous = synchronous
            conn.exec_driver_sql("BEGIN IMMEDIATE")
            return fn(conn)

    def _read(self, fn: Callable[[Connection], T]) -> T:
        conn: Connection | None = getattr(self._local, "conn", None)
        if conn is None:
            conn = self._local.conn = self._connect("query_only=ON")
            self._readers.append(conn)
        with conn.begin():
            conn.exec_driver_sql("BEGIN")
            return fn(conn)

    async def write(self, fn: Callable[[Connection], T], *, durable: bool) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._writing, self._write, fn, durable)

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
