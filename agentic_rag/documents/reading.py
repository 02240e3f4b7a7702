"""Reading a file in another process: from an open file to chunks that are ready for the index.

Owns the life of a reading process, its sandbox and what its end means. Knows no database and no index. What is read is
never whole in memory here: a batch is taken, then the next one is made.

In the sandbox a reader sees the system, the interpreter, our two packages and installed ones, and the one file it was
handed: no network, no home, no other file of any domain. Where there is no bubblewrap it is a plain process of ours.
"""

import functools
import json
import os
import signal
import socket
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import anyio
import anyio.to_thread
import orjson
from anyio.abc import Process
from anyio.streams.buffered import BufferedByteReceiveStream

import agentic_rag
import agentic_rag.tools.launch.sandbox as sandbox_module
from agentic_rag.documents.child import Frame, Job
from agentic_rag.tools.launch.sandbox import CLOSING, find_sandbox, system_call_filter
from mcp_servers.retriever.chunking import Chunk
from mcp_servers.retriever.document import ParseLimits
from mcp_servers.retriever.errors import DocumentError
from mcp_servers.retriever.extensions import FORMATS, find_extensions
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
    date: str | None
    outline: tuple[str, ...]


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
        self._jobs: socket.socket | None = None
        self._frames: BufferedByteReceiveStream

    async def begin(self, file: BinaryIO, name: str, document_id: str, version: str) -> Summary:
        """Read the file; ``version`` stands for its bytes. The file may be closed afterwards.

        Raises:
            DocumentError: it cannot be read; the process is ready for the next file.
        """
        job = Job("", name, document_id, version, self._limits)
        patience = self._limits.seconds
        if self._process is None:
            patience += START_SECONDS
            await self._start()
        assert self._jobs is not None
        self._busy = True
        try:
            socket.send_fds(self._jobs, [orjson.dumps(job) + b"\n"], [file.fileno()])
        except BrokenPipeError:  # it died between two files
            await self.aclose()
            return await self.begin(file, name, document_id, version)
        frame = await self._frame(patience)
        if frame is None:
            raise DocumentError("DOCUMENT_BROKEN", "the file made its reader crash")
        return Summary(
            pages=frame["pages"],
            chunks=frame["chunks"],
            languages=tuple(frame["languages"]),
            notes=tuple(frame["notes"]),
            date=frame["date"],
            outline=tuple(frame["outline"]),
        )

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
        if self._jobs is not None:
            self._jobs.close()
            self._jobs = None
        if process is not None:
            if process.returncode is None:
                os.killpg(process.pid, signal.SIGKILL)
            with anyio.move_on_after(KILL_SECONDS, shield=True):
                await process.aclose()

    async def _start(self) -> None:
        command = await anyio.to_thread.run_sync(_reader_command)
        if self._jobs is not None:  # a start before was cancelled
            self._jobs.close()
        self._jobs, theirs = socket.socketpair()
        with theirs:
            self._process = await anyio.open_process(
                command,
                stdin=theirs.fileno(),
                stderr=subprocess.DEVNULL,
                env=_environment(),
                cwd="/",
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


def _environment() -> dict[str, str]:
    """Return the variables of a reader, none of ours: it reads what strangers sent. It finds packages where we do."""
    places = [str(Path(agentic_rag.__file__).parent.parent), *filter(None, sys.path)]
    return {"PYTHONPATH": os.pathsep.join(os.path.realpath(place) for place in places), "PYTHONUTF8": "1"}


@functools.cache
def _reader_command() -> list[str]:
    """Return the command line of a reader, in the sandbox if there is one. Blocks for some milliseconds, once."""
    program = [os.path.realpath(sys.executable), "-P", "-m", "agentic_rag.documents.child"]
    sandbox = find_sandbox()
    if isinstance(sandbox, str):
        return program
    plan = {
        "limits": [],
        "files": {},
        "folders": [(folder, False) for folder in _readable_folders()],
        "sandbox": sandbox.options(network=False),
        "closing": CLOSING,
        "filter": system_call_filter().hex(),
        "nice": 0,
    }
    launcher = str(Path(sandbox_module.__file__).with_name("launcher.py"))
    return [sys.executable, "-I", "-S", launcher, str(os.getpid()), json.dumps(plan), *program]


def _readable_folders() -> list[str]:
    """Return what of this machine a reader needs beside the system: the interpreter, our packages, installed ones.

    Of our own tree its two packages alone, since a data folder may lie beside them; of the other places in which we
    find modules those of an installation, and of formats that were added.
    """
    ours = Path(agentic_rag.__file__).resolve().parent
    installed = [place for place in sys.path if Path(place).name in ("site-packages", "dist-packages")]
    added = [str(entry.dist.locate_file("")) for entry in find_extensions(FORMATS) if entry.dist is not None]
    wanted = [str(ours), str(ours.parent / "mcp_servers"), sys.base_prefix, *installed, *added]
    folders = sorted({os.path.realpath(place) for place in wanted if os.path.isdir(place)})
    return [folder for folder in folders if not Path(folder).is_relative_to("/usr")]
