"""The feed of signals from other processes of a shared store, read on notification and every second.

This module tracks the position up to which signals were read, dispatches them to listeners, and notifies the other
processes. A notification carries no signal: it announces that signals are available, for many commits together. If a
notification is lost, the next periodic read finds the signal.
"""

import logging
from collections.abc import Callable, Sequence
from functools import partial
from types import TracebackType
from typing import Self

import anyio

from agentic_rag.base.errors import StorageError
from agentic_rag.store import signals
from agentic_rag.store.clock import new_id
from agentic_rag.store.columns import BigInt
from agentic_rag.store.database import Database
from agentic_rag.store.postgres import PostgresDatabase
from agentic_rag.store.signals import SignalKind, SignalRecord

logger = logging.getLogger(__name__)

CHANNEL = "agentic_rag_signals"
LOOK_SECONDS = 1.0
"""Seconds between two reads without a notification."""
FLUSH_SECONDS = 0.5
"""Seconds that a process waits at its end for its notifications to be sent."""
TELL_SECONDS = 0.02
"""Minimum seconds between two notifications of one process."""
KEEP_SECONDS = 600.0
"""Seconds after which signals are deleted."""
MAX_OWN = 10_000
GAP_SECONDS = 300.0
"""After so many seconds without a read, signals may have been missed, and the process clears its caches."""
PRUNE_SECONDS = 60.0

Listener = Callable[[SignalRecord], None]
"""A callback for a signal. It must not block."""


class SignalFeed:
    """The signals of one shared store, for one process. An async context manager that reads them while entered."""

    def __init__(self, database: Database) -> None:
        self._db = database
        assert database.server is not None
        self._server: PostgresDatabase = database.server
        self._server.hear_own(self._take_own)
        self._listeners: dict[str, list[Listener]] = {kind: [] for kind in SignalKind}
        self._own: set[str] = set()
        """Ids of the signals that this process sent and need not read."""
        self._name = new_id("feed")
        """Payload of this process's own notifications, which trigger no read."""
        self._seen: dict[str, int] = {}
        """Signals already read that may be read again: id → transaction."""
        self._since: int | None = None
        self._read_at = 0.0
        self._told = anyio.Event()
        self._to_tell = anyio.Event()
        self._looking = anyio.Lock()
        self._tasks = anyio.create_task_group()

    def subscribe(self, kind: SignalKind, listener: Listener) -> None:
        """Register a listener for the signals of a kind that other processes send."""
        self._listeners[kind].append(listener)

    async def begin(self) -> None:
        """Start at the current position: a process without cached state needs no earlier signals."""
        self._since = await self._db.read(signals.position)
        self._read_at = anyio.current_time()

    async def __aenter__(self) -> Self:
        await self.begin()
        await self._tasks.__aenter__()
        self._tasks.start_soon(self.run)
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> bool | None:
        if self._to_tell.is_set():
            self._server.notifications.notify(CHANNEL, self._name)
        # the final signal: that this process has released its turns
        with anyio.move_on_after(FLUSH_SECONDS, shield=True):
            await self._server.notifications.flush()
        self._tasks.cancel_scope.cancel()
        return await self._tasks.__aexit__(exc_type, exc, tb)

    async def run(self) -> None:
        """Read signals and notify others until cancelled. Calls `begin` if it was not called before."""
        self._server.notifications.listen(CHANNEL, self._wake)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._server.notifications.run)
            tasks.start_soon(self._tell)
            tasks.start_soon(self._prune)
            while True:
                self._told = anyio.Event()
                try:
                    await self.look()
                except StorageError as exc:  # the next read finds it
                    logger.debug("signals are read later: %s", exc)
                with anyio.move_on_after(LOOK_SECONDS):
                    await self._told.wait()

    async def look(self) -> None:
        """Read new signals and dispatch them.

        Raises:
            StorageError: the store cannot be read now.
        """
        async with self._looking:
            if self._since is None:
                await self.begin()
            assert self._since is not None
            gap = anyio.current_time() - self._read_at
            records, since = await self._db.read(partial(signals.read, since=self._since))
            self._since = since
            self._read_at = anyio.current_time()
            if gap > GAP_SECONDS:
                self._dispatch(
                    SignalRecord(id="", transaction=BigInt(since), kind=SignalKind.GAP, subject="", sent_at="")
                )
            new = [signal for signal in records if signal.id not in self._seen]
            self._seen = {signal.id: signal.transaction for signal in records if signal.transaction >= since}
            for signal in new:
                if signal.id in self._own:
                    self._own.discard(signal.id)
                    continue
                self._dispatch(signal)

    def _dispatch(self, signal: SignalRecord) -> None:
        for listener in self._listeners.get(signal.kind, ()):
            try:
                listener(signal)
            except Exception as exc:  # a failing listener must not prevent the others from receiving the signal
                logger.error("a signal was not processed", exc_info=exc)

    def _wake(self, sender: str | None) -> None:
        if sender != self._name:
            self._told.set()

    # Notifying others

    def _take_own(self, sent: Sequence[str]) -> None:
        if len(self._own) > MAX_OWN:  # signals that were read before this call are never removed from the set
            self._own.clear()
        self._own.update(signal_id for signal_id in sent if signal_id not in self._seen)
        self._to_tell.set()

    async def _tell(self) -> None:
        while True:
            await self._to_tell.wait()
            self._to_tell = anyio.Event()
            self._server.notifications.notify(CHANNEL, self._name)
            await anyio.sleep(TELL_SECONDS)

    async def _prune(self) -> None:
        while True:
            await anyio.sleep(PRUNE_SECONDS)
            try:
                await self._db.write(partial(signals.prune, older_than=KEEP_SECONDS))
            except StorageError as exc:
                logger.debug("old signals are removed later: %s", exc)
