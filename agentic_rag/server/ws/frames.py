"""Frames of `/ws`: the client's requests, and the server's replies other than events.

This module defines their shapes, checks and JSON. It knows no socket, no conversation and no dialect. ``dialects``
encodes the events.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, assert_never

import orjson
from pydantic import AfterValidator, ConfigDict, Field, ValidationError

from agentic_rag.base.errors import AgenticRagError, InvalidInput
from agentic_rag.base.forms import NO_NUL, AnswerJson, Form, invalid_input, unknown_key, unknown_keys
from agentic_rag.base.ids import ConversationId, MessageId, TurnId, WaitId
from agentic_rag.base.json_form import Json, to_text
from agentic_rag.conversations.conversations import MAX_ATTACHMENTS
from agentic_rag.conversations.sent_images import MAX_IMAGES, GivenImage

MAX_ID = 200
"""Maximum length of a client's id, in characters."""


def _refuse_nul(text: str) -> str:
    if "\0" in text:
        raise ValueError(NO_NUL)
    return text


_CHECKS = (Field(min_length=1, max_length=MAX_ID), AfterValidator(_refuse_nul))
Ident = Annotated[str, *_CHECKS]
ConversationIdent = Annotated[ConversationId, *_CHECKS]
TurnIdent = Annotated[TurnId, *_CHECKS]
MessageIdent = Annotated[MessageId, *_CHECKS]


class FrameForm(Form):
    """Base class. ``requestId`` is the client's own id and is returned in the reply.

    `read_frame` decides about unknown keys. The native protocol ignores them, so that newer clients can talk to older
    servers.
    """

    model_config = ConfigDict(extra="ignore", strict=True)

    request_id: Ident | None = None


class TurnFrame(FrameForm):
    """Base class of frames that start a turn. ``traceparent`` is the W3C trace context of the client."""

    traceparent: Ident | None = None


class MessageFrame(TurnFrame):
    """Send a message and follow its turn from event 1. With ``images`` the text may be empty.

    ``attachments`` are ids of files attached to the conversation. ``model`` is one of the domain's ``models``, for this
    message and the later ones of the conversation. NULs in ``content`` are removed later.
    """

    conversation_id: ConversationIdent
    content: str
    images: list[GivenImage] = Field(default_factory=list, max_length=MAX_IMAGES)
    model: Ident | None = None
    attachments: list[Ident] = Field(default_factory=list, max_length=MAX_ATTACHMENTS)
    client_message_id: Ident | None = None
    on_busy: Literal["reject", "queue"] = "reject"


class RetryFrame(TurnFrame):
    """Answer a message of the user again, on a new branch without the old answer, and follow that turn."""

    conversation_id: ConversationIdent
    message_id: MessageIdent
    model: Ident | None = None
    client_message_id: Ident | None = None


class EditFrame(RetryFrame):
    """Replace a message of the user, answer it on a new branch, and follow that turn."""

    content: str


class SubscribeFrame(FrameForm):
    """Follow a conversation after event ``after`` of turn ``turnId``, or from the currently running turn."""

    conversation_id: ConversationIdent
    turn_id: TurnIdent | None = None
    after: Annotated[int, Field(ge=0, le=2**53)] | None = None


class UnsubscribeFrame(FrameForm):
    """Stop following a conversation."""

    conversation_id: ConversationIdent


class InterruptFrame(FrameForm):
    """Stop the running turn, or only the turn ``turnId``. ``queued`` also drops the queued ones."""

    conversation_id: ConversationIdent
    turn_id: TurnIdent | None = None
    queued: bool = False


class AnswerFrame(FrameForm):
    """Answer a wait of a turn. The first answer counts. ``content`` is as in ``POST /api/waits/{id}``."""

    wait_id: Ident
    action: Literal["accept", "decline", "cancel"]
    content: AnswerJson = None


class PingFrame(FrameForm):
    """Ask for a pong."""


ClientFrame = (
    MessageFrame | RetryFrame | EditFrame | SubscribeFrame | UnsubscribeFrame | InterruptFrame | AnswerFrame | PingFrame
)

FRAMES: dict[str, type[ClientFrame]] = {
    "message": MessageFrame,
    "retry": RetryFrame,
    "edit": EditFrame,
    "subscribe": SubscribeFrame,
    "unsubscribe": UnsubscribeFrame,
    "interrupt": InterruptFrame,
    "answer": AnswerFrame,
    "ping": PingFrame,
}

_ECHOED = {
    "requestId": ("requestId", "request_id"),
    "conversationId": ("conversationId", "conversation_id"),
    "clientMessageId": ("clientMessageId", "client_message_id"),
    "waitId": ("waitId", "wait_id"),
}


