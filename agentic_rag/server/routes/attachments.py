"""REST routes for the files that a user attaches to a conversation.

This module defines the answers. It knows no file format. A file is read before the upload is answered, and only the
owner of the conversation reaches it.
"""

from collections.abc import Sequence
from functools import partial
from typing import Literal

from starlette.requests import Request

from agentic_rag.access.users import User
from agentic_rag.base.errors import BodyTooLarge, ConversationArchived, InvalidInput, NotFound
from agentic_rag.base.ids import ConversationId
from agentic_rag.base.json_form import Absent
from agentic_rag.conversations.conversations import MAX_ATTACHMENTS, Conversations
from agentic_rag.documents.attachments import Attachments
from agentic_rag.documents.files import clean_name
from agentic_rag.server.replies import Items, Redacted, answer, answer_from
from agentic_rag.server.routes.conversations import CONVERSATION
from agentic_rag.server.routes.documents import Problem, RefusedUpload
from agentic_rag.server.routes.originals import OriginalFile
from agentic_rag.server.routes.places import PassagePlace, PlaceQuery, PlaceRoutes
from agentic_rag.server.routes.uploads import RefusedFile, receive_files
from agentic_rag.server.routing import route
from agentic_rag.store.attachments import AttachmentRecord
from agentic_rag.store.conversations import ConversationRecord, ConversationStatus

ATTACHMENTS = f"{CONVERSATION}/attachments"
ATTACHMENT = f"{ATTACHMENTS}/{{attachment}}"
ATTACHED_FILE = "/api/attachments/{attachment}"


@answer()
class AttachmentAnswer:
    """A file that was read for a conversation. ``notes`` name the parts that were not read.

    ``passages`` is the number of its passages. ``sent`` is absent until a message was sent with the file.
    """

    id: str
    name: str
    media_type: str
    size: int
    passages: int
    created_at: str
    pages: Absent[int] = None
    languages: Absent[Sequence[str]] = None
    notes: Absent[Sequence[str]] = None
    sent: Absent[bool] = None
    status: Literal["ready"] = "ready"


class AttachmentRoutes:
    """Files attached to conversations."""

    def __init__(self, conversations: Conversations, attachments: Attachments, places: PlaceRoutes) -> None:
        """Create the routes. ``places`` shows the place of a passage."""
        self._conversations = conversations
        self._attachments = attachments
        self._places = places

    @route(
        "POST",
        ATTACHMENTS,
        allow="user",
        status=201,
        takes="multipart/form-data",
        errors=[BodyTooLarge, ConversationArchived],
    )
    async def upload(
        self, request: Request, user: User, conversation: ConversationId
    ) -> Items[Redacted[AttachmentAnswer | RefusedUpload]]:
        """Attach files, at most 8. Each file is read or refused separately, and a message names it by its id.

        The files belong to the conversation, not to the domain: searches of others do not find them. They are deleted
        with the conversation.
        """
        record = await self._conversations.get(user, conversation)
        if record.status is ConversationStatus.ARCHIVED:
            raise ConversationArchived
        receive = partial(self._attachments.receive, record)
        received = await receive_files(
            request, receive, self._attachments.max_bytes, max_files=MAX_ATTACHMENTS, refuses_whole=False
        )
        return Items([Redacted(record.domain_id, _show(item)) for item in received])

    @route("GET", ATTACHMENTS, allow="user")
    async def list_attachments(self, user: User, conversation: ConversationId) -> Items[Redacted[AttachmentAnswer]]:
        """List the files attached to a conversation, with those that no message was sent with."""
        record = await self._conversations.get(user, conversation)
        attachments = await self._attachments.list_of(record)
        return Items([Redacted(record.domain_id, _show_record(attachment)) for attachment in attachments])

    @route("DELETE", ATTACHMENT, allow="user", errors=[InvalidInput])
    async def delete(self, user: User, conversation: ConversationId, attachment: str) -> None:
        """Delete an attached file that no message was sent with."""
        await self._attachments.delete(await self._conversations.get(user, conversation), attachment)

    @route("GET", f"{ATTACHED_FILE}/file", allow="user")
    async def file(self, request: Request, user: User, attachment: str) -> OriginalFile:
        """Send an attached file under its own name."""
        original = await self._attachments.original(await self._find(user, attachment), attachment)
        return OriginalFile(original, request.headers.get("range"))

    @route("GET", f"{ATTACHED_FILE}/chunks/{{chunk}}/place", allow="user")
    async def get_place(self, user: User, attachment: str, chunk: str, query: PlaceQuery) -> Redacted[PassagePlace]:
        """Show a cited passage of an attached file: in its table, or between its neighbouring paragraphs."""
        record = await self._find(user, attachment)
        place = await self._attachments.place(record, attachment, chunk, query.part(), query.text)
        return self._places.show(record.domain_id, place, query)

    async def _find(self, user: User, attachment: str) -> ConversationRecord:
        """Return the conversation of an attachment.

        Raises:
            NotFound: this user has no conversation with such an attachment.
        """
        conversation_id = await self._attachments.conversation_of(attachment)
        if conversation_id is not None and await self._conversations.owns(user, conversation_id):
            return await self._conversations.get(user, conversation_id)
        raise NotFound("attachment", attachment, hidden=conversation_id is not None)


def _show(received: AttachmentRecord | RefusedFile) -> AttachmentAnswer | RefusedUpload:
    if isinstance(received, RefusedFile):
        name = clean_name(received.name) if received.name else ""
        return RefusedUpload(name, Problem(received.error.code, str(received.error)))
    return _show_record(received)


def _show_record(record: AttachmentRecord) -> AttachmentAnswer:
    return answer_from(
        AttachmentAnswer,
        record,
        languages=record.languages or None,
        notes=record.notes or None,
        sent=True if record.turn_id is not None else None,
        status="ready",
    )
