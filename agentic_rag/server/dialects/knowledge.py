"""The older knowledge contract: search results, then the plain answer with ``[[name]]`` at its citations.

Decides where the text is cut. Clients trim each line of a chunk, so every cut is inside a word. Then trimming removes
only white space around line breaks.
"""

from collections.abc import Sequence

from agentic_rag.base.events import AgentEvent
from agentic_rag.base.json_form import Json, to_text
from agentic_rag.server.dialects.answer import AnswerDialect, Item, write_sse

SNIPPET = 200
"""Maximum characters of a reference's snippet."""


class Chunks:
    """A text in pieces that are cut only between two letters or digits. Text after the last cut is held back."""

    __slots__ = ("_held", "_last")

    def __init__(self) -> None:
        self._held: list[str] = []
        self._last = " "

    def add(self, text: str) -> str:
        """Return the text that may be sent now. At least the last character is held back."""
        for at in range(len(text) - 1, -1, -1):
            before = text[at - 1] if at else self._last
            if before.isalnum() and text[at].isalnum():
                piece = "".join([*self._held, text[:at]])
                self._held, self._last = [text[at:]], text[-1]
                return piece
        self.hold(text)
        return ""

    def hold(self, text: str) -> None:
        """Append ``text`` without a cut in it."""
        if text:
            self._held.append(text)
            self._last = text[-1]

    def end(self) -> str:
        """Return the text that was held back."""
        rest, self._held = "".join(self._held), []
        return rest


class KnowledgeDialect(AnswerDialect):
    """``user_message``, ``context_ready``, ``chunk`` by ``chunk``, then one end.

    A client replaces its references at each ``context_ready``, so each one lists all passages found so far. The first
    comes before the first ``chunk``, others after later searches with new passages, and the last, with the cited
    passages, before ``done``.
    """

    name = "knowledge"

    def __init__(self) -> None:
        super().__init__()
        self._chunks = Chunks()
        self._references: list[Json] = []
        self._context_sent = False

    def say(self, kind: str, fields: Json) -> Sequence[Item]:
        match kind:
            case "turn_started":
                return [Item("user_message", {"id": fields["userMessageId"]})]
            case "retrieval":
                return self._note(fields)
            case "text":
                text = self._text.add(fields["text"])
                return [*self._context(), *_chunk(self._chunks.add(text))] if text else ()
            case "source_reference":
                self._chunks.hold(self._text.add_mark(mark_of(fields["documentName"])))
            case "done":
                references = [reference_of(reference) for reference in fields["references"]]
                cited = Item("context_ready", {"references": references})
                return [*self._rest(), cited, Item("done", {"id": fields["messageId"], "references": references})]
            case "interrupted":
                return self.abort()
        return ()

    def of_delegate(self, kind: str, fields: Json) -> Sequence[Item]:
        return self._note(fields) if kind == "retrieval" else ()

    def error(self, code: str, message: str, *, retryable: bool) -> Sequence[Item]:
        return [*self._rest(), Item("error", {"message": message, "code": code, "retryable": retryable})]

    def sse_item(self, event: AgentEvent, item: Item) -> str:
        return write_sse(item.name, item.data if isinstance(item.data, str) else to_text(item.data))

    def _note(self, fields: Json) -> Sequence[Item]:
        """Add the passages of a search. Returns ``context_ready`` if the client has an older list."""
        if fields["source"] != "documents":
            return ()
        references = [_reference_of_hit(hit) for hit in fields["hits"]]
        new = [
            reference
            for at, reference in enumerate(references)
            if reference not in self._references and reference not in references[:at]
        ]
        self._references += new
        return [self._list_found()] if new and self._context_sent else ()

    def _list_found(self) -> Item:
        self._context_sent = True
        return Item("context_ready", {"references": list(self._references)})

    def _context(self) -> Sequence[Item]:
        """Return the first ``context_ready`` if it was not sent yet."""
        return () if self._context_sent else [self._list_found()]

    def _rest(self) -> Sequence[Item]:
        return [*self._context(), *_chunk(self._chunks.end())]


def mark_of(name: str) -> str:
    """Return the mark at a citation of a document."""
    return f"[[{' '.join(name.split())}]]"


def reference_of(reference: Json) -> Json:
    """Return a citation in the contract's form, from its native form."""
    return {
        "entityId": reference["documentId"],
        "entityName": reference["documentName"],
        "snippet": reference["citedText"][:SNIPPET],
        "score": reference["score"],
    }


def _reference_of_hit(hit: Json) -> Json:
    return {
        "entityId": hit.get("documentId", hit["id"]),
        "entityName": hit["name"],
        "snippet": hit["snippet"][:SNIPPET],
        "score": hit["score"],
    }


def _chunk(text: str) -> Sequence[Item]:
    return [Item("chunk", text)] if text else ()
