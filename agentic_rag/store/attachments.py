"""Attachments: files that a user gave to one conversation, in addition to the documents of its domain.

The original and its passages are payloads of the session (``payloads``), so that they are deleted, backed up and
checked like other payloads. Callers check permissions and write the files first.
"""

from collections.abc import Collection
from typing import Final

import sqlalchemy as sa
from sqlalchemy import Connection

from agentic_rag.base.errors import LimitReached, NotFound
from agentic_rag.base.ids import SessionId, TurnId
from agentic_rag.base.messages import KeptAttachment
from agentic_rag.store import payloads
from agentic_rag.store.columns import Indexed, Key
from agentic_rag.store.payloads import PayloadRecord
from agentic_rag.store.record import Record

MAX_OF_CONVERSATION: Final = 50
"""Maximum number of attachments of one conversation."""


class AttachmentRecord(Record, table=True):
    """A file that was read for a conversation. ``ref``: the payload of the file, ``text_ref`` that of its passages."""

    __tablename__ = "attachments"
    part_of = "session"

    id: Key[str]
    session_id: Indexed[SessionId]
    name: str
    media_type: str
    size: int
    """Size of the file in bytes."""
    sha256: str
    ref: str
    text_ref: str
    pages: int | None = None
    passages: int
    languages: tuple[str, ...] = ()
    outline: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    """The parts of the file that were not read."""
    turn_id: TurnId | None = None
    """The first turn that the file was sent with; None: it was uploaded and not sent yet."""
    created_at: str

    def to_kept(self) -> KeptAttachment:
        """Return the attachment as a message names it."""
        return KeptAttachment(
            self.id, self.name, self.media_type, self.size, self.passages, self.pages, self.notes or None
        )


ATTACHMENTS = AttachmentRecord.__table__
_attachments = ATTACHMENTS.c


def insert(conn: Connection, attachment: AttachmentRecord, files: Collection[PayloadRecord]) -> None:
    """Store an attachment with the records of its files.

    Raises:
        LimitReached: the conversation has as many attachments as possible.
    """
    for file in files:
        payloads.put(conn, file)
    attachment.insert(conn)
    count = sa.select(sa.func.count()).where(_attachments.session_id == attachment.session_id)
    if conn.execute(count).scalar_one() > MAX_OF_CONVERSATION:
        raise LimitReached("attachments", MAX_OF_CONVERSATION)


def get(conn: Connection, attachment_id: str) -> AttachmentRecord | None:
    """Return an attachment, or None."""
    return AttachmentRecord.first(conn, sa.select(ATTACHMENTS).where(_attachments.id == attachment_id))


def of_session(conn: Connection, session_id: SessionId, *, sent: bool = False) -> list[AttachmentRecord]:
    """Return the attachments of a conversation in the order of their upload. ``sent``: only those of its messages."""
    query = sa.select(ATTACHMENTS).where(_attachments.session_id == session_id)
    if sent:
        query = query.where(_attachments.turn_id.is_not(None))
    return AttachmentRecord.all(conn, query.order_by(_attachments.id))


def note_sent(conn: Connection, session_id: SessionId, attached: Collection[KeptAttachment], turn_id: TurnId) -> None:
    """Record that a message was sent with these attachments.

    Raises:
        NotFound: the conversation has lost one of them since the message was checked.
    """
    for attachment in attached:
        where = (_attachments.id == attachment.id, _attachments.session_id == session_id)
        first = sa.func.coalesce(_attachments.turn_id, turn_id)
        if conn.execute(sa.update(ATTACHMENTS).where(*where).values(turn_id=first)).rowcount != 1:
            raise NotFound("attachment", attachment.id)


def delete(conn: Connection, attachment: AttachmentRecord) -> bool:
    """Delete an attachment that was not sent, with the records of its files; return whether it still was unsent."""
    unsent = (_attachments.id == attachment.id, _attachments.turn_id.is_(None))
    if conn.execute(sa.delete(ATTACHMENTS).where(*unsent)).rowcount != 1:
        return False
    payloads.forget(conn, [attachment.ref, attachment.text_ref])
    return True
