"""Why these passages: each search of a domain, kept with the scores of each leg.

Owns what is kept of a search and for how long. Knows no request.
"""

import logging
from dataclasses import asdict
from typing import Any

from sqlalchemy import Connection

from agentic_rag.domains.server_map import collection_of, domain_of
from agentic_rag.errors import NotFound, StorageFull
from agentic_rag.store import retrievals
from agentic_rag.store.clock import now
from agentic_rag.store.database import Database
from agentic_rag.store.tables import RetrievalRow
from mcp_servers.retriever.errors import IndexFault
from mcp_servers.retriever.index import Index
from mcp_servers.retriever.retrieval import Retrieval

log = logging.getLogger(__name__)

KEPT = 1_000
"""Searches kept of each domain."""
PRUNE_EVERY = 50
"""Searches between two looks at what is too old."""
SNIPPET = 300
"""Characters shown of a candidate's chunk."""


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
        trace = asdict(retrieval)
        row = RetrievalRow(
            id=retrieval.retrieval_id,
            domain_id=domain_id,
            query=retrieval.query,
            mode=retrieval.mode,
            trace=trace,
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
        except (StorageFull, TimeoutError) as exc:
            log.warning("a search is not kept: %s", exc)

    async def list_of(self, domain_id: str, limit: int) -> list[RetrievalRow]:
        """Return the domain's last searches, newest first."""
        return await self._db.read(lambda conn: retrievals.newest(conn, domain_id, limit))

    async def get(self, domain_id: str, retrieval_id: str) -> tuple[RetrievalRow, dict[str, dict[str, Any]]]:
        """Return a search, and of its candidates' chunks what there still is of them, by chunk id.

        Raises:
            NotFound: the domain has no such search (any more).
        """
        row = await self._db.read(lambda conn: retrievals.get(conn, retrieval_id))
        if row is None or row.domain_id != domain_id:
            raise NotFound("retrieval", retrieval_id)
        ids = [candidate["chunk_id"] for candidate in row.trace["candidates"]]
        try:
            chunks = await self._index.get(collection_of(domain_id), ids)
        except IndexFault as exc:  # the scores are worth showing without the texts
            log.warning("texts of a kept search: %s", exc)
            return row, {}
        return row, {
            ident: {
                "document_id": chunk.document_id,
                "document_name": chunk.document_name,
                "heading_path": list(chunk.heading_path),
                "ordinal": chunk.ordinal,
                "snippet": chunk.text[:SNIPPET],
            }
            for ident, chunk in chunks.items()
        }
