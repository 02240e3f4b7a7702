"""Validate requests of OpenAI's two APIs and convert them.

Decides which parameters are used, ignored or refused, and turns a list of messages into a question with earlier
exchanges. Pure. ``docs/clients/openai.md`` describes the same.

Parameters that only tune an answer (``temperature``, ``max_tokens``, ``seed`` …) are ignored: the domain's settings
apply. Parameters that would change its form are refused. The client's functions are offered to the model. Results of
the server's own tools are refused, because only these tools report them.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import orjson
from pydantic import ConfigDict, Field

from agentic_rag.base.errors import InvalidInput
from agentic_rag.base.forms import ValidatedForm
from agentic_rag.base.messages import clean_text
from agentic_rag.conversations.bookkeeping import MAX_MESSAGES
from agentic_rag.conversations.exchanges import Exchange, PastCall, PastStep
from agentic_rag.conversations.sent_images import MAX_IMAGES, PlacedImage, image_at
from agentic_rag.operations.calls import FunctionResult
from agentic_rag.runtime.core.client_functions import ANY_FUNCTION, NO_FUNCTIONS, ClientFunctions, JsonSchema
from agentic_rag.runtime.core.definition import ClientFunction

ASSISTANT_FIRST = "(The assistant begins.)"
"""Stands for the missing question before an assistant's first message."""

IMAGE_ALONE = "(An image.)"
"""Stands for an earlier question of images only; the images come with the last question."""

Role = Literal["user", "assistant", "system"]

NO_ANSWER = "(The assistant gave no answer.)"
"""Stands for the missing answer after an earlier call of a client's function."""

_ONLY_FUNCTIONS = "only functions of your program can be offered; the domain's own tools run on this server"
_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
MAX_STOPS = 16
MAX_STOP_CHARS = 500
MAX_TEXTS = 256
"""Maximum texts of one call for embeddings."""
MAX_TEXT_CHARS = 50_000
MAX_CALL_CHARS = 500_000
"""Maximum characters of a call's arguments, or of its result."""


class OpenAiForm(ValidatedForm):
    """Base of request models: OpenAI's names. Unknown fields are ignored, because newer clients send new ones."""

    model_config = ConfigDict(extra="ignore", frozen=True)


class ContentPart(OpenAiForm):
    """A part of a message's content."""

    type: str = Field(max_length=100)
    text: str | None = None
    image_url: Any = None


class CalledFunction(OpenAiForm):
    """Name and arguments (JSON text) of a call."""

    name: str = Field(max_length=500)
    arguments: str = Field("{}", max_length=MAX_CALL_CHARS)


class ChatToolCall(OpenAiForm):
    """A call in an assistant's message."""

    id: str = Field(max_length=500)
    type: str = Field("function", max_length=100)
    function: CalledFunction | None = None


class CompletionMessage(OpenAiForm):
    """One message of a chat completion."""

    role: str = Field(max_length=100)
    content: str | list[ContentPart] | None = None
    tool_calls: list[ChatToolCall] | None = None
    tool_call_id: str | None = Field(None, max_length=500)
    function_call: Any = None


class StreamOptions(OpenAiForm):
    """``include_usage`` requests one more chunk with the usage."""

    include_usage: bool | None = None


class ConversationName(OpenAiForm):
    """A conversation as an object."""

    id: str


class OpenAiCall(OpenAiForm):
    """Common fields of both APIs. ``store`` keeps the conversation; ``conversation`` continues an existing one."""

    model: str = Field(min_length=1, max_length=500)
    streamed: bool | None = Field(None, alias="stream")
    stream_options: StreamOptions | None = None
    store: bool | None = None
    conversation: str | ConversationName | None = None
    tools: list[Any] | None = None
    tool_choice: Any = None
    top_logprobs: int | None = None


class ChatCall(OpenAiCall):
    """The body of a chat completion."""

    messages: list[CompletionMessage] = Field(min_length=1)
    n: int | None = None
    logprobs: bool | None = None
    functions: list[Any] | None = None
    function_call: Any = None
    modalities: list[str] | None = None
    audio: Any = None
    response_format: dict[str, Any] | None = None
    stop: str | list[str] | None = None


class InputItem(OpenAiForm):
    """One item of a response's input."""

    type: str | None = Field(None, max_length=100)
    role: str | None = Field(None, max_length=100)
    content: str | list[ContentPart] | None = None
    call_id: str | None = Field(None, max_length=500)
    name: str | None = Field(None, max_length=500)
    arguments: str | None = Field(None, max_length=MAX_CALL_CHARS)
    output: str | list[ContentPart] | None = None


