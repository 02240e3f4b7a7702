"""Leases that decide which process of a shared store runs a domain's stateful MCP servers.

A process holds the lease of a domain from before its first child starts until after its last child has ended.
Implements `agentic_rag.tools.server_affinity.Homes`. The lease alone does not prevent two children of one entry at
once: each child also locks a file on the shared volume (`agentic_rag.tools.transports.stdio`).
"""

import logging
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from functools import partial

import anyio
from sqlalchemy import Connection

from agentic_rag.base.errors import StorageError
from agentic_rag.operations.exclusive_jobs import Take
from agentic_rag.store import leases, replicas
from agentic_rag.store.database import Database
from agentic_rag.tools.errors import ServerElsewhere
from agentic_rag.tools.server_affinity import TellLost

log = logging.getLogger(__name__)

LEASE_SECONDS = 15.0
RENEW_SECONDS = 3.0
LOST_SECONDS = 9.0
"""After this time without a renewal the children are stopped, which takes less than the rest of the lease."""
SILENT_SECONDS = 5.0
"""If the owning process has been silent this long, wait for its lease to expire instead of failing."""
WAIT_SECONDS = 2 * LEASE_SECONDS
LOOK_SECONDS = 0.5
RELEASE_SECONDS = 5.0


class DomainHomes:
    """The leases that this process holds. ``owner`` is its name in leases."""

    def __init__(self, database: Database, owner: str) -> None:
        self._db = database
        self._owner = owner
        self._children: Counter[str] = Counter()
        self._changing = anyio.Lock()

    async def wait_free(self, domain: str, server: str) -> None:
        """See `Homes.wait_free`."""
        with anyio.move_on_after(WAIT_SECONDS):
            while (home := await self._db.read(partial(_find_home, domain=domain))) not in (None, self._owner):
                assert home is not None
                if await self._db.read(partial(replicas.is_running, run=home, silent=SILENT_SECONDS)):
                    raise ServerElsewhere(server)
                await anyio.sleep(LOOK_SECONDS)
            return
        raise ServerElsewhere(server)

    @asynccontextmanager
    async def hold(self, domain: str, server: str, on_lost: TellLost) -> AsyncGenerator[None]:
        """See `Homes.hold`."""
        name = leases.home_of(domain)
        take = partial(leases.take, name=name, owner=self._owner, seconds=LEASE_SECONDS)
        self._children[name] += 1
        try:
            asked_at = anyio.current_time()
            async with self._changing:
                if not await self._db.write(take):
                    raise ServerElsewhere(server)
            async with anyio.create_task_group() as keeping:
                keeping.start_soon(self._keep, take, asked_at, on_lost)
                try:
                    yield
                finally:
                    keeping.cancel_scope.cancel()
        finally:
            with anyio.move_on_after(RELEASE_SECONDS, shield=True):
                await self._let_go(name)

    async def _keep(self, take: Take, renewed: float, on_lost: TellLost) -> None:
        while anyio.current_time() - renewed < LOST_SECONDS:
            await anyio.sleep(RENEW_SECONDS)
            asked_at = anyio.current_time()
            with anyio.move_on_at(renewed + LOST_SECONDS):
                try:
                    if not await self._db.write(take):
                        break
                    renewed = asked_at
                except StorageError as exc:
                    log.debug("a home is kept later: %s", exc)
        on_lost("its domain's servers run on another server now")

    async def _let_go(self, name: str) -> None:
        self._children[name] -= 1
        try:
            async with self._changing:
                if self._children[name] <= 0:
                    del self._children[name]
                    await self._db.write(partial(leases.rest, name=name, owner=self._owner, seconds=0.0))
        except StorageError as exc:  # the lease expires soon
            log.debug("%s is released when its lease expires: %s", name, exc)


def _find_home(conn: Connection, domain: str) -> str | None:
    return leases.find_owner(conn, leases.home_of(domain))
