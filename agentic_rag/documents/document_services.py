"""Shared services of all work on documents.

Owns the value class; each component's constructor declares its other dependencies.
"""

from dataclasses import dataclass

from agentic_rag.base.threads import DomainThreads
from agentic_rag.base.workers import Workers
from agentic_rag.directory.directory import Directory
from agentic_rag.documents.model_scans import PageModel
from agentic_rag.documents.scan_reading import OcrBudget
from agentic_rag.store.database import Database
from mcp_servers.retriever.index import Index


@dataclass(frozen=True, slots=True)
class DocumentServices:
    """The database, the domain directory, the index, threads for folders that block, and background workers.

    ``max_bytes`` is the size limit of a file; ``ocr`` limits how much of scans is read; ``page_model`` reads
    the scans of domains that chose their model for it.
    """

    database: Database
    directory: Directory
    index: Index
    threads: DomainThreads
    workers: Workers
    max_bytes: int
    ocr: OcrBudget
    page_model: PageModel | None = None
