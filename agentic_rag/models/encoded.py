"""The bytes of a conversation's requests as one adapter sends them, kept from request to request.

Owns how many are kept, and what they stand for: the first messages of a conversation, and what stands around them, by
their values. Knows no service: what they are in bytes, an adapter says. Who has the messages has these, too, and counts
them.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from agentic_rag.base.messages import Message

MOST_BYTES: Final = 4 * 1024 * 1024
"""Of one conversation: as many as a window of a million tokens takes. What is beyond is encoded for each request."""
MOST_PIECES: Final = 64
"""Pieces in which the bytes lie; more become one, so that none is copied often."""

Encode = Callable[[Message], bytes]
"""Returns what an adapter sends of a message, without what varies from request to request."""
EncodeAround = Callable[[], bytes]
"""Returns what it sends around them."""


class Encoded:
    """Messages of one conversation, each without what varies from request to request, and what stands around them.

    ``most``: bytes of both.
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
        """Return what stands around the messages; it is encoded anew when it is made of other ``parts`` than before.

        They are compared by value: the same objects mostly, which is seen at a glance.
        """
        if self._around[0] != parts:
            self._around = parts, encode()
        return self._around[1]

    def of(self, messages: Sequence[Message], encode: Encode) -> tuple[int, tuple[bytes, ...]]:
        """Return how many of a request's first messages are kept, and their bytes in pieces to be joined by commas.

        Those that are new are encoded; other messages than before take the place of all.
        """
        given = tuple(messages)
        known = len(self._messages)
        if self._messages != given[:known]:  # the same objects mostly, which is seen at a glance
            self._messages, self._pieces, self._size, known = (), (), 0, 0
        new: list[bytes] = []
        for message in given[known:]:
            encoded = encode(message)
            if self.size + len(encoded) >= self._most:
                break
            self._size += len(encoded) + 1
            new.append(encoded)
        if new:
            self._messages = given[: known + len(new)]
            self._pieces = (*self._pieces, b",".join(new))
        if len(self._pieces) > MOST_PIECES:
            self._pieces = (b",".join(self._pieces),)
        return len(self._messages), self._pieces


@dataclass(frozen=True, slots=True)
class Settled:
    """The first ``count`` messages of a request are the same in all later ones of its conversation, and kept here."""

    count: int
    encoded: Encoded
