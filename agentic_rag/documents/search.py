"""Searches of a domain: the choice of fusion and reranker, the stored traces, and the check of cited passages.

Owns the choice of a `Retriever` for each search, for the model's tool and the playground alike, and the stored trace of
a search. A trace has ids, positions and scores but never a text, so that nothing of a deleted document is left. Knows
no file and no request.
"""

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from pathlib import Path

import anyio.to_thread
from sqlalchemy import Connection

from agentic_rag.access.document_views import DocumentReader, DocumentView, DocumentViews
from agentic_rag.base.errors import NotFound, SearchUnavailable, StorageError
from agentic_rag.base.health_signals import Outcomes
from agentic_rag.base.ids import ConversationId, DocumentId
from agentic_rag.base.json_form import from_json, to_json
from agentic_rag.base.messages import is_attachment
from agentic_rag.directory.collection import collection_of, domain_of
from agentic_rag.directory.directory import Directory
from agentic_rag.directory.settings import DomainSettings
from agentic_rag.documents.embedding_state import EmbeddingState
from agentic_rag.documents.lost_documents import LostDocuments
from agentic_rag.documents.versions import VersionFacts, newest_first
from agentic_rag.store import documents, retrievals
from agentic_rag.store.clock import now
from agentic_rag.store.database import Database
from agentic_rag.store.documents import DocumentRecord, DocumentStatus
from agentic_rag.store.retrievals import RetrievalRecord
from mcp_servers.retriever.chunking import Chunk, chunk_id
from mcp_servers.retriever.document import Json
from mcp_servers.retriever.errors import IndexDamaged, IndexFault, IndexUnavailable
from mcp_servers.retriever.fast_embedder import FastReranker
from mcp_servers.retriever.hits import Candidate, Hit, Retrieval, Sentence, hits_within, tables_of
from mcp_servers.retriever.index import Calibration, FusionMethod, Index
from mcp_servers.retriever.reading import DocumentFacts
from mcp_servers.retriever.retrieval import Retriever

log = logging.getLogger(__name__)

MAX_STORED = 1_000
"""Number of stored searches per domain."""
PRUNE_EVERY = 50
"""Number of searches between two deletions of old ones."""
REMOVED = "[removed]"
"""Shown as the name of a deleted document."""


@contextmanager
def index_errors() -> Iterator[None]:
    """Convert index errors into the error for clients. Raises `errors.IndexUnavailable`."""
    try:
        yield
    except IndexFault as exc:
        raise SearchUnavailable(str(exc)) from exc


@dataclass(frozen=True, slots=True)
class SearchOptions:
    """Options of an admin's search; None means the domain's setting, or no filter."""

    top_k: int | None = None
    threshold: float | None = None
    fusion: FusionMethod | None = None
    document: str | None = None
    file_type: str | None = None
    heading: str | None = None
    document_ids: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class Trace:
    """The candidates and the hits of a search. In a stored trace, names, headings and texts of the hits are empty."""

    took_ms: float
    dense_weight: float
    note: str | None
    hits: tuple[Hit, ...]
    candidates: tuple[Candidate, ...]
    threshold: float | None = None
    top_k: int | None = None
    fusion: str | None = None
    reranked: bool = False

    @classmethod
    def of(cls, retrieval: Retrieval) -> "Trace":
        """Return the trace of a finished search."""
        return cls(**{field.name: getattr(retrieval, field.name) for field in fields(cls)})


@dataclass(frozen=True, slots=True)
class StoredSearch:
    """A stored search with the texts that still exist; ``chunks`` are the chunks of its candidates, by their ids."""

    record: RetrievalRecord
    trace: Trace
    chunks: Mapping[str, Chunk]


MOST_HITS = 50
"""Maximum number of hits of one search."""
NO_DOCUMENTS = "There are no documents that can be searched."
REBUILDING = (
    "The index of these documents was lost and is being rebuilt. Missing information may be in documents that cannot "
    "be found yet; try again later."
)
"""The state of a lost index for a reader who may not know how many documents the domain has."""


