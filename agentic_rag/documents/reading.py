"""Reading a file in another process: from an open file to chunks that are ready for the index.

Owns the exchange with a reading process; `child_process` owns its lifecycle and sandbox. Knows no database and no
index. A file's text is never whole in memory here: the reading process makes the next batch only after one is taken.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import BinaryIO

import orjson

from agentic_rag.base.ids import DocumentId
from agentic_rag.documents.child import NO_SCANS, FileFrame, Job, ScansOfJob
from agentic_rag.documents.child_process import ChildProcess
from agentic_rag.documents.line_writer import with_lines
from mcp_servers.retriever.chunking import Chunk
from mcp_servers.retriever.document import ParseLimits
from mcp_servers.retriever.errors import DocumentError
from mcp_servers.retriever.formats.scans import ScansWanted
from mcp_servers.retriever.lexical import Sparse

CHILD = "agentic_rag.documents.child"


@dataclass(frozen=True, slots=True)
class FileSummary:
    """Facts about a file after it was parsed and chunked."""

    pages: int | None
    chunks: int
    languages: tuple[str, ...]
    notes: tuple[str, ...]
    date: str | None
    outline: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Batch:
    """Chunks in order with their BM25 vectors."""

    chunks: list[Chunk]
    lexical: list[Sparse]

    def with_lines(self, lines: Mapping[str, str]) -> tuple[list[Chunk], list[Sparse] | None]:
        """Return the chunks with their context lines, and their vectors, or None if the index has to compute these.

        ``lines`` are those of the document by digest (`line_writer.digest_of`).
        """
        if not lines:
            return self.chunks, self.lexical
        chunks = with_lines(self.chunks, lines)
        return chunks, None if any(chunk.context for chunk in chunks) else self.lexical


class ReadingProcess:
    """A process that reads one file after the other. It starts on first use and serves one task.

    Call `begin` with a file, then call `batch` until it returns None. A caller that stops earlier calls `reset`.
    """

    def __init__(self, limits: ParseLimits) -> None:
        self._limits = limits
        self._process = ChildProcess(CHILD, limits.seconds, "reading the file")

    async def begin(
        self, file: BinaryIO, name: str, document_id: DocumentId, version: str, scans: ScansOfJob = NO_SCANS
    ) -> FileSummary:
        """Read the file. ``version`` is the hash of its bytes. The caller may close the file afterwards.

        Raises:
            ScansWanted: OCR has to read pages first; the process is ready for the next file.
            DocumentError: the file cannot be read; the process is ready for the next file.
        """
        await self._process.send(orjson.dumps(Job("", name, document_id, version, self._limits, scans)), file)
        frame: FileFrame | None = await self._process.frame()
        if frame is None:
            raise DocumentError("DOCUMENT_BROKEN", "the reader crashed on this file")
        if "wanted" in frame:
            if await self._process.frame() is not None:
                raise DocumentError("DOCUMENT_BROKEN", "the reader gave an answer that cannot be used")
            raise ScansWanted(frame["wanted"], frame["pages"] or 0)
        return FileSummary(
            pages=frame["pages"],
            chunks=frame["chunks"],
            languages=tuple(frame["languages"]),
            notes=tuple(frame["notes"]),
            date=frame["date"],
            outline=tuple(frame["outline"]),
        )

    async def batch(self) -> Batch | None:
        """Return the next batch of chunks; None after the last one.

        Raises:
            DocumentError: the rest cannot be read.
        """
        frame: FileFrame | None = await self._process.frame()
        if frame is None:
            return None
        packed = frame["batch"]
        return Batch(
            [Chunk.from_json(chunk) for chunk, _, _ in packed],
            [Sparse(indices, values) for _, indices, values in packed],
        )

    async def reset(self) -> None:
        """Kill the process if a file is unfinished; the next `begin` starts another process."""
        await self._process.reset()

    async def aclose(self) -> None:
        """Kill the process and wait a bounded time for its end."""
        await self._process.aclose()
