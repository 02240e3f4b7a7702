"""The WebSocket `/ws`: one socket, many conversations.

Owns what one connection follows and the order of what it is sent: `accepted` before the turn's events,
`subscribed` before what it promises, nothing of a subscription after it was replaced. Knows no turn: a socket
that closes ends its readers and nothing else. How long a send may take and when a peer is cut is
``wsprotocol``'s; a send here either finishes or raises.

Each subscription is one task that pulls from the run log at the socket's pace, so a slow socket costs the turn
nothing and an idle one holds no buffer. While the socket takes all it is sent, the task sleeps and the log pushes:
an event goes from the turn to the socket in one call.
"""

import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import assert_never

import anyio
from anyio.abc import TaskGroup
from starlette.websockets import WebSocket, WebSocketDisconnect, WebSocketDisconnected
from uvicorn.protocols.utils import ClientDisconnected

from agentic_rag.access.users import User
from agentic_rag.errors import AgenticRagError, InternalError, LogGone, NotFound, RateLimited, TooManySubscriptions
from agentic_rag.events import AgentEvent
from agentic_rag.server import frames
from agentic_rag.server.auth import caller_of
from agentic_rag.server.dialects import choose_dialect, get_dialect
from agentic_rag.server.frames import InterruptFrame, MessageFrame, PingFrame, SubscribeFrame, UnsubscribeFrame
from agentic_rag.server.gate import Caller
from agentic_rag.server.replies import Redact, refusal, request_id
from agentic_rag.server.ws_needs import Accepted, ConversationService, Turns, Wire
from agentic_rag.server.wsprotocol import EXTENSION
from agentic_rag.store.clock import new_id

__all__ = ["ConversationService", "Turns", "websocket_endpoint"]

log = logging.getLogger("agentic_rag.server")

MAX_SUBSCRIPTIONS = 200
"""Conversations one socket may follow."""

MAX_REFUSED_FRAMES = 200
"""A socket that goes on after so many frames in a row came too fast is closed."""

REFUSED = 1008
"""Close code "policy violation" (RFC 6455): the key was revoked, or frames came too fast for too long."""

PIECE_BYTES = 64 * 1024
"""Events of a replay are written in pieces of about this size."""

_GONE = (WebSocketDisconnect, WebSocketDisconnected, ClientDisconnected)
"""What a send raises when the connection ended: the first one of them, each one after it, and the short way's."""


def websocket_endpoint(
    conversations: ConversationService,
    turns: Turns,
    redact: Callable[[User], Redact] = lambda user: lambda value: value,
) -> Callable[[WebSocket], Awaitable[None]]:
    """Return the endpoint of `/ws`. The guard around the application has found the user before.

    ``redact`` gives for a user what takes secrets out of an error, which may name what a frame said.
    """

    async def endpoint(websocket: WebSocket) -> None:
        caller, reference = caller_of(websocket.scope), request_id(websocket.scope)
        try:
            dialect, subprotocol = choose_dialect(websocket.scope["subprotocols"])
            caller.check_connections()
        except AgenticRagError as exc:
            await caller.refused(exc, "WS", websocket.url.path, reference)
            await websocket.send_denial_response(refusal(exc, reference, redact(caller.user)))
            return
        with anyio.CancelScope() as held, caller.connection(held):
            await websocket.accept(subprotocol)
            await Socket(websocket, caller, conversations, turns, dialect, redact).serve()
        if held.cancelled_caught:
            with suppress(*_GONE):
                await websocket.close(REFUSED, "The key was revoked.")

    return endpoint


@dataclass(slots=True, eq=False)
class Subscription:
    """One conversation that a socket follows. ``turn`` is followed after ``after``; None: the next to start.

    ``ahead`` are turns this socket has started and not yet read: a reader that is behind must not skip them.
    """

    conversation_id: str
    session_id: str | None = None
    turn: str | None = None
    after: int = 0
    ahead: list[str] = field(default_factory=list)
    scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)
    waiting: anyio.CancelScope | None = None


