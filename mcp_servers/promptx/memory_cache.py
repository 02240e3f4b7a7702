"""Where memories are kept: what a memory asks of such a place, and files in PromptX's own layout as the first of them.

Owns the protocols that another place implements, a host's database say. Every method blocks, and all but those of a
stock may raise `MemoryUnavailable`. Knows neither recall nor threads: a memory serialises its calls.
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
    """The engrams of one memory; `mcp_servers.promptx.ledger.Ledger` says of each method what it does.

    Rows are numbered in the order in which they became visible. Only the last one's number may come again, once that
    row is deleted, as SQLite's do.
    """

    def reading(self) -> AbstractContextManager[None]:
        """Let several reads agree: none gives a row after the tip that the block asked for; one deleted meanwhile
        shows in the next tip.
        """
        ...

    def insert(self, engrams: Sequence[Engram], limit: int | None = None) -> int: ...
    def replace(self, engrams: Sequence[Engram], limit: int | None = None) -> int: ...
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
    """How often each cue was recalled, and what else follows from the engrams and is kept all the same."""

    def is_there(self) -> bool:
        """Whether anything was ever remembered."""
        ...

    def lock(self) -> AbstractContextManager[None]:
        """Keep other processes from writing meanwhile."""
        ...

    def read(self) -> NetworkFile | None:
        """Return what is kept; None: nothing, or it is damaged."""
        ...

    def read_changed(self) -> NetworkFile | None:
        """Return what is kept if another process may have written it since the last read or write."""
        ...

    def write(
        self, network: Network, words: Sequence[str], tip: Tip, new_counts: Mapping[str, int], now_ms: int
    ) -> None:
        """Keep a network, which knows ``words`` and the rows up to ``tip``. ``new_counts``: recalls that ``network``
        counts and that are not kept yet.
        """
        ...

    def write_state(self, mind: RecallActivation, center: str | None, now_ms: int) -> None:
        """Keep the last activation. May raise OSError."""
        ...

    def remove_state(self) -> None:
        """Forget the last activation."""
        ...


@dataclass(frozen=True, slots=True)
class CachedMemory:
    """One memory where it is kept. Reading and writing do not wait for each other."""

    reader: EngramLedger
    writer: EngramLedger
    counts: RecallCounts


class Stock(Protocol):
    """A place for the memories of many roles, each named by the folder that PromptX would keep it in."""

    def prepare(self, folder: Folder) -> None:
        """Do what must be done before each use of a memory."""
        ...

    def place(self, folder: Folder) -> CachedMemory:
        """Return the memory of that name, whether there is one yet or not; asks nothing of the place."""
        ...

    def has(self, folder: Folder) -> bool:
        """Whether anything was ever remembered in it."""
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
        """See `Stock.roles`; a link could lead out of the workspace and does not count."""
        names = (each.name for each in around.entries() if each.kind == "folder" and ID.match(each.name))
        return [name for name in names if has_memory(around.at(name))]

    def remove(self, around: Folder) -> None:
        if around.is_there():
            around.remove_tree()


FILES = FileStock()
