"""A client for Agentic RAG servers: one WebSocket, events that survive lost connections, waits and citations."""

from agentic_rag_client.client import Client, Event, LogGone, ServerError, Turn
from agentic_rag_client.view import (
    Call,
    Citation,
    Compaction,
    Item,
    Lane,
    Notice,
    Retrieval,
    Text,
    Thinking,
    TurnView,
    WaitMark,
)

__all__ = [
    "Call",
    "Citation",
    "Client",
    "Compaction",
    "Event",
    "Item",
    "Lane",
    "LogGone",
    "Notice",
    "Retrieval",
    "ServerError",
    "Text",
    "Thinking",
    "Turn",
    "TurnView",
    "WaitMark",
]