class ReasoningWish(OpenAiForm):
    """The form of the model's thoughts. Only ``summary`` has an effect: thoughts are sent as a summary."""

    effort: str | None = Field(None, max_length=40)
    summary: str | None = Field(None, max_length=40)


class ResponseCall(OpenAiCall):
    """The body of a response."""

    input: str | list[InputItem]
    instructions: str | None = None
    previous_response_id: str | None = Field(None, max_length=200)
    background: bool | None = None
    prompt: Any = None
    reasoning: ReasoningWish | None = None
    text: dict[str, Any] | None = None


class EmbeddingCall(OpenAiForm):
    """The body of a call for embeddings. ``input_type`` is an extra field: ``query`` or ``document``."""

    model: str = Field(min_length=1, max_length=500)
    input: str | list[Any]
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: int | None = None
    input_type: Literal["query", "document"] | None = None


def read_texts(call: EmbeddingCall) -> list[str]:
    """Return the texts of a call for embeddings.

    Raises:
        InvalidInput: there is no text, there are too many, one is empty or too long, or one is a list of tokens.
    """
    if call.dimensions is not None:
        raise InvalidInput("dimensions", "the embedder's vectors have one size: leave it out.")
    texts = [call.input] if isinstance(call.input, str) else call.input
    if not 0 < len(texts) <= MAX_TEXTS:
        raise InvalidInput("input", f"{len(texts)} texts; 1 to {MAX_TEXTS} are possible.")
    for at, text in enumerate(texts):
        path = "input" if isinstance(call.input, str) else f"input.{at}"
        if not isinstance(text, str):
            raise InvalidInput(path, "a text is expected: tokens of another model mean nothing to this embedder.")
        if not text.strip() or len(text) > MAX_TEXT_CHARS:
            raise InvalidInput(
                path, f"{len(text)} characters; 1 to {MAX_TEXT_CHARS} are possible, one of them visible."
            )
    return texts


@dataclass(frozen=True, slots=True)
class ConvertedCall:
    """A converted call: the last question, the exchanges before it, and the instructions of the client's program.

    ``images`` belong to the question, ``earlier_images`` to the messages before it. ``results`` are those of functions
    that a paused turn waits for; then there is no question. ``past_names`` are the functions that earlier messages
    called, each with its place in the request.
    """

    question: str
    before: tuple[Exchange, ...]
    wishes: str
    images: tuple[PlacedImage, ...] = ()
    earlier_images: tuple[PlacedImage, ...] = ()
    functions: ClientFunctions = NO_FUNCTIONS
    results: tuple[FunctionResult, ...] = ()
    past_names: tuple[tuple[str, str], ...] = ()

    @property
    def all_images(self) -> tuple[PlacedImage, ...]:
        """The newest images of all messages: without a kept conversation, earlier images are sent again."""
        return (self.earlier_images + self.images)[-max(MAX_IMAGES, len(self.images)) :]


@dataclass(frozen=True, slots=True)
class _Words:
    role: Role
    text: str
    images: tuple[PlacedImage, ...] = ()
    calls: tuple["_PlacedCall", ...] = ()


@dataclass(frozen=True, slots=True)
class _PlacedCall:
    """A call in an earlier message. ``path`` is the place of its name."""

    path: str
    id: str
    name: str
    arguments: str


_Entry = _Words | FunctionResult
"""The content of one message or item."""


def read_chat(call: ChatCall) -> ConvertedCall:
    """Return the question in a chat completion.

    Raises:
        InvalidInput: the call contains an unsupported parameter or value.
    """
    _check_common(call)
    refused: list[tuple[str, bool, str]] = [
        ("n", call.n not in (None, 1), "only 1 is possible."),
        ("logprobs", bool(call.logprobs), "they are not known: leave it out."),
        ("functions", bool(call.functions), "this older form is not known: use `tools`."),
        ("function_call", call.function_call not in (None, "auto", "none"), "use `tool_choice`."),
        ("modalities", call.modalities not in (None, [], ["text"]), "answers are text."),
        ("audio", call.audio is not None, "answers are text."),
    ]
    _refuse(refused)
    entries = [_read_message(f"messages.{at}", message) for at, message in enumerate(call.messages)]
    read_stops(call)
    response_format = call.response_format or {}
    inner = response_format.get("json_schema")
    form = _read_form(
        "response_format", response_format.get("type"), inner.get("schema") if isinstance(inner, Mapping) else None
    )
    functions = replace(_functions_of(call, "function"), form=form)
    _check_form_kept("response_format", call, functions)
    return replace(_question_of(entries, "messages"), functions=functions)


