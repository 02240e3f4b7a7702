"""The items of a source: what a list says about them, what reading one yields, and the file name of its document.

Owns the values that the readers of MCP servers, folders and websites have in common.
"""

import re
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol
from urllib.parse import unquote, urlsplit

from agentic_rag.base.errors import DocumentUnsupported, SourceItemUnreadable
from agentic_rag.base.forms import one_line
from agentic_rag.directory.document_labels import matches_pieces
from agentic_rag.documents.files import clean_name, split_name
from agentic_rag.store.sources import SourceItemRecord
from mcp_servers.retriever.formats import SAVE_INSTEAD, all_formats, suffixes

NAME_CHARS = 300
NOTES = 20
"""Maximum number of notes of a run; the last one counts the others."""
NOTE_CHARS = 300

_GENERIC = frozenset({"", "text/plain", "application/octet-stream", "binary/octet-stream"})
"""Media types that say less than the ending of a name."""
_PREFERRED = {
    "text/plain": ".txt",
    "text/markdown": ".md",
    "text/x-markdown": ".md",
    "text/html": ".html",
    "application/xhtml+xml": ".html",
    "text/xml": ".xml",
    "application/xml": ".xml",
    "image/jpeg": ".jpg",
    "application/x-yaml": ".yaml",
    "text/yaml": ".yaml",
}


@dataclass(frozen=True, slots=True)
class SourceItem:
    """An item as its source lists it.

    ``version`` changes with the item's content. If it is empty, the item is read in each run. ``key`` identifies the
    item for its reader, where that is not its address. ``path`` is the item's folder inside the source.
    """

    uri: str
    name: str = ""
    media_type: str = ""
    version: str = ""
    modified: str = ""
    key: str = ""
    path: str = ""


@dataclass(frozen=True, slots=True)
class Listing:
    """The items of a source. Only a ``complete`` list shows that an item is missing. ``notes`` say what is left out."""

    items: Sequence[SourceItem]
    complete: bool = True
    notes: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class ItemContent:
    """The content of an item. ``version`` replaces that of the list, if it is known only now."""

    name: str
    media_type: str
    chunks: AsyncIterator[bytes]
    is_text: bool = False
    version: str | None = None
    modified: str | None = None


class ItemGone(Exception):
    """The source says that an item does not exist any more."""


class ItemReader(Protocol):
    """Lists and reads the items of one source during one run."""

    async def list_items(self, most: int) -> Listing:
        """Return at most ``most`` items.

        Raises:
            AgenticRagError: the source cannot be listed; the run ends.
        """
        ...

    def read_item(
        self, item: SourceItem, stored: SourceItemRecord | None
    ) -> AbstractAsyncContextManager[ItemContent | None]:
        """Open the content of an item; None if it is still the ``stored`` one.

        Raises:
            ItemGone: the item does not exist any more.
            ServerUnavailable, SourceUnreadable: the whole source cannot be read now; the run ends.
            AgenticRagError: this item cannot be read.
        """
        ...


async def one_chunk(data: bytes) -> AsyncIterator[bytes]:
    """Yield data that is in memory already."""
    yield data


def date_of(modified: str) -> str | None:
    """Return the day of an ISO 8601 time as `YYYY-MM-DD`, or None if it is no such time."""
    try:
        return datetime.fromisoformat(modified).date().isoformat() if modified else None
    except ValueError:
        return None


def file_name(item: SourceItem, content: ItemContent) -> str:
    """Return the file name of an item's document. Its ending says how the document is read.

    The media type decides, unless it is a generic one such as ``text/plain``. Then the ending of the name decides.

    Raises:
        DocumentUnsupported: neither the media type nor the ending belongs to a supported format.
    """
    name = clean_name((content.name or item.name or last_part(item.uri))[:NAME_CHARS])
    ending = split_name(name)[1].lower()
    media_type = content.media_type.partition(";")[0].strip().lower()[:100]
    by_type = _ending_of(media_type)
    supported = suffixes()
    if ending in supported and (media_type in _GENERIC or not by_type or _is_same(ending, by_type)):
        return name
    # A title such as "Report 2.5" has an ending that means nothing, but the address may end in ".pdf".
    if media_type in _GENERIC and split_name(last_part(item.uri))[1].lower() in supported:
        by_type = split_name(last_part(item.uri))[1].lower()
    elif not by_type and (media_type.startswith("text/") or (content.is_text and not media_type)):
        by_type = ".txt"
    if not by_type or by_type not in supported:
        shown = ending or media_type or "an unknown type"
        raise DocumentUnsupported(f"{name} ({shown})", supported, SAVE_INSTEAD.get(ending, ""))
    # Appended, not replaced: "notes.v2" becomes "notes.v2.md" and stays distinct from "notes.v3".
    return clean_name(f"{name}{by_type}")


def _ending_of(media_type: str) -> str:
    preferred = _PREFERRED.get(media_type)
    if preferred is not None:
        return preferred
    if media_type in _GENERIC:
        return ""
    return next((ending for ending, form in all_formats().items() if form.media_type == media_type), "")


def _is_same(first: str, second: str) -> bool:
    formats = all_formats()
    return first in formats and second in formats and formats[first].media_type == formats[second].media_type


def last_part(uri: str) -> str:
    """Return the last component of an address's path, decoded; its host if the path is empty."""
    try:
        parts = urlsplit(uri)
    except ValueError:
        return uri.rstrip("/").rpartition("/")[2]
    return unquote(parts.path.rstrip("/").rpartition("/")[2]) or parts.hostname or parts.path or uri


class Patterns:
    """Patterns of addresses: ``*`` and ``{name}`` stand for any characters, and everything else for itself."""

    def __init__(self, patterns: Iterable[str]) -> None:
        self._parts = [tuple(re.split(r"\*+|\{[^{}]{1,100}\}", pattern)) for pattern in patterns]

    def match(self, uri: str) -> bool:
        """Return whether an address matches one of the patterns. Takes linear time for each pattern."""
        return any(matches_pieces(parts, uri) for parts in self._parts)


def is_pattern(text: str) -> bool:
    """Return whether a text stands for several addresses."""
    return "*" in text or "{" in text


class RunNotes:
    """The notes of a run, each once and at most `NOTES` of them."""

    def __init__(self, notes: Iterable[str] = ()) -> None:
        self._notes: dict[str, None] = {}
        self._more = 0
        for note in notes:
            self.add(note)

    def add(self, note: str) -> None:
        """Add a note, cut to `NOTE_CHARS`."""
        note = one_line(note[:NOTE_CHARS])
        if note in self._notes:
            return
        if len(self._notes) < NOTES:
            self._notes[note] = None
        else:
            self._more += 1

    @property
    def texts(self) -> tuple[str, ...]:
        """The notes in order."""
        return (*self._notes, *([f"{self._more} more notes"] if self._more else []))


def refuse_item(problem: str) -> SourceItemUnreadable:
    """Return the error of an item, in one line of bounded length."""
    return SourceItemUnreadable(one_line(problem[:500]))
