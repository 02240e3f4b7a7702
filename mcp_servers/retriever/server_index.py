"""The index on a Qdrant server, for installations that outgrow one machine.

It has the same vectors and ids as the embedded index. The collection ``domain_x`` is an alias of its live generation
``domain_x__3``, and ``domain_x__previous`` an alias of the previous one, for `ServerIndex.roll_back`. The metadata of a
collection is its `CollectionMeta`. Importing this module takes 0.4 s (`qdrant_client`).
"""

import math
import time
from collections.abc import Awaitable, Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import anyio
from qdrant_client import AsyncQdrantClient
from qdrant_client import models as m
from qdrant_client.http.exceptions import ApiException, UnexpectedResponse

from mcp_servers.retriever import lexical as bm25
from mcp_servers.retriever.chunking import Chunk
from mcp_servers.retriever.errors import IndexClosed, IndexUnavailable
from mcp_servers.retriever.fusion import fuse_legs
from mcp_servers.retriever.index import (
    COARSE,
    DENSE,
    EVERYTHING,
    KEYWORD_FIELDS,
    LEADERS,
    LEXICAL,
    MAX_DOCUMENTS,
    MAX_NAMES,
    UPSERT_BATCH,
    WINDOWS,
    Calibration,
    CandidateLimit,
    CollectionMeta,
    Dense,
    LegResults,
    Scored,
    Selection,
    ending,
    names_with_part,
    only_in,
    sample_key,
    searchable_text,
    split_name,
    stored_windows,
)
from mcp_servers.retriever.lexical import Sparse

TIMEOUT_SECONDS = 10
"""Timeout of one request to the Qdrant server."""

FACTS_SECONDS = 10.0
"""Lifetime of cached metadata and token weights: another replica may swap or fill the collection."""

SCROLLED = 5_000
"""Points of one request that reads all points of a collection."""

_PREVIOUS = "__previous"

T = TypeVar("T")


@dataclass(slots=True)
class _CollectionFacts:
    """Cached facts about a collection, valid ``until`` a monotonic time. ``idf``: the weights of tokens read so far."""

    meta: CollectionMeta
    points: int
    until: float
    idf: dict[int, float] = field(default_factory=dict)


