"""The checks of a chat-completions service on a request, with the texts of the strictest services.

Owns these rules; pure. Real services differ. A rule of any of them is applied here, so that all of them accept a
request that passes.
"""

import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import orjson

from agentic_rag.base.json_form import Json
from agentic_rag.testing.schema_problems import chat_schema_problems

_PARAMETERS: Final = frozenset(
    {
        *("model", "messages", "max_tokens", "max_completion_tokens", "stream", "stream_options", "tools"),
        *("tool_choice", "temperature", "reasoning_effort"),
    }
)
_NAME: Final = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_KEYS: Final = {
    "system": {"role", "content"},
    "user": {"role", "content"},
    "assistant": {"role", "content", "tool_calls"},
    "tool": {"role", "content", "tool_call_id"},
}
MAX_ID: Final = 40
MAX_TOOLS: Final = 128
MAX_DESCRIPTION: Final = 1024
BYTES_PER_TOKEN: Final = 4
"""The stand-in's tokenizer."""


@dataclass(frozen=True, slots=True)
class ChatRules:
    """The rules of one model.

    ``images``: it accepts images.
    ``reasons``: the limit has its new name, there is an effort and no temperature.
    ``replays``: reasoning of the running turn must be sent back, and no other may.
    ``refuses``: further parameters.
    ``schema_refuses``: keywords refused in a tool's parameters (see `chat_schema_problems`).
    """

    images: bool = True
    reasons: bool = False
    replays: bool = False
    refuses: frozenset[str] = frozenset()
    schema_refuses: frozenset[str] = frozenset()
    context_window: int | None = None


def chat_problems(request: Json, rules: ChatRules) -> list[str]:
    """Return all problems of a request, in the order of a service's checks."""
    return [*_parameters(request, rules), *_tools(request, rules), *_messages(request, rules), *_length(request, rules)]


def _parameters(request: Json, rules: ChatRules) -> Iterator[str]:
    for name in request.keys() - _PARAMETERS:
        yield f"Unrecognized request argument supplied: {name}"
    for name in request.keys() & rules.refuses:
        yield f"Unsupported parameter: '{name}' is not supported with this model."
    if not isinstance(request.get("model"), str) or not request["model"]:
        yield "you must provide a model parameter"
    if "max_tokens" in request and "max_completion_tokens" in request:
        yield "max_tokens and max_completion_tokens cannot both be set."
    if rules.reasons and "max_tokens" in request:
        yield (
            "Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens' instead."
        )
    if rules.reasons and request.get("temperature", 1) != 1:
        yield "Unsupported value: 'temperature' does not support this value with this model."
    if "reasoning_effort" in request and not rules.reasons:
        yield "Unrecognized request argument supplied: reasoning_effort"
    limit = request.get("max_tokens", request.get("max_completion_tokens", 1))
    if not isinstance(limit, int) or limit < 1:
        yield f"Invalid 'max_tokens': integer below minimum value. Expected a value >= 1, but got {limit} instead."
    if "stream_options" in request and not request.get("stream"):
        yield "The 'stream_options' parameter is only allowed when 'stream' is enabled."


def _tools(request: Json, rules: ChatRules) -> Iterator[str]:
    tools = request.get("tools")
    if tools is None:
        if "tool_choice" in request:
            yield "Invalid value for 'tool_choice': 'tool_choice' is only allowed when 'tools' are specified."
        return
    if not isinstance(tools, list) or not tools:
        yield "[] is too short - 'tools'"
        return
    if len(tools) > MAX_TOOLS:
        yield f"Invalid 'tools': array too long. Expected an array with maximum length {MAX_TOOLS}."
    names: list[str] = []
    for place, tool in enumerate(tools):
        function = tool.get("function") or {}
        if tool.keys() != {"type", "function"} or tool["type"] != "function":
            yield f"Missing required parameter: 'tools[{place}].function'."
        if function.keys() - {"name", "description", "parameters", "strict"}:
            yield f"Unknown parameter in 'tools[{place}].function'."
        if not _NAME.fullmatch(str(function.get("name"))):
            yield f"Invalid 'tools[{place}].function.name': string does not match pattern '^[a-zA-Z0-9_-]+$'."
        yield from _function(place, function, rules)
        names.append(str(function.get("name")))
    if len(set(names)) < len(names):
        yield "Tool names must be unique."
    choice = request.get("tool_choice", "auto")
    named = choice.get("function", {}).get("name") if isinstance(choice, dict) else None
    if choice not in ("auto", "none", "required") and named not in names:
        yield "Invalid value for 'tool_choice'."


def _function(place: int, function: Json, rules: ChatRules) -> Iterator[str]:
    parameters = function.get("parameters")
    if isinstance(parameters, dict) and "properties" not in parameters:
        yield f"Invalid schema for function {function.get('name')!r}: In context=(), object schema missing properties."
    if len(function.get("description", "")) > MAX_DESCRIPTION:
        limit = f"Expected a string with maximum length {MAX_DESCRIPTION}"
        yield f"Invalid 'tools[{place}].function.description': string too long. {limit}."
    yield from chat_schema_problems(place, function.get("name"), parameters, rules.schema_refuses)


