"""A request of the Messages API that lacks its last message, as bytes, and one that was sent with it.

Owns the place of that message's words among the bytes. Whether such a request is what is asked in the end is for who
sends it to know.
"""

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, Self
from uuid import uuid4

from agentic_rag.base.messages import user_message
from agentic_rag.models.anthropic.request import encoded_body
from agentic_rag.models.base import ModelEvent, ModelRequest
from agentic_rag.models.http_stream import encode
from agentic_rag.models.profiles import ModelProfile

if TYPE_CHECKING:
    from agentic_rag.models.http_push import PushClient, SentPost


class Sender(Protocol):
    """The model that goes on with what was sent."""

    def stream(
        self, request: ModelRequest, sent: "SentPost | None" = None
    ) -> AbstractAsyncContextManager[AsyncIterator[ModelEvent]]:
        """Open a call; ``sent``: its request, if it was sent already."""
        ...


@dataclass(frozen=True, slots=True)
class PreparedPost:
    """Implements `PreparedRequest`. ``request`` is what stands before the message.

    ``before`` and ``after`` are pieces, of which most are kept with the conversation: they are joined when it is sent.
    ``memory`` is of the others.
    """

    model: Sender
    push: "PushClient"
    head: bytes
    request: ModelRequest
    before: tuple[bytes, ...]
    after: tuple[bytes, ...]
    memory: int

    @classmethod
    def of(cls, model: Sender, push: "PushClient", head: bytes, request: ModelRequest, profile: ModelProfile) -> Self:
        """Encode a request with a mark where the words are to stand; nobody can have written that before."""
        mark = uuid4().hex
        whole = request.followed_by(user_message(mark))
        *settled, last, around = encoded_body(whole, profile)
        before, _, rest = last.partition(mark.encode())
        memory = len(before) + len(rest) + (len(around) if request.settled is None else 0)
        return cls(model, push, head, request, (*settled, before), (rest, around), memory)

    @property
    def size(self) -> int:
        return sum(map(len, (*self.before, *self.after)))

    def send(self, text: str) -> "SentCall | None":
        """See `PreparedRequest.send`. Blank words get no breakpoint of the cache, as the mark has one."""
        if not text.strip():
            return None
        sent = self.push.send(self.head, b"".join((*self.before, encode(text)[1:-1], *self.after)))
        if sent is None:
            return None
        whole = self.request.followed_by(user_message(text))
        return SentCall(self.model, whole, sent)


@dataclass(frozen=True, slots=True)
class SentCall:
    """Implements `SentRequest`."""

    model: Sender
    request: ModelRequest
    sent: "SentPost"

    def stream(self) -> AbstractAsyncContextManager[AsyncIterator[ModelEvent]]:
        return self.model.stream(self.request, self.sent)

    def abandon(self) -> None:
        self.sent.abandon()
