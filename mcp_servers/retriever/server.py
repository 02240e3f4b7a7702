"""The MCP server with the tools that search and read documents.

Inside the host process, the host binds collection, visible documents and settings to each call, hidden from the model.
A standalone server gets them once, at its creation. The module renders the results of `retrieval` and `reading` and
knows nothing of indexes.
"""

import json
import logging
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import wraps
from typing import Annotated, Any

from mcp.server import MCPServer
from mcp.server.mcpserver import Context
from mcp.server.mcpserver.exceptions import ToolError
from mcp.shared.exceptions import MCPError
from mcp_types import INVALID_PARAMS, CallToolResult, TextContent, ToolAnnotations
from pydantic import Field
from pydantic.json_schema import SkipJsonSchema

from mcp_servers import __version__
from mcp_servers.retriever.document import Json, join_row
from mcp_servers.retriever.errors import IndexFault, UnknownDocument, UnreadableRequest
from mcp_servers.retriever.formats.dates import iso_date
from mcp_servers.retriever.hits import Hit, Mode, Retrieval
from mcp_servers.retriever.reading import (
    LISTED,
    LISTED_HEADINGS,
    DocumentFacts,
    KnowledgeBase,
    Library,
    ReadingPosition,
    ReadPassages,
    find_document,
    find_words,
    read,
)
from mcp_servers.retriever.relevance import NO_MATCH, WITHOUT_CODE
from mcp_servers.retriever.retrieval import Searcher

log = logging.getLogger(__name__)

DEFAULT_TOP_K = 5
MAX_TOP_K = 50
MAX_QUERY_CHARACTERS = 2_000

MAX_RESULT_BYTES = 48 * 2**10
"""Maximum number of bytes of both forms of a result together; the last hits are left out if they do not fit."""

WEAK = 0.12
"""Relevance of the best passage below which the tool calls it weak."""

META_PREFIX = "agentic_rag/"
"""Keys of a call's meta: collection, documents, top_k, threshold, and those that a host's `VisibleDocuments` reads."""

OTHERS_TEXT = "othersText"
"""Key in the structured content: true if a result without hits contains text of a document's author."""

DESCRIPTION = (
    "Search this knowledge base for passages by words, numbers, codes and meaning. You may search several times: once "
    "for each thing that you compare, and again in other words if the passages do not answer."
)
READ_DESCRIPTION = "Read a document in order: to summarise it, or around a passage."
LIST_DESCRIPTION = "List documents: name, date, language, size, headings."
FIND_DESCRIPTION = "Find exact words in a document: each place of a number, a code or a quote."
NOTHING = "Nothing in the documents matches. Try other words, or say that they do not tell."
UNMATCHED = 'No passage matches this part: "{}".'
"""A sentence of the note for each part of a question without a match."""
INSTRUCTIONS = "Search the documents of this knowledge base before you answer from memory, and cite what you find."

READ_ONLY = ToolAnnotations(read_only_hint=True, destructive_hint=False, idempotent_hint=True, open_world_hint=False)


@dataclass(frozen=True, slots=True)
class ServerConfig:
    """The collection, the visible documents (None: all) and the defaults of a call."""

    collection: str
    documents: tuple[str, ...] | None = None
    top_k: int = DEFAULT_TOP_K
    threshold: float = 0.0


@dataclass(frozen=True)  # with slots, the SDK would take their descriptors for defaults
class SearchResult:
    """The structured content of a search, as the tool's output schema declares it.

    ``unmatched`` are the parts of a question about several things that no passage matches.
    """

    retrieval_id: str
    mode: Mode
    note: str
    hits: tuple[Hit, ...]
    unmatched: tuple[str, ...] = ()


_Bound = Callable[[Context], Awaitable[ServerConfig]]
"""A function that returns the configuration of a call."""

_FilesOf = Callable[[Context], Awaitable[KnowledgeBase | None]]
"""A function that returns the files attached to the conversation of a call, or None."""

VisibleDocuments = Callable[[Json], Awaitable[tuple[str, ...] | None]]
"""A host's function that returns the documents that the reader of a call may see; None means all.

Its argument has the members of the call's meta without their prefix. The server calls it for each tool call, and again
after a search, so that a change of rights counts at once.
"""

AttachedFiles = Callable[[Json], Awaitable[KnowledgeBase | None]]
"""A host's function that returns the files attached to the conversation of a call, or None. The argument is that of
`VisibleDocuments`."""

DocumentName = Annotated[str, Field(description="Name, part of it, or id.")]


