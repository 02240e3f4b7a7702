"""What the supervisors of our child processes share: the environment, the delay before a restart, and the end.

The index process (`retriever.index_supervisor`), the readers of documents (`agentic_rag.documents.child_process`), the
backup program and the workers of a server use it. MCP servers are started by `agentic_rag.tools.transports.stdio`,
because a stranger's program needs more: a launcher, limits, and a search for processes that left its group.
"""

import os
import signal
import sys
from contextlib import suppress
from pathlib import Path

import anyio
from anyio.abc import Process

PAUSE_SECONDS = 0.2
"""Delay before the first restart; doubled after each process that lived less than `STEADY_SECONDS`."""
PAUSE_LIMIT = 30.0
STEADY_SECONDS = 60.0
KILL_SECONDS = 5.0
"""Time limit for the end of a killed process; only a stuck disk takes this long."""


class RestartDelay:
    """The growing delay before the restarts of one process."""

    def __init__(self) -> None:
        self._seconds = PAUSE_SECONDS

    def after(self, lifetime: float) -> float:
        """Return the delay in seconds after a process that lived for ``lifetime`` seconds."""
        seconds = PAUSE_SECONDS if lifetime > STEADY_SECONDS else self._seconds
        self._seconds = min(2 * seconds, PAUSE_LIMIT)
        return seconds


def python_environment(**more: str) -> dict[str, str]:
    """Return the environment of a child process that runs one of our modules, with the variables of ``more``.

    The child finds the same packages as this process. It inherits none of this process's variables, which may hold
    secrets.
    """
    places = [str(Path(__file__).parents[1]), *filter(None, sys.path)]
    return {"PYTHONPATH": os.pathsep.join(map(os.path.realpath, places)), "PYTHONUTF8": "1", **more}


def kill_group(process: Process) -> None:
    """Kill a process that leads its own session, with all processes that it started there."""
    if process.returncode is None:
        with suppress(ProcessLookupError):  # it ended a moment ago, and its exit code has not been read yet
            os.killpg(process.pid, signal.SIGKILL)


async def end_process(process: Process, grace: float = 0.0) -> None:
    """Wait ``grace`` seconds for a process to exit, then kill its group, and close its pipes.

    The call cannot be cancelled, and takes at most ``grace`` + `KILL_SECONDS` seconds.
    """
    with anyio.move_on_after(grace + KILL_SECONDS, shield=True):
        with anyio.move_on_after(grace):
            await process.wait()
        kill_group(process)
        await process.aclose()  # also waits for the end, so that no zombie is left
