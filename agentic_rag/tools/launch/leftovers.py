"""Finds and kills processes by the marker in their environment.

Owns the walk through ``/proc``, which also finds children that left their process group and those of a server that
died. Knows nothing of servers.
"""

import os
import select
import signal
import sys

from agentic_rag.tools.launch.environment import MARKER

SWEEP_PASSES = 10
"""Maximum number of scans per sweep, which find processes that were forked meanwhile."""

SWEEP_MILLISECONDS = 1000
"""Time limit for one killed process to disappear."""


def sweep_leftovers(marker: str) -> int:
    """Kill every process whose environment carries ``marker`` (a whole one, or the part before the colon).

    Returns how many were killed, once they have ended; 0 where there is no ``/proc``. Blocks for milliseconds, so call
    it in a thread. Scans again until a pass finds none, since a process may fork during the scan.
    """
    if not sys.platform.startswith("linux"):
        return 0
    mark = f"{MARKER}={marker}".encode()
    killed = 0
    for _ in range(SWEEP_PASSES):
        pids = [pid for pid in os.listdir("/proc") if pid.isdigit() and _kill_marked(int(pid), mark)]
        killed += len(pids)
        if not pids:
            break
    return killed


def _kill_marked(pid: int, mark: bytes) -> bool:
    """Kill one process if it is marked.

    Most processes are not, and one read shows it. A pidfd then pins a marked process before a second check, so that a
    reused process id is never hit.
    """
    if pid == os.getpid() or not _is_marked(pid, mark):
        return False
    try:
        pinned = os.pidfd_open(pid)
    except OSError:  # gone meanwhile
        return False
    try:
        if not _is_marked(pid, mark):
            return False
        signal.pidfd_send_signal(pinned, signal.SIGKILL)
        poller = select.poll()
        poller.register(pinned, select.POLLIN)
        poller.poll(SWEEP_MILLISECONDS)
        return True
    except OSError:  # gone meanwhile, or another user's
        return False
    finally:
        os.close(pinned)


def _is_marked(pid: int, mark: bytes) -> bool:
    """Return whether a process's environment has the mark. False for a process that is gone or another user's."""
    try:
        with open(f"/proc/{pid}/environ", "rb", buffering=0) as file:
            variables = b"\x00" + file.read() + b"\x00"
    except OSError:
        return False
    return b"\x00" + mark + b"\x00" in variables or b"\x00" + mark + b":" in variables
