"""A client's socket, for plain functions: frames in order, every event checked by a `Reader`."""

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
_QUIET.propagate = False  # that a socket was dropped is no news here


class Chat:
    """One socket that follows one conversation. A context manager; every call raises `Dead` when it is gone."""

    def __init__(self, server: Server, conversation: str, ledger: Ledger) -> None:
        self.conversation = conversation
        self.reader = Reader(ledger)
        self.events: list[Event] = []
        self.raw: list[str] = []
        self.ledger = ledger
        self.asides: list[str] = []
        """Codes of the notices that are no part of a turn's log."""
        self.closed: int | None = None
        """The code with which the server closed the socket."""
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
        """Lose the connection without a word (a reset): a closing handshake would wait for what is unread."""
        with suppress(OSError):  # it may have ended
            self._socket.socket.setsockopt(SOL_SOCKET, SO_LINGER, struct.pack("ii", 1, 0))
            self._socket.socket.shutdown(SHUT_RDWR)
        self._socket.close()

    @property
    def port(self) -> int:
        """The client's own."""
        return int(self._socket.socket.getsockname()[1])

    @property
    def gone_wrong(self) -> bool:
        """Whether the server has said that something failed, which nobody has asked about."""
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
        """Take one frame: return the event, None when it was an answer (kept for `ask`)."""
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
        """Send one frame and return its answer; events that come before it are taken."""
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
        """Send a message and return ``accepted`` or the refusal. A repeated one is read from its event 1 again."""
        reply = self.ask("message", content=content, clientMessageId=key, **options)
        if reply["type"] == "accepted":
            self.reader.again = reply["turnId"]
        return reply

    def subscribe(self, turn: str | None = None, after: int = 0) -> Event:
        """Follow a turn strictly after a number, or whatever runs or comes next."""
        fields = {} if turn is None else {"turnId": turn, "after": after}
        reply = self.ask("subscribe", **fields)
        if reply["type"] == "subscribed":
            self.reader = Reader(self.ledger, reply.get("turnId"), after)
        return reply

    def until(self, met: Callable[[Event], bool]) -> Event:
        """Take events up to one that meets a condition."""
        while True:
            event = self.hear()
            if event is not None and met(event):
                return event

    def finish(self, turn: str) -> Event:
        """Take events to the end of a turn, which may have been taken already; return the last one."""
        while turn not in self.reader.ended:
            self.hear()
        return event_of(self.ledger.seen[turn][self.ledger.ends[turn]])
