"""One file to a `ParsedDocument`: which reader reads it, and the capped child process it is read in.

`parse` blocks and trusts its caller to have set limits; `parse_in_child` is for anything a user sent. The readers
themselves are in `formats/`; chunks and the index are unknown here.
"""

import json
import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

import anyio
from anyio.abc import Process

import mcp_servers
from mcp_servers.retriever.document import ParsedDocument, ParseLimits
from mcp_servers.retriever.errors import DocumentError
from mcp_servers.retriever.formats import reader_for

__all__ = ["DocumentError", "ParseLimits", "ParsedDocument", "parse", "parse_in_child"]

KILL_SECONDS = 5.0
"""How long a killed child is waited for; it has no handlers, so only a stuck disk takes this long."""

OUTPUT_FACTOR = 8
"""Bytes of JSON allowed for each allowed character of text (escapes, structure)."""

DEFAULT_LIMITS = ParseLimits()


def parse(path: Path, name: str, limits: ParseLimits = DEFAULT_LIMITS) -> ParsedDocument:
    """Read the file at `path`; `name` (as the uploader called it) decides the format by its ending.

    Blocking. Raises `DocumentError`, and `MemoryError` or whatever a format library throws at hostile input only
    as `DOCUMENT_BROKEN`.
    """
    reader = reader_for(name)
    size = path.stat().st_size
    if size == 0:
        raise DocumentError("DOCUMENT_EMPTY", "the file is empty")
    if size > limits.max_bytes:
        raise DocumentError("DOCUMENT_TOO_LARGE", f"the file has {_mib(size)}; the limit is {_mib(limits.max_bytes)}")
    try:
        parsed = reader(path, limits)
    except (DocumentError, MemoryError):
        raise
    except Exception as exc:  # third-party readers throw anything at broken files: this is the one boundary
        raise DocumentError("DOCUMENT_BROKEN", f"the file cannot be read ({type(exc).__name__}: {exc})"[:500]) from exc
    if not any(block.text.strip() for block in parsed.blocks):
        raise DocumentError("DOCUMENT_EMPTY", "the file holds no text")
    characters = sum(len(block.text) for block in parsed.blocks)
    if characters > limits.max_characters:
        message = f"the file holds {characters:,} characters; the limit is {limits.max_characters:,}"
        raise DocumentError("DOCUMENT_TOO_LARGE", message)
    return parsed


async def parse_in_child(path: Path, name: str, limits: ParseLimits = DEFAULT_LIMITS) -> ParsedDocument:
    """`parse` in a child process with memory, CPU, time and output caps; the child is killed on cancellation.

    The child gets no environment of ours. Raises `DocumentError`; a child that is killed, runs out of memory or
    crashes is `DOCUMENT_TIMEOUT`, `DOCUMENT_TOO_LARGE` or `DOCUMENT_BROKEN`.
    """
    arguments = json.dumps({name: getattr(limits, name) for name in ParseLimits.__slots__})
    command = [sys.executable, "-P", "-m", "mcp_servers.retriever.parsing", str(path), name, arguments]
    environment = {"PYTHONPATH": str(Path(mcp_servers.__file__).parent.parent), "PYTHONUTF8": "1"}
    process = await anyio.open_process(command, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment)
    try:
        with anyio.fail_after(limits.seconds):
            output = await _read(process, limits.max_characters * OUTPUT_FACTOR)
            status = await process.wait()
    except TimeoutError:
        raise DocumentError("DOCUMENT_TIMEOUT", f"reading the file took more than {limits.seconds:g} s") from None
    finally:
        if process.returncode is None:
            process.kill()
        with anyio.move_on_after(KILL_SECONDS, shield=True):
            await process.aclose()
    return _result(status, output, limits)


async def _read(process: Process, limit: int) -> bytes:
    assert process.stdout is not None
    output = bytearray()
    async for piece in process.stdout:
        output += piece
        if len(output) > limit:
            raise DocumentError("DOCUMENT_TOO_LARGE", "the file unfolds into more text than can be indexed")
    return bytes(output)


def _result(status: int, output: bytes, limits: ParseLimits) -> ParsedDocument:
    if status == -signal.SIGXCPU or status == -signal.SIGKILL:
        raise DocumentError("DOCUMENT_TIMEOUT", f"reading the file took more than {limits.seconds:g} s of work")
    if status != 0:
        raise DocumentError("DOCUMENT_BROKEN", "the file made its reader crash")
    answer = json.loads(output)
    if "code" in answer:
        raise DocumentError(answer["code"], answer["message"])
    return ParsedDocument.from_json(answer)


def _mib(size: int) -> str:
    return f"{size / 2**20:.1f} MiB"


def _child(path: str, name: str, arguments: str) -> None:
    """The child's main: limits first, then the file; one JSON object on stdout."""
    limits = ParseLimits(**json.loads(arguments))
    resource.setrlimit(resource.RLIMIT_AS, (limits.memory_bytes, limits.memory_bytes))
    seconds = max(1, round(limits.seconds))
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    # A reader that prints or warns must not corrupt the answer.
    answer_file = os.fdopen(os.dup(1), "w", encoding="ascii")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    try:
        answer = parse(Path(path), name, limits).to_json()
    except DocumentError as error:
        answer = {"code": error.code, "message": error.message}
    except MemoryError:
        message = f"reading the file needs more than {_mib(limits.memory_bytes)} of memory"
        answer = {"code": "DOCUMENT_TOO_LARGE", "message": message}
    with answer_file:
        json.dump(answer, answer_file)


if __name__ == "__main__":
    _child(*sys.argv[1:])
