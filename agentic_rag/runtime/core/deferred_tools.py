"""Deferred tools: definitions that a model sees only after it searched for them. Pure.

Tools are deferred if there are too many of them, or if they appear after the session's first turn. This module owns the
thresholds, the catalogue that replaces the definitions, `FIND` with its answers, and `CALL`. A model whose service does
not support deferred tools uses `CALL` for the tools that it found. The list of tools then stays the same, and with it
the cached prefix of all requests.
"""

import json
from collections.abc import Collection, Iterable, Sequence

from agentic_rag.base.events import ToolStatus
from agentic_rag.base.json_form import Json, to_text
from agentic_rag.base.messages import BROKEN_INPUT, Block, Message, ToolSpec, text_block
from agentic_rag.models.profiles import profile_of
from agentic_rag.runtime.core.model_tools import shown_schema
from agentic_rag.runtime.core.window import tokens_of
from agentic_rag.tools.base import CallOutcome, ToolInfo
from agentic_rag.tools.system import BY_NAME, CALL_TOOL, FIND_TOOLS
from agentic_rag.tools.tool_index import ToolIndex

MANY_TOOLS = 30
MANY_TOKENS = 4_000
"""If users' servers have more tools than `MANY_TOOLS`, or more tokens of definitions than this, all are deferred."""
TOOLS_SHARE = 8
"""Divisor of a context window: definitions may take at most an eighth of its tokens."""
MAX_FOUND = 5
"""Most tools that one search returns."""
FOUND_BYTES = 12 * 1024
"""Most bytes of definitions that one search shows as text. The best match is always shown."""
DESCRIPTION_CHARS = 1_000
"""Most characters of a tool's description in such a text."""
CATALOGUE_CHARS = 160
"""Most characters of one server's tool names in the catalogue."""
MAX_SERVERS = 40
MAX_NAMED = 60
"""Most tools that the answer names if no tool matches."""

FIND = ToolInfo(
    name=FIND_TOOLS.name,
    remote_name=FIND_TOOLS.name,
    server=FIND_TOOLS.server,
    origin=FIND_TOOLS.origin,
    description="Load tools that are listed by name only, by their names or by their purpose.",
    input_schema={
        "type": "object",
        "properties": {"query": {"type": "string"}},
        "required": ["query"],
        "additionalProperties": False,
    },
    read_only=True,
)
CALL = ToolInfo(
    name=CALL_TOOL.name,
    remote_name=CALL_TOOL.name,
    server=CALL_TOOL.server,
    origin=CALL_TOOL.origin,
    description=f"Call a tool that {FIND_TOOLS.name} showed.",
    input_schema={
        "type": "object",
        "properties": {"name": {"type": "string"}, "arguments": {"type": "object"}},
        "required": ["name", "arguments"],
        "additionalProperties": False,
    },
)


