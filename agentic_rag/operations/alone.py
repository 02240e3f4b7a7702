"""Jobs that one process of a shared store does at a time: looking into folders, removing what is old, backups.

Owns the lease around a job and its end when the lease is lost. Where there is one process, a job is simply done.
"""

import logging
from collections.abc import Awaitable, Callable
from functools import partial

import anyio
from sqlalchemy import Connection

from agentic_rag.errors import StorageError
from agentic_rag.store import leases
from agentic_rag.store.database import Database

log = logging.getLogger(__name__)

LEASE_SECONDS = 15.0
RENEW_SECONDS = 5.0
RELEASE_SECONDS = 5.0
"""How long a process that ends waits for the store to take that a job is free."""

Work = Callable[[], Awaitable[None]]
Take = Callable[[Connection], bool]


class Alone:
    """Does jobs of one database. ``owner``: this process's name in leases; ``renew``: seconds between renewals."""

    def __init__(self, database: Database, owner: str, renew: float = RENEW_SECONDS) -> None:
        self._db = database
        self._owner = owner
        self._renew = renew

    def job(self, name: str, work: Work, every: float = 0.0) -> Work:
        """Return what does a job unless another process does it, or has done it within ``every`` seconds."""
        return partial(self.run, name, work, every)

    async def run(self, name: str, work: Work, every: float = 0.0) -> None:
        """Do a job, unless another process does, or has done it within ``every`` seconds.

        It is cut off when it could not be said in time that it is still done here: another one may begin it then.

        Raises:
            StorageError: it cannot be known who does it. And what the job raises.
        """
        if not self._db.shared:
            await work()
            return
        take = partial(leases.take, name=name, owner=self._owner, seconds=LEASE_SECONDS)
        if not await self._db.write(take):
            return
        failure: Exception | None = None
        rest = 0.0
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._keep, name, take, tasks.cancel_scope)
                try:
                    await work()
                    rest = every
                except Exception as exc:  # leaves the task group as itself
                    failure = exc
                tasks.cancel_scope.cancel()
        finally:
            await self._release(name, rest)
        if failure is not None:
            raise failure

    async def _keep(self, name: str, take: Take, scope: anyio.CancelScope) -> None:
        held = anyio.current_time() + LEASE_SECONDS
        while anyio.current_time() < held:
            await anyio.sleep(self._renew)
            asked = anyio.current_time()
            try:
                if not await self._db.write(take):
                    break
                held = asked + LEASE_SECONDS
            except StorageError as exc:
                log.debug("%s is said to go on later: %s", name, exc)
        log.warning("%s is left to another server", name)
        scope.cancel()

    async def _release(self, name: str, rest: float) -> None:
        with anyio.move_on_after(RELEASE_SECONDS, shield=True):
            try:
                await self._db.write(partial(leases.rest, name=name, owner=self._owner, seconds=rest))
            except StorageError as exc:  # it is free in a moment
                log.debug("%s is given back by time: %s", name, exc)
