"""Tools that a model is not shown until it asks for them: when there are too many, and what comes late. Pure.

Owns from when on the tools of users' servers are deferred, the catalogue that stands for them, `FIND` with its
answers, and `CALL`, by which a model whose service knows no deferred tools calls what it has found: the list of
tools stays what it was, and with it the prefix of all requests.
"""

import json
from collections.abc import Collection, Iterable, Sequence

from agentic_rag.events import ToolStatus
from agentic_rag.json_form import Json, to_text
from agentic_rag.messages import BROKEN_INPUT, Block, Message, ToolSpec, text_block
from agentic_rag.models.profiles import profile_of
from agentic_rag.runtime.core.model_tools import shown_schema
from agentic_rag.runtime.core.window import tokens_of
from agentic_rag.tools.base import CallOutcome, ToolInfo
from agentic_rag.tools.system import BY_NAME, CALL_TOOL, FIND_TOOLS
from agentic_rag.tools.tool_index import ToolIndex

MANY_TOOLS = 30
MANY_TOKENS = 4_000
"""More tools of users' servers than this, or more tokens of their definitions, are deferred, all of them."""
TOOLS_SHARE = 8
"""Of a window, the part that they may have there."""
MAX_FOUND = 5
"""Tools that one search brings."""
FOUND_BYTES = 12 * 1024
"""Of the definitions that one search shows as text; the best one is shown in any case."""
DESCRIPTION_CHARS = 1_000
"""Of a description in such a text."""
CATALOGUE_CHARS = 160
"""Of the names of one server's tools in the catalogue."""
MAX_SERVERS = 40
MAX_NAMED = 60
"""Tools that an answer names when nothing fits."""