class ServerIndex:
    """`Index` on a Qdrant client, which `aclose` closes.

    Create the client with `AsyncQdrantClient(url=…, api_key=…, timeout=…)`.
    """

    def __init__(self, client: AsyncQdrantClient) -> None:
        self._client = client
        self._facts: dict[str, _CollectionFacts] = {}
        self._closed = False

    async def upsert(
        self,
        collection: str,
        chunks: Sequence[Chunk],
        dense: Dense | None = None,
        lexical: Sequence[Sparse] | None = None,
        *,
        known_only: bool = False,
    ) -> None:
        facts = await self._look(collection)
        if not chunks or (facts is None and known_only):
            return
        facts = facts or await self._create(collection)
        if dense:
            await self._make_room(collection, facts, dense)
        ids = [chunk.chunk_id for chunk in chunks]
        stored = await self.existing(collection, ids) if known_only else {*ids}
        for start in range(0, len(chunks), UPSERT_BATCH):
            part = slice(start, start + UPSERT_BATCH)
            batch = chunks[part]
            sparse = lexical[part] if lexical else bm25.document_vectors(map(searchable_text, batch))
            dense_vectors = dense.of_chunks(part).by_name() if dense else [{} for _ in batch]
            points: list[m.PointStruct] = []
            for chunk, weights, vectors_by_name in zip(batch, sparse, dense_vectors, strict=True):
                if chunk.chunk_id not in stored:
                    continue
                vectors: dict[str, Any] = {**vectors_by_name, LEXICAL: _sparse(weights)}
                points.append(m.PointStruct(id=chunk.chunk_id, vector=vectors, payload=_payload(chunk)))
            if points:
                await self._call("store chunks", self._client.upsert(_physical(collection), points, wait=True))

    async def add_dense(self, collection: str, chunk_ids: Sequence[str], dense: Dense) -> None:
        facts = await self._look(collection)
        if facts is None or not chunk_ids:
            return
        await self._make_room(collection, facts, dense)
        # The server refuses a batch with the id of a chunk that was deleted meanwhile.
        stored = await self.existing(collection, chunk_ids)
        pairs = zip(chunk_ids, dense.by_name(), strict=True)
        vectors = [m.PointVectors(id=chunk_id, vector={**vector}) for chunk_id, vector in pairs if chunk_id in stored]
        if vectors:
            await self._call("store vectors", self._client.update_vectors(_physical(collection), vectors, wait=True))

    async def without_dense(self, collection: str, limit: int) -> list[Chunk]:
        facts = await self._look(collection)
        if facts is None:
            return []
        missing = m.Filter(must_not=[m.HasVectorCondition(has_vector=DENSE)]) if facts.meta.dimension else None
        return await self._scroll(collection, missing, limit)

    async def delete_document(self, collection: str, document_id: str) -> None:
        if await self._look(collection):
            chosen = m.FilterSelector(filter=m.Filter(must=[_match("document_id", document_id)]))
            await self._call("delete a document", self._client.delete(_physical(collection), chosen, wait=True))

    async def drop(self, collection: str) -> None:
        name, _ = split_name(collection)
        for generation in await self._generations(name):
            await self._call("drop a collection", self._client.delete_collection(f"{name}__{generation}"))
        self._facts.clear()

    async def count(self, collection: str, document_id: str | None = None) -> int:
        if not await self._look(collection):
            return 0
        chosen = None if document_id is None else m.Filter(must=[_match("document_id", document_id)])
        answer = await self._call("count chunks", self._client.count(_physical(collection), chosen, exact=True))
        return answer.count

    async def chunks(self, collection: str, document_id: str, offset: int = 0, limit: int = 100) -> list[Chunk]:
        if limit <= 0 or not await self._look(collection):
            return []
        ordinals = m.FieldCondition(key="ordinal", range=m.Range(gte=offset, lt=offset + limit))
        chosen = m.Filter(must=[_match("document_id", document_id), ordinals])
        return sorted(await self._scroll(collection, chosen, limit), key=lambda chunk: chunk.ordinal)

    async def get(self, collection: str, chunk_ids: Sequence[str]) -> dict[str, Chunk]:
        records = await self._retrieve(collection, chunk_ids, True)
        return {str(record.id): Chunk.from_json(record.payload or {}) for record in records}

    async def existing(self, collection: str, chunk_ids: Collection[str]) -> set[str]:
        return {str(record.id) for record in await self._retrieve(collection, chunk_ids, False)}

    async def document_names(self, collection: str, selection: Selection, part: str = "") -> list[str]:
        if selection.document_ids == () or not await self._look(collection):
            return []
        # The server cannot search within names: the field's index compares whole values.
        limit = MAX_DOCUMENTS if part else MAX_NAMES
        facet = self._client.facet(
            _physical(collection), "document_name", facet_filter=_filter(selection), limit=limit, exact=True
        )
        return names_with_part((str(hit.value) for hit in (await self._call("list documents", facet)).hits), part)

    async def search_legs(
        self,
        collection: str,
        query: str,
        vector: Sequence[float] | None = None,
        selection: Selection = EVERYTHING,
        limit: int = 100,
        lead: CandidateLimit | None = None,
    ) -> LegResults:
        facts = await self._look(collection)
        if facts is None or selection.document_ids == ():
            return LegResults()
        sparse = bm25.query_vector(query)
        chosen = _filter(selection)
        requests = [_lexical_request(sparse, chosen, limit)]
        if vector is not None and facts.meta.dimension == len(vector):
            requests.append(_dense_request(facts, vector, chosen, limit))
        candidates = await self._query(collection, requests)
        tokens = await self._token_weights(collection, facts, sparse.indices)
        legs = LegResults(candidates[0], self_score=bm25.self_score(tokens.values()), tokens=tokens)
        if vector is not None and len(candidates) > 1:
            # Each candidate needs the scores of both legs, so each leg rates what only the other one has.
            for_words, for_meaning = only_in(candidates[1], candidates[0]), only_in(candidates[0], candidates[1])
            rest = await self._query(
                collection,
                [
                    _lexical_request(sparse, _among(for_words), max(len(for_words), 1)),
                    _dense_request(facts, vector, _among(for_meaning), max(len(for_meaning), 1)),
                ],
            )
            legs = replace(legs, dense=candidates[1], lexical_rest=rest[0], dense_rest=rest[1])
        if lead is None:
            return legs
        # The fusion needs the tokens of the best lexical candidates, and then shows which others come first.
        leaders = [candidate.chunk_id for candidate in legs.lexical[:LEADERS]]
        legs = replace(legs, matched=await self._held_tokens(collection, leaders, tokens))
        first = [candidate.chunk_id for candidate in fuse_legs(legs, lead)[: lead.count]]
        return replace(legs, matched=await self._held_tokens(collection, [*{*first, *leaders}], tokens))

    async def sample(self, collection: str, limit: int) -> list[tuple[Chunk, list[list[float]]]]:
        facts = await self._look(collection)
        if facts is None or not facts.meta.dimension:
            return []
        has_vector = m.Filter(must=[m.HasVectorCondition(has_vector=DENSE)])
        keys: dict[str, bytes] = {}
        offset: Any = None
        while True:
            page = self._client.scroll(
                _physical(collection),
                scroll_filter=has_vector,
                limit=SCROLLED,
                offset=offset,
                with_payload=["document_name", "ordinal"],
            )
            records, offset = await self._call("sample chunks", page)
            for record in records:
                payload = record.payload or {}
                keys[str(record.id)] = sample_key(payload["document_name"], payload["ordinal"])
            if offset is None:
                break
        chosen = sorted(keys, key=lambda chunk_id: keys[chunk_id])[:limit]
        vectors = [WINDOWS if facts.meta.windowed else DENSE]
        read = self._client.retrieve(_physical(collection), chosen, with_payload=True, with_vectors=vectors)
        points: Any = await self._call("sample chunks", read)
        return [(Chunk.from_json(point.payload), stored_windows(point.vector)) for point in points]

    async def meta(self, collection: str) -> CollectionMeta | None:
        facts = await self._look(collection)
        return facts.meta if facts else None

    async def set_calibration(self, collection: str, calibration: Calibration) -> None:
        if facts := await self._look(collection):
            await self._record(collection, facts, replace(facts.meta, calibration=calibration))

    async def rebuild(self, collection: str, meta: CollectionMeta) -> str:
        name, _ = split_name(collection)
        number = max(await self._generations(name), default=0) + 1
        await self._create_generation(f"{name}__{number}", meta)
        return f"{name}@{number}"

    async def swap(self, collection: str, generation: str) -> None:
        name, number = split_name(generation)
        live = await self._target(name)
        if live == f"{name}__{number}":
            # Another replica has swapped it, or the answer is out of date. The change of the alias is repeated, but the
            # previous generation stays the one to roll back to.
            await self._change_aliases([(name, live)])
            self._facts.pop(name, None)
            return
        await self._point(name, f"{name}__{number}", live)
        for older in await self._generations(name):  # another replica may be filling a newer one
            if older < (number or 0) and f"{name}__{older}" != live:
                await self._call("drop a collection", self._client.delete_collection(f"{name}__{older}"))

    async def roll_back(self, collection: str) -> bool:
        name, _ = split_name(collection)
        live, previous = await self._target(name), await self._target(name + _PREVIOUS)
        if previous is None:
            return False
        await self._point(name, previous, live)
        return True

    async def wait_for_loss(self) -> None:
        await anyio.sleep_forever()  # a server reports no loss: the start and empty searches detect it

    async def aclose(self) -> None:
        if not self._closed:
            self._closed = True
            await self._client.close()

    async def _call(self, action: str, call: Awaitable[T]) -> T:
        """Await a call of the client and turn its errors (ValueError for a local client) into `IndexUnavailable`."""
        try:
            return await call
        except (ApiException, ValueError) as exc:
            raise IndexUnavailable(action, str(exc)[:500]) from exc

    async def _look(self, collection: str) -> _CollectionFacts | None:
        """Return the cached or fetched facts about a collection, or None if it does not exist."""
        split_name(collection)
        if self._closed:
            raise IndexClosed
        facts = self._facts.get(collection)
        if facts is None or facts.until < time.monotonic():
            self._facts.pop(collection, None)
            try:
                info = await self._client.get_collection(_physical(collection))
            except UnexpectedResponse as exc:
                if exc.status_code == 404:
                    return None
                raise IndexUnavailable("open a collection", str(exc)[:500]) from exc
            except ApiException as exc:
                raise IndexUnavailable("open a collection", str(exc)[:500]) from exc
            except ValueError:  # the local client raises this instead of a 404
                return None
            meta = CollectionMeta.from_json(info.config.metadata or {})
            facts = _CollectionFacts(meta, info.points_count or 0, time.monotonic() + FACTS_SECONDS)
            self._facts[collection] = facts
        return facts

    async def _create(self, collection: str) -> _CollectionFacts:
        """Create the first generation, or use the one that another replica has created concurrently."""
        name, _ = split_name(collection)
        first = f"{name}__1"
        await self._create_generation(first, CollectionMeta(), again=True)
        if await self._target(name) is None:
            await self._point(name, first, None)
        facts = await self._look(collection)
        if facts is None:
            raise IndexUnavailable("create a collection", f"{collection} is gone at once")
        return facts

    async def _create_generation(self, physical: str, meta: CollectionMeta, *, again: bool = False) -> None:
        """Create the collection of a generation; with ``again``, an existing one is used."""
        dense = {name: m.VectorParams(**config.model_dump(exclude_none=True)) for name, config in _dense_configs(meta)}
        create = self._client.create_collection(
            physical,
            vectors_config=dense,
            sparse_vectors_config={LEXICAL: m.SparseVectorParams(modifier=m.Modifier.IDF)},
            metadata=dict(meta.to_json()),
        )
        try:
            await self._call("create a collection", create)
        except IndexUnavailable as exc:
            if not again or "already exists" not in str(exc):
                raise
        for key in (*KEYWORD_FIELDS, "ordinal"):
            schema = m.PayloadSchemaType.INTEGER if key == "ordinal" else m.PayloadSchemaType.KEYWORD
            await self._call("create a collection", self._client.create_payload_index(physical, key, schema))

    async def _make_room(self, collection: str, facts: _CollectionFacts, dense: Dense) -> None:
        """Prepare the collection for its first dense vectors.

        Raises:
            IndexMismatch: the collection has vectors of another embedder or dimension.
        """
        meta = facts.meta.with_dense(dense)
        if meta != facts.meta:
            for name, config in _dense_configs(meta):
                create = self._client.create_vector_name(
                    _physical(collection), name, m.DenseVectorNameConfig(dense=config)
                )
                await self._call("add dense vectors", create)
            await self._record(collection, facts, meta)

    async def _record(self, collection: str, facts: _CollectionFacts, meta: CollectionMeta) -> None:
        facts.meta = meta
        update = self._client.update_collection(_physical(collection), metadata=dict(meta.to_json()))
        await self._call("record a collection", update)

    async def _generations(self, name: str) -> list[int]:
        listed = await self._call("list collections", self._client.get_collections())
        prefix = f"{name}__"
        numbers = (item.name.removeprefix(prefix) for item in listed.collections if item.name.startswith(prefix))
        return sorted(int(number) for number in numbers if number.isdigit())

    async def _target(self, alias: str) -> str | None:
        listed = await self._call("list aliases", self._client.get_aliases())
        return next((item.collection_name for item in listed.aliases if item.alias_name == alias), None)

    async def _point(self, name: str, live: str, previous: str | None) -> None:
        """Set both aliases in one atomic change."""
        await self._change_aliases([(name, live), (name + _PREVIOUS, previous)])
        self._facts.pop(name, None)

    async def _change_aliases(self, wanted: Sequence[tuple[str, str | None]]) -> None:
        changes: list[m.AliasOperations] = []
        for alias, target in wanted:
            changes.append(m.DeleteAliasOperation(delete_alias=m.DeleteAlias(alias_name=alias)))
            if target:
                create = m.CreateAlias(collection_name=target, alias_name=alias)
                changes.append(m.CreateAliasOperation(create_alias=create))
        await self._call("swap a collection", self._client.update_collection_aliases(changes))

    async def _scroll(self, collection: str, chosen: m.Filter | None, limit: int) -> list[Chunk]:
        scroll = self._client.scroll(_physical(collection), scroll_filter=chosen, limit=limit, with_payload=True)
        records, _ = await self._call("read chunks", scroll)
        return [Chunk.from_json(record.payload or {}) for record in records]

    async def _retrieve(self, collection: str, chunk_ids: Collection[str], payload: bool) -> list[m.Record]:
        if not chunk_ids or not await self._look(collection):
            return []
        retrieve = self._client.retrieve(_physical(collection), list(chunk_ids), with_payload=payload)
        return await self._call("read chunks", retrieve)

    async def _query(self, collection: str, requests: Sequence[m.QueryRequest]) -> list[tuple[Scored, ...]]:
        """Return the candidates of each request, in one batch."""
        answers = await self._call("search", self._client.query_batch_points(_physical(collection), list(requests)))
        return [tuple(Scored(str(point.id), point.score) for point in answer.points) for answer in answers]

    async def _token_weights(self, collection: str, facts: _CollectionFacts, tokens: Sequence[int]) -> dict[int, float]:
        """Return inverse document frequencies, derived from each token's best point as in the embedded index."""
        new = [token for token in tokens if token not in facts.idf]
        if not new:
            return {token: facts.idf[token] for token in tokens}
        requests = [
            m.QueryRequest(query=_sparse(Sparse([token], [1.0])), using=LEXICAL, limit=1, with_vector=[LEXICAL])
            for token in new
        ]
        answers = self._client.query_batch_points(_physical(collection), requests)
        for token, answer in zip(new, await self._call("search", answers), strict=True):
            facts.idf[token] = math.log(2 * facts.points + 2)  # the server's formula for a token that no point has
            for point in answer.points:
                sparse: Any = point.vector
                weight = sparse[LEXICAL].values[sparse[LEXICAL].indices.index(token)]
                facts.idf[token] = point.score / weight
        return {token: facts.idf[token] for token in tokens}

    async def _held_tokens(
        self, collection: str, chunk_ids: Sequence[str], tokens: Collection[int]
    ) -> dict[str, frozenset[int]]:
        """Return the subset of the tokens that each chunk contains."""
        if not chunk_ids or not tokens:
            return {}
        retrieve = self._client.retrieve(
            _physical(collection), list(chunk_ids), with_payload=False, with_vectors=[LEXICAL]
        )
        records: list[Any] = await self._call("search", retrieve)
        question = frozenset(tokens)
        return {str(record.id): question.intersection(record.vector[LEXICAL].indices) for record in records}


