"""The storage of a memory as a reader sees it who must not see some of its engrams.

Reads leave the hidden engrams out, so that neither results, keywords and counts nor the network of cues depend on
them. New engrams are stored in the whole memory. Data that is derived from all engrams, such as recall counts, is
neither read nor written.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext

from mcp_servers.promptx.ledger import Engram, Lesson, Tip, Which
from mcp_servers.promptx.memory_cache import CachedMemory, EngramLedger
from mcp_servers.promptx.network import Network, RecallActivation
from mcp_servers.promptx.snapshot import NetworkFile

ALL = 2**31
"""More engrams than a memory can hold."""


def without_engrams(storage: CachedMemory, hidden: Collection[str]) -> CachedMemory:
    """Return the storage of a memory without the engrams of these ids."""
    ids = frozenset(hidden)
    return CachedMemory(_VisibleLedger(storage.reader, ids), _VisibleLedger(storage.writer, ids), _NoCounts())


class _VisibleLedger:
    """Implements `EngramLedger` without the hidden engrams."""

    def __init__(self, ledger: EngramLedger, hidden: frozenset[str]) -> None:
        self._ledger = ledger
        self._hidden = hidden

    def _visible(self, engrams: Sequence[Engram]) -> list[Engram]:
        return [engram for engram in engrams if engram.id not in self._hidden]

    def reading(self) -> AbstractContextManager[None]:
        return self._ledger.reading()

    def insert(self, engrams: Sequence[Engram], limit: int | None = None, after: int | None = None) -> int:
        return self._ledger.insert(engrams, limit, after)

    def replace(self, engrams: Sequence[Engram], limit: int | None = None, after: int | None = None) -> int:
        return self._ledger.replace(engrams, limit, after)

    def delete(self, ids: Sequence[str]) -> int:
        return self._ledger.delete([engram_id for engram_id in ids if engram_id not in self._hidden])

    def tip(self) -> Tip:
        return self._ledger.tip()

    def newest_row(self) -> int:
        return self._ledger.newest_row()

    def count_since(self, since: Tip, upto: Tip) -> int | None:
        return self._ledger.count_since(since, upto)

    def lessons(self, after: int, upto: Tip) -> Iterator[Lesson]:
        return (lesson for lesson in self._ledger.lessons(after, upto) if lesson[0] not in self._hidden)

    def replaced_since(self, after: int, upto: Tip) -> list[Engram]:
        return self._visible(self._ledger.replaced_since(after, upto))

    def texts(self, after: int) -> Iterator[tuple[int, str, tuple[str, ...], str]]:
        return (row for row in self._ledger.texts(after) if row[1] not in self._hidden)

    def near(self, words: Sequence[str]) -> list[Engram]:
        return self._visible(self._ledger.near(words))

    def fetch(self, ids: Sequence[str]) -> list[Engram]:
        return self._visible(self._ledger.fetch(ids))

    def strongest(self, limit: int) -> list[Engram]:
        # All hidden engrams may be among the strongest.
        return self._visible(self._ledger.strongest(limit + len(self._hidden)))[:limit]

    def page(self, offset: int, limit: int, text: str, which: Which = "current") -> tuple[int, list[Engram]]:
        # The ledger cannot count without the hidden engrams, so all matching ones are read.
        engrams = self._visible(self._ledger.page(0, ALL, text, which)[1])
        return len(engrams), engrams[offset : offset + limit]

    def all(self) -> list[Engram]:
        return self._visible(self._ledger.all())

    def close(self) -> None:
        self._ledger.close()


class _NoCounts:
    """Implements `RecallCounts` without storing anything."""

    def is_there(self) -> bool:
        return False

    def lock(self) -> AbstractContextManager[None]:
        return nullcontext()

    def read(self) -> NetworkFile | None:
        return None

    def read_changed(self) -> NetworkFile | None:
        return None

    def write(
        self, network: Network, words: Sequence[str], tip: Tip, new_counts: Mapping[str, int], now_ms: int
    ) -> None: ...

    def write_state(self, mind: RecallActivation, center: str | None, now_ms: int) -> None: ...

    def remove_state(self) -> None: ...
