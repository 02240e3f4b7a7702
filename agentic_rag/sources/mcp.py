"""An MCP server of a domain as a source: its resources, or a tool that lists items and a tool that reads one.

Owns the paging of lists, the reading of results, and their bounds. The pool owns the connection: starts, sign-ins,
sandbox, address rules and the size of a message.
"""

import base64
import binascii
import json
import re
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final

import orjson

from agentic_rag.base.errors import (
    AgenticRagError,
    ServerSilent,
    SourceItemSilent,
    SourceItemUnreadable,
    SourceUnreadable,
)
from agentic_rag.base.json_form import Json
from agentic_rag.base.messages import clean_text
from agentic_rag.base.redaction import Redaction
from agentic_rag.directory.source_forms import ListTool, McpSource, ReadTool
from agentic_rag.sources.items import (
    ItemContent,
    Listing,
    Patterns,
    RunNotes,
    SourceItem,
    is_pattern,
    one_chunk,
    refuse_item,
)
from agentic_rag.store.sources import SourceItemRecord
from agentic_rag.tools.launch.spec import LaunchSpec
from agentic_rag.tools.lists import ToolLists
from agentic_rag.tools.server_answers import URI_CHARS, ResourcePart, read_contents, read_resources

if TYPE_CHECKING:  # imports the MCP library
    from agentic_rag.tools.connection import Connection

REQUEST_SECONDS: Final = 60.0
"""Time limit of one request, unless the server's entry has its own."""
MAX_PAGES: Final = 10_000
"""Maximum number of pages of one list."""
MEMBER_CHARS: Final = 2_000
"""Longer members of an item are not kept for the arguments of the reading tool."""

_ITEMS = ("items", "results", "files", "documents", "pages", "issues", "entries", "data", "resources", "messages")
_IDS = ("id", "key", "uri", "path", "url", "name")
_ADDRESSES = ("url", "webUrl", "html_url", "webViewLink", "link", "uri")
_NAMES = ("name", "title", "subject", "path")
_VERSIONS = ("etag", "version", "sha", "lastModified", "modifiedTime", "updatedAt", "updated_at", "modified", "mtime")
_MODIFIED = ("lastModified", "modifiedTime", "updatedAt", "updated_at", "modified")
_CURSORS = ("nextCursor", "next_cursor", "nextPageToken", "cursor")
_FIELD = re.compile(r"\{([A-Za-z0-9_.-]{1,100})\}")


class SourceServer:
    """The MCP server of a source. The rules for a turn's tools apply: excluded and changed ones do not run."""

    def __init__(self, connection: "Connection", spec: LaunchSpec, lists: ToolLists, redact: Redaction) -> None:
        self._connection = connection
        self._spec = spec
        self._lists = lists
        self._redact = redact
        timeout = spec.entry.timeout_ms
        self._seconds = REQUEST_SECONDS if timeout is None else timeout / 1000

    async def list_resources(self, cursor: str | None) -> tuple[Json, str | None]:
        """Return one page of resources as the server sent it, and the next cursor."""
        return await self._connection.list_resources(cursor, self._seconds)

    async def read_resource(self, uri: str) -> Json:
        """Return the content of a resource as the server sent it."""
        return await self._connection.read_resource(uri, self._seconds)

    async def call(self, tool: str, arguments: Json) -> tuple[Sequence[Json], Any]:
        """Return the content blocks (as MCP writes them) and the structured content of a tool's result.

        Raises:
            SourceUnreadable: the tool may not run, or an argument contains a secret.
            SourceItemUnreadable: it failed.
        """
        from agentic_rag.tools.elicitation import InputRound  # imports the MCP library, as the connection does

        await self._check(tool)
        if self._redact.found_in(arguments):
            raise SourceUnreadable(f"an argument of {tool!r} contains a secret of the domain")
        result = await self._connection.call(tool, arguments, timeout=self._seconds)
        if isinstance(result, InputRound):
            raise SourceItemUnreadable(f"{tool!r} asks for a person's answer, which a source has not")
        blocks = [block.model_dump(mode="json", by_alias=True, exclude_none=True) for block in result.content]
        if result.is_error:
            text = " ".join(str(block.get("text", "")) for block in blocks)[:500]
            raise SourceItemUnreadable(f"{tool!r} failed: {text}")
        return blocks, result.structured_content

    async def _check(self, tool: str) -> None:
        """Check that a tool may run.

        Raises:
            SourceUnreadable: it is not listed, excluded, or changed since an admin accepted it.
        """
        entry = self._spec.entry
        listed = await self._connection.tools(self._seconds)
        accepted, changed = await self._lists.current(self._spec, listed)
        excluded = tool in entry.exclude or (entry.include and tool not in entry.include)
        if excluded or all(accepted_tool.name != tool for accepted_tool in accepted):
            why = "is excluded in the server's entry" if excluded else "is not among its accepted tools"
            raise SourceUnreadable(f"the tool {tool!r} of {entry.name!r} {why}")
        if tool in changed:
            raise SourceUnreadable(f"the tool {tool!r} of {entry.name!r} has changed; an admin has to accept it again")


