"""A `ModelRequest` as the body of a Messages API call (pure functions).

Owns what leaves: private keys dropped, parameters chosen by the model's profile, cache breakpoints placed. Knows no
client, no event and nothing of how a transcript came to be; it neither joins nor repairs messages. An answer goes back
as it came, with its thinking and citations: the newer models check that.

Private ``_`` keys are looked for on blocks only (also those inside a ``tool_result``): inside ``input``, a
``source`` or a schema such a key is somebody's data. Blocks that need no change are passed on uncopied.
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
"""Pauses of a reader last longer than five minutes, and one lost cache costs more than dearer writes of what is new."""
CACHED_USER_MESSAGES = 2
"""With one breakpoint for tools and one for system that makes the API's four."""
MIN_BUDGET: Final = 1_024
"""The least that an older model can be given to think."""

_UNCACHEABLE = frozenset({"thinking", "redacted_thinking"})


def request_body(request: ModelRequest, profile: ModelProfile | None = None, *, cites: bool = True) -> Json:
    """Return the JSON body without ``stream``.

    Cache breakpoints given with the request are dropped: at most four are placed here (last tool, last system
    block, last block of the last two user messages). Parameters that the model would refuse are left out.
    ``max_tokens`` has room for thinking above the answer's. ``cites``: whether the endpoint knows citations.
    """
    known = profile or profile_of(request.model)
    messages = [_message(message, cites=cites) for message in request.messages]
    control = _control(known)
    if control:
        _mark_users(messages, control)
    return {"messages": messages} | _body_around(request, known, control)


def encoded_body(request: ModelRequest, profile: ModelProfile, *, cites: bool = True) -> list[bytes]:
    """Return the bytes of `request_body` with ``stream``, in pieces to be joined.

    What was encoded for an earlier request is not looked at (`ModelRequest.settled`): the first messages, and the last
    piece, which is all but messages. Those from the last but one of the user's on, where breakpoints stand, are in the
    last piece but one.
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
    return [*pieces, encode(messages)[1:-1], around]


def _parts_around(request: ModelRequest, profile: ModelProfile) -> tuple[object, ...]:
    """Return all that `_encode_around` makes its bytes of: whatever of a request is not its messages."""
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
    )


def _encode_around(request: ModelRequest, profile: ModelProfile) -> bytes:
    return b"]," + encode({**_body_around(request, profile, _control(profile)), "stream": True})[1:]


def _encode_message(message: Message) -> bytes:
    return encode(_message(message, cites=True))


def _first_marked(messages: Sequence[Message]) -> int:
    """Return the place of the first message that may carry a breakpoint."""
    left = CACHED_USER_MESSAGES
    for place in range(len(messages) - 1, -1, -1):
        left -= messages[place]["role"] == "user"
        if not left:
            return place
    return 0


def _control(profile: ModelProfile) -> Block | None:
    return (CACHE_AN_HOUR if profile.hour_cache else CACHE_CONTROL) if profile.caching else None


def _body_around(request: ModelRequest, profile: ModelProfile, control: Block | None) -> Json:
    """Return all of a body but its messages."""
    body: Json = {"model": request.model, "max_tokens": request.max_tokens}
    if request.system:
        system = [_block(block) for block in request.system]
        body["system"] = _with_breakpoint(system, control) if control else system
    if request.tools:
        tools = [_tool(tool) for tool in request.tools]
        body["tools"] = _with_breakpoint(tools, control) if control else tools
    if request.tool_choice is not None:
        body["tool_choice"] = request.tool_choice
    return body | _parameters(request, profile)


def _parameters(request: ModelRequest, profile: ModelProfile) -> Json:
    """Return how the model is to work: thinking, effort, temperature, and the room for all of it."""
    limit = most_output(request.max_tokens, profile)
    thinking, effort = _thinking(request, profile), request.effort
    kind = thinking.get("type", "adaptive" if profile.thinks else "")
    answer = min(request.max_tokens, limit)
    parameters: Json = {"max_tokens": answer}
    if request.thinking == "off" and kind == "adaptive":
        effort = "low"  # it cannot be told not to think
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
    if request.temperature is not None and profile.sampling and kind not in ("adaptive", "enabled"):
        parameters["temperature"] = request.temperature
    return parameters


def _thinking(request: ModelRequest, profile: ModelProfile) -> Json:
    """Return the ``thinking`` parameter, empty for none. An older model that is given a temperature does not think."""
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
    """Return a body without the thinking of earlier answers; a message that was nothing else is left out."""
    messages = []
    for message in body["messages"]:
        content = [block for block in message["content"] if block["type"] not in _UNCACHEABLE]
        if content:
            messages.append({**message, "content": content})
    return {**body, "messages": messages}


def search_results(messages: tuple[Message, ...] | list[Message]) -> list[Block]:
    """Return all ``search_result`` blocks in the order by which the API numbers them."""
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
            for block in message["content"]  # mostly text with nothing beside it
        ],
    }


def _block(block: Block, *, strip_citations: bool = False) -> Block:
    """Return the block as it may leave: the same object if nothing is private in it."""
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
    """Put a breakpoint on the last block that may carry one; the list is changed, its blocks are not."""
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
