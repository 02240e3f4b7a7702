"""How domains, conversations and documents are deleted: every step of it, in order, in one place.

Owns the order. It follows one rule, by which a deletion that is cut off anywhere can be repeated, and ends what it
began: **what only a row names goes before the row**. First what works is stopped, then go files, processes and
vectors, each of which a step finds by the rows; the rows go last, in one transaction with their audit entry. A step
that finds nothing left to do does nothing. A document is a tombstone first, so that it is gone at once and its removal
is finished by the server itself; see `Intake.remove`.
"""

from pathlib import Path

from sqlalchemy import Connection

from agentic_rag.access.auditing import audit, change
from agentic_rag.access.users import User
from agentic_rag.conversations.conversations import Conversations
from agentic_rag.directory.collection import collection_of
from agentic_rag.directory.directory import Directory
from agentic_rag.documents.documents import Documents
from agentic_rag.domains.lifecycle import DomainLifecycle
from agentic_rag.domains.vault import Vault
from agentic_rag.domains.workspaces import remove_workspace
from agentic_rag.runtime.runtime import Runtime
from agentic_rag.store import conversations, domains, sessions
from agentic_rag.store.database import Database
from agentic_rag.threads import DomainThreads
from mcp_servers.retriever.index import Index


class Deletion:
    """Deletes what users made. ``workspaces``: the folder of the workspaces that are ours to remove."""

    def __init__(
        self,
        database: Database,
        directory: Directory,
        conversations: Conversations,
        documents: Documents,
        runtime: Runtime,
        vault: Vault,
        index: Index,
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
        self._index = index
        self._lifecycle = lifecycle
        self._workspaces = workspaces
        self._threads = threads

    async def domain(self, domain_id: str, *, workspace: bool = False) -> None:
        """Delete a domain with its conversations, documents, vectors and secrets. ``workspace``: its folder too.

        Raises:
            NotFound: there is no such domain.
        """
        record = await self._directory.get(domain_id)
        told = change("domain.delete", domain_id, workspace=workspace)
        try:
            with self._directory.hide(domain_id):  # nothing new begins
                await self._documents.stop(domain_id)
                for _, session_id in await self._db.read(lambda conn: conversations.ids_of_domain(conn, domain_id)):
                    await self._runtime.drop(session_id)  # ends its turns, removes the files of its payloads
                await self._lifecycle.leaving(domain_id)
                await self._index.drop(collection_of(domain_id))
                if workspace:
                    await self._threads.run(domain_id, remove_workspace, self._workspaces, Path(record.workspace))

                def forget(conn: Connection) -> None:
                    for conversation_id, session_id in conversations.ids_of_domain(conn, domain_id):
                        sessions.delete(conn, session_id)
                        conversations.delete(conn, conversation_id)
                    domains.delete(conn, domain_id)  # with documents, secrets and all else that has its id
                    audit(conn, told)

                await self._db.write(forget, durable=True)
        finally:
            self._vault.forget(domain_id)

    async def conversation(self, user: User, conversation_id: str) -> None:
        """Delete a conversation with its session, after ending its turns.

        Raises:
            NotFound: there is no such conversation of this user.
        """
        record = await self._conversations.get(user, conversation_id)
        told = change("conversation.delete", conversation_id, domainId=record.domain_id)
        await self._runtime.drop(record.session_id)

        def forget(conn: Connection) -> None:
            sessions.delete(conn, record.session_id)
            conversations.delete(conn, conversation_id)
            audit(conn, told)

        await self._db.write(forget, durable=True)

    async def document(self, domain_id: str, document_id: str) -> None:
        """Delete a document: its file, its chunks, its record. No turn is interrupted.

        Raises:
            NotFound: the domain has no such document.
        """
        await self._documents.delete(domain_id, document_id)
