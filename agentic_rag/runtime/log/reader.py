"""Reading a turn's run log: replay strictly after a number, then live, at the reader's own pace.

Owns the place of a reader, and the way from the store to the log in memory and back. A reader costs the turn
nothing: what it does not take at once waits in the log. Knows no socket.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence

from sqlalchemy import Connection

from agentic_rag.errors import BeyondLog, LogGone, NotFound
from agentic_rag.events import AgentEvent, Notice, decode
from agentic_rag.ids import TurnId
from agentic_rag.runtime.log.encoder import encode
from agentic_rag.runtime.log.mirror import Mirror
from agentic_rag.runtime.log.runlog import Journal, RunLog, Stall
from agentic_rag.store import run_events, turns
from agentic_rag.store.clock import now

PAGE = 500
"""Events read from the store at once."""

GOING_AWAY = Notice(
    "SERVER_STOPPING", "The server is stopping. The turn is not lost: connect again in a moment and go on by number."
)

Push = Callable[[Sequence[AgentEvent]], int]
"""Takes the first events at once and returns how many. It runs inside the turn: it must not wait."""


class LogReader:
    """One reader of a turn's log, from strictly after a number to the terminal event."""

    def __init__(self, journal: Journal, turn_id: TurnId, after: int = 0) -> None:
        """``journal`` has the logs of turns that run; what it does not have is read from its database."""
        self._database = journal.database
        self._journal = journal
        self._turn_id = turn_id
        self._seq = self._began_after = after
        self._log: RunLog | Mirror | None = journal.find(turn_id)
        self._over = False
        self._closed = False
        self._stall: Stall | None = None
        """What it has told last of a store that refuses."""

    @property
    def seq(self) -> int:
        """The number of the last event that was read, or after which it began."""
        return self._seq

    @property
    def closed(self) -> bool:
        """Whether the last event of the turn was read: no more will ever come."""
        return self._closed

    async def last(self) -> int:
        """Return the number of the last event that there is."""
        if self._log is not None:
            return self._log.visible
        return await self._database.read(lambda conn: run_events.last_seq(conn, self._turn_id))

    async def check(self) -> None:
        """Check that the log is not shorter than where this reader begins.

        Raises:
            BeyondLog: the turn has ended before.
        """
        if self._log is None and self._seq:
            await self._read_page()
        if self._log is not None and self._log.ended:
            self._end(self._log.visible)

    def _end(self, last: int) -> None:
        """Take the log for read to its end, which is the event ``last``.

        Raises:
            BeyondLog: this reader began after it.
        """
        if self._began_after > last:
            raise BeyondLog(self._turn_id, self._began_after)
        self._over = self._closed = True

    async def take(self, most: int = PAGE) -> Sequence[AgentEvent]:
        """Return events that are there already, at least about ``most`` if there are so many; it waits for none.

        Raises:
            NotFound, LogGone: as `next`.
        """
        taken: list[AgentEvent] = []
        while len(taken) < most and not self._over:
            self._leave_lost()
            had_log = self._log is not None
            batch = None if self._log is None else self._log.since(self._seq)
            if batch is None:
                batch = await self._read_page()
            if batch:
                self._move(batch[-1].seq, last=batch[-1].terminal)
                taken += batch
            elif self._log is None or had_log:
                if self._log is not None and self._log.ended and self._seq >= self._log.visible:
                    self._end(self._log.visible)
                break
        return taken

    def _move(self, seq: int, *, last: bool) -> None:
        self._seq = seq
        self._over = self._closed = last

    async def next(self, push: Push | None = None) -> Sequence[AgentEvent]:
        """Return the events that follow, at least one; none: the log has ended.

        While it waits for a turn to go on, what comes is offered to ``push``; events that it takes are not returned.
        That way a delta reaches a socket without a task of its reader being woken.

        Raises:
            NotFound: there is no such turn.
            LogGone: the turn ended and its log is no longer kept, or does not reach so far.
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
        """Look for the log anew, once it goes on elsewhere."""
        if self._log is not None and self._log.gone:
            self._log = None

    @property
    def _untold(self) -> bool:
        """Whether the server goes away, or the store refuses and the reader has not said so."""
        return self._journal.leaving or self._journal.stall not in (None, self._stall)

    def _tell(self) -> Notice:
        """Return what is to be said of the stream itself; that the server goes away is the last."""
        if self._journal.leaving or self._journal.stall is None:
            self._over = True
            return GOING_AWAY
        self._stall = self._journal.stall
        return self._stall.notice

    async def _live(self, push: Push | None) -> None:
        """Wait until there is something that ``push`` does not take, or the log has ended."""
        log = self._log
        assert log is not None
        if log.ended and self._seq >= log.visible:
            self._end(log.visible)
            return
        if log.gone:
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
                    if push((newest,)):  # as `_push` would, for the most frequent case
                        self._seq = newest.seq
                        if not log.ended:
                            return
                elif self._push(log, push):
                    return
            except Exception as exc:  # the reader's, never the turn's
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
        """Offer what there is to ``push``; say whether to wait on."""
        events = log.since(self._seq)
        if not events:  # woken for what is no event
            return not (events is None or log.ended or log.gone or self._untold)
        taken = 0 if push is None else push(events)
        if taken:
            self._seq = events[taken - 1].seq
        return taken == len(events) and not log.ended

    async def _read_page(self) -> list[AgentEvent]:
        """Return a page from the store; empty when it has no more and the log in memory goes on, or all has ended."""
        turn_id, after = self._turn_id, self._seq
        page = await self._database.read(lambda conn: run_events.read(conn, turn_id, after, PAGE))
        if not page:
            await self._read_on()
        return [decode(turn_id, seq, payload) for seq, payload in page]

    async def _read_on(self) -> None:
        """Find where the log goes on of which the store has no more now."""
        log = self._log or self._journal.find(self._turn_id)
        if log is None and self._journal.neighbours is not None:
            # while it looked elsewhere the turn may have been taken up here
            log = await self._journal.neighbours.mirror(self._turn_id) or self._journal.find(self._turn_id)
        if log is None:
            await self._check_end()
        elif isinstance(log, RunLog):  # what lies between was never stored: `resumed` voids it
            self._seq = max(self._seq, log.first - 1)
        elif log is self._log:  # its rows were removed: the turn ended long ago
            log.lose()
        self._log = log

    async def _check_end(self) -> None:
        """Decide what it means that a turn that does not run has no more events."""

        def look(conn: Connection) -> tuple[bool, int]:
            return turns.get(conn, self._turn_id) is not None, run_events.last_seq(conn, self._turn_id)

        exists, last = await self._database.read(look)
        if not exists:
            raise NotFound("turn", self._turn_id)
        if last == 0:
            raise LogGone(self._turn_id)
        if self._seq >= last:  # else more was stored meanwhile
            self._end(last)


async def follow(reader: LogReader) -> AsyncGenerator[AgentEvent, None]:
    """Yield a reader's events one by one, until the terminal one."""
    while events := await reader.next():
        for event in events:
            yield event
