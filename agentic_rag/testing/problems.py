"""What the Messages API refuses, as one pure function over a request's JSON.

Owns the rules (of anthropic 2.x and its service) and their wording: each problem starts with the path of the
offending value, as the API's own messages do. Knows no HTTP and no script.

Two things the API allows stay allowed: neighbouring messages of one role are joined before the rules about
order apply, and a `tool_use` of an old turn may name a tool that is no longer offered.
"""

import hashlib
import re
from collections.abc import Collection, Iterator
from typing import Any, Literal

from agentic_rag.json_form import Json

MAX_BREAKPOINTS = 4

TOP_LEVEL = frozenset(
    {"model", "max_tokens", "messages", "system", "tools", "tool_choice", "thinking", "stream", "stop_sequences"}
    | {
        "metadata",
        "service_tier",
        "cache_control",
        "container",
        "diagnostics",
        "inference_geo",
        "output_config",
        "speed",
    }
)
"""The parameters of anthropic 2.12; ``temperature``, ``top_p`` and ``top_k`` are gone."""

_TOOL_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")

Place = Literal["user", "assistant", "tool_result", "system", "search_result"]
"""Where a list of blocks stands: it decides which types may be in it."""

_USED_NAME = re.compile(r"[a-zA-Z0-9_-]{1,128}")
_ID = re.compile(r"[a-zA-Z0-9_-]+")

_KEYS: dict[str, tuple[frozenset[str], frozenset[str]]] = {
    name: (frozenset(required.split()), frozenset(optional.split()))
    for name, required, optional in (
        ("text", "text", "citations cache_control"),
        ("image", "source", "cache_control"),
        ("document", "source", "title context citations cache_control"),
        ("search_result", "source title content", "citations cache_control"),
        ("thinking", "thinking signature", ""),
        ("redacted_thinking", "data", ""),
        ("tool_use", "id name input", "cache_control caller toolset_name"),
        ("tool_result", "tool_use_id", "content is_error cache_control toolset_name"),
    )
}
"""Required and optional keys of each block type."""

_ALLOWED_IN: dict[Place, frozenset[str]] = {
    "user": frozenset({"text", "image", "document", "search_result", "tool_result"}),
    "assistant": frozenset({"text", "thinking", "redacted_thinking", "tool_use"}),
    "tool_result": frozenset({"text", "image", "document", "search_result"}),
    "system": frozenset({"text"}),
    "search_result": frozenset({"text"}),
}


def problems(request: Any, *, also_allowed: Collection[str] = ()) -> list[str]:
    """Return everything the API would refuse in this request, in reading order; empty means accepted.

    ``also_allowed`` names further top-level keys, for an older or compatible endpoint (``temperature``).
    """
    if not isinstance(request, dict):
        return ["request: must be a JSON object"]
    surrogates = [f"{path}: string holds a lone surrogate" for path in _surrogates("", request)]
    if surrogates:
        return surrogates
    return [*_top_level(request, also_allowed), *_system(request), *_tools(request), *_conversation(request)]


def _surrogates(path: str, value: Any) -> Iterator[str]:
    if isinstance(value, str):
        if not value.isascii() and any("\ud800" <= char <= "\udfff" for char in value):
            yield path or "request"
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _surrogates(path or "request", key)
            yield from _surrogates(f"{path}.{key}" if path else key, item)
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _surrogates(f"{path}.{index}", item)


# --- parameters ---------------------------------------------------------------------------------------------


def _top_level(request: Json, also_allowed: Collection[str]) -> Iterator[str]:
    for key in request:
        if key not in TOP_LEVEL and key not in also_allowed:
            yield f"{key}: Extra inputs are not permitted"
    for key in ("model", "max_tokens", "messages"):
        if key not in request:
            yield f"{key}: Field required"
    if "model" in request and not (isinstance(request["model"], str) and request["model"].strip()):
        yield "model: String should have at least 1 character"
    if "max_tokens" in request and not (_is_int(request["max_tokens"]) and request["max_tokens"] >= 1):
        yield "max_tokens: Input should be an integer greater than or equal to 1"
    if not isinstance(request.get("stream", False), bool):
        yield "stream: Input should be a valid boolean"
    stops = request.get("stop_sequences", [])
    if not isinstance(stops, list) or not all(isinstance(stop, str) and stop.strip() for stop in stops):
        yield "stop_sequences: each stop sequence must contain non-whitespace"
    yield from _thinking_config(request)
    yield from _cache_controls(request)


