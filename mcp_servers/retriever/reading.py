"""Reading of documents: list them, return the passages of one in order, and find exact words in it.

The functions work on any `Library` and know neither MCP nor an index; the tools that call them are in `server`.
"""

import re
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from mcp_servers.folding import fold
from mcp_servers.retriever.chunking import Chunk
from mcp_servers.retriever.errors import UnknownDocument, UnreadableRequest
from mcp_servers.retriever.hits import Hit, join_chunks, share_place
from mcp_servers.retriever.retrieval import Searcher
from mcp_servers.retriever.sentences import estimate_tokens

READ_TOKENS = 4_000
"""Approximate limit of tokens in the passages of one answer."""
MAX_JOINED = 8
"""Maximum number of chunks of one place that are joined to a passage."""
AROUND = 3
"""Chunks before a passage at which reading around the passage begins."""
BATCH = 128
"""Chunks fetched with one request."""
LISTED = 20
"""Documents on one page of a list."""
LISTED_HEADINGS = 8
"""Maximum number of headings of each document in a list."""
MAX_PATTERN_CHARACTERS = 200
MAX_FOUND = 12
"""Maximum number of passages of one answer to a search for exact words."""
MAX_SUGGESTIONS = 20

_PAGES = re.compile(r"\s*(\d{1,6})\s*(?:[-–]\s*(\d{1,6}))?\s*")


@dataclass(frozen=True, slots=True)
class DocumentFacts:
    """A readable document.

    ``passages`` is the number of its chunks. ``date`` (`YYYY-MM-DD`) is the file's own date, else the day on which it
    was added. ``outline`` are its first headings. ``document_date`` is a date given to it or the file's own,
    ``review_by`` the day until which it should be reviewed, and ``source_uri`` its address in the system it came from.
    """

    document_id: str
    name: str
    passages: int
    date: str | None = None
    languages: tuple[str, ...] = ()
    pages: int | None = None
    outline: tuple[str, ...] = ()
    document_date: str | None = None
    review_by: str | None = None
    source_uri: str | None = None


class Library(Protocol):
    """The documents of collections."""

    async def documents(self, collection: str, document_ids: Sequence[str] | None = None) -> list[DocumentFacts]:
        """Return the readable documents sorted by name, only those in ``document_ids`` if given."""
        ...

    async def chunks(self, collection: str, document_id: str, offset: int = 0, limit: int = 100) -> list[Chunk]:
        """Return the document's chunks with ordinals from ``offset`` to below ``offset + limit``, in order.

        Raises:
            IndexFault: the index does not answer.
        """
        ...


class KnowledgeBase(Searcher, Library, Protocol):
    """Collections that can be searched and read."""


@dataclass(frozen=True, slots=True)
class ReadingPosition:
    """The part of a document to read; None means from its start and to its end. Passages count from 1.

    ``section`` is part of a heading, ``pages`` is `3` or `3-7`. ``around`` is a passage in the middle of the part,
    ``start`` the first passage.
    """

    section: str | None = None
    pages: str | None = None
    around: int | None = None
    start: int | None = None


@dataclass(frozen=True, slots=True)
class ReadPassages:
    """Passages of a document. ``following`` is the number of the next passage that did not fit, or None."""

    document: DocumentFacts
    hits: tuple[Hit, ...]
    following: int | None


@dataclass(frozen=True, slots=True)
class _Wanted:
    """The chunks to read: below a heading with these words, from the first page to the last (None: all pages)."""

    heading: str
    first: int
    last: int | None

    def holds(self, chunk: Chunk) -> bool:
        headings = (" ".join(heading.casefold().split()) for heading in chunk.heading_path)
        if self.heading and not any(self.heading in heading for heading in headings):
            return False
        return self.last is None or (chunk.page is not None and self.first <= chunk.page <= self.last)

    def ends_before(self, chunk: Chunk) -> bool:
        return self.last is not None and chunk.page is not None and chunk.page > self.last


def find_document(documents: Sequence[DocumentFacts], wanted: str) -> DocumentFacts:
    """Return the document with this id, name, or part of a name.

    Raises:
        UnknownDocument: no document matches, or several do.
    """
    exact = [document for document in documents if wanted in (document.document_id, document.name)]
    part = wanted.strip().casefold()
    matching = exact or [document for document in documents if part in document.name.casefold()]
    if len(matching) != 1:
        raise UnknownDocument(wanted, [document.name for document in matching or documents][:MAX_SUGGESTIONS])
    return matching[0]


async def read(library: Library, collection: str, document: DocumentFacts, place: ReadingPosition) -> ReadPassages:
    """Return the passages of a place in order, as many as fit into one answer.

    Raises:
        UnreadableRequest: the document has no such place.
        IndexFault: the index does not answer.
    """
    wanted = _Wanted(" ".join((place.section or "").casefold().split()), *_pages(place.pages))
    begin = await _beginning(library, collection, document, place, wanted.first)
    reading = await _collect(library, collection, document, begin, wanted)
    if not reading.hits:
        raise UnreadableRequest(_nothing_there(document, place))
    return reading


