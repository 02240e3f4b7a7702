"""A cache of the encoded requests of one conversation.

Each request repeats the earlier messages of its conversation. The cache holds the bytes of the first messages and of
the rest of the body (the envelope), so that an adapter encodes only new messages. Entries are compared by value. The
adapter defines the encoding. The owner of the messages also owns this cache and counts its size.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from agentic_rag.base.messages import Message

MOST_BYTES: Final = 4 * 1024 * 1024
"""Cached bytes per conversation: about a window of a million tokens. Messages beyond are encoded for each request."""
MOST_PIECES: Final = 64
"""Pieces per conversation. More are joined into one, so that bytes are rarely copied."""

Encode = Callable[[Message], bytes]
"""Encodes a message, without the parts that vary from request to request."""
EncodeAround = Callable[[], bytes]
"""Encodes the envelope: all of the body except the messages."""


class Encoded:
    """The encoded messages and envelope of one conversation, without the parts that vary from request to request.

    ``most``: limit of the cached bytes, messages and envelope together.
    """

    def __init__(self, most: int = MOST_BYTES) -> None:
        self._most = most
        self._messages: tuple[Message, ...] = ()
        self._pieces: tuple[bytes, ...] = ()
        self._around: tuple[object, bytes] = None, b""
        self._size = 0

    @property
    def size(self) -> int:
        """Bytes in memory."""
        return self._size + len(self._around[1])

    def around(self, parts: object, encode: EncodeAround) -> bytes:
        """Return the encoded envelope, encoding it again if ``parts`` differ from those of the last call.

        Parts are compared by value. They are mostly the same objects, which makes the comparison fast.
        """
        if self._around[0] != parts:
            self._around = parts, encode()
        return self._around[1]

    def of(self, messages: Sequence[Message], encode: Encode) -> tuple[int, tuple[bytes, ...]]:
        """Return how many of the first messages are cached, and their bytes in pieces to be joined by commas.

        New messages are encoded and added. If the known messages differ from the given ones, the cache starts over.
        """
        current = tuple(messages)
        cached = len(self._messages)
        if self._messages != current[:cached]:  # mostly the same objects, so the comparison is fast
            self._messages, self._pieces, self._size, cached = (), (), 0, 0
        new: list[bytes] = []
        for message in current[cached:]:
            encoded = encode(message)
            if self.size + len(encoded) >= self._most:
                break  # a smaller message behind this one cannot be cached either: the cache holds the first messages
            self._size += len(encoded) + 1  # with its comma
            new.append(encoded)
        if new:
            self._messages = current[: cached + len(new)]
            self._pieces = (*self._pieces, b",".join(new))
        if len(self._pieces) > MOST_PIECES:
            self._pieces = (b",".join(self._pieces),)
        return len(self._messages), self._pieces


@dataclass(frozen=True, slots=True)
class Settled:
    """Marks the first ``count`` messages of a request as final: later requests of the conversation repeat them.

    ``encoded``: the cache of their bytes.
    """

    count: int
    encoded: Encoded
