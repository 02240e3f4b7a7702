"""How much one key may take of the server. Pure: time is an argument, in seconds of a clock that does not go back.

Owns what is counted for a key. Knows no socket and no request.
"""

from dataclasses import dataclass

from agentic_rag.base.errors import RateLimited
from agentic_rag.base.token_bucket import TokenBucket

CONNECTION_RETRY_SECONDS = 10.0
"""What a client is told to wait when it holds as many connections as it may: nobody knows when one ends."""
BURST_SECONDS = 2.0
"""Requests may come so many seconds' worth at once."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What one key may take. ``connections``: sockets and event streams together, and as many requests beside them."""

    requests_per_second: float = 50
    messages_per_minute: float = 60
    connections: int = 100
    subscriptions: int = 1_000


class Load:
    """What one key takes at present."""

    __slots__ = ("_messages", "_requests", "at_once", "connections", "limits", "subscriptions")

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.at_once = 0
        """Requests that are read or answered, those of ``connections`` among them."""
        self.connections = 0
        self.subscriptions = 0
        self._requests = TokenBucket(limits.requests_per_second, limits.requests_per_second * BURST_SECONDS)
        self._messages = TokenBucket(limits.messages_per_minute / 60, limits.messages_per_minute)

    def request(self, now: float) -> None:
        """Count a request or a frame.

        Raises:
            RateLimited: there were too many.
        """
        _refuse(self._requests.take(now))

    def message(self, now: float) -> None:
        """Count a message.

        Raises:
            RateLimited: there were too many.
        """
        _refuse(self._messages.take(now))

    def check_at_once(self) -> None:
        """Raises:
        RateLimited: one more request, beside the connections, would be too many.
        """
        if self.at_once - self.connections >= self.limits.connections:
            raise RateLimited(CONNECTION_RETRY_SECONDS)

    def check_connections(self) -> None:
        """Raises:
        RateLimited: one more would be too many.
        """
        if self.connections >= self.limits.connections:
            raise RateLimited(CONNECTION_RETRY_SECONDS)

    def check_subscriptions(self) -> None:
        """Raises:
        RateLimited: one more would be too many.
        """
        if self.subscriptions >= self.limits.subscriptions:
            raise RateLimited(CONNECTION_RETRY_SECONDS)


def _refuse(seconds: float) -> None:
    if seconds > 0:
        raise RateLimited(seconds)