async def find_words(
    library: Library, collection: str, document: DocumentFacts, pattern: str, start: int = 1
) -> ReadPassages:
    """Return the passages of a document that contain exact words, from passage ``start`` on, at most `MAX_FOUND`.

    Text is compared after folding (`folding`): case, white space, kinds of hyphens and quotes, and the width of
    characters do not matter. The words have no wildcards. Matches across the end of a chunk are found.

    Raises:
        UnreadableRequest: the pattern is empty or too long, or there is no passage ``start``.
        IndexFault: the index does not answer.
    """
    words = fold(pattern).text.strip()
    if not words or len(pattern) > MAX_PATTERN_CHARACTERS:
        raise UnreadableRequest(f"`pattern` must be 1 to {MAX_PATTERN_CHARACTERS} characters of the document's words.")
    first = _ordinal(document, start, "from")
    hits: list[Hit] = []
    before = ""
    # From one passage earlier, because the words may begin at its end.
    async for chunk in _walk(library, collection, document, max(first - 1, 0)):
        text = fold(chunk.text).text.strip()
        if chunk.ordinal >= first and (words in text or words in f"{before} {text[: len(words)]}"):
            if len(hits) == MAX_FOUND:
                return ReadPassages(document, tuple(hits), chunk.ordinal + 1)
            hits.append(join_chunks([chunk]))
        # Fewer characters than the words have: otherwise the next passage would seem to have those of this one.
        before = f"{before} {text}"
        before = before[max(len(before) - len(words) + 1, 0) :]
    return ReadPassages(document, tuple(hits), None)


async def _collect(
    library: Library,
    collection: str,
    document: DocumentFacts,
    begin: int,
    wanted: _Wanted,
) -> ReadPassages:
    groups: list[list[Chunk]] = []
    room = READ_TOKENS
    following: int | None = None
    async for chunk in _walk(library, collection, document, begin):
        if wanted.ends_before(chunk):
            break
        if not wanted.holds(chunk):
            continue
        room -= estimate_tokens(chunk.text)
        if room < 0 and groups:
            following = chunk.ordinal + 1
            break
        last = groups[-1][-1] if groups else None
        if last and last.ordinal + 1 == chunk.ordinal and share_place(last, chunk) and len(groups[-1]) < MAX_JOINED:
            groups[-1].append(chunk)
        else:
            groups.append([chunk])
    return ReadPassages(document, tuple(join_chunks(group) for group in groups), following)


async def _walk(library: Library, collection: str, document: DocumentFacts, begin: int) -> AsyncIterator[Chunk]:
    while batch := await library.chunks(collection, document.document_id, begin, BATCH):
        for chunk in batch:
            yield chunk
        begin += BATCH


async def _beginning(
    library: Library, collection: str, document: DocumentFacts, place: ReadingPosition, first_page: int
) -> int:
    """Return the ordinal of the first chunk to read."""
    if place.start is not None:
        return _ordinal(document, place.start, "from")
    if place.around is not None:
        return max(0, _ordinal(document, place.around, "around") - AROUND)
    if place.pages is None:
        return 0
    if document.pages is None:
        raise UnreadableRequest(f"{document.name} has no pages: read it by `section` or `from`.")
    # Page numbers never decrease, so a binary search finds the first passage of a page.
    low, high = 0, document.passages
    while low < high:
        middle = (low + high) // 2
        page = await _page_at(library, collection, document, middle)
        low, high = (middle + 1, high) if page is not None and page < first_page else (low, middle)
    return low


async def _page_at(library: Library, collection: str, document: DocumentFacts, ordinal: int) -> int | None:
    chunks = await library.chunks(collection, document.document_id, ordinal, 1)
    return chunks[0].page if chunks else None


def _pages(pages: str | None) -> tuple[int, int | None]:
    """Return the first and the last page; 1 and None for all.

    Raises:
        UnreadableRequest: ``pages`` is neither a page nor a range of pages.
    """
    if pages is None:
        return 1, None
    match = _PAGES.fullmatch(pages)
    first, last = (int(match[1]), int(match[2] or match[1])) if match else (0, 0)
    if not 1 <= first <= last:
        raise UnreadableRequest(f'`pages` is {pages[:40]!r}, but must be a page or a range of pages: "3" or "3-7".')
    return first, last


def _ordinal(document: DocumentFacts, number: int, argument: str) -> int:
    if not 1 <= number <= max(document.passages, 1):
        raise UnreadableRequest(f"`{argument}` is {number}, but {document.name} has passages 1 to {document.passages}.")
    return number - 1


def _nothing_there(document: DocumentFacts, place: ReadingPosition) -> str:
    if place.section is not None:
        headings = "; ".join(document.outline[:MAX_SUGGESTIONS]) or "none"
        return f"{document.name} has no section {place.section[:80]!r} there. Its first headings: {headings}."
    if place.pages is not None:
        return f"{document.name} has {document.pages} pages, and no text on {place.pages}."
    return f"{document.name} has no text there."
