"""The WebSocket `/ws`: one socket, many conversations.

Tracks the conversations that a connection follows, and guarantees the order of its messages: `accepted` comes before
the turn's events, `subscribed` before the events it announces, and no event of a subscription after its replacement.
Knows no turn: closing a socket only ends its readers. Time limits of sends are in `agentic_rag.server.ws.connection`; a
send here either finishes or raises.

Each subscription is one task that pulls from the run log at the socket's pace, so a slow socket does not delay the
turn, and an idle socket holds no buffer. While the socket keeps up, the task sleeps and the log pushes: an event goes
from the turn to the socket in one call.
"""

import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Literal, Protocol, assert_never

import anyio
from anyio.abc import TaskGroup
from starlette.websockets import WebSocket, WebSocketDisconnect, WebSocketDisconnected

from agentic_rag.access.keys import KEYLESS
from agentic_rag.access.users import User
from agentic_rag.base.errors import (
    AgenticRagError,
    LogGone,
    NotFound,
    RateLimited,
    TooManySubscriptions,
)
from agentic_rag.base.events import AgentEvent, WaitAction
from agentic_rag.base.ids import ConversationId, MessageId, SessionId, TurnId, WaitId
from agentic_rag.base.json_form import Json
from agentic_rag.base.redaction import Redactor
from agentic_rag.base.telemetry import continuing
from agentic_rag.conversations.naming import TitleNews
from agentic_rag.conversations.sent_images import GivenImage
from agentic_rag.runtime.notifier import Notifier
from agentic_rag.server.auth import Caller, caller_of
from agentic_rag.server.dialects import DEFAULT_DIALECT, choose_dialect, get_codec, get_dialect, join, joins_repeats
from agentic_rag.server.dialects import PARAMETER as DIALECT_PARAMETER
from agentic_rag.server.dialects.base import Dialect
from agentic_rag.server.dialects.chat import Chat
from agentic_rag.server.dialects.native import Native
from agentic_rag.server.dialects.settled import settle
from agentic_rag.server.replies import POLICY_VIOLATION, redaction_for, refusal, request_id, send_refusal, socket_error
from agentic_rag.server.ws import frames
from agentic_rag.server.ws.connection import (
    CLOSE_SECONDS,
    MAX_FRAME_BYTES,
    TOO_LARGE,
    ConnectionGone,
    PlainConnection,
    SocketConnection,
    fast_connection,
)
from agentic_rag.server.ws.frames import (
    AcceptedReply,
    AnsweredReply,
    AnswerFrame,
    EditFrame,
    InterruptFrame,
    MessageFrame,
    PingFrame,
    PongReply,
    Reply,
    ResyncReply,
    RetryFrame,
    SubscribedReply,
    SubscribeFrame,
    UnsubscribeFrame,
)

log = logging.getLogger("agentic_rag.server")

MAX_SUBSCRIPTIONS = 200
"""Maximum conversations that one socket may follow."""

MAX_REFUSED_FRAMES = 200
"""Number of consecutive frames over the rate limit after which a socket is closed."""

PIECE_BYTES = 64 * 1024
"""Approximate size of the pieces in which a replay is written."""

_GONE = (WebSocketDisconnect, WebSocketDisconnected, ConnectionGone)
"""Exceptions of a send on a closed connection: ASGI's first one, ASGI's others, and a `SocketConnection`'s."""


# Protocols of the layers below. Tests implement them with conversations in memory.


class FollowedConversation(Protocol):
    """A conversation's record, as far as a socket needs it."""

    @property
    def session_id(self) -> SessionId: ...


class FollowedTurn(Protocol):
    """A turn's record, as far as a socket needs it."""

    @property
    def conversation_id(self) -> ConversationId: ...


class AcceptedTurn(Protocol):
    """The business layer's answer to a message."""

    @property
    def turn_id(self) -> TurnId: ...
    @property
    def user_message_id(self) -> MessageId: ...
    @property
    def message_id(self) -> MessageId: ...
    @property
    def client_message_id(self) -> str | None: ...
    @property
    def duplicate(self) -> bool: ...
    @property
    def queued(self) -> bool: ...


