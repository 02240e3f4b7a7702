"""REST routes of documents: upload, states, deletion, and the search to try settings with.

Defines request and answer models. Knows no file format.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Literal

from pydantic import Field
from starlette.requests import Request

from agentic_rag.access.document_views import DocumentView
from agentic_rag.access.users import User
from agentic_rag.base.errors import (
    BodyTooLarge,
    ChangeHeld,
    ChangeOnTrial,
    DocumentTooLarge,
    DocumentUnsupported,
    Forbidden,
    NotFound,
    NothingToRollBack,
    QuotaExceeded,
    ReindexRunning,
)
from agentic_rag.base.forms import Form, IsoDate
from agentic_rag.base.ids import ConversationId, DocumentId
from agentic_rag.base.json_form import Absent
from agentic_rag.base.threads import DomainThreads
from agentic_rag.conversations.conversations import Conversations
from agentic_rag.directory.document_labels import MAX_LABELS, Label, LabelRules, Labels, distinct
from agentic_rag.documents import stale_report
from agentic_rag.documents.documents import Documents
from agentic_rag.documents.files import clean_name
from agentic_rag.documents.search import SearchOptions
from agentic_rag.documents.stale_report import StaleReason, StaleReports
from agentic_rag.evaluation.gate import ChangeGate, DomainChangeForm
from agentic_rag.operations.deletion import Deletion
from agentic_rag.server.replies import Items, Part, Redacted, answer, answer_from
from agentic_rag.server.routes.originals import OriginalFile
from agentic_rag.server.routes.uploads import RefusedFile, receive_files
from agentic_rag.server.routing import route
from agentic_rag.store.context_lines import LineCounts
from agentic_rag.store.documents import DenseState, DocumentFields, DocumentRecord, DocumentStatus
from agentic_rag.store.retrievals import RetrievalRecord
from mcp_servers.retriever import chunking, hits
from mcp_servers.retriever.formats import SAVE_INSTEAD, all_formats
from mcp_servers.retriever.hits import Hit

SNIPPET = 300
"""Maximum characters shown of a candidate's chunk."""

DOMAIN = "/api/domains/{domain}"
DOCUMENTS = f"{DOMAIN}/documents"
DOCUMENT = f"{DOCUMENTS}/{{document}}"

UPLOAD_ERRORS = (BodyTooLarge, DocumentUnsupported, DocumentTooLarge, QuotaExceeded)
"""Why no file of an upload was taken."""

# Requests


class DocumentFilter(Form):
    """Filter for documents."""

    status: DocumentStatus | None = None


class Upload(Form):
    """With ``replace``, a document of the same name gets the new bytes. ``label`` adds labels to the documents."""

    replace: bool = False
    label: list[Label] = Field(default_factory=list, max_length=MAX_LABELS)


class DocumentChange(Form):
    """Changes to a document. An absent key stays unchanged.

    ``labels`` replaces the document's own labels. ``date`` (`YYYY-MM-DD`) replaces the date that was found in the file,
    and ``reviewBy`` is the day until which the document should be reviewed; ``null`` removes each.
    """

    labels: Labels = ()
    date: IsoDate | None = None
    review_by: IsoDate | None = None

    def fields(self) -> DocumentFields:
        """Return the fields of the record that change."""
        changes: DocumentFields = {}
        if "labels" in self.model_fields_set:
            changes["labels"] = self.labels
        if "date" in self.model_fields_set:
            changes["own_date"] = self.date
        if "review_by" in self.model_fields_set:
            changes["review_by"] = self.review_by
        return changes


class Filters(Form):
    """``document`` is an id, or all or part of a name; ``type`` a file ending; ``heading`` one of the heading path."""

    document: str | None = Field(None, max_length=300)
    type: str | None = Field(None, max_length=20)
    heading: str | None = Field(None, max_length=300)


