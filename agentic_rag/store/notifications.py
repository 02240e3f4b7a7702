"""PostgreSQL's LISTEN and NOTIFY over one connection, which is reopened after a failure.

Notifications are lost when the connection breaks, both those being sent here and those that others send meanwhile. Each
listener is then notified that messages may be missing, and must check for itself. A notification is never sent in a
transaction that does other work, because PostgreSQL serialises the commits of transactions with notifications.
"""

import logging
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import anyio
import asyncpg
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncEngine

logger = logging.getLogger(__name__)

MAX_WAITING = 1_000
"""Maximum number of queued notifications; beyond that the oldest are dropped, as if the connection had broken."""
FIRST_RETRY, LAST_RETRY = 0.1, 5.0
"""Seconds between two attempts to connect; the delay doubles after each attempt, up to the last value."""
CONNECT_SECONDS = 10.0
SEND_SECONDS = 5.0
"""Timeout in seconds of one exchange with the server; after that the connection counts as broken."""
BEAT_SECONDS = 5.0
"""Seconds between two checks of an idle connection."""

Hear = Callable[[str | None], None]
"""A callback that receives a payload; None means that some may have been missed. The callback must not block."""

_NOTIFY = "SELECT pg_notify(c, p) FROM unnest($1::text[], $2::text[]) AS each(c, p)"
_FAILURES = (
    OSError,
    TimeoutError,
    SQLAlchemyError,
    asyncpg.PostgresError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,  # raised by a connection that received its termination but is not closed yet
)


class Notifications:
    """Sends and receives notifications while `run` runs."""

    def __init__(self, engine: AsyncEngine) -> None:
        """Create the connection with ``engine``, which must not pool connections."""
        self._engine = engine
        self._heard: dict[str, Hear] = {}
        self._changed: dict[str, bool] = {}
        """Channels to subscribe to (True) or to unsubscribe from (False)."""
        self._waiting: deque[tuple[str, str]] = deque(maxlen=MAX_WAITING)
        self._sending = False
        self._sent = anyio.Event()
        self._work = anyio.Event()

    def listen(self, channel: str, callback: Hear) -> None:
        """Subscribe to a channel with one listener. ``callback`` gets None once the subscription is active."""
        self._heard[channel] = callback
        self._changed[channel] = True
        self._work.set()

    def unlisten(self, channel: str) -> None:
        """Undo `listen`."""
        if self._heard.pop(channel, None) is not None:
            self._changed[channel] = False
            self._work.set()

    def notify(self, channel: str, payload: str = "") -> None:
        """Queue a notification, sent at most once. ``payload`` must be below 8000 bytes, PostgreSQL's limit."""
        self._waiting.append((channel, payload))
        self._work.set()

    async def flush(self) -> None:
        """Wait until the queue is sent."""
        while self._waiting or self._sending:
            await self._sent.wait()

    async def run(self) -> None:
        """Keep the connection open until cancelled."""
        delay = FIRST_RETRY
        while True:
            try:
                with anyio.fail_after(CONNECT_SECONDS):
                    conn = await self._engine.connect()
            except _FAILURES as exc:
                logger.debug("no connection for notifications: %s", exc)
                await anyio.sleep(delay)
                delay = min(2 * delay, LAST_RETRY)
                continue
            delay = FIRST_RETRY
            try:
                raw = (await conn.get_raw_connection()).driver_connection
                await self._serve(raw)
            except _FAILURES as exc:
                logger.warning("the connection for notifications broke: %s", exc)
            finally:
                with anyio.CancelScope(shield=True), anyio.move_on_after(1), suppress(*_FAILURES):
                    await conn.invalidate()
                    await conn.close()

    async def _serve(self, raw: Any) -> None:
        """Process subscriptions and queued notifications until the connection breaks."""
        broken = anyio.Event()

        def end(_: object) -> None:
            broken.set()
            self._work.set()

        raw.add_termination_listener(end)
        self._changed = dict.fromkeys(self._heard, True)
        with anyio.fail_after(SEND_SECONDS):
            # A notification that is lost only delays its reader, so no NOTIFY waits for the server's disk.
            await raw.execute("SET synchronous_commit TO off")
        while not broken.is_set():
            self._work = anyio.Event()
            await self._listen(raw)
            if not self._waiting and not self._changed and not broken.is_set():
                with anyio.move_on_after(BEAT_SECONDS):
                    await self._work.wait()
                if not self._work.is_set():
                    with anyio.fail_after(SEND_SECONDS):
                        await raw.execute("SELECT 1")
            if self._waiting:
                batch = list(self._waiting)
                self._waiting.clear()
                self._sending = True
                try:
                    with anyio.fail_after(SEND_SECONDS):
                        await raw.execute(_NOTIFY, [item[0] for item in batch], [item[1] for item in batch])
                finally:
                    self._sending = False
                    self._sent.set()
                    self._sent = anyio.Event()
        raise ConnectionResetError("the server closed it")

    async def _listen(self, raw: Any) -> None:
        """Subscribe to new channels and unsubscribe from removed ones."""
        while self._changed:
            channel, subscribe = self._changed.popitem()
            with anyio.fail_after(SEND_SECONDS):
                if not subscribe:
                    await raw.remove_listener(channel, self._take)
                    continue
                await raw.add_listener(channel, self._take)
            if (callback := self._heard.get(channel)) is not None:
                callback(None)

    def _take(self, _: object, __: int, channel: str, payload: str) -> None:
        if (callback := self._heard.get(channel)) is not None:
            callback(payload)
