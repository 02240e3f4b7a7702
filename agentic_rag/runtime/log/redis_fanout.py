"""Live events over Valkey or Redis: short streams that expire soon.

Owns the two connections, the names of streams, and the read position in each. The messages are only in the server's
memory and may be lost. The subscribers are then notified. Knows no event.
"""

import logging
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any

import anyio

from agentic_rag.base.startup_errors import BadConfiguration
from agentic_rag.runtime.log.fanout import Hear, Topics
from agentic_rag.store.clock import new_id

logger = logging.getLogger(__name__)

SETTING = "AGENTIC_RAG_REDIS_URL"
PREFIX = "agentic_rag:"
LENGTH = 512
"""Approximate number of messages that a topic keeps."""
LIFE_SECONDS = 60
"""Seconds after the last message when a topic expires."""
WAITING = 1_000
"""Messages in the send queue. When the queue is full, the oldest are dropped."""
BLOCK_SECONDS = 2.0
"""Seconds that one read waits for new messages."""
READ_MESSAGES = 256
ANSWER_SECONDS = 5.0
"""Seconds for an answer of the server before the connection counts as broken."""
FIRST_RETRY, LAST_RETRY = 0.1, 5.0

_Work = Callable[[Any], Awaitable[None]]
"""A task that uses a connection."""


class RedisFanout:
    """Sends and receives with Redis Streams. Implements `Fanout`."""

    room = 60_000

    def __init__(self, url: str) -> None:
        """``url``: ``redis://user:password@host:port/number``, also with ``rediss``, ``valkey`` or ``valkeys``.

        Raises:
            BadConfiguration: ``url`` is invalid, or the client is not installed.
        """
        try:
            # the extra redis; only servers with an address import it
            from valkey.asyncio import Valkey
            from valkey.exceptions import ValkeyError
        except ImportError as exc:
            raise BadConfiguration(SETTING, "needs a client: install agentic-rag[redis]") from exc
        self._failures = (OSError, TimeoutError, ValkeyError)
        try:
            from_url: Callable[..., Any] = Valkey.from_url
            self._new_client = partial(
                from_url, url, socket_timeout=BLOCK_SECONDS + ANSWER_SECONDS, socket_connect_timeout=ANSWER_SECONDS
            )
            self._new_client()
        except ValueError as exc:  # not quoted, because the URL contains the password
            raise BadConfiguration(SETTING, "must be redis://user:password@host:port/number") from exc
        self._topics = Topics()
        self._own = PREFIX + new_id("wake")
        """A stream that wakes this process's reader after its topics have changed."""
        self._places: dict[str, bytes] = {}
        """The id of the last message read, by topic."""
        self._waiting: deque[tuple[str, bytes]] = deque(maxlen=WAITING)
        self._to_send = anyio.Event()

    def publish(self, topic: str, message: bytes) -> None:
        """See `Fanout.publish`."""
        self._waiting.append((PREFIX + topic, message))
        self._to_send.set()

    def subscribe(self, topic: str, callback: Hear) -> None:
        """See `Fanout.subscribe`."""
        if self._topics.add(topic, callback):
            self._wake_reader()
        elif topic in self._places:
            callback(None)

    def unsubscribe(self, topic: str, callback: Hear) -> None:
        """See `Fanout.unsubscribe`."""
        if self._topics.remove(topic, callback):
            self._places.pop(topic, None)
            self._wake_reader()

    def _wake_reader(self) -> None:
        self._waiting.append((self._own, b""))
        self._to_send.set()

    async def run(self) -> None:
        """See `Fanout.run`."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._keep, self._send)
            tasks.start_soon(self._keep, self._read)

    async def _keep(self, work: _Work) -> None:
        """Run ``work`` over a connection. Reconnect with backoff whenever the connection fails."""
        delay = FIRST_RETRY
        while True:
            client = self._new_client()
            began = anyio.current_time()
            try:
                await work(client)
            except self._failures as exc:
                logger.debug("live events are carried later: %s", exc)
            finally:
                with anyio.move_on_after(1, shield=True):
                    await client.aclose()
            delay = FIRST_RETRY if anyio.current_time() - began > LAST_RETRY else min(2 * delay, LAST_RETRY)
            await anyio.sleep(delay)

    async def _send(self, client: Any) -> None:
        while True:
            await self._to_send.wait()
            self._to_send = anyio.Event()
            batch = list(self._waiting)
            self._waiting.clear()
            pipe = client.pipeline(transaction=False)
            for stream, message in batch:
                pipe.xadd(stream, {b"m": message}, maxlen=LENGTH, approximate=True)
            for stream in {stream for stream, _ in batch}:
                pipe.expire(stream, LIFE_SECONDS)
            await pipe.execute()

    async def _read(self, client: Any) -> None:
        self._places.clear()
        await client.ping()
        woken = await self._last(client, self._own)
        while True:
            for topic in [name for name in self._topics.names() if name not in self._places]:
                place = await self._last(client, PREFIX + topic)
                if topic in self._topics.names():
                    self._places[topic] = place
                    self._topics.deliver(topic, None)
            streams = {self._own.encode(): woken, **{(PREFIX + name).encode(): at for name, at in self._places.items()}}
            response = await client.xread(streams, count=READ_MESSAGES, block=round(BLOCK_SECONDS * 1000))
            for stream, messages in _pairs(response):
                if stream == self._own.encode():
                    woken = messages[-1][0]
                    continue
                topic = stream.decode().removeprefix(PREFIX)
                if topic in self._places:
                    self._places[topic] = messages[-1][0]
                for _, fields in messages:
                    self._topics.deliver(topic, fields[b"m"])

    async def _last(self, client: Any, stream: str) -> bytes:
        """Return the id of the newest message. The reader starts after it."""
        messages = await client.xrevrange(stream, count=1)
        return bytes(messages[0][0]) if messages else b"0-0"


def _pairs(response: Any) -> list[tuple[bytes, list[tuple[bytes, Mapping[bytes, bytes]]]]]:
    """Return streams and their messages from either of the two response forms of the protocol (RESP2 and RESP3)."""
    if isinstance(response, Mapping):
        return [(stream, parts[0]) for stream, parts in response.items()]
    return [(stream, messages) for stream, messages in response or ()]