class Search(Form):
    """A search. Omitted values come from the domain's settings."""

    query: str = Field(max_length=2_000)
    top_k: int | None = Field(None, ge=1, le=50)
    threshold: float | None = Field(None, ge=0, le=1)
    fusion: Literal["dbsf", "rrf"] | None = None
    filters: Filters = Filters()

    def options(self) -> SearchOptions:
        ending = self.filters.type
        return SearchOptions(
            top_k=self.top_k,
            threshold=self.threshold,
            fusion=self.fusion,
            document=self.filters.document or None,
            file_type=ending.lower().removeprefix(".") if ending else None,
            heading=self.filters.heading or None,
        )


class ChunkPage(Form):
    """A range of a document's chunks."""

    offset: int = Field(0, ge=0, le=1_000_000_000)
    limit: int = Field(50, ge=1, le=200)


class RetrievalPage(Form):
    """Filter for recent searches. Only admins see those outside their own conversations."""

    conversation_id: ConversationId | None = Field(None, max_length=200)
    limit: int = Field(50, ge=1, le=200)


class StaleQuery(Form):
    """``days``: how far back citations count. ``olderThan``: days after which one without a review date is old."""

    days: int = Field(90, ge=1, le=3_650)
    older_than: int = Field(730, ge=1, le=36_500)
    limit: int = Field(50, ge=1, le=1_000)


class Reindex(Form):
    """``rollback`` restores the previous collection."""

    rollback: bool = False


# Answers


@answer()
class Problem:
    """The reason for a refused or failed file."""

    code: str
    message: str | None


@answer()
class Progress:
    """Progress of the current stage, and facts about the document.

    ``chunks`` ``of`` all are stored. ``scanned`` of ``scans`` scanned pages have been read.
    """

    stage: DocumentStatus
    pages: Absent[int] = None
    scanned: Absent[int] = None
    scans: Absent[int] = None
    chunks: Absent[int] = None
    of: Absent[int] = None
    chunks_per_second: Absent[float] = None
    languages: Absent[Sequence[str]] = None
    notes: Absent[Sequence[str]] = None
    date: Absent[str] = None
    outline: Absent[Sequence[str]] = None


@answer()
class ContextLinesAnswer:
    """Passages of a document that have a context line, and that lack one after a request, ``of`` all its passages.

    ``reason`` says why passages lack a line. Only the domain's admins get it.
    """

    made: int
    failed: int
    of: int
    reason: Absent[str] = None


@answer()
class DocumentAnswer:
    """A file of a domain, and the state of its ingestion.

    ``date`` is the date given by an admin or a source, else the file's own, else the day it was added. ``sourceUri`` is
    the address of the document's item at its source. ``contextLines`` is present if the domain has the setting on and
    the document is indexed. Only the domain's admins get ``labels`` (the document's own) and
    ``folderLabels`` (those that folder rules add).
    """

    id: str
    domain_id: str
    name: str
    media_type: str
    size: int
    status: DocumentStatus
    dense_state: DenseState
    progress: Progress
    page_count: int | None
    chunk_count: int | None
    created_at: str
    date: str
    context_lines: Absent[ContextLinesAnswer] = None
    review_by: Absent[str] = None
    source_uri: Absent[str] = None
    labels: Absent[Sequence[str]] = None
    folder_labels: Absent[Sequence[str]] = None
    error: Absent[Problem] = None


@answer()
class FormatAnswer:
    """A file format by its ending.

    Either ``mediaType`` (the format is supported) or ``instead`` (an alternative) is present. ``package`` is the
    installed package that reads the format, if it is not built in.
    """

    ending: str
    media_type: Absent[str] = None
    instead: Absent[str] = None
    package: Absent[str] = None


@answer()
class RefusedUpload:
    """A refused file of an upload."""

    name: str
    error: Problem
    status: Literal["refused"] = "refused"


@answer()
class Rescan:
    """Number of documents that a scan of the folder added."""

    added: int


