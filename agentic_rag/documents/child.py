"""``python -m agentic_rag.documents.child``: a file to chunks with their BM25 vectors, outside the server's process.

Owns the caps of one file. The process keeps what is slow to load (readers, the Chinese dictionary) and forks a
child for each file: a bomb or a crash ends that child, and no file meets another. Jobs come as JSON lines over a local
socket on stdin, each with the open file; answers are frames on stdout: four bytes of length, then JSON. In a sandbox,
where there is one, neither the file's folder nor anything else of the data folder is there. Knows no database and no
index.
"""

import os
import resource
import socket
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO, TypedDict

import orjson

from agentic_rag.directory.languages import languages_of
from mcp_servers.retriever.chunking import Chunk, chunk_document, chunk_id, outline_of
from mcp_servers.retriever.document import Json, ParseLimits
from mcp_servers.retriever.errors import DocumentCode, DocumentError
from mcp_servers.retriever.formats import format_of
from mcp_servers.retriever.index import UPSERT_BATCH, searchable_text
from mcp_servers.retriever.lexical import document_vectors
from mcp_servers.retriever.parsing import parse

CUTTING_FACTOR = 5
"""CPU time of the whole job, in limits of its parsing: a long Chinese text takes a minute to be weighed."""

NICENESS = 5
"""Two readers on two cores would otherwise take a third of the time of the event loop that feeds on them."""

JOB_BYTES = 65536
"""A job is shorter: a name has some hundred bytes."""

WARM_TEXT = "中文"
"""Loads the dictionary, a quarter of a second and 50 MB, once for all files."""


@dataclass(frozen=True, slots=True)
class Job:
    """A file to read. ``version`` (the hash of its bytes) is part of a chunk's id: another text is another chunk.

    ``path``: of the descriptor that came along.
    """

    path: str
    name: str
    document_id: str
    version: str
    limits: ParseLimits

    @classmethod
    def from_json(cls, line: bytes) -> "Job":
        """Return the job of a line, which is `orjson.dumps` of a job."""
        job = orjson.loads(line)
        return cls(**{**job, "limits": ParseLimits(**job["limits"])})


class Frame(TypedDict, total=False):
    """What is answered of a file: a summary, then batches of packed chunks; or why there are none; then its end."""

    pages: int | None
    notes: Sequence[str]
    languages: Sequence[str]
    date: str | None
    outline: Sequence[str]
    chunks: int
    batch: list[tuple[Json, list[int], list[float]]]
    code: DocumentCode
    message: str
    end: int


def write_frame(out: BinaryIO, value: Frame) -> None:
    """Write one frame and hand it on."""
    data = orjson.dumps(value)
    out.write(len(data).to_bytes(4, "big") + data)
    out.flush()


def frames_of(job: Job) -> Iterator[Frame]:
    """Yield what the server gets of a file: a summary, then its chunks in batches.

    Raises:
        DocumentError: the file cannot be read.
    """
    parsed = parse(Path(job.path), job.name, job.limits)
    _limit_cpu(job.limits.seconds * CUTTING_FACTOR)
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


def _limit_cpu(seconds: float) -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    resource.setrlimit(resource.RLIMIT_CPU, (max(1, round(seconds)), hard))


def _run(job: Job, out: BinaryIO) -> None:
    """The forked child: limits first, then the file."""
    limits = job.limits
    resource.setrlimit(resource.RLIMIT_AS, (limits.memory_bytes, limits.memory_bytes))
    whole = max(1, round(limits.seconds * CUTTING_FACTOR))
    resource.setrlimit(resource.RLIMIT_CPU, (max(1, round(limits.seconds)), whole))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    try:
        for frame in frames_of(job):
            write_frame(out, frame)
    except DocumentError as error:
        write_frame(out, {"code": error.code, "message": error.message})
    except MemoryError:
        needed = f"reading the file needs more than {limits.memory_bytes / 2**20:.0f} MiB of memory"
        write_frame(out, {"code": "DOCUMENT_TOO_LARGE", "message": needed})


def _fork(job: Job, out: BinaryIO) -> int:
    """Run the job in a child of this process and return its exit code, negative for a signal."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            _run(job, out)
            status = 0
        finally:
            os._exit(status)  # no handler or buffer of the parent may run twice
    _, waited = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(waited)


def receive_jobs(jobs: socket.socket) -> Iterator[Job]:
    """Yield jobs until there are no more. The file of each is open while it is worked on."""
    while True:
        line, descriptors, _, _ = socket.recv_fds(jobs, JOB_BYTES, 1)
        while line and not line.endswith(b"\n"):
            line += jobs.recv(JOB_BYTES)
        if not descriptors:
            return
        try:
            yield replace(Job.from_json(line), path=f"/dev/fd/{descriptors[0]}")
        finally:
            os.close(descriptors[0])


def main() -> None:
    """Serve jobs until stdin ends."""
    os.nice(NICENESS)
    # A reader that prints or warns must not corrupt the frames.
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    document_vectors([WARM_TEXT])
    jobs = socket.socket(fileno=0)
    for job in receive_jobs(jobs):
        try:
            format_of(job.name).load()  # imported here, it is there for every later child
        except DocumentError as error:
            write_frame(out, {"code": error.code, "message": error.message})
            write_frame(out, {"end": 0})
        else:
            write_frame(out, {"end": _fork(job, out)})


if __name__ == "__main__":
    main()
