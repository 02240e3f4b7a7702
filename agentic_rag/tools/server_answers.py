"""Servers' answers to lists and calls of tools and resources, read item by item. Pure.

Owns the repairs of an answer, the omissions, and the texts about both. The protocol library refuses a whole answer for
one invalid item, before a caller sees any of it. So `wrap_answer` replaces each incoming answer by an empty one that
the library accepts. The server's own answer is in its ``_meta``, from which `read_tools` and `read_result` read it.
"""

import json
from dataclasses import dataclass
from typing import Any

from agentic_rag.base.json_form import Json
from agentic_rag.base.messages import clean_text
from agentic_rag.tools.apps import read_app_meta
from agentic_rag.tools.base import META_PREFIX
from agentic_rag.tools.schema_compat import find_top_problem

ANSWER = META_PREFIX + "answer"
"""Key in the ``_meta`` of a wrapped answer: the result as the server sent it."""
RESOURCE_METHODS = ("resources/list", "resources/read")
HANDSHAKE_METHODS = ("initialize", "server/discover")
READ_METHODS = ("tools/list", "tools/call", *RESOURCE_METHODS, *HANDSHAKE_METHODS)

BLOCKS = 100
"""Maximum number of a result's content blocks. Texts beyond it are joined, because each block costs time in every step.
"""
NAME_CHARS = 256
"""A tool with a longer name is left out."""
SHOWN_CHARS = 100
"""Maximum length of a server's own value in a reason."""
NOT_READABLE = "answered in a form that cannot be read"

_HINTS = ("readOnlyHint", "destructiveHint", "idempotentHint", "openWorldHint")
_COMPLETE: Json = {"resultType": "complete", "ttlMs": 0, "cacheScope": "private"}
"""Members that the newest protocol version requires in every result; older ones ignore them."""


@dataclass(frozen=True, slots=True)
class DroppedTool:
    """A tool that a server lists but no model sees, with the reason as a text for an admin."""

    name: str
    reason: str


def wrap_answer(method: str, result: Json) -> Json:
    """Return the answer to a request of `READ_METHODS` in a form that the protocol library accepts.

    An answer that asks for input is returned unchanged: the library's own type reads it.
    """
    if method in HANDSHAKE_METHODS:
        return _read_handshake(method, result)
    if method == "tools/call" and any(key in result for key in ("inputRequests", "requestState")):
        return dict(result)
    if method == "tools/call":
        return {**_COMPLETE, "content": [], "_meta": {ANSWER: with_few_blocks(result)}}
    if method == "resources/read":
        return {**_COMPLETE, "contents": [], "_meta": {ANSWER: dict(result)}}
    listed: Json = {"resources": []} if method == "resources/list" else {"tools": _plain_tools(result.get("tools"))}
    wrapped = {**_COMPLETE, **listed, "_meta": {ANSWER: dict(result)}}
    cursor = result.get("nextCursor")
    return {**wrapped, "nextCursor": cursor} if isinstance(cursor, str) and cursor else wrapped


def _read_handshake(method: str, result: Json) -> Json:
    """Return a server's greeting with the members that the library requires, and without unreadable ones."""
    capabilities = result.get("capabilities")
    named = capabilities.items() if isinstance(capabilities, dict) else ()
    offered = {name: value if isinstance(value, dict) else {} for name, value in named if value not in (None, False)}
    greeting = {**result, "capabilities": offered}
    if method == "initialize":
        info = result.get("serverInfo")
        name, version = (str(info.get(key) or "") if isinstance(info, dict) else "" for key in ("name", "version"))
        greeting["serverInfo"] = {"name": name, "version": version}
    if not isinstance(result.get("instructions"), str):
        greeting.pop("instructions", None)
    return greeting


def with_few_blocks(result: Json) -> Json:
    """Return a result with about ``2 * BLOCKS`` blocks at most.

    Texts after the first `BLOCKS` blocks are joined to one text, in paragraphs. Of the other blocks after them, at most
    `BLOCKS` are kept, and a last text gives the number of the rest.
    """
    content = result.get("content")
    if not isinstance(content, list) or len(content) <= BLOCKS:
        return dict(result)
    texts, non_texts = [], []
    for block in content[BLOCKS:]:
        text = block.get("text") if isinstance(block, dict) and block.get("type") == "text" else block
        if isinstance(text, str):
            texts.append(text)
        else:
            non_texts.append(block)
    few = [*content[:BLOCKS], *non_texts[:BLOCKS]]
    if texts:
        few.append(_text("\n\n".join(texts)))
    if omitted := len(non_texts[BLOCKS:]):
        few.append(_text(f"[{omitted} more blocks: not shown] (of a result, at most {2 * BLOCKS} blocks are taken)"))
    return {**result, "content": few}