class McpReader:
    """Reads the items of an MCP server. Implements `ItemReader`. ``redact`` removes the domain's secrets from texts."""

    def __init__(self, server: SourceServer, form: McpSource, redact: Callable[[str], str]) -> None:
        self._server = server
        self._form = form
        self._redact = redact
        self._wanted = Patterns(form.resources)
        self._members: dict[str, Json] = {}

    async def list_items(self, most: int) -> Listing:
        """See `ItemReader.list_items`."""
        if self._form.list_tool is not None:
            return await self._list_by_tool(self._form.list_tool, most)
        return await self._list_resources(most)

    async def _list_resources(self, most: int) -> Listing:
        listed = _ListedItems(most)
        cursor: str | None = None
        while True:
            answer, cursor = await self._server.list_resources(cursor)
            resources, left_out, problem = read_resources(answer)
            if problem:
                raise SourceUnreadable(problem)
            for note in left_out:
                listed.notes.add(note)
            for resource in resources:
                if self._wanted.match(resource.uri):
                    listed.add(
                        SourceItem(
                            resource.uri, resource.name, resource.media_type, resource.version, resource.modified
                        )
                    )
            if not listed.has_more(cursor):
                break
        for uri in self._form.resources:  # an address that the admin named is read even if it is not listed
            if not is_pattern(uri) and uri not in listed.items:
                listed.add(SourceItem(uri))
        return listed.listing()

    async def _list_by_tool(self, tool: ListTool, most: int) -> Listing:
        listed = _ListedItems(most)
        arguments: Json = dict(tool.arguments or {})
        while True:
            blocks, structured = await self._server.call(tool.tool, arguments)
            result = _result_of(blocks, structured)
            for number, member in enumerate(_list_in(result, tool.items), 1):
                item = self._item_of(member, tool)
                if item is None:
                    listed.notes.add(f"item {number} of a page has no id: {json.dumps(member, default=str)[:150]}")
                elif listed.add(item):
                    self._members[item.uri] = _short_members(member)
            cursor = _first(result, tool.cursor, _CURSORS) if tool.cursor_argument else ""
            if not listed.has_more(cursor):
                return listed.listing()
            arguments[tool.cursor_argument] = cursor

    def _item_of(self, member: Any, tool: ListTool) -> SourceItem | None:
        if isinstance(member, str):
            member = {"id": member}
        ident = _first(member, tool.id, _IDS)
        if not ident or len(ident) > URI_CHARS - 200:
            return None
        address = _first(member, tool.address, _ADDRESSES)
        if not address.startswith(("https://", "http://")) or len(address) > URI_CHARS:
            address = f"mcp:{self._form.server}/{ident}"
        modified = _first(member, "", _MODIFIED)
        version = _first(member, tool.version, _VERSIONS)
        name = _first(member, tool.name, _NAMES)
        media_type = _first(member, "", ("mimeType", "mime_type", "contentType"))
        return SourceItem(address, name, media_type[:100], version if len(version) <= 300 else "", modified, key=ident)

    @asynccontextmanager
    async def read_item(self, item: SourceItem, stored: SourceItemRecord | None) -> AsyncIterator[ItemContent | None]:
        """See `ItemReader.read_item`."""
        try:
            if self._form.read_tool is not None:
                yield await self._read_by_tool(self._form.read_tool, item)
            else:
                parts, problem = read_contents(await self._server.read_resource(item.key or item.uri))
                if problem:
                    raise refuse_item(problem)
                yield self._content_of(item, parts)
        except ServerSilent as exc:  # only this item is slow, as far as is known
            raise SourceItemSilent(describe(exc)) from exc

    async def _read_by_tool(self, tool: ReadTool, item: SourceItem) -> ItemContent:
        members = {"id": item.key, "uri": item.uri, "name": item.name, **self._members.get(item.uri, {})}
        members["id"] = item.key or item.uri
        arguments = _fill(tool.arguments or {"id": "{id}"}, members)
        blocks, structured = await self._server.call(tool.tool, arguments)
        if tool.content:
            text = _at(_result_of(blocks, structured), tool.content)
            if not isinstance(text, str):
                raise refuse_item(f"the result of {tool.tool} has no text at {tool.content!r}")
            return self._content_of(item, [ResourcePart("", text)])
        parts = [part for block in blocks if (part := _part_of(block)) is not None]
        if not parts:
            raise refuse_item(f"the result of {tool.tool} has no text and no file")
        return self._content_of(item, parts)

    def _content_of(self, item: SourceItem, parts: Sequence[ResourcePart]) -> ItemContent:
        """Return the first binary part, or all texts together."""
        media_type = next((part.media_type for part in parts if part.media_type), item.media_type)
        binary = next((part for part in parts if part.blob is not None), None)
        if binary is not None and all(part.text is None for part in parts):
            try:
                data = base64.b64decode(binary.blob or "", validate=True)
            except (binascii.Error, ValueError) as exc:
                raise refuse_item("its content is no base64") from exc
            return ItemContent(item.name, binary.media_type or media_type, one_chunk(data))
        text = "\n\n".join(part.text for part in parts if part.text is not None)
        data = self._redact(clean_text(text)).encode()
        return ItemContent(item.name, media_type, one_chunk(data), is_text=True)


