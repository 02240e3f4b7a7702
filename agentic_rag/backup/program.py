"""The backup program: a server runs the command line in a separate process, so that no turn waits for a backup.

This module starts that process, reads its output and ends it.
"""

import sys
from collections.abc import Callable

import anyio
from anyio.abc import ByteReceiveStream
from anyio.streams.text import TextReceiveStream

from agentic_rag.base.settings import Settings, own_environment
from mcp_servers.child_processes import end_process

MAX_SAID = 16 * 1024
"""Number of characters kept of the process's output, from its end."""


class ProgramFailed(Exception):
    """The process ended with an exit code other than 0; the text is its last output line."""


async def run_program(
    settings: Settings, *arguments: str, on_line: Callable[[str], object] = lambda line: None
) -> None:
    """Run ``agentic-rag backup`` with these arguments. ``on_line`` is called with each line of standard output.

    Cancelling kills the process; call `remove_leftovers` to remove its unfinished files.

    Raises:
        ProgramFailed: the process failed.
    """
    command = [sys.executable, "-m", "agentic_rag.cli", "backup", *arguments, "--data", str(settings.data)]
    env = own_environment(settings)
    async with await anyio.open_process(command, stdin=None, env=env, start_new_session=True) as process:
        error_lines: list[str] = []
        try:
            assert process.stdout is not None
            assert process.stderr is not None
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(_hear_lines, process.stdout, on_line)
                tasks.start_soon(_hear_lines, process.stderr, error_lines.append)
            await process.wait()
        except ExceptionGroup as exc:
            await end_process(process)
            raise ProgramFailed(f"it could not be heard: {_first(exc)}") from exc
        except BaseException:
            await end_process(process)
            raise
    if process.returncode:
        words = "\n".join(error_lines)[-MAX_SAID:].strip().removeprefix("error: ").splitlines()
        raise ProgramFailed(words[-1] if words else f"it ended with {process.returncode}")


async def _hear_lines(stream: ByteReceiveStream, on_line: Callable[[str], object]) -> None:
    rest = ""
    async for text in TextReceiveStream(stream, errors="replace"):
        *lines, rest = (rest + text).split("\n")
        for line in lines:
            on_line(line)
        rest = rest[-MAX_SAID:]
    if rest:
        on_line(rest)


def _first(group: ExceptionGroup[Exception]) -> Exception:
    first = group.exceptions[0]
    return _first(first) if isinstance(first, ExceptionGroup) else first
