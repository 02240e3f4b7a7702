"""The embedded index, blocking: what each call of `Index` does to qdrant-edge shards.

Whoever calls it does so from one thread at a time: `edge_index` from a worker thread of its process, `index_process`
from the only thread it has. The engine holds the interpreter lock while it works, so what changes many points is a
generator: each of its steps takes about `CALL_SECONDS`, and something else may run between two. Files, generations
and ownership are `edge_store`'s; ranking is `retrieval`'s.
"""

import time
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import qdrant_edge as engine

from mcp_servers.retriever import lexical as bm25
from mcp_servers.retriever.chunking import Chunk
from mcp_servers.retriever.edge_points import (
    ORDINAL,
    document_name,
    point_payload,
    stored_chunk,
)
from mcp_servers.retriever.edge_queries import (
    conditions,
    document_values,
    documents,
    find_candidates,
    own_score,
    read_chunks,
    retrieve,
    scroll,
)
from mcp_servers.retriever.edge_shard import Shard, engine_errors
from mcp_servers.retriever.edge_store import MAX_OPEN, ShardStore
from mcp_servers.retriever.errors import IndexDamaged, IndexUnavailable
from mcp_servers.retriever.fusion import fuse_legs
from mcp_servers.retriever.index import (
    DENSE,
    EVERYTHING,
    LEXICAL,
    MAX_NAMES,
    UPSERT_BATCH,
    Calibration,
    CollectionMeta,
    Dense,
    Lead,
    Legs,
    Selection,
    only_in,
    searchable_text,
    split_name,
)
from mcp_servers.retriever.lexical import Sparse
from mcp_servers.retriever.pacing import Pace

CALL_SECONDS = 0.005
"""CPU time of one step that changes points: nothing else of the process runs meanwhile."""

BATCHES = 4, UPSERT_BATCH
"""Points changed in one step: at least, at most."""

STALE_AFTER = 0.02
"""Share of a collection's points that may change before remembered token weights are dropped."""

ENGINE_FAILURE = "Service runtime error"
"""How the engine begins to say that it, and not the question, is at fault."""

Steps = Iterator[None]


