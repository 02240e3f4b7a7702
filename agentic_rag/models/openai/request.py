"""A `ModelRequest` as the body of a chat completion (a pure function).

Owns the conversion of a transcript's blocks to messages of that API. Each tool result becomes a separate message.
Images of results follow in a user message. Thinking is sent back only if the model needs it. Search results were
converted to numbered text before (`marks`). Knows no client and no stream.
"""

import hashlib
import json
from collections.abc import Iterable, Sequence
from typing import Final

import orjson

from agentic_rag.base.json_form import Json
from agentic_rag.base.messages import Block, Message, ToolSpec
from agentic_rag.models.base import ModelRequest
from agentic_rag.models.profiles import ModelProfile, most_output

MAX_ID: Final = 40
"""Longest call id that this API accepts, in characters. Other providers' ids may be longer."""
_CHOICES: Final = {"auto": "auto", "none": "none", "any": "required"}


def chat_body(request: ModelRequest, profile: ModelProfile) -> Json:
    """Return the JSON body of a streamed chat completion. Parameters that the model would refuse are left out.

    The API's token limit covers reasoning and answer together, so a reasoning model gets extra room.
    """
    system = "\n\n".join(block["text"] for block in request.system)
    turn_start = _first_of_turn(request.messages)
    messages: list[Json] = [{"role": "system", "content": system}] if system else []
    for place, message in enumerate(request.messages):
        reasons = profile.replays_reasoning and place >= turn_start
        messages += _messages(message, images=profile.images, reasons=reasons)
    limit = most_output(request.max_tokens, profile)
    room = profile.room(request.effort) if profile.thinks else 0
    name = "max_completion_tokens" if profile.completion_tokens else "max_tokens"
    body: Json = {
        "model": request.model,
        "messages": messages,
        name: min(request.max_tokens + room, limit),
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    if request.tools:
        body["tools"] = [_tool(tool) for tool in request.tools]
        if request.tool_choice is not None:
            body["tool_choice"] = _choice(request.tool_choice)
    # This API cannot turn reasoning off; the lowest effort comes closest.
    effort = "low" if request.thinking == "off" and profile.thinks else request.effort
    if effort is not None and effort in profile.efforts:
        body["reasoning_effort"] = effort
    if request.temperature is not None and profile.sampling:
        body["temperature"] = request.temperature
    return body


def _first_of_turn(messages: Sequence[Message]) -> int:
    """Return the index of the newest message that a person wrote. The following messages belong to the same turn."""
    for place in range(len(messages) - 1, -1, -1):
        message = messages[place]
        if message["role"] == "user" and all(block["type"] != "tool_result" for block in message["content"]):
            return place
    return 0


def _tool(tool: ToolSpec) -> Json:
    function = {"name": tool["name"], "description": tool["description"], "parameters": tool["input_schema"]}
    return {"type": "function", "function": function}


def _choice(choice: Json) -> object:
    if choice["type"] == "tool":
        return {"type": "function", "function": {"name": choice["name"]}}
    return _CHOICES[choice["type"]]


def _messages(message: Message, *, images: bool, reasons: bool) -> list[Json]:
    role, content = message["role"], message["content"]
    if role == "system":
        return [{"role": "system", "content": _text(content)}]
    if role == "assistant":
        return _assistant(content, reasons=reasons)
    results = [block for block in content if block["type"] == "tool_result"]
    messages: list[Json] = [
        {"role": "tool", "tool_call_id": _id(block["tool_use_id"]), "content": _result(block)} for block in results
    ]
    shown = [part for block in results for part in _parts_of(block) if part["type"] == "image"]
    others = [block for block in content if block["type"] != "tool_result"]
    parts = [*_parts(shown, images=images), *_parts(others, images=images)]
    if parts:
        plain = all(part["type"] == "text" for part in parts)
        user_content = "\n\n".join(part["text"] for part in parts) if plain else parts
        messages.append({"role": "user", "content": user_content})
    return messages


def _assistant(content: Sequence[Block], *, reasons: bool) -> list[Json]:
    text = "".join(block["text"] for block in content if block["type"] == "text")
    calls = [
        {
            "id": _id(block["id"]),
            "type": "function",
            "function": {"name": block["name"], "arguments": _arguments(block["input"])},
        }
        for block in content
        if block["type"] == "tool_use"
    ]
    if not text and not calls:
        return []
    message: Json = {"role": "assistant", "content": text or None}
    if calls:
        message["tool_calls"] = calls
    reasoning = "".join(block["thinking"] for block in content if block["type"] == "thinking")
    if reasons and reasoning:
        message["reasoning_content"] = reasoning
    return [message]


def _id(ident: str) -> str:
    return ident if len(ident) <= MAX_ID else f"call_{hashlib.sha256(ident.encode()).hexdigest()[:32]}"


def _arguments(arguments: Json) -> str:
    try:
        return orjson.dumps(arguments).decode()
    except TypeError:  # integers beyond 64 bits; a lone surrogate stays escaped
        return json.dumps(arguments)


def _parts_of(block: Block) -> list[Block]:
    """Return the blocks of a result."""
    content = block.get("content") or []
    return content if isinstance(content, list) else [{"type": "text", "text": str(content)}]


def _result(block: Block) -> str:
    """Return a tool result as text. The API's tool messages allow only text."""
    parts = _parts_of(block)
    text = "\n\n".join(part["text"] for part in parts if part["type"] == "text")
    references = [part["tool_name"] for part in parts if part["type"] == "tool_reference"]
    if references:
        text = "\n\n".join(filter(None, (text, "Tools: " + ", ".join(references))))
    if any(part["type"] == "image" for part in parts):
        text = "\n\n".join(filter(None, (text, "(its images follow)")))
    return f"Error: {text}" if block.get("is_error") else text or "(no output)"


def _text(content: Iterable[Block]) -> str:
    return "\n\n".join(block["text"] for block in content if block["type"] == "text")


def _parts(blocks: Iterable[Block], *, images: bool) -> list[Json]:
    """Return the content parts of a user message. Blank texts are left out."""
    parts: list[Json] = []
    for block in blocks:
        if block["type"] == "text" and block["text"].strip():
            parts.append({"type": "text", "text": block["text"]})
        elif block["type"] == "image" and not images:
            parts.append({"type": "text", "text": "[an image, which this model cannot see]"})
        elif block["type"] == "image":
            source = block["source"]
            url = source["url"] if source["type"] == "url" else f"data:{source['media_type']};base64,{source['data']}"
            parts.append({"type": "image_url", "image_url": {"url": url}})
    return parts
