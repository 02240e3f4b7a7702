"""The older chat contract: ``data:`` lines with type, data and time, and a final ``[DONE]``.

It has no call ids, so only the main agent's calls are shown: results of concurrent delegates could not be told apart.
"""

from collections.abc import Sequence

from agentic_rag.base.events import AgentEvent
from agentic_rag.base.json_form import Json, to_text
from agentic_rag.server.dialects.answer import AnswerDialect, Item, write_sse

ENDS = frozenset({"done", "error"})


class Chat(AnswerDialect):
    """Encodes the chat contract. A session is a conversation; ``done`` has the answer, calls and citations."""

    name = "chat"

    def __init__(self, *, new_session: bool = True) -> None:
        """Create an encoder. ``new_session`` marks the first turn of a session."""
        super().__init__()
        self._new_session = new_session
        self._session: Json = {}
        self._texts: list[str] = []
        self._calls: dict[str, Json] = {}
        self._iteration = 0

    def sse(self, event: AgentEvent) -> bytes:
        """Return ``data:`` lines only, because clients split the stream at blank lines and strip that prefix."""
        items = self._items(event)
        lines = [write_sse("", to_text(_line(event, item))) for item in items]
        if any(item.name in ENDS for item in items):
            lines.append(write_sse("", "[DONE]"))
        return "".join(lines).encode()

    def say(self, kind: str, fields: Json) -> Sequence[Item]:
        match kind:
            case "turn_started":
                self._session = {"session_id": fields["conversationId"]}
                return [Item("session_created", self._session)] if self._new_session else ()
            case "iteration_start" if fields["iteration"] != self._iteration:
                self._iteration = fields["iteration"]
                return [Item("thinking", {"iteration": self._iteration, "status": "processing"})]
            case "text":
                content = self._text.add(fields["text"])
                self._texts.append(content)
                return [Item("text", {"content": content})] if content else ()
            case "tool_call" | "tool_result":
                return [Item(kind, self._call(kind, fields))]
            case "done":
                return [Item("done", self._final(fields))]
            case "interrupted":
                return self.abort()
        return ()

    def error(self, code: str, message: str, *, retryable: bool) -> Sequence[Item]:
        return [Item("error", {**self._session, "error": message, "code": code, "retryable": retryable})]

    def frame(self, event: AgentEvent, item: Item) -> Json:
        fields = event.fields()  # a socket serves many conversations
        return {**_line(event, item), "conversationId": fields["conversationId"], "turnId": event.turn_id}

    def _call(self, kind: str, fields: Json) -> Json:
        call = self._calls.setdefault(fields["toolCallId"], {"tool_name": fields["toolName"]})
        if kind == "tool_call":
            call["arguments"] = fields["arguments"]
            return dict(call)
        call |= {"result": fields["content"], "success": fields["status"] == "ok"}
        return {name: call[name] for name in ("tool_name", "result", "success")}

    def _final(self, fields: Json) -> Json:
        return {
            **self._session,
            "final_message": {"role": "assistant", "content": "".join(self._texts)},
            "tool_calls": list(self._calls.values()),
            "references": [citation_of(reference) for reference in fields["references"]],
        }


def _line(event: AgentEvent, item: Item) -> Json:
    return {"type": item.name, "data": item.data, "timestamp": event.fields()["ts"]}


def citation_of(reference: Json) -> Json:
    """Return a citation in the form of ``done``, from its native form. This is an addition to the contract."""
    return {
        "document_id": reference["documentId"],
        "document_name": reference["documentName"],
        "content": reference["citedText"],
        "score": reference["score"],
    }
