"""``python -m agentic_rag.documents.child``: turn a file into chunks and BM25 vectors, outside the server's process.

Owns the output for a file that is read. A capped child of this process (`fork_server`) reads each file. This process
keeps the parts that load slowly: readers and, after the first file with Chinese text, the Chinese dictionary. If a
sandbox exists, neither the file's folder nor anything else of the data folder is visible in it. Knows no database and
no index.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from mmap import mmap
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
from mcp_servers.retriever.lexical import document_vectors, has_ideographs
from mcp_servers.retriever.parsing import parse

CUTTING_FACTOR = 5
"""CPU time of the whole job, as a multiple of its parsing limit: a long Chinese text takes a minute to weigh."""

WARM_TEXT = "中文"
"""A text that loads the dictionary for all later files; loading takes a quarter of a second and 50 MB."""


@dataclass(frozen=True, slots=True)
class ScansOfJob:
    """Scanned pages that have been read already, each a `ScanPage` as JSON. The other members are those of `Scans`."""

    pages: tuple[Json, ...] = ()
    wanted: bool = False
    limit: int | None = None
    by_model: bool = False

    def to_scans(self) -> Scans:
        """Return the pages by their page numbers."""
        pages = map(ScanPage.from_json, self.pages)
        return Scans({page.page: page for page in pages}, self.wanted, self.limit, self.by_model)


NO_SCANS = ScansOfJob()


@dataclass(frozen=True, slots=True)
class Job:
    """A file to read.

    ``version`` (the hash of the file's bytes) is part of a chunk's id, so that a changed text gets new chunk ids.
    ``path``: the path of the file descriptor that was sent with the job.
    """

    path: str
    name: str
    document_id: DocumentId
    version: str
    limits: ParseLimits
    scans: ScansOfJob = NO_SCANS

    @classmethod
    def from_json(cls, line: bytes) -> "Job":
        """Parse a job from a line, which is `orjson.dumps` of a job."""
        job = orjson.loads(line)
        return cls(**{**job, "limits": ParseLimits(**job["limits"]), "scans": ScansOfJob(**job["scans"])})


class FileFrame(TypedDict, total=False):
    """One frame of the answer for a file.

    The first frame is a summary, followed by batches of packed chunks, or an error code with its message. The last
    frame is the end.
    """

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
    detail: str
    end: int


def frames_of(job: Job, ideographs: mmap) -> Iterator[FileFrame]:
    """Yield the frames for a file: a summary and then its chunks in batches, or the pages that OCR has to read first.

    Sets ``ideographs``, a byte of memory shared with the parent, if a chunk needs the Chinese dictionary.

    Raises:
        DocumentError: the file cannot be read.
    """
    try:
        parsed = parse(Path(job.path), job.name, job.limits, job.scans.to_scans())
    except ScansWanted as unread:
        yield {"wanted": unread.pages, "pages": unread.count}
        return
    # Parsing had the shorter limit, because a bomb shows itself there. Only text that was parsed gets more time.
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
        yield {"batch": [_pack(chunk, ideographs) for chunk in chunks[at : at + UPSERT_BATCH]]}


def _pack(chunk: Chunk, ideographs: mmap) -> tuple[Json, list[int], list[float]]:
    text = searchable_text(chunk)
    if has_ideographs(text):
        ideographs[0] = 1
    (sparse,) = document_vectors([text])
    return chunk.to_json(), sparse.indices, sparse.values


def main() -> None:
    """Serve jobs until stdin ends."""
    out = begin_answers()
    ideographs, loaded = mmap(-1, 1), False
    for line, path in receive_jobs():
        job = replace(Job.from_json(line), path=path)
        try:
            format_of(job.name).load()  # imported here so that every later child already has it
        except DocumentError as error:
            refuse(out, error)
            continue
        limits = job.limits
        run_capped(
            partial(frames_of, job, ideographs),
            out,
            memory_bytes=limits.memory_bytes,
            seconds=limits.seconds,
            most_seconds=limits.seconds * CUTTING_FACTOR,
        )
        if ideographs[0] and not loaded:
            document_vectors([WARM_TEXT])
            loaded = True


if __name__ == "__main__":
    main()
