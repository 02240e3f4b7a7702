"""The refusals of the Messages API, as one pure function over a request's JSON.

Owns the rules (of anthropic 2.x and its service) and their wording: each problem starts with the path of the offending
value, as the API's own messages do. Knows no HTTP and no script.

`block_problems` has the rules for blocks, `model_rules` those that differ among models. Two things the API allows are
allowed here, too: neighbouring messages of one role are joined before the rules about order apply, and a `tool_use` of
an old turn may name a tool that is no longer offered.
"""

import json
import re
from collections.abc import Collection, Iterator
from functools import lru_cache
from typing import Any, Final

from agentic_rag.base.json_form import Json
from agentic_rag.testing.bindings import sign as sign  # exported next to the rules that accept it
from agentic_rag.testing.block_problems import block_problems, longer_side, text_problems
from agentic_rag.testing.model_rules import EFFORTS, SAMPLING, THINKING_TYPES, ModelRules, parameter_problems, rules_of
from agentic_rag.testing.schema_problems import messages_schema_problems

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
"""The parameters of anthropic 2.12; ``temperature``, ``top_p`` and ``top_k`` are gone, except for old models."""

MANY_IMAGES: Final = 20
MANY_IMAGES_SIDE: Final = 2_000
"""In a request with more than `MANY_IMAGES` images, no side may exceed this many pixels."""
MAX_IMAGES: Final = 600

_MESSAGE_ID = re.compile(r"msg_[a-zA-Z0-9]{1,100}")
_TOOL_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")


def problems(
    request: Any, *, also_allowed: Collection[str] = (), unknown: Collection[str] = (), betas: Collection[str] = ()
) -> list[str]:
    """Return all problems the API would report for this request, in reading order; empty means accepted.

    Args:
        request: the body.
        also_allowed: further top-level keys, for an older or compatible endpoint (``temperature``).
        unknown: parameters that an older endpoint or a gateway does not know (``diagnostics``,
            ``output_config.format``).
        betas: the names in the request's ``anthropic-beta`` header.
    """
    if not isinstance(request, dict):
        return ["request: must be a JSON object"]
    if not _is_encodable(request):
        return [f"{path}: string holds a lone surrogate" for path in _surrogates("", request)]
    rules = rules_of(request.get("model"))
    allowed = {*TOP_LEVEL, *also_allowed, *(SAMPLING if rules else ())} - {*unknown}
    config = request.get("output_config")
    if "output_config.format" in unknown and isinstance(config, dict) and "format" in config:
        return ["output_config.format: Extra inputs are not permitted"]
    reported = [*_top_level(request, allowed), *_system(request), *_tools(request), *_conversation(request, rules)]
    return [*reported, *(parameter_problems(request, rules, betas) if rules else ())]


