"""What a socket needs of the layers below, as protocols: its tests hand in conversations that live in memory.

Owns the shapes only.
"""

from collections.abc import Callable, Sequence
from typing import Literal, Protocol

from agentic_rag.access.users import User
from agentic_rag.events import AgentEvent


class Record(Protocol):
    """A conversation's record, as far as a socket needs it."""

    @property
    def session_id(self) -> str: ...


class TurnRecord(Protocol):
    """A turn's record, as far as a socket needs it."""

    @property
    def conversation_id(self) -> str: ...


class Accepted(Protocol):
    """What the business layer answers to a message."""

    @property
    def turn_id(self) -> str: ...
    @property
    def user_message_id(self) -> str: ...
    @property
    def message_id(self) -> str: ...
    @property
    def client_message_id(self) -> str | None: ...
    @property
    def duplicate(self) -> bool: ...
    @property
    def queued(self) -> bool: ...


class Reader(Protocol):
    """A reader of a turn's events; see `agentic_rag.runtime.log.reader.LogReader`."""

    async def next(self, push: Callable[[Sequence[AgentEvent]], int], /) -> Sequence[AgentEvent]: ...


class Turns(Protocol):
    """The part of the runtime that a socket needs."""

    def running(self, session_id: str) -> str | None: ...
    def read(self, turn_id: str, after: int = 0) -> Reader: ...
    async def next_turn(self, session_id: str, after: str | None = None) -> str: ...


class Wire(Protocol):
    """The connection itself; see `agentic_rag.server.wsprotocol.SocketProtocol`."""

    @property
    def ready(self) -> bool: ...
    def write(self, texts: Sequence[bytes]) -> None: ...
    async def room(self) -> None: ...


class ConversationService(Protocol):
    """The part of the business layer that a socket needs. Another owner's id raises NotFound."""

    async def get(self, user: User, conversation_id: str, /) -> Record: ...
    async def turn(self, user: User, turn_id: str, /) -> TurnRecord: ...
    async def send(
        self,
        user: User,
        conversation_id: str,
        content: str,
        /,
        *,
        client_message_id: str | None = None,
        on_busy: Literal["reject", "queue"] = "reject",
    ) -> Accepted: ...
    async def interrupt(
        self, user: User, conversation_id: str, /, *, turn_id: str | None = None, queued: bool = False
    ) -> bool: ...
