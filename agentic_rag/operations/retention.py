"""Remove conversations that are older than their domain's retention period.

A due conversation is archived in the transaction that finds it due and without running or waiting turns. An archived
conversation takes no message, so no turn can begin while it is removed.
"""

import logging
from datetime import UTC, datetime, timedelta

from agentic_rag.base.errors import NotFound
from agentic_rag.directory.directory import Directory
from agentic_rag.operations.deletion import Deletion
from agentic_rag.store import conversations
from agentic_rag.store.conversations import ConversationRecord
from agentic_rag.store.database import Database

log = logging.getLogger(__name__)

SWEEP_SECONDS = 3600.0
AT_ONCE = 100
"""Maximum number of conversations archived in one transaction."""


class Retention:
    """Removes conversations that have been idle for longer than their domain's ``keepConversationsDays``."""

    def __init__(self, database: Database, directory: Directory, deletion: Deletion) -> None:
        self._db = database
        self._directory = directory
        self._deletion = deletion

    async def run(self) -> None:
        """Remove the conversations that are due now."""
        count = await self.sweep(datetime.now(UTC))
        if count:
            log.info("%d conversations were kept as long as their domains say, and are removed", count)

    async def sweep(self, moment: datetime) -> int:
        """Remove the conversations that are due at ``moment``. Returns their number."""
        count = 0
        for domain in await self._directory.list_all():
            try:
                days = (await self._directory.settings(domain.id)).keep_conversations_days
            except NotFound:
                continue  # the domain was deleted meanwhile
            if days is None:
                continue
            before = (moment - timedelta(days=days)).isoformat(timespec="milliseconds").removesuffix("+00:00") + "Z"
            while due := await self._due(domain.id, before):
                for conversation in due:
                    await self._deletion.remove(conversation, because="keepConversationsDays")
                count += len(due)
        return count

    async def _due(self, domain_id: str, before: str) -> list[ConversationRecord]:
        return await self._db.write(lambda conn: conversations.take_due(conn, domain_id, before, AT_ONCE))
