"""The interface between `/ws` and one WebSocket connection, for any ASGI server.

Defines the limits of a socket, the protocol of a connection, and an implementation over plain ASGI. A server may offer
a faster one in its scope (`EXTENSION`), as `agentic_rag.server.ws.fast_socket` does for uvicorn. Does not interpret
frames.
"""

from collections import deque
from collections.abc import Sequence
from typing import Final, Protocol

import anyio
from starlette.types import Scope
from starlette.websockets import WebSocket, WebSocketDisconnect, WebSocketDisconnected

from agentic_rag.base.silence_timers import SilenceScope

SEND_SECONDS: Final = 30.0
"""Maximum time that one send waits for room before the connection is cut."""

CLOSE_SECONDS: Final = 10.0
"""Time to deliver unsent data when a socket is closed, before it is cut."""

MAX_FRAME_BYTES: Final = 1024 * 1024
"""Maximum bytes of a frame; a larger one closes the socket with 1009."""

BUFFER_BYTES: Final = 64 * 1024
"""Unsent bytes above which a connection accepts no more."""

TOO_LARGE: Final = 1009
"""Close code of RFC 6455: a frame is too large."""

EXTENSION: Final = "agentic_rag.fast_socket"
"""ASGI extension with the server's own `SocketConnection`, as ``connection``."""

ARRIVAL: Final = "agentic_rag.arrival"
"""ASGI extension with the `Arrival` of a request's connection, as ``arrival``."""


class ConnectionGone(Exception):
    """The connection is gone, closing, or was cut because the peer does not read."""


class SocketConnection(Protocol):
    """The write side of a socket. No method but `room` waits for the peer."""

    @property
    def ready(self) -> bool:
        """Whether `write` may be called: the connection is open, and the peer reads."""
        ...

    def write(self, texts: Sequence[bytes]) -> None:
        """Send each text (UTF-8) as a message at once. Only allowed while `ready`."""
        ...

    def offer(self, text: bytes) -> bool:
        """Send a text if `ready`, and return whether it was sent. One call, because most texts are single deltas."""
        ...

    def hold(self, texts: Sequence[bytes]) -> None:
        """Send texts with the next write, or alone after the pending callbacks. Only allowed while `ready`.

        Useful for texts that others follow at once: each write is a system call and wakes the peer.
        """
        ...

    async def room(self) -> None:
        """Wait until `ready`.

        Raises:
            ConnectionGone: the connection has ended.
        """
        ...


def fast_connection(scope: Scope) -> SocketConnection | None:
    """Return the connection that the server offers, or None."""
    offered = (scope.get("extensions") or {}).get(EXTENSION)
    if offered is None:
        return None
    connection: SocketConnection = offered["connection"]
    return connection


class Arrival(Protocol):
    """The connection of a request, as the guard uses it."""

    def admit(self) -> None:
        """Record that a request on the connection was admitted."""
        ...

    def peer_uid(self) -> int | None:
        """Return the local user at the other end, or None if the system does not tell."""
        ...


def arrival_of(scope: Scope) -> Arrival | None:
    """Return the connection of a request, if the server offers it."""
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
        self.write(texts)  # `relay` sends each text separately

    async def room(self) -> None:
        while self._open and self._size >= BUFFER_BYTES:
            await self._changed.wait()
        if not self._open:
            raise ConnectionGone

    async def relay(self) -> None:
        """Send the written texts until the connection ends or one send takes too long. After that nothing more is sent.

        A peer that does not read is not waited for. The ASGI server decides when to drop its buffered data.
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
                self._size -= len(text)  # after the send, so that `drain` waits for the last text, too
                self._notify()
        except (WebSocketDisconnect, WebSocketDisconnected):
            pass  # the endpoint reads the disconnect itself, or is cancelled together with this
        finally:
            self._open = False
            self._notify()

    async def drain(self) -> None:
        """Wait until all that was written is sent, or the connection has ended."""
        while self._open and self._size:
            await self._changed.wait()

    def _notify(self) -> None:
        # anyio's events cannot be cleared, so each change gets a new one.
        self._changed.set()
        self._changed = anyio.Event()
