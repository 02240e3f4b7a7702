"""The steps that delete domains, conversations and documents, in order.

One rule makes an interrupted deletion repeatable: **data that only a row refers to is deleted before the row**. First
the work is stopped. Then files, processes and vectors are deleted, each found through the rows. The rows go last, in
one transaction with their audit entry. A step without anything left to do does nothing. A document is marked as deleted
first, so that searches skip it at once, and the server finishes the removal later; see `Intake.remove`.
"""

import logging
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

import anyio
from sqlalchemy import Connection

from agentic_rag.access.auditing import audit, change
from agentic_rag.access.users import User
from agentic_rag.base.errors import StorageError
from agentic_rag.base.ids import ConversationId, DocumentId
from agentic_rag.base.threads import DomainThreads
from agentic_rag.conversations.conversations import Conversations
from agentic_rag.directory.directory import Directory
from agentic_rag.documents.documents import Documents
from agentic_rag.domains.lifecycle import DomainLifecycle
from agentic_rag.domains.vault import Vault
from agentic_rag.domains.workspaces import remove_workspace
from agentic_rag.runtime.runtime import Runtime
from agentic_rag.store import budgets, conversations, deliveries, domains, retrievals, schedules, sessions, tool_calls
from agentic_rag.store.clock import later, now
from agentic_rag.store.conversations import ConversationRecord
from agentic_rag.store.database import Database
from agentic_rag.store.usage import Scope

END_SECONDS = 10.0
"""How long the caller waits for the end of a transient call."""
LEFT_SECONDS = 600.0
"""Idle time after which a transient conversation counts as abandoned."""

log = logging.getLogger(__name__)


def _forget_reach(conn: Connection, conversation_id: ConversationId) -> None:
    """Delete the notifications about a conversation, and end the schedule's run in it."""
    deliveries.delete_of_conversation(conn, conversation_id)
    schedules.end_of_conversation(conn, conversation_id, now())


class Deletion:
    """Deletes users' data. ``workspaces`` is the folder of the workspaces that this server may remove."""

    def __init__(
        self,
        database: Database,
        directory: Directory,
        conversations: Conversations,
        documents: Documents,
        runtime: Runtime,
        vault: Vault,
        lifecycle: DomainLifecycle,
        workspaces: Path,
        threads: DomainThreads,
    ) -> None:
        self._db = database
        self._directory = directory
        self._conversations = conversations
        self._documents = documents
        self._runtime = runtime
        self._vault = vault
        self._lifecycle = lifecycle
        self._workspaces = workspaces
        self._threads = threads

    async def domain(self, domain_id: str, *, workspace: bool = False) -> Path | None:
        """Delete a domain with its conversations, documents, vectors and secrets.

        ``workspace`` also deletes the folder of its workspace. Returns that folder if it is still on disk, else None.

        Raises:
            NotFound: there is no such domain.
        """
        record = await self._directory.get(domain_id)
        audit_entry = change("domain.delete", domain_id, workspace=workspace)
        try:
            with self._directory.hide(domain_id):  # no new work starts in the domain
                await self._documents.stop(domain_id)
                for _, session_id in await self._db.read(lambda conn: conversations.ids_of_domain(conn, domain_id)):
                    await self._runtime.drop(session_id)  # ends its turns and removes its payload files
                await self._lifecycle.leaving(domain_id)  # ends its MCP servers, which may still write to the workspace
                await self._documents.drop(domain_id)
                if workspace:
                    await self._threads.run(domain_id, remove_workspace, self._workspaces, Path(record.workspace))

                def forget(conn: Connection) -> None:
                    for conversation_id, session_id in conversations.ids_of_domain(conn, domain_id):
                        sessions.delete(conn, session_id)
                        conversations.delete(conn, conversation_id)
                    budgets.forget(conn, Scope.DOMAIN, domain_id)
                    # The database deletes documents, secrets and all other rows with its id.
                    domains.delete(conn, domain_id)
                    audit(conn, audit_entry)

                await self._db.write(forget, durable=True)
        finally:
            self._vault.forget(domain_id)
        folder = Path(record.workspace)
        return folder if await self._threads.run(domain_id, folder.exists) else None

    async def conversation(self, user: User, conversation_id: ConversationId) -> None:
        """Delete a conversation and its session, after ending its turns.

        Raises:
            NotFound: this user has no such conversation.
        """
        record = await self._conversations.get(user, conversation_id)
        audit_entry = change("conversation.delete", conversation_id, domainId=record.domain_id)
        await self._runtime.drop(record.session_id)

        def forget(conn: Connection) -> None:
            sessions.delete(conn, record.session_id)
            retrievals.delete_of_conversation(conn, conversation_id)
            _forget_reach(conn, conversation_id)
            conversations.delete(conn, conversation_id)
            audit(conn, audit_entry)

        await self._db.write(forget, durable=True)

    async def end_call(self, conversation: ConversationRecord) -> None:
        """Remove a transient conversation after ending its turn, because its answer cannot be requested again.

        If the store refuses or takes too long, `end_left_calls` removes the rest later.
        """
        with anyio.move_on_after(END_SECONDS, shield=True):
            try:
                await self.remove(conversation)
            except StorageError as exc:
                log.warning("the rest of a call will be removed later: %s", exc)

    async def end_left_calls(self, *, at_start: bool = False) -> None:
        """Remove abandoned transient conversations.

        With ``at_start``, nothing runs yet, and all of them are removed, except those whose turn has asked
        for the result of a client's function. Otherwise only those that were idle for
        `LEFT_SECONDS` and have no running turn.
        """
        before = datetime.now(UTC) - timedelta(seconds=LEFT_SECONDS)
        find = partial(
            conversations.left_transient,
            before=None if at_start else before.isoformat(timespec="milliseconds").removesuffix("+00:00") + "Z",
            ended=not at_start,
        )
        for conversation in await self._db.read(find):
            await self.remove(conversation)

    async def end_left_calls_of_apps(self, *, seconds: float = LEFT_SECONDS) -> None:
        """End calls of apps that began longer ago and whose process died. Their outcome is unknown."""
        before = later(-seconds)
        await self._db.write(lambda conn: tool_calls.end_left_of_apps(conn, before))

    async def remove(self, conversation: ConversationRecord, *, because: str = "") -> None:
        """Delete a conversation of any user after ending its turns. ``because`` is the reason in the audit log."""
        audit_entry = change("conversation.delete", conversation.id, domainId=conversation.domain_id, because=because)
        await self._runtime.drop(conversation.session_id)

        def forget(conn: Connection) -> None:
            sessions.delete(conn, conversation.session_id)
            retrievals.delete_of_conversation(conn, conversation.id)
            _forget_reach(conn, conversation.id)
            conversations.delete(conn, conversation.id)
            if because:
                audit(conn, audit_entry)

        await self._db.write(forget)

    async def document(self, domain_id: str, document_id: DocumentId) -> None:
        """Delete a document: its file, its chunks and its record. No turn is interrupted.

        Raises:
            NotFound: the domain has no such document.
        """
        await self._documents.delete(domain_id, document_id)
