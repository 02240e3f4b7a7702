"""Run background jobs on one process at a time when several processes share a database.

Folder scans, cleanup and backups are such jobs. A lease guards each job, and losing the lease cancels the job. With a
database of its own, a process runs the job without a lease.
"""

import logging
from collections.abc import Awaitable, Callable
from functools import partial

import anyio
from sqlalchemy import Connection

from agentic_rag.base.errors import StorageError
from agentic_rag.store import leases
from agentic_rag.store.database import Database

log = logging.getLogger(__name__)

LEASE_SECONDS = 15.0
RENEW_SECONDS = 5.0
RELEASE_SECONDS = 5.0
"""How long a release of a lease may take before it is left to expire."""

Work = Callable[[], Awaitable[None]]
Take = Callable[[Connection], bool]


class ExclusiveJobs:
    """Runs exclusive jobs of one database.

    ``owner`` is this process's name in leases. ``renew`` is the number of seconds between renewals.
    """

    def __init__(self, database: Database, owner: str, renew: float = RENEW_SECONDS) -> None:
        self._db = database
        self._owner = owner
        self._renew = renew

    def job(self, name: str, work: Work, every: float = 0.0) -> Work:
        """Return a function that runs the job unless another process runs it or ran it within ``every`` seconds."""
        return partial(self.run, name, work, every)

    async def run(self, name: str, work: Work, every: float = 0.0) -> None:
        """Run a job unless another process runs it or has run it within ``every`` seconds.

        If the lease cannot be renewed in time, the job is cancelled, because another process may start it then.

        Raises:
            StorageError: the lease could not be read or written.

        Exceptions of the job itself are passed on.
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
                except Exception as exc:  # raised again outside, so that the task group does not wrap it
                    failure = exc
                tasks.cancel_scope.cancel()
        finally:
            await self._release(name, rest)
        if failure is not None:
            raise failure

    async def _keep(self, name: str, take: Take, scope: anyio.CancelScope) -> None:
        held_until = anyio.current_time() + LEASE_SECONDS
        while anyio.current_time() < held_until:
            await anyio.sleep(self._renew)
            asked_at = anyio.current_time()
            try:
                if not await self._db.write(take):
                    break
                held_until = asked_at + LEASE_SECONDS
            except StorageError as exc:
                log.debug("%s is said to go on later: %s", name, exc)
        log.warning("%s is left to another server", name)
        scope.cancel()

    async def _release(self, name: str, rest: float) -> None:
        with anyio.move_on_after(RELEASE_SECONDS, shield=True):
            try:
                await self._db.write(partial(leases.rest, name=name, owner=self._owner, seconds=rest))
            except StorageError as exc:  # the lease expires soon
                log.debug("%s is released when its lease expires: %s", name, exc)
