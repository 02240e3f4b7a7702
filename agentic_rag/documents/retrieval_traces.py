"""Why these passages: each search of a domain, kept with the scores of each leg.

Owns what is kept of a search and for how long: ids, places and scores, never a text, so that nothing of a deleted
document is left here. Knows no request.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from sqlalchemy import Connection

from agentic_rag.directory.collection import collection_of, domain_of
from agentic_rag.errors import NotFound, StorageError
from agentic_rag.store import documents, retrievals
from agentic_rag.store.clock import now
from agentic_rag.store.database import Database
from agentic_rag.store.retrievals import RetrievalRecord
from mcp_servers.retriever.chunking import Chunk
from mcp_servers.retriever.errors import IndexFault
from mcp_servers.retriever.index import Index
from mcp_servers.retriever.retrieval import Hit, Retrieval

log = logging.getLogger(__name__)

KEPT = 1_000
"""Searches kept of each domain."""
PRUNE_EVERY = 50
"""Searches between two looks at what is too old."""
SNIPPET = 300
"""Characters shown of a candidate's chunk."""
REMOVED = "[removed]"
"""Shown as the name of a document that is no more."""


class RetrievalTraces:
    """The stored searches of all domains. `keep` is what a `Retriever` calls at the end of each search."""

    def __init__(self, database: Database, index: Index, *, kept: int = KEPT, prune_every: int = PRUNE_EVERY) -> None:
        self._db = database
        self._index = index
        self._kept = kept
        self._prune_every = prune_every
        self._count = 0

    async def keep(self, retrieval: Retrieval) -> None:
        """Store a search. One that cannot be stored is answered all the same."""
        domain_id = domain_of(retrieval.collection)
        row = RetrievalRecord(
            id=retrieval.retrieval_id,
            domain_id=domain_id,
            query=retrieval.query,
            mode=retrieval.mode,
            trace=_trace(retrieval),
            created_at=now(),
        )
        self._count += 1
        prune = self._count % self._prune_every == 0

        def write(conn: Connection) -> None:
            retrievals.put(conn, row)
            if prune:
                retrievals.prune(conn, domain_id, self._kept)

        try:
            await self._db.write(write)
        except StorageError as exc:
            log.warning("a search is not kept: %s", exc)

    async def list_of(self, domain_id: str, limit: int) -> list[RetrievalRecord]:
        """Return the domain's last searches, newest first."""
        return await self._db.read(lambda conn: retrievals.newest(conn, domain_id, limit))

    async def get(self, domain_id: str, retrieval_id: str) -> tuple[RetrievalRecord, dict[str, dict[str, Any]]]:
        """Return a search with its hits as far as they are there, and what there is of its candidates, by chunk id.

        A passage that is gone has no sentences; the name of a document that is gone is `REMOVED`.

        Raises:
            NotFound: the domain has no such search (any more).
        """
        row = await self._db.read(lambda conn: retrievals.get(conn, retrieval_id))
        if row is None or row.domain_id != domain_id:
            raise NotFound("retrieval", retrieval_id)
        listed = await self._db.read(lambda conn: documents.list_of(conn, domain_id))
        names = {document.id: document.name for document in listed}
        chunks = await self._chunks(domain_id, row.trace)
        hits = [_shown(hit, names, chunks) for hit in row.trace["hits"]]
        shown = replace(row, trace=row.trace | {"hits": hits})
        return shown, {
            ident: {
                "document_id": chunk.document_id,
                "document_name": chunk.document_name,
                "heading_path": list(chunk.heading_path),
                "ordinal": chunk.ordinal,
                "snippet": chunk.text[:SNIPPET],
            }
            for ident, chunk in chunks.items()
        }

    async def _chunks(self, domain_id: str, trace: Mapping[str, Any]) -> dict[str, Chunk]:
        """Return those chunks of a search that there are."""
        found = {each["chunk_id"] for each in trace["candidates"]}
        found |= {sentence["chunk_id"] for hit in trace["hits"] for sentence in hit["sentences"]}
        try:
            return await self._index.get(collection_of(domain_id), sorted(found))
        except IndexFault as exc:  # the scores are worth showing without the texts
            log.warning("texts of a kept search: %s", exc)
            return {}


def _trace(retrieval: Retrieval) -> dict[str, Any]:
    """Return what is stored of a search."""
    return {
        "took_ms": retrieval.took_ms,
        "dense_weight": retrieval.dense_weight,
        "note": retrieval.note,
        "hits": [_place(hit) for hit in retrieval.hits],
        "candidates": [asdict(candidate) for candidate in retrieval.candidates],
    }


def _place(hit: Hit) -> dict[str, Any]:
    sentences = [{"chunk_id": each.chunk_id, "start": each.start, "end": each.end} for each in hit.sentences]
    return {"document_id": hit.document_id, "score": hit.score, "relevance": hit.relevance, "sentences": sentences}


def _shown(hit: Mapping[str, Any], names: Mapping[str, str], chunks: Mapping[str, Chunk]) -> dict[str, Any]:
    """Return a stored hit with the fields of a `Hit`, read from the chunks that there are."""
    left: Sequence[Mapping[str, Any]] = [each for each in hit["sentences"] if each["chunk_id"] in chunks]
    first = chunks[left[0]["chunk_id"]] if left else None  # heading, page and cells are the same for all of a hit
    return {
        "document_id": hit["document_id"],
        "document_name": names.get(hit["document_id"], REMOVED),
        "heading_path": first.heading_path if first else (),
        "page": first.page if first else None,
        "cells": first.cells if first else None,
        "score": hit["score"],
        "relevance": hit["relevance"],
        "sentences": [
            {
                "chunk_id": each["chunk_id"],
                "text": chunks[each["chunk_id"]].text[each["start"] : each["end"]],
                "start": each["start"],
                "end": each["end"],
            }
            for each in left
        ],
    }
