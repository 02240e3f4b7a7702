"""Read-only Durable Streams protocol over a turn's log, with which clients catch up, resume and tail.

This module handles offsets, the three ways of reading, and their headers. A turn is a stream of JSON messages, which
are its events in the native dialect. The end of the turn closes the stream. An offset is the number of the last event
read. This module knows no event types.
"""

import random
import time
from collections.abc import Sequence
from typing import Final, Literal

import anyio
import orjson
from pydantic import ConfigDict, Field
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from agentic_rag.access.users import User
from agentic_rag.base.errors import InvalidInput, LogGone
from agentic_rag.base.events import AgentEvent
from agentic_rag.base.forms import Form
from agentic_rag.base.ids import TurnId
from agentic_rag.base.silence_timers import SilenceScope
from agentic_rag.conversations.conversations import Conversations
from agentic_rag.runtime.log.reader import LogReader
from agentic_rag.runtime.log.runlog import MAX_UNJOURNALLED
from agentic_rag.server.auth import caller_of
from agentic_rag.server.routing import route
from agentic_rag.server.sse import HEADERS, SEND_SECONDS

MOST = 1_000
"""Maximum events in one answer. The client continues from its end."""
POLL_SECONDS = 20.0
"""Seconds that a long poll waits."""
TAIL_SECONDS = 60.0
"""Seconds that one connection tails. The client continues with another one."""

BEGINNING: Final = "-1"
NOW: Final = "now"
_DIGITS = 16
_EPOCH = 1_728_432_000
"""2024-10-09 UTC, the origin of cursors."""
_INTERVAL_SECONDS = 20
_MOST_JITTER = 180


class StreamReading(Form):
    """Position and way of reading.

    ``offset`` is the end of the last answer, ``-1`` for the beginning, or ``now`` for the end. ``live``: wait for more
    events, once (``long-poll``) or as server-sent events (``sse``). ``cursor`` is that of the last answer.
    """

    model_config = ConfigDict(extra="ignore")

    offset: str = Field(BEGINNING, max_length=64)
    live: Literal["long-poll", "sse"] | None = None
    cursor: str | None = Field(None, max_length=64)


class StreamAnswer(Response):
    """Answer to a read: events as JSON or as server-sent events, or none."""


class DurableStreamRoutes:
    """Turns as durable streams."""

    def __init__(self, conversations: Conversations) -> None:
        self._conversations = conversations

    @route("GET", "/api/turns/{turn}/stream", allow="user", streams=True, errors=[LogGone])
    async def read(self, request: Request, user: User, turn: TurnId, query: StreamReading) -> StreamAnswer:
        """Read a turn as a durable stream: the events after an offset, then new ones."""
        await self._conversations.check_replay(user, await self._conversations.turn(user, turn))
        reader = self._conversations.log(turn)
        last = await reader.last()
        if request.method == "HEAD":
            return StreamAnswer(headers=_headers(last), media_type="application/json")
        if query.live is not None and "offset" not in request.query_params:
            raise InvalidInput("offset", "required to wait for what comes.")
        after = _read_offset(query.offset, last)
        reader = self._conversations.log(turn, after)
        cursor = next_cursor(query.cursor, time.time())
        match query.live:
            case "sse":
                return Tail(reader, cursor)
            case "long-poll":
                return LongPoll(reader, cursor)
            case _:
                skips = query.offset == NOW
                return _catch_up(reader, [] if skips else await reader.take(MOST), last if skips else None, request)


def _read_offset(offset: str, last: int) -> int:
    """Return the event number of an offset. An offset may be slightly beyond a log that lost its end in a crash.

    Raises:
        InvalidInput: the text is no offset, or the offset is too far beyond the log.
    """
    if offset == BEGINNING:
        return 0
    if offset == NOW:
        return last
    if (
        not (offset.isascii() and offset.isdecimal() and len(offset) == _DIGITS)
        or int(offset) > last + MAX_UNJOURNALLED
    ):
        raise InvalidInput("offset", "expected one that an answer has named, -1 or now.")
    return int(offset)


def offset_of(number: int) -> str:
    """Return the offset after an event. Offsets sort as strings."""
    return f"{number:0{_DIGITS}}"


