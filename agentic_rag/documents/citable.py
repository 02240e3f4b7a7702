"""Which passages may still be cited: those whose chunks there are.

Owns that question. Knows no citation and no transcript.
"""

import logging
from collections.abc import Sequence

import anyio.to_thread

from agentic_rag.directory.collection import collection_of
from agentic_rag.store import documents
from agentic_rag.store.database import Database
from agentic_rag.store.documents import DocumentRecord
from mcp_servers.retriever.chunking import chunk_id
from mcp_servers.retriever.errors import IndexFault
from mcp_servers.retriever.index import Index

log = logging.getLogger(__name__)


async def missing_chunks(index: Index, database: Database, domain_id: str, chunk_ids: set[str]) -> set[str]:
    """Return those of the chunks that can no longer be cited.

    An index that does not answer is replaced by the records: ids follow from a document's id, bytes and chunk count.
    What neither knows is missing.
    """
    try:
        return chunk_ids - await index.existing(collection_of(domain_id), chunk_ids)
    except IndexFault as exc:
        log.warning("which passages still are is told by the records: %s", exc)
    recorded = await database.read(lambda conn: documents.list_of(conn, domain_id, "indexed"))
    return await anyio.to_thread.run_sync(_unrecorded, chunk_ids, recorded)


def _unrecorded(chunk_ids: set[str], recorded: Sequence[DocumentRecord]) -> set[str]:
    """Return the ids that are of no recorded document. Some microseconds for each chunk of the domain."""
    left = set(chunk_ids)
    for document in recorded:
        for ordinal in range(document.chunk_count or 0):
            left.discard(chunk_id(f"{document.id}\0{document.sha256}", ordinal))  # as `child` makes them
        if not left:
            break
    return left