def _is_encodable(request: Json) -> bool:
    try:
        json.dumps(request, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return False
    return True


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


def _top_level(request: Json, allowed: Collection[str]) -> Iterator[str]:
    for key in request:
        if key not in allowed:
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
    yield from _output_config(request)
    yield from _diagnostics(request)
    yield from _cache_controls(request)


_THINKING_KEYS: Final = {
    "adaptive": frozenset({"type", "display", "block_binding"}),
    "enabled": frozenset({"type", "display", "block_binding", "budget_tokens"}),
    "disabled": frozenset({"type"}),
    "between_tools": frozenset({"type"}),
}


def _thinking_config(request: Json) -> Iterator[str]:
    config = request.get("thinking")
    if config is None:
        return
    kind = config.get("type") if isinstance(config, dict) else None
    if kind not in THINKING_TYPES:
        yield "thinking.type: Input should be 'adaptive', 'enabled', 'disabled' or 'between_tools'"
        return
    for key in sorted(config.keys() - _THINKING_KEYS[kind]):
        yield f"thinking.{kind}.{key}: Extra inputs are not permitted"
    if config.get("display") not in (None, "summarized", "omitted"):
        yield f"thinking.{kind}.display: Input should be 'summarized' or 'omitted'"
    binding = config.get("block_binding")
    if binding is not None and binding != {} and binding.get("prefix_mismatch_behavior") not in ("error", "drop_block"):
        yield (f"thinking.{kind}.block_binding.prefix_mismatch_behavior: Input should be 'error' or 'drop_block'")
    if kind == "enabled" and rules_of(request.get("model")) is None:
        budget, limit = config.get("budget_tokens"), request.get("max_tokens")
        if not _is_int(budget) or budget < 1024 or (_is_int(limit) and budget >= limit):
            yield "thinking.budget_tokens: must be at least 1024 and less than max_tokens"


def _output_config(request: Json) -> Iterator[str]:
    config = request.get("output_config")
    if config is None:
        return
    if not isinstance(config, dict):
        yield "output_config: Input should be a valid dictionary"
        return
    for key in sorted(config.keys() - {"effort", "format", "task_budget"}):
        yield f"output_config.{key}: Extra inputs are not permitted"
    if config.get("effort") not in (None, *EFFORTS):
        yield "output_config.effort: Input should be 'low', 'medium', 'high', 'xhigh' or 'max'"
    form = config.get("format")
    if form is None:
        return
    if not isinstance(form, dict) or form.get("type") != "json_schema" or not isinstance(form.get("schema"), dict):
        yield "output_config.format: Input should be {'type': 'json_schema', 'schema': …}"
    elif any(_open_objects(form["schema"])):
        yield ("output_config.format.schema: For 'object' type, 'additionalProperties' must be explicitly set to false")
    else:
        for key in sorted(_unsupported_keywords(form["schema"])):
            yield f"output_config.format.schema: property '{key}' is not supported"
    if _cites(request.get("messages")):
        yield "output_config.format: citations cannot be enabled together with structured outputs"


def _diagnostics(request: Json) -> Iterator[str]:
    diagnostics = request.get("diagnostics")
    if diagnostics is None:
        return
    if not isinstance(diagnostics, dict):
        yield "diagnostics: Input should be a valid dictionary"
        return
    for key in sorted(diagnostics.keys() - {"previous_message_id"}):
        yield f"diagnostics.{key}: Extra inputs are not permitted"
    previous = diagnostics.get("previous_message_id")
    if previous is not None and not (isinstance(previous, str) and _MESSAGE_ID.fullmatch(previous)):
        yield "diagnostics.previous_message_id: String should match pattern '^msg_[a-zA-Z0-9]+$'"


def _open_objects(schema: Any) -> Iterator[bool]:
    if isinstance(schema, dict):
        if schema.get("type") == "object":
            yield schema.get("additionalProperties") is not False
        for value in schema.values():
            yield from _open_objects(value)
    elif isinstance(schema, list):
        for value in schema:
            yield from _open_objects(value)


_NOT_IN_OUTPUTS: Final = frozenset(
    {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf", "minLength", "maxLength", "maxItems"}
    | {"uniqueItems", "minProperties", "maxProperties", "patternProperties", "not", "if", "oneOf", "$dynamicRef"}
)
"""Keywords that structured outputs refuse."""


def _unsupported_keywords(schema: Any) -> set[str]:
    keywords: set[str] = set()
    if isinstance(schema, dict):
        keywords |= schema.keys() & _NOT_IN_OUTPUTS
        for key, value in schema.items():
            for inner in value.values() if key in ("properties", "$defs") and isinstance(value, dict) else [value]:
                keywords |= _unsupported_keywords(inner)
    elif isinstance(schema, list):
        keywords = set().union(*map(_unsupported_keywords, schema))
    return keywords


def _cites(value: Any) -> bool:
    """Whether any part of the conversation may be cited."""
    if isinstance(value, list):
        return any(map(_cites, value))
    if not isinstance(value, dict):
        return False
    citations = value.get("citations")
    return (isinstance(citations, dict) and citations.get("enabled") is True) or _cites(value.get("content"))


def _cache_controls(request: Json) -> Iterator[str]:
    breakpoints = list(
        _breakpoints("", {key: request[key] for key in ("tools", "system", "messages") if key in request})
    )
    if request.get("cache_control") is not None:
        breakpoints.append(("cache_control", request["cache_control"]))
    for path, value in breakpoints:
        if not isinstance(value, dict) or value.get("type") != "ephemeral" or value.keys() - {"type", "ttl"}:
            yield f"{path}: must be {{'type': 'ephemeral'}}, optionally with a ttl"
        elif value.get("ttl", "5m") not in ("5m", "1h"):
            yield f"{path}.ttl: Input should be '5m' or '1h'"
    if len(breakpoints) > MAX_BREAKPOINTS:
        fifth = breakpoints[MAX_BREAKPOINTS][0]
        yield f"{fifth}: A maximum of 4 blocks with cache_control may be provided. Found {len(breakpoints)}."
    short = False
    for path, value in breakpoints:
        ttl = value.get("ttl", "5m") if isinstance(value, dict) else ""
        if ttl == "1h" and short:
            yield (
                f"{path}.ttl: a ttl='1h' cache_control block must not come after a ttl='5m' cache_control block. Note "
                "that blocks are processed in the following order: `tools`, `system`, `messages`."
            )
        short = short or ttl == "5m"


def _breakpoints(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Yield path and value of each breakpoint on tools and blocks; inside data the key means nothing."""
    if isinstance(value, list):
        for index, item in enumerate(value):
            yield from _breakpoints(f"{path}.{index}", item)
    elif isinstance(value, dict):
        if value.get("cache_control") is not None:
            yield f"{path}.cache_control", value["cache_control"]
        for key in ("tools", "system", "messages", "content"):
            if isinstance(inner := value.get(key), (list, dict)):
                yield from _breakpoints(f"{path}.{key}".lstrip("."), inner)


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
    try:
        yield from _list_tool_problems(json.dumps(tools))
    except (RecursionError, TypeError, ValueError):  # not a text that can be read back
        for index, tool in enumerate(tools):
            yield from _tool(f"tools.{index}", tool)
    names: set[str] = set()
    for index, tool in enumerate(tools):
        name = tool.get("name") if isinstance(tool, dict) else None
        if isinstance(name, str):
            if name in names:
                yield f"tools.{index}.name: Tool names must be unique ({name!r})"
            names.add(name)
    if tools and all(isinstance(tool, dict) and tool.get("defer_loading") for tool in tools):
        yield "tools: At least one tool must have defer_loading=false"
    yield from _tool_choice(request, names)


@lru_cache(maxsize=256)
def _list_tool_problems(text: str) -> tuple[str, ...]:
    """Return the problems of tools as JSON. Most requests of a test repeat the tools of an earlier one."""
    return tuple(problem for index, tool in enumerate(json.loads(text)) for problem in _tool(f"tools.{index}", tool))


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
    if tool.get("defer_loading") and tool.get("cache_control") is not None:
        yield (
            f"{path}: Tool {name!r} cannot have both defer_loading=true and cache_control set. Tools with "
            "defer_loading cannot use prompt caching."
        )
    yield from messages_schema_problems(path, tool.get("input_schema"))


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


def _conversation(request: Json, rules: ModelRules | None) -> Iterator[str]:
    if "messages" not in request:
        return
    messages = request["messages"]
    if not isinstance(messages, list) or not messages:
        yield "messages: at least one message is required"
        return
    shape = [problem for index, message in enumerate(messages) for problem in _message(f"messages.{index}", message)]
    yield from shape
    if shape:
        return  # the following checks read roles and blocks
    yield from _system_messages(messages, rules)
    joined = _join([message for message in messages if message["role"] != "system"], messages)
    yield from _order(joined, messages, rules)
    yield from _pairs(joined)
    uses = any(block["type"] in ("tool_use", "tool_result") for _, blocks in joined for _, block in blocks)
    if uses and not request.get("tools"):
        yield "tools: Requests which have `tool_use` or `tool_result` blocks in `messages` must define tools"
    yield from _citations_agree(joined)
    yield from _citations_point(joined)
    yield from _references_known(joined, request.get("tools") or [])
    yield from _images(joined, rules)


def _message(path: str, message: Any) -> Iterator[str]:
    if not isinstance(message, dict):
        yield f"{path}: Input should be a valid dictionary"
        return
    for key in sorted(message.keys() - {"role", "content"}):
        yield f"{path}.{key}: Extra inputs are not permitted"
    role, content = message.get("role"), message.get("content")
    if role not in ("user", "assistant", "system"):
        yield f"{path}.role: Input should be 'user', 'assistant' or 'system'"
    elif isinstance(content, str):
        yield from text_problems(f"{path}.content", content)
    elif content == []:
        yield f"{path}.content: all messages must have non-empty content"
    else:
        yield from block_problems(f"{path}.content", content, role)


def _system_messages(messages: list[Json], rules: ModelRules | None) -> Iterator[str]:
    """Check that a system message follows a user's, and that an answer or the end follows it."""
    for index, message in enumerate(messages):
        if message["role"] != "system":
            continue
        if rules is not None and not rules.system_messages:
            yield f"messages.{index}: role 'system' is not supported on this model"
        elif index == 0:
            yield "messages.0: use the top-level 'system' parameter for the initial system prompt"
        elif messages[index - 1]["role"] != "user":
            yield f"messages.{index}: role 'system' must follow a 'user' message"
        elif index + 1 < len(messages) and messages[index + 1]["role"] != "assistant":
            yield f"messages.{index}: role 'system' must precede an 'assistant' message or end the array"


Joined = list[tuple[str, list[tuple[str, Json]]]]
"""Role and blocks (with their original paths) of each message after neighbours of one role were joined."""


def _join(messages: list[Json], all_messages: list[Json]) -> Joined:
    result: Joined = []
    places = {id(message): index for index, message in enumerate(all_messages)}
    for message in messages:
        index, content = places[id(message)], message["content"]
        blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
        located = [(f"messages.{index}.content.{position}", block) for position, block in enumerate(blocks)]
        if result and result[-1][0] == message["role"]:
            result[-1][1].extend(located)
        else:
            result.append((message["role"], located))
    return result


def _order(joined: Joined, messages: list[Json], rules: ModelRules | None) -> Iterator[str]:
    if not joined or joined[0][0] != "user":
        yield "messages.0.role: first message must use the 'user' role"
    if messages[-1]["role"] == "assistant":
        path, last = joined[-1][1][-1]
        if rules is None or not rules.prefill:
            yield f"{path}: the conversation must end with a user message; prefill is not supported"
        elif last["type"] == "text" and last["text"] != last["text"].rstrip():
            yield "messages: final assistant content cannot end with trailing whitespace"
    for role, blocks in joined:
        path, last = blocks[-1]
        if role == "assistant" and last["type"] in ("thinking", "redacted_thinking"):
            yield f"{path}: The final block in an assistant message cannot be `{last['type']}`"


def _pairs(joined: Joined) -> Iterator[str]:
    """Check that every ``tool_use`` is answered once, at the head of the next message, and every result answers one."""
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
    # Calls that are still waiting belong to a last assistant message, which `_order` refuses.


def _results(blocks: list[tuple[str, Json]], waiting: dict[str, str]) -> Iterator[str]:
    """Check the results of one user message and remove the answered calls from ``waiting``."""
    answered_ids: set[str] = set()
    other_seen = False
    for path, block in blocks:
        if block["type"] != "tool_result":
            other_seen = True
            continue
        ident = block["tool_use_id"]
        if other_seen:
            yield f"{path}: `tool_result` blocks must come first in their message"
        if ident in answered_ids:
            yield f"{path}.tool_use_id: each `tool_use` must have a single result ({ident!r})"
        elif ident not in waiting:
            yield f"{path}.tool_use_id: unexpected id {ident!r}: no such `tool_use` in the previous message"
        answered_ids.add(ident)
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


def _inner(joined: Joined) -> Iterator[tuple[str, str, Json]]:
    """Yield role, path and block of every block in order, including those inside results."""
    for role, blocks in joined:
        for path, block in blocks:
            yield role, path, block
            content = block.get("content") if block["type"] == "tool_result" else None
            for index, part in enumerate(content if isinstance(content, list) else ()):
                yield role, f"{path}.content.{index}", part


def _citations_point(joined: Joined) -> Iterator[str]:
    """Check that each returned citation names an earlier search result."""
    results: list[Json] = []
    for _, path, block in _inner(joined):
        if block["type"] == "search_result":
            results.append(block)
        for index, citation in enumerate(block.get("citations") or ()) if block["type"] == "text" else ():
            if citation["type"] != "search_result_location":
                continue
            where = f"{path}.citations.{index}"
            if citation["search_result_index"] >= len(results):
                yield f"{where}.search_result_index: there is no such search result before this block"
            elif citation["end_block_index"] > len(results[citation["search_result_index"]]["content"]):
                yield f"{where}.end_block_index: the search result has fewer blocks"


def _references_known(joined: Joined, tools: list[Any]) -> Iterator[str]:
    names = {tool.get("name") for tool in tools if isinstance(tool, dict)}
    for _, path, block in _inner(joined):
        if block["type"] == "tool_reference" and block["tool_name"] not in names:
            yield f"{path}: Tool reference {block['tool_name']!r} not found in available tools"


def _images(joined: Joined, rules: ModelRules | None) -> Iterator[str]:
    images = [(path, block) for _, path, block in _inner(joined) if block["type"] == "image"]
    if len(images) > MAX_IMAGES:
        yield f"messages: {len(images)} images; at most {MAX_IMAGES} are allowed"
    if images and rules is not None and not rules.images:
        yield f"{images[0][0]}: images are not supported on this model"
    if len(images) > MANY_IMAGES:
        for path, block in images:
            if longer_side(block) > MANY_IMAGES_SIDE:
                yield (
                    f"{path}.image.source.base64.data: At least one of the image dimensions exceed max allowed size "
                    f"for many-image requests: {MANY_IMAGES_SIDE} pixels"
                )


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
