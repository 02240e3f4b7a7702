"""The messages of a conversation that an AG-UI client has while a run streams.

Builds the ``MESSAGES_SNAPSHOT``. AG-UI can only retract content by sending all messages again, so a retracted step
needs all other messages. Pure; knows no event.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from agentic_rag.base.json_form import Json

Step = tuple[str, int]
"""A step: the agent's path (empty for the main agent), and the step's number."""


@dataclass(slots=True)
class _Message:
    """A message of this run. ``text`` holds its streamed pieces, ``calls`` those of its calls' arguments."""

    head: Json
    step: Step
    text: list[str] = field(default_factory=list)
    calls: dict[str, tuple[str, list[str]]] = field(default_factory=dict)

    def to_json(self) -> Json:
        message = dict(self.head)
        call = message.pop("toolCallId", None)
        if self.text or message["role"] != "assistant":
            message["content"] = "".join(self.text)
        if call is not None:
            message["toolCallId"] = call  # last, as the official package writes it
        if self.calls:
            message["toolCalls"] = [
                {"id": call, "type": "function", "function": {"name": name, "arguments": "".join(pieces)}}
                for call, (name, pieces) in self.calls.items()
            ]
        return message


class RunMessages:
    """The messages of one client: those in its request, and those streamed since."""

    def __init__(self, history: Sequence[Json]) -> None:
        self._history = history
        self._messages: dict[str, _Message] = {}

    def begin(self, message_id: str, role: str, step: Step, subagent: Json) -> None:
        """Begin or continue a message. ``subagent`` is the field that names a delegate."""
        if message_id not in self._messages:
            self._messages[message_id] = _Message({**subagent, "id": message_id, "role": role}, step)

    def write(self, message_id: str, text: str) -> None:
        """Append to a message's text."""
        self._messages[message_id].text.append(text)

    def call(self, message_id: str, call_id: str, name: str) -> None:
        """Add a tool call to a message."""
        self._messages[message_id].calls[call_id] = (name, [])

    def argue(self, message_id: str, call_id: str, piece: str) -> None:
        """Append to the arguments of a message's call."""
        self._messages[message_id].calls[call_id][1].append(piece)

    def answer(self, message_id: str, call_id: str, content: str, step: Step, subagent: Json) -> None:
        """Add a tool's result."""
        head = {**subagent, "id": message_id, "role": "tool", "toolCallId": call_id}
        self._messages[message_id] = _Message(head, step, [content])

    def take_back(self, step: Step) -> None:
        """Remove the content of a step.

        Its reasoning stays as an empty message, because a client keeps reasoning that a snapshot omits.
        """
        remaining: dict[str, _Message] = {}
        for ident, message in self._messages.items():
            if message.step == step and message.head["role"] != "reasoning":
                continue
            if message.step == step:
                message.text.clear()
            remaining[ident] = message
        self._messages = remaining

    def to_json(self) -> list[Json]:
        """Return all messages in order, in AG-UI's form."""
        return [*self._history, *(message.to_json() for message in self._messages.values())]