FIND = ToolInfo(
    name=FIND_TOOLS.name,
    remote_name=FIND_TOOLS.name,
    server=FIND_TOOLS.server,
    origin=FIND_TOOLS.origin,
    description="Load tools that you were told of but not shown, by names or by what they do.",
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
    """Return from how many tokens of definitions on a model's tools are too many: in a short window from fewer."""
    window = profile_of(model).context_window
    return MANY_TOKENS if window is None else min(MANY_TOKENS, window // TOOLS_SHARE)


def list_deferred(tools: Iterable[ToolInfo], most: int = MANY_TOKENS) -> tuple[ToolInfo, ...]:
    """Return the tools that a model is not shown at once: none, or all of users' servers.

    ``most``: tokens of definitions that it may be shown; see `many_tokens`.
    """
    theirs = tuple(tool for tool in tools if tool.origin == "user")
    if len(theirs) > MANY_TOOLS or sum(map(definition_tokens, theirs)) > most:
        return theirs
    return ()


def definition_tokens(tool: ToolInfo) -> int:
    """Return about how many tokens a tool's definition costs in a request."""
    return tokens_of([tool.name, tool.description, tool.input_schema])


def with_search(
    tools: Sequence[ToolInfo], told: Collection[str], *, by_service: bool, most: int = MANY_TOKENS
) -> tuple[ToolInfo, ...]:
    """Return what a model needs for the tools that it is not shown.

    Args:
        tools: all tools of the turn.
        told: names of the tools that the session was told of before: what it has, it keeps.
        by_service: whether the model's service knows deferred tools. They may then come at any time, and what finds
            them must be there from the start.
        most: see `list_deferred`.
    """
    many = bool(list_deferred(tools, most))
    finds = by_service or many or FIND.name in told
    calls = (many and not by_service) or CALL.name in told
    return (*([FIND] if finds else ()), *([CALL] if calls else ()))


def catalogue(tools: Sequence[ToolInfo], *, chinese: bool = False, most: int = MANY_TOKENS) -> str:
    """Return a line for each server whose tools are deferred, empty when none are. ``most``: see `list_deferred`."""
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
    shown: list[str] = []
    room = CATALOGUE_CHARS
    for name in names:
        room -= len(name) + 2
        if room < 0:
            shown.append("…")
            break
        shown.append(name)
    return f"- {server} ({len(names)}): {', '.join(shown)}"


def shown_tools(first: Sequence[ToolSpec], late: Sequence[ToolSpec], *, by_service: bool) -> tuple[ToolSpec, ...]:
    """Return the tools of a request: those that the session began with, and those that came later.

    Where the service knows deferred tools, late ones are deferred. Elsewhere they are appended, unless the session has
    `CALL`, by which those of users' servers are called.
    """
    search = (FIND.name, CALL.name)
    if by_service:
        return (*first, *(tool if tool["name"] in search else ToolSpec(**tool, defer_loading=True) for tool in late))
    if CALL.name not in {tool["name"] for tool in (*first, *late)}:
        return (*first, *late)
    return (*first, *(tool for tool in late if tool["name"] in BY_NAME))


def find_tools(tools: Sequence[ToolInfo], late: Sequence[ToolSpec], arguments: Json, *, model: str) -> CallOutcome:
    """Answer a call of `FIND` with the tools that fit best: as references where the service knows them, else as text.

    Args:
        tools: those that can be called now.
        late: those of the session that it is not shown, in the words it may be given.
        arguments: of the call; they fit the schema.
        model: the one that asks.
    """
    hidden = {tool["name"] for tool in late} - {FIND.name, CALL.name}
    offered = [tool for tool in tools if tool.name in hidden]
    found = ToolIndex(offered).find(str(arguments["query"]), MAX_FOUND)
    if not found:
        return CallOutcome(ToolStatus.ERROR, (text_block(_nothing_found(offered)),))
    if profile_of(model).deferred_tools:
        return CallOutcome(ToolStatus.OK, tuple({"type": "tool_reference", "tool_name": tool.name} for tool in found))
    return CallOutcome(ToolStatus.OK, (text_block(_definitions(found, model)),))


def _nothing_found(offered: Sequence[ToolInfo]) -> str:
    if not offered:
        return "There are no other tools than those you are shown."
    names = ", ".join(tool.name for tool in offered[:MAX_NAMED])
    more = f" and {len(offered) - MAX_NAMED} more" if len(offered) > MAX_NAMED else ""
    return f"No tool fits: ask in other words, in English, or by name. There are {names}{more}."


def _definitions(found: Sequence[ToolInfo], model: str) -> str:
    shown: list[str] = []
    room = FOUND_BYTES
    for tool in found:
        arguments = to_text(shown_schema(model, tool))
        text = f"{tool.name}: {tool.description[:DESCRIPTION_CHARS]}\narguments: {arguments}"
        room -= len(text.encode())
        if shown and room < 0:
            shown.append(f"{tool.name}: ask for it by name to see its arguments.")
        else:
            shown.append(text)
    return "\n\n".join([*shown, f"Call them by {CALL.name}."])


def references_in_words(message: Message, tools: Sequence[ToolInfo], model: str) -> Message:
    """Return a message for a service that knows no references of tools: what they refer to, as `find_tools` says it."""
    if message["role"] != "user" or not any(map(has_references, message["content"])):
        return message
    known = {tool.name: tool for tool in tools}
    content = []
    for block in message["content"]:
        if has_references(block):
            names = [part["tool_name"] for part in block["content"] if part["type"] == "tool_reference"]
            found = _definitions([known[name] for name in names if name in known], model)
            others = [part for part in block["content"] if part["type"] != "tool_reference"]
            block = {**block, "content": [*others, text_block(found)]}
        content.append(block)
    return {"role": "user", "content": content}


def has_references(block: Block) -> bool:
    """Tell whether a block is a result that refers to tools."""
    return block["type"] == "tool_result" and any(part["type"] == "tool_reference" for part in block["content"])


def unwrap_call(block: Block) -> Block:
    """Return the call that a use of `CALL` stands for; the same block if it is another tool's or holds none."""
    given = block["input"]
    if block["name"] != CALL.name or BROKEN_INPUT in block or not isinstance(given, dict):
        return block
    name, arguments = given.get("name"), given.get("arguments", {})
    if isinstance(arguments, str):  # some models write an object inside an object as text
        try:
            arguments = json.loads(arguments)
        except ValueError:
            return block
    if not isinstance(name, str) or name == CALL.name or not isinstance(arguments, dict):
        return block
    return {**block, "name": name, "input": arguments}
