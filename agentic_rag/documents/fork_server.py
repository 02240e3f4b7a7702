"""The inside of a process that works on untrusted files: one capped child for each job.

Sets the caps of a job and writes the frames of its answer. The process holds the modules that are slow to load and
forks a child for each job: a bomb or a crash ends that child, and no job sees another job's file. Jobs arrive as JSON
lines over a local socket on stdin, each with the open file. Answers are `frames` on stdout. The module that runs
defines its jobs. The other end is `child_process`.

If the server runs as root, the child drops root privileges before it reads, with or without a sandbox.
"""

import encodings
import importlib
import os
import pkgutil
import resource
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress

from agentic_rag.tools.launch.sandbox import NOBODY
from mcp_servers.frames import Frame, send_frame, take_stdout
from mcp_servers.retriever.errors import DocumentError

NICENESS = 5
"""Added to the process's niceness. Without it, two readers on two cores take a third of the event loop's time."""

JOB_BYTES = 65536
"""Bytes of a job received at once; most jobs are shorter."""


AnyFrame = Mapping[str, object]
"""A JSON object; each module that runs here declares its own type."""
Frames = Callable[[], Iterator[AnyFrame]]
"""Makes the answer to a job."""


def refuse(out: int, error: DocumentError) -> None:
    """Answer a job with an error, without starting it."""
    send_frame(out, Frame({"code": error.code, "message": error.message, "detail": error.detail}))
    send_frame(out, Frame({"end": 0}))


def begin_answers() -> int:
    """Lower this process's priority and return the descriptor for its frames."""
    os.nice(NICENESS)
    if os.geteuid() == 0:  # the children drop root and may then be unable to read an interpreter below /root
        for module in pkgutil.iter_modules(encodings.__path__, "encodings."):
            with suppress(ImportError):  # codecs of other systems
                importlib.import_module(module.name)
    return take_stdout()


def receive_jobs() -> Iterator[tuple[bytes, str]]:
    """Yield jobs with the path of their file's descriptor until stdin ends. A file stays open until the next job."""
    jobs = socket.socket(fileno=0)
    while True:
        line, descriptors, _, _ = socket.recv_fds(jobs, JOB_BYTES, 1)
        while line and not line.endswith(b"\n"):
            line += jobs.recv(JOB_BYTES)
        if not descriptors:  # the server has closed its end
            return
        try:
            yield line, f"/dev/fd/{descriptors[0]}"
        finally:
            os.close(descriptors[0])


def run_capped(
    frames: Frames,
    out: int,
    *,
    memory_bytes: int,
    seconds: float,
    most_seconds: float,
) -> None:
    """Answer a job in a forked child, then write the child's exit code as the end frame.

    Args:
        seconds: limit of CPU time; the job itself may raise it (`limit_cpu`) to ``most_seconds``.
    """
    child = os.fork()
    if child == 0:
        status = 1
        try:
            _answer(frames, out, memory_bytes, seconds, most_seconds)
            status = 0
        finally:
            os._exit(status)  # no handler or buffer of the parent may run twice
    _, waited = os.waitpid(child, 0)
    send_frame(out, Frame({"end": os.waitstatus_to_exitcode(waited)}))


def _give_up_root() -> None:
    """Switch permanently to the unprivileged user."""
    os.setgroups([])
    os.setresgid(NOBODY, NOBODY, NOBODY)
    os.setresuid(NOBODY, NOBODY, NOBODY)


def limit_cpu(seconds: float) -> None:
    """Set the soft limit of CPU time for this process, below the hard limit."""
    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    resource.setrlimit(resource.RLIMIT_CPU, (max(1, round(seconds)), hard))


def _answer(
    frames: Frames,
    out: int,
    memory_bytes: int,
    seconds: float,
    most_seconds: float,
) -> None:
    """Answer a job in the forked child, after limiting its resources and dropping root privileges."""
    resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
    resource.setrlimit(resource.RLIMIT_CPU, (max(1, round(seconds)), max(1, round(most_seconds))))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))  # no file may grow; the answer goes to a pipe, which may
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)  # the socket with the next jobs belongs to the parent alone
    if os.geteuid() == 0:
        _give_up_root()
    try:
        for frame in frames():
            send_frame(out, Frame(frame))
    except DocumentError as error:
        send_frame(out, Frame({"code": error.code, "message": error.message, "detail": error.detail}))
    except MemoryError:
        needed = f"reading the file needs more than {memory_bytes / 2**20:.0f} MiB of memory"
        send_frame(out, Frame({"code": "DOCUMENT_TOO_LARGE", "message": needed}))