def many_tokens(model: str) -> int:
    """Return the limit for tokens of tool definitions with this model. A short context window lowers the limit."""
    window = profile_of(model).context_window
    return MANY_TOKENS if window is None else min(MANY_TOKENS, window // TOOLS_SHARE)


def list_deferred(tools: Iterable[ToolInfo], most: int = MANY_TOKENS) -> tuple[ToolInfo, ...]:
    """Return the tools that a model does not see at once: none, or all tools of users' servers.

    ``most``: the limit for tokens of definitions; see `many_tokens`.
    """
    user_tools = tuple(tool for tool in tools if tool.origin == "user")
    # All or none: with some of them shown, a model takes these for all that there are.
    if len(user_tools) > MANY_TOOLS or sum(map(definition_tokens, user_tools)) > most:
        return user_tools
    return ()


def definition_tokens(tool: ToolInfo) -> int:
    """Return the approximate tokens of a tool's definition in a request."""
    return tokens_of([tool.name, tool.description, tool.input_schema])


def with_search(
    tools: Sequence[ToolInfo], prompt_names: Collection[str], *, by_service: bool, most: int = MANY_TOKENS
) -> tuple[ToolInfo, ...]:
    """Return `FIND` and `CALL` as far as a model needs them for deferred tools.

    Args:
        tools: all tools of the turn.
        prompt_names: names of the tools in the session's earlier requests. A session keeps the tools it has.
        by_service: whether the model's service supports deferred tools. Such tools may appear at any time, so `FIND`
            must be there from the start.
        most: see `list_deferred`.
    """
    many = bool(list_deferred(tools, most))
    finds = by_service or many or FIND.name in prompt_names
    calls = (many and not by_service) or CALL.name in prompt_names
    return (*([FIND] if finds else ()), *([CALL] if calls else ()))


def catalogue(tools: Sequence[ToolInfo], *, chinese: bool = False, most: int = MANY_TOKENS) -> str:
    """Return a line for each server with deferred tools, or an empty string. ``most``: see `list_deferred`."""
    deferred = list_deferred(tools, most)
    if not deferred:
        return ""
    servers: dict[str, list[str]] = {}
    for tool in deferred:
        servers.setdefault(tool.server, []).append(tool.name.removeprefix(f"{tool.server}__"))
    lines = [_line(server, names) for server, names in list(servers.items())[:MAX_SERVERS]]
    if len(servers) > MAX_SERVERS:
        lines.append(f"- … ({len(servers) - MAX_SERVERS})")
    called = CALL.name in [tool.name for tool in tools]
    if chinese:
        head = f"更多工具用 {FIND.name} 查找" + (f"，用 {CALL.name} 调用：" if called else "：")
    else:
        head = f"More tools, found by {FIND.name}" + (f" and called by {CALL.name}:" if called else ":")
    return "\n".join([head, *lines])


def _line(server: str, names: Sequence[str]) -> str:
    parts: list[str] = []
    room = CATALOGUE_CHARS
    for name in names:
        room -= len(name) + 2
        if room < 0:
            parts.append("…")
            break
        parts.append(name)
    return f"- {server} ({len(names)}): {', '.join(parts)}"


def shown_tools(first: Sequence[ToolSpec], late: Sequence[ToolSpec], *, by_service: bool) -> tuple[ToolSpec, ...]:
    """Return the tools of a request: the session's first tools and those that appeared later.

    If the service supports deferred tools, later tools are deferred. Elsewhere they are appended. If the session has
    `CALL`, only our own later tools are appended, and the model reaches tools of users' servers through `CALL`.
    """
    search = (FIND.name, CALL.name)
    if by_service:
        return (*first, *(tool if tool["name"] in search else ToolSpec(**tool, defer_loading=True) for tool in late))
    # Later tools follow the first ones, because a service caches a request by its beginning.
    if CALL.name not in {tool["name"] for tool in (*first, *late)}:
        return (*first, *late)
    return (*first, *(tool for tool in late if tool["name"] in BY_NAME))


def find_tools(tools: Sequence[ToolInfo], late: Sequence[ToolSpec], arguments: Json, *, model: str) -> CallOutcome:
    """Answer a call of `FIND` with the best matching tools.

    The answer has references if the model's service supports them, else a text.

    Args:
        tools: the tools that can be called now.
        late: the session's deferred tools, as specs for the model.
        arguments: the call's arguments, which fit the schema.
        model: the model that searches.
    """
    hidden = {tool["name"] for tool in late} - {FIND.name, CALL.name}
    offered = [tool for tool in tools if tool.name in hidden]
    matches = ToolIndex(offered).find(str(arguments["query"]), MAX_FOUND)
    if not matches:
        return CallOutcome(ToolStatus.ERROR, (text_block(_nothing_found(offered)),))
    if profile_of(model).deferred_tools:
        return CallOutcome(ToolStatus.OK, tuple({"type": "tool_reference", "tool_name": tool.name} for tool in matches))
    return CallOutcome(ToolStatus.OK, (text_block(_definitions(matches, model)),))


def _nothing_found(offered: Sequence[ToolInfo]) -> str:
    if not offered:
        return "There are no other tools than those you are shown."
    names = ", ".join(tool.name for tool in offered[:MAX_NAMED])
    more = f" and {len(offered) - MAX_NAMED} more" if len(offered) > MAX_NAMED else ""
    return f"No tool fits: ask in other words, in English, or by name. There are {names}{more}."


def _definitions(matches: Sequence[ToolInfo], model: str) -> str:
    parts: list[str] = []
    room = FOUND_BYTES
    for tool in matches:
        arguments = to_text(shown_schema(model, tool))
        text = f"{tool.name}: {tool.description[:DESCRIPTION_CHARS]}\narguments: {arguments}"
        room -= len(text.encode())
        # The first match is given in any case, however large it is.
        if parts and room < 0:
            parts.append(f"{tool.name}: ask for it by name to see its arguments.")
        else:
            parts.append(text)
    return "\n\n".join([*parts, f"Call them by {CALL.name}."])


def references_in_words(message: Message, tools: Sequence[ToolInfo], model: str) -> Message:
    """Replace references to tools by their definitions as text, for a service that does not support references."""
    if message["role"] != "user" or not any(map(has_references, message["content"])):
        return message
    by_name = {tool.name: tool for tool in tools}
    content = []
    for block in message["content"]:
        if has_references(block):
            names = [part["tool_name"] for part in block["content"] if part["type"] == "tool_reference"]
            definitions = _definitions([by_name[name] for name in names if name in by_name], model)
            other_parts = [part for part in block["content"] if part["type"] != "tool_reference"]
            block = {**block, "content": [*other_parts, text_block(definitions)]}
        content.append(block)
    return {"role": "user", "content": content}


def has_references(block: Block) -> bool:
    """Return whether a block is a result that refers to tools."""
    return block["type"] == "tool_result" and any(part["type"] == "tool_reference" for part in block["content"])


def unwrap_call(block: Block) -> Block:
    """Return the call inside a use of `CALL`.

    Returns the same block for another tool, or if the block contains no call.
    """
    wrapper_input = block["input"]
    if block["name"] != CALL.name or BROKEN_INPUT in block or not isinstance(wrapper_input, dict):
        return block
    name, arguments = wrapper_input.get("name"), wrapper_input.get("arguments", {})
    if isinstance(arguments, str):  # some models write a nested object as text
        try:
            arguments = json.loads(arguments)
        except (ValueError, RecursionError):
            return block
    if not isinstance(name, str) or name == CALL.name or not isinstance(arguments, dict):
        return block
    return {**block, "name": name, "input": arguments}