@answer()
class CandidateAnswer:
    """A chunk that a search scored, as far as its document still exists.

    Ranks count from 1. A leg has no rank for a chunk that only the other leg found. ``reranked`` is the reranker's
    score, if it read the chunk. ``hit`` is the number of the hit that contains the chunk; the model does not see chunks
    without a hit. Searches stored by an older version have no ranks.
    """

    chunk_id: str
    lexical: float | None
    dense: float | None
    fused: float
    relevance_score: float
    lexical_rank: Absent[int] = None
    dense_rank: Absent[int] = None
    fused_rank: Absent[int] = None
    above_threshold: Absent[bool] = None
    reranked: Absent[float] = None
    reranked_rank: Absent[int] = None
    hit: Absent[int] = None
    document_id: Absent[str] = None
    document_name: Absent[str] = None
    heading_path: Absent[Sequence[str]] = None
    ordinal: Absent[int] = None
    snippet: Absent[str] = None


@answer()
class RetrievalAnswer:
    """A search with the scores of each leg and its settings. ``reranked`` says that the reranker decided the order."""

    retrieval_id: str
    query: str
    mode: str
    took_ms: float
    dense_weight: float
    hits: Sequence[Hit]
    candidates: Sequence[CandidateAnswer]
    note: Absent[str] = None
    incomplete: Absent[str] = None
    threshold: Absent[float] = None
    top_k: Absent[int] = None
    fusion: Absent[str] = None
    reranked: bool = False
    unmatched: Sequence[str] = ()


@answer(kw_only=True)
class KeptRetrieval(RetrievalAnswer):
    """A search of a turn, with the remaining candidates."""

    created_at: str
    conversation_id: Absent[str] = None
    turn_id: Absent[str] = None


@answer()
class RetrievalLine:
    """One line of a list of stored searches. An admin's trial has no ``conversationId`` and ``turnId``."""

    retrieval_id: str
    query: str
    mode: str
    created_at: str
    conversation_id: Absent[str] = None
    turn_id: Absent[str] = None


@answer()
class ChunkAnswer:
    """An indexed piece of a document. ``sentences`` are offsets in its text."""

    chunk_id: str
    ordinal: int
    heading_path: Sequence[str]
    page: int | None
    cells: str | None
    text: str
    start: int
    end: int
    sentences: Sequence[tuple[int, int]]
    scanned: Absent[bool] = None
    scanned_by: Absent[str] = None


@answer()
class CitedChunk:
    """A chunk with its document, and the ids of its neighbours."""

    document_id: DocumentId
    document_name: str
    chunk: ChunkAnswer
    before: str | None
    after: str | None


@answer()
class StaleDocumentAnswer:
    """A document that needs a review, and how much answers lean on it.

    ``reason``: ``review`` (the day of its review has passed), ``superseded`` (there is a newer version, ``newerId``) or
    ``old``. ``citations`` and ``answers`` count the citations of the document and the answers that cite it.
    """

    document_id: str
    document_name: str
    date: str
    reason: StaleReason
    citations: int
    answers: int
    review_by: Absent[str] = None
    last_cited: Absent[str] = None
    newer_id: Absent[str] = None
    newer_name: Absent[str] = None


@answer()
class RebuildAnswer:
    """Progress of rebuilding a lost index, in documents."""

    done: int
    of: int


@answer()
class Collection:
    """State of a domain's collection. ``rebuilding`` is present while a lost index is rebuilt."""

    domain_id: str
    state: str
    updated_at: str
    reason: Absent[str] = None
    rebuilding: Absent[RebuildAnswer] = None


