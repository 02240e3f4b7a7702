"""Notify clients that follow a conversation of a title stored between turns.

Without a listener, a new title is only in the conversation's record.
"""

from typing import Protocol

from agentic_rag.base.events import AgentEvent
from agentic_rag.base.ids import ConversationId


class TitleListener(Protocol):
    """A client connection that follows conversations."""

    def hear_title(self, conversation_id: ConversationId, event: AgentEvent) -> None:
        """Handle a new title. The event is not part of a turn's log. Must neither block nor raise."""
        ...


class TitleNews:
    """The listeners of each conversation."""

    def __init__(self) -> None:
        self._listeners: dict[ConversationId, list[TitleListener]] = {}

    def listen(self, conversation_id: ConversationId, listener: TitleListener) -> None:
        """Register a listener for new titles of a conversation."""
        self._listeners.setdefault(conversation_id, []).append(listener)

    def unlisten(self, conversation_id: ConversationId, listener: TitleListener) -> None:
        """Undo `listen`."""
        remaining = [other for other in self._listeners.pop(conversation_id, ()) if other is not listener]
        if remaining:
            self._listeners[conversation_id] = remaining

    def is_heard(self, conversation_id: ConversationId) -> bool:
        """Return whether a conversation has listeners."""
        return conversation_id in self._listeners

    def tell(self, conversation_id: ConversationId, event: AgentEvent) -> None:
        """Notify all listeners of a conversation."""
        for listener in tuple(self._listeners.get(conversation_id, ())):
            listener.hear_title(conversation_id, event)
