"""Read the request of an AG-UI client: a ``RunAgentInput``, of which one user message is used.

Decides which parts are used, ignored or refused. The server keeps the conversation, so earlier messages in the request
are never shown to a model, and a client cannot forge the model's words or tool results. Pure. The official package
takes a quarter of a second to import, so it is imported on first use.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from agentic_rag.base.errors import InvalidInput
from agentic_rag.base.forms import read_form
from agentic_rag.base.json_form import Json, to_text
from agentic_rag.conversations.sent_images import PlacedImage, image_at, image_in
from agentic_rag.server.dialects.ag_ui_waits import Resumption

if TYPE_CHECKING:
    from ag_ui.core import Context, RunAgentInput

_INSTRUCTIONS = frozenset({"system", "developer"})
_ASIDE = frozenset({"reasoning", "activity"})
MAX_HISTORY = 1024 * 1024
"""Maximum JSON characters of a client's messages; longer histories are not kept during a run."""
CONTEXT = "[What the page says beside it; not the user's words]"


@dataclass(frozen=True, slots=True)
class RunRequest:
    """A run to start. ``history`` holds the client's messages as sent, None if they are too large.

    ``resume`` holds answers to interrupts. A run with answers continues the waiting turn and asks nothing new.
    """

    thread_id: str
    run_id: str
    content: str
    images: Sequence[PlacedImage]
    history: Sequence[Json] | None
    resume: Sequence[Resumption] = ()


@cache
def input_model() -> type["RunAgentInput"]:
    """Return the official model of a ``RunAgentInput``."""
    from ag_ui.core import RunAgentInput

    return RunAgentInput


def read_run(value: object) -> RunRequest:
    """Validate a ``RunAgentInput`` and return the run request in it.

    Raises:
        InvalidInput: names the first invalid field, or one that the client may not set.
    """
    run = read_form(input_model(), value)
    messages: list[Json] = run.model_dump(mode="json", by_alias=True)["messages"]
    _check_roles(messages)
    history = [
        message for message in messages if message["role"] != "activity"
    ]  # clients keep activity messages themselves
    sent_history = history if len(to_text(history)) <= MAX_HISTORY else None
    if run.resume:
        answers = [
            Resumption(at, entry.interrupt_id, entry.status == "cancelled", entry.payload)
            for at, entry in enumerate(run.resume)
        ]
        return RunRequest(run.thread_id, run.run_id, "", (), sent_history, answers)
    at = max((at for at, message in enumerate(messages) if message["role"] not in _ASIDE), default=-1)
    if at < 0 or messages[at]["role"] != "user":
        raise InvalidInput("messages", "the last message must be the user's: it is the one to answer.")
    text, images = _read_content(messages[at]["content"], f"messages.{at}.content")
    return RunRequest(run.thread_id, run.run_id, text + _text_of_context(run.context or ()), images, sent_history)


def _check_roles(messages: Sequence[Json]) -> None:
    """Refuse instructions, and results without a matching call."""
    called: set[str] = set()
    for at, message in enumerate(messages):
        if message["role"] in _INSTRUCTIONS:
            problem = "only user messages are accepted; the domain defines the system prompt."
            raise InvalidInput(f"messages.{at}.role", problem)
        called.update(call["id"] for call in message.get("toolCalls") or ())
        if message["role"] == "tool" and message["toolCallId"] not in called:
            problem = "this matches no pending call: tools run on this server, so clients cannot supply their results."
            raise InvalidInput(f"messages.{at}.toolCallId", problem)


def _read_content(content: str | list[Json], place: str) -> tuple[str, list[PlacedImage]]:
    """Return a message's text, its parts joined by line breaks, and its images."""
    if isinstance(content, str):
        return content, []
    texts: list[str] = []
    images: list[PlacedImage] = []
    for at, part in enumerate(content):
        match part["type"]:
            case "text":
                texts.append(part["text"])
            case "image":
                images.append(_image_of(part["source"], f"{place}.{at}.source.value"))
            case _:
                problem = "only text and images are taken; other files are uploaded to the domain."
                raise InvalidInput(f"{place}.{at}.type", problem)
    return "\n".join(texts), images


def _image_of(source: Json, place: str) -> PlacedImage:
    if source["type"] == "data":
        return image_in(place, source["value"], source["mimeType"])
    return image_at(place, source["value"], source.get("mimeType"))


def _text_of_context(context: Iterable["Context"]) -> str:
    """Return the context that the page sends beside a message, marked as such."""
    lines = [f"{entry.description}: {entry.value}" for entry in context]
    return "\n\n" + "\n".join([CONTEXT, *lines]) if lines else ""
