"""Memory files in a bundle: one JSON file per role, with the content of the memories but without their owner.

This module defines the format and checks memories from untrusted bundles.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from agentic_rag.base.bundle_errors import BundleDamaged
from agentic_rag.base.errors import QuotaExceeded, StorageFull
from agentic_rag.base.json_form import Json
from agentic_rag.base.redaction import Redaction
from agentic_rag.bundles.form import pretty, read_object
from mcp_servers.promptx.errors import BadEngram, MemoryFull, MemoryUnavailable
from mcp_servers.promptx.ledger import Engram
from mcp_servers.promptx.memory import MemoryCache
from mcp_servers.promptx.new_engrams import check_engram
from mcp_servers.safe_files import Folder

MAX_ID = 100
LATEST_MS = 4_102_444_800_000
"""The year 2100."""
MemoryContent = tuple[list[Engram], dict[str, int]]


def memory_to_bytes(engrams: Sequence[Engram], frequencies: Mapping[str, int], redaction: Redaction) -> bytes:
    """Return the file of a memory, without secrets; `memory_from_bytes` reads the file."""
    engram_objects = [redaction.json(engram.to_json()) for engram in engrams]
    return pretty(
        {"engrams": engram_objects, "frequencies": {redaction(cue): count for cue, count in frequencies.items()}}
    )


def memory_from_bytes(path: str, data: bytes) -> MemoryContent:
    """Return the engrams of a file, and the number of recalls of each cue.

    Raises:
        BundleDamaged: the file is invalid; the error names the invalid part.
    """
    document = read_object(path, data)
    engrams, counts = document.get("engrams"), document.get("frequencies")
    if not isinstance(engrams, list) or not isinstance(counts, dict):
        raise BundleDamaged(f"{path}: engrams and frequencies are expected")
    if not all(type(count) is int and 0 <= count <= 2**31 for count in counts.values()):
        raise BundleDamaged(f"{path}: frequencies has numbers only")
    return [_engram(path, number, item) for number, item in enumerate(engrams)], counts


def _engram(path: str, number: int, item: Any) -> Engram:
    match item:
        case {
            "id": str(ident),
            "content": str(content),
            "type": str(kind),
            "strength": int() | float() as strength,
            "createdAt": int(created),
            "cues": [*cues],
        } if 0 < len(ident) <= MAX_ID and 0 <= created <= LATEST_MS and all(isinstance(cue, str) for cue in cues):
            engram = Engram(
                ident,
                content,
                kind,
                strength,
                created,
                tuple(cues),
                replaces=_reference(item, "replaces"),
                replaced_by=_reference(item, "replacedBy"),
            )
        case _:
            raise BundleDamaged(f"{path}: engrams.{number} is no memory")
    try:
        return check_engram(number, engram, sum(map(len, engram.cues)))
    except BadEngram as exc:
        raise BundleDamaged(f"{path}: engrams.{number}: {exc.reason}") from exc


def _reference(item: Json, name: str) -> str:
    reference = item.get(name, "")
    return reference[:MAX_ID] if isinstance(reference, str) and "\0" not in reference else ""


def add_memory(cache: MemoryCache, folder: Folder, content: MemoryContent, limit: int) -> None:
    """Add missing engrams to the role's memory that ``folder`` names. Blocks.

    Raises:
        QuotaExceeded, StorageFull: the memory is full, or cannot be written now.
    """
    engrams, counts = content
    with _translate_errors():
        memory = cache.memory(folder)
        memory.add(engrams, counts, limit)
        memory.save()


def check_room(cache: MemoryCache, folder: Folder, content: MemoryContent, limit: int) -> None:
    """Check whether `add_memory` would fail, without changing anything. Blocks.

    Raises:
        QuotaExceeded, StorageFull: the memory is full, or cannot be written now.
    """
    with _translate_errors():
        cache.memory(folder).check_room([engram.id for engram in content[0]], limit)


@contextmanager
def _translate_errors() -> Iterator[None]:
    """Translate a memory's exceptions raised inside into the product's errors."""
    try:
        yield
    except MemoryFull as exc:
        raise QuotaExceeded("memories of one role", exc.limit, "AGENTIC_RAG_QUOTA_MEMORIES") from exc
    except MemoryUnavailable as exc:
        raise StorageFull(str(exc)) from exc
