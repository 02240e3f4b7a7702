"""A `ModelRequest` as the body of a Messages API call (a pure function).

Owns what leaves: private keys dropped, citations of old answers left out, cache breakpoints placed. Knows no
client, no event and nothing of how a transcript came to be; it neither joins nor repairs messages.

Private ``_`` keys are looked for on blocks only (also those inside a ``tool_result``): inside ``input``, a
``source`` or a schema such a key is somebody's data. Blocks that need no change are passed on uncopied.
"""

from agentic_rag.json_form import Json
from agentic_rag.messages import Block, Message, ToolSpec
from agentic_rag.models.base import ModelRequest

CACHE_CONTROL = {"type": "ephemeral"}
CACHED_USER_MESSAGES = 2
"""With one breakpoint for tools and one for system that makes the API's four."""

_UNCACHEABLE = frozenset({"thinking", "redacted_thinking"})


def request_body(request: ModelRequest) -> Json:
    """Return the JSON body without ``stream``.

    Cache breakpoints given with the request are dropped: at most four are placed here (last tool, last system
    block, last block of the last two user messages). ``temperature`` is in it only when set, since current
    models refuse it.
    """
    messages = [_message(message) for message in request.messages]
    _mark_users(messages)
    body: Json = {"model": request.model, "max_tokens": request.max_tokens, "messages": messages}
    if request.system:
        body["system"] = _with_breakpoint([_block(block) for block in request.system])
    if request.tools:
        body["tools"] = _with_breakpoint([_tool(tool) for tool in request.tools])
    if request.tool_choice is not None:
        body["tool_choice"] = request.tool_choice
    if request.thinking == "adaptive":
        body["thinking"] = {"type": "adaptive", "display": "summarized"}
    if request.temperature is not None:
        body["temperature"] = request.temperature
    return body


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


def _message(message: Message) -> Message:
    role = message["role"]
    return {
        "role": role,
        "content": [_block(block, strip_citations=role == "assistant") for block in message["content"]],
    }


def _block(block: Block, *, strip_citations: bool = False) -> Block:
    """Return the block as it may leave: the same object if nothing is private in it."""
    result = block
    if any(key[0] == "_" or key == "cache_control" for key in block):
        result = {key: value for key, value in block.items() if key[0] != "_" and key != "cache_control"}
    if strip_citations and block["type"] == "text" and "citations" in result:
        # Their indexes count search results of another request, and the model does not need them back.
        result = {key: value for key, value in result.items() if key != "citations"}
    elif block["type"] in ("tool_result", "search_result") and isinstance(block.get("content"), list):
        content = [_block(inner) for inner in block["content"]]
        if any(new is not old for new, old in zip(content, block["content"], strict=True)):
            result = {**result, "content": content}
    return result


def _tool(tool: ToolSpec) -> Block:
    return {"name": tool["name"], "description": tool["description"], "input_schema": tool["input_schema"]}


def _with_breakpoint(blocks: list[Block]) -> list[Block]:
    """Put a breakpoint on the last block that may carry one; the list is changed, its blocks are not."""
    for position in range(len(blocks) - 1, -1, -1):
        block = blocks[position]
        if block.get("type") in _UNCACHEABLE or (block.get("type") == "text" and not block["text"].strip()):
            continue
        blocks[position] = {**block, "cache_control": CACHE_CONTROL}
        break
    return blocks


def _mark_users(messages: list[Message]) -> None:
    left = CACHED_USER_MESSAGES
    for message in reversed(messages):
        if message["role"] == "user":
            _with_breakpoint(message["content"])
            left -= 1
            if not left:
                return
