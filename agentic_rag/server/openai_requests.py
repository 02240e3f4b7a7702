"""Validate requests of OpenAI's two APIs and convert them.

Decides which parameters are used, ignored or refused, and turns a list of messages into a question with earlier
exchanges. Pure. ``docs/clients/openai.md`` describes the same.

Parameters that only tune an answer (``temperature``, ``max_tokens``, ``seed`` …) are ignored: the domain's settings
apply. Parameters that would change its form, or offer the client's tools, are refused. Tool calls and results in
requests are refused, because only the server's own tools may report results to the model.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import ConfigDict, Field

from agentic_rag.base.errors import InvalidInput
from agentic_rag.base.forms import ValidatedForm
from agentic_rag.conversations.bookkeeping import MAX_MESSAGES
from agentic_rag.conversations.exchanges import Exchange
from agentic_rag.conversations.sent_images import MAX_IMAGES, PlacedImage, image_at

ASSISTANT_FIRST = "(The assistant begins.)"
"""Stands for the missing question before an assistant's first message."""

IMAGE_ALONE = "(An image.)"
"""Stands for an earlier question of images only; the images come with the last question."""

Role = Literal["user", "assistant", "system"]

_CALLS = "tools run on the server: neither calls nor results of them can be given"
_TOOLS = "the domain's tools run on the server, others cannot be called: leave it out"


class OpenAiForm(ValidatedForm):
    """Base of request models: OpenAI's names. Unknown fields are ignored, because newer clients send new ones."""

    model_config = ConfigDict(extra="ignore", frozen=True)


class ContentPart(OpenAiForm):
    """A part of a message's content."""

    type: str = Field(max_length=100)
    text: str | None = None
    image_url: Any = None


class ChatMessage(OpenAiForm):
    """One message of a chat completion."""

    role: str = Field(max_length=100)
    content: str | list[ContentPart] | None = None
    tool_calls: list[Any] | None = None
    function_call: Any = None


class StreamOptions(OpenAiForm):
    """``include_usage`` requests one more chunk with the usage."""

    include_usage: bool | None = None


class ConversationName(OpenAiForm):
    """A conversation as an object."""

    id: str


class Call(OpenAiForm):
    """Common fields of both APIs. ``store`` keeps the conversation; ``conversation`` continues an existing one."""

    model: str = Field(min_length=1, max_length=500)
    streamed: bool | None = Field(None, alias="stream")
    stream_options: StreamOptions | None = None
    store: bool | None = None
    conversation: str | ConversationName | None = None
    tools: list[Any] | None = None
    tool_choice: Any = None
    top_logprobs: int | None = None


class ChatCall(Call):
    """The body of a chat completion."""

    messages: list[ChatMessage] = Field(min_length=1)
    n: int | None = None
    logprobs: bool | None = None
    functions: list[Any] | None = None
    function_call: Any = None
    modalities: list[str] | None = None
    audio: Any = None
    response_format: dict[str, Any] | None = None
    stop: str | list[str] | None = None


class Item(OpenAiForm):
    """One item of a response's input."""

    type: str | None = Field(None, max_length=100)
    role: str | None = Field(None, max_length=100)
    content: str | list[ContentPart] | None = None


class ReasoningWish(OpenAiForm):
    """The form of the model's thoughts. Only ``summary`` has an effect: thoughts are sent as a summary."""

    effort: str | None = Field(None, max_length=40)
    summary: str | None = Field(None, max_length=40)


class ResponseCall(Call):
    """The body of a response."""

    input: str | list[Item]
    instructions: str | None = None
    previous_response_id: str | None = Field(None, max_length=200)
    background: bool | None = None
    prompt: Any = None
    reasoning: ReasoningWish | None = None
    text: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class ConvertedCall:
    """A converted call: the last question, the exchanges before it, and the instructions of the client's program.

    ``images`` belong to the question, ``earlier_images`` to the messages before it.
    """

    question: str
    before: tuple[Exchange, ...]
    wishes: str
    images: tuple[PlacedImage, ...] = ()
    earlier_images: tuple[PlacedImage, ...] = ()

    @property
    def all_images(self) -> tuple[PlacedImage, ...]:
        """The newest images of all messages: without a kept conversation, earlier images are sent again."""
        return (self.earlier_images + self.images)[-max(MAX_IMAGES, len(self.images)) :]


@dataclass(frozen=True, slots=True)
class _Words:
    role: Role
    text: str
    images: tuple[PlacedImage, ...] = ()


def read_chat(call: ChatCall) -> ConvertedCall:
    """Return the question in a chat completion.

    Raises:
        InvalidInput: the call contains an unsupported parameter or value.
    """
    _check_common(call)
    refused: list[tuple[str, bool, str]] = [
        ("n", call.n not in (None, 1), "only 1 is possible."),
        ("logprobs", bool(call.logprobs), "they are not known: leave it out."),
        ("functions", bool(call.functions), _TOOLS + "."),
        ("function_call", call.function_call not in (None, "auto", "none"), _TOOLS + "."),
        ("modalities", call.modalities not in (None, [], ["text"]), "answers are text."),
        ("audio", call.audio is not None, "answers are text."),
        ("response_format", not _is_text(call.response_format), "answers are text."),
        ("stop", bool(call.stop), "not possible: leave it out."),
    ]
    _refuse(refused)
    return _question_of([_read_message(f"messages.{at}", each) for at, each in enumerate(call.messages)], "messages")


