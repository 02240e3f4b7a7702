"""The older message contract: an answer as deltas, with its sources.

Includes the two frames that its clients send, and the JSON answer. On a WebSocket, a source is nested under ``source``.
"""

from collections.abc import Sequence

from agentic_rag.base.errors import (
    AnswerFailed,
    GenerationAborted,
    InvalidInput,
    MessageContentRequired,
    ServerStopping,
)
from agentic_rag.base.events import AgentEvent
from agentic_rag.base.ids import ConversationId
from agentic_rag.base.json_form import Json, to_text
from agentic_rag.server.dialects.answer import AnswerDialect, AnswerText, Item
from agentic_rag.server.ws.frames import (
    MAX_ID,
    AcceptedReply,
    AnsweredReply,
    ClientFrame,
    ErrorReply,
    InterruptFrame,
    PongReply,
    Reply,
    ResyncReply,
    SubscribedReply,
    read_frame,
)


class MessageDialect(AnswerDialect):
    """``message_start``, ``content_delta``, one ``source_reference`` per source, then one end."""

    name = "message"

    def __init__(self) -> None:
        super().__init__()
        self._sources: list[Json] = []
        self._message_id: str | None = None

    def say(self, kind: str, fields: Json) -> Sequence[Item]:
        match kind:
            case "turn_started":
                self._message_id = fields["messageId"]
                return [Item("message_start", {"messageId": self._message_id})]
            case "text":
                delta = self._text.add(fields["text"])
                return [Item("content_delta", {"delta": delta})] if delta else ()
            case "source_reference":
                source = source_of(fields)
                if source in self._sources:
                    return ()
                self._sources.append(source)
                return [Item("source_reference", source)]
            case "done":
                used = fields["usage"]
                usage = {"inputTokens": used["inputTokens"], "outputTokens": used["outputTokens"]}
                return [Item("message_complete", {"messageId": fields["messageId"], "usage": usage})]
            case "interrupted":
                return self.abort()
        return ()

    def frame(self, event: AgentEvent, item: Item) -> Json:
        if item.name == "source_reference":
            item = Item(item.name, {"source": item.data})
        written = super().frame(event, item)
        return {**written, "messageId": self._message_id} if self._message_id else written


class MessageFrames:
    """The frames of the contract's clients: ``message`` and ``abort``. Native's other frames are accepted, too.

    An ``abort`` names its conversation or the message whose answer it stops. Without either, it stops the last message
    of this socket.
    """

    def __init__(self) -> None:
        self._last: ConversationId | None = None
        self._begun: dict[str, AcceptedReply] = {}

    def read(self, value: Json) -> ClientFrame:
        """Read a frame. An ``abort`` may have other keys (clients add a ``reason``): a stop is never refused for them.

        Raises:
            MessageContentRequired: a message without content.
            InvalidInput: names the first other field that does not fit, or that the contract does not have.
        """
        if value.get("type") == "message" and value.get("content") is None and not value.get("images"):
            raise MessageContentRequired
        if value.get("type") != "abort":
            return read_frame(value, forbid_unknown=True)
        accepted = self._begun.get(str(value.get("messageId", value.get("message_id"))))
        conversation = value.get("conversationId", value.get("conversation_id"))
        if conversation is None:
            conversation = self._last if accepted is None else accepted.conversation_id
        if not isinstance(conversation, str) or not 0 < len(conversation) <= MAX_ID or "\0" in conversation:
            raise InvalidInput("conversationId", f"the id of a conversation is expected, 1 to {MAX_ID} characters.")
        turn = accepted.turn_id if accepted is not None and accepted.conversation_id == conversation else None
        return InterruptFrame(conversation_id=ConversationId(conversation), turn_id=turn)

    def encode(self, reply: Reply) -> tuple[bytes, ...]:
        """Return a pong or an error. The contract has no other replies: ``message_start`` comes as an event."""
        match reply:
            case AcceptedReply():
                self._last = reply.conversation_id
                self._begun[reply.message_id] = reply
                while len(self._begun) > MAX_BEGUN:  # the oldest first
                    del self._begun[next(iter(self._begun))]
                return ()
            case SubscribedReply() | AnsweredReply():
                return ()
            case PongReply():
                message: Json = {"type": "pong"}
            case ResyncReply():
                message = {"conversationId": reply.conversation_id, **_error(reply.reason, "LOG_GONE")}
            case ErrorReply():
                message = {**reply.origin, **_error(reply.message, reply.code)}
        return (to_text(message).encode(),)


class MessageAnswer:
    """The answer of a turn as one message, for a client that waits for it. Retracted text is not included."""

    def __init__(self) -> None:
        self._steps: dict[int, tuple[bool, list[str]]] = {}
        self._begin: Json = {}
        self._end: Json = {}

    def collect(self, event: AgentEvent) -> None:
        """Process the turn's next event."""
        fields = event.fields()
        if fields.get("agent"):
            return
        match event.type:
            case "turn_started":
                self._begin = fields
            case "iteration_start":
                self._steps[fields["iteration"]] = (fields["continues"], [])
            case "text":
                self._steps[max(self._steps)][1].append(fields["text"])
            case "step_reset" if fields["iteration"] in self._steps:
                self._steps[fields["iteration"]][1].clear()  # a repeated model call continues in its step
            case "done" | "error" | "interrupted":
                self._end = fields

    def result(self) -> Json:
        """Return the message.

        Raises:
            AnswerFailed, GenerationAborted: the turn has ended without an answer.
            ServerStopping: the turn continues in another process.
        """
        match self._end.get("type"):
            case "error":
                raise AnswerFailed(self._end["code"], self._end["message"], self._end["retryable"])
            case "interrupted":
                raise GenerationAborted
            case None:
                raise ServerStopping
        end = self._end
        return {
            "id": end["messageId"],
            "conversationId": end["conversationId"],
            "turnId": end["turnId"],
            "parentMessageId": self._begin["userMessageId"],
            "role": "assistant",
            "content": self._content(),
            "references": end["references"],
            "metadata": {
                "model": end["model"],
                "usage": end["usage"],
                "stopReason": end["stopReason"],
                **sources_and_tokens(end["references"], end["usage"]),
            },
            "createdAt": end["ts"],
        }

    def _content(self) -> str:
        answer, content = AnswerText(), ""
        for continues, pieces in self._steps.values():
            answer.begin_step(continues=continues)
            content += answer.add("".join(pieces))
        return content


MAX_BEGUN = 200
"""Maximum messages of one socket whose answers an ``abort`` may name."""


def source_of(reference: Json) -> Json:
    """Return a citation in the contract's form, from its native form."""
    return {
        "documentId": reference["documentId"],
        "documentName": reference["documentName"],
        "content": reference["citedText"],
        "relevanceScore": reference["score"],
    }


def sources_and_tokens(references: Sequence[Json], usage: Json) -> Json:
    """Return the additional members of an answer's ``metadata`` in the contract."""
    tokens = {name: usage.get(name, 0) for name in ("inputTokens", "outputTokens")}
    return {"sources": [source_of(reference) for reference in references], "tokensUsed": tokens}


def _error(message: str, code: str) -> Json:
    return {"type": "error", "error": message, "code": code}
