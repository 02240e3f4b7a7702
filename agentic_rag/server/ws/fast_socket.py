"""uvicorn's WebSocket protocol that cuts stalled peers, and the options to run it with.

Sends events directly, past the layers of ASGI, which would cause most of a delta's cost. Also does what ASGI cannot:
pings, and closing the connection of an inactive peer. Knows no frame's meaning.

uvicorn waits forever for a peer that does not read: ``send`` waits for room, and closing waits for the buffer. Only the
transport can end that, and only the protocol has access to it, so the limit is here and not in the endpoint. It costs
nothing while there is room.
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

from agentic_rag.base.errors import MalformedRequest
from agentic_rag.base.silence_timers import RESUMED_SECONDS, SECOND_LOOK_SECONDS, SUSPENDED_SECONDS, SilenceScope
from agentic_rag.server.http_protocol import encode_refusal
from agentic_rag.server.ws.connection import CLOSE_SECONDS, EXTENSION, MAX_FRAME_BYTES, SEND_SECONDS, ConnectionGone

log = logging.getLogger(__name__)

CODE: Final = MalformedRequest.code

LINGER_SECONDS: Final = 1.0
"""How long input is read and dropped after a protocol error (frame too large, not UTF-8).

A socket closed with unread input is reset, and the peer would not see the reason.
"""


def frame_texts(texts: Sequence[bytes]) -> bytes:
    """Return each text (UTF-8) as its own frame: whole and unmasked, as servers send (RFC 6455, 5.2)."""
    return b"".join(map(_frame, texts))


def _frame(text: bytes) -> bytes:
    # 0x81 is the last frame (FIN) of a text message (opcode 1). 126 and 127 announce a length of 2 or 8 bytes.
    size = len(text)
    if size < 126:
        return b"\x81%c%b" % (size, text)
    if size < 65536:
        return b"\x81\x7e" + size.to_bytes(2, "big") + text
    return b"\x81\x7f%b%b" % (size.to_bytes(8, "big"), text)


class SocketProtocol(WebSocketsSansIOProtocol):
    """One WebSocket connection whose end never depends on the peer."""

    send_seconds = SEND_SECONDS
    close_seconds = CLOSE_SECONDS
    linger_seconds = LINGER_SECONDS
    _crowded = False
    """Whether the transport's write buffer is above its limit."""
    _held = b""
    """Frames held back for the next write."""
    _overdue_ping: bytes | None = None
    """Payload of a ping whose answer was already overdue once."""

    async def send(self, message: ASGISendEvent) -> None:
        """Send one ASGI message.

        Raises:
            ClientDisconnected: the connection is gone, closing, or was cut because the peer does not read.
        """
        if not self.writable.is_set():
            await self._wait_for_room()
        self._release()
        if self.close_sent and message["type"] == "websocket.send":
            # The protocol has closed on its own (frame too large, no pong), and the endpoint does not know yet.
            raise ClientDisconnected
        await super().send(message)
        if self.initial_response is not None and self.close_sent:
            # uvicorn does not note that a refusal completes the handshake, and would log an error for each.
            self.handshake_complete = True

    def shutdown(self) -> None:
        """Close the connection because the server stops.

        A connection that its peer has already closed ends on its own: closing it again would raise, and later
        connections would stay open.
        """
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

    # Direct sending: a `SocketConnection`

    def data_received(self, data: bytes) -> None:
        """Read data, and reject an invalid handshake, for which uvicorn would wait forever."""
        super().data_received(data)
        if self.conn.handshake_exc is not None and not self.handshake_initiated:
            self._reject()

    def _reject(self) -> None:
        if not self.transport.is_closing():
            self.transport.write(encode_refusal(MalformedRequest()))
            self.transport.close()

    def handle_connect(self, event: Request) -> None:
        """Start the endpoint with access to this protocol."""
        try:
            super().handle_connect(event)
        except UnicodeError:  # an address that is not ASCII
            self._reject()
            return
        if not self.close_sent:
            self.scope["extensions"] = {**(self.scope["extensions"] or {}), EXTENSION: {"connection": self}}

    def pause_writing(self) -> None:
        """Record that the peer does not read; this flag is checked for each event."""
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
            # one iteration of the loop later than the notification that a turn has begun
            self.loop.call_soon(self.loop.call_soon, self._release)
        self._held += frame_texts(texts)

    def _release(self) -> None:
        """Send the held frames, unless the connection has ended."""
        if self._held and not self.close_sent and not self.transport.is_closing():
            self.transport.write(self._held)
        self._held = b""

    async def room(self) -> None:
        try:
            while self._crowded and not self.writable.is_set():  # another waiter may have filled it again
                await self._wait_for_room()
        except ClientDisconnected:
            raise ConnectionGone from None
        if not self.ready:
            raise ConnectionGone

    async def run_asgi(self) -> None:
        """Run the endpoint. Afterwards the connection ends within ``close_seconds``."""
        await super().run_asgi()
        if self.transport.get_write_buffer_size():
            self.loop.call_later(self.close_seconds, self.transport.abort)

    def send_receive_event_to_app(self) -> None:
        """Pass a message to the endpoint. Invalid UTF-8 closes the connection; uvicorn would log a traceback."""
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
        """Close with a reason, once, and give the peer time to read it."""
        if self.close_sent:
            return  # the rest of the invalid frame
        if self.conn.close_sent is None:  # the handshake was not answered, so no frame can be sent
            self.transport.abort()
            return
        code, reason = self.conn.close_sent.code, self.conn.close_sent.reason
        self.queue.put_nowait({"type": "websocket.disconnect", "code": code, "reason": reason})
        self.transport.write(b"".join(self.conn.data_to_send()))
        self.close_sent = True
        # Paused input would stay unread, and a socket closed with unread input is reset.
        if self.read_paused:
            self.read_paused = False
            self.transport.resume_reading()
        self.close_timer = self.loop.call_later(self.linger_seconds, self.transport.close)

    def keepalive_timeout(self) -> None:
        """Close a connection whose peer does not answer pings.

        A first overdue pong may be unread only because this process was suspended: see
        `agentic_rag.base.silence_timers`.
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
"""Keyword arguments of ``uvicorn.Config`` to serve `/ws`."""
