"""Queries on one shard: filters, searches, reading of chunks, and token weights. All calls block."""

import math
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any, cast
from uuid import UUID

import qdrant_edge as engine

from mcp_servers.retriever.chunking import Chunk
from mcp_servers.retriever.edge_points import DOCUMENT, HEADINGS, IndexedDocuments, stored_chunk
from mcp_servers.retriever.edge_shard import Shard, engine_errors
from mcp_servers.retriever.index import COARSE, DENSE, EVERYTHING, LEXICAL, MAX_DOCUMENTS, WINDOWS, Scored, Selection
from mcp_servers.retriever.lexical import Sparse

PointIds = dict[str, UUID]
"""The engine's id objects by chunk id. The engine parses a text id in 5 µs, and takes its own object in 1 µs."""


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


def retrieve(
    shard: Shard | None, ids: Collection[str] | Collection[UUID], *, payload: bool = False, words: bool = False
) -> list[engine.Record]:
    """Return the stored points, with their payload and their vector `LEXICAL` if wanted."""
    if shard is None or not ids:
        return []
    with engine_errors("read chunks"):
        return shard.engine.retrieve(list(ids), payload, [LEXICAL] if words else False)


def run_queries(shard: Shard, requests: Sequence[engine.QueryRequest]) -> list[list[engine.ScoredPoint]]:
    """Return the points of each request, in one batch."""
    if not requests:
        return []
    return shard.engine.query_batch(engine.QueryBatchRequest(list(requests)))


def read_leg(points: Sequence[engine.ScoredPoint], point_ids: PointIds) -> tuple[Scored, ...]:
    """Return points as candidates, and add their ids to ``point_ids``."""
    candidates: list[Scored] = []
    for point in points:
        point_id = cast(UUID, point.id)
        chunk_id = chunk_id_of(point_id)
        point_ids[chunk_id] = point_id
        candidates.append(Scored(chunk_id, point.score))
    return tuple(candidates)


def chunk_id_of(point_id: object) -> str:
    """Return ``str(point_id)`` in half the time, for hundreds of points in each search."""
    digits = cast(UUID, point_id).hex  # chunk ids are UUIDs
    return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"


def filter_by_ids(point_ids: Collection[UUID]) -> engine.Filter:
    """Return a filter for points by their ids."""
    return engine.Filter(must=[engine.HasIdCondition({*point_ids})])


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


def find_tokens(record: engine.Record, tokens: Collection[int]) -> frozenset[int]:
    """Return the subset of the tokens that a chunk contains; its record has the vector `LEXICAL`."""
    return frozenset(filter(tokens.__contains__, _word_vector(record).indices))


def _word_vector(point: engine.Record | engine.ScoredPoint) -> engine.SparseVector:
    return cast(dict[str, engine.SparseVector], point.vector)[LEXICAL]


def documents(shard: Shard) -> IndexedDocuments:
    if shard.documents is None:
        shard.documents = IndexedDocuments(document_values(shard, []))
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


class TokenWeights:
    """The inverse document frequencies of a question's tokens.

    The engine has no call for them, but it multiplies each weight of a chunk with them, so the score of any chunk that
    contains the token reveals them. `requests` ask for such scores and `answer` reads them.
    """

    def __init__(self, shard: Shard, tokens: Sequence[int], leaders: Sequence[engine.Record]) -> None:
        """``leaders`` are chunks that contain some of the tokens, with their vectors `LEXICAL`."""
        self._shard = shard
        self._tokens = tokens
        self._asked: list[tuple[int, float | None]] = []
        """The token of each request, and its weight in the chunk that the request scores."""
        self.requests: list[engine.QueryRequest] = []
        unknown = {token for token in tokens if token not in shard.idf}
        for leader in leaders:
            if not unknown:
                return
            vector = _word_vector(leader)
            indices, values = vector.indices, vector.values
            for token in unknown.intersection(indices):
                # A frequent token is in most chunks, so scoring one known chunk is much cheaper than a search.
                self._ask(token, values[indices.index(token)], filter_by_ids([cast(UUID, leader.id)]))
                unknown.remove(token)
        for token in unknown:
            self._ask(token)

    def _ask(self, token: int, value: float | None = None, chosen: engine.Filter | None = None) -> None:
        request = engine.QueryRequest(
            limit=1,
            query=engine.Query.Nearest(engine.SparseVector([token], [1.0]), using=LEXICAL),
            filter=chosen,
            with_vector=[LEXICAL] if value is None else None,
        )
        self._asked.append((token, value))
        self.requests.append(request)

    def answer(self, points_of_requests: Sequence[Sequence[engine.ScoredPoint]]) -> dict[int, float]:
        """Return the weight of each token, given the results of `requests`."""
        idf = self._shard.idf
        for (token, value), points in zip(self._asked, points_of_requests, strict=True):
            if not points:
                idf[token] = math.log(2 * self._shard.points + 2)  # the engine's formula for a token without points
                continue
            if value is None:
                vector = _word_vector(points[0])
                value = vector.values[vector.indices.index(token)]
            idf[token] = points[0].score / value
        return {token: idf[token] for token in self._tokens}
