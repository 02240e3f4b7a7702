"""The embedded index: qdrant-edge shards in this process, every engine call in one worker thread.

The engine holds the interpreter lock while it works, so calls are short and a second thread would gain nothing.
Files, generations and ownership are `edge_store`'s; ranking is `retrieval`'s.
"""

import math
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any, TypeVar, TypeVarTuple, cast

import anyio.to_thread
import qdrant_edge as engine

from mcp_servers.retriever import lexical as bm25
from mcp_servers.retriever.chunking import Chunk
from mcp_servers.retriever.edge_store import Shard, ShardStore, engine_errors
from mcp_servers.retriever.index import (
    DENSE,
    EVERYTHING,
    LEXICAL,
    UPSERT_BATCH,
    Calibration,
    CollectionMeta,
    Dense,
    Legs,
    Scored,
    Selection,
    from_payload,
    only_in,
    searchable_text,
    split_name,
    to_payload,
)
from mcp_servers.retriever.lexical import Sparse

STALE_AFTER = 0.02
"""Share of a collection's points that may change before remembered token weights are dropped."""

MAX_NAMES = 1_000

Args = TypeVarTuple("Args")
T = TypeVar("T")


class EdgeIndex:
    """`Index` on qdrant-edge under `folder`. Raises `IndexOwned` when another process has it.

    An acknowledged write survives a crash (the engine's write-ahead log); `aclose` flushes and frees the folder.
    """

    def __init__(self, folder: Path) -> None:
        self._store = ShardStore(folder)
        self._worker = anyio.CapacityLimiter(1)

    async def upsert(
        self,
        collection: str,
        chunks: Sequence[Chunk],
        dense: Dense | None = None,
        lexical: Sequence[Sparse] | None = None,
    ) -> None:
        for at in range(0, len(chunks), UPSERT_BATCH):
            batch = chunks[at : at + UPSERT_BATCH]
            sparse = lexical[at : at + UPSERT_BATCH] if lexical else None
            vectors = Dense(dense.embedder, dense.vectors[at : at + UPSERT_BATCH]) if dense else None
            await self._run(self._upsert, collection, batch, vectors, sparse)

    async def add_dense(self, collection: str, chunk_ids: Sequence[str], dense: Dense) -> None:
        for at in range(0, len(chunk_ids), UPSERT_BATCH):
            vectors = Dense(dense.embedder, dense.vectors[at : at + UPSERT_BATCH])
            await self._run(self._add_dense, collection, chunk_ids[at : at + UPSERT_BATCH], vectors)

    async def without_dense(self, collection: str, limit: int) -> list[Chunk]:
        return await self._run(self._without_dense, collection, limit)

    async def delete_document(self, collection: str, document_id: str) -> None:
        await self._run(self._delete_document, collection, document_id)

    async def drop(self, collection: str) -> None:
        await self._run(self._store.drop, split_name(collection)[0])

    async def count(self, collection: str, document_id: str | None = None) -> int:
        return await self._run(self._count, collection, document_id)

    async def chunks(self, collection: str, document_id: str, offset: int = 0, limit: int = 100) -> list[Chunk]:
        return await self._run(self._chunks, collection, document_id, offset, limit)

    async def get(self, collection: str, chunk_ids: Sequence[str]) -> dict[str, Chunk]:
        return await self._run(self._get, collection, chunk_ids)

    async def existing(self, collection: str, chunk_ids: Collection[str]) -> set[str]:
        return await self._run(self._existing, collection, chunk_ids)

    async def document_names(self, collection: str, selection: Selection) -> list[str]:
        return await self._run(self._document_names, collection, selection)

    async def search_legs(
        self,
        collection: str,
        query: str,
        vector: Sequence[float] | None = None,
        selection: Selection = EVERYTHING,
        limit: int = 100,
    ) -> Legs:
        return await self._run(self._search_legs, collection, query, vector, selection, limit)

    async def sample(self, collection: str, limit: int) -> list[tuple[Chunk, list[float]]]:
        return await self._run(self._sample, collection, limit)

    async def meta(self, collection: str) -> CollectionMeta | None:
        shard = await self._run(self._store.shard, collection)
        return shard.meta if shard else None

    async def set_calibration(self, collection: str, calibration: Calibration) -> None:
        await self._run(self._store.record_calibration, collection, calibration)

    async def rebuild(self, collection: str, meta: CollectionMeta) -> str:
        name, _ = split_name(collection)
        return f"{name}@{await self._run(self._store.begin, name, meta)}"

    async def swap(self, collection: str, generation: str) -> None:
        name, number = split_name(generation)
        await self._run(self._store.swap, name, number or 0)

    async def roll_back(self, collection: str) -> bool:
        return await self._run(self._store.roll_back, split_name(collection)[0])

    async def aclose(self) -> None:
        with anyio.CancelScope(shield=True):  # bounded: a flush is a second at most, and half of one would be lost
            await self._run(self._store.close)

    async def _run(self, function: Callable[[*Args], T], *args: *Args) -> T:
        return await anyio.to_thread.run_sync(function, *args, limiter=self._worker)

    # Below: blocking, in the worker thread.

    def _upsert(
        self, collection: str, chunks: Sequence[Chunk], dense: Dense | None, lexical: Sequence[Sparse] | None
    ) -> None:
        shard = cast(Shard, self._store.shard(collection, create=True))
        if dense and chunks:
            self._store.record_dense(shard, dense.embedder, len(dense.vectors[0]))
        lexical = lexical or bm25.document_vectors(map(searchable_text, chunks))
        points: list[engine.Point] = []
        for index, (chunk, sparse) in enumerate(zip(chunks, lexical, strict=True)):
            vectors: dict[str, Any] = {LEXICAL: engine.SparseVector(sparse.indices, sparse.values)}
            if dense:
                vectors[DENSE] = list(dense.vectors[index])
            points.append(engine.Point(chunk.chunk_id, vectors, to_payload(chunk)))
        with engine_errors("store chunks"):
            shard.engine.update(engine.UpdateOperation.upsert_points(points))
        _changed(shard, len(points))

    def _add_dense(self, collection: str, chunk_ids: Sequence[str], dense: Dense) -> None:
        shard = self._store.shard(collection)
        if shard is None or not chunk_ids:
            return
        self._store.record_dense(shard, dense.embedder, len(dense.vectors[0]))
        known = self._existing(collection, chunk_ids)
        vectors = zip(chunk_ids, dense.vectors, strict=True)
        points = [engine.PointVectors(id_, {DENSE: list(vector)}) for id_, vector in vectors if id_ in known]
        with engine_errors("store vectors"):
            shard.engine.update(engine.UpdateOperation.update_vectors(points))

    def _without_dense(self, collection: str, limit: int) -> list[Chunk]:
        shard = self._store.shard(collection)
        if shard is None:
            return []
        missing = engine.Filter(must_not=[engine.HasVectorCondition(DENSE)]) if shard.meta.dimension else None
        return self._scroll(shard, engine.ScrollRequest(limit=limit, filter=missing, with_payload=True))

    def _delete_document(self, collection: str, document_id: str) -> None:
        if shard := self._store.shard(collection):
            chosen = engine.Filter(must=[_match("document_id", document_id)])
            with engine_errors("delete a document"):
                before = shard.engine.info().points_count
                shard.engine.update(engine.UpdateOperation.delete_points_by_filter(chosen))
                _changed(shard, before - shard.engine.info().points_count)

    def _count(self, collection: str, document_id: str | None) -> int:
        shard = self._store.shard(collection)
        if shard is None:
            return 0
        with engine_errors("count chunks"):
            if document_id is None:  # a counter; counting without a filter would look at every point
                return shard.engine.info().points_count
            chosen = engine.Filter(must=[_match("document_id", document_id)])
            return shard.engine.count(engine.CountRequest(filter=chosen))

    def _chunks(self, collection: str, document_id: str, offset: int, limit: int) -> list[Chunk]:
        shard = self._store.shard(collection)
        if shard is None or limit <= 0:
            return []
        ordinals = engine.FieldCondition(key="ordinal", range=engine.RangeFloat(gte=offset, lt=offset + limit))
        chosen = engine.Filter(must=[_match("document_id", document_id), ordinals])
        found = self._scroll(shard, engine.ScrollRequest(limit=limit, filter=chosen, with_payload=True))
        return sorted(found, key=lambda chunk: chunk.ordinal)

    def _scroll(self, shard: Shard, request: engine.ScrollRequest) -> list[Chunk]:
        with engine_errors("read chunks"):
            records, _ = shard.engine.scroll(request)
        return [from_payload(str(record.id), record.payload or {}) for record in records]

    def _get(self, collection: str, chunk_ids: Sequence[str]) -> dict[str, Chunk]:
        records = self._retrieve(collection, chunk_ids, True)
        return {str(record.id): from_payload(str(record.id), record.payload or {}) for record in records}

    def _existing(self, collection: str, chunk_ids: Collection[str]) -> set[str]:
        return {str(record.id) for record in self._retrieve(collection, chunk_ids, False)}

    def _retrieve(self, collection: str, chunk_ids: Collection[str], payload: bool) -> list[engine.Record]:
        shard = self._store.shard(collection)
        if shard is None or not chunk_ids:
            return []
        with engine_errors("read chunks"):
            return shard.engine.retrieve(list(chunk_ids), payload, False)

    def _document_names(self, collection: str, selection: Selection) -> list[str]:
        shard = self._store.shard(collection)
        if shard is None or selection.document_ids == ():
            return []
        request = engine.FacetRequest(key="document_name", limit=MAX_NAMES, exact=True, filter=_filter(selection))
        with engine_errors("list documents"):
            return sorted(str(hit.value) for hit in shard.engine.facet(request).hits)

    def _search_legs(
        self, collection: str, query: str, vector: Sequence[float] | None, selection: Selection, limit: int
    ) -> Legs:
        shard = self._store.shard(collection)
        if shard is None or selection.document_ids == ():
            return Legs()
        sparse = bm25.query_vector(query)
        chosen = _filter(selection)
        nearest = [engine.Query.Nearest(engine.SparseVector(sparse.indices, sparse.values), using=LEXICAL)]
        if vector is not None and shard.meta.dimension == len(vector):
            nearest.append(engine.Query.Nearest(list(vector), using=DENSE))
        with engine_errors("search"):
            self_score = _self_score(shard, query)
            legs = _query(shard, [(each, chosen, limit) for each in nearest])
            if len(legs) == 1:
                return Legs(legs[0], (), self_score)
            missing = only_in(legs[1], legs[0]), only_in(legs[0], legs[1])
            rest = _query(
                shard,
                [
                    (each, engine.Filter(must=[engine.HasIdCondition({*ids})]), max(len(ids), 1))
                    for each, ids in zip(nearest, missing, strict=True)
                ],
            )
        return Legs(legs[0], legs[1], self_score, rest[0], rest[1])

    def _sample(self, collection: str, limit: int) -> list[tuple[Chunk, list[float]]]:
        shard = self._store.shard(collection)
        if shard is None or not shard.meta.dimension:
            return []
        request = engine.QueryRequest(
            limit=limit,
            query=engine.Sample.Random,
            filter=engine.Filter(must=[engine.HasVectorCondition(DENSE)]),
            with_vector=[DENSE],
            with_payload=True,
        )
        with engine_errors("sample chunks"):
            points = shard.engine.query(request)
        return [
            (from_payload(str(point.id), point.payload or {}), cast(dict[str, list[float]], point.vector)[DENSE])
            for point in points
        ]