def create_server(
    retriever: Searcher,
    library: Library | None = None,
    *,
    bound_by_meta: bool,
    visible: VisibleDocuments | None = None,
    attached: AttachedFiles | None = None,
    config: ServerConfig | None = None,
) -> MCPServer[Any]:
    """Create the server with its tools; without a library, it has only the search tool.

    With `bound_by_meta`, the meta of each call names the collection, and a call without one is a protocol error. The
    host's `visible` returns the documents that the call may see; without it, the meta names them. If `bound_by_meta` is
    False, meta is ignored and `config` is required. The host's `attached` adds the files of the call's conversation.
    """
    if config is None and not bound_by_meta:
        raise ValueError("a server that is not bound by meta needs a config")
    server: MCPServer[Any] = MCPServer("retriever", version=__version__, instructions=INSTRUCTIONS)

    async def bound(ctx: Context) -> ServerConfig:
        if config is not None and not bound_by_meta:
            return config
        meta = _bound_members(ctx.request_context.meta or {})
        config_of_meta = _from_meta(meta)
        return config_of_meta if visible is None else replace(config_of_meta, documents=await visible(meta))

    async def files_of(ctx: Context) -> KnowledgeBase | None:
        return None if attached is None else await attached(_bound_members(ctx.request_context.meta or {}))

    _add_search(server, retriever, library, bound, files_of)
    if library is not None:
        _add_reading(server, library, bound, files_of)
    return server


def _add_search(
    server: MCPServer[Any], retriever: Searcher, library: Library | None, bound: _Bound, files_of: _FilesOf
) -> None:
    @server.tool(title="Search documents", description=DESCRIPTION, annotations=READ_ONLY)
    async def search_documents(
        ctx: Context,
        query: Annotated[
            str,
            Field(
                description="In a document's words; any language.",
            ),
        ],
        top_k: Annotated[
            int | SkipJsonSchema[None],
            Field(description=f"How many passages, 1 to {MAX_TOP_K}."),
        ] = None,
        document: Annotated[
            str | SkipJsonSchema[None],
            Field(description="Name, part of it, or id."),
        ] = None,
        section: Annotated[str | SkipJsonSchema[None], Field(description="A heading.")] = None,
        type: Annotated[str | SkipJsonSchema[None], Field(description="File ending.")] = None,
        after: Annotated[str | SkipJsonSchema[None], Field(description="YYYY-MM-DD")] = None,
        before: Annotated[str | SkipJsonSchema[None], Field(description="YYYY-MM-DD")] = None,
    ) -> Annotated[CallToolResult, SearchResult]:
        config = await bound(ctx)
        wanted = config.top_k if top_k is None else top_k
        _check(query, wanted)
        with _plain_errors("Leave `document` out to search all."):
            documents = config.documents
            files = None if after or before else await files_of(ctx)  # attached files have no date
            if files is not None:
                chosen = await _attached_as(files, library, config, document) if document else None
                if chosen is None or chosen:
                    in_files = await files.search(
                        config.collection,
                        query.strip(),
                        wanted,
                        config.threshold,
                        chosen,
                        file_type=type.lower().removeprefix(".") if type else None,
                        heading=section or None,
                    )
                    if chosen:
                        return _result(in_files, await _facts_by_id(files, config, in_files))
            if after or before:
                documents = await _documents_of_time(library, config, after, before)
            retrieval = await retriever.search(
                config.collection,
                query.strip(),
                wanted,
                config.threshold,
                documents,
                document or None,
                file_type=type.lower().removeprefix(".") if type else None,
                heading=section or None,
            )
            retrieval = _within(retrieval, (await bound(ctx)).documents)
            facts = await _facts_by_id(library, config, retrieval) if library else {}
            if files is not None and not document and in_files.hits:
                facts |= await _facts_by_id(files, config, in_files)
                hits = sorted([*in_files.hits, *retrieval.hits], key=lambda hit: -hit.relevance_score)
                unmatched = tuple(part for part in retrieval.unmatched if part in in_files.unmatched)
                retrieval = replace(retrieval, unmatched=unmatched).with_hits(hits[:wanted])
        return _result(retrieval, facts)


async def _facts_by_id(library: Library, config: ServerConfig, retrieval: Retrieval) -> dict[str, DocumentFacts]:
    """Return the facts about the documents of the hits, by id."""
    ids = tuple(dict.fromkeys(hit.document_id for hit in retrieval.hits))
    facts = await library.documents(config.collection, ids) if ids else []
    return {fact.document_id: fact for fact in facts}


