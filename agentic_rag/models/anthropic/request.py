"""A `ModelRequest` as the body of a Messages API call (pure functions).

Drops private keys, chooses parameters by the model's profile, and places cache breakpoints. Knows no client, no event
and no transcript; this module neither joins nor repairs messages. Earlier answers are sent back unchanged, with their
thinking and citations, because the newer models check this.

Private ``_`` keys are removed from blocks only, including those inside a ``tool_result``. Inside ``input``, a
``source`` or a schema, such a key is user data. Unchanged blocks are not copied.
"""

from collections.abc import Sequence
from functools import partial
from typing import Final

from agentic_rag.base.json_form import Json
from agentic_rag.base.messages import Block, Message, ToolSpec
from agentic_rag.models.base import ModelRequest
from agentic_rag.models.http_stream import encode
from agentic_rag.models.profiles import ModelProfile, most_output, profile_of

BINDING_BETA: Final = "thinking-binding-controls-2026-08-01"
CACHE_CONTROL: Final = {"type": "ephemeral"}
CACHE_AN_HOUR: Final = {"type": "ephemeral", "ttl": "1h"}
"""Cache lifetime of one hour: users pause for longer than five minutes, and a lost cache costs more than the higher
price of writing."""
CACHED_USER_MESSAGES = 2
"""User messages with a breakpoint. With one for tools and one for the system prompt, they reach the API's limit of
four."""
MIN_BUDGET: Final = 1_024
"""Smallest thinking budget of the older models, in tokens."""

_UNCACHEABLE = frozenset({"thinking", "redacted_thinking"})


def request_body(request: ModelRequest, profile: ModelProfile | None = None, *, cites: bool = True) -> Json:
    """Return the JSON body without ``stream``.

    Cache breakpoints in the request are dropped. This function places at most four: on the last tool, the last system
    block, and the last block of the last two user messages. Parameters that the model would refuse are left out.
    ``max_tokens`` includes room for thinking. ``cites``: whether the endpoint supports citations.
    """
    known = profile or profile_of(request.model)
    messages = [_message(message, cites=cites) for message in request.messages]
    control = _control(known)
    if control:
        _mark_users(messages, control)
    return {"messages": messages} | _body_around(request, known, control) | _diagnostics(request, known)


def encoded_body(request: ModelRequest, profile: ModelProfile, *, cites: bool = True) -> list[bytes]:
    """Return the bytes of `request_body` with ``stream``, in pieces to be joined.

    The first messages and the last piece (the body without messages) come from the cache in `ModelRequest.settled` if
    possible. The messages from the second last user message on hold the breakpoints. They are encoded for each request
    and are in the second last piece.
    """
    control = _control(profile)
    pieces, kept, settled = [b'{"messages":['], 0, request.settled if cites else None
    if settled is None:
        around = _encode_around(request, profile)
    else:
        around = settled.encoded.around(_parts_around(request, profile), partial(_encode_around, request, profile))
        first = min(settled.count, _first_marked(request.messages))
        kept, encoded = settled.encoded.of(request.messages[:first], _encode_message)
        for piece in encoded:
            pieces += (piece, b",")
    messages = [_message(message, cites=cites) for message in request.messages[kept:]]
    if control:
        _mark_users(messages, control)
    asked = _diagnostics(request, profile)  # another id in each request, so not part of the cached envelope
    last = around[:-1] + b"," + encode(asked)[1:] if asked else around
    return [*pieces, encode(messages)[1:-1], last]


def _diagnostics(request: ModelRequest, profile: ModelProfile) -> Json:
    """Return the parameter that asks why the prompt cache missed, if the service has it."""
    if request.previous_answer is None or not profile.diagnoses:
        return {}
    return {"diagnostics": {"previous_message_id": request.previous_answer or None}}


def _parts_around(request: ModelRequest, profile: ModelProfile) -> tuple[object, ...]:
    """Return the inputs of `_encode_around`: the profile, and all fields of a request except the messages."""
    return (
        profile,
        request.model,
        request.max_tokens,
        request.system,
        request.tools,
        request.tool_choice,
        request.temperature,
        request.thinking,
        request.effort,
        request.answer_schema,
    )


def _encode_around(request: ModelRequest, profile: ModelProfile) -> bytes:
    return b"]," + encode({**_body_around(request, profile, _control(profile)), "stream": True})[1:]


def _encode_message(message: Message) -> bytes:
    return encode(_message(message, cites=True))


def _first_marked(messages: Sequence[Message]) -> int:
    """Return the index of the first message that may carry a breakpoint."""
    left = CACHED_USER_MESSAGES
    for place in range(len(messages) - 1, -1, -1):
        left -= messages[place]["role"] == "user"
        if not left:
            return place
    return 0


def _control(profile: ModelProfile) -> Block | None:
    return (CACHE_AN_HOUR if profile.hour_cache else CACHE_CONTROL) if profile.caching else None


