"""The forms of sources: what an admin enters for an MCP server, a folder or a website.

Owns the bounds of all values. `agentic_rag.sources` checks what depends on the domain and on the operator's settings.
"""

from collections.abc import Sequence
from typing import Annotated

from pydantic import Field, StringConstraints

from agentic_rag.base.forms import Form, OwnJson
from agentic_rag.directory.document_labels import Labels

MAX_ITEMS = 100_000
"""Maximum number of items of one source."""
ADDRESS_CHARS = 2_000
SOURCES_FOLDER = "sources"
"""The folder of all sources in the documents folder."""

NameText = Annotated[str, StringConstraints(max_length=200)]
ToolName = Annotated[str, StringConstraints(min_length=1, max_length=256)]
FieldPath = Annotated[str, StringConstraints(max_length=200)]
"""Names of nested members with dots: ``data.files``. Empty: the usual names are tried."""
Address = Annotated[str, StringConstraints(min_length=1, max_length=ADDRESS_CHARS)]
Patterns = Annotated[tuple[Address, ...], Field(max_length=200)]


class ListTool(Form):
    """A tool that lists items, and where its result has them.

    ``items`` leads to the list; ``id``, ``address``, ``name`` and ``version`` are members of each item. ``cursor``
    leads to the cursor of the next page, which goes into the argument ``cursorArgument``.
    """

    tool: ToolName
    arguments: OwnJson = None
    items: FieldPath = ""
    id: FieldPath = ""
    address: FieldPath = ""
    name: FieldPath = ""
    version: FieldPath = ""
    cursor: FieldPath = ""
    cursor_argument: FieldPath = ""


class ReadTool(Form):
    """A tool that returns an item. In texts of ``arguments``, ``{id}`` and other members of the item are replaced.

    ``content`` leads to the text in the tool's structured result. Without it, the content blocks are taken.
    """

    tool: ToolName
    arguments: OwnJson = None
    content: FieldPath = ""


class McpSource(Form):
    """An MCP server of the domain. Without tools, the server's resources are read.

    ``resources``: addresses, or patterns with ``*`` or ``{name}`` of listed addresses. An address without them is also
    read if the server does not list it.
    """

    server: NameText
    resources: Patterns = ("*",)
    list_tool: ListTool | None = None
    read_tool: ReadTool | None = None


class FolderSource(Form):
    """A folder on the server. ``include``: patterns of file names and paths; empty for all supported files."""

    path: Annotated[str, StringConstraints(min_length=1, max_length=1_000)]
    include: Patterns = ()


class WebsiteSource(Form):
    """Pages of a website: ``urls``, and those that ``sitemaps`` list. Links are not followed."""

    urls: Annotated[tuple[Address, ...], Field(max_length=1_000)] = ()
    sitemaps: Annotated[tuple[Address, ...], Field(max_length=50)] = ()
    include: Patterns = ()


class SourceForm(Form):
    """A new source: one of ``mcp``, ``folder`` and ``website``.

    ``labels`` are added to the source's documents. Items that are missing for ``graceHours`` are removed. ``exclude``
    are patterns of addresses.
    """

    name: NameText
    mcp: McpSource | None = None
    folder: FolderSource | None = None
    website: WebsiteSource | None = None
    labels: Labels = ()
    exclude: Patterns = ()
    interval_minutes: int = Field(1_440, ge=1, le=525_600)
    grace_hours: int = Field(24, ge=0, le=8_760)
    max_items: int = Field(10_000, ge=1, le=MAX_ITEMS)
    enabled: bool = True


class SourceChange(Form):
    """Changed fields of a source; absent ones keep their values. A source keeps its kind."""

    name: NameText | None = None
    mcp: McpSource | None = None
    folder: FolderSource | None = None
    website: WebsiteSource | None = None
    labels: Labels | None = None
    exclude: Patterns | None = None
    interval_minutes: int | None = Field(None, ge=1, le=525_600)
    grace_hours: int | None = Field(None, ge=0, le=8_760)
    max_items: int | None = Field(None, ge=1, le=MAX_ITEMS)
    enabled: bool | None = None


def chosen_kind(form: SourceForm) -> tuple[str, McpSource | FolderSource | WebsiteSource] | None:
    """Return the kind of a source and its part of the form, or None unless there is exactly one."""
    kinds = (("mcp", form.mcp), ("folder", form.folder), ("website", form.website))
    present = [(kind, part) for kind, part in kinds if part is not None]
    return present[0] if len(present) == 1 else None


def free_folder(name: str, folders: Sequence[str]) -> str:
    """Return a folder for the files of a new source of this name, inside the documents folder."""
    plain = "".join(char if char.isalnum() or char in " ._-()" else "-" for char in name[:60]).strip(" .") or "source"
    number, folder = 1, f"{SOURCES_FOLDER}/{plain}"
    folded = {folder.casefold() for folder in folders}
    while folder.casefold() in folded:
        number += 1
        folder = f"{SOURCES_FOLDER}/{plain} ({number})"
    return folder