async def _attached_as(files: Library, library: Library | None, config: ServerConfig, wanted: str) -> tuple[str, ...]:
    """Return the ids of the attached files with this id or name, or of the one that a part of a name stands for.

    Raises:
        UnknownDocument: the part of a name stands for several files or documents.
    """
    listed = await files.documents(config.collection)
    exact = tuple(file.document_id for file in listed if wanted in (file.document_id, file.name))
    part = wanted.strip().casefold()
    if exact or library is None or all(part not in file.name.casefold() for file in listed):
        return exact
    facts = find_document([*listed, *await library.documents(config.collection, config.documents)], wanted)
    return (facts.document_id,) if facts in listed else ()


def _add_reading(server: MCPServer[Any], library: Library, bound: _Bound, files_of: _FilesOf) -> None:
    async def document_of(ctx: Context, wanted: str) -> tuple[Library, ServerConfig, DocumentFacts]:
        """Return a document or an attached file, with the library that has its passages."""
        config, files = await bound(ctx), await files_of(ctx)
        listed = [] if files is None else await files.documents(config.collection)
        facts = find_document([*listed, *await library.documents(config.collection, config.documents)], wanted)
        return (files if files is not None and facts in listed else library), config, facts

    @server.tool(title="Read a document", description=READ_DESCRIPTION, annotations=READ_ONLY)
    @_takes_from
    async def read_document(
        ctx: Context,
        document: DocumentName,
        section: Annotated[str | SkipJsonSchema[None], Field(description="Part of a heading.")] = None,
        pages: Annotated[str | SkipJsonSchema[None], Field(description='"3" or "3-7"')] = None,
        around: Annotated[int | SkipJsonSchema[None], Field(description="Number of a passage.")] = None,
        start: Annotated[int | SkipJsonSchema[None], Field(alias="from", description="First passage.")] = None,
    ) -> CallToolResult:
        with _plain_errors():
            place = ReadingPosition(section or None, pages or None, around, start)
            shelf, config, facts = await document_of(ctx, document)
            return _reading(await read(shelf, config.collection, facts, place))

    @server.tool(title="Find words in a document", description=FIND_DESCRIPTION, annotations=READ_ONLY)
    @_takes_from
    async def find_in_document(
        ctx: Context,
        document: DocumentName,
        pattern: Annotated[str, Field(description="The words; case does not count.")],
        start: Annotated[int, Field(alias="from", description="First passage.")] = 1,
    ) -> CallToolResult:
        with _plain_errors():
            shelf, config, facts = await document_of(ctx, document)
            return _findings(await find_words(shelf, config.collection, facts, pattern, start), pattern)

    @server.tool(title="List documents", description=LIST_DESCRIPTION, annotations=READ_ONLY)
    @_takes_from
    async def list_documents(
        ctx: Context,
        contains: Annotated[str | SkipJsonSchema[None], Field(description="Part of a name or heading.")] = None,
        start: Annotated[int, Field(alias="from", description="First document's number.")] = 1,
    ) -> CallToolResult:
        config, files = await bound(ctx), await files_of(ctx)
        with _plain_errors():
            listed = [] if files is None else await files.documents(config.collection)
            documents = await library.documents(config.collection, config.documents)
            return _list([*listed, *documents], contains or "", start)


def _takes_from(function: Callable[..., Awaitable[CallToolResult]]) -> Callable[..., Awaitable[CallToolResult]]:
    """Pass the argument `from`, a keyword in Python, to the parameter `start`."""

    @wraps(function)
    async def call(**arguments: Any) -> CallToolResult:
        if "from" in arguments:
            arguments["start"] = arguments.pop("from")
        return await function(**arguments)

    return call


@contextmanager
def _plain_errors(advice: str = "") -> Iterator[None]:
    """Turn errors of the lower layers into tool errors for the model."""
    try:
        yield
    except UnknownDocument as error:
        raise ToolError(f"{error} {advice}".strip()) from error
    except UnreadableRequest as error:
        raise ToolError(str(error)) from error
    except IndexFault as error:
        log.warning("a tool call failed: %s", error)  # the address and the details are for the operator only
        raise ToolError(
            "INDEX_UNAVAILABLE: the documents cannot be searched now. Say so, or try again later."
        ) from error


def _bound_members(meta: Json) -> Json:
    """Return the members of a call's meta that the host binds, without their prefix."""
    return {key.removeprefix(META_PREFIX): value for key, value in meta.items() if key.startswith(META_PREFIX)}