class DocumentRoutes:
    """Documents of a domain."""

    def __init__(self, documents: Documents, deletion: Deletion, thread: DomainThreads, gate: ChangeGate) -> None:
        """Create the routes. ``thread`` builds long lists."""
        self._gate = gate
        self._documents = documents
        self._deletion = deletion
        self._thread = thread

    @route("POST", DOCUMENTS, status=202, takes="multipart/form-data", errors=UPLOAD_ERRORS)
    async def upload(
        self, request: Request, domain: str, query: Upload
    ) -> Items[DocumentAnswer | Redacted[RefusedUpload]]:
        """Upload files. Each file is accepted or refused separately."""
        receive = partial(self._documents.receive, domain, replace=query.replace, labels=query.label)
        received = await receive_files(request, receive, self._documents.max_bytes)
        rules = await self._documents.label_rules(domain)
        return Items([_show_upload(domain, item, rules) for item in received])

    @route("GET", "/api/document-formats", allow="user")
    async def formats(self) -> Items[FormatAnswer]:
        """List the supported file formats, then those that must be converted first."""
        read = [
            FormatAnswer(ending, media_type=supported.media_type, package=supported.extension or None)
            for ending, supported in sorted(all_formats().items())
        ]
        others = sorted(SAVE_INSTEAD.keys() - all_formats().keys())
        return Items([*read, *(FormatAnswer(ending, instead=SAVE_INSTEAD[ending]) for ending in others)])

    @route("GET", DOCUMENTS, allow="member", large=True)
    async def list_documents(
        self, user: User, domain: str, query: DocumentFilter, view: DocumentView
    ) -> Items[DocumentAnswer]:
        """List documents."""
        records = await self._documents.list_of(domain, view, query.status)
        rules = await self._documents.label_rules(domain) if user.administers(domain) else None
        lines = await self._documents.line_counts(domain)
        return Items(await self._thread.run(user.id, _show_all, records, rules, lines))

    @route("POST", f"{DOCUMENTS}/search", audited=False)
    async def search(self, domain: str, body: Search, view: DocumentView) -> Redacted[RetrievalAnswer]:
        """Try a search, with the scores of each leg."""
        retrieval = await self._documents.search(domain, body.query, body.options(), view)
        chunks = await self._documents.candidate_chunks(domain, retrieval, view)
        candidates = [_candidate(candidate, chunks) for candidate in retrieval.candidates]
        return Redacted(
            domain,
            answer_from(RetrievalAnswer, retrieval, took_ms=round(retrieval.took_ms, 3), candidates=candidates),
        )

    @route("POST", f"{DOCUMENTS}/rescan", status=202)
    async def rescan(self, domain: str) -> Rescan:
        """Scan the domain's documents folder."""
        return Rescan(await self._documents.rescan(domain))

    @route("GET", DOCUMENT, allow="member")
    async def get(self, user: User, domain: str, document: DocumentId, view: DocumentView) -> DocumentAnswer:
        """Show a document."""
        rules = await self._documents.label_rules(domain) if user.administers(domain) else None
        record = await self._documents.get(domain, document, view)
        return _document(record, rules, await self._documents.line_counts(domain))

    @route("PATCH", DOCUMENT)
    async def change(self, domain: str, document: DocumentId, body: DocumentChange) -> DocumentAnswer:
        """Change a document's labels and dates. They count from the next request and the next tool call."""
        changed = await self._documents.change(domain, document, body.fields())
        return _document(changed, await self._documents.label_rules(domain))

    @route("DELETE", DOCUMENT, errors=[ChangeHeld, ChangeOnTrial])
    async def delete(self, domain: str, document: DocumentId) -> None:
        """Delete a document with its chunks and index entries."""
        # The domain's gate may hold this change, because answers of its cases can depend on the document.
        await self._gate.guard(domain, DomainChangeForm(removes=(document,)))
        await self._deletion.document(domain, document)

    @route("GET", f"{DOCUMENT}/file", allow="member")
    async def get_file(self, request: Request, domain: str, document: DocumentId, view: DocumentView) -> OriginalFile:
        """Send the original file, or the part in ``Range``. Browsers download it and run nothing in it."""
        return OriginalFile(await self._documents.original(domain, document, view), request.headers.get("range"))

    @route("POST", f"{DOCUMENT}/retry", status=202)
    async def retry(self, domain: str, document: DocumentId) -> DocumentAnswer:
        """Ingest a failed document again."""
        rules = await self._documents.label_rules(domain)
        return _document(await self._documents.retry(domain, document), rules)

    @route("GET", f"{DOCUMENT}/chunks", allow="member")
    async def list_chunks(
        self, domain: str, document: DocumentId, query: ChunkPage, view: DocumentView
    ) -> Redacted[Part[ChunkAnswer]]:
        """List the indexed pieces of a document."""
        # One more than shown tells whether there are others.
        chunks = await self._documents.chunks(domain, document, query.offset, query.limit + 1, view)
        shown = [_chunk(chunk) for chunk in chunks[: query.limit]]
        return Redacted(domain, Part(shown, len(chunks) > query.limit))


