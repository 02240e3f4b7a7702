"""Live events over PostgreSQL's notifications: nothing beside the database is needed.

Owns how messages ride in notifications: a channel for each topic that somebody listens to, so that nobody hears of
others' turns. Knows no event.
"""

import anyio

from agentic_rag.runtime.log.fanout import Hear, Topics
from agentic_rag.store.notifications import Notifications

PREFIX = "agentic_rag_"


class PostgresFanout:
    """Carries by LISTEN and NOTIFY. Implements `Fanout`. ``notifications`` is run by whoever made it."""

    room = 7_000

    def __init__(self, notifications: Notifications) -> None:
        self._notifications = notifications
        self._topics = Topics()

    def publish(self, topic: str, message: bytes) -> None:
        """See `Fanout.publish`."""
        self._notifications.notify(PREFIX + topic, message.decode())

    def subscribe(self, topic: str, hear: Hear) -> None:
        """See `Fanout.subscribe`."""
        if self._topics.add(topic, hear):
            self._notifications.listen(PREFIX + topic, lambda text: self._take(topic, text))
        else:
            hear(None)

    def unsubscribe(self, topic: str, hear: Hear) -> None:
        """See `Fanout.unsubscribe`."""
        if self._topics.remove(topic, hear):
            self._notifications.unlisten(PREFIX + topic)

    def _take(self, topic: str, text: str | None) -> None:
        self._topics.tell(topic, None if text is None else text.encode())

    async def run(self) -> None:
        """See `Fanout.run`."""
        await anyio.sleep_forever()