def _from_meta(bound: Json) -> ServerConfig:
    collection = bound.get("collection")
    if not isinstance(collection, str) or not collection:
        raise MCPError(INVALID_PARAMS, f"the call's meta names no {META_PREFIX}collection")
    documents = bound.get("documents")
    return ServerConfig(
        collection,
        None if documents is None else tuple(documents),
        bound.get("top_k") or DEFAULT_TOP_K,
        bound.get("threshold") or 0.0,
    )


def _within(retrieval: Retrieval, documents: tuple[str, ...] | None) -> Retrieval:
    """Return a search without hits of documents that became invisible, or appeared, while it ran."""
    if documents is None:
        return retrieval
    visible = frozenset(documents)
    hits = [hit for hit in retrieval.hits if hit.document_id in visible]
    return retrieval if len(hits) == len(retrieval.hits) else retrieval.with_hits(hits)


def _check(query: str, top_k: int) -> None:
    if not query.strip():
        raise ToolError("`query` is empty: say what to look for.")
    if len(query) > MAX_QUERY_CHARACTERS:
        raise ToolError(f"`query` is longer than {MAX_QUERY_CHARACTERS} characters: ask for one thing at a time.")
    if not 1 <= top_k <= MAX_TOP_K:
        raise ToolError(f"`top_k` is {top_k}, but must be from 1 to {MAX_TOP_K}.")


async def _documents_of_time(
    library: Library | None, config: ServerConfig, after: str | None, before: str | None
) -> tuple[str, ...]:
    """Return the visible documents dated within a time span. Raises `UnreadableRequest` if there are none."""
    if library is None:
        raise UnreadableRequest("The dates of these documents are not known: leave `after` and `before` out.")
    for name, value in (("after", after), ("before", before)):
        if value and iso_date(value) is None:
            raise UnreadableRequest(f"`{name}` is {value[:40]!r}, but must be a date: YYYY-MM-DD.")
    documents = await library.documents(config.collection, config.documents)
    first, end = iso_date(after or "") or "", iso_date(before or "") or "9999-99-99"
    ids = tuple(document.document_id for document in documents if document.date and first <= document.date < end)
    if not ids:
        dates = sorted(document.date for document in documents if document.date)
        span = f" They are dated {dates[0]} to {dates[-1]}." if dates else ""
        raise UnreadableRequest(f"No document is of that time.{span}")
    return ids


def _result(retrieval: Retrieval, facts: Mapping[str, DocumentFacts]) -> CallToolResult:
    best = max((hit.relevance_score for hit in retrieval.hits), default=0.0)
    hits = retrieval.hits if best >= NO_MATCH else ()
    if retrieval.unmatched:  # a passage about another thing would answer the part without a match
        hits = tuple(hit for hit in hits if hit.relevance_score > WITHOUT_CODE)
    quality = _quality(retrieval, best) if hits else NOTHING
    if retrieval.hits and not hits:
        quality = f"{NOTHING} The nearest passage lacks what the query names ({best:.2f} of 1)."
    unmatched = retrieval.unmatched if hits else ()
    sentences = [retrieval.incomplete, quality, *map(UNMATCHED.format, (part.replace('"', "'") for part in unmatched))]
    note = " ".join(filter(None, sentences))
    reported: Json = {"unmatched": [*unmatched]} if unmatched else {}
    members: Json = {"retrieval_id": retrieval.retrieval_id, "mode": retrieval.mode, **reported}
    return _passages(members, note, _fit(hits, facts))


def _quality(retrieval: Retrieval, best: float) -> str:
    """Describe how well the best hit matches, for the model."""
    by = "by words only" if retrieval.mode == "lexical" else "by words and meaning"
    if best < WEAK:
        return f"Searched {by}. Even the best match is weak ({best:.2f}): it may not answer the question."
    return f"Searched {by}. Best match {best:.2f} of 1."


def _reading(reading: ReadPassages) -> CallToolResult:
    document, shown = reading.document, _show(reading)
    note = f"{document.name} has {document.passages} passages."
    if shown.following is not None:
        note += f" There is more: go on with from={shown.following}."
    return _passages({"document_id": document.document_id, "next": shown.following}, note, shown)