class Reader(Protocol):
    """A reader of a turn's events; see `agentic_rag.runtime.log.reader.LogReader`."""

    async def check(self) -> None:
        """Check that the log still covers the reader's start; raises `LogGone`."""
        ...

    async def next(self, push: Callable[[Sequence[AgentEvent]], int], /) -> Sequence[AgentEvent]: ...


class Turns(Protocol):
    """The part of the runtime that a socket needs."""

    @property
    def shared(self) -> bool:
        """Whether turns may begin in other processes, so that the next turn must be looked up in the store."""
        ...

    async def find_running(self, session_id: SessionId) -> TurnId | None: ...
    def read(self, turn_id: TurnId, after: int = 0) -> Reader: ...
    async def next_turn(self, session_id: SessionId, after: TurnId | None = None) -> TurnId: ...


class ConversationService(Protocol):
    """The part of the business layer that a socket needs. Another user's id raises NotFound."""

    async def get(self, user: User, conversation_id: ConversationId, /) -> FollowedConversation: ...
    async def turn(self, user: User, turn_id: TurnId, /) -> FollowedTurn: ...
    async def is_first_turn(self, user: User, turn_id: TurnId, /) -> bool: ...
    async def send(
        self,
        user: User,
        conversation_id: ConversationId,
        content: str,
        /,
        *,
        client_message_id: str | None = None,
        on_busy: Literal["reject", "queue", "join"] = "reject",
        images: Sequence[GivenImage] = (),
        model: str | None = None,
        attachments: Sequence[str] = (),
    ) -> AcceptedTurn: ...
    async def answer_again(
        self,
        user: User,
        conversation_id: ConversationId,
        message_id: MessageId,
        content: str | None = None,
        /,
        *,
        client_message_id: str | None = None,
        model: str | None = None,
    ) -> AcceptedTurn: ...
    async def interrupt(
        self, user: User, conversation_id: ConversationId, /, *, turn_id: TurnId | None = None, queued: bool = False
    ) -> bool: ...


class AnsweredWait(Protocol):
    """A wait's record, as far as a socket needs it."""

    @property
    def id(self) -> WaitId: ...
    @property
    def state(self) -> str: ...


class WaitService(Protocol):
    """Stores answers to waits. Another user's id raises NotFound."""

    async def answer(self, user: User, wait_id: WaitId, action: WaitAction, content: Json, /) -> AnsweredWait: ...


ReplayCheck = Callable[[User, TurnId], Awaitable[None]]
"""Raises `LogGone` if a user may not read the log of a turn again."""


async def _allow_replay(user: User, turn_id: TurnId) -> None:
    pass


def websocket_endpoint(
    conversations: ConversationService,
    turns: Turns,
    waits: WaitService,
    redactor: Redactor,
    default_dialect: str = DEFAULT_DIALECT,
    *,
    news: TitleNews | None = None,
    check_replay: ReplayCheck = _allow_replay,
) -> Callable[[WebSocket], Awaitable[None]]:
    """Return the endpoint of `/ws`. The guard has already identified the user.

    ``redactor`` removes secrets from errors, which may quote a frame. ``default_dialect`` is for clients that ask for
    none. ``news`` sends titles between turns. ``check_replay`` refuses the log of a turn to a user who may no longer
    see the documents in it.
    """
    news = news or TitleNews()

    async def endpoint(websocket: WebSocket) -> None:
        caller, reference = caller_of(websocket.scope), request_id(websocket.scope)
        try:
            requested = websocket.query_params.get(DIALECT_PARAMETER)
            dialect, subprotocol = choose_dialect(websocket.scope["subprotocols"], requested, default_dialect)
            caller.check_connections()
        except AgenticRagError as exc:
            await caller.note_refusal(exc, "WS", websocket.url.path, reference)
            response = refusal(exc, reference, redaction_for(redactor, caller.user))
            await send_refusal(response, websocket.scope, websocket.receive, websocket.send)
            return
        with anyio.CancelScope() as lifetime, caller.connection(lifetime):
            await websocket.accept(subprotocol)
            connection = fast_connection(websocket.scope) or PlainConnection(websocket)
            socket = Socket(
                websocket, connection, caller, conversations, turns, waits, dialect, redactor, news, check_replay
            )
            serve = partial(_serve_plainly, connection) if isinstance(connection, PlainConnection) else Socket.serve
            closing = await serve(socket)
        if lifetime.cancelled_caught:
            keyless = caller.entrant.key_id == KEYLESS
            closing = Closing(POLICY_VIOLATION, "A key is needed now." if keyless else "The key was revoked.")
        if closing is not None:
            with suppress(*_GONE), anyio.move_on_after(CLOSE_SECONDS):
                await websocket.close(closing.code, closing.reason)

    return endpoint


