"""Rate and connection limits of one key. Pure: the current time, in seconds of a monotonic clock, is an argument.

This module counts the requests and connections of a key. It knows no socket and no request.
"""

from dataclasses import dataclass

from agentic_rag.base.errors import RateLimited
from agentic_rag.base.token_bucket import TokenBucket

CONNECTION_RETRY_SECONDS = 10.0
"""Seconds after which a client with too many connections should retry. The end of a connection cannot be predicted."""
BURST_SECONDS = 2.0
"""Requests may come in bursts of this many seconds' worth."""


@dataclass(frozen=True, slots=True)
class KeyLimits:
    """Limits of one key.

    ``connections`` counts sockets and event streams together. As many other requests may run at once.
    """

    requests_per_second: float = 50
    messages_per_minute: float = 60
    connections: int = 100
    subscriptions: int = 1_000


class Load:
    """Current load of one key."""

    __slots__ = ("_messages", "_requests", "at_once", "connections", "limits", "subscriptions")

    def __init__(self, limits: KeyLimits) -> None:
        self.limits = limits
        self.at_once = 0
        """Requests that are being read or answered, including those in ``connections``."""
        self.connections = 0
        self.subscriptions = 0
        self._requests = TokenBucket(limits.requests_per_second, limits.requests_per_second * BURST_SECONDS)
        self._messages = TokenBucket(limits.messages_per_minute / 60, limits.messages_per_minute)

    def request(self, now: float) -> None:
        """Count a request or a frame.

        Raises:
            RateLimited: the key sent too many.
        """
        _refuse(self._requests.take(now))

    def message(self, now: float) -> None:
        """Count a message.

        Raises:
            RateLimited: the key sent too many.
        """
        _refuse(self._messages.take(now))

    def check_at_once(self) -> None:
        """Check that one more request besides the connections may run.

        Raises:
            RateLimited: too many requests are running.
        """
        # A connection is a request, too, until it ends; it has its own limit.
        if self.at_once - self.connections >= self.limits.connections:
            raise RateLimited(CONNECTION_RETRY_SECONDS)

    def check_connections(self) -> None:
        """Check that one more connection may be opened.

        Raises:
            RateLimited: too many connections are open.
        """
        if self.connections >= self.limits.connections:
            raise RateLimited(CONNECTION_RETRY_SECONDS)

    def check_subscriptions(self) -> None:
        """Check that one more conversation may be followed.

        Raises:
            RateLimited: too many conversations are followed.
        """
        if self.subscriptions >= self.limits.subscriptions:
            raise RateLimited(CONNECTION_RETRY_SECONDS)


def _refuse(seconds: float) -> None:
    if seconds > 0:
        raise RateLimited(seconds)
