"""``python -m agentic_rag.documents.child``: a file to chunks with their BM25 vectors, outside the server's process.

Owns what is made of a file that is read. Each is read in a capped child of this process (`fork_server`), which keeps
what is slow to load: readers and the Chinese dictionary. In a sandbox, where there is one, neither the file's folder
nor anything else of the data folder is there. Knows no database and no index.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TypedDict

import orjson

from agentic_rag.base.ids import DocumentId
from agentic_rag.directory.languages import languages_of
from agentic_rag.documents.fork_server import begin_answers, limit_cpu, receive_jobs, refuse, run_capped
from mcp_servers.retriever.chunking import Chunk, chunk_document, chunk_id, outline_of
from mcp_servers.retriever.document import Json, ParseLimits
from mcp_servers.retriever.errors import DocumentCode, DocumentError
from mcp_servers.retriever.formats import format_of
from mcp_servers.retriever.formats.scans import ScanPage, Scans, ScansWanted
from mcp_servers.retriever.index import UPSERT_BATCH, searchable_text
from mcp_servers.retriever.lexical import document_vectors
from mcp_servers.retriever.parsing import parse

CUTTING_FACTOR = 5
"""CPU time of the whole job, in limits of its parsing: a long Chinese text takes a minute to be weighed."""

WARM_TEXT = "中文"
"""Loads the dictionary, a quarter of a second and 50 MB, once for all files."""


@dataclass(frozen=True, slots=True)
class ScansOfJob:
    """Pages that OCR has read, each a `ScanPage` as JSON.

    ``wanted``: OCR can read others first. ``limit``: the most pages of one document that OCR reads.
    """

    pages: tuple[Json, ...] = ()
    wanted: bool = False
    limit: int | None = None

    def to_scans(self) -> Scans:
        """Return the pages by their numbers."""
        pages = map(ScanPage.from_json, self.pages)
        return Scans({page.page: page for page in pages}, self.wanted, self.limit)


NO_SCANS = ScansOfJob()


@dataclass(frozen=True, slots=True)
class Job:
    """A file to read. ``version`` (the hash of its bytes) is part of a chunk's id: another text is another chunk.

    ``path``: of the descriptor that came along.
    """

    path: str
    name: str
    document_id: DocumentId
    version: str
    limits: ParseLimits
    scans: ScansOfJob = NO_SCANS

    @classmethod
    def from_json(cls, line: bytes) -> "Job":
        """Return the job of a line, which is `orjson.dumps` of a job."""
        job = orjson.loads(line)
        return cls(**{**job, "limits": ParseLimits(**job["limits"]), "scans": ScansOfJob(**job["scans"])})


class Frame(TypedDict, total=False):
    """What is answered of a file: a summary, then batches of packed chunks; or why there are none; then its end."""

    pages: int | None
    notes: Sequence[str]
    languages: Sequence[str]
    date: str | None
    outline: Sequence[str]
    chunks: int
    wanted: Sequence[int]
    batch: list[tuple[Json, list[int], list[float]]]
    code: DocumentCode
    message: str
    end: int


def frames_of(job: Job) -> Iterator[Frame]:
    """Yield what the server gets of a file: a summary, then its chunks in batches; or the pages that OCR is to read.

    Raises:
        DocumentError: the file cannot be read.
    """
    try:
        parsed = parse(Path(job.path), job.name, job.limits, job.scans.to_scans())
    except ScansWanted as wanted:
        yield {"wanted": wanted.pages, "pages": wanted.count}
        return
    limit_cpu(job.limits.seconds * CUTTING_FACTOR)
    chunks = [
        replace(chunk, chunk_id=chunk_id(f"{job.document_id}\0{job.version}", chunk.ordinal))
        for chunk in chunk_document(parsed, job.document_id, job.name)
    ]
    languages = languages_of(parsed.text)
    yield {
        "pages": parsed.pages,
        "notes": parsed.notes,
        "languages": languages,
        "date": parsed.date,
        "outline": outline_of(chunks),
        "chunks": len(chunks),
    }
    for at in range(0, len(chunks), UPSERT_BATCH):
        yield {"batch": [_pack(chunk) for chunk in chunks[at : at + UPSERT_BATCH]]}


def _pack(chunk: Chunk) -> tuple[Json, list[int], list[float]]:
    (sparse,) = document_vectors([searchable_text(chunk)])
    return chunk.to_json(), sparse.indices, sparse.values


def main() -> None:
    """Serve jobs until stdin ends."""
    out = begin_answers()
    document_vectors([WARM_TEXT])
    for line, path in receive_jobs():
        job = replace(Job.from_json(line), path=path)
        try:
            format_of(job.name).load()  # imported here, it is there for every later child
        except DocumentError as error:
            refuse(out, error)
            continue
        limits = job.limits
        run_capped(
            partial(frames_of, job),
            out,
            memory_bytes=limits.memory_bytes,
            seconds=limits.seconds,
            most_seconds=limits.seconds * CUTTING_FACTOR,
        )


if __name__ == "__main__":
    main()
