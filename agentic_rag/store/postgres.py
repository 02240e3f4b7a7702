"""One PostgreSQL database, over asyncpg.

Owns the pool and the transactions. Knows no table and maps no error but that of an address which is none.
"""

import asyncio
import socket
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

import anyio
from sqlalchemy import Connection, Engine, event, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, DisconnectionError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine
from sqlalchemy.pool import ConnectionPoolEntry, NullPool

from agentic_rag.json_form import from_text, to_text
from agentic_rag.startup_errors import BadConfiguration
from agentic_rag.store import migrations, signals
from agentic_rag.store.migrations import Revisions
from agentic_rag.store.notifications import Notifications
from agentic_rag.store.raw_tables import Work

T = TypeVar("T")
Sent = Callable[[Sequence[str]], None]
"""Takes the ids of signals. It must not wait and not raise."""

POOL = 10
"""Connections kept open; as many again under load."""
CONNECT_SECONDS = 10.0
WRITE_SECONDS = 30
"""How long a write goes on after its caller was cancelled, and at most."""
IDLE_SECONDS = 2.0
"""A connection that was used so lately is not asked whether it lives: one in two questions to the server was that."""
_USED = "used"
SERVER_SETTINGS = {
    "idle_in_transaction_session_timeout": "10s",
    "tcp_keepalives_idle": "10",
    "tcp_keepalives_interval": "5",
    "tcp_keepalives_count": "3",
    "tcp_user_timeout": "25s",
}
"""What the server does with a connection of which it hears nothing more: a process that was stopped in the middle of a
transaction, or whose cable was cut, would keep its turns' rows from all others for hours.
"""


def _notice_silence(connection: Any, _: object) -> None:
    """Have the kernel end a connection whose other side has vanished: else what is asked of it waits for a quarter of
    an hour.
    """
    transport = getattr(connection.driver_connection, "_transport", None)
    found = transport.get_extra_info("socket") if transport is not None else None
    if found is None or found.family not in (socket.AF_INET, socket.AF_INET6):
        return
    found.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    options = {"TCP_KEEPIDLE": 10, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3, "TCP_USER_TIMEOUT": 25_000}
    for name, value in options.items():
        if (option := getattr(socket, name, None)) is not None:  # not every system has all of them
            found.setsockopt(socket.IPPROTO_TCP, option, value)


def _note_use(_: object, record: ConnectionPoolEntry) -> None:
    record.info[_USED] = time.monotonic()


def _try_idle(engine: Engine, connection: Any, record: ConnectionPoolEntry, _: object) -> None:
    """Ask a connection that nobody has used for a while whether it lives; one that does not is replaced.

    So is one that was used just now, if its end is known.
    """
    if connection.driver_connection.is_closed():
        raise DisconnectionError
    if time.monotonic() - record.info.get(_USED, -IDLE_SECONDS) < IDLE_SECONDS:
        return
    try:
        alive = engine.dialect.do_ping(connection)
    except DBAPIError as exc:
        raise DisconnectionError from exc
    except engine.dialect.loaded_dbapi.Error as exc:
        raise DisconnectionError from exc
    if not alive:
        raise DisconnectionError


