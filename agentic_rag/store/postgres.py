"""One PostgreSQL database, over asyncpg.

Owns the pool and the transactions. Knows no table and maps no error but that of an address which is none.
"""

from collections.abc import Callable
from typing import TypeVar

import anyio
from sqlalchemy import Connection, make_url
from sqlalchemy.exc import ArgumentError
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from agentic_rag.errors import BadConfiguration
from agentic_rag.json_form import from_text, to_text
from agentic_rag.store import migrations

T = TypeVar("T")

POOL = 10
"""Connections kept open; as many again under load."""
WRITE_SECONDS = 30
"""How long a write goes on after its caller was cancelled, and at most."""


class PostgresDatabase:
    """Runs functions in transactions of one database. Make it with `open`, end it with `aclose`."""

    def __init__(self, url: str) -> None:
        try:
            parsed = make_url(url).set(drivername="postgresql+asyncpg")
        except (ArgumentError, ValueError) as exc:  # neither is quoted: the password would be, too
            raise BadConfiguration("AGENTIC_RAG_DATABASE_URL", "must be postgresql://user:password@host/name") from exc
        if "sslmode" in parsed.query:  # libpq's name, which people paste; asyncpg calls it ssl
            ssl = parsed.query["sslmode"]
            parsed = parsed.difference_update_query(["sslmode"]).update_query_dict({"ssl": ssl})
        self._engine: AsyncEngine = create_async_engine(
            parsed,
            pool_size=POOL,
            max_overflow=POOL,
            pool_pre_ping=True,
            json_serializer=to_text,
            json_deserializer=from_text,
        )
        self._snapshots = self._engine.execution_options(isolation_level="REPEATABLE READ", postgresql_readonly=True)

    @classmethod
    async def open(cls, url: str) -> "PostgresDatabase":
        """Connect and bring the tables up to date.

        Raises:
            BadConfiguration: the URL is none, or a newer version of the product wrote the tables.
            OSError, DBAPIError: the server cannot be reached or refuses.
        """
        self = cls(url)
        try:
            async with self._engine.begin() as conn:
                await conn.run_sync(migrations.upgrade)
        except BaseException:
            await self._engine.dispose()
            raise
        return self

    async def write(self, fn: Callable[[Connection], T], *, durable: bool) -> T:
        with anyio.fail_after(WRITE_SECONDS, shield=True):
            async with self._engine.begin() as conn:
                if not durable:
                    await conn.exec_driver_sql("SET LOCAL synchronous_commit TO off")
                return await conn.run_sync(fn)

    async def read(self, fn: Callable[[Connection], T]) -> T:
        async with self._snapshots.connect() as conn:
            return await conn.run_sync(fn)

    async def aclose(self) -> None:
        await self._engine.dispose()