def _dense_configs(meta: CollectionMeta) -> list[tuple[str, m.DenseVectorConfig]]:
    """Return the configurations of a collection's dense vectors."""
    if not meta.dimension:
        return []
    configs = [(DENSE, m.DenseVectorConfig(size=meta.dimension, distance=m.Distance.COSINE))]
    if meta.windowed:
        best = m.MultiVectorConfig(comparator=m.MultiVectorComparator.MAX_SIM)
        config = m.DenseVectorConfig(size=meta.dimension, distance=m.Distance.COSINE, multivector_config=best)
        configs.append((WINDOWS, config))
    return configs


def _lexical_request(sparse: Sparse, chosen: m.Filter | None, limit: int) -> m.QueryRequest:
    return m.QueryRequest(query=_sparse(sparse), using=LEXICAL, filter=chosen, limit=limit)


def _dense_request(
    facts: _CollectionFacts, vector: Sequence[float], chosen: m.Filter | None, limit: int
) -> m.QueryRequest:
    """Return a request for the nearest chunks; as in the embedded index, only windows with near means are compared."""
    if not facts.meta.windowed:
        return m.QueryRequest(query=list(vector), using=DENSE, filter=chosen, limit=limit)
    coarse = m.Prefetch(query=list(vector), using=DENSE, filter=chosen, limit=COARSE)
    return m.QueryRequest(prefetch=coarse, query=[list(vector)], using=WINDOWS, limit=limit)