class _ListedItems:
    """The items of the pages that were listed so far, at most ``most``."""

    def __init__(self, most: int) -> None:
        self.items: dict[str, SourceItem] = {}
        self.notes = RunNotes()
        self._most = most
        self._complete = True
        self._cursors: set[str] = set()

    def add(self, item: SourceItem) -> bool:
        """Add an item. Returns False if its address is listed already, or there are too many items."""
        if item.uri in self.items:
            self.notes.add(f"{item.uri[:150]} is listed more than once; the first one counts")
            return False
        if len(self.items) == self._most:
            self._complete = False  # an item that was left out is not missing at the server
            return False
        self.items[item.uri] = item
        return True

    def has_more(self, cursor: str | None) -> bool:
        """Return whether to ask for the page of a cursor. A list that is too long or repeats a cursor ends here."""
        if not self._complete or not cursor:
            return False
        if cursor in self._cursors or len(self._cursors) == MAX_PAGES:
            self._complete = False
            self.notes.add("the list does not end: a cursor is repeated, or there are too many pages")
            return False
        self._cursors.add(cursor)
        return True

    def listing(self) -> Listing:
        """Return the items with the notes about those left out."""
        if not self._complete and len(self.items) == self._most:
            self.notes.add(f"the server lists more than {self._most} items; the others are left out")
        return Listing(list(self.items.values()), self._complete, self.notes.texts)


def _part_of(block: Json) -> ResourcePart | None:
    kind = block.get("type")
    if kind == "text" and isinstance(block.get("text"), str):
        return ResourcePart("", block["text"])
    if kind in ("image", "audio") and isinstance(block.get("data"), str):
        return ResourcePart(str(block.get("mimeType") or ""), blob=block["data"])
    if kind == "resource":
        parts, problem = read_contents({"contents": [block.get("resource")]})
        return None if problem else parts[0]
    return None


def _result_of(blocks: Sequence[Json], structured: Any) -> Any:
    """Return the structured content of a result, or the JSON in its text, or the linked resources.

    Servers made with the Python SDK wrap the text of a tool in ``{"result": text}``, which is no structure.
    """
    is_wrapped = (
        isinstance(structured, dict) and structured.keys() == {"result"} and isinstance(structured["result"], str)
    )
    if structured is not None and not is_wrapped:
        return structured
    links = [block for block in blocks if block.get("type") == "resource_link"]
    if links:
        return {"items": links}
    text = "\n".join(str(block.get("text")) for block in blocks if block.get("type") == "text")
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError as exc:
        shown = text[:100]
        raise SourceUnreadable(f"the list is no JSON and has no structured content; it begins with {shown!r}") from exc


def _list_in(result: Any, path: str) -> list[Any]:
    """Return the list of items in a result.

    Raises:
        SourceUnreadable: there is no list, so no item may count as missing.
    """
    if path:
        members = _at(result, path)
        if not isinstance(members, list):
            raise SourceUnreadable(f"the result has no list at {path!r}")
        return members
    if isinstance(result, list):
        return result
    if isinstance(result, dict):
        for name in ("result", *_ITEMS):
            if isinstance(result.get(name), list):
                return list(result[name])
        # With two lists, a wrong guess would remove the documents of all items.
        lists = [value for value in result.values() if isinstance(value, list)]
        if len(lists) == 1:
            return lists[0]
    raise SourceUnreadable("the result has no list of items; name the member that has it in listTool.items")


def _at(value: Any, path: str) -> Any:
    for name in path.split("."):
        value = value.get(name) if isinstance(value, dict) else None
    return value


def _first(member: Any, path: str, usual: Sequence[str]) -> str:
    """Return the text or number at a path, or at the first usual name that has one; empty if there is none."""
    for name in [path] if path else usual:
        value = _at(member, name) if path else member.get(name) if isinstance(member, dict) else None
        if isinstance(value, str) and value.strip():
            return clean_text(value[: URI_CHARS + 1]).strip()
        if isinstance(value, int | float) and not isinstance(value, bool):
            return str(value)
    return ""


def _short_members(member: Any) -> Json:
    if not isinstance(member, dict):
        return {}
    kinds = (str, int, float, bool)
    return {
        str(name): value
        for name, value in list(member.items())[:100]
        if isinstance(value, kinds) and len(str(value)) <= MEMBER_CHARS
    }


def _fill(value: Any, members: Json) -> Any:
    """Return arguments with the members of an item in place of ``{name}``. A text that is one name keeps its type."""
    if isinstance(value, dict):
        return {name: _fill(inner, members) for name, inner in value.items()}
    if isinstance(value, list):
        return [_fill(inner, members) for inner in value]
    if not isinstance(value, str):
        return value
    whole = _FIELD.fullmatch(value)
    if whole and whole[1] in members:
        return members[whole[1]]
    return _FIELD.sub(lambda field: str(members.get(field[1], field[0])), value)


def describe(error: AgenticRagError) -> str:
    """Return the text of an error for the admins of a domain, at most 500 characters."""
    return str(error)[:500]
