"""What all work on documents is done with.

Owns the value; each part says in its constructor what else it needs.
"""

from dataclasses import dataclass

from agentic_rag.base.threads import DomainThreads
from agentic_rag.base.workers import Workers
from agentic_rag.directory.directory import Directory
from agentic_rag.documents.scan_reading import OcrBudget
from agentic_rag.store.database import Database
from mcp_servers.retriever.index import Index


@dataclass(frozen=True, slots=True)
class DocumentServices:
    """Records of documents, records of domains, the index, threads for folders that block, and tasks that live on.

    ``max_bytes`` is what a file may have; ``ocr`` says how much of scans is read.
    """

    database: Database
    directory: Directory
    index: Index
    threads: DomainThreads
    workers: Workers
    max_bytes: int
    ocr: OcrBudget
