"""A client's socket with a synchronous interface. Frames arrive in order, and a `Reader` checks every event."""

import json
import logging
import struct
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from socket import SHUT_RDWR, SO_LINGER, SOL_SOCKET
from typing import Any
from uuid import uuid4

from websockets.exceptions import ConnectionClosed, InvalidHandshake
from websockets.sync.client import connect

from tests.faults.ledger import Event, Ledger, Reader, event_of, is_event
from tests.faults.outside import PATIENCE
from tests.faults.server import Dead, Server

_QUIET = logging.getLogger("tests.faults.client")
_QUIET.addHandler(logging.NullHandler())
_QUIET.propagate = False  # dropped sockets are expected here


class Chat:
    """A socket that follows one conversation. A context manager. Every call raises `Dead` if the server is gone."""

    def __init__(self, server: Server, conversation: str, ledger: Ledger) -> None:
        self.conversation = conversation
        self.reader = Reader(ledger)
        self.events: list[Event] = []
        self.raw: list[str] = []
        self.ledger = ledger
        self.asides: list[str] = []
        """Codes of notices that are not part of a turn's log."""
        self.closed: int | None = None
        """Close code that the server sent."""
        self._replies: deque[Event] = deque()
        try:
            url = server.url.replace("http", "ws") + "/ws"
            self._socket = connect(
                url,
                compression=None,
                proxy=None,
                close_timeout=1,
                open_timeout=PATIENCE,
                ping_interval=None,
                logger=_QUIET,
            )
        except (OSError, InvalidHandshake, ConnectionClosed, EOFError) as exc:
            raise Dead from exc

    def __enter__(self) -> "Chat":
        return self

    def __exit__(self, *_: object) -> None:
        self.drop()

    def drop(self) -> None:
        """Reset the connection, because a closing handshake would wait for unread data."""
        with suppress(OSError):  # already ended
            self._socket.socket.setsockopt(SOL_SOCKET, SO_LINGER, struct.pack("ii", 1, 0))
            self._socket.socket.shutdown(SHUT_RDWR)
        self._socket.close()

    @property
    def port(self) -> int:
        """The client's local port."""
        return int(self._socket.socket.getsockname()[1])

    @property
    def has_unexpected_error(self) -> bool:
        """Whether the server sent an error that is not the reply to a request."""
        return any(reply["type"] == "error" for reply in self._replies)

    # Frames

    def say(self, kind: str, **fields: Any) -> None:
        """Send one frame of this conversation."""
        frame = {"type": kind, "conversationId": self.conversation, **fields}
        try:
            self._socket.send(json.dumps(frame))
        except (ConnectionClosed, OSError) as exc:
            raise Dead from exc

    def hear(self) -> Event | None:
        """Receive one frame. Return an event, or None for a reply, which is stored for `ask`."""
        try:
            raw = self._socket.recv(PATIENCE)
        except (ConnectionClosed, OSError) as exc:
            self.closed = exc.rcvd.code if isinstance(exc, ConnectionClosed) and exc.rcvd is not None else None
            raise Dead from exc
        assert isinstance(raw, str)
        frame: Event = json.loads(raw)
        if frame["type"] == "notice" and "seq" not in frame:
            self.asides.append(frame["code"])
            return None
        if not is_event(frame):
            self._replies.append(frame)
            return None
        event = self.reader.take(raw)
        self.events.append(event)
        self.raw.append(raw)
        return event

    def ask(self, kind: str, **fields: Any) -> Event:
        """Send one frame and return its reply. Events before it are recorded."""
        ident = uuid4().hex
        self.say(kind, requestId=ident, **fields)
        while True:
            if self._replies:
                reply = self._replies.popleft()
                assert reply.get("requestId") in (ident, None), reply
                return reply
            self.hear()

    # Turns

    def send(self, content: str, key: str, **options: Any) -> Event:
        """Send a message and return ``accepted`` or the refusal. A repeated message is read again from event 1."""
        reply = self.ask("message", content=content, clientMessageId=key, **options)
        if reply["type"] == "accepted":
            self.reader.again = reply["turnId"]
        return reply

    def subscribe(self, turn: str | None = None, after: int = 0) -> Event:
        """Follow a turn after a number, or the current or next turn."""
        fields = {} if turn is None else {"turnId": turn, "after": after}
        reply = self.ask("subscribe", **fields)
        if reply["type"] == "subscribed":
            self.reader = Reader(self.ledger, reply.get("turnId"), after)
        return reply

    def until(self, matches: Callable[[Event], bool]) -> Event:
        """Record events up to one that meets a condition, and return it."""
        while True:
            event = self.hear()
            if event is not None and matches(event):
                return event

    def finish(self, turn: str) -> Event:
        """Record events to the end of a turn, unless it was already recorded. Return the last one."""
        while turn not in self.reader.ended:
            self.hear()
        return event_of(self.ledger.seen[turn][self.ledger.ends[turn]])