class CollectionRoutes:
    """A domain's whole collection: stored searches, stale documents, and rebuilding the index."""

    def __init__(self, documents: Documents, conversations: Conversations, reports: StaleReports) -> None:
        self._reports = reports
        self._documents = documents
        self._conversations = conversations

    @route("GET", f"{DOMAIN}/chunks/{{chunk}}", allow="member")
    async def get_chunk(self, domain: str, chunk: str, view: DocumentView) -> Redacted[CitedChunk]:
        """Show the passage that a citation names, with its neighbours."""
        cited, near = await self._documents.chunk(domain, chunk, view)
        places = {neighbour.ordinal - cited.ordinal: neighbour.chunk_id for neighbour in near}
        shown = CitedChunk(
            DocumentId(cited.document_id), cited.document_name, _chunk(cited), places.get(-1), places.get(1)
        )
        return Redacted(domain, shown)

    @route("GET", f"{DOMAIN}/retrievals", allow="member")
    async def list_retrievals(self, user: User, domain: str, query: RetrievalPage) -> Redacted[Part[RetrievalLine]]:
        """List recent searches, newest first: of one of the caller's conversations, or for admins of all."""
        if not user.administers(domain):
            if query.conversation_id is None:
                raise Forbidden("Name a conversation of yours in conversationId; all searches are for admins.")
            await self._conversations.get(user, query.conversation_id)
        rows = await self._documents.retrievals(domain, query.limit + 1, query.conversation_id)
        return Redacted(domain, Part([_line(row) for row in rows[: query.limit]], len(rows) > query.limit))

    @route("GET", f"{DOMAIN}/retrievals/{{retrieval}}", allow="member")
    async def get_retrieval(
        self, user: User, domain: str, retrieval: str, view: DocumentView
    ) -> Redacted[KeptRetrieval]:
        """Show the results of a turn's search, for the user who asked and for admins."""
        stored = await self._documents.retrieval(domain, retrieval, view)
        if not user.administers(domain) and not await self._conversations.owns(user, stored.record.conversation_id):
            raise NotFound("retrieval", retrieval, hidden=True)
        return Redacted(
            domain,
            answer_from(
                KeptRetrieval,
                stored.trace,
                retrieval_id=stored.record.id,
                query=stored.record.query,
                mode=stored.record.mode,
                created_at=stored.record.created_at,
                conversation_id=stored.record.conversation_id or None,
                turn_id=stored.record.turn_id or None,
                took_ms=round(stored.trace.took_ms, 3),
                candidates=[_candidate(candidate, stored.chunks) for candidate in stored.trace.candidates],
            ),
        )

    @route("GET", f"{DOMAIN}/stale-documents")
    async def list_stale(self, domain: str, query: StaleQuery, view: DocumentView) -> Part[StaleDocumentAnswer]:
        """List documents that need a review, those that answers cite most often first."""
        stale = await self._reports.of(domain, view, days=query.days, older_than=query.older_than)
        return Part([_stale(entry) for entry in stale[: query.limit]], len(stale) > query.limit)

    @route("POST", f"{DOMAIN}/reindex", status=202, errors=[ReindexRunning, NothingToRollBack])
    async def reindex(self, domain: str, body: Reindex) -> Collection:
        """Start rebuilding the collection, or restore the previous one."""
        return answer_from(Collection, await self._documents.reindex(domain, rollback=body.rollback))

    @route("GET", f"{DOMAIN}/reindex")
    async def get_reindex(self, domain: str) -> Collection:
        """Show the state of the collection."""
        state = await self._documents.reindex_state(domain)
        progress = await self._documents.rebuilding(domain)
        return answer_from(Collection, state, rebuilding=answer_from(RebuildAnswer, progress) if progress else None)