def _body_around(request: ModelRequest, profile: ModelProfile, control: Block | None) -> Json:
    """Return the body without its messages."""
    body: Json = {"model": request.model, "max_tokens": request.max_tokens}
    if request.system:
        system = [_block(block) for block in request.system]
        body["system"] = _with_breakpoint(system, control) if control else system
    if request.tools:
        tools = [_tool(tool) for tool in request.tools]
        body["tools"] = _with_breakpoint(tools, control) if control else tools
    choice = request.tool_choice
    if choice is not None and choice.get("type") not in ("any", "tool"):  # refused while a model thinks
        body["tool_choice"] = choice
    return body | _parameters(request, profile)


def _parameters(request: ModelRequest, profile: ModelProfile) -> Json:
    """Return the parameters for thinking, effort, temperature and the output limit."""
    limit = most_output(request.max_tokens, profile)
    thinking, effort = _thinking(request, profile), request.effort
    kind = thinking.get("type", "adaptive" if profile.thinks else "")
    answer = min(request.max_tokens, limit)
    parameters: Json = {"max_tokens": answer}
    if request.thinking == "off" and kind == "adaptive":
        effort = "low"  # the model always thinks, so ask for as little as possible
    if kind in ("adaptive", "enabled"):
        parameters["max_tokens"] = min(answer + profile.room(effort), limit)
    if kind == "enabled":
        budget = parameters["max_tokens"] - answer
        thinking = {**thinking, "budget_tokens": budget} if budget >= MIN_BUDGET else {}
    if thinking:
        parameters["thinking"] = thinking
    if effort is not None and effort in profile.efforts:
        off = kind in ("disabled", "between_tools") and effort in ("xhigh", "max")
        parameters["output_config"] = {"effort": "high" if off else effort}
    if request.answer_schema is not None and profile.structured:
        form = {"type": "json_schema", "schema": request.answer_schema}
        parameters["output_config"] = {**parameters.get("output_config", {}), "format": form}
    if request.temperature is not None and profile.sampling and kind not in ("adaptive", "enabled"):
        parameters["temperature"] = request.temperature
    return parameters


def _thinking(request: ModelRequest, profile: ModelProfile) -> Json:
    """Return the ``thinking`` parameter, empty for none. With a temperature, an older model does not think."""
    takes = profile.thinking
    if request.thinking == "off" or (request.temperature is not None and profile.sampling):
        off = next((kind for kind in ("disabled", "between_tools") if kind in takes), None)
        if off is not None:
            return {"type": off}
    for kind in ("adaptive", "enabled"):
        if kind in takes and (request.thinking == "auto" or profile.thinks):
            return {"type": kind, "display": profile.display}
    return {}


def without_thinking(body: Json) -> Json:
    """Return a body without the thinking of earlier answers. Messages left empty are dropped."""
    messages = []
    for message in body["messages"]:
        content = [block for block in message["content"] if block["type"] not in _UNCACHEABLE]
        if content:
            messages.append({**message, "content": content})
    return {**body, "messages": messages}


def search_results(messages: tuple[Message, ...] | list[Message]) -> list[Block]:
    """Return all ``search_result`` blocks in the order of the API's numbering."""
    results: list[Block] = []
    for message in messages:
        for block in message["content"]:
            kind = block.get("type")
            if kind == "search_result":
                results.append(block)
            elif kind == "tool_result" and isinstance(block.get("content"), list):
                results += [inner for inner in block["content"] if inner.get("type") == "search_result"]
    return results


def _message(message: Message, *, cites: bool) -> Message:
    return {
        "role": message["role"],
        "content": [
            block if len(block) == 2 and block["type"] == "text" else _block(block, strip_citations=not cites)
            for block in message["content"]  # mostly text blocks without other keys
        ],
    }


def _block(block: Block, *, strip_citations: bool = False) -> Block:
    """Return the block without private keys; the same object if the block has none."""
    result = block
    if any(key[0] == "_" or key == "cache_control" for key in block):
        result = {key: value for key, value in block.items() if key[0] != "_" and key != "cache_control"}
    if strip_citations and block["type"] == "text" and "citations" in result:
        result = {key: value for key, value in result.items() if key != "citations"}
    elif block["type"] in ("tool_result", "search_result") and isinstance(block.get("content"), list):
        content = [_block(inner) for inner in block["content"]]
        if any(new is not old for new, old in zip(content, block["content"], strict=True)):
            result = {**result, "content": content}
    return result


def _tool(tool: ToolSpec) -> Block:
    late = {"defer_loading": True} if tool.get("defer_loading") else {}
    return {"name": tool["name"], "description": tool["description"], "input_schema": tool["input_schema"], **late}


def _with_breakpoint(blocks: list[Block], control: Block) -> list[Block]:
    """Put a breakpoint on the last block that may carry one. Changes the list, but not its blocks."""
    for position in range(len(blocks) - 1, -1, -1):
        block = blocks[position]
        if (
            block.get("defer_loading")
            or block.get("type") in _UNCACHEABLE
            or (block.get("type") == "text" and not block["text"].strip())
        ):
            continue
        blocks[position] = {**block, "cache_control": control}
        break
    return blocks


def _mark_users(messages: list[Message], control: Block) -> None:
    left = CACHED_USER_MESSAGES
    for message in reversed(messages):
        if message["role"] == "user":
            _with_breakpoint(message["content"], control)
            left -= 1
            if not left:
                return