class DomainSearch:
    """A `KnowledgeBase` over all domains, with one `Retriever` for each pair of fusion and reranker in use.

    ``models`` is the folder with the rerankers.
    """

    def __init__(
        self,
        database: Database,
        index: Index,
        embedder: EmbeddingState,
        directory: Directory,
        traces: "SearchTraces",
        lost: LostDocuments,
        models: Path,
    ) -> None:
        self._db = database
        self.views = DocumentViews(database)
        """The views of all readers. Other parts share this object and its cache."""
        self.index = index
        self._embedder = embedder
        self._directory = directory
        self._traces = traces
        self._lost = lost
        self._models = models
        self.outcomes = Outcomes()
        """Recent results of searches and of health probes of the index."""
        self._retrievers: dict[tuple[FusionMethod, str | None], Retriever] = {}

    async def search(
        self,
        collection: str,
        query: str,
        top_k: int,
        threshold: float = 0.0,
        document_ids: Sequence[str] | None = None,
        document: str | None = None,
        *,
        file_type: str | None = None,
        heading: str | None = None,
    ) -> Retrieval:
        """Search like `Retriever.search`, with the same errors."""
        ids = None if document_ids is None else tuple(document_ids)
        options = SearchOptions(document_ids=ids, document=document, file_type=file_type, heading=heading)
        return await self.search_with(options, collection, query, top_k, threshold)

    async def search_with(
        self, options: SearchOptions, collection: str, query: str, top_k: int, threshold: float
    ) -> Retrieval:
        """Search like `search`, with filters and optionally another fusion.

        Raises:
            NotFound: no domain has this collection.
        """
        settings = await self._directory.settings(domain_of(collection))
        retriever = self._retriever(options.fusion or settings.retrieval_fusion, settings.reranker)
        domain_id = domain_of(collection)
        losses = self._lost.losses(domain_id)  # before the search: `look_into` compares it with the number afterwards
        try:
            rebuilding = await self._lost.before_search(domain_id)
            retrieval = await retriever.search(
                collection,
                query,
                _search_size(settings, top_k),
                threshold,
                options.document_ids,
                options.document,
                file_type=options.file_type,
                heading=options.heading,
            )
            retrieval = await self._newest_first(retrieval, settings, top_k)
        except IndexFault as exc:
            self.note_fault(exc)
            raise
        self.outcomes.note_success(time.time())
        if settings.retrieval_tokens is not None:
            retrieval = retrieval.with_hits(hits_within(retrieval.hits, settings.retrieval_tokens))
        await self._traces.keep(retrieval)
        # No hits may also mean that the index has just lost the documents.
        if rebuilding is None and not retrieval.hits:
            rebuilding = await self._lost.look_into(domain_id, losses)
        if rebuilding is not None:
            return replace(retrieval, incomplete=str(rebuilding) if options.document_ids is None else REBUILDING)
        nothing_visible = options.document_ids == () or not (await self._directory.facts(domain_id)).count
        if not retrieval.hits and nothing_visible:
            return replace(retrieval, incomplete=NO_DOCUMENTS)
        return retrieval

    async def visible(self, bound: Json) -> tuple[str, ...] | None:
        """Return the documents that a tool call may see: those of the conversation that its reader may see now.

        ``bound`` has the members of the call's `Binding`. None means all documents of the domain.
        """
        domain_id = domain_of(str(bound.get("collection")))
        view = await self.views.of_reader(DocumentReader.of_call(dict(bound)), domain_id)
        return view.within(bound.get("documents"))

    async def probe(
        self,
        settings: DomainSettings,
        domain_id: str,
        query: str,
        *,
        collection: str = "",
        document_ids: Sequence[str] | None = None,
    ) -> Retrieval:
        """Search with the given settings instead of the domain's, and store nothing of the search.

        ``collection`` is another generation of the domain's collection. ``document_ids`` are the visible documents.

        Raises:
            IndexFault: the index failed.
        """
        retriever = self._retriever(settings.retrieval_fusion, settings.reranker)
        rebuilding = await self._lost.before_search(domain_id)
        retrieval = await retriever.search(
            collection or collection_of(domain_id),
            query,
            _search_size(settings, settings.retrieval_top_k),
            settings.retrieval_threshold,
            document_ids,
        )
        retrieval = await self._newest_first(retrieval, settings, settings.retrieval_top_k)
        if settings.retrieval_tokens is not None:
            retrieval = retrieval.with_hits(hits_within(retrieval.hits, settings.retrieval_tokens))
        return retrieval if rebuilding is None else replace(retrieval, incomplete=str(rebuilding))

    async def _newest_first(self, retrieval: Retrieval, settings: DomainSettings, top_k: int) -> Retrieval:
        """Return a search with superseded versions last and at most ``top_k`` hits, if the domain wants that."""
        if not settings.retrieval_prefer_newer:
            return retrieval
        ids = {DocumentId(hit.document_id) for hit in retrieval.hits}

        def read(conn: Connection) -> dict[str, VersionFacts]:
            records = [documents.get(conn, document_id) for document_id in sorted(ids)]
            return {
                record.id: VersionFacts(record.name, record.date, record.created_at)
                for record in records
                if record is not None
            }

        hits = newest_first(retrieval.hits, await self._db.read(read))
        return replace(retrieval.with_hits(hits[:top_k]), top_k=top_k)

    def note_fault(self, fault: IndexFault) -> None:
        """Record that the index did not answer. Damage to one collection does not count as a failure of the index."""
        if isinstance(fault, IndexUnavailable) and not isinstance(fault, IndexDamaged):
            self.outcomes.note_failure(time.time(), SearchUnavailable.code, str(fault))

    async def documents(self, collection: str, document_ids: Sequence[str] | None = None) -> list[DocumentFacts]:
        """List the documents as `Library.documents` does, without documents that are still being read."""
        domain_id = domain_of(collection)
        records = await self._db.read(lambda conn: documents.list_of(conn, domain_id, DocumentStatus.INDEXED))
        visible = None if document_ids is None else frozenset(document_ids)
        facts = [_facts(record) for record in records if visible is None or record.id in visible]
        return sorted(facts, key=lambda document: (document.name.casefold(), document.document_id))

    async def chunks(self, collection: str, document_id: str, offset: int = 0, limit: int = 100) -> list[Chunk]:
        """Return chunks as `Library.chunks` does."""
        return await self.index.chunks(collection, document_id, offset, limit)

    async def calibrate(self, collection: str, *, exactly: bool = False) -> Calibration | None:
        """Measure the value of the dense leg in advance, so that the first search need not do so.

        With ``exactly``, also measure a collection again that has changed since, however little.
        """
        return await self._retriever("dbsf", None).calibrate(collection, exactly=exactly)

    def _retriever(self, fusion: FusionMethod, reranker: str | None) -> Retriever:
        if (fusion, reranker) not in self._retrievers:
            model = None if reranker is None else FastReranker(reranker, self._models)
            self._retrievers[fusion, reranker] = Retriever(
                self.index, self._embedder, fusion=fusion, reranker=model, others=self._embedder.find
            )
        return self._retrievers[fusion, reranker]