def _show_all(
    records: Sequence[DocumentRecord], rules: LabelRules | None, lines: Mapping[DocumentId, LineCounts]
) -> list[DocumentAnswer]:
    return [_document(record, rules, lines) for record in records]


NO_LINES: Mapping[DocumentId, LineCounts] = {}


def _document(
    record: DocumentRecord, rules: LabelRules | None, lines: Mapping[DocumentId, LineCounts] = NO_LINES
) -> DocumentAnswer:
    """Return a document for a client. ``rules``: the domain's rules for labels, or None for readers without admin."""
    counts = lines.get(record.id)
    error = None if record.error_code is None else Problem(record.error_code, record.error_message)
    return answer_from(
        DocumentAnswer,
        record,
        error=error,
        progress=answer_from(Progress, record.progress),
        context_lines=None if counts is None else _lines(counts, shows_reason=rules is not None),
        labels=None if rules is None else record.labels,
        folder_labels=None if rules is None else distinct(rules.labels_of(record.path)),
    )


def _lines(counts: LineCounts, *, shows_reason: bool) -> ContextLinesAnswer:
    return answer_from(ContextLinesAnswer, counts, reason=counts.reason if counts.reason and shows_reason else None)


def _show_upload(
    domain: str, item: DocumentRecord | RefusedFile, rules: LabelRules
) -> DocumentAnswer | Redacted[RefusedUpload]:
    """Return the answer for one file of an upload."""
    if isinstance(item, RefusedFile):
        name = clean_name(item.name) if item.name else ""
        return Redacted(domain, RefusedUpload(name, Problem(item.error.code, str(item.error))))
    return _document(item, rules)


def _stale(stale: stale_report.StaleDocument) -> StaleDocumentAnswer:
    newer = stale.newer
    return StaleDocumentAnswer(
        document_id=stale.document.id,
        document_name=stale.document.name,
        date=stale.document.date,
        reason=stale.reason,
        citations=stale.citations,
        answers=stale.answers,
        review_by=stale.document.review_by,
        last_cited=stale.last_cited,
        newer_id=None if newer is None else newer.id,
        newer_name=None if newer is None else newer.name,
    )


def _chunk(chunk: chunking.Chunk) -> ChunkAnswer:
    return answer_from(ChunkAnswer, chunk, scanned=chunk.scanned or None, scanned_by=chunk.scanned_by or None)


def _line(record: RetrievalRecord) -> RetrievalLine:
    return answer_from(
        RetrievalLine,
        record,
        retrieval_id=record.id,
        conversation_id=record.conversation_id or None,
        turn_id=record.turn_id or None,
    )


def _candidate(candidate: hits.Candidate, chunks: Mapping[str, chunking.Chunk]) -> CandidateAnswer:
    chunk = chunks.get(candidate.chunk_id)
    if chunk is None:
        return answer_from(CandidateAnswer, candidate)
    return answer_from(
        CandidateAnswer,
        candidate,
        document_id=chunk.document_id,
        document_name=chunk.document_name,
        heading_path=chunk.heading_path,
        ordinal=chunk.ordinal,
        snippet=chunk.text[:SNIPPET],
    )
