"""New titles between turns, told to those who follow a conversation.

Owns who listens. A listener that has gone hears nothing more; what nobody hears stands in the conversation's record.
"""

from typing import Protocol

from agentic_rag.events import AgentEvent
from agentic_rag.ids import ConversationId


class TitleListener(Protocol):
    """Who follows conversations."""

    def hear_title(self, conversation_id: ConversationId, event: AgentEvent) -> None:
        """Take notice of a title; it is no part of a turn's log. It must not wait and not raise."""
        ...


class TitleNews:
    """Who listens to which conversations."""

    def __init__(self) -> None:
        self._listeners: dict[ConversationId, list[TitleListener]] = {}

    def listen(self, conversation_id: ConversationId, listener: TitleListener) -> None:
        """Tell a listener the new titles of a conversation from now on."""
        self._listeners.setdefault(conversation_id, []).append(listener)

    def unlisten(self, conversation_id: ConversationId, listener: TitleListener) -> None:
        """Undo `listen`."""
        left = [each for each in self._listeners.pop(conversation_id, ()) if each is not listener]
        if left:
            self._listeners[conversation_id] = left

    def is_heard(self, conversation_id: ConversationId) -> bool:
        """Whether anybody listens to a conversation."""
        return conversation_id in self._listeners

    def tell(self, conversation_id: ConversationId, event: AgentEvent) -> None:
        """Tell everybody who listens to a conversation."""
        for each in tuple(self._listeners.get(conversation_id, ())):
            each.hear_title(conversation_id, event)
