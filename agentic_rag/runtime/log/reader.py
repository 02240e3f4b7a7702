"""Reading a turn's run log: replay strictly after a number, then live, at the reader's own pace.

Owns the place of a reader, and the way from the store to the log in memory and back. A reader costs the turn
nothing: what it does not take at once waits in the log. Knows no socket.
"""

from collections.abc import AsyncGenerator, Callable, Sequence

import anyio
from sqlalchemy import Connection

from agentic_rag.errors import LogGone, NotFound
from agentic_rag.events import AgentEvent, Notice, decode
from agentic_rag.runtime.log.runlog import Journal, RunLog, Stall
from agentic_rag.store import run_events, turns

PAGE = 500
"""Events read from the store at once."""

GOING_AWAY = Notice(
    "SERVER_STOPPING", "The server is stopping. The turn is not lost: connect again in a moment and go on by number."
)

Push = Callable[[Sequence[AgentEvent]], int]
"""Takes the first events at once and returns how many. It runs inside the turn: it must not wait."""


class LogReader:
    """One reader of a turn's log, from strictly after a number to the terminal event."""

    def __init__(self, journal: Journal, turn_id: str, after: int = 0) -> None:
        """``journal`` has the logs of turns that run; what it does not have is read from its database."""
        self._database = journal.database
        self._journal = journal
        self._turn_id = turn_id
        self._seq = after
        self._log = journal.find(turn_id)
        self._over = False
        self._stall: Stall | None = None
        """What it has told last of a store that refuses."""

    async def next(self, push: Push | None = None) -> Sequence[AgentEvent]:
        """Return the events that follow, at least one; none: the log has ended.

        While it waits for a turn to go on, what comes is offered to ``push``; events that it takes are not returned.
        That way a delta reaches a socket without a task of its reader being woken.

        Raises:
            NotFound: there is no such turn.
            LogGone: the turn ended and its log is no longer kept.
        """
        while not self._over:
            batch = None if self._log is None else self._log.since(self._seq)
            if batch is None:
                batch = await self._read_page()
            elif not batch and self._log is not None and self._untold:
                return [self._log.encode_aside(self._tell())]
            elif not batch:
                await self._live(push)
            if batch:
                self._seq = batch[-1].seq
                self._over = batch[-1].terminal
                return batch
        return ()

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
            self._over = True
            return
        woken = anyio.Event()
        failure: Exception | None = None

        def wake() -> None:
            nonlocal failure
            if woken.is_set():
                return
            try:
                taken = push is not None and self._push(log, push)
            except Exception as exc:  # the reader's, never the turn's
                failure, taken = exc, False
            if not taken or log.ended or self._untold:
                woken.set()

        log.listen(wake)
        try:
            await woken.wait()
        finally:
            log.unlisten(wake)
        if failure is not None:
            raise failure

    def _push(self, log: RunLog, push: Push) -> bool:
        events = log.since(self._seq)
        if events is None:
            return False
        taken = push(events) if events else 0
        if taken:
            self._seq = events[taken - 1].seq
        return taken == len(events)

    async def _read_page(self) -> list[AgentEvent]:
        """Return a page from the store; empty when it has no more and the log in memory goes on, or all has ended."""
        turn_id, after = self._turn_id, self._seq
        page = await self._database.read(lambda conn: run_events.read(conn, turn_id, after, PAGE))
        if not page:
            self._log = self._log or self._journal.find(turn_id)
            if self._log is None:
                await self._check_end()
                self._over = True
            else:  # what lies between was never stored: `resumed` voids it
                self._seq = max(after, self._log.first - 1)
        return [decode(turn_id, seq, payload) for seq, payload in page]

    async def _check_end(self) -> None:
        """Decide what it means that a turn that does not run has no more events."""

        def look(conn: Connection) -> tuple[bool, int]:
            return turns.get(conn, self._turn_id) is not None, run_events.last_seq(conn, self._turn_id)

        exists, last = await self._database.read(look)
        if not exists:
            raise NotFound("turn", self._turn_id)
        if last == 0 or self._seq < last:
            raise LogGone(self._turn_id)


async def follow(reader: LogReader) -> AsyncGenerator[AgentEvent, None]:
    """Yield a reader's events one by one, until the terminal one."""
    while events := await reader.next():
        for event in events:
            yield event