def next_cursor(client_cursor: str | None, now: float) -> str:
    """Return the cursor of an answer.

    It differs from the client's last one, so that no cache serves the same answer twice.
    """
    interval = int((now - _EPOCH) // _INTERVAL_SECONDS)
    previous = (
        int(client_cursor)
        if client_cursor is not None and client_cursor.isascii() and client_cursor.isdecimal()
        else -1
    )
    return str(interval if previous < interval else previous + random.randint(1, _MOST_JITTER))  # not security-relevant


def _headers(
    number: int, *, up_to_date: bool = False, closed: bool = False, cursor: str | None = None
) -> dict[str, str]:
    headers = {"Stream-Next-Offset": offset_of(number)}
    if up_to_date:
        headers["Stream-Up-To-Date"] = "true"
    if closed:
        headers["Stream-Closed"] = "true"
    if cursor is not None:
        headers["Stream-Cursor"] = cursor
    return headers


def _body(events: Sequence[AgentEvent]) -> bytes:
    return b"[" + b",".join(event.data for event in events) + b"]"


def _catch_up(reader: LogReader, events: Sequence[AgentEvent], tail: int | None, request: Request) -> StreamAnswer:
    """Return the available events. ``tail`` is the end of the log, if the client asks only for the end."""
    if tail is not None:
        return StreamAnswer(b"[]", headers=_headers(tail, up_to_date=True), media_type="application/json")
    headers = _headers(reader.seq, up_to_date=len(events) < MOST or reader.closed, closed=reader.closed)
    # The tag names both ends: answers from the same offset differ in how far they reach.
    first = offset_of(events[0].seq - 1 if events else reader.seq)
    headers["ETag"] = f'"{first}:{offset_of(reader.seq)}:{"closed" if reader.closed else "open"}"'
    if request.headers.get("if-none-match") == headers["ETag"]:
        return StreamAnswer(status_code=304, headers=headers)
    return StreamAnswer(_body(events), headers=headers, media_type="application/json")


class _WaitingAnswer(StreamAnswer):
    """An answer that waits for events, until the client disconnects or its key is revoked."""

    def __init__(self, reader: LogReader, cursor: str) -> None:
        super().__init__()
        self._reader = reader
        self._cursor = cursor

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with anyio.CancelScope() as lifetime, caller_of(scope).connection(lifetime):
            async with anyio.create_task_group() as group:
                group.start_soon(self._watch, receive, group.cancel_scope)
                await self._answer(scope, receive, send)
                group.cancel_scope.cancel()

    async def _watch(self, receive: Receive, scope: anyio.CancelScope) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        scope.cancel()

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        raise NotImplementedError


class LongPoll(_WaitingAnswer):
    """Waits once for new events. Without any, the client asks again."""

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        reader = self._reader
        events = await reader.take(MOST)
        if not events and not reader.closed:
            with anyio.move_on_after(POLL_SECONDS):
                events = [event for event in await reader.next() if event.seq]
                events += await reader.take(MOST - len(events))
        headers = _headers(reader.seq, up_to_date=len(events) < MOST, closed=reader.closed, cursor=self._cursor)
        if not events:
            await Response(status_code=204, headers=headers)(scope, receive, send)
        else:
            await Response(_body(events), headers=headers, media_type="application/json")(scope, receive, send)


class _ClientStalled(Exception):
    """The client did not read what was sent for `SEND_SECONDS`."""


class Tail(_WaitingAnswer):
    """Sends new events as server-sent events, each batch with the offset after it."""

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": HEADERS})
        try:
            with anyio.move_on_after(TAIL_SECONDS):
                await self._tail(send)
        except _ClientStalled:
            return  # without an end of the body, the ASGI server closes the connection
        with anyio.move_on_after(SEND_SECONDS):
            await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _tail(self, send: Send) -> None:
        reader, caught_up = self._reader, False
        while True:
            events = await reader.take(MOST)
            if events or not caught_up or reader.closed:
                caught_up = len(events) < MOST
                await self._say(send, events, up_to_date=caught_up)
            if reader.closed:
                return
            if caught_up:
                following = await reader.next()
                if not following:
                    return
                # Events without a number are not in the log, so that no offset could name them.
                if numbered := [event for event in following if event.seq]:
                    await self._say(send, numbered, up_to_date=True)
                if reader.closed or len(numbered) < len(following):  # the server is stopping, and the client asks again
                    return

    async def _say(self, send: Send, events: Sequence[AgentEvent], *, up_to_date: bool) -> None:
        control: dict[str, object] = {"streamNextOffset": offset_of(self._reader.seq), "streamCursor": self._cursor}
        if self._reader.closed:
            control["streamClosed"] = True
        if up_to_date:
            control["upToDate"] = True
        data = b"event: data\ndata: %b\n\n" % _body(events) if events else b""
        body = data + b"event: control\ndata: %b\n\n" % orjson.dumps(control)
        with SilenceScope(SEND_SECONDS) as sending:
            await send({"type": "http.response.body", "body": body, "more_body": True})
        if sending.expired:
            raise _ClientStalled