def _plain_tools(tools: Any) -> list[Json]:
    """Return the parts of each tool that the library reads: it sends some arguments as HTTP headers."""
    plain: list[Json] = []
    for tool in tools if isinstance(tools, list) else ():
        schema = tool.get("inputSchema") if isinstance(tool, dict) else None
        if not isinstance(schema, dict) or not isinstance(tool.get("name"), str):
            continue
        properties = schema.get("properties")
        # The library would refuse the whole list for one property that is no object.
        if isinstance(properties, dict) and all(isinstance(inner, dict) for inner in properties.values()):
            plain.append({"name": tool["name"], "inputSchema": {"type": "object", "properties": properties}})
    return plain


# --- tools/list -------------------------------------------------------------------------------------------------------


def read_tools(answer: Json, first: int = 0) -> tuple[list[Json], list[DroppedTool]]:
    """Return the tools of one page of a list, in a form that every reader accepts, and the unreadable ones.

    ``first``: the number of tools on earlier pages.
    """
    listed = answer.get("tools")
    if not isinstance(listed, list):
        missing = "is missing" if listed is None else f"is {_kind(listed)}"
        return [], [DroppedTool("(all)", f"the tool list cannot be read: 'tools' {missing}")]
    tools: list[Json] = []
    dropped: list[DroppedTool] = []
    for place, tool in enumerate(listed, first + 1):
        read = _read_tool(tool, place)
        if isinstance(read, DroppedTool):
            dropped.append(read)
        else:
            tools.append(read)
    return tools, dropped


def _read_tool(tool: Any, place: int) -> Json | DroppedTool:
    """Return the members of a listed tool that are used, or the reason to leave it out. ``place``: its number."""
    unnamed = f"(tool {place})"
    if not isinstance(tool, dict):
        return DroppedTool(unnamed, f"it is {_kind(tool)}, not an object")
    name = tool.get("name")
    if not isinstance(name, str) or not name.strip():
        reason = (
            "it has no name" if name is None else f"its name is {'empty' if isinstance(name, str) else _kind(name)}"
        )
        return DroppedTool(unnamed, reason)
    if len(name) > NAME_CHARS:
        return DroppedTool(f"{_clip(name)}…", f"its name is longer than {NAME_CHARS} characters")
    if clean_text(name) != name:
        return DroppedTool(unnamed, "its name is no valid text")
    if "inputSchema" not in tool:
        return DroppedTool(name, "it has no inputSchema")
    schema = tool["inputSchema"]
    problem = find_top_problem(schema)
    if problem:
        return DroppedTool(name, problem)
    read: Json = {
        "name": name,
        "inputSchema": schema if schema.get("type") == "object" else {**schema, "type": "object"},
    }
    annotations: Json = tool["annotations"] if isinstance(tool.get("annotations"), dict) else {}
    # Newer protocol versions have the title in the tool, older ones in its annotations.
    for title in (tool.get("title"), annotations.get("title")):
        if isinstance(title, str) and title.strip():
            read["title"] = title
            break
    if isinstance(tool.get("description"), str):
        read["description"] = tool["description"]
    app = read_app_meta(tool)
    if app:
        read["_meta"] = {"ui": app}
    hints = {hint: annotations[hint] for hint in _HINTS if isinstance(annotations.get(hint), bool)}
    return {**read, "annotations": hints} if hints else read


# --- tools/call -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ReadResult:
    """A result in a form that every reader accepts. ``content``: content blocks of MCP, each of them valid.

    ``problem``: why the result cannot be read at all; empty if it can.
    """

    content: tuple[Json, ...] = ()
    structured: Any = None
    is_error: bool = False
    problem: str = ""


def read_result(answer: Json) -> ReadResult:
    """Return the result of a call, block by block."""
    content, structured = answer.get("content"), answer.get("structuredContent")
    # Some servers write truth values as text.
    is_error = answer.get("isError") in (True, "true")
    if content is None:
        if structured is None:
            return ReadResult(problem="content is missing")
        return ReadResult((), structured, is_error)
    if isinstance(content, str | dict):
        content = [content]
    if not isinstance(content, list):
        return ReadResult(problem=f"content is {_kind(content)}")
    return ReadResult(tuple(map(_read_block, content)), structured, is_error)


def _read_block(block: Any) -> Json:
    if isinstance(block, str):
        return _text(block)
    if not isinstance(block, dict):
        return _text("(no output)" if block is None else json.dumps(block))
    kind = block.get("type")
    reader = _READERS.get(kind) if isinstance(kind, str) else None
    read = reader(block) if reader is not None else None
    if read is not None:
        return read
    if kind in (None, "text") or reader is not None:
        return _unreadable(block, str(kind or ""))
    label = _clip(kind if isinstance(kind, str) else json.dumps(kind))
    if isinstance(block.get("text"), str) and block["text"].strip():
        return _text(f"[{label}]\n{block['text']}")
    return _text(f"[{label}: not shown] (a block of type {label}, which this host does not show)")


def _unreadable(block: Json, kind: str) -> Json:
    text = block.get("text")
    if isinstance(text, str):
        return _text(text)
    if text is not None:
        return _text(json.dumps(text, ensure_ascii=False))
    return _text(f"[{kind or 'block'}: not shown] (a block of content that cannot be read)")


