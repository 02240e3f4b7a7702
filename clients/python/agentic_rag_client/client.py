"""A connection to an Agentic RAG server that outlives lost sockets.

One task owns the WebSocket. It reconnects with backoff, subscribes after the last event of each followed conversation,
and sends unacknowledged messages again under their ``clientMessageId``, which the server answers with the same turn.

Source of the protocol: the page "Native" of the server's documentation.
"""

import asyncio
import contextlib
import json
import random
import urllib.error
import urllib.request
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Literal, Self

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import InvalidHandshake, InvalidStatus, WebSocketException

from agentic_rag_client.view import ENDS, TurnView

Event = dict[str, Any]

FIRST_PAUSE_SECONDS = 0.3
LONGEST_PAUSE_SECONDS = 10.0
REQUEST_SECONDS = 60.0
LARGEST_FRAME_BYTES = 64 * 1024 * 1024
"""Limit of a received frame. Events are far smaller; the limit is there for a broken server."""


class ServerError(Exception):
    """The server refused a request. ``code``, ``message`` and ``details`` are those of the server's documentation."""

    def __init__(self, code: str, message: str, details: Mapping[str, Any] | None = None, status: int | None = None):
        super().__init__(f"{code}: {message}")
        self.code = code
        self.message = message
        self.details = dict(details or {})
        self.status = status
        """The HTTP status; None for a refusal on the WebSocket."""


class LogGone(Exception):
    """The server no longer stores the events of this turn. Load the messages of the conversation instead."""

    def __init__(self, conversation_id: str) -> None:
        super().__init__(f"The events of {conversation_id} are no longer stored. Load its messages.")
        self.conversation_id = conversation_id


@dataclass
class _Followed:
    """A followed conversation: the last event that was received, and the readers that wait for more."""

    turn_id: str | None = None
    seq: int = 0
    readers: set["_Reader"] = field(default_factory=set)

    def pass_on(self, event: Event | Exception) -> None:
        for reader in self.readers:
            reader.put_nowait(event)


class _Reader(asyncio.Queue[Event | Exception]):
    """Events that one iterator has not read yet, or the exception that ends them."""

    async def next(self) -> Event:
        item = await self.get()
        if isinstance(item, Exception):
            raise item
        return item


@dataclass
class _Request:
    """A frame that the server has not answered. ``attempts`` counts the connections on which it was sent."""

    frame: dict[str, Any]
    answer: asyncio.Future[Event]
    sent: bool = False
    attempts: int = 0


class Turn:
    """One turn: an asynchronous iterator of its events, and the view made of those that were read.

    Leaving the loop does not stop the turn. Use `Client.interrupt` for that.
    """

    def __init__(self, client: "Client", conversation_id: str, turn_id: str, reader: _Reader, after: int = 0) -> None:
        self.conversation_id = conversation_id
        self.id = turn_id
        self.view = TurnView(turn_id=turn_id, seq=after)
        self._client = client
        self._reader: _Reader | None = reader

    def __aiter__(self) -> AsyncIterator[Event]:
        return self

    async def __anext__(self) -> Event:
        """Return the next event.

        Raises:
            LogGone: the server no longer stores the events.
            ServerError: the server refuses this client.
        """
        while self._reader is not None:
            try:
                event = await self._reader.next()
            except Exception:
                self.close()
                raise
            if event.get("turnId") == self.id and self.view.add(event):
                if event["type"] in ENDS:
                    self.close()
                return event
        raise StopAsyncIteration

    async def finish(self) -> TurnView:
        """Read all events up to the end and return the view."""
        async for _ in self:
            pass
        return self.view

    def close(self) -> None:
        """Stop reading. The turn continues on the server."""
        if self._reader is not None:
            self._client._remove_reader(self.conversation_id, self._reader)
            self._reader = None


