"""The embedded index as blocking calls: the methods of `Index` on qdrant-edge shards.

Only one thread may call the module at once: `edge_index` uses one worker thread, `index_process` its only thread. The
engine holds the interpreter lock while it works. Methods that change many points are therefore generators: each step
takes about `CALL_SECONDS`, and other work may run between two steps. `edge_store` manages files, generations and the
lock; `retrieval` ranks the results.
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
    DOCUMENT,
    ORDINAL,
    chunk_key,
    document_name,
    point_payload,
    stored_chunk,
)
from mcp_servers.retriever.edge_queries import (
    PointIds,
    TokenWeights,
    chunk_id_of,
    conditions,
    dense_request,
    document_values,
    documents,
    filter_by_ids,
    find_tokens,
    lexical_request,
    read_leg,
    retrieve,
    run_queries,
    scroll,
)
from mcp_servers.retriever.edge_shard import Shard, engine_errors
from mcp_servers.retriever.edge_store import MAX_OPEN, ShardStore
from mcp_servers.retriever.errors import IndexDamaged, IndexUnavailable
from mcp_servers.retriever.fusion import fuse_legs
from mcp_servers.retriever.index import (
    DENSE,
    EVERYTHING,
    LEADERS,
    LEXICAL,
    UPSERT_BATCH,
    WINDOWS,
    Calibration,
    CandidateLimit,
    CollectionMeta,
    Dense,
    LegResults,
    Scored,
    Selection,
    names_with_part,
    only_in,
    searchable_text,
    split_name,
    stored_windows,
)
from mcp_servers.retriever.lexical import Sparse
from mcp_servers.retriever.pacing import Pace

CALL_SECONDS = 0.005
"""Target CPU time of one step that changes points, during which nothing else in the process runs."""

BATCHES = 4, UPSERT_BATCH
"""Minimum and maximum of points changed in one step."""

STALE_AFTER = 0.02
"""Share of a collection's points that may change before the cached token weights are dropped."""

ENGINE_FAILURE = "Service runtime error"
"""Start of the engine's error texts for internal failures, as opposed to invalid requests."""

Steps = Iterator[None]


