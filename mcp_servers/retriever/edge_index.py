"""The embedded index: qdrant-edge shards in this process, every engine call in one worker thread.

The engine holds the interpreter lock while it works, so calls are short and a second thread would gain nothing.
Files, generations and ownership are `edge_store`'s; ranking is `retrieval`'s.
"""

import math
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar, TypeVarTuple, cast

import anyio.to_thread
import qdrant_edge as engine

from mcp_servers.retriever import lexical as bm25
from mcp_servers.retriever.chunking import Chunk
from mcp_servers.retriever.edge_points import (
    DOCUMENT,
    HEADINGS,
    ORDINAL,
    Documents,
    name_of,
    point_payload,
    stored_chunk,
)
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
    only_in,
    searchable_text,
    split_name,
)
from mcp_servers.retriever.lexical import Sparse
from mcp_servers.retriever.pacing import Pace

CALL_SECONDS = 0.005
"""CPU time of one call that changes points: nothing else of the process runs meanwhile."""

BATCHES = 4, UPSERT_BATCH
"""Points changed in one call: at least, at most."""

STALE_AFTER = 0.02
"""Share of a collection's points that may change before remembered token weights are dropped."""

MAX_NAMES = 1_000

MAX_DOCUMENTS = 1_000_000
"""Of a collection; the engine wants a number."""

Args = TypeVarTuple("Args")
T = TypeVar("T")