def read_stops(call: ChatCall) -> tuple[str, ...]:
    """Return the texts before which a chat completion ends.

    Raises:
        InvalidInput: a text is empty or too long, there are too many texts, or the conversation is stored: it would
            keep the text after the stop.
    """
    if call.stop is None or call.stop == []:
        return ()
    stops = (call.stop,) if isinstance(call.stop, str) else tuple(call.stop)
    if call.store or call.conversation is not None:
        raise InvalidInput("stop", _KEPT)
    if len(stops) > MAX_STOPS or not all(0 < len(stop) <= MAX_STOP_CHARS for stop in stops):
        raise InvalidInput("stop", f"at most {MAX_STOPS} texts of 1 to {MAX_STOP_CHARS} characters are possible.")
    return stops


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
    ]
    _refuse(refused)
    if isinstance(call.input, str):
        entries: list[_Entry] = [_Words("user", call.input)]
    else:
        items = [_read_item(f"input.{at}", item) for at, item in enumerate(call.input)]
        entries = [entry for entry in items if entry is not None]
    first = [_Words("system", call.instructions)] if call.instructions else []
    text_format = (call.text or {}).get("format")
    text_format = text_format if isinstance(text_format, Mapping) else {}
    functions = replace(
        _functions_of(call, ""), form=_read_form("text.format", text_format.get("type"), text_format.get("schema"))
    )
    _check_form_kept("text.format", call, functions)
    if functions.form is not None and call.previous_response_id is not None:
        raise InvalidInput("text.format", _KEPT)
    return replace(_question_of([*first, *entries], "input"), functions=functions)


def _check_common(call: OpenAiCall) -> None:
    refused: list[tuple[str, bool, str]] = [
        ("top_logprobs", bool(call.top_logprobs), "they are not known: leave it out."),
    ]
    _refuse(refused)


def _refuse(refused: Iterable[tuple[str, bool, str]]) -> None:
    for name, is_refused, problem in refused:
        if is_refused:
            raise InvalidInput(name, problem)


_KEPT = "not possible in stored conversations, which keep whole answers: leave out `store` and the conversation."


def _read_form(path: str, kind: object, schema: object) -> JsonSchema | None:
    """Return the JSON Schema of the wanted answer, or None for text."""
    if kind in (None, "text"):
        return None
    if kind == "json_object":
        return {"type": "object", "properties": {}, "additionalProperties": True}
    if kind != "json_schema":
        raise InvalidInput(path, f"{str(kind)[:80]!r} is not possible: text, json_object or json_schema.")
    if not isinstance(schema, Mapping) or schema.get("type") != "object":
        raise InvalidInput(path, "a JSON Schema whose type is 'object' is expected.")
    return dict(schema)


def _check_form_kept(path: str, call: OpenAiCall, functions: ClientFunctions) -> None:
    if functions.form is not None and (call.store or call.conversation is not None):
        raise InvalidInput(path, _KEPT)


def _functions_of(call: OpenAiCall, inner: str) -> ClientFunctions:
    """Return the functions that a call offers. ``inner`` is the member of a tool that holds its definition, if any."""
    functions: list[ClientFunction] = []
    for at, tool in enumerate(call.tools or ()):
        path = f"tools.{at}"
        if not isinstance(tool, Mapping):
            raise InvalidInput(path, "an object is expected.")
        if tool.get("type") != "function":
            raise InvalidInput(f"{path}.type", f"{str(tool.get('type'))[:80]!r}: {_ONLY_FUNCTIONS}.")
        if inner:
            path, tool = f"{path}.{inner}", tool.get(inner)
        functions.append(_read_function(path, tool, functions))
    choice, named = _read_choice(call.tool_choice)
    names = [function.name for function in functions]
    for name in named:
        if name not in names:
            raise InvalidInput("tool_choice", f"{name[:80]!r} is none of the `tools`.")
    if choice == "none":  # after the checks, because a malformed tool is refused with every choice
        return NO_FUNCTIONS
    if choice == ANY_FUNCTION and not functions:
        raise InvalidInput("tool_choice", "'required' needs `tools`: the domain's own tools are the model's choice.")
    if choice == _ONE:
        return ClientFunctions(tuple(functions), named[0])
    offered = tuple(function for function in functions if not named or function.name in named)
    return ClientFunctions(offered, ANY_FUNCTION if choice == ANY_FUNCTION else "")