def _search_size(settings: DomainSettings, top_k: int) -> int:
    """Return how many hits to ask for: more where older versions will be moved behind newer ones."""
    return max(top_k, min(2 * top_k, MOST_HITS)) if settings.retrieval_prefer_newer else top_k


def _facts(record: DocumentRecord) -> DocumentFacts:
    progress = record.progress
    return DocumentFacts(
        document_id=record.id,
        name=record.name,
        passages=record.chunk_count or 0,
        date=record.date,
        languages=progress.languages or (),
        pages=record.page_count,
        outline=progress.outline or (),
        document_date=record.own_date or progress.date,
        review_by=record.review_by,
        source_uri=record.public_uri,
    )


class SearchTraces:
    """The stored searches of all domains."""

    def __init__(
        self, database: Database, index: Index, *, limit: int = MAX_STORED, prune_every: int = PRUNE_EVERY
    ) -> None:
        self._db = database
        self._index = index
        self._limit = limit
        self._prune_every = prune_every
        self._count = 0

    async def keep(self, retrieval: Retrieval) -> None:
        """Store a search. A failure to store is logged and does not fail the search."""
        domain_id = domain_of(retrieval.collection)
        trace = replace(Trace.of(retrieval), hits=tuple(map(_without_text, retrieval.hits)))
        row = RetrievalRecord(
            id=retrieval.retrieval_id,
            domain_id=domain_id,
            query=retrieval.query,
            mode=retrieval.mode,
            trace=to_json(trace),
            created_at=now(),
        )
        self._count += 1
        prune = self._count % self._prune_every == 0

        def write(conn: Connection) -> None:
            retrievals.put(conn, row)
            if prune:
                retrievals.prune(conn, domain_id, self._limit)

        try:
            await self._db.write(write)
        except StorageError as exc:
            log.warning("a search is not kept: %s", exc)

    async def list_of(
        self, domain_id: str, limit: int, conversation_id: ConversationId | None = None
    ) -> list[RetrievalRecord]:
        """Return the domain's last searches (or those of one conversation), newest first."""
        return await self._db.read(lambda conn: retrievals.newest(conn, domain_id, limit, conversation_id))

    async def get(self, domain_id: str, retrieval_id: str, view: DocumentView) -> StoredSearch:
        """Return a search with the texts that still exist.

        A deleted passage has no sentences; the name of a deleted document is `REMOVED`. A restricted view leaves out
        the hits of documents that it does not show, and candidates that are not known to be of a visible document.

        Raises:
            NotFound: the domain has no such search, or no longer has it.
        """
        row = await self._db.read(lambda conn: retrievals.get(conn, retrieval_id))
        if row is None or row.domain_id != domain_id:
            raise NotFound("retrieval", retrieval_id)
        trace = from_json(Trace, row.trace)
        listed = await self._db.read(lambda conn: documents.list_of(conn, domain_id))
        names = {document.id: document.name for document in listed}
        chunks = await self._chunks(domain_id, trace)
        if view.visible is not None:
            trace, chunks = _visible_part(trace, chunks, view)
        return StoredSearch(
            row, replace(trace, hits=tuple(_with_text(hit, names, chunks) for hit in trace.hits)), chunks
        )

    async def _chunks(self, domain_id: str, trace: Trace) -> dict[str, Chunk]:
        """Return the chunks of a search that still exist."""
        ids = {candidate.chunk_id for candidate in trace.candidates}
        ids |= {sentence.chunk_id for hit in trace.hits for sentence in hit.sentences}
        try:
            return await self._index.get(collection_of(domain_id), sorted(ids))
        except IndexFault as exc:  # show the scores without the texts
            log.warning("texts of a kept search: %s", exc)
            return {}


