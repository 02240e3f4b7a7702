"""The AgentX contract: text as deltas, and progress as states of the conversation, its tools and the turn.

``data`` has native's fields in camelCase. Of a delegate, only its tools are shown.
"""

from collections.abc import Sequence

from agentic_rag.base.events import AgentEvent
from agentic_rag.base.json_form import Json, to_text
from agentic_rag.server.dialects.answer import AnswerDialect, Item, write_sse

_ENVELOPE = ("type", "conversationId", "turnId", "seq", "ts")
"""Fields of every native event that appear beside ``data``."""

TAKEN_BACK = "The model broke off before this call was made."


class AgentX(AnswerDialect):
    """Encodes the AgentX contract.

    A planned call that the model retracts ends as ``tool_failed``; only text cannot be retracted.
    """

    name = "agentx"

    def __init__(self) -> None:
        super().__init__()
        self._planned: dict[str, dict[str, Json]] = {}
        self._turn: Json = {}

    def say(self, kind: str, fields: Json) -> Sequence[Item]:
        match kind:
            case "turn_started":
                self._turn = {"turnId": fields["turnId"], "messageId": fields["messageId"]}
                request = {**self._turn, "messageId": fields["userMessageId"], "content": fields["content"]}
                return [Item("conversation_start", dict(self._turn)), Item("turn_request", request)]
            case "iteration_start":
                return [Item("conversation_thinking", {"iteration": fields["iteration"]})]
            case "text":
                is_first = not self._text.in_step
                text = self._text.add(fields["text"])
                delta = [Item("text_delta", {"text": text})] if text else []
                return [Item("conversation_responding"), *delta] if is_first and text else delta
            case "done":
                return self._complete(fields)
            case "interrupted":
                return [*self._drop_planned(""), Item("conversation_interrupted", {"code": "GENERATION_ABORTED"})]
        return self._of_tool("", kind, fields)

    def of_delegate(self, kind: str, fields: Json) -> Sequence[Item]:
        return self._of_tool(fields["agent"], kind, fields)

    def error(self, code: str, message: str, *, retryable: bool) -> Sequence[Item]:
        failure = Item("error", {"code": code, "message": message, "retryable": retryable})
        return [*self._drop_planned(""), failure, Item("conversation_end", {**self._turn, "reason": "error"})]

    def sse_item(self, event: AgentEvent, item: Item) -> str:
        return write_sse(item.name, to_text(self.frame(event, item)))

    def frame(self, event: AgentEvent, item: Item) -> Json:
        fields = event.fields()
        envelope = {name: fields[name] for name in ("conversationId", "turnId")}
        return {"type": item.name, **envelope, "timestamp": fields["ts"], "data": item.data}

    def _complete(self, fields: Json) -> Sequence[Item]:
        data = _data_of(fields)
        response = {**self._turn, **{name: data[name] for name in ("usage", "model", "stopReason")}}
        response["duration"] = data["timings"].get("total")
        ended = Item("conversation_end", {**self._turn, "reason": "completed"})
        return [Item("message_complete", data), Item("turn_response", response), ended]

    def _of_tool(self, agent: str, kind: str, fields: Json) -> Sequence[Item]:
        planned = self._planned.setdefault(agent, {})
        match kind:
            case "step_reset":
                return self._drop_planned(agent)
            case "tool_call_started":
                planned[fields["toolCallId"]] = data = _data_of(fields)
                return [Item("tool_planned", data)]
            case "tool_call":
                data = _data_of(fields)
                was_planned = planned.pop(fields["toolCallId"], None) is not None
                named = {name: item for name, item in data.items() if name != "arguments"}
                return [*([] if was_planned else [Item("tool_planned", named)]), Item("tool_executing", data)]
            case "tool_result":
                name = "tool_completed" if fields["status"] == "ok" else "tool_failed"
                return [Item(name, _data_of(fields))]
        return ()

    def _drop_planned(self, agent: str) -> Sequence[Item]:
        """Return the ends of the planned calls that an agent, or a delegate below it, will not make."""
        below = [path for path in self._planned if not agent or path == agent or path.startswith(f"{agent}/")]
        dropped = [call for path in below for call in self._planned.pop(path).values()]
        return [Item("tool_failed", {**call, "status": "interrupted", "content": TAKEN_BACK}) for call in dropped]


def _data_of(fields: Json) -> Json:
    return {name: item for name, item in fields.items() if name not in _ENVELOPE}