def _read_function(path: str, tool: Any, others: Iterable[ClientFunction]) -> ClientFunction:
    if not isinstance(tool, Mapping):
        raise InvalidInput(path, "an object with `name` is expected.")
    name, description, parameters = tool.get("name"), tool.get("description"), tool.get("parameters")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise InvalidInput(f"{path}.name", f"{str(name)[:80]!r}: 1 to 64 letters, digits, `_` and `-` are expected.")
    if any(other.name == name for other in others):
        raise InvalidInput(f"{path}.name", f"{name!r} is listed twice.")
    if description is not None and not isinstance(description, str):
        raise InvalidInput(f"{path}.description", "a text is expected.")
    if parameters is not None and not isinstance(parameters, Mapping):
        raise InvalidInput(f"{path}.parameters", "a JSON Schema is expected.")
    # OpenAI's clients leave the parameters out if a function has none.
    schema = {"type": "object", "properties": {}, **(parameters or {})}
    if schema["type"] != "object":
        raise InvalidInput(f"{path}.parameters.type", f"{str(schema['type'])[:80]!r}: 'object' is expected.")
    return ClientFunction(name, clean_text(description or ""), schema)


_ONE = "one"


def _read_choice(choice: Any) -> tuple[str, list[str]]:
    """Return the mode of a ``tool_choice`` (`_ONE` for a single function) and the functions that it names."""
    if choice is None:
        return "auto", []
    if isinstance(choice, str) and choice in ("auto", "none", ANY_FUNCTION):
        return choice, []
    if isinstance(choice, Mapping) and choice.get("type") == "function":
        return _ONE, [_chosen_name(choice)]
    if isinstance(choice, Mapping) and choice.get("type") == "allowed_tools":
        allowed = choice["allowed_tools"] if isinstance(choice.get("allowed_tools"), Mapping) else choice
        tools, mode = allowed.get("tools"), allowed.get("mode", "auto")
        if isinstance(tools, list) and tools and mode in ("auto", "none", ANY_FUNCTION):
            return mode, [_chosen_name(tool) for tool in tools]
    raise InvalidInput("tool_choice", "'auto', 'none', 'required', or one or several of the `tools` are expected.")


def _chosen_name(choice: Any) -> str:
    function = choice.get("function", choice) if isinstance(choice, Mapping) else None
    name = function.get("name") if isinstance(function, Mapping) else None
    if not isinstance(name, str):
        raise InvalidInput("tool_choice", "the name of a function is expected.")
    return name


def _read_message(path: str, message: CompletionMessage) -> _Entry:
    if message.role == "tool":
        if not message.tool_call_id:
            raise InvalidInput(f"{path}.tool_call_id", "required: the id of the call.")
        output = _text_of(f"{path}.content", message.content)
        return FunctionResult(f"{path}.tool_call_id", message.tool_call_id, output)
    if message.role == "function" or message.function_call:
        raise InvalidInput(f"{path}.role", "this older form is not known: use `tools` and the role `tool`.")
    words = _words(path, message.role, message.content)
    if not message.tool_calls:
        return words
    if words.role != "assistant":
        raise InvalidInput(f"{path}.tool_calls", "only messages of the assistant have calls.")
    calls = []
    for at, call in enumerate(message.tool_calls):
        place = f"{path}.tool_calls.{at}"
        if call.function is None:
            raise InvalidInput(f"{place}.type", f"{call.type!r}: {_ONLY_FUNCTIONS}.")
        calls.append(_PlacedCall(f"{place}.function.name", call.id, call.function.name, call.function.arguments))
    return replace(words, calls=tuple(calls))


_OWN_ITEMS = frozenset({"reasoning", "mcp_call"})
"""Items of this server's answers. Clients send them back, and they are ignored."""


def _read_item(path: str, item: InputItem) -> _Entry | None:
    if item.type in _OWN_ITEMS:
        return None
    if item.type in ("function_call", "function_call_output") and not item.call_id:
        raise InvalidInput(f"{path}.call_id", "required: the id of the call.")
    if item.type == "function_call":
        call = _PlacedCall(f"{path}.name", item.call_id or "", item.name or "", item.arguments or "{}")
        return _Words("assistant", "", calls=(call,))
    if item.type == "function_call_output":
        return FunctionResult(f"{path}.call_id", item.call_id or "", _text_of(f"{path}.output", item.output))
    if item.type not in (None, "message"):
        why = "no items are kept apart from conversations" if item.type == "item_reference" else _ONLY_FUNCTIONS
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


def _words(path: str, role_name: str, content: str | Sequence[ContentPart] | None) -> _Words:
    role = _role(path, role_name)
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


