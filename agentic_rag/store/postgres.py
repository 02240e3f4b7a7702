"""One PostgreSQL database, over asyncpg.

This module owns the pool and the transactions. The only error mapped here is that of an invalid URL.
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

from agentic_rag.base.json_form import from_text, to_text
from agentic_rag.base.startup_errors import BadConfiguration
from agentic_rag.store import migrations, signals
from agentic_rag.store.migrations import Revisions
from agentic_rag.store.notifications import Notifications
from agentic_rag.store.raw_tables import Work

T = TypeVar("T")
Sent = Callable[[Sequence[str]], None]
"""A callback that receives the ids of signals. It must not block and must not raise."""

POOL = 10
"""Connections kept open; under load the pool opens as many again."""
CONNECT_SECONDS = 10.0
WRITE_SECONDS = 30
"""Timeout of a write in seconds, also after its caller was cancelled."""
IDLE_SECONDS = 2.0
"""A connection used within this many seconds is not pinged; pings had been half of the requests to the server."""
_USED = "used"
SERVER_SETTINGS = {
    "idle_in_transaction_session_timeout": "10s",
    "tcp_keepalives_idle": "10",
    "tcp_keepalives_interval": "5",
    "tcp_keepalives_count": "3",
    "tcp_user_timeout": "25s",
}
"""Limits after which the server closes a silent connection.

Without them, a process stopped in the middle of a transaction, or cut off from the network, would keep its turns' rows
locked for hours.
"""


def _notice_silence(connection: Any, _: object) -> None:
    """Let the kernel end a connection whose peer has vanished; otherwise a request would wait for 15 minutes."""
    transport = getattr(connection.driver_connection, "_transport", None)
    sock = transport.get_extra_info("socket") if transport is not None else None
    if sock is None or sock.family not in (socket.AF_INET, socket.AF_INET6):
        return
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    options = {"TCP_KEEPIDLE": 10, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3, "TCP_USER_TIMEOUT": 25_000}
    for name, value in options.items():
        if (option := getattr(socket, name, None)) is not None:  # some systems lack some of these options
            sock.setsockopt(socket.IPPROTO_TCP, option, value)


def _note_use(_: object, record: ConnectionPoolEntry) -> None:
    record.info[_USED] = time.monotonic()


def _try_idle(engine: Engine, connection: Any, record: ConnectionPoolEntry, _: object) -> None:
    """Ping a connection that was idle for `IDLE_SECONDS`, and replace it if it is dead.

    A recently used connection is replaced too, if it is already known to be closed.
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
    """Runs functions in transactions of one database. Create it with `open` and end it with `aclose`."""

    def __init__(self, url: str, schema: str = "") -> None:
        try:
            parsed = make_url(url).set(drivername="postgresql+asyncpg")
        except (ArgumentError, ValueError) as exc:  # the exception is not quoted, because it contains the password
            raise BadConfiguration("AGENTIC_RAG_DATABASE_URL", "must be postgresql://user:password@host/name") from exc
        if "sslmode" in parsed.query:  # libpq's name, often pasted by users; asyncpg names it ssl
            ssl = parsed.query["sslmode"]
            parsed = parsed.difference_update_query(["sslmode"]).update_query_dict({"ssl": ssl})
        server_settings = {**SERVER_SETTINGS, **({"search_path": schema} if schema else {})}
        arguments = {"timeout": CONNECT_SECONDS, "server_settings": server_settings}
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
        """Set an execution option of the writing engine."""
        self._engine.sync_engine.update_execution_options(**{name: value})

    @classmethod
    async def open(cls, url: str, revisions: Revisions = migrations.OWN, schema: str = "") -> "PostgresDatabase":
        """Connect and migrate the tables. ``schema`` is their schema; empty: the server's search path.

        Raises:
            BadConfiguration: the URL is invalid, or a newer version of the product wrote the tables.
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
        """Register a callback for the ids of the signals that committed transactions have sent."""
        self._on_signals = listener

    async def write(self, fn: Callable[[Connection], T], *, durable: bool) -> T:
        """Run a function in a transaction, which is always durable.

        The server can crash while this process continues. A commit that was not durable would then be lost although
        this process has already reported its consequences.
        """
        with anyio.fail_after(WRITE_SECONDS, shield=True):
            async with self._engine.begin() as conn:
                result, sent = await self._run(conn, fn)
        self._tell(sent)
        return result

    @staticmethod
    async def _run(conn: AsyncConnection, fn: Work[T]) -> tuple[T, Sequence[str]]:
        """Run a function; return its result and the ids of the signals that it sends to other processes."""

        def run(sync: Connection) -> tuple[T, Sequence[str]]:
            signals.take_sent(sync)  # discard those of an earlier transaction that failed
            return fn(sync), signals.take_sent(sync)

        return await conn.run_sync(run)

    def _tell(self, sent: Sequence[str]) -> None:
        if sent and self._on_signals is not None:
            self._on_signals(sent)

    async def change_all(self, fn: Work[T]) -> T:
        """Run a function in one durable transaction without a time limit."""
        async with self._engine.begin() as conn:
            await conn.exec_driver_sql("SET LOCAL idle_in_transaction_session_timeout TO 0")
            result, sent = await self._run(conn, fn)
        self._tell(sent)
        return result

    async def read(self, fn: Callable[[Connection], T], *, single: bool = False) -> T:
        """Run a function on a snapshot. ``single``: one statement, which is its own snapshot and needs no transaction.

        A cancelled caller does not wait, and the read runs to its end in the background: interrupting it would cost the
        connection, and opening the next one takes 4 ms.
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
            reading.exception()  # retrieve it, or asyncio would log the exception of a read whose caller is gone

    async def aclose(self) -> None:
        for reading in self._reading:
            reading.cancel()
        await asyncio.gather(*self._reading, return_exceptions=True)
        await self._engine.dispose()
        await self._apart.dispose()
