"""`python -m mcp_servers.retriever`: the retriever on its own, over stdio, or over HTTP with `--http`.

The first of these environment variables that is set selects the index:

    RETRIEVER_URL (and RETRIEVER_TOKEN)   a running server, asked for the domain DOMAIN_ID
    QDRANT_URL (and QDRANT_API_KEY)       a Qdrant server
    RETRIEVER_INDEX_DIR                   an index folder that no running server holds

QDRANT_COLLECTION names the collection, or DOMAIN_ID stands for `domain_{id}`. RETRIEVAL_TOP_K, RETRIEVAL_THRESHOLD and
AGENTIC_RAG_EMBEDDING (the embedder of the collection) are optional. The meta of calls is ignored.
"""

import argparse
import os
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from pathlib import Path

import anyio

from mcp_servers.retriever.edge_index import EdgeIndex
from mcp_servers.retriever.edge_store import collections_in, is_index_folder
from mcp_servers.retriever.embedders import make_embedder
from mcp_servers.retriever.errors import IndexOwned, IndexUnavailable
from mcp_servers.retriever.index import Index
from mcp_servers.retriever.retrieval import Retriever, Searcher
from mcp_servers.retriever.server import DEFAULT_TOP_K, MAX_TOP_K, ServerConfig, create_server

SHOWN_COLLECTIONS = 20
"""Maximum number of collection names in an error text."""

MODEL_CACHE = Path("~/.cache/fastembed").expanduser()


class SettingError(Exception):
    """A missing or unusable environment variable; the text names it."""


def read_config(environment: Mapping[str, str]) -> ServerConfig:
    """Return the configuration of searches from environment variables. Raises `SettingError`."""
    domain = environment.get("DOMAIN_ID", "")
    collection = environment.get("QDRANT_COLLECTION", "") or (f"domain_{domain}" if domain else "")
    if not collection:
        raise SettingError("neither QDRANT_COLLECTION nor DOMAIN_ID is set: which collection to search")
    top_k = _number(environment, "RETRIEVAL_TOP_K", DEFAULT_TOP_K, 1, MAX_TOP_K)
    threshold = _number(environment, "RETRIEVAL_THRESHOLD", 0.0, 0.0, 1.0)
    return ServerConfig(collection, None, int(top_k), threshold)


def _number(environment: Mapping[str, str], name: str, default: float, low: float, high: float) -> float:
    text = environment.get(name, "")
    try:
        value = float(text) if text else default
    except ValueError:
        value = float("nan")
    if not low <= value <= high:
        raise SettingError(f"{name} is {text!r}, but must be a number from {low:g} to {high:g}")
    return value


@asynccontextmanager
async def open_searcher(environment: Mapping[str, str]) -> AsyncIterator[Searcher]:
    """Open the searcher that the environment configures. Raises `SettingError` and `IndexOwned`."""
    if url := environment.get("RETRIEVER_URL", ""):
        # Imported here, because a searcher on this machine needs no HTTP client.
        from mcp_servers.retriever.remote import RemoteRetriever

        domain = environment.get("DOMAIN_ID", "")
        if not domain:
            raise SettingError("DOMAIN_ID is not set: which domain of RETRIEVER_URL to search")
        async with aclosing(RemoteRetriever(url, domain, environment.get("RETRIEVER_TOKEN", ""))) as remote:
            yield remote
        return
    try:
        embedder = make_embedder(environment.get("AGENTIC_RAG_EMBEDDING", ""), MODEL_CACHE)
    except ValueError as error:
        raise SettingError(f"AGENTIC_RAG_EMBEDDING: {error}") from error
    async with AsyncExitStack() as stack:
        if embedder is not None:
            await stack.enter_async_context(aclosing(embedder))
        index = await stack.enter_async_context(aclosing(_open_index(environment)))
        await _check_collection(index, environment)
        yield Retriever(index, embedder)


def _open_index(environment: Mapping[str, str]) -> Index:
    if url := environment.get("QDRANT_URL", ""):
        # Imported here: takes half a second, and the embedded index does not need it.
        from qdrant_client import AsyncQdrantClient

        from mcp_servers.retriever.server_index import TIMEOUT_SECONDS, ServerIndex

        api_key = environment.get("QDRANT_API_KEY") or None
        return ServerIndex(AsyncQdrantClient(url=url, api_key=api_key, timeout=TIMEOUT_SECONDS))
    folder = environment.get("RETRIEVER_INDEX_DIR", "")
    if not folder:
        raise SettingError("RETRIEVER_INDEX_DIR is not set: the folder of the index to search")
    if not is_index_folder(Path(folder)):
        raise SettingError(f"RETRIEVER_INDEX_DIR is {folder!r}, but there is no such folder")
    return EdgeIndex(Path(folder))


async def _check_collection(index: Index, environment: Mapping[str, str]) -> None:
    """Check that the collection exists, because searches of a missing one find nothing. Raises `SettingError`.

    An unavailable index passes the check, since it may answer later; until then each call fails with the reason.
    """
    collection = read_config(environment).collection
    try:
        if await index.meta(collection) is not None:
            return
    except ValueError as error:
        raise SettingError(f"QDRANT_COLLECTION or DOMAIN_ID: {error}") from error
    except IndexUnavailable:
        return
    if environment.get("QDRANT_URL", ""):
        raise SettingError(
            f"the Qdrant server of QDRANT_URL has no collection {collection!r}: check QDRANT_COLLECTION or DOMAIN_ID"
        )
    folder = environment["RETRIEVER_INDEX_DIR"]
    known = ", ".join(collections_in(Path(folder))[:SHOWN_COLLECTIONS]) or "none"
    raise SettingError(
        f"RETRIEVER_INDEX_DIR {folder!r} has no collection {collection!r}: check QDRANT_COLLECTION or DOMAIN_ID. "
        f"Collections there: {known}"
    )


async def serve(environment: Mapping[str, str], port: int | None) -> None:
    """Serve until the client disconnects (stdio), or forever (HTTP on `port`).

    Raises `SettingError` and `IndexOwned`.
    """
    config = read_config(environment)
    async with open_searcher(environment) as searcher:
        server = create_server(searcher, bound_by_meta=False, config=config)
        if port is None:
            await server.run_stdio_async()
        else:
            await server.run_streamable_http_async(port=port)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m mcp_servers.retriever", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--http", action="store_true", help="serve streamable HTTP on 127.0.0.1 instead of stdio")
    parser.add_argument("--port", type=int, default=8765, help="port for --http (%(default)s)")
    arguments = parser.parse_args()
    try:
        anyio.run(serve, dict(os.environ), arguments.port if arguments.http else None)
    except (SettingError, IndexOwned) as error:
        sys.stderr.write(f"{error}\n")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