def _text_of(path: str, content: str | Sequence[ContentPart] | None) -> str:
    """Return the text of a result."""
    if content is None or isinstance(content, str):
        text = content or ""
    else:
        for at, part in enumerate(content):
            if part.type not in ("text", "input_text", "output_text"):
                raise InvalidInput(f"{path}.{at}.type", f"{part.type!r} is not possible: results are text.")
        text = "".join(part.text or "" for part in content)
    if len(text) > MAX_CALL_CHARS:
        raise InvalidInput(path, f"{len(text)} characters; at most {MAX_CALL_CHARS} are possible.")
    return clean_text(text)


def _image(place: str, image_url: Any) -> PlacedImage:
    """Return an image. Chat completions put its address into an object, responses do not."""
    if isinstance(image_url, dict):
        return image_at(f"{place}.url", image_url.get("url"))
    return image_at(place, image_url)


def _question_of(entries: Sequence[_Entry], place: str) -> ConvertedCall:
    """Return the question with its earlier exchanges, or the results of functions if they come last."""
    if len(entries) > MAX_MESSAGES:
        raise InvalidInput(place, f"{len(entries)} messages; at most {MAX_MESSAGES} are possible.")
    wishes = "\n\n".join(entry.text for entry in entries if isinstance(entry, _Words) and entry.role == "system")
    conversation = [entry for entry in entries if not isinstance(entry, _Words) or entry.role != "system"]
    # Results at the end continue a paused turn. Results before other messages belong to earlier calls.
    results: list[FunctionResult] = []
    while conversation and isinstance(last := conversation[-1], FunctionResult):
        results.insert(0, last)
        conversation.pop()
    if results:
        if len({result.call_id for result in results}) < len(results):
            raise InvalidInput(results[-1].path, "a call has only one result.")
        return ConvertedCall("", (), wishes, results=tuple(results))
    outputs = {entry.call_id: entry.output for entry in conversation if isinstance(entry, FunctionResult)}
    words = [
        entry
        for entry in conversation
        if isinstance(entry, _Words) and (entry.text.strip() or entry.images or entry.calls)
    ]
    rounds = _rounds_of(words)
    if not rounds or rounds[-1].answers:
        raise InvalidInput(
            place, "the last message has to be the user's, with at least one visible character or an image."
        )
    *earlier, question = rounds
    before = tuple(earlier_round.exchange(outputs) for earlier_round in earlier)
    images = tuple(image for earlier_round in earlier for image in earlier_round.images)
    names = tuple((call.path, call.name) for message in words for call in message.calls)
    return ConvertedCall(question.text, before, wishes, question.images, images, past_names=names)


@dataclass(slots=True)
class _Round:
    """The user's consecutive messages, and those of the assistant that follow."""

    texts: list[str] = field(default_factory=list)
    images: tuple[PlacedImage, ...] = ()
    answers: list[_Words] = field(default_factory=list)

    @property
    def text(self) -> str:
        return "\n\n".join(filter(None, self.texts))

    def exchange(self, outputs: Mapping[str, str]) -> Exchange:
        """Return the exchange. ``outputs``: results by call. Calls without a result are left out."""
        steps: list[PastStep] = []
        texts: list[str] = []
        for answer in self.answers:
            if answer.text:
                texts.append(answer.text)
            calls = tuple(_past_call(call, outputs[call.id]) for call in answer.calls if call.id in outputs)
            if not calls:
                continue
            if steps and not texts:  # items of parallel calls
                steps[-1] = PastStep(steps[-1].text, (*steps[-1].calls, *calls))
            else:
                steps.append(PastStep("\n\n".join(texts), calls))
            texts = []
        return Exchange(self.text or IMAGE_ALONE, "\n\n".join(texts) or NO_ANSWER, tuple(steps))


def _rounds_of(words: Iterable[_Words]) -> list[_Round]:
    """Return the exchanges in a list of messages; the last one may have no answer."""
    rounds: list[_Round] = []
    for message in words:
        if message.role == "assistant":
            if not rounds:
                rounds.append(_Round([ASSISTANT_FIRST]))
            rounds[-1].answers.append(message)
            continue
        if not rounds or rounds[-1].answers:
            rounds.append(_Round())
        rounds[-1].texts.append(message.text)
        rounds[-1].images += message.images
    return rounds


def _past_call(call: _PlacedCall, output: str) -> PastCall:
    """Return an earlier call.

    Raises:
        InvalidInput: its name is invalid.
    """
    if not _NAME.fullmatch(call.name):
        raise InvalidInput(call.path, f"{call.name[:80]!r}: 1 to 64 letters, digits, `_` and `-` are expected.")
    try:
        arguments = orjson.loads(call.arguments or "{}")
    except orjson.JSONDecodeError:
        arguments = None
    return PastCall(call.name, arguments if isinstance(arguments, dict) else {}, output)
