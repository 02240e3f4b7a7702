"""Live events over PostgreSQL's LISTEN and NOTIFY, which need nothing besides the database.

Owns the mapping of topics to channels. Each topic has a channel, so that a process receives only the turns it follows.
Knows no event.
"""

import anyio

from agentic_rag.runtime.log.fanout import Hear, Topics
from agentic_rag.store.notifications import Notifications

PREFIX = "agentic_rag_"


class PostgresFanout:
    """Sends with NOTIFY and receives with LISTEN. Implements `Fanout`. The owner of ``notifications`` runs them."""

    room = 7_000

    def __init__(self, notifications: Notifications) -> None:
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