def _findings(reading: ReadPassages, pattern: str) -> CallToolResult:
    document, shown = reading.document, _show(reading)
    if not reading.hits:
        note = f"{pattern!r} does not stand in {document.name}. Search for its meaning with search_documents."
    elif shown.following is None:
        note = f"{len(reading.hits)} of {document.passages} passages hold {pattern!r}."
    else:
        note = f"The first {len(shown.hits)} passages with {pattern!r}; go on with from={shown.following}."
    return _passages({"document_id": document.document_id, "next": shown.following}, note, shown)


def _list(documents: Sequence[DocumentFacts], contains: str, start: int) -> CallToolResult:
    """Return one page of the documents with `contains` in a name or a heading."""
    words = contains.casefold()
    meant = [
        document
        for document in documents
        if words in document.name.casefold() or any(words in heading.casefold() for heading in document.outline)
    ]
    if not 1 <= start <= max(len(meant), 1):
        raise UnreadableRequest(f"`from` is {start}, but there are documents 1 to {len(meant)}.")
    page = meant[start - 1 : start - 1 + LISTED]
    following = start + LISTED if start - 1 + LISTED < len(meant) else None
    lines = [f"{len(meant)} of {len(documents)} documents" + (f" with {contains!r}." if contains else ".")]
    lines += [_line(number, document) for number, document in enumerate(page, start)]
    if following is not None:
        lines.append(f"There are more: go on with from={following}.")
    listed = [
        {"id": document.document_id, "name": document.name, "date": document.date, "passages": document.passages}
        for document in page
    ]
    return CallToolResult(
        content=[TextContent(text="\n".join(lines))],
        structured_content={"documents": listed, "next": following, OTHERS_TEXT: bool(page)},
    )


def _line(number: int, document: DocumentFacts) -> str:
    facts = [document.date, ", ".join(document.languages)]
    facts += [f"{document.pages} pages" if document.pages else None, f"{document.passages} passages"]
    headings = document.outline[:LISTED_HEADINGS]
    more = "; …" if len(document.outline) > LISTED_HEADINGS else ""
    outline = f": {'; '.join(headings)}{more}" if headings else ""
    return f"{number}. {document.name} ({'; '.join(filter(None, facts))}){outline}"


@dataclass(frozen=True, slots=True)
class _Shown:
    """The hits that fit one result, in both forms. ``following`` is the next passage to read, or None."""

    hits: list[Json]
    texts: list[str]
    following: int | None


def _show(reading: ReadPassages) -> _Shown:
    document = reading.document
    shown = _fit(reading.hits, {document.document_id: document})
    return shown if shown.following is not None else replace(shown, following=reading.following)


def _fit(hits: Sequence[Hit], facts: Mapping[str, DocumentFacts]) -> _Shown:
    shown = _Shown([], [], None)
    size = 0
    for number, hit in enumerate(hits, 1):
        document = facts.get(hit.document_id)
        place: Json = _facts_of(document) if document else {}
        one, text = {**hit.to_json(), **place}, _passage(number, hit, document)
        size += len(json.dumps(one, ensure_ascii=False).encode()) + len(text.encode())
        if shown.hits and size > MAX_RESULT_BYTES:
            return replace(shown, following=hit.passage)
        shown.hits.append(one)
        shown.texts.append(text)
    return shown


def _facts_of(document: DocumentFacts) -> Json:
    """Return the members that the facts of its document add to a hit."""
    members = {
        "document_date": document.document_date,
        "review_by": document.review_by,
        "source_uri": document.source_uri,
    }
    facts = {name: value for name, value in members.items() if value is not None}
    return {"passages": document.passages, "date": document.date, **facts}


def _passages(members: Json, note: str, shown: _Shown) -> CallToolResult:
    """Return a tool result with passages in both forms and a note about them."""
    return CallToolResult(
        content=[TextContent(text="\n\n".join([note, *shown.texts]))],
        structured_content={**members, "note": note, "hits": shown.hits},
    )


def _passage(number: int, hit: Hit, document: DocumentFacts | None) -> str:
    where = " › ".join((hit.document_name, *hit.heading_path))
    places = [f"page {hit.page}" if hit.page is not None else None, hit.cells]
    if hit.scanned:
        places.append(f"read from a scan{' by the model' if hit.scanned_by == 'model' else ''}")
    places += [f"columns: {join_row(table.header)}" for table in hit.tables if table.header and not table.has_header]
    if document:
        places += [f"passage {hit.passage} of {document.passages}", document.date]
    shown = ", ".join(filter(None, places))
    return f"[{number}] {where}{f' ({shown})' if shown else ''}\n" + "\n".join(
        sentence.text for sentence in hit.sentences
    )