def read_response(call: ResponseCall) -> ConvertedCall:
    """Return the question in a response call.

    Raises:
        InvalidInput: the call contains an unsupported parameter or value.
    """
    _check_common(call)
    several = call.previous_response_id is not None and call.conversation is not None
    refused: list[tuple[str, bool, str]] = [
        ("previous_response_id", several, "not together with `conversation`."),
        ("background", bool(call.background), "not possible: send it without, or as a message of a conversation."),
        ("prompt", call.prompt is not None, "there are no stored prompts: write `instructions`."),
        ("text", not _is_text((call.text or {}).get("format")), "answers are text."),
    ]
    _refuse(refused)
    if isinstance(call.input, str):
        words = [_Words("user", call.input)]
    else:
        items = [_read_item(f"input.{at}", each) for at, each in enumerate(call.input)]
        words = [each for each in items if each is not None]
    first = [_Words("system", call.instructions)] if call.instructions else []
    return _question_of([*first, *words], "input")


def _check_common(call: Call) -> None:
    refused: list[tuple[str, bool, str]] = [
        ("tools", bool(call.tools), _TOOLS + "."),
        ("tool_choice", call.tool_choice not in (None, "auto"), _TOOLS + "."),
        ("top_logprobs", bool(call.top_logprobs), "they are not known: leave it out."),
    ]
    _refuse(refused)


def _refuse(refused: Iterable[tuple[str, bool, str]]) -> None:
    for name, is_refused, problem in refused:
        if is_refused:
            raise InvalidInput(name, problem)


def _is_text(wanted: Any) -> bool:
    return wanted is None or (isinstance(wanted, dict) and wanted.get("type") == "text")


def _read_message(path: str, message: ChatMessage) -> _Words:
    if message.role in ("tool", "function"):
        raise InvalidInput(f"{path}.role", f"{_CALLS}.")
    for name, value in (("tool_calls", message.tool_calls), ("function_call", message.function_call)):
        if value:
            raise InvalidInput(f"{path}.{name}", f"{_CALLS}.")
    return _words(path, message.role, message.content)


_OWN_ITEMS = frozenset({"reasoning", "mcp_call"})
"""Items of this server's answers. Clients send them back, and they are ignored."""


def _read_item(path: str, item: Item) -> _Words | None:
    if item.type in _OWN_ITEMS:
        return None
    if item.type not in (None, "message"):
        why = "no items are kept apart from conversations" if item.type == "item_reference" else _CALLS
        raise InvalidInput(f"{path}.type", f"{item.type!r} is not possible: {why}.")
    if item.role is None:
        raise InvalidInput(f"{path}.role", "required: user, assistant, system or developer.")
    return _words(path, item.role, item.content)


def _role(path: str, role: str) -> Role:
    match role:
        case "user" | "assistant" | "system":
            return role
        case "developer":
            return "system"
        case _:
            raise InvalidInput(f"{path}.role", f"{role!r} is not known: user, assistant, system or developer.")


def _words(path: str, given: str, content: str | Sequence[ContentPart] | None) -> _Words:
    role = _role(path, given)
    if content is None or isinstance(content, str):
        return _Words(role, content or "")
    texts: list[str] = []
    images: list[PlacedImage] = []
    for at, part in enumerate(content):
        place = f"{path}.content.{at}"
        if part.type in ("text", "input_text", "output_text", "refusal"):
            texts.append(part.text or "")
        elif part.type in ("image_url", "input_image") and role == "user":
            images.append(_image(f"{place}.image_url", part.image_url))
        else:
            problem = f"{part.type!r} is not possible: text is taken, and images of the user."
            raise InvalidInput(f"{place}.type", problem)
    return _Words(role, "".join(texts), tuple(images))


def _image(place: str, given: Any) -> PlacedImage:
    """Return an image. Chat completions put its address into an object, responses do not."""
    if isinstance(given, dict):
        return image_at(f"{place}.url", given.get("url"))
    return image_at(place, given)


def _question_of(words: Sequence[_Words], place: str) -> ConvertedCall:
    """Return the question with its earlier exchanges. Consecutive messages of one role are joined."""
    if len(words) > MAX_MESSAGES:
        raise InvalidInput(place, f"{len(words)} messages; at most {MAX_MESSAGES} are possible.")
    wishes = "\n\n".join(each.text for each in words if each.role == "system")
    said: list[_Words] = []
    for each in words:
        if each.role == "system" or not (each.text.strip() or each.images):
            continue
        if said and said[-1].role == each.role:
            text = "\n\n".join(filter(None, (said[-1].text, each.text)))
            said[-1] = _Words(each.role, text, said[-1].images + each.images)
        else:
            said.append(each)
    if not said or said[-1].role != "user":
        raise InvalidInput(
            place, "the last message has to be the user's, with at least one visible character or an image."
        )
    if said[0].role == "assistant":
        said.insert(0, _Words("user", ASSISTANT_FIRST))
    pairs = zip(said[:-1:2], said[1:-1:2], strict=True)
    before = tuple(Exchange(question.text or IMAGE_ALONE, answer.text) for question, answer in pairs)
    earlier = tuple(image for each in said[:-1] for image in each.images)
    return ConvertedCall(said[-1].text, before, wishes, said[-1].images, earlier)
