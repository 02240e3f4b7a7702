"""Export conversations, and share them as read-only links.

A link shows the messages that existed when it was made. Sharing is the operator's decision (``share_links``). A reader
who does not see the domain gets the conversation without the passages that its answers quote. Names and quotes of
documents whose labels a reader lacks are removed, too, and so are those of files attached to the conversation.
"""

import hashlib
import secrets
from dataclasses import dataclass
from typing import Literal

from sqlalchemy import Connection

from agentic_rag.access.auditing import audit, change
from agentic_rag.access.users import ANONYMOUS, User
from agentic_rag.base.errors import Forbidden, InvalidInput, NotFound, TurnInProgress, Unauthenticated
from agentic_rag.base.ids import ConversationId, MessageId
from agentic_rag.conversations.conversations import Conversations
from agentic_rag.conversations.export import ExportedConversation, ExportLanguage
from agentic_rag.conversations.hidden_passages import without_attachments
from agentic_rag.conversations.shown_messages import ShownMessage
from agentic_rag.conversations.transcripts import Transcripts
from agentic_rag.directory.directory import Directory
from agentic_rag.runtime.runtime import Runtime
from agentic_rag.store import conversations, sessions, shares, turns
from agentic_rag.store.clock import now
from agentic_rag.store.conversations import ConversationRecord
from agentic_rag.store.database import Database
from agentic_rag.store.shares import ShareRecord

ShareMode = Literal["off", "users", "anyone"]
"""Who may read shared links: nobody, people who are signed in, or everybody who has the link."""

_PAGE = 200


@dataclass(frozen=True, slots=True)
class SharedConversation:
    """A conversation behind a link, and the domain whose secrets must be redacted from it.

    ``is_member``: the viewer sees the domain.
    """

    domain_id: str
    is_member: bool
    exported: ExportedConversation


class Sharing:
    """Exports and links of all conversations. ``mode``: who may read links."""

    def __init__(
        self, database: Database, directory: Directory, conversations: Conversations, runtime: Runtime, mode: ShareMode
    ) -> None:
        self._db = database
        self._directory = directory
        self._conversations = conversations
        self._transcripts = Transcripts(database, runtime)
        self.mode = mode

    async def export(
        self, user: User, conversation_id: ConversationId, language: ExportLanguage
    ) -> tuple[ConversationRecord, ExportedConversation]:
        """Return the active branch of a conversation.

        Raises:
            NotFound: this user has no such conversation.
        """
        record = await self._conversations.get(user, conversation_id)
        return record, await self._collect(user, record, language)

    async def _collect(
        self,
        viewer: User,
        record: ConversationRecord,
        language: ExportLanguage,
        share: ShareRecord | None = None,
        *,
        passages: bool = True,
    ) -> ExportedConversation:
        messages: list[ShownMessage] = []
        before: MessageId | None = None
        leaf = None if share is None else share.leaf_message_id
        while True:
            page = await self._transcripts.page(record, _PAGE, before, leaf=leaf)
            page = await self._conversations.without_hidden(viewer, record, page)
            messages[:0] = page.messages if share is None else map(without_attachments, page.messages)
            if not page.has_more:
                break
            before = page.messages[0].id
        if share is not None:
            # `leaf` selects the newest branch with the shared message, so what followed since is part of it.
            messages = [message for message in messages if message.created_at <= share.created_at]
        domain = await self._directory.get(record.domain_id)
        return ExportedConversation(record.title, domain.name, now(), messages, language, passages)

    async def share(self, user: User, conversation_id: ConversationId) -> tuple[ShareRecord, str]:
        """Make the link of a conversation and return it with its token. An earlier link stops working.

        Raises:
            NotFound: this user has no such conversation.
            Forbidden: links are off on this server.
            TurnInProgress: a turn runs; its answer would be shared before anyone has read it.
            InvalidInput: the conversation has no messages.
        """
        record = await self._conversations.get(user, conversation_id)
        if self.mode == "off":
            raise Forbidden("Shared links are off on this server. An operator can allow them.")
        token = secrets.token_urlsafe(32)
        entry = change("conversation.share", conversation_id, domainId=record.domain_id)

        def store(conn: Connection) -> ShareRecord:
            # In the transaction of the link, so that no turn begins between the two.
            current = turns.current_of(conn, record.session_id)
            if current is not None:
                raise TurnInProgress(current.id, "A turn is running. Share the conversation once it has ended.")
            session = sessions.get(conn, record.session_id)
            if session is None or session.leaf_message_id is None:
                raise InvalidInput("conversation", "it has no messages that could be shared.")
            share = ShareRecord(
                # Only the hash is stored: a copy of the database opens no link.
                token_hash=_hash(token),
                session_id=record.session_id,
                conversation_id=record.id,
                leaf_message_id=session.leaf_message_id,
                created_at=now(),
            )
            shares.put(conn, share)
            audit(conn, entry)
            return share

        return await self._db.write(store, durable=True), token

    async def current(self, user: User, conversation_id: ConversationId) -> ShareRecord | None:
        """Return the link of a conversation, or None.

        Raises:
            NotFound: this user has no such conversation.
        """
        record = await self._conversations.get(user, conversation_id)
        return await self._db.read(lambda conn: shares.of_session(conn, record.session_id))

    async def revoke(self, user: User, conversation_id: ConversationId) -> None:
        """Remove the link of a conversation, if it has one. It stops working at once.

        Raises:
            NotFound: this user has no such conversation.
        """
        record = await self._conversations.get(user, conversation_id)
        entry = change("conversation.unshare", conversation_id, domainId=record.domain_id)

        def store(conn: Connection) -> None:
            if shares.remove(conn, record.session_id):
                audit(conn, entry)

        await self._db.write(store, durable=True)

    async def read(self, viewer: User, token: str, language: ExportLanguage) -> SharedConversation:
        """Return the conversation behind a link as a viewer may see it.

        Raises:
            NotFound: there is no such link, or links are off.
            Unauthenticated: only people who are signed in may read links.
        """
        if self.mode == "users" and viewer.id == ANONYMOUS:
            raise Unauthenticated("Sign in to this server to read a shared conversation.")

        def find(conn: Connection) -> tuple[ShareRecord, ConversationRecord] | None:
            share = shares.by_hash(conn, _hash(token))
            record = None if share is None else conversations.get(conn, share.conversation_id)
            return None if share is None or record is None else (share, record)

        shared = None if self.mode == "off" else await self._db.read(find)
        if shared is None:
            # The rest of the token must not reach logs.
            raise NotFound("share", f"{token[:8]}…")
        share, record = shared
        # Members see the documents of the domain as far as their labels allow. Other readers see no quotes at all.
        passages = viewer.sees(record.domain_id)
        exported = await self._collect(viewer, record, language, share, passages=passages)
        return SharedConversation(record.domain_id, passages, exported)


def _hash(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()
