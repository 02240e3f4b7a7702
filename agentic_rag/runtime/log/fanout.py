"""Live events between the processes of a shared store: what carries them, as its users see it.

Owns the protocol, and the carrier inside one process. What is carried is on its way to the store anyway: a carrier may
lose, and then says that it may have; whoever hears reads rows instead. So nothing is ever missing, but it may be late.
Knows no event.
"""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Protocol

Hear = Callable[[bytes | None], None]
"""Takes a message; None: some may have been missed. It must not wait and not raise."""


class Fanout(Protocol):
    """Carries messages by topic to all who listen there, in whichever process: those of one sender in order.

    `tests/runtime/test_fanout.py` is the one conformance suite for every implementation.
    """

    @property
    def room(self) -> int:
        """How many bytes a message may have."""
        ...

    def publish(self, topic: str, message: bytes) -> None:
        """Send UTF-8 text soon, without waiting: it may be lost. ``topic``: letters, digits and ``_``, at most 48."""
        ...

    def subscribe(self, topic: str, hear: Hear) -> None:
        """Let somebody hear a topic from soon on, and of every time when something may have been missed."""
        ...

    def unsubscribe(self, topic: str, hear: Hear) -> None:
        """Undo `subscribe`."""
        ...

    async def run(self) -> None:
        """Carry until cancelled; a carrier that breaks is tried again."""
        ...


class Topics:
    """Who listens to which topic."""

    def __init__(self) -> None:
        self._hearers: dict[str, tuple[Hear, ...]] = {}

    def names(self) -> list[str]:
        """Return the topics that somebody listens to."""
        return list(self._hearers)

    def add(self, topic: str, hear: Hear) -> bool:
        """Add a hearer; whether it is the topic's first."""
        first = topic not in self._hearers
        self._hearers[topic] = (*self._hearers.get(topic, ()), hear)
        return first

    def remove(self, topic: str, hear: Hear) -> bool:
        """Remove a hearer; whether it was the topic's last."""
        before = self._hearers.pop(topic, ())
        left = tuple(each for each in before if each != hear)
        if left:
            self._hearers[topic] = left
        return bool(before) and not left

    def has(self, topic: str, hear: Hear) -> bool:
        """Whether somebody listens to a topic."""
        return hear in self._hearers.get(topic, ())

    def tell(self, topic: str, message: bytes | None) -> None:
        """Tell everybody who listens to a topic."""
        for hear in self._hearers.get(topic, ()):
            hear(message)


class InProcessFanout:
    """Carries between the runtimes of one process. Implements `Fanout`."""

    room = 1 << 20

    def __init__(self) -> None:
        self._topics = Topics()

    def publish(self, topic: str, message: bytes) -> None:
        """See `Fanout.publish`."""
        asyncio.get_running_loop().call_soon(self._topics.tell, topic, message)

    def subscribe(self, topic: str, hear: Hear) -> None:
        """See `Fanout.subscribe`."""
        self._topics.add(topic, hear)
        asyncio.get_running_loop().call_soon(partial(self._tell_new, topic, hear))

    def unsubscribe(self, topic: str, hear: Hear) -> None:
        """See `Fanout.unsubscribe`."""
        self._topics.remove(topic, hear)

    def _tell_new(self, topic: str, hear: Hear) -> None:
        if self._topics.has(topic, hear):
            hear(None)

    async def run(self) -> None:
        """See `Fanout.run`."""
        await asyncio.get_running_loop().create_future()
