"""The transport of live events between the processes of a shared store.

Owns the protocol, the transport inside one process, and the one over PostgreSQL's LISTEN and NOTIFY. Every message is
on its way to the store too, so a transport may lose messages if it reports the possible loss. The subscriber then reads
rows, so that no event is ever missing, but some may be late. Knows no event.
"""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Protocol

import anyio

if TYPE_CHECKING:  # imports the driver of PostgreSQL
    from agentic_rag.store.notifications import Notifications

Hear = Callable[[bytes | None], None]
"""Receives a message, or None if some may have been missed. Must not wait and not raise."""


class Fanout(Protocol):
    """Delivers messages by topic to all subscribers in all processes, in order per sender.

    `tests/runtime/test_fanout.py` is the one conformance suite for every implementation.
    """

    @property
    def room(self) -> int:
        """Most bytes of a message."""
        ...

    def publish(self, topic: str, message: bytes) -> None:
        """Send UTF-8 text soon, without waiting.

        The message may be lost. ``topic``: letters, digits, ``_``, at most 48.
        """
        ...

    def subscribe(self, topic: str, callback: Hear) -> None:
        """Subscribe to a topic soon. ``callback`` also gets None whenever messages may have been missed."""
        ...

    def unsubscribe(self, topic: str, callback: Hear) -> None:
        """Undo `subscribe`."""
        ...

    async def run(self) -> None:
        """Send and receive until cancelled. Reconnects after failures."""
        ...


class Topics:
    """The subscribers of each topic."""

    def __init__(self) -> None:
        self._callbacks: dict[str, tuple[Hear, ...]] = {}

    def names(self) -> list[str]:
        """Return the topics with subscribers."""
        return list(self._callbacks)

    def add(self, topic: str, callback: Hear) -> bool:
        """Add a subscriber. Return whether it is the topic's first."""
        first = topic not in self._callbacks
        self._callbacks[topic] = (*self._callbacks.get(topic, ()), callback)
        return first

    def remove(self, topic: str, callback: Hear) -> bool:
        """Remove a subscriber. Return whether it was the topic's last."""
        before = self._callbacks.pop(topic, ())
        remaining = tuple(subscriber for subscriber in before if subscriber != callback)
        if remaining:
            self._callbacks[topic] = remaining
        return bool(before) and not remaining

    def has(self, topic: str, callback: Hear) -> bool:
        """Return whether ``callback`` is subscribed to a topic."""
        return callback in self._callbacks.get(topic, ())

    def deliver(self, topic: str, message: bytes | None) -> None:
        """Deliver a message to all subscribers of a topic."""
        for callback in self._callbacks.get(topic, ()):
            callback(message)


class InProcessFanout:
    """Delivers between the runtimes of one process. Implements `Fanout`."""

    room = 1 << 20

    def __init__(self) -> None:
        self._topics = Topics()

    def publish(self, topic: str, message: bytes) -> None:
        """See `Fanout.publish`."""
        asyncio.get_running_loop().call_soon(self._topics.deliver, topic, message)

    def subscribe(self, topic: str, callback: Hear) -> None:
        """See `Fanout.subscribe`."""
        self._topics.add(topic, callback)
        asyncio.get_running_loop().call_soon(partial(self._greet, topic, callback))

    def unsubscribe(self, topic: str, callback: Hear) -> None:
        """See `Fanout.unsubscribe`."""
        self._topics.remove(topic, callback)

    def _greet(self, topic: str, callback: Hear) -> None:
        if self._topics.has(topic, callback):
            callback(None)

    async def run(self) -> None:
        """See `Fanout.run`."""
        await asyncio.get_running_loop().create_future()


PREFIX = "agentic_rag_"
"""Start of the name of a topic's channel in PostgreSQL. A process listens only to the turns that it follows."""


class PostgresFanout:
    """Sends with NOTIFY and receives with LISTEN. Implements `Fanout`. The owner of ``notifications`` runs them."""

    room = 7_000

    def __init__(self, notifications: "Notifications") -> None:
        self._notifications = notifications
        self._topics = Topics()

    def publish(self, topic: str, message: bytes) -> None:
        """See `Fanout.publish`."""
        self._notifications.notify(PREFIX + topic, message.decode())

    def subscribe(self, topic: str, callback: Hear) -> None:
        """See `Fanout.subscribe`."""
        if self._topics.add(topic, callback):
            self._notifications.listen(PREFIX + topic, lambda text: self._take(topic, text))
        else:
            callback(None)

    def unsubscribe(self, topic: str, callback: Hear) -> None:
        """See `Fanout.unsubscribe`."""
        if self._topics.remove(topic, callback):
            self._notifications.unlisten(PREFIX + topic)

    def _take(self, topic: str, text: str | None) -> None:
        self._topics.deliver(topic, None if text is None else text.encode())

    async def run(self) -> None:
        """See `Fanout.run`."""
        await anyio.sleep_forever()