class EdgeIndex:
    """`Index` on qdrant-edge under `folder`. Raises `IndexOwned` when another process has it.

    An acknowledged write survives a crash (the engine's write-ahead log); `aclose` flushes and frees the folder.
    """

    def __init__(self, folder: Path) -> None:
        self._store = ShardStore(folder)
        self._worker = anyio.CapacityLimiter(1)
        self._upserts, self._additions, self._deletions = (Pace(CALL_SECONDS, *BATCHES) for _ in range(3))

    async def upsert(
        self,
        collection: str,
        chunks: Sequence[Chunk],
        dense: Dense | None = None,
        lexical: Sequence[Sparse] | None = None,
    ) -> None:
        at = 0
        while at < len(chunks):
            part = slice(at, at + self._upserts.batch)
            sparse = lexical[part] if lexical else None
            vectors = Dense(dense.embedder, dense.vectors[part]) if dense else None
            at += await self._paced(self._upserts, self._upsert, collection, chunks[part], vectors, sparse)

    async def add_dense(self, collection: str, chunk_ids: Sequence[str], dense: Dense) -> None:
        at = 0
        while at < len(chunk_ids):
            part = slice(at, at + self._additions.batch)
            vectors = Dense(dense.embedder, dense.vectors[part])
            at += await self._paced(self._additions, self._add_dense, collection, chunk_ids[part], vectors)

    async def without_dense(self, collection: str, limit: int) -> list[Chunk]:
        return await self._run(self._without_dense, collection, limit)

    async def delete_document(self, collection: str, document_id: str) -> None:
        while await self._paced(self._deletions, self._delete_some, collection, document_id, self._deletions.batch):
            pass

    async def drop(self, collection: str) -> None:
        await self._run(self._store.drop, split_name(collection)[0])

    async def count(self, collection: str, document_id: str | None = None) -> int:
        if document_id is None and (shard := self._store.opened(collection)):
            return shard.points
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
        # Each search asks; a way to the worker and back takes 0.3 ms.
        shard = self._store.opened(collection) or await self._run(self._store.shard, collection)
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

    async def _paced(self, pace: Pace, function: Callable[[*Args], int], *args: *Args) -> int:
        """Call what changes some points and returns how many; the event loop runs before the next such call."""

        def timed() -> int:
            # CPU time: a machine that is busy with something else does not make smaller calls shorter.
            started = time.thread_time()
            points = function(*args)
            if points:
                pace.took(points, time.thread_time() - started)
            return points

        return await self._run(timed)

    # Below: blocking, in the worker thread.

    def _upsert(
        self, collection: str, chunks: Sequence[Chunk], dense: Dense | None, lexical: Sequence[Sparse] | None
    ) -> int:
        shard = cast(Shard, self._store.shard(collection, create=True))
        if dense:
            self._store.record_dense(shard, dense.embedder, len(dense.vectors[0]))
        lexical = lexical or bm25.document_vectors(map(searchable_text, chunks))
        points: list[engine.Point] = []
        for index, (chunk, sparse) in enumerate(zip(chunks, lexical, strict=True)):
            vectors: dict[str, Any] = {LEXICAL: engine.SparseVector(sparse.indices, sparse.values)}
            if dense:
                vectors[DENSE] = list(dense.vectors[index])
            points.append(engine.Point(chunk.chunk_id, vectors, point_payload(chunk)))
            if shard.documents:
                shard.documents.add(chunk.document_id, chunk.document_name)
        with engine_errors("store chunks"):
            shard.engine.update(engine.UpdateOperation.upsert_points(points))
            _changed(shard, len(points))
        return len(points)

    def _add_dense(self, collection: str, chunk_ids: Sequence[str], dense: Dense) -> int:
        shard = self._store.shard(collection)
        if shard is None:
            return len(chunk_ids)
        self._store.record_dense(shard, dense.embedder, len(dense.vectors[0]))
        known = self._existing(collection, chunk_ids)
        vectors = zip(chunk_ids, dense.vectors, strict=True)
        points = [engine.PointVectors(id_, {DENSE: list(vector)}) for id_, vector in vectors if id_ in known]
        with engine_errors("store vectors"):
            shard.engine.update(engine.UpdateOperation.update_vectors(points))
        return len(chunk_ids)

    def _without_dense(self, collection: str, limit: int) -> list[Chunk]:
        shard = self._store.shard(collection)
        if shard is None:
            return []
        missing = engine.Filter(must_not=[engine.HasVectorCondition(DENSE)]) if shard.meta.dimension else None
        return self._scroll(shard, engine.ScrollRequest(limit=limit, filter=missing, with_payload=True))

    def _delete_some(self, collection: str, document_id: str, limit: int) -> int:
        shard, chosen = self._chosen(collection, Selection((document_id,)))
        if shard is None or chosen is None:
            return 0
        with engine_errors("delete a document"):
            request = engine.ScrollRequest(limit=limit, filter=engine.Filter(must=chosen), with_payload=False)
            records, _ = shard.engine.scroll(request)
            if not records:
                _documents(shard).remove(document_id)
                return 0
            shard.engine.update(engine.UpdateOperation.delete_points([record.id for record in records]))
            _changed(shard)
        return len(records)

    def _count(self, collection: str, document_id: str | None) -> int:
        if document_id is None:  # a counter; counting without a filter would look at every point
            whole = self._store.shard(collection)
            return whole.points if whole else 0
        shard, chosen = self._chosen(collection, Selection((document_id,)))
        if shard is None or chosen is None:
            return 0
        with engine_errors("count chunks"):
            return shard.engine.count(engine.CountRequest(filter=engine.Filter(must=chosen)))

    def _chunks(self, collection: str, document_id: str, offset: int, limit: int) -> list[Chunk]:
        shard, chosen = self._chosen(collection, Selection((document_id,)))
        if shard is None or chosen is None or limit <= 0:
            return []
        ordinals = engine.FieldCondition(key=ORDINAL, range=engine.RangeFloat(gte=offset, lt=offset + limit))
        chosen_here = engine.Filter(must=[*chosen, ordinals])
        found = self._scroll(shard, engine.ScrollRequest(limit=limit, filter=chosen_here, with_payload=True))
        return sorted(found, key=lambda chunk: chunk.ordinal)

    def _scroll(self, shard: Shard, request: engine.ScrollRequest) -> list[Chunk]:
        with engine_errors("read chunks"):
            records, _ = shard.engine.scroll(request)
        return [stored_chunk(str(record.id), record.payload or {}) for record in records]

    def _get(self, collection: str, chunk_ids: Sequence[str]) -> dict[str, Chunk]:
        records = self._retrieve(collection, chunk_ids, True)
        return {str(record.id): stored_chunk(str(record.id), record.payload or {}) for record in records}

    def _existing(self, collection: str, chunk_ids: Collection[str]) -> set[str]:
        return {str(record.id) for record in self._retrieve(collection, chunk_ids, False)}

    def _retrieve(self, collection: str, chunk_ids: Collection[str], payload: bool) -> list[engine.Record]:
        shard = self._store.shard(collection)
        if shard is None or not chunk_ids:
            return []
        with engine_errors("read chunks"):
            return shard.engine.retrieve(list(chunk_ids), payload, False)

    def _document_names(self, collection: str, selection: Selection) -> list[str]:
        shard, chosen = self._chosen(collection, selection)
        if shard is None or chosen is None:
            return []
        with engine_errors("list documents"):
            # Only headings are not known without asking, and the engine takes 10 µs for each chunk it looks at.
            values = _facet(shard, chosen) if selection.heading else _documents(shard).values(selection)
        return sorted({*map(name_of, values)})[:MAX_NAMES]

    def _chosen(self, collection: str, selection: Selection) -> tuple[Shard | None, list[Any] | None]:
        """The shard and the conditions of the selection; None for what nothing can fulfil."""
        shard = self._store.shard(collection)
        if shard is None or selection.document_ids == ():
            return shard, None
        must: list[Any] = []
        if replace(selection, heading=None) != EVERYTHING:
            with engine_errors("list documents"):
                values = _documents(shard).values(selection)
            if not values:
                return shard, None
            must.append(engine.FieldCondition(key=DOCUMENT, match=engine.MatchAny(values)))
        if selection.heading:
            must.append(engine.FieldCondition(key=HEADINGS, match=engine.MatchValue(selection.heading)))
        return shard, must

    def _search_legs(
        self, collection: str, query: str, vector: Sequence[float] | None, selection: Selection, limit: int
    ) -> Legs:
        shard, must = self._chosen(collection, selection)
        if shard is None or must is None:
            return Legs()
        sparse = bm25.query_vector(query)
        chosen = engine.Filter(must=must) if must else None
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
            (stored_chunk(str(point.id), point.payload or {}), cast(dict[str, list[float]], point.vector)[DENSE])
            for point in points
        ]