def read_object(text: str | None) -> Json:
    """Parse a frame's text. None stands for a binary frame.

    Raises:
        InvalidInput: the text is not a JSON object.
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


def read_frame(value: Json, *, forbid_unknown: bool = False) -> ClientFrame:
    """Check a parsed frame.

    ``forbid_unknown``: refuse unknown keys. An interrupt is never refused for them.

    Raises:
        InvalidInput: names the first invalid field and says which values are valid.
    """
    kind = value.get("type")
    model = FRAMES.get(kind) if isinstance(kind, str) else None
    if model is None:
        problem = f"{kind[:40]!r} is not known" if isinstance(kind, str) else "a string is required"
        raise InvalidInput("type", f"{problem}. Known: {', '.join(FRAMES)}.")
    # A client must be able to stop its turn, even if the rest of its frame is invalid.
    if forbid_unknown and model is not InterruptFrame:
        for key in unknown_keys(model, value):
            if key != "type":
                raise unknown_key(key[:MAX_ID])
    try:
        frame = model.model_validate(value)
    except ValidationError as exc:
        raise invalid_input(exc) from exc
    if isinstance(frame, SubscribeFrame) and frame.after is not None and frame.turn_id is None:
        raise InvalidInput("after", "numbers belong to a turn: give turnId too.")
    return frame


def origin_of(value: Json) -> dict[str, str]:
    """Return the ids in a possibly malformed frame, to be repeated in its error."""
    ids = {}
    for name, spellings in _ECHOED.items():
        ident = next((value[spelling] for spelling in spellings if spelling in value), None)
        if isinstance(ident, str) and 0 < len(ident) <= MAX_ID:
            ids[name] = ident
    return ids


@dataclass(frozen=True, slots=True)
class AcceptedReply:
    """Reply: the message is stored, and the events of its turn will follow."""

    conversation_id: ConversationId
    turn_id: TurnId
    user_message_id: MessageId
    message_id: MessageId
    client_message_id: str | None = None
    queued: bool = False
    request_id: str | None = None


@dataclass(frozen=True, slots=True)
class SubscribedReply:
    """Reply: the conversation is followed after event ``seq`` of a turn.

    Without a turn, from the next one that starts.
    """

    conversation_id: ConversationId
    turn_id: TurnId | None
    seq: int
    request_id: str | None = None


@dataclass(frozen=True, slots=True)
class ResyncReply:
    """Reply: the log of a turn is gone, and the client has to reload the messages."""

    conversation_id: ConversationId
    turn_id: TurnId
    reason: str


@dataclass(frozen=True, slots=True)
class AnsweredReply:
    """Reply: the answer to a wait is stored. ``input_answered`` follows among the turn's events."""

    wait_id: WaitId
    state: str
    request_id: str | None = None


@dataclass(frozen=True, slots=True)
class PongReply:
    """Reply to a ping."""

    request_id: str | None = None


@dataclass(frozen=True, slots=True)
class ErrorReply:
    """Reply: the frame was refused, or the conversation can no longer be followed. No turn has ended because of it.

    ``origin`` holds the ids in the frame, by their camelCase names.
    """

    code: str
    message: str
    details: Json | None = None
    origin: Mapping[str, str] = field(default_factory=dict)


Reply = AcceptedReply | SubscribedReply | ResyncReply | AnsweredReply | PongReply | ErrorReply


class NativeFrames:
    """The frames of ``docs/clients/native.md``. ``forbid_unknown``: see `read_frame`."""

    def __init__(self, *, forbid_unknown: bool = False) -> None:
        self._forbid_unknown = forbid_unknown

    def read(self, value: Json) -> ClientFrame:
        """Read a frame as `read_frame` does."""
        return read_frame(value, forbid_unknown=self._forbid_unknown)

    def encode(self, reply: Reply) -> tuple[bytes, ...]:
        """Encode a reply: ``accepted``, ``subscribed``, ``resync``, ``answered``, ``pong`` or ``error``."""
        return (to_text(reply_fields(reply)).encode(),)


def reply_fields(reply: Reply) -> Json:
    """Return the JSON fields of a reply. Fields that are None are left out."""
    match reply:
        case AcceptedReply():
            fields: Json = {
                "type": "accepted",
                "conversationId": reply.conversation_id,
                "turnId": reply.turn_id,
                "clientMessageId": reply.client_message_id,
                "userMessageId": reply.user_message_id,
                "messageId": reply.message_id,
                "queued": reply.queued or None,
                "requestId": reply.request_id,
            }
        case SubscribedReply():
            fields = {
                "type": "subscribed",
                "conversationId": reply.conversation_id,
                "turnId": reply.turn_id,
                "seq": reply.seq,
                "requestId": reply.request_id,
            }
        case ResyncReply():
            fields = {
                "type": "resync",
                "conversationId": reply.conversation_id,
                "turnId": reply.turn_id,
                "reason": reply.reason,
            }
        case AnsweredReply():
            fields = {
                "type": "answered",
                "waitId": reply.wait_id,
                "state": reply.state,
                "requestId": reply.request_id,
            }
        case PongReply():
            fields = {"type": "pong", "requestId": reply.request_id}
        case ErrorReply():
            error = {"code": reply.code, "message": reply.message, "details": reply.details}
            fields = {"type": "error", **error, **reply.origin}
        case _:
            assert_never(reply)
    return {name: value for name, value in fields.items() if value is not None}


def refuse(error: AgenticRagError, origin: dict[str, str], redact: Callable[[Any], Any], *, whole: bool) -> ErrorReply:
    """Return the reply for a refusal.

    ``redact`` removes secrets from its texts; the client's own ids in ``origin`` are returned unchanged. ``whole``:
    include details that are only for operators.
    """
    message, details = redact([str(error) if whole else error.plain, error.details or None])
    return ErrorReply(error.code, message, details, origin)