class Socket:
    """One accepted connection, from its first frame to its end."""

    __slots__ = (
        "_announced",
        "_business",
        "_caller",
        "_dialect",
        "_readers",
        "_redact",
        "_refused",
        "_subscriptions",
        "_turns",
        "_user",
        "_wire",
        "_ws",
    )

    def __init__(
        self,
        websocket: WebSocket,
        caller: Caller,
        business: ConversationService,
        turns: Turns,
        dialect: str,
        redact: Callable[[User], Redact],
    ) -> None:
        self._ws = websocket
        self._caller = caller
        self._user = caller.user
        self._refused = 0
        self._business = business
        self._turns = turns
        self._dialect = dialect
        self._redact = redact
        self._subscriptions: dict[str, Subscription] = {}
        self._readers: TaskGroup
        self._wire: Wire = websocket.scope["extensions"][EXTENSION]["wire"]
        # Unset from before a message is accepted until `accepted` is sent: no reader begins a turn meanwhile.
        self._announced: anyio.Event | None = None

    async def serve(self) -> None:
        """Answer frames until the connection ends, however it ends."""
        async with anyio.create_task_group() as self._readers:
            try:
                while self._refused < MAX_REFUSED_FRAMES:
                    message = await self._ws.receive()
                    if message["type"] == "websocket.disconnect":
                        break
                    await self._answer(message.get("text"))
                else:
                    await self._ws.close(REFUSED, "Too many frames.")
            except _GONE:
                pass  # noticed while sending
            finally:
                self._caller.count_subscriptions(-len(self._subscriptions))
                self._subscriptions.clear()
                self._readers.cancel_scope.cancel()

    async def _answer(self, text: str | None) -> None:
        known: dict[str, str] = {}
        kind = ""
        try:
            self._take_request()
            value = frames.read_object(text)
            known = frames.origin(value)
            frame = frames.read_frame(value)
            kind = str(value["type"])
            await self._obey(frame)
        except _GONE:
            raise
        except Exception as exc:
            error = _refusal(exc)
            target = known.get("conversationId", "")
            await self._caller.refused(error, f"WS {kind}".rstrip(), target, request_id(self._ws.scope))
            await self._send(frames.error(error, known, self._redact(self._user)))

    def _take_request(self) -> None:
        """Count a frame; it is not even read when there were too many."""
        try:
            self._caller.take_request()
        except RateLimited:
            self._refused += 1
            raise
        self._refused = 0

    async def _obey(self, frame: frames.ClientFrame) -> None:
        match frame:
            case MessageFrame():
                await self._message(frame)
            case SubscribeFrame():
                await self._subscribe(frame)
            case UnsubscribeFrame():
                self._drop(frame.conversation_id)
            case InterruptFrame():
                await self._business.interrupt(
                    self._user, frame.conversation_id, turn_id=frame.turn_id, queued=frame.queued
                )
            case PingFrame():
                await self._send(frames.reply("pong", requestId=frame.request_id))
            case _:
                assert_never(frame)

    async def _message(self, frame: MessageFrame) -> None:
        self._check_room(frame.conversation_id)
        self._caller.take_message()
        self._announced = anyio.Event()
        try:
            accepted = await self._business.send(
                self._user,
                frame.conversation_id,
                frame.content,
                client_message_id=frame.client_message_id,
                on_busy=frame.on_busy,
            )
            await self._send(
                frames.reply(
                    "accepted",
                    conversationId=frame.conversation_id,
                    turnId=accepted.turn_id,
                    clientMessageId=accepted.client_message_id,
                    userMessageId=accepted.user_message_id,
                    messageId=accepted.message_id,
                    queued=accepted.queued or None,
                    requestId=frame.request_id,
                )
            )
            self._follow_sent(frame.conversation_id, accepted)
        finally:
            self._announced.set()
            self._announced = None

    def _follow_sent(self, conversation_id: str, accepted: Accepted) -> None:
        current = self._subscriptions.get(conversation_id)
        if current is None:
            self._start(Subscription(conversation_id, turn=accepted.turn_id))
        elif accepted.turn_id in current.ahead:
            return  # a repeated send of a turn that is still to come
        elif accepted.duplicate:
            again = Subscription(conversation_id, current.session_id, accepted.turn_id, ahead=current.ahead)
            self._start(again)
        else:
            current.ahead.append(accepted.turn_id)
            if current.waiting is not None:
                current.waiting.cancel()

    async def _subscribe(self, frame: SubscribeFrame) -> None:
        self._check_room(frame.conversation_id)
        record = await self._business.get(self._user, frame.conversation_id)
        turn_id = frame.turn_id
        if turn_id is None:
            turn_id = self._turns.running(record.session_id)
        elif (await self._business.turn(self._user, turn_id)).conversation_id != frame.conversation_id:
            raise NotFound("turn", turn_id)
        after = frame.after or 0
        self._drop(frame.conversation_id)
        await self._send(
            frames.reply(
                "subscribed",
                conversationId=frame.conversation_id,
                turnId=turn_id,
                seq=after,
                requestId=frame.request_id,
            )
        )
        self._start(Subscription(frame.conversation_id, record.session_id, turn_id, after))

    def _check_room(self, conversation_id: str) -> None:
        if conversation_id in self._subscriptions:
            return
        if len(self._subscriptions) >= MAX_SUBSCRIPTIONS:
            raise TooManySubscriptions(0, MAX_SUBSCRIPTIONS)
        self._caller.check_subscriptions()

    def _start(self, subscription: Subscription) -> None:
        self._drop(subscription.conversation_id)
        self._subscriptions[subscription.conversation_id] = subscription
        self._caller.count_subscriptions(1)
        self._readers.start_soon(self._read, subscription)

    def _drop(self, conversation_id: str) -> None:
        dropped = self._subscriptions.pop(conversation_id, None)
        if dropped is not None:
            self._caller.count_subscriptions(-1)
            dropped.scope.cancel()

    # One subscription's task

    async def _read(self, subscription: Subscription) -> None:
        with subscription.scope, suppress(*_GONE):  # `serve` is told of the end by the same connection
            try:
                await self._relay_turns(subscription)
            except _GONE:
                raise
            except Exception as exc:
                known = {"conversationId": subscription.conversation_id}
                text = frames.error(_refusal(exc), known, self._redact(self._user))
                await self._emit(subscription, [text.encode()])
            if self._is_current(subscription):
                self._drop(subscription.conversation_id)

    async def _relay_turns(self, subscription: Subscription) -> None:
        turn, after = subscription.turn, subscription.after
        last: str | None = None
        while True:
            if turn is None:
                turn = await self._next(subscription, last)
            try:
                await self._relay(subscription, turn, after)
            except LogGone as exc:
                text = frames.reply("resync", conversationId=subscription.conversation_id, turnId=turn, reason=str(exc))
                await self._emit(subscription, [text.encode()])
            turn, after, last = None, 0, turn

    async def _relay(self, subscription: Subscription, turn: str, after: int) -> None:
        encode = get_dialect(self._dialect).frame

        def push(events: Sequence[AgentEvent]) -> int:
            if not self._wire.ready or not self._is_current(subscription):
                return 0
            texts: list[bytes] = []
            size = 0
            for event in events:
                texts.append(encode(event))
                size += len(texts[-1])
                if size >= PIECE_BYTES:
                    break
            self._wire.write([text for text in texts if text])
            return len(texts)

        reader = self._turns.read(turn, after)
        while events := await reader.next(push):
            while events:
                await self._wire.room()
                if not self._is_current(subscription):
                    return
                events = events[push(events) :]

    async def _next(self, subscription: Subscription, last: str | None) -> str:
        """Return the turn to read after ``last``: one this socket started, else the next one to start."""
        found: str | None = None
        if not subscription.ahead:
            session_id = await self._session(subscription)
            with anyio.CancelScope() as subscription.waiting:
                found = await self._turns.next_turn(session_id, last)
            subscription.waiting = None
            if self._announced is not None:
                await self._announced.wait()
        if found is None or found in subscription.ahead:
            return subscription.ahead.pop(0)
        return found

    async def _session(self, subscription: Subscription) -> str:
        if subscription.session_id is None:
            record = await self._business.get(self._user, subscription.conversation_id)
            subscription.session_id = record.session_id
        return subscription.session_id

    # Sending

    def _is_current(self, subscription: Subscription) -> bool:
        return self._subscriptions.get(subscription.conversation_id) is subscription

    async def _emit(self, subscription: Subscription, texts: Sequence[bytes]) -> None:
        """Send for a subscription, unless it was replaced or dropped while this waited for room."""
        await self._wire.room()
        if self._is_current(subscription):
            self._wire.write([text for text in texts if text])

    async def _send(self, text: str) -> None:
        await self._ws.send({"type": "websocket.send", "text": text})


def _refusal(exc: Exception) -> AgenticRagError:
    """Return what the client is told; an error nobody expected is logged under the reference it is told."""
    if isinstance(exc, AgenticRagError):
        return exc
    reference = new_id("req")
    log.error("websocket %s failed", reference, exc_info=exc)
    return InternalError(reference)