class EdgeCollections:
    """The shards under ``folder``, which nobody else may have. Each method is the one of `Index` of its name.

    An acknowledged write survives a crash (the engine's write-ahead log); `close` flushes and frees the folder.

    Raises:
        IndexOwned: another process has the folder.
    """

    def __init__(self, folder: Path, max_open: int = MAX_OPEN) -> None:
        self._store = ShardStore(folder, max_open)
        self._upserts, self._additions, self._deletions = (Pace(CALL_SECONDS, *BATCHES) for _ in range(3))

    def upsert(
        self,
        collection: str,
        chunks: Sequence[Chunk],
        dense: Dense | None = None,
        lexical: Sequence[Sparse] | None = None,
    ) -> Steps:
        at = 0
        while at < len(chunks):
            started = time.thread_time()
            part = slice(at, at + self._upserts.batch)
            sparse = lexical[part] if lexical else None
            vectors = Dense(dense.embedder, dense.vectors[part]) if dense else None
            count = self._upsert(collection, chunks[part], vectors, sparse)
            # CPU time: a machine that is busy with something else does not make smaller steps shorter.
            self._upserts.took(count, time.thread_time() - started)
            at += count
            yield
        while self._index_field(collection):
            yield

    def add_dense(self, collection: str, chunk_ids: Sequence[str], dense: Dense) -> Steps:
        at = 0
        while at < len(chunk_ids):
            started = time.thread_time()
            part = slice(at, at + self._additions.batch)
            count = self._add_dense(collection, chunk_ids[part], Dense(dense.embedder, dense.vectors[part]))
            self._additions.took(count, time.thread_time() - started)
            at += count
            yield

    def delete_document(self, collection: str, document_id: str) -> Steps:
        started = time.thread_time()
        while count := self._delete_some(collection, document_id, self._deletions.batch):
            self._deletions.took(count, time.thread_time() - started)
            yield
            started = time.thread_time()

    def without_dense(self, collection: str, limit: int) -> list[Chunk]:
        shard = self._store.shard(collection)
        if shard is None:
            return []
        missing = engine.Filter(must_not=[engine.HasVectorCondition(DENSE)]) if shard.meta.dimension else None
        return scroll(shard, engine.ScrollRequest(limit=limit, filter=missing, with_payload=True))

    def drop(self, collection: str) -> None:
        self._store.drop(split_name(collection)[0])

    def count(self, collection: str, document_id: str | None = None) -> int:
        shard = self._store.shard(collection)
        if shard is None or document_id is None:  # a counter; counting without a filter would look at every point
            return shard.points if shard else 0
        must = conditions(shard, Selection((document_id,)))
        if must is None:
            return 0
        with engine_errors("count chunks"):
            return shard.engine.count(engine.CountRequest(filter=engine.Filter(must=must)))

    def chunks(self, collection: str, document_id: str, offset: int = 0, limit: int = 100) -> list[Chunk]:
        shard = self._store.shard(collection)
        must = conditions(shard, Selection((document_id,)))
        if shard is None or must is None or limit <= 0:
            return []
        must.append(engine.FieldCondition(key=ORDINAL, range=engine.RangeFloat(gte=offset, lt=offset + limit)))
        request = engine.ScrollRequest(limit=limit, filter=engine.Filter(must=must), with_payload=True)
        return sorted(scroll(shard, request), key=lambda chunk: chunk.ordinal)

    def get(self, collection: str, chunk_ids: Sequence[str]) -> dict[str, Chunk]:
        return {chunk.chunk_id: chunk for chunk in read_chunks(self._store.shard(collection), chunk_ids)}

    def existing(self, collection: str, chunk_ids: Collection[str]) -> set[str]:
        return {str(record.id) for record in retrieve(self._store.shard(collection), chunk_ids, False)}

    def document_names(self, collection: str, selection: Selection) -> list[str]:
        shard = self._store.shard(collection)
        must = conditions(shard, selection)
        if shard is None or must is None:
            return []
        with engine_errors("list documents"):
            # Only headings are not known without asking, and the engine takes 10 µs for each chunk it looks at.
            values = document_values(shard, must) if selection.heading else documents(shard).values(selection)
        return sorted({*map(document_name, values)})[:MAX_NAMES]

    def search_legs(
        self,
        collection: str,
        query: str,
        vector: Sequence[float] | None = None,
        selection: Selection = EVERYTHING,
        limit: int = 100,
        lead: Lead | None = None,
    ) -> Legs:
        shard = self._store.shard(collection)
        must = conditions(shard, selection)
        if shard is None or must is None:
            return Legs()
        sparse = bm25.query_vector(query)
        chosen = engine.Filter(must=must) if must else None
        nearest = [engine.Query.Nearest(engine.SparseVector(sparse.indices, sparse.values), using=LEXICAL)]
        if vector is not None and shard.meta.dimension == len(vector):
            nearest.append(engine.Query.Nearest(list(vector), using=DENSE))
        with engine_errors("search"):
            self_score = own_score(shard, query)
            legs = find_candidates(shard, [(each, chosen, limit) for each in nearest])
            if len(legs) == 1:
                return _with_chunks(shard, Legs(legs[0], (), self_score), lead)
            # Each leg also scores the best candidates that only the other one has: fusion needs both scores.
            missing = only_in(legs[1], legs[0]), only_in(legs[0], legs[1])
            rest = find_candidates(
                shard,
                [
                    (each, engine.Filter(must=[engine.HasIdCondition({*ids})]), max(len(ids), 1))
                    for each, ids in zip(nearest, missing, strict=True)
                ],
            )
        return _with_chunks(shard, Legs(legs[0], legs[1], self_score, rest[0], rest[1]), lead)

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

    def meta(self, collection: str) -> CollectionMeta | None:
        shard = self._store.shard(collection)
        return shard.meta if shard else None

    def set_calibration(self, collection: str, calibration: Calibration) -> None:
        self._store.record_calibration(collection, calibration)

    def rebuild(self, collection: str, meta: CollectionMeta) -> str:
        name, _ = split_name(collection)
        return f"{name}@{self._store.begin(name, meta)}"

    def swap(self, collection: str, generation: str) -> None:
        name, number = split_name(generation)
        self._store.swap(name, number or 0)

    def roll_back(self, collection: str) -> bool:
        return self._store.roll_back(split_name(collection)[0])

    def diagnose(self, collection: str, error: BaseException) -> BaseException:
        """Return what an error means: damage on disk, which is put aside, or the error itself."""
        reason = str(error)
        panic = not isinstance(error, Exception)
        failed = isinstance(error, IndexUnavailable) and ENGINE_FAILURE in reason
        if isinstance(error, IndexDamaged) or not (panic or failed):
            return error
        return self.put_aside(collection, "read a collection", reason)

    def put_aside(self, collection: str, action: str, reason: str) -> IndexUnavailable:
        """Move a collection that cannot be read out of the way; return the error that says so."""
        return self._store.put_aside(split_name(collection)[0], action, reason)

    def flush(self) -> None:
        """Bring every change into the files, before a process ends that need not close them."""
        self._store.flush()

    def close(self) -> None:
        """Flush and close every shard and give up the folder. A second call does nothing."""
        self._store.close()

    # What one step changes.

    def _upsert(
        self, collection: str, chunks: Sequence[Chunk], dense: Dense | None, lexical: Sequence[Sparse] | None
    ) -> int:
        shard = cast(Shard, self._store.shard(collection, create=True))
        if dense:
            shard = self._store.record_dense(shard, dense)
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
            shard.update(engine.UpdateOperation.upsert_points(points))
            _note_change(shard, len(points))
        return len(points)

    def _index_field(self, collection: str) -> bool:
        """Make an index that the collection should have by now; False when it has all."""
        shard = self._store.shard(collection)
        if shard is None:
            return False
        with engine_errors("index chunks"):
            return shard.index_field()

    def _add_dense(self, collection: str, chunk_ids: Sequence[str], dense: Dense) -> int:
        shard = self._store.shard(collection)
        if shard is not None:
            with engine_errors("store vectors"):
                shard = self._store.record_dense(shard, dense)
                known = {str(record.id) for record in retrieve(shard, chunk_ids, False)}
                vectors = zip(chunk_ids, dense.vectors, strict=True)
                points = [engine.PointVectors(id_, {DENSE: list(vector)}) for id_, vector in vectors if id_ in known]
                shard.update(engine.UpdateOperation.update_vectors(points))
        return len(chunk_ids)

    def _delete_some(self, collection: str, document_id: str, limit: int) -> int:
        """Delete up to ``limit`` chunks of a document; return how many those were."""
        shard = self._store.shard(collection)
        must = conditions(shard, Selection((document_id,)))
        if shard is None or must is None:
            return 0
        request = engine.ScrollRequest(limit=limit, filter=engine.Filter(must=must), with_payload=False)
        with engine_errors("delete a document"):
            records, _ = shard.engine.scroll(request)
            if not records:
                documents(shard).remove(document_id)
                return 0
            shard.update(engine.UpdateOperation.delete_points([record.id for record in records]))
            _note_change(shard)
        return len(records)


def _with_chunks(shard: Shard, legs: Legs, lead: Lead | None) -> Legs:
    """Add the chunks of the leading candidates."""
    if lead is None:
        return legs
    return replace(legs, chunks=read_chunks(shard, [each.chunk_id for each in fuse_legs(legs, lead)[: lead.count]]))


def _note_change(shard: Shard, stored: int = 0) -> None:
    """Count the points anew; remembered token weights are dropped once too many points changed."""
    points = shard.engine.info().points_count
    shard.changed += max(stored, shard.points - points)
    shard.points = points
    if shard.changed > STALE_AFTER * points:
        shard.idf.clear()
        shard.changed = 0
