"""The retrieval tier: search for the question of each case and judge the passages. No model is called.

A case takes milliseconds. Knows no run and no record of one.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from agentic_rag.base.ids import DocumentId
from agentic_rag.base.json_form import Json
from agentic_rag.directory.cases import Expectations
from agentic_rag.directory.collection import collection_of
from agentic_rag.directory.settings import DomainSettings
from agentic_rag.evaluation.verdicts import (
    CaseOutcome,
    CaseVerdict,
    KnownDocuments,
    SeenPassage,
    is_expected,
    judge_search,
)
from agentic_rag.store import documents
from agentic_rag.store.database import Database
from agentic_rag.store.documents import DocumentRecord, DocumentStatus
from mcp_servers.retriever.chunking import Chunk
from mcp_servers.retriever.errors import IndexFault
from mcp_servers.retriever.hits import Hit, Retrieval

MAX_SHOWN = 5
"""Passages of a search that a result shows."""
SNIPPET = 240


class Prober(Protocol):
    """Searches a domain with given settings and stores nothing."""

    async def probe(
        self,
        settings: DomainSettings,
        domain_id: str,
        query: str,
        *,
        collection: str = "",
        document_ids: Sequence[str] | None = None,
    ) -> Retrieval:
        """Return the passages found.

        Raises:
            IndexFault: the index failed.
        """
        ...


class ChunkSource(Protocol):
    """Returns chunks by their ids."""

    async def get(self, collection: str, chunk_ids: Sequence[str]) -> dict[str, Chunk]:
        """Return the chunks that exist."""
        ...


@dataclass(frozen=True, slots=True)
class RunSubject:
    """The subject of a run: the unchanged domain, or the domain as a change would make it.

    ``settings`` are the domain's in stored form. ``components`` are changed prompt files by name, None if deleted.
    ``role`` and ``role_files`` are a drafted role: (kind, id, text) of each file. ``without`` are left-out documents.
    ``collection`` is another generation of the index, empty for the live one.
    """

    settings: Json
    components: Mapping[str, str | None] = field(default_factory=dict)
    role: str = ""
    role_files: tuple[tuple[Any, ...], ...] = ()
    without: tuple[str, ...] = ()
    collection: str = ""


@dataclass(frozen=True, slots=True)
class DomainView:
    """The documents of a domain as a run sees them. ``visible`` is None if all of them are."""

    known_documents: KnownDocuments
    visible: tuple[str, ...] | None


async def view_documents(database: Database, domain_id: str, without: Sequence[str]) -> DomainView:
    """Return the documents of a domain without some of them."""
    listed = await database.read(lambda conn: documents.list_of(conn, domain_id))
    left_out = frozenset(without)
    remaining = [document for document in listed if document.id not in left_out]
    ready = [document for document in remaining if document.status is DocumentStatus.INDEXED]
    # A failed document counts as gone, not as pending: it does not become ready by waiting.
    pending = [
        document for document in remaining if document.status not in (DocumentStatus.INDEXED, DocumentStatus.FAILED)
    ]
    known_documents = KnownDocuments.of(_names(ready), _names(pending))
    return DomainView(known_documents, tuple(document.id for document in ready) if left_out else None)


def _names(records: Sequence[DocumentRecord]) -> list[str]:
    return [name for record in records for name in (record.name, record.path)]


class RetrievalTier:
    """Judges searches. ``index`` supplies the candidate passages of a failed search."""

    def __init__(self, search: Prober, index: ChunkSource) -> None:
        self._search = search
        self._index = index

    async def judge(
        self,
        domain_id: str,
        settings: DomainSettings,
        subject: RunSubject,
        view: DomainView,
        questions: Sequence[str],
        expect: Expectations,
    ) -> tuple[CaseVerdict, Json]:
        """Return the verdict on the search for a case's last question, and the passages for people.

        A search that fails gives an unknown verdict.
        """
        absent = view.known_documents.missing(expect)
        if absent is not None:
            return absent, {}
        if not expect.cites:  # a search is judged only by what it has to cite
            return judge_search(expect, ()), {}
        try:
            retrieval = await self._search.probe(
                settings, domain_id, questions[-1], collection=subject.collection, document_ids=view.visible
            )
            if retrieval.incomplete is not None:
                return CaseVerdict(CaseOutcome.UNKNOWN, reason=retrieval.incomplete), {}
            passages = [seen_passage(hit) for hit in retrieval.hits]
            verdict = judge_search(expect, passages)
            below = ""
            if verdict.outcome is CaseOutcome.FAILED:
                below = await self._explain(expect, retrieval, subject.collection or collection_of(domain_id))
        except IndexFault as exc:
            return CaseVerdict(CaseOutcome.UNKNOWN, reason=f"the search failed: {exc}"), {}
        if below:
            verdict = CaseVerdict(verdict.outcome, verdict.checks, verdict.rank, below)
        shown: Json = {
            "passages": [passage_json(passage) for passage in passages[:MAX_SHOWN]],
            "tookMs": round(retrieval.took_ms, 1),
        }
        return verdict, {**shown, "note": retrieval.note} if retrieval.note else shown

    async def _explain(self, expect: Expectations, retrieval: Retrieval, collection: str) -> str:
        """Return the reason why the expected passage was not found, if it was among the candidates."""
        weighed = [candidate for candidate in retrieval.candidates if candidate.hit is None]
        chunks = await self._index.get(collection, [candidate.chunk_id for candidate in weighed])
        for candidate in weighed:
            chunk = chunks.get(candidate.chunk_id)
            if chunk is None or not any(is_expected(expected, _seen_chunk(chunk)) for expected in expect.cites):
                continue
            if candidate.above_threshold is False:
                return f"the right passage is below the threshold ({candidate.relevance_score:.2f})"
            return f"the right passage ranks {candidate.fused_rank}, behind those that were returned"
        return ""


def seen_passage(hit: Hit) -> SeenPassage:
    """Return a hit as a passage to judge."""
    text = " ".join(sentence.text for sentence in hit.sentences)
    return SeenPassage(hit.document_name, text, hit.heading_path, hit.page, hit.cells, hit.relevance_score)


def _seen_chunk(chunk: Chunk) -> SeenPassage:
    return SeenPassage(chunk.document_name, chunk.text, chunk.heading_path, chunk.page, chunk.cells)


def passage_json(passage: SeenPassage, snippet: int = SNIPPET) -> Json:
    """Return a passage for display, with its text truncated."""
    return {
        "document": passage.document,
        "section": passage.heading_path[-1] if passage.heading_path else None,
        "page": passage.page,
        "cells": passage.cells,
        "score": round(passage.score, 3),
        "text": passage.text[:snippet],
    }


def visible_ids(view: DomainView) -> tuple[DocumentId, ...] | None:
    """Return the documents that turns of a run may search, None for all."""
    return None if view.visible is None else tuple(DocumentId(document_id) for document_id in view.visible)
