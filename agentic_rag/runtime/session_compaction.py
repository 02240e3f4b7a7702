"""The compactions of one session between its turns.

Owns the rule that at most one runs, and the events for the next turn. `session` decides when a compaction may begin.
Knows no queue.
"""

import logging
from collections.abc import Sequence

from agentic_rag.base.errors import GenerationAborted
from agentic_rag.base.events import EventBody
from agentic_rag.runtime.agent import Agent
from agentic_rag.runtime.compaction import Compaction, compacted_event
from agentic_rag.runtime.core.definition import Definition
from agentic_rag.runtime.core.transcript import Transcript
from agentic_rag.runtime.services import Resources
from agentic_rag.store.compactions import CompactedBy, CompactionRecord

logger = logging.getLogger(__name__)


class SessionCompaction:
    """Compacts one session. A `running` compaction holds the session like a turn."""

    def __init__(self, resources: Resources) -> None:
        self._resources = resources
        self._current: Compaction | None = None
        self.news: Sequence[EventBody] = ()
        """Events for the beginning of the next turn."""

    @property
    def running(self) -> bool:
        """Whether a compaction holds the session."""
        return self._current is not None

    def cancel(self) -> bool:
        """Cancel the running compaction. Return whether one ran."""
        if self._current is not None:
            self._current.cancel()
        return self._current is not None

    def clear_news(self) -> None:
        """Clear `news` after a turn has begun with these events."""
        self.news = ()

    def hold(self, transcript: Transcript, definition: Definition, key_id: str) -> None:
        """Let a user's compaction hold the session. Then call `run`."""
        self._current = Compaction(self._resources, transcript, definition, CompactedBy.USER, key_id=key_id)

    async def run(self) -> CompactionRecord:
        """Run the compaction that holds the session.

        Raises:
            GenerationAborted: a user interrupted it.
            Exception: as `Compaction.run`.
        """
        assert self._current is not None
        try:
            record = await self._current.run()
        finally:
            self._current = None
        if record is None:
            raise GenerationAborted
        self.news = (compacted_event(record),)
        return record

    async def run_if_due(self, transcript: Transcript, agent: Agent) -> None:
        """Compact after a turn if needed, while the turn still holds the session. A failure changes nothing."""
        if not agent.context.is_due(over=True):
            return
        self._current = Compaction(
            self._resources,
            transcript,
            agent.definition,
            CompactedBy.AUTO,
            limit=agent.context.limit,
            tools=agent.tools,
            key_id=agent.row.key_id,
        )
        try:
            if (record := await self._current.run()) is not None:
                self.news = (compacted_event(record),)
            else:
                agent.context.note_failure()
        except Exception as exc:  # an exception would end all sessions of the runtime's task group
            logger.warning("session %s was not compacted: %s", transcript.session_id, exc, exc_info=exc)
            agent.context.note_failure()
        finally:
            self._current = None
