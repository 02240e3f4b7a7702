"""The embedded index: qdrant-edge shards in this process, every engine call in one worker thread.

The engine holds the interpreter lock while it works, so calls are short and a second thread would gain nothing.
Files, generations and ownership are `edge_store`'s; ranking is `retrieval`'s.
"""

import math
import time
from collections.abc import Callable, Collection, Coroutine, Sequence
from dataclasses import replace
from functools import partial, wraps
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar, cast

import anyio.to_thread
import qdrant_edge as engine

from mcp_servers.retriever import lexical as bm25
from mcp_servers.retriever.chunking import Chunk
from mcp_servers.retriever.edge_store import (
    DOCUMENT,
    HEADINGS,
    ORDINAL,
    Documents,
    Shard,
    ShardStore,
    document_name,
    engine_errors,
    point_payload,
    stored_chunk,
)
from mcp_servers.retriever.index import (
    DENSE,
    EVERYTHING,
    LEXICAL,
    MAX_NAMES,
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

MAX_DOCUMENTS = 1_000_000
"""Of a collection; the engine wants a number."""

P = ParamSpec("P")
T = TypeVar("T")


def in_worker(
    method: Callable[Concatenate["EdgeIndex", P], T],
) -> Callable[Concatenate["EdgeIndex", P], Coroutine[Any, Any, T]]:
    """Make a blocking method one that is awaited: its body runs in the index's worker thread."""

    @wraps(method)
    async def run_in_worker(self: "EdgeIndex", /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await anyio.to_thread.run_sync(partial(method, self, *args, **kwargs), limiter=self.worker)

    return run_in_worker


class EdgeIndex:
    """`Index` on qdrant-edge under ``folder``. Raises `IndexOwned` when another process has it.

    An acknowledged write survives a crash (the engine's write-ahead log); `aclose` flushes and frees the folder.
    """

    def __init__(self, folder: Path) -> None:
        self._store = ShardStore(folder)
        self.worker = anyio.CapacityLimiter(1)
        self._upserts, self._additions, self._deletions = (Pace(CALL_SECONDS, *BATCHES) for _ in range(3))

    # What changes points does so in calls of about `CALL_SECONDS`, and the event loop runs between two of them.

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
            change = partial(self._upsert, collection, chunks[part], vectors, sparse)
            at += await self._change_paced(self._upserts, change)

    async def add_dense(self, collection: str, chunk_ids: Sequence[str], dense: Dense) -> None:
        at = 0
        while at < len(chunk_ids):
            part = slice(at, at + self._additions.batch)
            vectors = Dense(dense.embedder, dense.vectors[part])
            at += await self._change_paced(
                self._additions, partial(self._add_dense, collection, chunk_ids[part], vectors)
            )

    async def delete_document(self, collection: str, document_id: str) -> None:
        delete_some = partial(self._delete_some, collection, document_id)
        while await self._change_paced(self._deletions, partial(delete_some, self._deletions.batch)):
            pass

    @in_worker
    def without_dense(self, collection: str, limit: int) -> list[Chunk]:
        shard = self._store.shard(collection)
        if shard is None:
            return []
        missing = engine.Filter(must_not=[engine.HasVectorCondition(DENSE)]) if shard.meta.dimension else None
        return _scroll(shard, engine.ScrollRequest(limit=limit, filter=missing, with_payload=True))

    @in_worker
    def drop(self, collection: str) -> None:
        self._store.drop(split_name(collection)[0])

    async def count(self, collection: str, document_id: str | None = None) -> int:
        if document_id is None:  # a counter; counting without a filter would look at every point
            shard = await self._shard(collection)
            return shard.points if shard else 0
        return await self._count(collection, document_id)

    @in_worker
    def chunks(self, collection: str, document_id: str, offset: int = 0, limit: int = 100) -> list[Chunk]:
        shard = self._store.shard(collection)
        must = _conditions(shard, Selection((document_id,)))
        if shard is None or must is None or limit <= 0:
            return []
        must.append(engine.FieldCondition(key=ORDINAL, range=engine.RangeFloat(gte=offset, lt=offset + limit)))
        request = engine.ScrollRequest(limit=limit, filter=engine.Filter(must=must), with_payload=True)
        return sorted(_scroll(shard, request), key=lambda chunk: chunk.ordinal)

    @in_worker
    def get(self, collection: str, chunk_ids: Sequence[str]) -> dict[str, Chunk]:
        records = _retrieve(self._store.shard(collection), chunk_ids, True)
        return {str(record.id): stored_chunk(str(record.id), record.payload or {}) for record in records}

    @in_worker
    def existing(self, collection: str, chunk_ids: Collection[str]) -> set[str]:
        return {str(record.id) for record in _retrieve(self._store.shard(collection), chunk_ids, False)}

    @in_worker
    def document_names(self, collection: str, selection: Selection) -> list[str]:
        shard = self._store.shard(collection)
        must = _conditions(shard, selection)
        if shard is None or must is None:
            return []
        with engine_errors("list documents"):
            # Only headings are not known without asking, and the engine takes 10 µs for each chunk it looks at.
            values = _facet(shard, must) if selection.heading else _documents(shard).values(selection)
        return sorted({*map(document_name, values)})[:MAX_NAMES]

    @in_worker
    def search_legs(
        self,
        collection: str,
        query: str,
        vector: Sequence[float] | None = None,
        selection: Selection = EVERYTHING,
        limit: int = 100,
    ) -> Legs:
        shard = self._store.shard(collection)
        must = _conditions(shard, selection)
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
            # Each leg also scores the best candidates that only the other one has: fusion needs both scores.
            missing = only_in(legs[1], legs[0]), only_in(legs[0], legs[1])
            rest = _query(
                shard,
                [
                    (each, engine.Filter(must=[engine.HasIdCondition({*ids})]), max(len(ids), 1))
                    for each, ids in zip(nearest, missing, strict=True)
                ],
            )
        return Legs(legs[0], legs[1], self_score, rest[0], rest[1])

    @in_worker
    def sample(self, collection: str, limit: int) -> list[tuple[Chunk, list[float]]]:
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

    async def meta(self, collection: str) -> CollectionMeta | None:
        shard = await self._shard(collection)
        return shard.meta if shard else None

    @in_worker
    def set_calibration(self, collection: str, calibration: Calibration) -> None:
        self._store.record_calibration(collection, calibration)

    @in_worker
    def rebuild(self, collection: str, meta: CollectionMeta) -> str:
        name, _ = split_name(collection)
        return f"{name}@{self._store.begin(name, meta)}"

    @in_worker
    def swap(self, collection: str, generation: str) -> None:
        name, number = split_name(generation)
        self._store.swap(name, number or 0)

    @in_worker
    def roll_back(self, collection: str) -> bool:
        return self._store.roll_back(split_name(collection)[0])

    async def aclose(self) -> None:
        with anyio.CancelScope(shield=True):  # bounded: a flush is a second at most, and half of one would be lost
            await anyio.to_thread.run_sync(self._store.close, limiter=self.worker)

    async def _shard(self, collection: str) -> Shard | None:
        # Each search asks, and a way to the worker and back takes 0.3 ms: an open shard is found without it.
        return self._store.open_shard(collection) or await self._load_shard(collection)

    @in_worker
    def _load_shard(self, collection: str) -> Shard | None:
        return self._store.shard(collection)

    @in_worker
    def _count(self, collection: str, document_id: str) -> int:
        shard = self._store.shard(collection)
        must = _conditions(shard, Selection((document_id,)))
        if shard is None or must is None:
            return 0
        with engine_errors("count chunks"):
            return shard.engine.count(engine.CountRequest(filter=engine.Filter(must=must)))

    @in_worker
    def _change_paced(self, pace: Pace, change: Callable[[], int]) -> int:
        """Run what changes some points, return how many, and let the next call have as many as fit its time."""
        # CPU time: a machine that is busy with something else does not make smaller calls shorter.
        started = time.thread_time()
        points = change()
        if points:
            pace.took(points, time.thread_time() - started)
        return points

    # Blocking, each called by `_change_paced`.

    def _upsert(
        self, collection: str, chunks: Sequence[Chunk], dense: Dense | None, lexical: Sequence[Sparse] | None
    ) -> int:
        shard = cast(Shard, self._store.shard(collection, create=True))
        if dense:
            self._store.record_dense(shard, dense)
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
            _note_change(shard, len(points))
        return len(points)

    def _add_dense(self, collection: str, chunk_ids: Sequence[str], dense: Dense) -> int:
        shard = self._store.shard(collection)
        if shard is not None:
            with engine_errors("store vectors"):
                self._store.record_dense(shard, dense)
                known = {str(record.id) for record in _retrieve(shard, chunk_ids, False)}
                vectors = zip(chunk_ids, dense.vectors, strict=True)
                points = [engine.PointVectors(id_, {DENSE: list(vector)}) for id_, vector in vectors if id_ in known]
                shard.engine.update(engine.UpdateOperation.update_vectors(points))
        return len(chunk_ids)

    def _delete_some(self, collection: str, document_id: str, limit: int) -> int:
        """Delete up to ``limit`` chunks of a document; return how many those were."""
        shard = self._store.shard(collection)
        must = _conditions(shard, Selection((document_id,)))
        if shard is None or must is None:
            return 0
        request = engine.ScrollRequest(limit=limit, filter=engine.Filter(must=must), with_payload=False)
        with engine_errors("delete a document"):
            records, _ = shard.engine.scroll(request)
            if not records:
                _documents(shard).remove(document_id)
                return 0
            shard.engine.update(engine.UpdateOperation.delete_points([record.id for record in records]))
            _note_change(shard)
        return len(records)


def _conditions(shard: Shard | None, selection: Selection) -> list[Any] | None:
    """Return what a point of the selection fulfils; None when nothing can be of it."""
    if shard is None or selection.document_ids == ():
        return None
    must: list[Any] = []
    if replace(selection, heading=None) != EVERYTHING:
        with engine_errors("list documents"):
            values = _documents(shard).values(selection)
        if not values:
            return None
        must.append(engine.FieldCondition(key=DOCUMENT, match=engine.MatchAny(values)))
    if selection.heading:
        must.append(engine.FieldCondition(key=HEADINGS, match=engine.MatchValue(selection.heading)))
    return must


def _scroll(shard: Shard, request: engine.ScrollRequest) -> list[Chunk]:
    with engine_errors("read chunks"):
        records, _ = shard.engine.scroll(request)
    return [stored_chunk(str(record.id), record.payload or {}) for record in records]


def _retrieve(shard: Shard | None, chunk_ids: Collection[str], payload: bool) -> list[engine.Record]:
    if shard is None or not chunk_ids:
        return []
    with engine_errors("read chunks"):
        return shard.engine.retrieve(list(chunk_ids), payload, False)


def _query(shard: Shard, queries: Sequence[tuple[engine.Query, engine.Filter | None, int]]) -> list[tuple[Scored, ...]]:
    """Candidates for each `(query, filter, limit)`, in one batch."""
    requests = [engine.QueryRequest(limit=limit, query=query, filter=chosen) for query, chosen, limit in queries]
    found = shard.engine.query_batch(engine.QueryBatchRequest(requests))
    return [tuple(Scored(str(point.id), point.score) for point in points) for points in found]


def _note_change(shard: Shard, stored: int = 0) -> None:
    """Count the points anew; remembered token weights are dropped once too many points changed."""
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