class Client:
    """A client of one server. Use it as an asynchronous context manager.

    Args:
        url: the server's address, ``http://`` or ``https://``.
        key: an API key (``arag_…``). A server without keys serves its own user without one.
    """

    def __init__(self, url: str = "http://127.0.0.1:8000", *, key: str | None = None) -> None:
        if not url.startswith(("http://", "https://")):
            raise ValueError(f"{url!r} is not the address of a server: it must start with http:// or https://")
        self.url = url.rstrip("/")
        self._headers = {"Authorization": f"Bearer {key}"} if key else {}
        self._followed: dict[str, _Followed] = {}
        self._requests: dict[str, _Request] = {}
        self._outbox: asyncio.Queue[str] | None = None
        """Frames for the open connection; None without one."""
        self._task: asyncio.Task[None] | None = None
        self._refusal: ServerError | None = None

    async def __aenter__(self) -> Self:
        self._refusal = None
        self._task = asyncio.create_task(self._stay_connected(), name="agentic-rag-client")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
        self._fail(ServerError("CLIENT_CLOSED", "The client was closed."))

    # REST

    async def call(self, method: str, path: str, body: Any = None) -> Any:
        """Send one REST request and return the JSON of the answer, or None if the answer is empty.

        Raises:
            ServerError: the server refused the request.
            OSError: the server cannot be reached.
        """
        return await asyncio.to_thread(self._call, method, path, body)

    def _call(self, method: str, path: str, body: Any) -> Any:
        headers = {**self._headers, "Accept": "application/json"}
        content = None
        if body is not None:
            content = json.dumps(body).encode()
            headers["Content-Type"] = "application/json"
        request = urllib.request.Request(self.url + path, content, headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=REQUEST_SECONDS) as response:
                text = response.read()
        except urllib.error.HTTPError as error:
            raise _read_refusal(error.code, error.read()) from None
        return json.loads(text) if text else None

    async def create_conversation(self, domain_id: str, **fields: Any) -> str:
        """Create a conversation in a domain and return its id."""
        created = await self.call("POST", "/api/conversations", {"domainId": domain_id, **fields})
        return str(created["id"])

    async def messages(self, conversation_id: str) -> list[dict[str, Any]]:
        """Return the newest page of a conversation's messages, oldest first."""
        page = await self.call("GET", f"/api/conversations/{conversation_id}/messages")
        return list(page["items"])

    # Turns

    async def send(
        self,
        conversation_id: str,
        content: str,
        *,
        images: Sequence[Mapping[str, Any]] | None = None,
        client_message_id: str | None = None,
        on_busy: Literal["queue"] | None = None,
    ) -> Turn:
        """Send a message and return its turn once the server has stored the message.

        The same ``client_message_id`` with the same content is the same turn, however often you send it.

        Raises:
            ServerError: the server refused the message, for example CONVERSATION_BUSY.
        """
        frame = {
            "type": "message",
            "conversationId": conversation_id,
            "content": content,
            "images": images,
            "clientMessageId": client_message_id or uuid.uuid4().hex,
            "onBusy": on_busy,
        }
        return await self._start(frame)

    async def retry(self, conversation_id: str, message_id: str) -> Turn:
        """Answer a message of the user again."""
        frame = {"type": "retry", "conversationId": conversation_id, "messageId": message_id}
        return await self._start({**frame, "clientMessageId": uuid.uuid4().hex})

    async def edit(self, conversation_id: str, message_id: str, content: str) -> Turn:
        """Answer a message of the user again with other words for it."""
        frame = {"type": "edit", "conversationId": conversation_id, "messageId": message_id, "content": content}
        return await self._start({**frame, "clientMessageId": uuid.uuid4().hex})

    def follow_turn(self, conversation_id: str, turn_id: str, *, after: int = 0) -> Turn:
        """Return a turn that began elsewhere or before a restart, from the event that follows number ``after``.

        The client follows one turn of a conversation at a time.
        """
        reader = self._add_reader(conversation_id)
        self._followed[conversation_id].turn_id = turn_id
        self._followed[conversation_id].seq = after
        self._subscribe(conversation_id)
        return Turn(self, conversation_id, turn_id, reader, after)

    async def follow(self, conversation_id: str) -> AsyncGenerator[Event, None]:
        """Yield the events of the running turn from its first one, then those of the conversation's next turns."""
        reader = self._add_reader(conversation_id)
        self._subscribe(conversation_id)
        try:
            while True:
                yield await reader.next()
        finally:
            self._remove_reader(conversation_id, reader)

    async def answer(
        self,
        conversation_id: str,
        wait_id: str,
        action: Literal["accept", "decline", "cancel"],
        content: Mapping[str, Any] | None = None,
    ) -> str:
        """Answer a wait and return its state. The first answer counts, also when this one was sent twice.

        Raises:
            ServerError: WAIT_ANSWERED, VALIDATION_ERROR and others.
        """
        frame = {"type": "answer", "conversationId": conversation_id, "waitId": wait_id, "action": action}
        reader = self._add_reader(conversation_id)  # as a reader of the conversation, so that the turn's events go on
        try:
            answered = await self._ask({**frame, "content": content})
        finally:
            self._remove_reader(conversation_id, reader)
        return str(answered["state"])

    async def interrupt(self, conversation_id: str) -> None:
        """Stop the conversation's running turn. The server keeps the text so far."""
        await self.call("POST", f"/api/conversations/{conversation_id}/interrupt")

    async def _start(self, frame: dict[str, Any]) -> Turn:
        conversation_id = frame["conversationId"]
        reader = self._add_reader(conversation_id)
        try:
            accepted = await self._ask(frame)
        except BaseException:
            self._remove_reader(conversation_id, reader)
            raise
        return Turn(self, conversation_id, accepted["turnId"], reader)

    # Requests and readers

    async def _ask(self, frame: dict[str, Any]) -> Event:
        request_id = uuid.uuid4().hex
        given = {name: value for name, value in frame.items() if value is not None}
        future: asyncio.Future[Event] = asyncio.get_running_loop().create_future()
        self._requests[request_id] = _Request({**given, "requestId": request_id}, future)
        try:
            self._send_requests()
            return await future
        finally:
            self._requests.pop(request_id, None)

    def _add_reader(self, conversation_id: str) -> _Reader:
        if self._refusal is not None:
            raise self._refusal
        if self._task is None or self._task.done():
            raise RuntimeError("the client is not open: use `async with Client(…) as client`")
        reader = _Reader()
        self._followed.setdefault(conversation_id, _Followed()).readers.add(reader)
        return reader

    def _remove_reader(self, conversation_id: str, reader: _Reader) -> None:
        followed = self._followed.get(conversation_id)
        if followed is not None:
            followed.readers.discard(reader)
            if not followed.readers:
                del self._followed[conversation_id]
                self._send({"type": "unsubscribe", "conversationId": conversation_id})

    def _subscribe(self, conversation_id: str) -> None:
        followed = self._followed[conversation_id]
        frame = {"type": "subscribe", "conversationId": conversation_id}
        self._send({**frame, "turnId": followed.turn_id, "after": followed.seq} if followed.turn_id else frame)

    def _send(self, frame: dict[str, Any]) -> None:
        """Queue a frame if there is a connection. A new connection subscribes and sends the requests again."""
        if self._outbox is not None:
            self._outbox.put_nowait(json.dumps(frame))

    def _send_requests(self) -> None:
        for request in self._requests.values():
            if self._outbox is not None and not request.sent:
                request.sent = True
                request.attempts += 1
                self._send(request.frame)

    def _fail(self, error: ServerError) -> None:
        for request in self._requests.values():
            if not request.answer.done():
                request.answer.set_exception(error)
        for followed in self._followed.values():
            followed.pass_on(error)

    # The connection

    async def _stay_connected(self) -> None:
        pause = FIRST_PAUSE_SECONDS
        while True:
            try:
                address = f"ws{self.url.removeprefix('http')}/ws"
                async with connect(address, additional_headers=self._headers, max_size=LARGEST_FRAME_BYTES) as socket:
                    pause = FIRST_PAUSE_SECONDS
                    await self._serve(socket)
            except InvalidStatus as error:
                if 400 <= error.response.status_code < 500 and error.response.status_code != 429:
                    self._refusal = _read_refusal(error.response.status_code, bytes(error.response.body or b""))
                    self._fail(self._refusal)
                    return
            except (WebSocketException, InvalidHandshake, OSError, TimeoutError):
                pass  # reconnect
            finally:
                self._outbox = None
                for request in self._requests.values():
                    request.sent = False
            await asyncio.sleep(pause * random.uniform(0.5, 1.0))
            pause = min(LONGEST_PAUSE_SECONDS, pause * 2)

    async def _serve(self, socket: ClientConnection) -> None:
        outbox = self._outbox = asyncio.Queue[str]()
        for conversation_id in self._followed:
            self._subscribe(conversation_id)
        self._send_requests()
        writer = asyncio.create_task(_write(socket, outbox))
        try:
            async for text in socket:
                self._receive(json.loads(text))
        finally:
            writer.cancel()
            with contextlib.suppress(asyncio.CancelledError, WebSocketException):
                await writer

    def _receive(self, frame: Event) -> None:
        kind = frame.get("type")
        request = self._requests.get(frame.get("requestId", ""))
        if kind == "error" and "turnId" not in frame:
            if request is not None and not request.answer.done():
                self._refuse(request, ServerError(frame["code"], frame["message"], frame.get("details")))
            elif frame["code"] in ("LOG_GONE", "TURN_NOT_FOUND"):
                self._lose_log(frame.get("conversationId"))
        elif kind in ("accepted", "answered"):
            if request is not None and not request.answer.done():
                request.answer.set_result(frame)
        elif kind == "resync":
            self._lose_log(frame.get("conversationId"))
        elif kind not in ("subscribed", "pong") and frame.get("conversationId") in self._followed:
            self._receive_event(frame)

    def _refuse(self, request: _Request, error: ServerError) -> None:
        if error.code == "WAIT_ANSWERED" and request.attempts > 1:  # perhaps by the frame whose reply was lost
            request.answer.set_result({"state": error.details.get("state", "")})
        else:
            request.answer.set_exception(error)

    def _receive_event(self, event: Event) -> None:
        followed = self._followed[event["conversationId"]]
        seq = event.get("seq")
        if seq is not None:
            same_turn = event["turnId"] == followed.turn_id
            if same_turn and seq <= followed.seq:
                return  # received before
            expected = followed.seq + 1 if same_turn else 1
            # A resumed turn continues at a higher number: its first event names the numbers that mean nothing.
            if seq > expected and followed.turn_id is not None and event["type"] != "resumed":
                self._subscribe(event["conversationId"])
                return
            followed.turn_id, followed.seq = event["turnId"], seq
        followed.pass_on(event)

    def _lose_log(self, conversation_id: str | None) -> None:
        for followed_id in [conversation_id] if conversation_id else list(self._followed):
            followed = self._followed.get(followed_id)
            if followed is not None:
                followed.turn_id, followed.seq = None, 0
                followed.pass_on(LogGone(followed_id))


async def _write(socket: ClientConnection, outbox: asyncio.Queue[str]) -> None:
    while True:
        await socket.send(await outbox.get())


def _read_refusal(status: int, body: bytes) -> ServerError:
    try:
        error = json.loads(body)["error"]
        return ServerError(error["code"], error["message"], error.get("details"), status)
    except (ValueError, KeyError, TypeError):
        text = body[:200].decode(errors="replace").strip()
        return ServerError(f"HTTP_{status}", text or "The server refused the request.", status=status)
