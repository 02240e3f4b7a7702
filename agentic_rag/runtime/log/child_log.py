"""The run log as a delegate writes to it."""

from collections.abc import Sequence

from sqlalchemy import Connection

from agentic_rag.base.errors import LeaseLost
from agentic_rag.base.events import Delegate, Done, Error, EventBody, Interrupted
from agentic_rag.base.ids import TurnId
from agentic_rag.runtime.log.encoder import TextKind
from agentic_rag.runtime.log.runlog import Journal, RunLog, Transaction
from agentic_rag.store import turns


class ChildLog:
    """A delegate's view of the run log of the turn that started it.

    The delegate's agent writes here instead of to a `RunLog`.

    Its events have the delegate's path and the root turn's numbers. The delegate's start and end are left out, because
    the ``delegate`` call marks both. ``turn_id`` and ``fence``: those of the delegate's own turn. Each of its commits
    checks this fence and the root's.
    """

    def __init__(
        self, parent: "RunLog | ChildLog", delegate: Delegate, journal: Journal, turn_id: TurnId, fence: int
    ) -> None:
        self.closed_to_delegates = False
        self.call_id = delegate.tool_call_id
        """Id of the ``delegate`` call."""
        self._delegate = delegate
        self._turn_id = turn_id
        self._fence = fence
        self._parent = parent
        self._root: RunLog = parent._root if isinstance(parent, ChildLog) else parent
        self._journal = journal

    @property
    def closed(self) -> bool:
        """Whether the calling turn has ended or is ending. Then no event of the delegate may become visible."""
        above = self._parent.closed if isinstance(self._parent, ChildLog) else self._parent.ended
        return self._parent.closed_to_delegates or above

    def append(self, body: EventBody, *, redacted: bool = False) -> None:
        """See `RunLog.append`."""
        if not self.closed:
            self._root.append(body, self._delegate, redacted=redacted)

    def append_text(self, kind: TextKind, text: str) -> bool:
        """See `RunLog.append_text`."""
        return self.closed or self._root.append_text(kind, text, self._delegate)

    @property
    def is_full(self) -> bool:
        """See `RunLog.is_full`."""
        return not self.closed and self._root.is_full

    async def wait_for_room(self) -> None:
        """See `RunLog.wait_for_room`."""
        await self._root.wait_for_room()

    async def commit(self, bodies: Sequence[EventBody], store: Transaction, *, durable: bool = False) -> None:
        """See `RunLog.commit`. Terminal events are left out."""

        def write(conn: Connection) -> None:
            turns.hold(conn, self._turn_id, self._fence)
            store(conn)

        def write_unseen(conn: Connection) -> None:
            if not self._root.is_held(conn):
                raise LeaseLost(self._root.turn_id)
            write(conn)

        if self.closed:
            await self._journal.store(write_unseen, (), durable=durable)
            return
        delivered = [body for body in bodies if not isinstance(body, Done | Error | Interrupted)]
        await self._root.commit(delivered, write, durable=durable, agent=self._delegate)

    def drop_undelivered(self) -> None:
        """Do nothing: the failed commit belongs to the parent's log, and the parent withdraws its events."""

    def close(self) -> None:
        """Do nothing: the log belongs to the parent and stays open."""

    def hand_over(self) -> None:
        """Do nothing: the log belongs to the parent."""