def _query(shard: Shard, queries: Sequence[tuple[engine.Query, engine.Filter | None, int]]) -> list[tuple[Scored, ...]]:
    """Candidates for each `(query, filter, limit)`, in one batch."""
    requests = [engine.QueryRequest(limit=limit, query=query, filter=chosen) for query, chosen, limit in queries]
    found = shard.engine.query_batch(engine.QueryBatchRequest(requests))
    return [tuple(Scored(str(point.id), point.score) for point in points) for points in found]


def _changed(shard: Shard, stored: int = 0) -> None:
    points = shard.engine.info().points_count
    shard.changed += max(stored, shard.points - points)
    shard.points = points
    if shard.changed > STALE_AFTER * points:
        shard.idf.clear()
        shard.changed = 0


def _documents(shard: Shard) -> Documents:
    if shard.documents is None:
        shard.documents = Documents(_facet(shard, []))
    return shard.documents


def _facet(shard: Shard, must: list[Any]) -> list[str]:
    """The values of `DOCUMENT` in the points that fulfil all of `must`."""
    chosen = engine.Filter(must=must) if must else None
    request = engine.FacetRequest(key=DOCUMENT, limit=MAX_DOCUMENTS, exact=True, filter=chosen)
    return [str(hit.value) for hit in shard.engine.facet(request).hits]


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
    rarest = math.log(2 * shard.points + 2)  # the engine's formula for a token nobody has
    weights: list[float] = []
    for token, points in zip(tokens, shard.engine.query_batch(engine.QueryBatchRequest(requests)), strict=True):
        if points:
            sparse = cast(dict[str, engine.SparseVector], points[0].vector)[LEXICAL]
            weights.append(points[0].score / sparse.values[sparse.indices.index(token)])
        else:
            weights.append(rarest)
    return weights