class EdgeCollections:
    """The shards under ``folder``, with exclusive ownership. The methods are those of `Index`.

    A completed write survives a crash, thanks to the engine's write-ahead log. `close` flushes and releases the folder.

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
        *,
        known_only: bool = False,
    ) -> Steps:
        position = 0
        while position < len(chunks):
            started = time.thread_time()
            part = slice(position, position + self._upserts.batch)
            sparse = lexical[part] if lexical else None
            vectors = dense.of_chunks(part) if dense else None
            count = self._upsert(collection, chunks[part], vectors, sparse, known_only)
            # CPU time and not wall time: on a busy machine, smaller steps would not get shorter.
            self._upserts.took(count, time.thread_time() - started)
            position += count
            yield
        # The collection may have outgrown the size below which it needs no payload index. Each index is a step.
        while self._index_field(collection):
            yield

    def add_dense(self, collection: str, chunk_ids: Sequence[str], dense: Dense) -> Steps:
        position = 0
        while position < len(chunk_ids):
            started = time.thread_time()
            part = slice(position, position + self._additions.batch)
            count = self._add_dense(collection, chunk_ids[part], dense.of_chunks(part))
            self._additions.took(count, time.thread_time() - started)
            position += count
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
        records = retrieve(self._store.shard(collection), chunk_ids, payload=True)
        chunks = [stored_chunk(str(record.id), record.payload or {}) for record in records]
        return {chunk.chunk_id: chunk for chunk in chunks}

    def existing(self, collection: str, chunk_ids: Collection[str]) -> set[str]:
        return {str(record.id) for record in retrieve(self._store.shard(collection), chunk_ids)}

    def document_names(self, collection: str, selection: Selection, part: str = "") -> list[str]:
        shard = self._store.shard(collection)
        must = conditions(shard, selection)
        if shard is None or must is None:
            return []
        with engine_errors("list documents"):
            # Only a heading filter needs the engine, which takes 10 µs for each chunk that it visits.
            values = document_values(shard, must) if selection.heading else documents(shard).values(selection)
        return names_with_part(map(document_name, values), part)

    def search_legs(
        self,
        collection: str,
        query: str,
        vector: Sequence[float] | None = None,
        selection: Selection = EVERYTHING,
        limit: int = 100,
        lead: CandidateLimit | None = None,
    ) -> LegResults:
        legs, records = self.search_records(collection, query, vector, selection, limit, lead)
        chunks = tuple(stored_chunk(chunk_id, record.payload or {}) for chunk_id, record in records.items())
        return replace(legs, chunks=chunks)

    def search_records(
        self,
        collection: str,
        text: str,
        vector: Sequence[float] | None,
        selection: Selection,
        limit: int,
        lead: CandidateLimit | None,
    ) -> tuple[LegResults, dict[str, engine.Record]]:
        """Return the result of `search_legs` without its chunks, and the points of these chunks by chunk id.

        The index process passes the payloads on as they are stored, which saves a millisecond.
        """
        shard = self._store.shard(collection)
        must = conditions(shard, selection)
        if shard is None or must is None:
            return LegResults(), {}
        sparse = bm25.query_vector(text)
        chosen = engine.Filter(must=must) if must else None
        requests = [lexical_request(sparse, chosen, limit)]
        if vector is not None and shard.meta.dimension == len(vector):
            requests.append(dense_request(shard, vector, chosen, limit))
        point_ids: PointIds = {}
        with engine_errors("search"):
            lexical, *rest = [read_leg(points, point_ids) for points in run_queries(shard, requests)]
            leaders = retrieve(shard, [point_ids[candidate.chunk_id] for candidate in lexical[:LEADERS]], words=True)
            weights = TokenWeights(shard, sparse.indices, leaders)
            dense: tuple[Scored, ...] = rest[0] if rest else ()
            requests = []
            if vector is not None and rest:
                # Each leg also scores the best candidates that only the other leg found: fusion needs both scores.
                for_words = [point_ids[chunk_id] for chunk_id in only_in(dense, lexical)]
                for_meaning = [point_ids[chunk_id] for chunk_id in only_in(lexical, dense)]
                requests = [
                    lexical_request(sparse, filter_by_ids(for_words), max(len(for_words), 1)),
                    dense_request(shard, vector, filter_by_ids(for_meaning), max(len(for_meaning), 1)),
                ]
            answers = run_queries(shard, [*requests, *weights.requests])
            lexical_rest, dense_rest = [read_leg(points, point_ids) for points in answers[: len(requests)]] or [(), ()]
            tokens = weights.answer(answers[len(requests) :])
            legs = LegResults(
                lexical,
                dense,
                bm25.self_score(tokens.values()),
                lexical_rest,
                dense_rest,
                tokens=tokens,
                matched={chunk_id_of(leader.id): find_tokens(leader, tokens) for leader in leaders} if lead else {},
            )
            return _with_records(shard, legs, lead, point_ids) if lead else (legs, {})

    def sample(self, collection: str, limit: int) -> list[tuple[Chunk, list[list[float]]]]:
        shard = self._store.shard(collection)
        if shard is None or not shard.meta.dimension:
            return []
        has_vector = engine.Filter(must=[engine.HasVectorCondition(DENSE)])
        every = engine.ScrollRequest(limit=max(shard.points, 1), filter=has_vector, with_payload=[DOCUMENT, ORDINAL])
        with engine_errors("sample chunks"):
            records, _ = shard.engine.scroll(every)
            keys = {str(record.id): chunk_key(record.payload or {}) for record in records}
            chosen = sorted(keys, key=lambda chunk_id: keys[chunk_id])[:limit]
            points = shard.engine.retrieve(list(chosen), True, [WINDOWS if shard.meta.windowed else DENSE])
        return [
            (stored_chunk(str(point.id), point.payload or {}), stored_windows(cast(dict[str, Any], point.vector)))
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
        """Return the error to answer with: `IndexDamaged` after quarantining a damaged collection, or ``error``."""
        reason = str(error)
        panic = not isinstance(error, Exception)
        failed = isinstance(error, IndexUnavailable) and ENGINE_FAILURE in reason
        if isinstance(error, IndexDamaged) or not (panic or failed):
            return error
        return self.put_aside(collection, "read a collection", reason)

    def put_aside(self, collection: str, action: str, reason: str) -> IndexUnavailable:
        """Quarantine an unreadable collection and return the error to raise."""
        return self._store.put_aside(split_name(collection)[0], action, reason)

    def flush(self) -> None:
        """Write every change to the files, for a process that exits without `close`."""
        self._store.flush()

    def close(self) -> None:
        """Flush and close every shard and release the folder. Idempotent."""
        self._store.close()

    # Single steps.

    def _upsert(
        self,
        collection: str,
        chunks: Sequence[Chunk],
        dense: Dense | None,
        lexical: Sequence[Sparse] | None,
        known_only: bool,
    ) -> int:
        shard = self._store.shard(collection, create=not known_only)
        if shard is None:
            return len(chunks)
        if dense:
            shard = self._store.record_dense(shard, dense)
        ids = [chunk.chunk_id for chunk in chunks]
        accepted = {str(record.id) for record in retrieve(shard, ids)} if known_only else {*ids}
        lexical = lexical or bm25.document_vectors(map(searchable_text, chunks))
        points: list[engine.Point] = []
        dense_vectors = dense.by_name() if dense else [{} for _ in chunks]
        for chunk, sparse, vectors_by_name in zip(chunks, lexical, dense_vectors, strict=True):
            if chunk.chunk_id not in accepted:
                continue
            vectors: dict[str, Any] = {**vectors_by_name, LEXICAL: engine.SparseVector(sparse.indices, sparse.values)}
            points.append(engine.Point(chunk.chunk_id, vectors, point_payload(chunk)))
            if shard.documents:
                shard.documents.add(chunk.document_id, chunk.document_name)
        if points:
            with engine_errors("store chunks"):
                shard.update(engine.UpdateOperation.upsert_points(points))
                _note_change(shard, len(points))
        return len(chunks)

    def _index_field(self, collection: str) -> bool:
        """Create one missing payload index; return False if the collection has all that its size needs."""
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
                existing = {str(record.id) for record in retrieve(shard, chunk_ids)}
                # Chunks may have been deleted since their vectors were requested.
                pairs = zip(chunk_ids, dense.by_name(), strict=True)
                points = [
                    engine.PointVectors(chunk_id, {**vectors}) for chunk_id, vectors in pairs if chunk_id in existing
                ]
                shard.update(engine.UpdateOperation.update_vectors(points))
        return len(chunk_ids)

    def _delete_some(self, collection: str, document_id: str, limit: int) -> int:
        """Delete up to ``limit`` chunks of a document and return the number of deleted chunks."""
        shard = self._store.shard(collection)
        must = conditions(shard, Selection((document_id,)))
        if shard is None or must is None:
            return 0
        request = engine.ScrollRequest(limit=limit, filter=engine.Filter(must=must), with_payload=False)
        with engine_errors("delete a document"):
            records, _ = shard.engine.scroll(request)
            if not records:  # after the last chunk, so that an interrupted deletion still names the document
                documents(shard).remove(document_id)
                return 0
            shard.update(engine.UpdateOperation.delete_points([record.id for record in records]))
            _note_change(shard)
        return len(records)


def _with_records(
    shard: Shard, legs: LegResults, lead: CandidateLimit, point_ids: PointIds
) -> tuple[LegResults, dict[str, engine.Record]]:
    """Fuse the legs, add the tokens of the question that the first candidates contain, and read their points."""
    fused = tuple(fuse_legs(legs, lead))
    first = dict.fromkeys(candidate.chunk_id for candidate in fused[: lead.count])
    wanted = dict.fromkeys([*first, *lead.first_places(legs)])
    ids = [point_ids[chunk_id] for chunk_id in wanted]
    records = {chunk_id_of(record.id): record for record in retrieve(shard, ids, payload=True, words=True)}
    matched = {
        chunk_id: find_tokens(record, legs.tokens)
        for chunk_id, record in records.items()
        if chunk_id in first and chunk_id not in legs.matched
    }
    return replace(legs, matched={**legs.matched, **matched}, fused=fused), records


def _note_change(shard: Shard, stored: int = 0) -> None:
    """Update the point count, and drop the cached token weights if too many points have changed."""
    points = shard.engine.info().points_count
    shard.changed += max(stored, shard.points - points)
    shard.points = points
    if shard.changed > STALE_AFTER * points:
        shard.idf.clear()
        shard.changed = 0