def _visible_part(trace: Trace, chunks: Mapping[str, Chunk], view: DocumentView) -> tuple[Trace, dict[str, Chunk]]:
    """Return a trace and its chunks without documents outside of the view. Hits are numbered again."""
    shown = {ident: chunk for ident, chunk in chunks.items() if view.shows(chunk.document_id)}
    visible = [number for number, hit in enumerate(trace.hits, 1) if view.shows(hit.document_id)]
    numbers = {old: new for new, old in enumerate(visible, 1)}
    candidates = tuple(
        replace(candidate, hit=None if candidate.hit is None else numbers.get(candidate.hit))
        for candidate in trace.candidates
        if candidate.chunk_id in shown
    )
    return replace(trace, hits=tuple(trace.hits[old - 1] for old in visible), candidates=candidates), shown


def _without_text(hit: Hit) -> Hit:
    sentences = tuple(replace(sentence, text="") for sentence in hit.sentences)
    return replace(hit, document_name="", heading_path=(), page=None, cells=None, sentences=sentences, tables=())


def _with_text(hit: Hit, names: Mapping[DocumentId, str], chunks: Mapping[str, Chunk]) -> Hit:
    """Return a stored hit with its name, position and texts, as far as they still exist."""
    name = names.get(DocumentId(hit.document_id), REMOVED)
    sentences = tuple(
        _sentence(sentence, chunks[sentence.chunk_id]) for sentence in hit.sentences if sentence.chunk_id in chunks
    )
    if not sentences:
        return replace(hit, document_name=name, sentences=())
    place = chunks[sentences[0].chunk_id]  # heading, page and cells are the same for all chunks of a hit
    return replace(
        hit,
        document_name=name,
        heading_path=place.heading_path,
        page=place.page,
        cells=place.cells,
        sentences=sentences,
        tables=tables_of(sentences, chunks),
    )


def _sentence(sentence: Sentence, chunk: Chunk) -> Sentence:
    return replace(sentence, text=chunk.text[sentence.start : sentence.end])


async def missing_chunks(index: Index, database: Database, domain_id: str, chunk_ids: set[str]) -> set[str]:
    """Return the given chunks that can no longer be cited.

    If the index does not answer, the records decide: chunk ids follow from a document's id, bytes and chunk count. A
    chunk unknown to the records is then missing. Passages of attachments live as long as their conversation.
    """
    chunk_ids = {ident for ident in chunk_ids if not is_attachment(ident)}
    if not chunk_ids:
        return set()
    try:
        return chunk_ids - await index.existing(collection_of(domain_id), chunk_ids)
    except IndexFault as exc:
        log.warning("the records say which passages still exist: %s", exc)
    recorded = await database.read(lambda conn: documents.list_of(conn, domain_id, DocumentStatus.INDEXED))
    return await anyio.to_thread.run_sync(_unrecorded_chunks, chunk_ids, recorded)


def _unrecorded_chunks(chunk_ids: set[str], recorded: Sequence[DocumentRecord]) -> set[str]:
    """Return the ids that belong to no recorded document. Takes some microseconds for each chunk of the domain."""
    rest = set(chunk_ids)
    for document in recorded:
        for ordinal in range(document.chunk_count or 0):
            rest.discard(chunk_id(f"{document.id}\0{document.sha256}", ordinal))  # same ids as in `child`
        if not rest:
            break
    return rest
