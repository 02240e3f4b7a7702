"""Registration of this process among the processes that share a store.

Maintains this process's row and its heartbeat, and keeps names unique. ``run`` is the name under which turns of this
process hold their leases. Knows no turn.
"""

import logging
import os
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import anyio
from sqlalchemy import Connection

from agentic_rag import __version__
from agentic_rag.base.errors import StorageError
from agentic_rag.base.startup_errors import BadConfiguration
from agentic_rag.store import leases, replicas, turns
from agentic_rag.store.clock import new_id
from agentic_rag.store.database import Database
from agentic_rag.store.replicas import ReplicaRecord

log = logging.getLogger(__name__)

BEAT_SECONDS = 2.0
"""Interval of the heartbeat."""
SILENT_SECONDS = 5.0
"""Silence after which a process counts as dead if another one wants its name."""
JOIN_LOOK_SECONDS = 0.5
FORGET_SECONDS = 3600.0
"""How long rows of dead processes are kept."""


@dataclass(frozen=True, slots=True)
class MemberView:
    """A process as operators see it. ``own`` marks the process that answered."""

    id: str
    version: str
    address: str
    own: bool
    leaving: bool
    started_at: str
    heartbeat_at: str


class Members:
    """This process among those that share its store."""

    def __init__(self, database: Database, name: str, run: str) -> None:
        self._db = database
        self.name = name or new_id(socket.gethostname().split(".")[0] or "server")
        self._run = run
        self._leaving = False
        self._address = f"{socket.gethostname()} (process {os.getpid()})"

    async def join(self) -> None:
        """Register the name. If its holder stays silent for `SILENT_SECONDS`, take over the name from the dead process.

        The turns of the dead process are free at once.

        Raises:
            BadConfiguration: a living process has the name.
            StorageError: the store accepts no writes now.
        """
        before = await self._db.read(lambda conn: replicas.get(conn, self.name))
        since = anyio.current_time()
        while not await self._take(None):
            current = await self._db.read(lambda conn: replicas.get(conn, self.name))
            # A heartbeat since the first look proves a living holder. Clocks are not compared, because they may differ.
            if before is not None and current is not None and current.heartbeat_at != before.heartbeat_at:
                raise BadConfiguration(
                    "AGENTIC_RAG_REPLICA",
                    f"{self.name!r} is the name of another server of this database: {current.address}, version "
                    f"{current.version}. Each one needs its own.",
                )
            before = before or current
            if anyio.current_time() - since > SILENT_SECONDS and await self._take(before):
                return
            await anyio.sleep(JOIN_LOOK_SECONDS)

    async def _take(self, dead: ReplicaRecord | None) -> bool:
        def store(conn: Connection) -> bool:
            joined = replicas.join(conn, self.name, self._run, __version__, self._address, dead)
            # In the same transaction, so that no turn waits for the end of a lease whose owner is known to be dead.
            if joined and dead is not None:
                turns.expire(conn, dead.run)
                leases.free(conn, dead.run)
            return joined

        return await self._db.write(store, durable=True)

    def locate(self, address: str) -> None:
        """Set the address where this process listens."""
        self._address = address

    async def run(self) -> None:
        """Send heartbeats until cancelled."""
        while True:
            await anyio.sleep(BEAT_SECONDS)
            try:
                await self.beat()
                await self._db.write(partial(replicas.prune, older_than=FORGET_SECONDS))
            except StorageError as exc:
                log.debug("the heartbeat comes later: %s", exc)

    async def beat(self) -> None:
        """Send a heartbeat.

        If other processes declared this one dead, for example after a pause, register the name again.

        Raises:
            StorageError: the store accepts no writes now.
        """
        beat = partial(replicas.beat, run=self._run, address=self._address, leaving=self._leaving)
        if await self._db.write(beat):
            return
        if not await self._take(None):
            log.error("another server has taken the name %r", self.name)

    async def tell_leaving(self) -> None:
        """Announce that this process is about to end and takes no more turns. Raises as `beat`."""
        self._leaving = True
        await self.beat()

    async def leave(self) -> None:
        """Release the name so that the next start can reuse it."""
        try:
            with anyio.move_on_after(BEAT_SECONDS, shield=True):
                await self._db.write(partial(replicas.leave, run=self._run))
        except StorageError as exc:  # the row counts as dead soon
            log.debug("the name is released when its lease expires: %s", exc)

    async def list_alive(self) -> Sequence[MemberView]:
        """Return the living processes by name.

        Raises:
            StorageError: the store cannot be read now.
        """
        return [
            MemberView(
                record.id,
                record.version,
                record.address,
                record.run == self._run,
                record.leaving,
                record.started_at,
                record.heartbeat_at,
            )
            for record in await self._db.read(replicas.list_alive)
        ]
