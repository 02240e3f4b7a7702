"""Reading a turn's run log: a replay of the events after a number, then live events, at the reader's own pace.

Owns the position of a reader, and the switch between the store and the log in memory. A reader never slows the turn:
events that it does not take at once stay in the log. Knows no socket.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence

from sqlalchemy import Connection

from agentic_rag.base.errors import BeyondLog, LogGone, NotFound
from agentic_rag.base.events import AgentEvent, Notice, decode
from agentic_rag.base.ids import TurnId
from agentic_rag.runtime.log.encoder import encode
from agentic_rag.runtime.log.mirror import Mirror
from agentic_rag.runtime.log.runlog import Journal, RunLog, Stall
from agentic_rag.store import run_events, turns
from agentic_rag.store.clock import now

PAGE = 500
"""Most events in one read of the store."""

GOING_AWAY = Notice(
    "SERVER_STOPPING", "The server is stopping. The turn is not lost: connect again in a moment and go on by number."
)

Push = Callable[[Sequence[AgentEvent]], int]
"""Takes the first events and returns how many. Runs inside the turn, so it must not wait."""


class LogReader:
    """One reader of a turn's log, from the first event after a number to the terminal event."""

    def __init__(self, journal: Journal, turn_id: TurnId, after: int = 0) -> None:
        """``journal``: has the logs of running turns. Other events are read from its database."""
        self._database = journal.database
        self._journal = journal
        self._turn_id = turn_id
        self._seq = self._began_after = after
        self._log: RunLog | Mirror | None = journal.find(turn_id)
        self._over = False
        self._closed = False
        self._stall: Stall | None = None
        """The last stall of the store that this reader was notified of."""

    @property
    def seq(self) -> int:
        """The number of the last event read, or the number after which the reader began."""
        return self._seq

    @property
    def closed(self) -> bool:
        """Whether the last event of the turn was read."""
        return self._closed

    async def last(self) -> int:
        """Return the number of the last event that exists."""
        if self._log is not None:
            return self._log.visible
        return await self._database.read(lambda conn: run_events.last_seq(conn, self._turn_id))

    async def check(self) -> None:
        """Check that the log reaches the number at which this reader begins.

        Raises:
            BeyondLog: the turn ended before that number.
        """
        if self._log is None and self._seq:
            await self._read_page()
        if self._log is not None and self._log.ended:
            self._end(self._log.visible)

    def _end(self, last: int) -> None:
        """Mark the log as read to its end, which is the event ``last``.

        Raises:
            BeyondLog: this reader began after that event.
        """
        if self._began_after > last:
            raise BeyondLog(self._turn_id, self._began_after)
        self._over = self._closed = True

    async def take(self, most: int = PAGE) -> Sequence[AgentEvent]:
        """Return events that exist already, at least about ``most`` if there are so many.

        Does not wait for new events.

        Raises:
            NotFound, LogGone: as `next`.
        """
        events: list[AgentEvent] = []
        while len(events) < most and not self._over:
            self._leave_lost()
            had_log = self._log is not None
            batch = None if self._log is None else self._log.since(self._seq)
            if batch is None:
                batch = await self._read_page()
            if batch:
                self._move(batch[-1].seq, last=batch[-1].terminal)
                events += batch
            elif self._log is None or had_log:
                if self._log is not None and self._log.ended and self._seq >= self._log.visible:
                    self._end(self._log.visible)
                break
        return events

    def _move(self, seq: int, *, last: bool) -> None:
        self._seq = seq
        self._over = self._closed = last

    async def next(self, push: Push | None = None) -> Sequence[AgentEvent]:
        """Return the next events, at least one. Returns an empty sequence if the log has ended.

        While the reader waits, new events are offered to ``push``. Events that ``push`` takes are not returned. So a
        delta reaches a socket without waking a reader task.

        Raises:
            NotFound: the turn does not exist.
            LogGone: the turn has ended and its log was deleted, or does not reach this number.
        """
        while not self._over:
            self._leave_lost()
            batch = None if self._log is None else self._log.since(self._seq)
            if batch is None:
                batch = await self._read_page()
            elif not batch and self._log is not None and self._untold:
                return [self._encode_aside(self._log, self._tell())]
            elif not batch:
                await self._live(push)
            if batch:
                self._move(batch[-1].seq, last=batch[-1].terminal)
                return batch
        return ()

    @staticmethod
    def _encode_aside(log: RunLog | Mirror, body: Notice) -> AgentEvent:
        if isinstance(log, RunLog):
            return log.encode_aside(body)
        return encode(body, conversation_id=log.conversation_id, turn_id=log.turn_id, seq=0, ts=now())

    def _leave_lost(self) -> None:
        """Drop a log that continues in another process, so that the reader looks it up again."""
        if self._log is not None and self._log.moved:
            self._log = None

    @property
    def _untold(self) -> bool:
        """Whether the server is stopping, or the store refuses writes and the reader was not notified."""
        return self._journal.dismissed or self._journal.stall not in (None, self._stall)

    def _tell(self) -> Notice:
        """Return the notice for this reader. After the notice that the server is stopping the reader ends."""
        if self._journal.dismissed or self._journal.stall is None:
            self._over = True
            return GOING_AWAY
        self._stall = self._journal.stall
        return self._stall.notice

    async def _live(self, push: Push | None) -> None:
        """Wait until there are events that ``push`` does not take, or the log has ended."""
        log = self._log
        assert log is not None
        if log.ended and self._seq >= log.visible:
            self._end(log.visible)
            return
        if log.moved:
            return
        woken, waits = asyncio.Event(), True
        failure: Exception | None = None

        def wake() -> None:
            nonlocal failure, waits
            if not waits:
                return
            try:
                newest = log.newest
                if newest is not None and newest.seq == log.visible == self._seq + 1 and push is not None:
                    if push((newest,)):  # as `_push`, for the most frequent case
                        self._seq = newest.seq
                        if not log.ended:
                            return
                elif self._push(log, push):
                    return
            except Exception as exc:  # the error of the reader must not reach the turn
                failure = exc
            waits = False
            woken.set()

        log.listen(wake)
        try:
            await woken.wait()
        finally:
            log.unlisten(wake)
        if failure is not None:
            raise failure

    def _push(self, log: RunLog | Mirror, push: Push | None) -> bool:
        """Offer the available events to ``push``. Return whether to keep waiting."""
        events = log.since(self._seq)
        if not events:  # woken for a reason other than an event
            return not (events is None or log.ended or log.moved or self._untold)
        accepted = 0 if push is None else push(events)
        if accepted:
            self._seq = events[accepted - 1].seq
        return accepted == len(events) and not log.ended

    async def _read_page(self) -> list[AgentEvent]:
        """Return a page from the store. An empty page means that the log continues in memory, or that all has ended."""
        turn_id, after = self._turn_id, self._seq
        page = await self._database.read(lambda conn: run_events.read(conn, turn_id, after, PAGE))
        if not page:
            await self._read_on()
        return [decode(turn_id, seq, payload) for seq, payload in page]

    async def _read_on(self) -> None:
        """Find the log in memory after the last stored event, in this process or in another."""
        log = self._log or self._journal.find(self._turn_id)
        if log is None and self._journal.remote_logs is not None:
            # during the lookup the turn may have been resumed in this process
            log = await self._journal.remote_logs.mirror(self._turn_id) or self._journal.find(self._turn_id)
        if log is None:
            await self._check_end()
        elif isinstance(log, RunLog):  # the events between were never stored: `resumed` voids them
            self._seq = max(self._seq, log.first - 1)
        elif log is self._log:  # its rows were deleted, so the turn ended long ago
            log.hand_over()
        self._log = log

    async def _check_end(self) -> None:
        """Decide whether a turn without a log has ended, was deleted, or has more rows.

        Raises:
            NotFound: the turn does not exist.
            LogGone: the log was deleted.
            BeyondLog: see `_end`.
        """

        def look(conn: Connection) -> tuple[bool, int]:
            return turns.get(conn, self._turn_id) is not None, run_events.last_seq(conn, self._turn_id)

        exists, last = await self._database.read(look)
        if not exists:
            raise NotFound("turn", self._turn_id)
        if last == 0:
            raise LogGone(self._turn_id)
        if self._seq >= last:  # otherwise more events were stored meanwhile
            self._end(last)


async def follow(reader: LogReader) -> AsyncGenerator[AgentEvent, None]:
    """Yield a reader's events one by one, up to the terminal event."""
    while events := await reader.next():
        for event in events:
            yield event