def _thinking_config(request: Json) -> Iterator[str]:
    config = request.get("thinking")
    if config is None:
        return
    kind = config.get("type") if isinstance(config, dict) else None
    if kind not in ("adaptive", "enabled", "disabled", "between_tools"):
        yield "thinking.type: Input should be 'adaptive', 'enabled', 'disabled' or 'between_tools'"
    elif kind == "enabled":
        budget, limit = config.get("budget_tokens"), request.get("max_tokens")
        if not _is_int(budget) or budget < 1024 or (_is_int(limit) and budget >= limit):
            yield "thinking.budget_tokens: must be at least 1024 and less than max_tokens"


def _cache_controls(request: Json) -> Iterator[str]:
    found = list(_breakpoints("", {key: request[key] for key in ("tools", "system", "messages") if key in request}))
    if request.get("cache_control") is not None:
        found.append(("cache_control", request["cache_control"]))
    for path, value in found:
        if not isinstance(value, dict) or value.get("type") != "ephemeral" or value.keys() - {"type", "ttl"}:
            yield f"{path}: must be {{'type': 'ephemeral'}}, optionally with a ttl"
        elif value.get("ttl", "5m") not in ("5m", "1h"):
            yield f"{path}.ttl: Input should be '5m' or '1h'"
    if len(found) > MAX_BREAKPOINTS:
        fifth = found[MAX_BREAKPOINTS][0]
        yield f"{fifth}: A maximum of 4 blocks with cache_control may be provided. Found {len(found)}."


