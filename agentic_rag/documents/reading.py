"""Reading a file in another process: from a path to chunks that are ready for the index.

Owns the life of a reading process and what its end means. Knows no database and no index. What is read is never
whole in memory here: a batch is taken, then the next one is made.
"""

import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import anyio
import orjson
from anyio.abc import Process
from anyio.streams.buffered import BufferedByteReceiveStream

import agentic_rag
from agentic_rag.documents.child import Frame, Job
from mcp_servers.retriever.chunking import Chunk
from mcp_servers.retriever.document import ParseLimits
from mcp_servers.retriever.errors import DocumentError
from mcp_servers.retriever.lexical import Sparse

KILL_SECONDS = 5.0
"""How long a killed process is waited for; it has no handlers, so only a stuck disk takes this long."""

START_SECONDS = 30.0
"""What a new process may take before its first file, on a machine that does much else."""

MAX_FRAME = 64 * 2**20
"""Bytes; a batch has about 300 KB."""


@dataclass(frozen=True, slots=True)
class Summary:
    """What is known of a file once it is parsed and cut."""

    pages: int | None
    chunks: int
    languages: tuple[str, ...]
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Batch:
    """Chunks in order with their BM25 vectors."""

    chunks: list[Chunk]
    lexical: list[Sparse]


class ReadingProcess:
    """Reads one file after the other; started when first needed. Used by one task.

    `begin` a file, then take its batches until None. Whoever stops before that calls `reset`.
    """

    def __init__(self, limits: ParseLimits) -> None:
        self._limits = limits
        self._process: Process | None = None
        self._busy = False
        self._frames: BufferedByteReceiveStream

    async def begin(self, path: Path, name: str, document_id: str, version: str) -> Summary:
        """Read the file; ``version`` stands for its bytes.

        Raises:
            DocumentError: it cannot be read; the process is ready for the next file.
        """
        job = Job(str(path), name, document_id, version, self._limits)
        patience = self._limits.seconds
        if self._process is None:
            patience += START_SECONDS
            await self._start()
        assert self._process is not None
        assert self._process.stdin is not None
        self._busy = True
        try:
            await self._process.stdin.send(orjson.dumps(job) + b"\n")
        except anyio.BrokenResourceError:  # it died between two files
            await self.aclose()
            return await self.begin(path, name, document_id, version)
        frame = await self._frame(patience)
        if frame is None:
            raise DocumentError("DOCUMENT_BROKEN", "the file made its reader crash")
        return Summary(frame["pages"], frame["chunks"], tuple(frame["languages"]), tuple(frame["notes"]))

    async def batch(self) -> Batch | None:
        """Return the next chunks; None after the last ones.

        Raises:
            DocumentError: the rest cannot be read.
        """
        frame = await self._frame(self._limits.seconds)
        if frame is None:
            return None
        packed = frame["batch"]
        return Batch(
            [Chunk.from_json(chunk) for chunk, _, _ in packed],
            [Sparse(indices, values) for _, indices, values in packed],
        )

    async def reset(self) -> None:
        """End the process if it is in the middle of a file; the next `begin` starts another one."""
        if self._busy:
            await self.aclose()

    async def aclose(self) -> None:
        """End the process and wait for it, bounded."""
        process, self._process = self._process, None
        self._busy = False
        if process is not None:
            if process.returncode is None:
                os.killpg(process.pid, signal.SIGKILL)
            with anyio.move_on_after(KILL_SECONDS, shield=True):
                await process.aclose()

    async def _start(self) -> None:
        # Where we find packages, the child does too: ours, and those that add formats.
        places = [str(Path(agentic_rag.__file__).parent.parent), *filter(None, sys.path)]
        self._process = await anyio.open_process(
            [sys.executable, "-P", "-m", "agentic_rag.documents.child"],
            stderr=subprocess.DEVNULL,
            env={
                "PYTHONPATH": os.pathsep.join(places),
                "PYTHONUTF8": "1",
            },  # nothing of ours: it reads what strangers sent
            start_new_session=True,
        )
        assert self._process.stdout is not None
        self._frames = BufferedByteReceiveStream(self._process.stdout)

    async def _frame(self, seconds: float) -> Frame | None:
        """Return the next frame of a file; None at its end."""
        try:
            with anyio.fail_after(seconds):
                frame = await self._receive()
                if "code" in frame:
                    await self._receive()  # its end
                self._busy = "batch" in frame or "chunks" in frame
        except TimeoutError:
            await self.aclose()
            raise DocumentError(
                "DOCUMENT_TIMEOUT", f"reading the file took more than {self._limits.seconds:g} s"
            ) from None
        except (anyio.EndOfStream, anyio.IncompleteRead, anyio.BrokenResourceError) as exc:
            await self.aclose()
            raise DocumentError("DOCUMENT_BROKEN", "the file made its reader crash") from exc
        if "code" in frame:
            raise DocumentError(frame["code"], frame["message"])
        if "end" not in frame:
            return frame
        if frame["end"] == 0:
            return None
        if frame["end"] in (-signal.SIGXCPU, -signal.SIGKILL):
            text = f"reading the file took more than {self._limits.seconds:g} s of work"
            raise DocumentError("DOCUMENT_TIMEOUT", text)
        raise DocumentError("DOCUMENT_BROKEN", "the file made its reader crash")

    async def _receive(self) -> Frame:
        size = int.from_bytes(await self._frames.receive_exactly(4), "big")
        if size > MAX_FRAME:
            raise anyio.EndOfStream
        frame: Frame = orjson.loads(await self._frames.receive_exactly(size))
        return frame