def _read_text(block: Json) -> Json | None:
    return _text(block["text"]) if isinstance(block.get("text"), str) else None


def _read_media(block: Json) -> Json | None:
    data, media = block.get("data"), block.get("mimeType")
    if not isinstance(data, str):
        return None
    return {"type": block["type"], "data": data, "mimeType": media if isinstance(media, str) else ""}


def _read_link(block: Json) -> Json | None:
    uri = block.get("uri")
    if not isinstance(uri, str):
        return None
    name = block.get("name")
    words = {key: block[key] for key in ("title", "description") if isinstance(block.get(key), str)}
    return {"type": "resource_link", "uri": uri, "name": name if isinstance(name, str) and name else uri, **words}


def _read_resource(block: Json) -> Json | None:
    resource = block.get("resource")
    if not isinstance(resource, dict):
        return None
    uri, media = resource.get("uri"), resource.get("mimeType")
    about = {"uri": uri if isinstance(uri, str) else "", **({"mimeType": media} if isinstance(media, str) else {})}
    for key in ("text", "blob"):
        if isinstance(resource.get(key), str):
            return {"type": "resource", "resource": {**about, key: resource[key]}}
    return None


# --- resources/list and resources/read --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ListedResource:
    """A resource as its server lists it. ``version`` is its etag and its time of change, empty without both.

    ``modified``: the text of ``annotations.lastModified``.
    """

    uri: str
    name: str = ""
    media_type: str = ""
    version: str = ""
    modified: str = ""


@dataclass(frozen=True, slots=True)
class ResourcePart:
    """A part of a resource's content: ``text``, or ``blob`` in base64."""

    media_type: str = ""
    text: str | None = None
    blob: str | None = None


URI_CHARS = 2_000
"""A resource with a longer address is left out."""
VERSION_CHARS = 300
"""A longer version counts as none, because a cut one could hide a change."""


def read_resources(answer: Json) -> tuple[list[ListedResource], list[str], str]:
    """Return the resources of one page of a list, the reasons for those left out, and the problem of the whole page."""
    listed = answer.get("resources")
    if not isinstance(listed, list):
        return (
            [],
            [],
            f"the list cannot be read: 'resources' {'is missing' if listed is None else 'is ' + _kind(listed)}",
        )
    resources, left_out = [], []
    for place, entry in enumerate(listed, 1):
        uri = entry.get("uri") if isinstance(entry, dict) else None
        if not isinstance(uri, str) or not uri.strip() or clean_text(uri[:URI_CHARS]) != uri[:URI_CHARS]:
            left_out.append(f"resource {place} of a page has no valid uri")
        elif len(uri) > URI_CHARS:
            left_out.append(f"{_clip(uri)}…: the uri is longer than {URI_CHARS} characters")
        else:
            resources.append(_read_listed(uri, entry))
    return resources, left_out, ""


def _read_listed(uri: str, resource: Json) -> ListedResource:
    annotations, meta = resource.get("annotations"), resource.get("_meta")
    modified = _text_of(annotations, "lastModified")
    # MCP defines no version of a resource. These are the names that servers use for one.
    etag = _text_of(meta, "etag") or _text_of(meta, "eTag") or _text_of(meta, "version")
    version = " ".join(filter(None, (modified, etag)))
    name = _text_of(resource, "title") or _text_of(resource, "name")
    media = _text_of(resource, "mimeType")
    return ListedResource(uri, clean_text(name), media, version if len(version) <= VERSION_CHARS else "", modified)


def _text_of(value: Any, key: str) -> str:
    text = value.get(key) if isinstance(value, dict) else None
    return text[: VERSION_CHARS + 1] if isinstance(text, str) else ""


def read_contents(answer: Json) -> tuple[list[ResourcePart], str]:
    """Return the parts of a resource's content, or the reason why the answer cannot be read."""
    contents = answer.get("contents")
    if not isinstance(contents, list):
        return [], f"'contents' {'is missing' if contents is None else 'is ' + _kind(contents)}"
    parts = []
    for item in contents:
        block = _read_resource({"resource": item})
        if block is None:
            return [], "a part of it has neither text nor blob"
        inner = block["resource"]
        parts.append(ResourcePart(inner.get("mimeType", "")[:SHOWN_CHARS], inner.get("text"), inner.get("blob")))
    return parts, "" if parts else "it has no content"


_READERS = {
    "text": _read_text,
    "image": _read_media,
    "audio": _read_media,
    "resource_link": _read_link,
    "resource": _read_resource,
}


def _text(text: str) -> Json:
    return {"type": "text", "text": text}


def _clip(text: str) -> str:
    return clean_text(text[:SHOWN_CHARS])


def _kind(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    kinds = ((type(None), "null"), (str, "a text"), (int | float, "a number"), (list, "a list"), (dict, "an object"))
    return next((words for kind, words in kinds if isinstance(value, kind)), "odd")
