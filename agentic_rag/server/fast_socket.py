"""uvicorn's WebSocket protocol, made to cut a peer that stopped reading, and the options to run it with.

Owns the short way for events, past the layers of ASGI: most of what a delta would cost there; and what ASGI cannot do:
pings, and the end of a connection whose peer does nothing. Knows no frame's meaning.

uvicorn waits without end when a peer does not read: ``send`` waits for room, and closing waits until what is
buffered was taken. Only the transport can end that, and only the protocol holds it; so the limit lives here
and not in the endpoint. It costs nothing while there is room.
"""

import logging
from collections.abc import Mapping, Sequence
from typing import Any, Final

from uvicorn._types import ASGISendEvent
from uvicorn.protocols.utils import ClientDisconnected
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.frames import CloseCode
from websockets.http11 import Request
from websockets.protocol import State

from agentic_rag.errors import MalformedRequest
from agentic_rag.server.connection import CLOSE_SECONDS, EXTENSION, MAX_FRAME_BYTES, SEND_SECONDS, ConnectionGone
from agentic_rag.server.entrance import encode_refusal
from agentic_rag.silence import RESUMED_SECONDS, SECOND_LOOK_SECONDS, SUSPENDED_SECONDS, SilenceScope

log = logging.getLogger(__name__)

CODE: Final = MalformedRequest.code

LINGER_SECONDS: Final = 1.0
"""After a frame that breaks the protocol (too big, not UTF-8) input is read and thrown away for this long: a
socket closed with unread input is reset, and the peer would never see why."""


def frame_texts(texts: Sequence[bytes]) -> bytes:
    """Return each text (UTF-8) as a frame of its own: whole and unmasked, as servers send (RFC 6455, 5.2)."""
    return b"".join(map(_frame, texts))


def _frame(text: bytes) -> bytes:
    size = len(text)
    if size < 126:
        return b"\x81%c%b" % (size, text)
    if size < 65536:
        return b"\x81\x7e%c%c%b" % (size >> 8, size & 255, text)
    return b"\x81\x7f%b%b" % (size.to_bytes(8, "big"), text)


