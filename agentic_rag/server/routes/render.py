"""REST route that renders Markdown as sanitised HTML, for texts that are not messages yet.

This module defines the form and its size limits. ``message_html`` renders and sanitises.
"""

from pydantic import Field, field_validator

from agentic_rag.access.users import User
from agentic_rag.base.events import Reference
from agentic_rag.base.forms import Form
from agentic_rag.base.threads import DomainThreads
from agentic_rag.conversations.shown_messages import ShownCitation
from agentic_rag.server.replies import Items, answer
from agentic_rag.server.routing import route

MAX_TEXTS = 50
MAX_CHARACTERS = 65_536
"""Maximum length of one text, the same as of a message. Longer messages are shown unrendered."""
MAX_ALL_CHARACTERS = 131_072
"""Maximum total length of the texts in a request."""


class CitationMarkForm(Form):
    """A citation in a text. ``end`` is its offset in Unicode code points."""

    end: int = Field(ge=0)
    number: int = Field(ge=1, le=100_000)
    document_id: str = Field("", max_length=200)
    document_name: str = Field("", max_length=1_000)
    chunk_id: str = Field("", max_length=200)


class TextForm(Form):
    """A text with its citations. ``breaks``: a newline in the text is a line break in the HTML."""

    text: str = Field(max_length=MAX_CHARACTERS)
    citations: list[CitationMarkForm] = Field(default_factory=list, max_length=500)
    breaks: bool = False


class Texts(Form):
    """Texts to render."""

    texts: list[TextForm] = Field(max_length=MAX_TEXTS)

    @field_validator("texts")
    @classmethod
    def _fit(cls, texts: list[TextForm]) -> list[TextForm]:
        if sum(len(text.text) for text in texts) > MAX_ALL_CHARACTERS:
            raise ValueError(f"at most {MAX_ALL_CHARACTERS} characters are possible in all texts together")
        return texts


@answer()
class RenderedAnswer:
    """A text as sanitised HTML."""

    html: str


class RenderRoutes:
    """Markdown as HTML."""

    def __init__(self, thread: DomainThreads) -> None:
        self._thread = thread

    @route("POST", "/api/render", allow="user")
    async def render(self, user: User, body: Texts) -> Items[RenderedAnswer]:
        """Render texts as messages are rendered with `format=html`. Nothing is stored."""
        return Items([await self._thread.run(user.id, _render, text) for text in body.texts])


def _render(source: TextForm) -> RenderedAnswer:
    from agentic_rag.conversations.message_html import to_html  # imported here, because it adds 0.1 s to a start

    citations = [ShownCitation(mark.end, mark.number) for mark in source.citations]
    references = [
        Reference(mark.number, mark.document_id, mark.document_name, mark.chunk_id, "", 0.0)
        for mark in source.citations
    ]
    return RenderedAnswer(to_html(source.text, citations, references, breaks=source.breaks))
