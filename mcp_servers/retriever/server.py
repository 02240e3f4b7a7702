"""The `search_documents` tool as an MCP server.

In process the host binds collection, visible documents and settings to each call, out of the model's sight; alone,
they are fixed when the server is made. It renders what `retrieval` found and knows nothing of indexes.
"""

import json
from dataclasses import dataclass
from typing import Annotated, Any

from mcp.server import MCPServer
from mcp.server.mcpserver import Context
from mcp.server.mcpserver.exceptions import ToolError
from mcp.shared.exceptions import MCPError
from mcp_types import INVALID_PARAMS, CallToolResult, TextContent, ToolAnnotations
from pydantic import Field

from mcp_servers.retriever.document import Json
from mcp_servers.retriever.errors import IndexFault, UnknownDocument
from mcp_servers.retriever.hits import Hit, Mode, Retrieval
from mcp_servers.retriever.retrieval import Searcher

DEFAULT_TOP_K = 5
MAX_TOP_K = 50
MAX_QUERY_CHARACTERS = 2_000

MAX_RESULT_BYTES = 48 * 2**10
"""Of both forms of a result together; hits beyond it are left out whole, the last ones first."""

META_PREFIX = "agentic_rag/"
"""Keys of a call's meta: collection, documents, top_k, threshold."""

DESCRIPTION = (
    "Search this knowledge base and return the passages that match best, with document, section and page. "
    "Ask one thing at a time, and search again with other words if the passages do not answer it."
)
INSTRUCTIONS = "Search the documents of this knowledge base before you answer from memory, and cite what you find."


@dataclass(frozen=True, slots=True)
class ServerConfig:
    """What a search is bound to: the collection, the documents that are visible (None: all), and defaults."""

    collection: str
    documents: tuple[str, ...] | None = None
    top_k: int = DEFAULT_TOP_K
    threshold: float = 0.0


@dataclass(frozen=True)  # with slots, the SDK would take their descriptors for defaults
class SearchResult:
    """The structured content of a result, as the tool's output schema declares it."""

    retrieval_id: str
    mode: Mode
    hits: tuple[Hit, ...]


def create_server(retriever: Searcher, *, bound_by_meta: bool, config: ServerConfig | None = None) -> MCPServer[Any]:
    """The server with its one tool. With `bound_by_meta` each call's meta says what it may search and a call without
    a collection is a protocol error; otherwise meta is ignored and `config` is required."""
    if config is None and not bound_by_meta:
        raise ValueError("a server that is not bound by meta needs a config")
    server: MCPServer[Any] = MCPServer("retriever", instructions=INSTRUCTIONS)

    @server.tool(
        title="Search documents",
        description=DESCRIPTION,
        annotations=ToolAnnotations(
            read_only_hint=True, destructive_hint=False, idempotent_hint=True, open_world_hint=False
        ),
    )
    async def search_documents(
        ctx: Context,
        query: Annotated[
            str,
            Field(
                description="What to look for, in the words a document would use; any language.",
                json_schema_extra={"maxLength": MAX_QUERY_CHARACTERS},
            ),
        ],
        top_k: Annotated[
            int | None,
            Field(description=f"How many passages to return, 1 to {MAX_TOP_K}. Leave out for the usual number."),
        ] = None,
        document: Annotated[
            str | None, Field(description="Only search this document: its name, a part of its name, or its id.")
        ] = None,
    ) -> Annotated[CallToolResult, SearchResult]:
        bound = _from_meta(ctx.request_context.meta or {}) if config is None or bound_by_meta else config
        wanted = bound.top_k if top_k is None else top_k
        _check(query, wanted)
        try:
            retrieval = await retriever.search(
                bound.collection, query.strip(), wanted, bound.threshold, bound.documents, document or None
            )
        except UnknownDocument as error:
            raise ToolError(str(error)) from error
        except IndexFault as error:
            raise ToolError(f"INDEX_UNAVAILABLE: the documents cannot be searched now: {error}") from error
        return _result(retrieval)

    return server


def _from_meta(meta: Json) -> ServerConfig:
    bound = {key.removeprefix(META_PREFIX): value for key, value in meta.items() if key.startswith(META_PREFIX)}
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


def _check(query: str, top_k: int) -> None:
    if not query.strip():
        raise ToolError("`query` is empty: say what to look for.")
    if len(query) > MAX_QUERY_CHARACTERS:
        raise ToolError(f"`query` is longer than {MAX_QUERY_CHARACTERS} characters: ask for one thing at a time.")
    if not 1 <= top_k <= MAX_TOP_K:
        raise ToolError(f"`top_k` is {top_k}, but must be from 1 to {MAX_TOP_K}.")


def _result(retrieval: Retrieval) -> CallToolResult:
    hits: list[Json] = []
    passages: list[str] = []
    size = 0
    for number, hit in enumerate(retrieval.hits, 1):
        structured, passage = hit.to_json(), _passage(number, hit)
        size += len(json.dumps(structured, ensure_ascii=False).encode()) + len(passage.encode())
        if hits and size > MAX_RESULT_BYTES:
            break
        hits.append(structured)
        passages.append(passage)
    if retrieval.incomplete:
        passages.insert(0, retrieval.incomplete)
    text = "\n\n".join(passages) or "Nothing in the documents matches. Try other words, or say that they do not tell."
    return CallToolResult(
        content=[TextContent(text=text)],
        structured_content={"retrieval_id": retrieval.retrieval_id, "mode": retrieval.mode, "hits": hits},
    )


def _passage(number: int, hit: Hit) -> str:
    where = " › ".join((hit.document_name, *hit.heading_path))
    if hit.page is not None:
        where += f" (page {hit.page})"
    if hit.cells:
        where += f" ({hit.cells})"
    return f"[{number}] {where}\n" + "\n".join(sentence.text for sentence in hit.sentences)
