"""Checks of the memories of a workspace: damage to their databases and derived files.

Owns the checks and the rebuilding of derived files. A database is opened only for reading, and only if `Ledger` would
open it: never through a link, never with another schema. Blocks.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from mcp_servers.promptx import snapshot
from mcp_servers.promptx.errors import MemoryUnavailable
from mcp_servers.promptx.ledger import COMPANIONS, DATABASE, Ledger, Tip
from mcp_servers.promptx.memory import Memory
from mcp_servers.safe_files import Folder, FolderEntry

LAYOUTS: Final = ("cognition", "cognition.user")
"""The folders of ``.promptx`` that hold memories: those of the domain, and those of each user."""
DERIVED: Final = (snapshot.NETWORK, snapshot.STATE)
CHECK_SECONDS: Final = 120.0
"""Time limit for the check of one database."""
MAX_STATE: Final = 64 << 20
"""Maximum bytes of a ``state.json``."""


@dataclass(frozen=True, slots=True)
class MemoryTrouble:
    """A problem of one memory. ``derived``: whether the file can be rebuilt from the engrams."""

    place: Path
    reason: str
    derived: bool = False


def examine_memories(workspace: Path, *, repair: bool = False) -> Iterator[MemoryTrouble]:
    """Yield the problems of a workspace's memories, in a fixed order. ``repair``: rebuild damaged derived files."""
    for layout in LAYOUTS:
        around = Folder(workspace, (".promptx", layout))
        try:
            for entry in around.walk():
                yield from _examine_entry(around, entry, repair)
        except OSError as exc:
            yield MemoryTrouble(around.path, exc.strerror or type(exc).__name__)


def _examine_entry(around: Folder, entry: FolderEntry, repair: bool) -> Iterator[MemoryTrouble]:
    if entry.name == DATABASE and entry.kind == "file":
        inside = entry.path.rpartition("/")[0]
        folder = around.at(inside) if inside else around
        if not _is_unwritten(folder):
            yield from _examine_memory(folder, repair)
    elif entry.kind == "link" and entry.name not in DERIVED:  # a derived file is replaced, even if it is a link
        yield MemoryTrouble(around.path / entry.path, "it is a link, and links are not followed here")
    elif entry.kind == "other" and entry.name in (DATABASE, *COMPANIONS):
        yield MemoryTrouble(around.path / entry.path, "it is not a regular file")


def _is_unwritten(folder: Folder) -> bool:
    """Return whether a memory was created but never written. Its next use creates the tables, so nothing is lost."""
    sizes = [0 if (status := folder.status(name)) is None else status.st_size for name in (DATABASE, f"{DATABASE}-wal")]
    return not any(sizes) and folder.status(snapshot.NETWORK) is None


def _examine_memory(folder: Folder, repair: bool) -> Iterator[MemoryTrouble]:
    ledger = Ledger(folder, read_only=True, seconds=CHECK_SECONDS)
    try:
        damage = ledger.find_damage()
        tip = ledger.tip()
    except MemoryUnavailable as exc:
        damage = [exc.reason]
    finally:
        ledger.close()
    if damage:
        yield MemoryTrouble(folder.path / DATABASE, "; ".join(damage))
        return
    if reason := _network_problem(folder, tip):
        yield MemoryTrouble(folder.path / snapshot.NETWORK, reason, derived=True)
        if repair:
            yield from _remake_network(folder)
    if _is_state_damaged(folder):
        yield MemoryTrouble(folder.path / snapshot.STATE, "it cannot be read", derived=True)
        if repair:
            folder.remove(snapshot.STATE)  # the next recall writes it


def _network_problem(folder: Folder, tip: Tip) -> str:
    if not tip.size:
        return ""
    file = snapshot.read_network(folder)
    if file is None:
        return "it is missing or cannot be read"
    return "" if file.newest in (None, tip.id) else "it lacks the newest engrams"


def _remake_network(folder: Folder) -> Iterator[MemoryTrouble]:
    memory = Memory(folder)
    try:
        memory.save()
    except MemoryUnavailable as exc:
        yield MemoryTrouble(folder.path / snapshot.NETWORK, exc.reason)
    finally:
        memory.close()


def _is_state_damaged(folder: Folder) -> bool:
    try:
        return not isinstance(json.loads(folder.read(snapshot.STATE, MAX_STATE)), dict)
    except FileNotFoundError:
        return False
    except (OSError, ValueError, RecursionError):
        return True
