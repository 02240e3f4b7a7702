"""What a client may say on `/ws`, and what the server answers besides events.

Owns the frames: their shapes, their checks, their JSON. Knows no socket, no
conversation and no dialect; events are encoded by ``dialects``.
"""

from collections.abc import Callable
from typing import Annotated, Any, Literal

import orjson
from pydantic import AfterValidator, ConfigDict, Field, ValidationError

from agentic_rag.errors import AgenticRagError, InvalidInput
from agentic_rag.forms import NO_NUL, Form, invalid_input
from agentic_rag.json_form import Json

MAX_ID = 200
"""Longest id a client may name or choose, in characters."""


def _refuse_nul(text: str) -> str:
    if "\0" in text:
        raise ValueError(NO_NUL)
    return text


Ident = Annotated[str, Field(min_length=1, max_length=MAX_ID), AfterValidator(_refuse_nul)]


class Frame(Form):
    """Base. ``requestId`` is the client's own and comes back in the answer. Unknown keys are let pass, so that
    newer clients can talk to older servers."""

    model_config = ConfigDict(extra="ignore", strict=True)

    request_id: Ident | None = None


class MessageFrame(Frame):
    """Send a message and follow its turn from event 1. NULs in ``content`` are removed by its taker."""

    conversation_id: Ident
    content: str
    client_message_id: Ident | None = None
    on_busy: Literal["reject", "queue"] = "reject"


class RetryFrame(Frame):
    """Answer a message of the user again, on a branch that ends before the old answer, and follow that turn."""

    conversation_id: Ident
    message_id: Ident
    client_message_id: Ident | None = None


class EditFrame(RetryFrame):
    """The same with other words for the message."""

    content: str


class SubscribeFrame(Frame):
    """Follow a conversation: strictly after event ``after`` of turn ``turnId``, or from what runs now."""

    conversation_id: Ident
    turn_id: Ident | None = None
    after: Annotated[int, Field(ge=0, le=2**53)] | None = None


class UnsubscribeFrame(Frame):
    """Stop following a conversation."""

    conversation_id: Ident


class InterruptFrame(Frame):
    """Stop the running turn, or only turn ``turnId``; ``queued`` drops the waiting ones too."""

    conversation_id: Ident
    turn_id: Ident | None = None
    queued: bool = False


class PingFrame(Frame):
    """Ask for a pong."""


ClientFrame = MessageFrame | RetryFrame | EditFrame | SubscribeFrame | UnsubscribeFrame | InterruptFrame | PingFrame

FRAMES: dict[str, type[ClientFrame]] = {
    "message": MessageFrame,
    "retry": RetryFrame,
    "edit": EditFrame,
    "subscribe": SubscribeFrame,
    "unsubscribe": UnsubscribeFrame,
    "interrupt": InterruptFrame,
    "ping": PingFrame,
}

_ECHOED = {
    "requestId": ("requestId", "request_id"),
    "conversationId": ("conversationId", "conversation_id"),
    "clientMessageId": ("clientMessageId", "client_message_id"),
}


def read_object(text: str | None) -> Json:
    """Parse a frame's text; None stands for a binary frame.

    Raises:
        InvalidInput: it is no JSON object.
    """
    if text is None:
        raise InvalidInput("frame", "frames are JSON text; binary frames are not taken.")
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError as exc:
        raise InvalidInput("frame", f"this is not JSON: {exc.msg}.") from exc
    if not isinstance(value, dict):
        raise InvalidInput("frame", "a frame is a JSON object.")
    return value


def read_frame(value: Json) -> ClientFrame:
    """Check a parsed frame.

    Raises:
        InvalidInput: names the first field that does not fit and says what would.
    """
    kind = value.get("type")
    model = FRAMES.get(kind) if isinstance(kind, str) else None
    if model is None:
        said = f"{kind[:40]!r} is not known" if isinstance(kind, str) else "a string is required"
        raise InvalidInput("type", f"{said}. Known: {', '.join(FRAMES)}.")
    try:
        frame = model.model_validate(value)
    except ValidationError as exc:
        raise invalid_input(exc) from exc
    if isinstance(frame, SubscribeFrame) and frame.after is not None and frame.turn_id is None:
        raise InvalidInput("after", "numbers belong to a turn: give turnId too.")
    return frame


def origin_of(value: Json) -> dict[str, str]:
    """Return the ids of a frame that may not be well-formed, for its error to name."""
    ids = {}
    for name, spellings in _ECHOED.items():
        ident = next((value[spelling] for spelling in spellings if spelling in value), None)
        if isinstance(ident, str) and 0 < len(ident) <= MAX_ID:
            ids[name] = ident
    return ids


def encode_reply(kind: str, **fields: object) -> bytes:
    """Return an answer's text; absent (None) fields are left out."""
    return orjson.dumps({"type": kind, **{name: value for name, value in fields.items() if value is not None}})


def encode_error(error: AgenticRagError, origin: dict[str, str], redact: Callable[[Any], Any]) -> bytes:
    """Return the ``error`` frame of a refusal: no ``turnId`` of its own, unlike the event that ends a turn.

    ``redact`` takes secrets out of its words; the client's own ids in ``origin`` come back as they were.
    """
    message, details = redact([str(error), error.details or None])
    return encode_reply("error", code=error.code, message=message, details=details, **origin)
