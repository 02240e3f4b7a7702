"""All encoders by name: those that a client selects, and those that only a route creates."""

from collections.abc import Callable

from agentic_rag.server.dialects import dialect_names, get_dialect
from agentic_rag.server.dialects.a2a import A2aForm, A2aStream, A2aTask, TaskSeed
from agentic_rag.server.dialects.ag_ui import AgUi
from agentic_rag.server.dialects.base import Dialect
from agentic_rag.server.dialects.openai_responses import OpenAiResponses

TASK = TaskSeed("turn_1", "conv_1", "Hi", "m", "2026-11-26T08:00:00.000Z")

OF_ROUTES: dict[str, Callable[[], Dialect]] = {
    "openai-responses": OpenAiResponses,
    "a2a": lambda: A2aStream("r", A2aTask(A2aForm(legacy=False), TASK)),
    "a2a 0.3, to the end": lambda: A2aStream("r", A2aTask(A2aForm(legacy=True), TASK), to_end=True),
    "ag-ui with its history": lambda: AgUi("thread", "run", [{"id": "m", "role": "user", "content": "Hi"}]),
}
"""Encoders without a ``?dialect=`` name. Their routes create them with arguments."""

ENCODERS = (*dialect_names(), *OF_ROUTES)


def make_encoder(name: str) -> Dialect:
    """Return a new encoder for one stream."""
    return OF_ROUTES[name]() if name in OF_ROUTES else get_dialect(name)