def _messages(request: Json, rules: ChatRules) -> Iterator[str]:
    messages = request.get("messages")
    if not isinstance(messages, list) or not messages:
        yield "[] is too short - 'messages'"
        return
    open_ids: list[str] = []
    last_question = max((place for place, entry in enumerate(messages) if entry.get("role") == "user"), default=0)
    for place, message in enumerate(messages):
        where, role = f"messages[{place}]", message.get("role")
        if role not in _KEYS:
            yield f"Invalid value: {role!r}. Supported values are: 'system', 'assistant', 'user' and 'tool'."
            continue
        if open_ids and role != "tool":
            yield (
                "An assistant message with 'tool_calls' must be followed by tool messages responding to each "
                f"'tool_call_id'. The following tool_call_ids did not have response messages: {', '.join(open_ids)}"
            )
            open_ids = []
        if role == "tool":
            yield from _answer(message, open_ids, where)
        also = {"reasoning_content"} if rules.replays and role == "assistant" else set()
        if unknown := message.keys() - _KEYS[role] - also:
            yield f"Unrecognized request argument supplied: {where}.{', '.join(sorted(unknown))}"
        if (
            rules.replays
            and message.get("tool_calls")
            and place > last_question
            and not message.get("reasoning_content")
        ):
            yield "Missing reasoning_content field in the assistant message: thinking is on"
        yield from _content(message, role, where, rules)
        if role == "assistant" and "tool_calls" in message:
            open_ids = [str(call.get("id")) for call in message["tool_calls"]]
            yield from _calls(message["tool_calls"], f"{where}.tool_calls")
    if open_ids:
        yield "An assistant message with 'tool_calls' must be followed by tool messages (the last one is not)."


def _answer(message: Json, open_ids: list[str], where: str) -> Iterator[str]:
    ident = message.get("tool_call_id")
    if ident in open_ids:
        open_ids.remove(str(ident))
    else:
        yield f"Invalid parameter: {where} must be a response to a preceding message with 'tool_calls'."


def _calls(calls: Any, where: str) -> Iterator[str]:
    if not isinstance(calls, list) or not calls:
        yield f"Invalid '{where}': empty array. Expected an array with minimum length 1."
        return
    for place, call in enumerate(calls):
        function = call.get("function") or {}
        ident = call.get("id")
        if not isinstance(ident, str) or not 0 < len(ident) <= MAX_ID:
            yield f"Invalid '{where}[{place}].id': a string of 1 to {MAX_ID} characters is expected."
        if call.get("type") != "function" or call.keys() - {"id", "type", "function"}:
            yield f"Missing required parameter: '{where}[{place}].type'."
        if not _NAME.fullmatch(str(function.get("name"))):
            yield f"Invalid '{where}[{place}].function.name'."
        if not _is_object(function.get("arguments")):
            yield f"Invalid '{where}[{place}].function.arguments': the text of a JSON object is expected."
    if len({call.get("id") for call in calls}) < len(calls):
        yield f"Duplicate value for 'tool_call_id' in '{where}'."


def _is_object(text: Any) -> bool:
    try:
        return isinstance(text, str) and isinstance(orjson.loads(text), dict)
    except orjson.JSONDecodeError:
        return False


def _content(message: Json, role: str, where: str, rules: ChatRules) -> Iterator[str]:
    content = message.get("content")
    if content is None:
        if role != "assistant" or not message.get("tool_calls"):
            yield f"Invalid value for 'content': expected a string, got null ({where})."
    elif isinstance(content, str):
        if not content.strip() and role in ("user", "system"):
            yield f"Invalid '{where}.content': a blank text."
    elif not isinstance(content, list) or not content or role != "user":
        yield f"Invalid type for '{where}.content': a string is expected."
    else:
        yield from _parts(content, where, rules)


def _parts(parts: Sequence[Json], where: str, rules: ChatRules) -> Iterator[str]:
    for part in parts:
        if part.get("type") == "text" and part.keys() == {"type", "text"} and str(part["text"]).strip():
            continue
        url = (part.get("image_url") or {}).get("url", "") if part.get("type") == "image_url" else ""
        if not url.startswith(("data:image/", "https://")):
            yield f"Invalid '{where}.content': {part.get('type')!r} is no part of a message, or has no content."
        elif not rules.images:
            yield "This model does not support image_url in messages."


def _length(request: Json, rules: ChatRules) -> Iterator[str]:
    if rules.context_window is None:
        return
    prompt_tokens = tokens_of(request)
    most = request.get("max_tokens", request.get("max_completion_tokens", 0))
    if isinstance(most, int) and prompt_tokens + most > rules.context_window:
        yield (
            f"This model's maximum context length is {rules.context_window} tokens. However, you requested "
            f"{prompt_tokens + most} tokens ({prompt_tokens} in the messages, {most} in the completion)."
        )


def tokens_of(request: Json) -> int:
    """Return about how many tokens a request's messages and tools have."""
    return len(orjson.dumps([request["messages"], request.get("tools", ())])) // BYTES_PER_TOKEN


def surrogate_in(value: Any) -> bool:
    """Whether a text in a JSON value holds a lone surrogate, which no service accepts."""
    try:
        orjson.dumps(value)
    except TypeError:
        return True
    return False


def names_of(values: Collection[str]) -> Json:
    """Return the answer of ``GET /v1/models``."""
    rows = [{"id": name, "object": "model", "created": 1_780_000_000, "owned_by": "test"} for name in values]
    return {"object": "list", "data": rows}