def _among(chunk_ids: Sequence[str]) -> m.Filter:
    return m.Filter(must=[m.HasIdCondition(has_id=[*chunk_ids])])


def _physical(collection: str) -> str:
    """Return the server's name for `law` (an alias) or `law@3`."""
    name, generation = split_name(collection)
    return f"{name}__{generation}" if generation else name


def _sparse(vector: Sparse) -> m.SparseVector:
    return m.SparseVector(indices=vector.indices, values=vector.values)


def _payload(chunk: Chunk) -> m.Payload:
    return {**chunk.to_json(), "type": ending(chunk.document_name)}


def _match(key: str, value: str) -> m.FieldCondition:
    return m.FieldCondition(key=key, match=m.MatchValue(value=value))


def _filter(selection: Selection) -> m.Filter | None:
    must: list[m.Condition] = []
    if selection.document_ids is not None:
        must.append(m.FieldCondition(key="document_id", match=m.MatchAny(any=list(selection.document_ids))))
    if selection.document:
        named = _match("document_id", selection.document), _match("document_name", selection.document)
        must.append(m.Filter(should=[*named]))
    if selection.type:
        must.append(_match("type", selection.type))
    if selection.heading:
        must.append(_match("heading_path", selection.heading))
    return m.Filter(must=must) if must else None
