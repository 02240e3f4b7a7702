"""The server's side of a process that reads untrusted files: its lifecycle, its sandbox, and the meaning of its exit.

Owns the start of such a process and the exchange with it; `fork_server` is the other end. Knows no database and no
index.

In the sandbox the process sees the system, the interpreter, our two packages, the installed packages, and the one file
it received. It has no network, no home folder and no other file of any domain. Without bubblewrap it is a plain child
process.
"""

import functools
import os
import signal
import socket
import subprocess
import sys
from collections import deque
from pathlib import Path
from typing import Any, BinaryIO

import anyio
import anyio.to_thread
from anyio.abc import Process

import agentic_rag
from agentic_rag.tools.launch.sandbox import NOBODY, find_sandbox, launch_command
from mcp_servers.child_processes import end_process, python_environment
from mcp_servers.frames import BadFrame, Frame, FrameReader
from mcp_servers.retriever.errors import DocumentError
from mcp_servers.retriever.extensions import FORMATS, NOT_EXTENDED, find_extensions

START_SECONDS = 30.0
"""How long a new process may take before its first file, on a busy machine."""

READ_BYTES = 2**18


class ChildProcess:
    """A child process that does one job after the other. It starts on first use and serves one task.

    Call `send` with a job, then call `frame` until it returns None. A caller that stops earlier calls `reset`.

    Args:
        module: the module to run; its ``main`` uses the functions of `fork_server`.
        seconds: how long a frame may take.
        work: the work as its errors name it: "reading the file".
    """

    def __init__(self, module: str, seconds: float, work: str) -> None:
        self._module = module
        self._seconds = seconds
        self._work = work
        self._process: Process | None = None
        self._busy = False
        self._patience = seconds
        self._jobs: socket.socket | None = None
        self._reader = FrameReader()
        self._received: deque[Frame] = deque()

    async def send(self, job: bytes, file: BinaryIO) -> None:
        """Begin a job, a JSON document on one line, with its file.

        The caller may close the file after the first frame. The process opens the file again by its descriptor, which
        checks the file's owner. A server that runs as root therefore makes the unprivileged reader user the owner of
        the file. The folder around the file still belongs to root.
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
            if sent <= len(job):  # the socket's buffer took only part of a long job
                await anyio.to_thread.run_sync(self._jobs.sendall, memoryview(job + b"\n")[sent:])
        except BrokenPipeError:  # the process died between two files
            await self.aclose()
            await self.send(job, file)

    async def frame(self) -> Any:
        """Return the next frame of the job; None at its end.

        Raises:
            DocumentError: no frame arrived, or the job failed; the process is ready for the next job.
        """
        # Only the first frame after a start may take `START_SECONDS` longer.
        patience, self._patience = self._patience, self._seconds
        try:
            with anyio.fail_after(patience):
                frame = await self._receive()
                if "code" in frame:
                    await self._receive()  # the end frame after an error
                self._busy = "code" not in frame and "end" not in frame
        except TimeoutError:
            await self.aclose()
            raise DocumentError("DOCUMENT_TIMEOUT", f"{self._work} took more than {self._seconds:g} s") from None
        except (anyio.EndOfStream, anyio.BrokenResourceError, BadFrame) as exc:
            await self.aclose()
            raise DocumentError("DOCUMENT_BROKEN", "the reader crashed on this file") from exc
        if "code" in frame:
            raise DocumentError(frame["code"], frame["message"], frame.get("detail", ""))
        if "end" not in frame:
            return frame
        if frame["end"] == 0:
            return None
        # The kernel ends a child at the soft limit of CPU time with SIGXCPU, and at the hard limit with SIGKILL.
        if frame["end"] in (-signal.SIGXCPU, -signal.SIGKILL):
            raise DocumentError("DOCUMENT_TIMEOUT", f"{self._work} took more than {self._seconds:g} s of work")
        raise DocumentError("DOCUMENT_BROKEN", "the reader crashed on this file")

    async def reset(self) -> None:
        """Kill the process if a job is unfinished; the next job starts another process."""
        if self._busy:
            await self.aclose()

    async def aclose(self) -> None:
        """Kill the process and wait a bounded time for its end."""
        process, self._process = self._process, None
        self._busy = False
        if self._jobs is not None:
            self._jobs.close()
            self._jobs = None
        if process is not None:
            await end_process(process)

    async def _start(self) -> None:
        command = await anyio.to_thread.run_sync(_command, self._module)
        if self._jobs is not None:  # an earlier start was cancelled
            self._jobs.close()
        self._jobs, theirs = socket.socketpair()
        with theirs:
            self._process = await anyio.open_process(
                command,
                stdin=theirs.fileno(),
                stderr=subprocess.DEVNULL,
                env=await anyio.to_thread.run_sync(_environment),
                cwd="/",
                start_new_session=True,  # a new process group, which `end_process` kills with all its children
            )
        # Bytes of a dead predecessor must not be read as the beginning of a frame.
        self._reader, self._received = FrameReader(), deque()

    async def _receive(self) -> Any:
        assert self._process is not None
        assert self._process.stdout is not None
        output = self._process.stdout
        while not self._received:
            self._received += self._reader.feed(await output.receive(READ_BYTES))
        return self._received.popleft().data


@functools.cache
def _command(module: str) -> list[str]:
    """Return the command line of a process, in the sandbox if there is one. The first call blocks for milliseconds."""
    # -P keeps the current folder off ``sys.path``, so that no module there replaces one of ours.
    program = [os.path.realpath(sys.executable), "-P", "-m", module]
    sandbox = find_sandbox()
    if isinstance(sandbox, str):
        return program
    return launch_command(sandbox, [(folder, False) for folder in _readable_folders()], program)


@functools.cache
def _environment() -> dict[str, str]:
    """Return the environment of a process. It names the groups of extensions in which nothing is installed."""
    return python_environment() if find_extensions(FORMATS) else python_environment(**{NOT_EXTENDED: FORMATS})


def _readable_folders() -> list[str]:
    """Return the folders a reader needs besides the system: the interpreter, our packages and installed packages.

    Of our own source tree only the two packages are included, since a data folder may be next to them. Of the other
    entries of ``sys.path`` only folders of an installation and of added formats are included.
    """
    package = Path(agentic_rag.__file__).resolve().parent
    installed = [place for place in sys.path if Path(place).name in ("site-packages", "dist-packages")]
    added = [str(entry.dist.locate_file("")) for entry in find_extensions(FORMATS) if entry.dist is not None]
    needed = [str(package), str(package.parent / "mcp_servers"), sys.base_prefix, *installed, *added]
    folders = sorted({os.path.realpath(place) for place in needed if os.path.isdir(place)})
    return [folder for folder in folders if not Path(folder).is_relative_to("/usr")]