async def _serve_plainly(connection: PlainConnection, socket: "Socket") -> "Closing | None":
    """Serve a socket while another task sends its output. A peer that cannot be reached ends it."""
    closing: Closing | None = None

    async def relay() -> None:
        await connection.relay()
        tasks.cancel_scope.cancel()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(relay)
        closing = await socket.serve()
        if closing is not None:
            await connection.drain()
        tasks.cancel_scope.cancel()
    return closing


@dataclass(frozen=True, slots=True)
class Closing:
    """How the server ends a connection (RFC 6455)."""

    code: int
    reason: str


@dataclass(slots=True, eq=False)
class Subscription:
    """One conversation that a socket follows. ``turn`` is followed from ``after``; None means the next turn to start.

    ``ahead`` holds turns that this socket has started and not yet read, so that a slow reader does not skip them.
    """

    conversation_id: ConversationId
    session_id: SessionId | None = None
    turn: TurnId | None = None
    after: int = 0
    ahead: list[TurnId] = field(default_factory=list)
    scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)
    joined: bool = False
    """Whether the turn was already running when the client repeated its message."""
    waiting: bool = False
    """Whether the reader waits for nothing but the next turn."""
    last: TurnId | None = None
    """The turn before the awaited one; None: the first turn."""
    replays: bool = False
    """Whether the client asked for this turn by its id, so that the turn may have ended long ago."""