class PostgresDatabase:
    """Runs functions in transactions of one database. Make it with `open`, end it with `aclose`."""

    def __init__(self, url: str, schema: str = "") -> None:
        try:
            parsed = make_url(url).set(drivername="postgresql+asyncpg")
        except (ArgumentError, ValueError) as exc:  # neither is quoted: the password would be, too
            raise BadConfiguration("AGENTIC_RAG_DATABASE_URL", "must be postgresql://user:password@host/name") from exc
        if "sslmode" in parsed.query:  # libpq's name, which people paste; asyncpg calls it ssl
            ssl = parsed.query["sslmode"]
            parsed = parsed.difference_update_query(["sslmode"]).update_query_dict({"ssl": ssl})
        said = {**SERVER_SETTINGS, **({"search_path": schema} if schema else {})}
        arguments = {"timeout": CONNECT_SECONDS, "server_settings": said}
        self._engine: AsyncEngine = create_async_engine(
            parsed,
            pool_size=POOL,
            max_overflow=POOL,
            json_serializer=to_text,
            json_deserializer=from_text,
            connect_args=arguments,
        )
        event.listen(self._engine.sync_engine, "connect", _notice_silence)
        event.listen(self._engine.sync_engine, "checkin", _note_use)
        event.listen(self._engine.sync_engine, "checkout", partial(_try_idle, self._engine.sync_engine))
        self._apart = create_async_engine(parsed, poolclass=NullPool, connect_args=arguments)
        event.listen(self._apart.sync_engine, "connect", _notice_silence)
        self.notifications = Notifications(self._apart)
        self._on_signals: Sent | None = None
        self._reading: set[asyncio.Task[Any]] = set()
        self._singles = self._engine.execution_options(isolation_level="AUTOCOMMIT")
        self._snapshots = self._engine.execution_options(isolation_level="REPEATABLE READ", postgresql_readonly=True)

    def set_option(self, name: str, value: object) -> None:
        """Set an execution option of the engine that writes."""
        self._engine.sync_engine.update_execution_options(**{name: value})

    @classmethod
    async def open(cls, url: str, revisions: Revisions = migrations.OWN, schema: str = "") -> "PostgresDatabase":
        """Connect and bring the tables up to date. ``schema``: where they are; empty: where the server looks.

        Raises:
            BadConfiguration: the URL is none, or a newer version of the product wrote the tables.
            OSError, DBAPIError: the server cannot be reached or refuses.
        """
        self = cls(url, schema)
        try:
            async with self._engine.begin() as conn:
                await conn.run_sync(migrations.upgrade, revisions)
        except BaseException:
            await self._engine.dispose()
            raise
        return self

    def hear_own(self, listener: Sent) -> None:
        """Have somebody told the ids of the signals that transactions have sent, once each is committed."""
        self._on_signals = listener

    async def write(self, fn: Callable[[Connection], T], *, durable: bool) -> T:
        """Run a function in a transaction, which is durable in any case.

        The server can stop while this process goes on, and that would say what follows a commit that is no more.
        """
        with anyio.fail_after(WRITE_SECONDS, shield=True):
            async with self._engine.begin() as conn:
                result, sent = await self._run(conn, fn)
        self._tell(sent)
        return result

    @staticmethod
    async def _run(conn: AsyncConnection, fn: Work[T]) -> tuple[T, Sequence[str]]:
        """Run a function, and return with its result what it tells the other processes."""

        def run(sync: Connection) -> tuple[T, Sequence[str]]:
            signals.take_sent(sync)  # of a transaction before, which failed
            return fn(sync), signals.take_sent(sync)

        return await conn.run_sync(run)

    def _tell(self, sent: Sequence[str]) -> None:
        if sent and self._on_signals is not None:
            self._on_signals(sent)

    async def change_all(self, fn: Work[T]) -> T:
        """Run a function in one durable transaction that may take as long as it takes."""
        async with self._engine.begin() as conn:
            await conn.exec_driver_sql("SET LOCAL idle_in_transaction_session_timeout TO 0")
            result, sent = await self._run(conn, fn)
        self._tell(sent)
        return result

    async def read(self, fn: Callable[[Connection], T], *, single: bool = False) -> T:
        """Run a function on a snapshot; ``single``: of one statement, which has its own, without a transaction.

        Who is cancelled does not wait, and the read goes on to its end without them: cut off in the middle it would
        cost its connection, and a client that leaves would cost the next one 4 ms.
        """
        reading = asyncio.create_task(self._read(self._singles if single else self._snapshots, fn))
        self._reading.add(reading)
        reading.add_done_callback(self._end_read)
        return await asyncio.shield(reading)

    @staticmethod
    async def _read(engine: AsyncEngine, fn: Work[T]) -> T:
        async with engine.connect() as conn:
            return await conn.run_sync(fn)

    def _end_read(self, reading: asyncio.Task[Any]) -> None:
        self._reading.discard(reading)
        if not reading.cancelled():
            reading.exception()  # of one whose caller is gone nobody asks

    async def aclose(self) -> None:
        for reading in self._reading:
            reading.cancel()
        await asyncio.gather(*self._reading, return_exceptions=True)
        await self._engine.dispose()
        await self._apart.dispose()
