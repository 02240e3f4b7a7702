"""One WebSocket connection as `/ws` writes to it, whatever server runs the application.

Owns the limits of a socket, the protocol between the endpoint and the connection, and the connection over plain ASGI.
A server may offer a shorter way in its scope (`EXTENSION`); ``fast_socket`` is uvicorn's. Knows no frame's meaning.
"""

from collections import deque
from collections.abc import Sequence
from typing import Final, Protocol

import anyio
from starlette.types import Scope
from starlette.websockets import WebSocket, WebSocketDisconnect, WebSocketDisconnected

from agentic_rag.silence import SilenceScope

SEND_SECONDS: Final = 30.0
"""A connection is cut when one send waits longer than this for room."""

CLOSE_SECONDS: Final = 10.0
"""What is still unsent when a socket is closed may take this long to be read; then it is cut."""

MAX_FRAME_BYTES: Final = 1024 * 1024
"""A larger frame closes the socket with 1009."""

BUFFER_BYTES: Final = 64 * 1024
"""A connection that holds this much unsent takes no more."""

TOO_LARGE: Final = 1009
"""Close code of RFC 6455: a frame is too large."""

EXTENSION: Final = "agentic_rag.fast_socket"
"""Where an endpoint may find a `Connection` of the server's own in its scope's extensions, as ``connection``."""

ARRIVAL: Final = "agentic_rag.arrival"
"""Where the guard may find the `Arrival` of a request's connection in the scope's extensions, as ``arrival``."""


class ConnectionGone(Exception):
    """The connection is gone, closing, or was cut because the peer does not read."""


class Connection(Protocol):
    """What a socket is written to by. Nothing that is written waits for the peer."""

    @property
    def ready(self) -> bool:
        """Whether `write` may be called: the connection is open and the peer takes what it is sent."""
        ...

    def write(self, texts: Sequence[bytes]) -> None:
        """Send each text (UTF-8) as a message, at once; only while `ready`."""
        ...

    def offer(self, text: bytes) -> bool:
        """`write` a text, if it is `ready`; whether it was. In one step, since most are a word of an answer."""
        ...

    def hold(self, texts: Sequence[bytes]) -> None:
        """Send the same with what is written next, in one write, or alone once all that is due has run; while `ready`.

        For what is followed at once: each write is a system call and wakes the peer.
        """
        ...

    async def room(self) -> None:
        """Wait until `ready`.

        Raises:
            ConnectionGone: it will not be any more.
        """
        ...


def fast_connection(scope: Scope) -> Connection | None:
    """Return the connection that the server offers itself, None when it offers none."""
    offered = (scope.get("extensions") or {}).get(EXTENSION)
    if offered is None:
        return None
    connection: Connection = offered["connection"]
    return connection


class Arrival(Protocol):
    """The connection a request came on, as far as the guard tells and asks it."""

    def admit(self) -> None:
        """Take note that a request on the connection was let in."""
        ...

    def peer_uid(self) -> int | None:
        """Return the user of this machine at the other end; None: the system does not tell."""
        ...


def arrival_of(scope: Scope) -> Arrival | None:
    """Return the connection a request came on, where the server offers it."""
    offered = (scope.get("extensions") or {}).get(ARRIVAL)
    if offered is None:
        return None
    arrival: Arrival = offered["arrival"]
    return arrival


class PlainConnection:
    """A connection over ASGI's ``send``: texts wait in a short queue, which `relay` sends at the peer's pace."""

    def __init__(self, websocket: WebSocket, send_seconds: float = SEND_SECONDS) -> None:
        self._websocket = websocket
        self._send_seconds = send_seconds
        self._texts: deque[bytes] = deque()
        self._size = 0
        self._open = True
        self._changed = anyio.Event()

    @property
    def ready(self) -> bool:
        return self._open and self._size < BUFFER_BYTES

    def write(self, texts: Sequence[bytes]) -> None:
        self._texts.extend(texts)
        self._size += sum(map(len, texts))
        self._notify()

    def offer(self, text: bytes) -> bool:
        if self.ready:
            self.write((text,))
            return True
        return False

    def hold(self, texts: Sequence[bytes]) -> None:
        self.write(texts)  # `relay` sends each by itself

    async def room(self) -> None:
        while self._open and self._size >= BUFFER_BYTES:
            await self._changed.wait()
        if not self._open:
            raise ConnectionGone

    async def relay(self) -> None:
        """Send what is written until the connection ends, or one send takes too long; then nothing is written any more.

        The peer that does not read is not waited for: what the server still buffers for it is the server's to drop.
        """
        try:
            while True:
                while not self._texts:
                    await self._changed.wait()
                text = self._texts.popleft()
                with SilenceScope(self._send_seconds) as limit:
                    await self._websocket.send({"type": "websocket.send", "text": text.decode()})
                if limit.expired:
                    return
                self._size -= len(text)
                self._notify()
        except (WebSocketDisconnect, WebSocketDisconnected):
            pass  # the endpoint reads of the end, or is ended with this
        finally:
            self._open = False
            self._notify()

    async def drain(self) -> None:
        """Wait until all that was written is sent, or the connection has ended."""
        while self._open and self._size:
            await self._changed.wait()

    def _notify(self) -> None:
        self._changed.set()
        self._changed = anyio.Event()