def _breakpoints(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Yield path and value of each breakpoint on tools and blocks; inside data the key means nothing."""
    if isinstance(value, list):
        for index, item in enumerate(value):
            yield from _breakpoints(f"{path}.{index}", item)
    elif isinstance(value, dict):
        if value.get("cache_control") is not None:
            yield f"{path}.cache_control", value["cache_control"]
        for key in ("tools", "system", "messages", "content"):
            yield from _breakpoints(f"{path}.{key}".lstrip("."), value.get(key))


def _system(request: Json) -> Iterator[str]:
    system = request.get("system")
    if isinstance(system, str):
        yield from text_problems("system", system)
    elif system is not None:
        yield from block_problems("system", system, "system")


# --- tools --------------------------------------------------------------------------------------------------


def _tools(request: Json) -> Iterator[str]:
    tools = request.get("tools", [])
    if not isinstance(tools, list):
        yield "tools: Input should be a valid list"
        return
    names: set[str] = set()
    for index, tool in enumerate(tools):
        yield from _tool(f"tools.{index}", tool)
        name = tool.get("name") if isinstance(tool, dict) else None
        if isinstance(name, str):
            if name in names:
                yield f"tools.{index}.name: Tool names must be unique ({name!r})"
            names.add(name)
    yield from _tool_choice(request, names)


def _tool(path: str, tool: Any) -> Iterator[str]:
    if not isinstance(tool, dict):
        yield f"{path}: Input should be a valid dictionary"
        return
    optional = (
        "description cache_control type strict input_examples eager_input_streaming defer_loading allowed_callers"
    )
    for key in tool.keys() - {"name", "input_schema", *optional.split()}:
        yield f"{path}.{key}: Extra inputs are not permitted"
    name = tool.get("name")
    if not isinstance(name, str) or not _TOOL_NAME.fullmatch(name):
        yield f"{path}.name: String should match pattern '^{_TOOL_NAME.pattern}$'"
    if not isinstance(tool.get("description", ""), str):
        yield f"{path}.description: Input should be a valid string"
    schema = tool.get("input_schema")
    if not isinstance(schema, dict):
        yield f"{path}.input_schema: Input should be a valid dictionary"
    elif schema.get("type") != "object":
        yield f"{path}.input_schema.type: Input should be 'object'"


def _tool_choice(request: Json, names: set[str]) -> Iterator[str]:
    choice = request.get("tool_choice")
    if choice is None:
        return
    kind = choice.get("type") if isinstance(choice, dict) else None
    if kind not in ("auto", "any", "tool", "none"):
        yield "tool_choice.type: Input should be 'auto', 'any', 'tool' or 'none'"
        return
    allowed = {"type"} | ({"name"} if kind == "tool" else set())
    allowed |= set() if kind == "none" else {"disable_parallel_tool_use"}
    for key in choice.keys() - allowed:
        yield f"tool_choice.{key}: Extra inputs are not permitted"
    if not names:
        yield "tool_choice: may only be specified while providing tools"
    elif kind == "tool" and choice.get("name") not in names:
        yield f"tool_choice.name: Tool {choice.get('name')!r} not found in provided tools"
    thinking = request.get("thinking")
    if kind in ("any", "tool") and isinstance(thinking, dict) and thinking.get("type") != "disabled":
        yield "tool_choice: Thinking may not be enabled when tool_choice forces tool use"


# --- the conversation ---------------------------------------------------------------------------------------


def _conversation(request: Json) -> Iterator[str]:
    if "messages" not in request:
        return
    messages = request["messages"]
    if not isinstance(messages, list) or not messages:
        yield "messages: at least one message is required"
        return
    shape = [problem for index, message in enumerate(messages) for problem in _message(f"messages.{index}", message)]
    yield from shape
    if shape:
        return  # what follows reads roles and blocks
    joined = _join(messages)
    yield from _order(joined)
    yield from _pairs(joined)
    uses = any(block["type"] in ("tool_use", "tool_result") for _, blocks in joined for _, block in blocks)
    if uses and not request.get("tools"):
        yield "tools: Requests which have `tool_use` or `tool_result` blocks in `messages` must define tools"
    yield from _citations_agree(joined)


def _message(path: str, message: Any) -> Iterator[str]:
    if not isinstance(message, dict):
        yield f"{path}: Input should be a valid dictionary"
        return
    for key in sorted(message.keys() - {"role", "content"}):
        yield f"{path}.{key}: Extra inputs are not permitted"
    role, content = message.get("role"), message.get("content")
    if role not in ("user", "assistant"):
        yield f"{path}.role: Input should be 'user' or 'assistant'"
    elif isinstance(content, str):
        yield from text_problems(f"{path}.content", content)
    elif content == []:
        yield f"{path}.content: all messages must have non-empty content"
    else:
        yield from block_problems(f"{path}.content", content, role)


Joined = list[tuple[str, list[tuple[str, Json]]]]
"""Role and blocks (with the path they came from) of each message after neighbours of one role were joined."""


def _join(messages: list[Json]) -> Joined:
    result: Joined = []
    for index, message in enumerate(messages):
        content = message["content"]
        blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
        located = [(f"messages.{index}.content.{position}", block) for position, block in enumerate(blocks)]
        if result and result[-1][0] == message["role"]:
            result[-1][1].extend(located)
        else:
            result.append((message["role"], located))
    return result


def _order(joined: Joined) -> Iterator[str]:
    if joined[0][0] != "user":
        yield "messages.0.role: first message must use the 'user' role"
    if joined[-1][0] != "user":
        yield f"{joined[-1][1][0][0]}: the conversation must end with a user message; prefill is not supported"
    for role, blocks in joined:
        path, last = blocks[-1]
        if role == "assistant" and last["type"] in ("thinking", "redacted_thinking"):
            yield f"{path}: The final block in an assistant message cannot be `{last['type']}`"


def _pairs(joined: Joined) -> Iterator[str]:
    """Every ``tool_use`` is answered once, at the head of the next message; every result answers one."""
    used: set[str] = set()
    waiting: dict[str, str] = {}
    for role, blocks in joined:
        if role == "user":
            yield from _results(blocks, waiting)
        for ident, path in waiting.items():
            yield f"{path}: `tool_use` id {ident!r} was found without `tool_result` block immediately after"
        waiting = {}
        for path, block in blocks:
            if block["type"] == "tool_use":
                if block["id"] in used:
                    yield f"{path}.id: `tool_use` ids must be unique ({block['id']!r})"
                used.add(block["id"])
                waiting[block["id"]] = path
    # What is left waits in a last assistant message, which `_order` refuses.


def _results(blocks: list[tuple[str, Json]], waiting: dict[str, str]) -> Iterator[str]:
    """Check the results of one user message and take what they answer out of ``waiting``."""
    answered: set[str] = set()
    other_seen = False
    for path, block in blocks:
        if block["type"] != "tool_result":
            other_seen = True
            continue
        ident = block["tool_use_id"]
        if other_seen:
            yield f"{path}: `tool_result` blocks must come first in their message"
        if ident in answered:
            yield f"{path}.tool_use_id: each `tool_use` must have a single result ({ident!r})"
        elif ident not in waiting:
            yield f"{path}.tool_use_id: unexpected id {ident!r}: no such `tool_use` in the previous message"
        answered.add(ident)
        waiting.pop(ident, None)


def _citations_agree(joined: Joined) -> Iterator[str]:
    states: dict[bool, str] = {}
    for _, blocks in joined:
        for path, block in blocks:
            inner = block.get("content") if block["type"] == "tool_result" else None
            nested = (
                [(f"{path}.content.{index}", item) for index, item in enumerate(inner)]
                if isinstance(inner, list)
                else []
            )
            for where, item in [(path, block), *nested]:
                if item["type"] == "search_result":
                    states.setdefault(bool((item.get("citations") or {}).get("enabled")), where)
    if len(states) > 1:
        yield f"{max(states.values())}.citations: must be enabled on all search results or on none"


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


# --- one block ----------------------------------------------------------------------------------------------


def sign(thinking: str) -> str:
    """Return the signature under which the stand-ins stream this thinking, and which they accept back."""
    return "sig-" + hashlib.sha256(b"stand-in:" + thinking.encode("utf-8", "surrogatepass")).hexdigest()


def text_problems(path: str, text: Any) -> Iterator[str]:
    if not isinstance(text, str):
        yield f"{path}: Input should be a valid string"
    elif not text:
        yield f"{path}: text content blocks must be non-empty"
    elif not text.strip():
        yield f"{path}: text content blocks must contain non-whitespace text"


def block_problems(path: str, blocks: Any, place: Place) -> Iterator[str]:
    if not isinstance(blocks, list):
        yield f"{path}: Input should be a valid list"
        return
    for index, block in enumerate(blocks):
        yield from _block(f"{path}.{index}", block, place)


def _block(path: str, block: Any, place: Place) -> Iterator[str]:
    kind = block.get("type") if isinstance(block, dict) else None
    if kind not in _ALLOWED_IN[place]:
        yield f"{path}.type: Input should be one of {sorted(_ALLOWED_IN[place])}"
        return
    required, optional = _KEYS[kind]
    for key in sorted(block.keys() - required - optional - {"type"}):
        yield f"{path}.{key}: Extra inputs are not permitted"
    missing = sorted(required - block.keys())
    for key in missing:
        yield f"{path}.{key}: Field required"
    if not missing:
        yield from _CHECKS[kind](path, block)


def _check_text(path: str, block: Json) -> Iterator[str]:
    yield from text_problems(f"{path}.text", block["text"])
    citations = block.get("citations")
    if citations is not None and not (
        isinstance(citations, list) and all(isinstance(item, dict) and "type" in item for item in citations)
    ):
        yield f"{path}.citations: Input should be a list of citations"


def _check_source(path: str, block: Json) -> Iterator[str]:
    source = block["source"]
    if not isinstance(source, dict) or source.get("type") not in ("base64", "url", "file", "text", "content"):
        yield f"{path}.source.type: Input should be a known source"


def _check_search_result(path: str, block: Json) -> Iterator[str]:
    for key in ("source", "title"):
        if not isinstance(block[key], str) or not block[key]:
            yield f"{path}.{key}: String should have at least 1 character"
    if block["content"] == []:
        yield f"{path}.content: List should have at least 1 item"
    yield from block_problems(f"{path}.content", block["content"], "search_result")
    citations = block.get("citations")
    if citations is not None and not (isinstance(citations, dict) and isinstance(citations.get("enabled"), bool)):
        yield f"{path}.citations.enabled: Input should be a valid boolean"


def _check_thinking(path: str, block: Json) -> Iterator[str]:
    if not isinstance(block["thinking"], str):
        yield f"{path}.thinking: Input should be a valid string"
    elif block["signature"] != sign(block["thinking"]):
        yield f"{path}: Invalid `signature` in `thinking` block"


def _check_redacted(path: str, block: Json) -> Iterator[str]:
    if not isinstance(block["data"], str) or not block["data"]:
        yield f"{path}.data: Invalid `data` in `redacted_thinking` block"


def _check_tool_use(path: str, block: Json) -> Iterator[str]:
    if not isinstance(block["id"], str) or not _ID.fullmatch(block["id"]):
        yield f"{path}.id: String should match pattern '^{_ID.pattern}$'"
    if not isinstance(block["name"], str) or not _USED_NAME.fullmatch(block["name"]):
        yield f"{path}.name: String should match pattern '^{_USED_NAME.pattern}$'"
    if not isinstance(block["input"], dict):
        yield f"{path}.input: Input should be a valid dictionary"


def _check_tool_result(path: str, block: Json) -> Iterator[str]:
    if not isinstance(block["tool_use_id"], str) or not _ID.fullmatch(block["tool_use_id"]):
        yield f"{path}.tool_use_id: String should match pattern '^{_ID.pattern}$'"
    failed = block.get("is_error")
    if failed is not None and not isinstance(failed, bool):
        yield f"{path}.is_error: Input should be a valid boolean"
    content = block.get("content")
    if isinstance(content, str):
        yield from text_problems(f"{path}.content", content)
    elif content is not None:
        yield from block_problems(f"{path}.content", content, "tool_result")
        if failed and any(isinstance(item, dict) and item.get("type") != "text" for item in content):
            yield f"{path}.content: all content must be type `text` if `is_error` is true"


_CHECKS = {
    "text": _check_text,
    "image": _check_source,
    "document": _check_source,
    "search_result": _check_search_result,
    "thinking": _check_thinking,
    "redacted_thinking": _check_redacted,
    "tool_use": _check_tool_use,
    "tool_result": _check_tool_result,
}
