"""A delegate's view of the run log of the turn that asked for it.

Owns what of a child's events its reader sees: all under the child's path and in the root turn's numbers, but neither
its start nor its end, which the ``delegate`` call brackets. Knows no turn.
"""

from collections.abc import Callable, Sequence

from sqlalchemy import Connection

from agentic_rag.events import Done, Error, EventBody, Interrupted
from agentic_rag.runtime.log.runlog import RunLog
from agentic_rag.store.database import Database


class ChildLog:
    """What an agent writes to in place of a `RunLog`. ``name``: the child's own part of the path."""

    def __init__(self, parent: "RunLog | ChildLog", name: str, database: Database) -> None:
        self.barred = False
        self.path: str = f"{parent.path}/{name}" if isinstance(parent, ChildLog) else name
        self._parent = parent
        self._root: RunLog = parent._root if isinstance(parent, ChildLog) else parent
        self._database = database

    @property
    def shut(self) -> bool:
        """Whether whom it works for has come to an end: nothing more may be seen of it."""
        above = self._parent.shut if isinstance(self._parent, ChildLog) else self._parent.ended
        return self._parent.barred or above

    def append(self, body: EventBody) -> None:
        """See `RunLog.append`."""
        if not self.shut:
            self._root.append(body, self.path)

    @property
    def crowded(self) -> bool:
        """See `RunLog.crowded`."""
        return not self.shut and self._root.crowded

    async def room(self) -> None:
        """See `RunLog.room`."""
        await self._root.room()

    async def commit(
        self, bodies: Sequence[EventBody], store: Callable[[Connection], None], *, durable: bool = False
    ) -> None:
        """See `RunLog.commit`; a terminal event is left out."""
        if self.shut:
            await self._database.write(store, durable=durable)
            return
        seen = [body for body in bodies if not isinstance(body, Done | Error | Interrupted)]
        await self._root.commit(seen, store, durable=durable, agent=self.path)

    def deliver_unjournalled(self, body: EventBody) -> None:
        """The end of a child is told by its call's result."""

    def close(self) -> None:
        """The log is the parent's and goes on."""