def _query(shard: Shard, queries: Sequence[tuple[engine.Query, engine.Filter | None, int]]) -> list[tuple[Scored, ...]]:
    """Candidates for each `(query, filter, limit)`, in one batch."""
    requests = [engine.QueryRequest(limit=limit, query=query, filter=chosen) for query, chosen, limit in queries]
    found = shard.engine.query_batch(engine.QueryBatchRequest(requests))
    return [tuple(Scored(str(point.id), point.score) for point in points) for points in found]


def _changed(shard: Shard, points: int) -> None:
    shard.changed += points
    if shard.changed > STALE_AFTER * shard.engine.info().points_count:
        shard.idf.clear()
        shard.changed = 0


def _self_score(shard: Shard, query: str) -> float:
    """The BM25 score of a chunk that holds exactly the query: the weight of each token times its rarity."""
    (tokens,) = bm25.document_vectors([query])
    unknown = [token for token in tokens.indices if token not in shard.idf]
    if unknown:
        shard.idf.update(zip(unknown, _idf(shard, unknown), strict=True))
    return sum(shard.idf[token] * weight for token, weight in zip(tokens.indices, tokens.values, strict=True))


def _idf(shard: Shard, tokens: Sequence[int]) -> list[float]:
    """Inverse document frequencies, which the engine does not tell: the best point for one token reveals it."""
    requests = [
        engine.QueryRequest(
            limit=1,
            query=engine.Query.Nearest(engine.SparseVector([token], [1.0]), using=LEXICAL),
            with_vector=[LEXICAL],
        )
        for token in tokens
    ]
    rarest = math.log(2 * shard.engine.info().points_count + 2)  # the engine's formula for a token nobody has
    weights: list[float] = []
    for token, points in zip(tokens, shard.engine.query_batch(engine.QueryBatchRequest(requests)), strict=True):
        if points:
            sparse = cast(dict[str, engine.SparseVector], points[0].vector)[LEXICAL]
            weights.append(points[0].score / sparse.values[sparse.indices.index(token)])
        else:
            weights.append(rarest)
    return weights


def _match(key: str, value: str) -> engine.FieldCondition:
    return engine.FieldCondition(key=key, match=engine.MatchValue(value))


def _filter(selection: Selection) -> engine.Filter | None:
    must: list[Any] = []
    if selection.document_ids is not None:
        must.append(engine.FieldCondition(key="document_id", match=engine.MatchAny(list(selection.document_ids))))
    if selection.document:
        named = _match("document_id", selection.document), _match("document_name", selection.document)
        must.append(engine.Filter(should=[*named]))
    if selection.type:
        must.append(_match("type", selection.type))
    if selection.heading:
        must.append(_match("heading_path", selection.heading))
    return engine.Filter(must=must) if must else None
