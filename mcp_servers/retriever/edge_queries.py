"""Queries on one shard: filters, searches, reading of chunks, and token weights. All calls block."""

import math
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any, cast
from uuid import UUID

import qdrant_edge as engine

from mcp_servers.retriever.chunking import Chunk
from mcp_servers.retriever.edge_points import DOCUMENT, HEADINGS, Documents, stored_chunk
from mcp_servers.retriever.edge_shard import Shard, engine_errors
from mcp_servers.retriever.index import COARSE, DENSE, EVERYTHING, LEXICAL, WINDOWS, Scored, Selection
from mcp_servers.retriever.lexical import Sparse

MAX_DOCUMENTS = 1_000_000
"""Limit for listing a collection's documents, because the engine requires one."""


def conditions(shard: Shard | None, selection: Selection) -> list[Any] | None:
    """Return the filter conditions of a selection, or None if no point can match."""
    if shard is None or selection.document_ids == ():
        return None
    must: list[Any] = []
    if replace(selection, heading=None) != EVERYTHING:
        with engine_errors("list documents"):
            values = documents(shard).values(selection)
        if not values:
            return None
        must.append(engine.FieldCondition(key=DOCUMENT, match=engine.MatchAny(values)))
    if selection.heading:
        must.append(engine.FieldCondition(key=HEADINGS, match=engine.MatchValue(selection.heading)))
    return must


def scroll(shard: Shard, request: engine.ScrollRequest) -> list[Chunk]:
    with engine_errors("read chunks"):
        records, _ = shard.engine.scroll(request)
    return [stored_chunk(str(record.id), record.payload or {}) for record in records]


def retrieve(shard: Shard | None, chunk_ids: Collection[str], payload: bool) -> list[engine.Record]:
    if shard is None or not chunk_ids:
        return []
    with engine_errors("read chunks"):
        return shard.engine.retrieve(list(chunk_ids), payload, False)


def read_chunks(shard: Shard | None, chunk_ids: Collection[str]) -> tuple[Chunk, ...]:
    return tuple(stored_chunk(str(record.id), record.payload or {}) for record in retrieve(shard, chunk_ids, True))


def find_candidates(shard: Shard, requests: Sequence[engine.QueryRequest]) -> list[tuple[Scored, ...]]:
    """Return the candidates of each request, in one batch."""
    found = shard.engine.query_batch(engine.QueryBatchRequest(list(requests)))
    return [tuple(Scored(_text_id(point.id), point.score) for point in points) for points in found]


def _text_id(point_id: object) -> str:
    """Return ``str(point_id)`` in half the time, for hundreds of ids in each search."""
    digits = cast(UUID, point_id).hex  # chunk ids are UUIDs
    return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"


def lexical_request(sparse: Sparse, chosen: engine.Filter | None, limit: int) -> engine.QueryRequest:
    """Return a request for the chunks with the best BM25 scores."""
    query = engine.Query.Nearest(engine.SparseVector(sparse.indices, sparse.values), using=LEXICAL)
    return engine.QueryRequest(limit=limit, query=query, filter=chosen)


def dense_request(
    shard: Shard, vector: Sequence[float], chosen: engine.Filter | None, limit: int
) -> engine.QueryRequest:
    """Return a request for the nearest chunks, by their nearest window if chunks have several."""
    if not shard.meta.windowed:
        query = engine.Query.Nearest(list(vector), using=DENSE)
        return engine.QueryRequest(limit=limit, query=query, filter=chosen)
    best = engine.Query.Nearest([list(vector)], using=WINDOWS)
    if shard.points <= COARSE:
        return engine.QueryRequest(limit=limit, query=best, filter=chosen)
    # Comparing all windows of 50 000 chunks takes 30 ms, comparing those of the chunks with the nearest means 4 ms.
    coarse = engine.Prefetch(COARSE, engine.Query.Nearest(list(vector), using=DENSE), filter=chosen)
    return engine.QueryRequest(limit=limit, query=best, prefetches=[coarse])


def held_tokens(shard: Shard, chunk_ids: Collection[str], tokens: Collection[int]) -> dict[str, frozenset[int]]:
    """Return the subset of the tokens that each chunk contains."""
    if not chunk_ids or not tokens:
        return {}
    asked = frozenset(tokens)
    records = shard.engine.retrieve(list(chunk_ids), False, [LEXICAL])
    vectors = ((str(record.id), cast(dict[str, engine.SparseVector], record.vector)[LEXICAL]) for record in records)
    return {chunk_id: asked.intersection(vector.indices) for chunk_id, vector in vectors}


def documents(shard: Shard) -> Documents:
    if shard.documents is None:
        shard.documents = Documents(document_values(shard, []))
    return shard.documents


def document_values(shard: Shard, must: list[Any]) -> set[str]:
    """Return the values of `DOCUMENT` in the points that match all of `must`."""
    chosen = engine.Filter(must=must) if must else None
    if DOCUMENT in shard.unindexed:
        request = engine.ScrollRequest(limit=max(shard.points, 1), filter=chosen, with_payload=[DOCUMENT])
        records, _ = shard.engine.scroll(request)
        return {str((record.payload or {})[DOCUMENT]) for record in records}
    facet = engine.FacetRequest(key=DOCUMENT, limit=MAX_DOCUMENTS, exact=True, filter=chosen)
    return {str(hit.value) for hit in shard.engine.facet(facet).hits}


def token_weights(shard: Shard, tokens: Sequence[int]) -> dict[int, float]:
    """Return the inverse document frequency of each token."""
    unknown = [token for token in tokens if token not in shard.idf]
    if unknown:
        shard.idf.update(zip(unknown, _idf(shard, unknown), strict=True))
    return {token: shard.idf[token] for token in tokens}


def _idf(shard: Shard, tokens: Sequence[int]) -> list[float]:
    """Return inverse document frequencies. The engine has no call for them, so each token's best point reveals them."""
    requests = [
        engine.QueryRequest(
            limit=1,
            query=engine.Query.Nearest(engine.SparseVector([token], [1.0]), using=LEXICAL),
            with_vector=[LEXICAL],
        )
        for token in tokens
    ]
    rarest = math.log(2 * shard.points + 2)  # the engine's formula for a token without points
    weights: list[float] = []
    for token, points in zip(tokens, shard.engine.query_batch(engine.QueryBatchRequest(requests)), strict=True):
        if points:
            sparse = cast(dict[str, engine.SparseVector], points[0].vector)[LEXICAL]
            weights.append(points[0].score / sparse.values[sparse.indices.index(token)])
        else:
            weights.append(rarest)
    return weights