class Socket:
    """One accepted connection, from its first frame to its end."""

    __slots__ = (
        "_announced",
        "_business",
        "_caller",
        "_check_replay",
        "_codec",
        "_connection",
        "_dialect",
        "_news",
        "_readers",
        "_redactor",
        "_refused",
        "_subscriptions",
        "_turns",
        "_user",
        "_waits",
        "_ws",
    )

    def __init__(
        self,
        websocket: WebSocket,
        connection: SocketConnection,
        caller: Caller,
        business: ConversationService,
        turns: Turns,
        waits: WaitService,
        dialect: str,
        redactor: Redactor,
        news: TitleNews,
        check_replay: ReplayCheck,
    ) -> None:
        self._check_replay = check_replay
        self._ws = websocket
        self._connection = connection
        self._caller = caller
        self._user = caller.user
        self._refused = 0
        self._business = business
        self._turns = turns
        self._waits = waits
        self._dialect = dialect
        self._codec = get_codec(dialect)
        self._redactor = redactor
        self._news = news
        self._subscriptions: dict[str, Subscription] = {}
        self._readers: TaskGroup
        # Set before a message is accepted, until `accepted` is sent: no reader begins a turn meanwhile.
        self._announced: Notifier | None = None

    async def serve(self) -> Closing | None:
        """Answer frames until the connection ends. Returns how to close it, if the server has to close it."""
        closing: Closing | None = None
        async with anyio.create_task_group() as self._readers:
            try:
                closing = await self._answer_frames()
            except _GONE:
                pass  # noticed on a send
            finally:
                for conversation_id in tuple(self._subscriptions):
                    self._drop(ConversationId(conversation_id))
                self._readers.cancel_scope.cancel()
        return closing

    async def _answer_frames(self) -> Closing | None:
        while self._refused < MAX_REFUSED_FRAMES:
            message = await self._ws.receive()
            if message["type"] == "websocket.disconnect":
                return None
            text = message.get("text")
            if text is not None and len(text) > MAX_FRAME_BYTES:
                return Closing(TOO_LARGE, "The frame is too large.")
            await self._answer(text)
        return Closing(POLICY_VIOLATION, "Too many frames.")

    async def _answer(self, text: str | None) -> None:
        value: Json = {}
        kind = ""
        try:
            self._take_request()
            value = frames.read_object(text)
            frame = self._codec.read(value)
            kind = str(value["type"])
            await self._obey(frame)
        except _GONE:
            raise
        except Exception as exc:
            error, origin = socket_error(exc), frames.origin_of(value)
            target = origin.get("conversationId", "")
            await self._caller.note_refusal(error, f"WS {kind}".rstrip(), target, request_id(self._ws.scope))
            await self._send(self._refuse(error, origin))

    def _take_request(self) -> None:
        """Count a frame. A frame over the limit is not read."""
        try:
            self._caller.take_request()
        except RateLimited:
            self._refused += 1
            raise
        self._refused = 0

    async def _obey(self, frame: frames.ClientFrame) -> None:
        match frame:
            case MessageFrame() | RetryFrame():
                await self._begin_turn(frame)
            case SubscribeFrame():
                await self._subscribe(frame)
            case UnsubscribeFrame():
                self._drop(frame.conversation_id)
            case InterruptFrame():
                await self._business.interrupt(
                    self._user, frame.conversation_id, turn_id=frame.turn_id, queued=frame.queued
                )
            case AnswerFrame():
                content = dict(frame.content or {})
                wait = await self._waits.answer(self._user, WaitId(frame.wait_id), WaitAction(frame.action), content)
                await self._send(AnsweredReply(wait.id, wait.state, frame.request_id))
            case PingFrame():
                await self._send(PongReply(frame.request_id))
            case _:
                assert_never(frame)

    async def _accept(self, frame: MessageFrame | RetryFrame) -> AcceptedTurn:
        if isinstance(frame, RetryFrame):
            content = frame.content if isinstance(frame, EditFrame) else None
            return await self._business.answer_again(
                self._user,
                frame.conversation_id,
                frame.message_id,
                content,
                client_message_id=frame.client_message_id,
                model=frame.model,
            )
        return await self._business.send(
            self._user,
            frame.conversation_id,
            frame.content,
            client_message_id=frame.client_message_id,
            on_busy="join" if frame.on_busy == "reject" and joins_repeats(self._dialect) else frame.on_busy,
            images=frame.images,
            model=frame.model,
            attachments=frame.attachments,
        )

    async def _begin_turn(self, frame: MessageFrame | RetryFrame) -> None:
        self._check_room(frame.conversation_id)
        self._caller.take_message()
        self._announced = announced = Notifier()
        try:
            with continuing(frame.traceparent):
                accepted = await self._accept(frame)
            reply = AcceptedReply(
                frame.conversation_id,
                accepted.turn_id,
                accepted.user_message_id,
                accepted.message_id,
                accepted.client_message_id,
                accepted.queued,
                frame.request_id,
            )
            # Room first: from here to the last write nothing waits, so the order of the frames is fixed.
            await self._connection.room()
            reader = self._subscriptions.get(frame.conversation_id)
            woken = reader is not None and self._wakes(reader, accepted)
            if woken:  # its reader runs next: its first events are sent in the same write
                self._connection.hold(self._codec.encode(reply))
            else:
                self._connection.write(self._codec.encode(reply))
            self._follow_sent(frame.conversation_id, accepted, woken=woken)
        finally:
            self._announced = None
            announced.happen()

    def _follow_sent(self, conversation_id: ConversationId, accepted: AcceptedTurn, *, woken: bool) -> None:
        """Follow the turn of a message. ``woken`` means that its reader is about to follow it."""
        current = self._subscriptions.get(conversation_id)
        if current is None:
            self._start(Subscription(conversation_id, turn=accepted.turn_id, joined=accepted.duplicate))
        elif accepted.turn_id in current.ahead:
            return  # a repeated message of a turn that has not been read yet
        elif accepted.duplicate:
            again = Subscription(conversation_id, current.session_id, accepted.turn_id, ahead=current.ahead)
            again.joined = True
            self._start(again)
        elif current.waiting and not woken:
            self._start(Subscription(conversation_id, current.session_id, accepted.turn_id, ahead=current.ahead[:]))
        else:
            current.ahead.append(accepted.turn_id)

    def _wakes(self, reader: Subscription, accepted: AcceptedTurn) -> bool:
        """Return whether an accepted message has woken a reader that waits for exactly this turn."""
        knows_next = reader.last is not None and not self._turns.shared  # also if it has already ended
        return reader.waiting and knows_next and not (accepted.queued or accepted.duplicate)

    async def _subscribe(self, frame: SubscribeFrame) -> None:
        self._check_room(frame.conversation_id)
        record = await self._business.get(self._user, frame.conversation_id)
        turn_id = frame.turn_id
        if turn_id is None:
            turn_id = await self._turns.find_running(record.session_id)
        elif (await self._business.turn(self._user, turn_id)).conversation_id != frame.conversation_id:
            raise NotFound("turn", turn_id)
        after = frame.after or 0
        # The old reader ends first, so that none of its events follows `subscribed`.
        self._drop(frame.conversation_id)
        await self._send(SubscribedReply(frame.conversation_id, turn_id, after, frame.request_id))
        replays = frame.turn_id is not None
        self._start(Subscription(frame.conversation_id, record.session_id, turn_id, after, replays=replays))

    def _check_room(self, conversation_id: ConversationId) -> None:
        if conversation_id in self._subscriptions:
            return
        if len(self._subscriptions) >= MAX_SUBSCRIPTIONS:
            raise TooManySubscriptions(0, MAX_SUBSCRIPTIONS)
        self._caller.check_subscriptions()

    def _start(self, subscription: Subscription) -> None:
        self._drop(subscription.conversation_id)
        self._subscriptions[subscription.conversation_id] = subscription
        self._caller.count_subscriptions(1)
        self._news.listen(subscription.conversation_id, self)
        self._readers.start_soon(self._read, subscription)

    def _drop(self, conversation_id: ConversationId) -> None:
        dropped = self._subscriptions.pop(conversation_id, None)
        if dropped is not None:
            self._caller.count_subscriptions(-1)
            self._news.unlisten(conversation_id, self)
            dropped.scope.cancel()

    # One subscription's task

    async def _read(self, subscription: Subscription) -> None:
        with subscription.scope, suppress(*_GONE):  # `serve` gets the same error from the connection
            try:
                await self._relay_turns(subscription)
            except _GONE:
                raise
            except Exception as exc:
                error = self._refuse(socket_error(exc), {"conversationId": subscription.conversation_id})
                await self._emit(subscription, error)
            if self._is_current(subscription):
                self._drop(subscription.conversation_id)

    async def _relay_turns(self, subscription: Subscription) -> None:
        turn, after = subscription.turn, subscription.after
        while True:
            if turn is None:
                turn = await self._next(subscription)
            try:
                if subscription.replays:
                    subscription.replays = False
                    await self._check_replay(self._user, turn)
                await self._relay(subscription, turn, after)
            except LogGone as exc:
                await self._emit(subscription, ResyncReply(subscription.conversation_id, turn, str(exc)))
            turn, after, subscription.last = None, 0, turn

    async def _open_reader(self, turn: TurnId, after: int, *, from_start: bool) -> Reader:
        """Return a reader of a turn's events, after ``after`` or from the start.

        Raises:
            LogGone: the log no longer covers ``after``.
        """
        if from_start and after:
            await self._turns.read(turn, after).check()
        return self._turns.read(turn, 0 if from_start else after)

    async def _encoder(self, turn: TurnId, after: int) -> Dialect:
        dialect = get_dialect(self._dialect)
        if isinstance(dialect, Chat):
            dialect = Chat(new_session=await self._business.is_first_turn(self._user, turn))
        return join(dialect, after)

    async def _relay(self, subscription: Subscription, turn: TurnId, after: int) -> None:
        encoder = await self._encoder(turn, after)
        encode, is_native = encoder.frames, isinstance(encoder, Native)

        # Looked up once: `push` runs for every delta.
        conversation_id, offer, followed = subscription.conversation_id, self._connection.offer, self._subscriptions.get

        def push(events: Sequence[AgentEvent]) -> int:
            if is_native and len(events) == 1:  # mostly a delta, whose frame is the event's JSON
                return 1 if followed(conversation_id) is subscription and offer(events[0].data) else 0
            if not self._connection.ready or not self._is_current(subscription) or encoder.ended:
                return 0
            texts: list[bytes] = []
            sent_count = size = 0
            for event in events:
                encoded = (event.data,) if is_native else encode(event)
                for text in encoded:
                    texts.append(text)
                    size += len(text)
                sent_count += 1
                if size >= PIECE_BYTES or encoder.ended:
                    break
            if texts:
                self._connection.write(texts)
            return sent_count

        reader = await self._open_reader(turn, after, from_start=encoder.needs_start)
        events = await reader.next(push)
        if subscription.joined and joins_repeats(self._dialect):  # this dialect cannot retract text
            events, subscription.joined = settle(events), False
        while events:
            while events:  # `push` takes a piece at a time, so that a long replay waits for room between its pieces
                await self._connection.room()
                if not self._is_current(subscription) or encoder.ended:
                    return
                events = events[push(events) :]
            events = await reader.next(push)

    async def _next(self, subscription: Subscription) -> TurnId:
        """Return the next turn to read: one that this socket started, else the next one to start."""
        if subscription.ahead:
            return subscription.ahead.pop(0)
        session_id = await self._session(subscription)
        subscription.waiting = True
        coming = await self._turns.next_turn(session_id, subscription.last)
        subscription.waiting = False
        if self._announced is not None:  # a message is being accepted: `accepted` goes out before its turn's events
            await self._announced.wait()
        # If messages were accepted during the wait, their turns are read in the order of acceptance.
        return subscription.ahead.pop(0) if coming in subscription.ahead else coming

    async def _session(self, subscription: Subscription) -> SessionId:
        if subscription.session_id is None:
            record = await self._business.get(self._user, subscription.conversation_id)
            subscription.session_id = record.session_id
        return subscription.session_id

    # Sending

    def hear_title(self, conversation_id: ConversationId, event: AgentEvent) -> None:
        """Send a title between turns, if the socket is ready and its dialect allows messages outside turns."""
        dialect = get_dialect(self._dialect)
        if self._connection.ready and conversation_id in self._subscriptions and not dialect.needs_start:
            self._connection.write(dialect.frames(event))

    def _is_current(self, subscription: Subscription) -> bool:
        return self._subscriptions.get(subscription.conversation_id) is subscription

    async def _emit(self, subscription: Subscription, reply: Reply) -> None:
        """Send for a subscription, unless it was replaced or dropped during the wait for room."""
        await self._connection.room()
        if self._is_current(subscription):
            self._connection.write(self._codec.encode(reply))

    async def _send(self, reply: Reply) -> None:
        await self._connection.room()
        self._connection.write(self._codec.encode(reply))

    def _refuse(self, error: AgenticRagError, origin: dict[str, str]) -> frames.ErrorReply:
        redact = redaction_for(self._redactor, self._user)
        return frames.refuse(error, origin, redact, whole=self._user.operator)
