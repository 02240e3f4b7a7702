"""REST routes that export a conversation, and that share it as a read-only link with its page."""

import base64
import hashlib
from collections.abc import Sequence
from typing import Final, Literal

from starlette.responses import HTMLResponse

from agentic_rag.access.users import User
from agentic_rag.base.errors import Forbidden, InvalidInput, NotFound, TurnInProgress, Unauthenticated
from agentic_rag.base.forms import Form
from agentic_rag.base.ids import ConversationId
from agentic_rag.base.redaction import Redactor
from agentic_rag.base.threads import DomainThreads
from agentic_rag.conversations.export import STYLE, ExportLanguage, to_markdown, to_page
from agentic_rag.conversations.sharing import ShareMode, Sharing
from agentic_rag.server.replies import Attachment, Redacted, answer
from agentic_rag.server.routes.conversation_answers import StoredMessageAnswer, show_message
from agentic_rag.server.routing import route

EXPORT = "/api/conversations/{conversation}/export"
SHARE = "/api/conversations/{conversation}/share"
SHARED_FOLDER = "/api/shared/"
SHARED = f"{SHARED_FOLDER}{{token}}"

_STYLE_HASH = base64.b64encode(hashlib.sha256(STYLE.encode()).digest()).decode()
PAGE_HEADERS: Final = {
    "content-security-policy": (
        f"default-src 'none'; style-src 'sha256-{_STYLE_HASH}'; img-src data:; base-uri 'none'; form-action 'none'; "
        "frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "x-robots-tag": "noindex",
    "referrer-policy": "no-referrer",
    "cache-control": "no-store",
}
"""Headers of the page of a shared conversation: it runs nothing, loads nothing, and no cache keeps it."""


class ConversationExportQuery(Form):
    """The format of an export, and the language of its headings. ``html`` is a page for printing."""

    format: Literal["markdown", "json", "html"] = "markdown"
    language: ExportLanguage = "en"


class SharedQuery(Form):
    """The language of the page's headings."""

    language: ExportLanguage = "en"


@answer()
class ExportAnswer:
    """The active branch of a conversation with all its messages and sources."""

    id: str
    title: str
    domain_id: str
    domain_name: str
    exported_at: str
    messages: Sequence[StoredMessageAnswer]


@answer()
class Share:
    """Who may read links: nobody (``off``), ``users`` (signed in) or ``anyone``; and when the conversation got one."""

    readers: ShareMode
    created_at: str | None


@answer()
class NewShare(Share):
    """A new link. Its ``path`` is shown only once."""

    path: str


class SharingRoutes:
    """Exports and links of conversations."""

    def __init__(self, sharing: Sharing, redactor: Redactor, thread: DomainThreads) -> None:
        self._sharing = sharing
        self._redactor = redactor
        self._thread = thread

    @route("GET", EXPORT, allow="user", large=True)
    async def export(
        self, user: User, conversation: ConversationId, query: ConversationExportQuery
    ) -> Attachment | Redacted[ExportAnswer]:
        """Export a conversation with its sources, as Markdown, JSON or a page for printing."""
        record, exported = await self._sharing.export(user, conversation, query.language)
        if query.format == "json":
            messages = [show_message(message) for message in exported.messages]
            shown = ExportAnswer(
                record.id, record.title, record.domain_id, exported.domain_name, exported.exported_at, messages
            )
            return Redacted(record.domain_id, shown)
        if query.format == "html":
            page = await self._thread.run(user.id, to_page, exported)
            return Attachment(record.domain_id, f"{record.id}.html", "text/html", page.encode())
        return Attachment(record.domain_id, f"{record.id}.md", "text/markdown", to_markdown(exported).encode())

    @route("GET", SHARE, allow="user")
    async def get(self, user: User, conversation: ConversationId) -> Share:
        """Show whether a conversation has a link, and who may read links on this server."""
        share = await self._sharing.current(user, conversation)
        return Share(self._sharing.mode, None if share is None else share.created_at)

    @route("POST", SHARE, allow="user", audited=True, status=201, errors=[Forbidden, InvalidInput, TurnInProgress])
    async def share(self, user: User, conversation: ConversationId) -> NewShare:
        """Make a read-only link to the messages so far. An earlier link of the conversation stops working."""
        share, token = await self._sharing.share(user, conversation)
        return NewShare(self._sharing.mode, share.created_at, SHARED.format(token=token))

    @route("DELETE", SHARE, allow="user", audited=True)
    async def revoke(self, user: User, conversation: ConversationId) -> None:
        """Remove the link of a conversation. Safe to repeat."""
        await self._sharing.revoke(user, conversation)

    @route("GET", SHARED, allow="anyone", errors=[NotFound, Unauthenticated])
    async def read(self, user: User, token: str, query: SharedQuery) -> HTMLResponse:
        """Show a shared conversation. The passages that it quotes are shown to people who see its domain."""
        shared = await self._sharing.read(user, token[:200], query.language)
        page = await self._thread.run(user.id, to_page, shared.exported)
        redact = self._redactor.of(shared.domain_id)
        # Secrets are replaced by their names, which only members of the domain may know.
        shown = redact(page) if shared.is_member else redact.without_names(page)
        return HTMLResponse(shown, headers=PAGE_HEADERS)
