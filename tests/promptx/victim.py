"""Processes for the crash tests that write a memory until they are killed, run out of disk space, or finish.

python -m tests.promptx.victim lines TEMPLATE OUT N  one copy of TEMPLATE per crash point, every N-th line, killed there
python -m tests.promptx.victim sizes TEMPLATE OUT   one copy per file size limit, from none to enough
python -m tests.promptx.victim write FOLDER NAME N  N batches of three; prints a line after each
"""

import os
import resource
import shutil
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any

import mcp_servers.promptx
from mcp_servers.promptx.errors import MemoryUnavailable
from mcp_servers.promptx.memory import Memory
from mcp_servers.promptx.new_engrams import NewEngram
from mcp_servers.safe_files import Folder

OURS = str(Path(mcp_servers.promptx.__file__).parent)
REFUSED = 3
SIZES = [0, 1, 100, 4095, 4096, 8192, 12_000, *range(16_384, 200_000, 8_192)]


def make_batch(name: str, number: int) -> list[NewEngram]:
    return [NewEngram("c" * 3000, f"shared {name} {name}{number}x{part}", 0.5, "LINK") for part in range(3)]


def remember(folder: Path) -> int:
    """Save one batch, then write the network. Returns REFUSED if the batch was refused."""
    memory = Memory(Folder(folder))
    try:
        memory.remember(make_batch("new", 1), 2_000)
    except MemoryUnavailable:
        return REFUSED
    with suppress(MemoryUnavailable):
        memory.save()
    return 0


def die_at_line(folder: Path, line: int) -> int:
    """Remember in this process, and kill it when `line` lines of our code have run."""
    remaining = line

    def trace(frame: FrameType, event: str, _: object) -> Any:
        nonlocal remaining
        if not frame.f_code.co_filename.startswith(OURS):
            return None
        if event == "line":
            remaining -= 1
            if remaining == 0:
                os.kill(os.getpid(), signal.SIGKILL)
        return trace

    sys.settrace(trace)
    return remember(folder)


def stop_at_size(folder: Path, size: int) -> int:
    """Remember in this process with a file size limit of `size` bytes."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
    return remember(folder)


def run_in_fork(task: Callable[[Path, int], int], folder: Path, argument: int) -> int:
    """Return the exit code of `work`, negative if it was killed."""
    child = os.fork()
    if child == 0:
        os._exit(task(folder, argument))
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def main() -> None:
    task, first, second = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])
    if task == "write":
        memory = Memory(Folder(first))
        for number in range(int(sys.argv[4])):
            memory.remember(make_batch(second.name, number), 1_000 + number)
            memory.recall("shared", "focused", 2_000)
            print(number, flush=True)  # noqa: T201 - the test reads it
        memory.close()
    elif task == "lines":
        step = int(sys.argv[4])
        line, code = 1 - step, -1
        while code < 0:
            line += step
            code = run_in_fork(die_at_line, shutil.copytree(first, second / f"{line:04}"), line)
    else:
        for size in SIZES:
            code = run_in_fork(stop_at_size, shutil.copytree(first, second / f"{size:06}"), size)
            (second / f"{size:06}" / "code").write_text(str(code))


if __name__ == "__main__":
    main()
