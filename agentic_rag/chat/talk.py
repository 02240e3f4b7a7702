"""Run one turn over a WebSocket, from the message to the end, across reconnections.

Sends the message once, follows events by number, reconnects and stops. Knows no output.
"""

import json
import signal
import uuid
from contextlib import suppress
from dataclasses import dataclass, field
from ipaddress import ip_address
from typing import Literal, Protocol
from urllib.parse import urlsplit

import anyio
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus

from agentic_rag.base.errors import InvalidInput, RequestRefused, ServerUnreachable
from agentic_rag.base.json_form import Json

OPEN_SECONDS = 10.0
"""Time limit for opening a connection."""

CLOSE_SECONDS = 1.0
"""Time limit for closing a connection."""

RETRIES = 8
"""Attempts without a new event after which the server counts as gone: about 25 seconds."""

FIRST_DELAY = 0.2
LAST_DELAY = 5.0
"""Seconds before a reconnection; each wait is twice the previous one."""

Ending = Literal["done", "error", "interrupted", "resync", "left"]
"""How a turn ended for this client: a terminal event, a removed log, or the user left."""


@dataclass(frozen=True, slots=True)
class Server:
    """Address and API key of a server."""

    url: str
    key: str | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        parts = urlsplit(self.url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise InvalidInput("url", f"{self.url!r} is not an address such as http://127.0.0.1:8000.")

    @property
    def headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.key}"} if self.key else {}

    def connect(self) -> connect:
        """Return the connection to `/ws`, an asynchronous context manager."""
        return connect(
            "ws" + self.url.removeprefix("http").rstrip("/") + "/ws",
            additional_headers=self.headers,
            compression=None,
            open_timeout=OPEN_SECONDS,
            close_timeout=CLOSE_SECONDS,
            max_size=None,  # a tool's result may be large, and the user chose the server
            proxy=None if self._loopback else True,
        )

    @property
    def _loopback(self) -> bool:
        host = urlsplit(self.url).hostname or ""
        with suppress(ValueError):
            return ip_address(host).is_loopback
        return host == "localhost"


class Watcher(Protocol):
    """Receives the events of a turn; implemented by the screen."""

    def show(self, raw: str, frame: Json) -> None:
        """Handle one event, as text and JSON. Each event comes once, in order."""

    def note(self, text: str) -> None:
        """Handle a note about the connection."""


@dataclass(slots=True)
class Talk:
    """One turn as the client sees it."""

    server: Server
    conversation_id: str
    watcher: Watcher
    turn_id: str | None = None
    seq: int = 0
    _client_message_id: str = field(default_factory=lambda: f"cmsg_{uuid.uuid4().hex}")
    _socket: ClientConnection | None = None
    _connected: bool = False
    _failures: int = 0
    _stop: bool = False

    async def say(self, content: str, *, signals: bool = False) -> Ending:
        """Send a message and follow its turn to the end. With ``signals``, Ctrl-C interrupts the turn, twice leaves.

        Raises:
            ServerUnreachable: no server answers, or it is gone.
            RequestRefused: the server refused the message or the connection.
        """
        ending: Ending = "left"
        problem: RequestRefused | ServerUnreachable | None = None
        async with anyio.create_task_group() as tasks:
            if signals:
                await tasks.start(self._obey_signals, tasks.cancel_scope)
            try:
                ending = await self._follow(content)
            # Raised below, outside the task group, so that it is not wrapped.
            except (RequestRefused, ServerUnreachable) as exc:
                problem = exc
            tasks.cancel_scope.cancel()
        if problem is not None:
            raise problem
        return ending

    async def stop(self) -> None:
        """Ask the server to interrupt the turn now, or at the next connection."""
        self._stop = True
        if self._socket is not None:
            with suppress(ConnectionClosed):
                await self._send("interrupt", turnId=self.turn_id)

    async def _obey_signals(
        self, scope: anyio.CancelScope, *, task_status: anyio.abc.TaskStatus[None] = anyio.TASK_STATUS_IGNORED
    ) -> None:
        with anyio.open_signal_receiver(signal.SIGINT) as received:
            task_status.started()
            async for _ in received:
                if self._stop:
                    scope.cancel()
                    return
                self.watcher.note("interrupting (Ctrl-C again leaves)")
                await self.stop()

    async def _follow(self, content: str) -> Ending:
        while True:
            try:
                async with self.server.connect() as self._socket:
                    self._connected = True
                    ending = await self._read(self._socket, content)
                    if ending is not None:
                        return ending
                    reason = "the server closed the connection"
            except InvalidStatus as exc:
                if exc.response.status_code < 500:
                    raise _refusal(exc) from exc
                reason = f"HTTP {exc.response.status_code}"
            except (OSError, InvalidHandshake, ConnectionClosed) as exc:
                reason = str(exc) or type(exc).__name__
            finally:
                self._socket = None
            await self._wait(reason)

    async def _wait(self, reason: str) -> None:
        """Wait before the next attempt, or give up."""
        if not self._connected or self._failures >= RETRIES:
            raise ServerUnreachable(self.server.url, reason)
        delay = min(FIRST_DELAY * 2**self._failures, LAST_DELAY)
        self._failures += 1
        self.watcher.note(f"connection lost ({reason}); trying again in {delay:.1f} s")
        await anyio.sleep(delay)

    async def _read(self, socket: ClientConnection, content: str) -> Ending | None:
        """Send the message or subscription, then read events. Returns None if the connection closed before the end."""
        if self.turn_id is None:  # a repeated message is recognised by its id
            await self._send("message", content=content, clientMessageId=self._client_message_id)
        else:
            await self._send("subscribe", turnId=self.turn_id, after=self.seq)
        if self._stop:
            await self._send("interrupt", turnId=self.turn_id)
        async for text in socket:
            raw = text if isinstance(text, str) else text.decode()
            ending = self._take(raw, json.loads(raw))
            if ending is not None:
                return ending
        return None

    def _take(self, raw: str, frame: Json) -> Ending | None:
        match frame:
            case {"type": "accepted", "clientMessageId": self._client_message_id, "turnId": turn_id}:
                self.turn_id = turn_id
            case {"type": "subscribed" | "pong" | "accepted"}:
                return None
            case {"type": "resync"}:
                return "resync"
            case {"type": "error", "code": code, "message": message} if "turnId" not in frame:
                raise RequestRefused(0, code, message)
            case {"type": "notice", "turnId": self.turn_id} if "seq" not in frame:  # about the stream, not the turn
                self.watcher.show(raw, frame)
            case {"type": kind, "turnId": self.turn_id, "seq": int(seq)} if seq > self.seq:
                self.seq, self._failures = seq, 0
                self.watcher.show(raw, frame)
                if kind in ("done", "error", "interrupted"):
                    ending: Ending = kind
                    return ending
        return None

    async def _send(self, kind: str, **fields: object) -> None:
        assert self._socket is not None
        members = {name: value for name, value in fields.items() if value is not None}
        await self._socket.send(json.dumps({"type": kind, "conversationId": self.conversation_id, **members}))


def _refusal(exc: InvalidStatus) -> RequestRefused:
    status = exc.response.status_code
    try:
        error = json.loads(exc.response.body or b"")["error"]
        return RequestRefused(status, str(error["code"]), str(error["message"]))
    except (ValueError, KeyError, TypeError):
        return RequestRefused(status, "REFUSED", f"the server refused the connection (HTTP {status})")