class SocketProtocol(WebSocketsSansIOProtocol):
    """One WebSocket connection whose end never depends on the peer."""

    send_seconds = SEND_SECONDS
    close_seconds = CLOSE_SECONDS
    linger_seconds = LINGER_SECONDS
    _crowded = False
    """Whether the transport has more to send than it likes."""
    _held = b""
    """Frames that wait for the next ones."""
    _overdue_ping: bytes | None = None
    """The payload of a ping whose answer was overdue once already."""

    async def send(self, message: ASGISendEvent) -> None:
        """Send one ASGI message.

        Raises:
            ClientDisconnected: the connection is gone, closing, or was cut because the peer does not read.
        """
        if not self.writable.is_set():
            await self._wait_for_room()
        self._release()
        if self.close_sent and message["type"] == "websocket.send":
            # The protocol closed by itself (frame too big, no pong) and the endpoint has not read of it yet.
            raise ClientDisconnected
        await super().send(message)

    def shutdown(self) -> None:
        """End the connection since the server stops. One that its peer has ended already goes by itself: a word more to
        it would be an error, and the connections after it would stay."""
        self._release()
        if self.close_sent or self.conn.state in (State.CONNECTING, State.OPEN):
            super().shutdown()
        else:
            self.stop_keepalive()
            self.transport.close()

    async def _wait_for_room(self) -> None:
        with SilenceScope(self.send_seconds) as limit:
            await self.writable.wait()
        if limit.expired:
            self.transport.abort()
            raise ClientDisconnected

    # The short way: a `Connection`

    def data_received(self, data: bytes) -> None:
        """Read, and answer a handshake that cannot be read: uvicorn would wait for the rest of it for ever."""
        super().data_received(data)
        if self.conn.handshake_exc is not None and not self.handshake_initiated:
            self._reject()

    def _reject(self) -> None:
        if not self.transport.is_closing():
            self.transport.write(encode_refusal(MalformedRequest()))
            self.transport.close()

    def handle_connect(self, event: Request) -> None:
        """Begin the endpoint, and let it find this protocol."""
        try:
            super().handle_connect(event)
        except UnicodeError:  # an address that is not ASCII
            self._reject()
            return
        if not self.close_sent:
            self.scope["extensions"] = {**(self.scope["extensions"] or {}), EXTENSION: {"connection": self}}

    def pause_writing(self) -> None:
        """Take note that the peer does not read, where it is asked for each event."""
        super().pause_writing()
        self._crowded = True

    def resume_writing(self) -> None:
        super().resume_writing()
        self._crowded = False

    @property
    def ready(self) -> bool:
        return not (self._crowded or self.close_sent or self.transport.is_closing())

    def write(self, texts: Sequence[bytes]) -> None:
        self._write(frame_texts(texts))

    def offer(self, text: bytes) -> bool:
        if self._crowded or self.close_sent or self.transport.is_closing():
            return False
        if self._held:
            self._write(_frame(text))
        else:
            self.transport.write(_frame(text))
        return True

    def _write(self, frames: bytes) -> None:
        if self._held:
            frames, self._held = self._held + frames, b""
        self.transport.write(frames)

    def hold(self, texts: Sequence[bytes]) -> None:
        if not self._held:
            self.loop.call_soon(self._release)
        self._held += frame_texts(texts)

    def _release(self) -> None:
        """Send what is held, unless the connection has come to its end."""
        if self._held and not self.close_sent and not self.transport.is_closing():
            self.transport.write(self._held)
        self._held = b""

    async def room(self) -> None:
        try:
            while self._crowded and not self.writable.is_set():  # others that waited may have filled it again
                await self._wait_for_room()
        except ClientDisconnected:
            raise ConnectionGone from None
        if not self.ready:
            raise ConnectionGone

    async def run_asgi(self) -> None:
        """Run the endpoint; afterwards the connection ends within ``close_seconds``."""
        await super().run_asgi()
        if self.transport.get_write_buffer_size():
            self.loop.call_later(self.close_seconds, self.transport.abort)

    def send_receive_event_to_app(self) -> None:
        """Hand a message to the endpoint. Text that is not UTF-8 ends the connection: uvicorn logs a traceback then."""
        try:
            if self.curr_msg_data_type == "text" and not self.close_sent:
                b"".join(self.frames).decode()
        except UnicodeDecodeError as exc:
            self.frames = []
            log.warning(
                "%s: a WebSocket message that is text is not UTF-8 (%s at byte %d)", CODE, exc.reason, exc.start
            )
            self.conn.send_close(CloseCode.INVALID_DATA, "text is UTF-8")
            self.handle_parser_exception()
        else:
            super().send_receive_event_to_app()

    def handle_parser_exception(self) -> None:
        """Say why the connection ends, once, and let the peer read it."""
        if self.close_sent:
            return  # the rest of the bad frame
        if self.conn.close_sent is None:  # before the handshake was answered: there is no frame to say it with
            self.transport.abort()
            return
        code, reason = self.conn.close_sent.code, self.conn.close_sent.reason
        self.queue.put_nowait({"type": "websocket.disconnect", "code": code, "reason": reason})
        self.transport.write(b"".join(self.conn.data_to_send()))
        self.close_sent = True
        if self.read_paused:
            self.read_paused = False
            self.transport.resume_reading()
        self.close_timer = self.loop.call_later(self.linger_seconds, self.transport.close)

    def keepalive_timeout(self) -> None:
        """End a connection whose peer does not answer pings.

        The first time a ping is overdue, the pong may wait unread because this process was suspended; see `silence`.
        """
        late = self.loop.time() - self.ping_sent_at - (self.ping_timeout or 0)
        if self._overdue_ping != self.pending_ping_payload:
            self._overdue_ping = self.pending_ping_payload
            wait = RESUMED_SECONDS if late > SUSPENDED_SECONDS else SECOND_LOOK_SECONDS
            self.pong_timer = self.loop.call_later(wait, self.keepalive_timeout)
            return
        super().keepalive_timeout()
        self.transport.abort()


UVICORN_OPTIONS: Final[Mapping[str, Any]] = {
    "ws": SocketProtocol,
    "ws_max_size": MAX_FRAME_BYTES,
    "ws_per_message_deflate": False,  # 122 instead of 25 KiB an idle socket
    "ws_ping_interval": 30.0,
    "ws_ping_timeout": 30.0,
}
"""Keyword arguments of ``uvicorn.Config`` for whoever serves `/ws`."""
