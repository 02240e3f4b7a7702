"""Storage of memories: the protocols of a storage, and its implementation with files in PromptX's layout.

Owns the protocols that another storage implements, for example a host's database. Every method blocks. All methods
except those of a `Stock` may raise `MemoryUnavailable`. Knows neither recall nor threads: a memory serialises its
calls.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

from mcp_servers.promptx.ids import ID
from mcp_servers.promptx.ledger import Engram, Ledger, Lesson, Tip, Which, has_memory
from mcp_servers.promptx.network import Network, RecallActivation
from mcp_servers.promptx.snapshot import NetworkFile, NetworkFiles
from mcp_servers.safe_files import Folder


class EngramLedger(Protocol):
    """The engrams of one memory. `mcp_servers.promptx.ledger.Ledger` documents the methods.

    ``after``: a write raises `NewerEngrams` if the memory has a row with a greater number. Without ``after``, it does
    not check that.

    Rows are numbered in the order in which they became visible. A number is reused only if it belonged to the last row
    and that row was deleted, as in SQLite.
    """

    def reading(self) -> AbstractContextManager[None]:
        """Keep several reads consistent.

        No read returns a row after the tip that the block has read. The next tip reflects a row that is deleted
        meanwhile.
        """
        ...

    def insert(self, engrams: Sequence[Engram], limit: int | None = None, after: int | None = None) -> int: ...
    def replace(self, engrams: Sequence[Engram], limit: int | None = None, after: int | None = None) -> int: ...
    def delete(self, ids: Sequence[str]) -> int: ...
    def tip(self) -> Tip: ...
    def newest_row(self) -> int: ...
    def count_since(self, since: Tip, upto: Tip) -> int | None: ...
    def lessons(self, after: int, upto: Tip) -> Iterator[Lesson]: ...
    def replaced_since(self, after: int, upto: Tip) -> list[Engram]: ...
    def texts(self, after: int) -> Iterator[tuple[int, str, tuple[str, ...], str]]: ...
    def near(self, words: Sequence[str]) -> list[Engram]: ...
    def fetch(self, ids: Sequence[str]) -> list[Engram]: ...
    def strongest(self, limit: int) -> list[Engram]: ...
    def page(self, offset: int, limit: int, text: str, which: Which = "current") -> tuple[int, list[Engram]]: ...
    def all(self) -> list[Engram]: ...
    def close(self) -> None: ...


class RecallCounts(Protocol):
    """The recall counts of each cue, and other stored data that is derived from the engrams."""

    def is_there(self) -> bool:
        """Return whether the memory exists."""
        ...

    def lock(self) -> AbstractContextManager[None]:
        """Prevent other processes from writing while the context is open."""
        ...

    def read(self) -> NetworkFile | None:
        """Return the stored data, or None if it is missing or damaged."""
        ...

    def read_changed(self) -> NetworkFile | None:
        """Return the stored data if another process may have changed it since the last read or write; else None."""
        ...

    def write(
        self, network: Network, words: Sequence[str], tip: Tip, new_counts: Mapping[str, int], now_ms: int
    ) -> None:
        """Store a network that has ``words`` and the rows up to ``tip``.

        ``new_counts``: recalls that ``network`` counts and that are not stored yet.
        """
        ...

    def write_state(self, mind: RecallActivation, center: str | None, now_ms: int) -> None:
        """Store the last activation. May raise OSError."""
        ...

    def remove_state(self) -> None:
        """Delete the stored activation."""
        ...


@dataclass(frozen=True, slots=True)
class CachedMemory:
    """The storage of one memory. Reading and writing do not wait for each other."""

    reader: EngramLedger
    writer: EngramLedger
    counts: RecallCounts


class Stock(Protocol):
    """A storage for the memories of many roles. A memory's name is the folder in which PromptX would store it."""

    def prepare(self, folder: Folder) -> None:
        """Prepare a memory before each use."""
        ...

    def place(self, folder: Folder) -> CachedMemory:
        """Return the memory of this name, also if it does not exist yet. Does not access the storage."""
        ...

    def has(self, folder: Folder) -> bool:
        """Return whether a memory exists."""
        ...

    def roles(self, around: Folder) -> list[str]:
        """Return the roles that have a memory in the folder around them, by id."""
        ...

    def remove(self, around: Folder) -> None:
        """Remove all memories in the folder around them. May raise OSError."""
        ...


class FileStock:
    """Memories in PromptX's folders, below the workspaces. Implements `Stock`."""

    def prepare(self, folder: Folder) -> None:
        """See `Stock.prepare`: files need nothing."""

    def place(self, folder: Folder) -> CachedMemory:
        return CachedMemory(Ledger(folder), Ledger(folder), NetworkFiles(folder))

    def has(self, folder: Folder) -> bool:
        return has_memory(folder)

    def roles(self, around: Folder) -> list[str]:
        """See `Stock.roles`. Links are ignored, because they could lead out of the workspace."""
        names = (entry.name for entry in around.entries() if entry.kind == "folder" and ID.match(entry.name))
        return [name for name in names if has_memory(around.at(name))]

    def remove(self, around: Folder) -> None:
        if around.is_there():
            around.remove_tree()


FILES = FileStock()
