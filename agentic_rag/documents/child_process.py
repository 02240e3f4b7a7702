"""The outside of a process that works on strangers' files: its life, its sandbox, and what its end means.

Owns the start of such a process and the exchange with it; `fork_server` is the other end. Knows no database and no
index.

In the sandbox it sees the system, the interpreter, our two packages and installed ones, and the one file it was handed:
no network, no home, no other file of any domain. Where there is no bubblewrap it is a plain process of ours.
"""

import functools
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any, BinaryIO

import anyio
import anyio.to_thread
import orjson
from anyio.abc import Process
from anyio.streams.buffered import BufferedByteReceiveStream

import agentic_rag
from agentic_rag.tools.launch.sandbox import NOBODY, find_sandbox, launch_command
from mcp_servers.retriever.errors import DocumentError
from mcp_servers.retriever.extensions import FORMATS, find_extensions

KILL_SECONDS = 5.0
"""How long a killed process is waited for; it has no handlers, so only a stuck disk takes this long."""

START_SECONDS = 30.0
"""What a new process may take before its first file, on a machine that does much else."""

MAX_FRAME = 64 * 2**20
"""Bytes; a batch of chunks has about 300 KB, a page's image seldom more than 2 MB."""


class ChildProcess:
    """Does one job after the other; started when first needed. Used by one task.

    `send` a job, then take its `frame`s until None. Whoever stops before that calls `reset`.

    Args:
        module: what is run, with ``main`` of `fork_server`'s parts.
        seconds: what a frame may take.
        work: what is done, as its errors name it: "reading the file".
    """

    def __init__(self, module: str, seconds: float, work: str) -> None:
        self._module = module
        self._seconds = seconds
        self._work = work
        self._process: Process | None = None
        self._busy = False
        self._patience = seconds
        self._jobs: socket.socket | None = None
        self._frames: BufferedByteReceiveStream

    async def send(self, job: bytes, file: BinaryIO) -> None:
        """Begin a job, a JSON document on one line, with its file; that may be closed after the first frame.

        The process opens the file again by its descriptor, which checks the file's owner. A server that runs as root
        therefore gives the file to the unprivileged user that reads it; the folder around it stays root's alone.
        """
        if os.geteuid() == 0:
            os.fchown(file.fileno(), NOBODY, NOBODY)
        self._patience = self._seconds
        if self._process is None:
            self._patience += START_SECONDS
            await self._start()
        assert self._jobs is not None
        self._busy = True
        try:
            sent = socket.send_fds(self._jobs, [job + b"\n"], [file.fileno()])
            if sent <= len(job):  # a long job, while the process takes what came before
                await anyio.to_thread.run_sync(self._jobs.sendall, memoryview(job + b"\n")[sent:])
        except BrokenPipeError:  # it died between two files
            await self.aclose()
            await self.send(job, file)

    async def frame(self) -> Any:
        """Return the next frame of the job; None at its end.

        Raises:
            DocumentError: there is none, or the job failed; the process is ready for the next one.
        """
        patience, self._patience = self._patience, self._seconds
        try:
            with anyio.fail_after(patience):
                frame = await self._receive()
                if "code" in frame:
                    await self._receive()  # its end
                self._busy = "code" not in frame and "end" not in frame
        except TimeoutError:
            await self.aclose()
            raise DocumentError("DOCUMENT_TIMEOUT", f"{self._work} took more than {self._seconds:g} s") from None
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
            raise DocumentError("DOCUMENT_TIMEOUT", f"{self._work} took more than {self._seconds:g} s of work")
        raise DocumentError("DOCUMENT_BROKEN", "the file made its reader crash")

    async def reset(self) -> None:
        """End the process if it is in the middle of a job; the next one starts another process."""
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
        command = await anyio.to_thread.run_sync(_command, self._module)
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

    async def _receive(self) -> Any:
        size = int.from_bytes(await self._frames.receive_exactly(4), "big")
        if size > MAX_FRAME:
            raise anyio.EndOfStream
        return orjson.loads(await self._frames.receive_exactly(size))


def _environment() -> dict[str, str]:
    """Return the variables of a reader, none of ours: it reads what strangers sent. It finds packages where we do."""
    places = [str(Path(agentic_rag.__file__).parent.parent), *filter(None, sys.path)]
    return {"PYTHONPATH": os.pathsep.join(os.path.realpath(place) for place in places), "PYTHONUTF8": "1"}


@functools.cache
def _command(module: str) -> list[str]:
    """Return the command line of a process, in the sandbox if there is one. Blocks for some milliseconds, once."""
    program = [os.path.realpath(sys.executable), "-P", "-m", module]
    sandbox = find_sandbox()
    if isinstance(sandbox, str):
        return program
    return launch_command(sandbox, _readable_folders(), program)


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
