"""The older knowledge contract: what was found, then the bare text of the answer with ``[[name]]`` at its citations.

Owns where that text may be cut. Clients of the contract trim each line of a chunk, so a chunk begins and ends inside a
word: then trimming takes nothing away but what stands around a line break.
"""

from collections.abc import Sequence

from agentic_rag.events import AgentEvent
from agentic_rag.json_form import Json, to_text
from agentic_rag.server.dialects.answer import AnswerDialect, Item, write_sse

SNIPPET = 200
"""Characters of a reference's snippet."""


class Chunks:
    """A text in pieces that are cut between two letters or digits only. What is after the last cut is held back."""

    __slots__ = ("_held", "_last")

    def __init__(self) -> None:
        self._held: list[str] = []
        self._last = " "

    def add(self, text: str) -> str:
        """Return what may be sent now that ``text`` has come; the rest is held back, at least its last character."""
        for at in range(len(text) - 1, -1, -1):
            before = text[at - 1] if at else self._last
            if before.isalnum() and text[at].isalnum():
                piece = "".join([*self._held, text[:at]])
                self._held, self._last = [text[at:]], text[-1]
                return piece
        self.hold(text)
        return ""

    def hold(self, text: str) -> None:
        """Put ``text`` behind what has come, without a cut in it."""
        if text:
            self._held.append(text)
            self._last = text[-1]

    def end(self) -> str:
        """Return what is held back."""
        rest, self._held = "".join(self._held), []
        return rest


class Knowledge(AnswerDialect):
    """``user_message``, exactly one ``context_ready``, ``chunk`` by ``chunk``, then one end."""

    name = "knowledge"

    def __init__(self) -> None:
        super().__init__()
        self._chunks = Chunks()
        self._found: list[Json] | None = []

    def say(self, kind: str, fields: Json) -> Sequence[Item]:
        match kind:
            case "turn_started":
                return [Item("user_message", {"id": fields["userMessageId"]})]
            case "retrieval":
                self._note(fields)
            case "text":
                text = self._text.add(fields["text"])
                return [*self._context(), *_chunk(self._chunks.add(text))] if text else ()
            case "source_reference":
                self._chunks.hold(mark_of(fields["documentName"]))
            case "done":
                references = [reference_of(each) for each in fields["references"]]
                return [*self._rest(), Item("done", {"id": fields["messageId"], "references": references})]
            case "interrupted":
                return self.abort()
        return ()

    def of_delegate(self, kind: str, fields: Json) -> Sequence[Item]:
        if kind == "retrieval":
            self._note(fields)
        return ()

    def error(self, code: str, message: str, *, retryable: bool) -> Sequence[Item]:
        return [*self._rest(), Item("error", {"message": message, "code": code, "retryable": retryable})]

    def sse_item(self, event: AgentEvent, item: Item) -> str:
        return write_sse(item.name, item.data if isinstance(item.data, str) else to_text(item.data))

    def _note(self, fields: Json) -> None:
        if self._found is not None and fields["source"] == "documents":
            found = (_reference_of_hit(hit) for hit in fields["hits"])
            self._found += [each for each in found if each not in self._found]

    def _context(self) -> Sequence[Item]:
        """Return ``context_ready`` if it was not said yet."""
        if self._found is None:
            return ()
        found, self._found = self._found, None
        return [Item("context_ready", {"references": found})]

    def _rest(self) -> Sequence[Item]:
        return [*self._context(), *_chunk(self._chunks.end())]


def mark_of(name: str) -> str:
    """Return what is written at a citation of a document."""
    return f"[[{' '.join(name.split())}]]"


def reference_of(reference: Json) -> Json:
    """Return a citation as the contract has it, from its native form."""
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
