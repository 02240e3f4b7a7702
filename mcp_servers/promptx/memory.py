"""One role's memory: remember, recall, browse, delete, export, import.

The blocking API that the server, the CLI and the REST layer share; call it in a worker thread. Owns the layout of
scopes, the network that is cached between calls, and the times at which the derived files are written. Knows nothing of
MCP, of roles' texts or of permissions.

The network is cached because building it from 100 000 engrams takes a second, while a recall takes milliseconds. Before
each use the database's tip is compared with the last learned tip, so that the cache includes rows of other processes.

PromptX needs `network.json`; this package does not. A `remember` writes the file when it lacks more than a tenth of the
engrams. Closing or saving a memory completes the file (at the end of an MCP session or of the process, or when the
memory is evicted), and so do delete and import. So the cost per engram is the same at any size, and a folder can be
copied.
"""

import atexit
import logging
import threading
import time
import unicodedata
from collections import Counter, OrderedDict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from heapq import nsmallest
from pathlib import Path
from typing import Final, Literal

from mcp_servers.promptx.errors import (
    BadEngram,
    BadRecall,
    BadScope,
    MemoryFull,
    MemoryUnavailable,
    NotYours,
    UnknownMemory,
    UnknownReplaced,
)
from mcp_servers.promptx.ids import check_id, is_plain
from mcp_servers.promptx.ledger import BATCH, EMPTY, Engram, Lesson, NewerEngrams, Tip, Which
from mcp_servers.promptx.memory_cache import FILES, CachedMemory, Stock
from mcp_servers.promptx.network import (
    MODES,
    RECALL_STEP,
    Edge,
    Fallback,
    Network,
    Query,
    RecallActivation,
    Trace,
    choose_centres,
    collect,
    mindmap,
    object_order,
    rank,
    spread,
)
from mcp_servers.promptx.new_engrams import MAX_BATCH, NewEngram, make_engram
from mcp_servers.promptx.similarity import is_known, is_same, near_words, nearest
from mcp_servers.promptx.tokenizer import WordIndex, gist_of, newest_first, words_of
from mcp_servers.promptx.visible_memory import without_engrams
from mcp_servers.promptx.yielding import giving_way
from mcp_servers.safe_files import Folder

Scope = Literal["domain", "user"]

MAX_QUERY: Final = 2_000
MAX_FOLDER_NAME: Final = 240
"""Maximum bytes of an encoded user id. File systems allow 255."""
ASSOCIATED: Final = 0.5
"""Relevance of a memory without a word of the query, before it is reduced by its distance in the network."""
OVERVIEW_ENGRAMS: Final = 50
OVERVIEW_CHARS: Final = 4_000
"""Maximum characters of the overview, about a thousand tokens of the role's strongest memories."""
MAX_OPEN: Final = 64
MAX_ENGRAMS: Final = 300_000
"""Limits of open memories (`MAX_OPEN`) and their engrams. Beyond them, the least recently used memory is closed."""
CLOSER: Final = "memory-closer"
CLOSE_SECONDS: Final = 1.0
"""How long a caller waits for evicted memories to close, in seconds. A thread closes them, as a folder may hang."""
ENGRAMS_AT_ONCE: Final = 100
"""Engrams that are learned between two pauses for other threads."""
LAG_SHARE: Final = 10
"""A remember writes the network file if it lacks more than one in this many engrams."""

_PLAIN_BYTES: Final = frozenset(b"abcdefghijklmnopqrstuvwxyz0123456789_-")

log = logging.getLogger(__name__)


def memory_folder(workspace: Path, scope: str, user: str | None, role: str) -> Folder:
    """Return the folder of a role's memory.

    `domain` is the layout of a PromptX home: `.promptx/cognition/{role}`. `user` is
    `.promptx/cognition.user/{user}/{role}`, the user id percent-encoded so that different ids give different folders,
    also on file systems that fold case.

    Raises:
        BadScope: unknown scope, or a user id that is empty, too long or a path.
        BadRoleId: the role is no legal id.
    """
    role = unicodedata.normalize("NFC", check_id(role))
    if scope == "domain":
        return Folder(workspace, (".promptx", "cognition", role))
    if scope == "user":
        return Folder(workspace, (".promptx", "cognition.user", _user_folder(user or ""), role))
    raise BadScope("scope", scope, "must be 'domain' or 'user'.")


def _user_folder(user: str) -> str:
    if not user or not user.isprintable() or user in (".", "..") or "/" in user or "\\" in user:
        raise BadScope("user", user, "must be printable text without '/' or '\\', and not '.' or '..'.")
    name = "".join(chr(byte) if byte in _PLAIN_BYTES else f"%{byte:02X}" for byte in user.encode())
    if len(name) > MAX_FOLDER_NAME:
        raise BadScope("user", user, f"is too long: {len(name)} bytes encoded, {MAX_FOLDER_NAME} allowed.")
    return name


@dataclass(frozen=True, slots=True)
class SimilarEngrams:
    """A new engram and the stored ones that are similar to it, the most similar first."""

    engram: Engram
    similar: tuple[Engram, ...]


@dataclass(frozen=True, slots=True)
class Remembered:
    """The result of a batch: the saved engrams, stored duplicates, and stored engrams similar to the new ones."""

    saved: tuple[Engram, ...]
    duplicates: tuple[Engram, ...]
    near: tuple[SimilarEngrams, ...]

    @property
    def others(self) -> list[Engram]:
        """The stored engrams that are shown: duplicates and similar ones."""
        return [*self.duplicates, *(old for pair in self.near for old in pair.similar)]


@dataclass(frozen=True, slots=True)
class Recollection:
    """The result of a recall.

    `engrams`: engrams of the activated cues, in PromptX's ranking. `overview`: the strongest engrams of the memory, if
    the query named no cue or there was no query; else empty. `answer`: first the engrams with words of the query, then
    the other `engrams`; similar ones are ordered newest first. `matched`: the number of
    engrams in `answer` with words of the query.
    """

    mind: RecallActivation
    center: str | None
    mode: str
    fallback: Fallback | None
    engrams: tuple[Engram, ...]
    overview: tuple[Engram, ...]
    mindmap: tuple[str, ...]
    answer: tuple[Engram, ...]
    matched: int
    relevance: Mapping[str, float]
    """Relevance of each id in `answer`, from 0 to 1: the share of the query's words that the engram has.

    For engrams that were only reached through the network, it is less than `ASSOCIATED` and falls with their distance.
    """

    @property
    def edges(self) -> Sequence[Edge]:
        """The recorded steps of the activation."""
        return self.mind.edges


@dataclass(frozen=True, slots=True)
class EngramPage:
    """A page of a memory, newest first. `total` counts all matching engrams."""

    total: int
    engrams: tuple[Engram, ...]


class Memory:
    """The memory of one folder, stored there or in another storage under the folder's name.

    Creating the object is cheap. It may be used from several threads and processes, and after `close`.

    `_lock` guards the network and the reading connection. Writing has a separate connection and lock, so that a
    remember waits neither for a recall nor for building the network.

    Every method may raise `MemoryUnavailable` (locked for too long, disk full, read-only or corrupt files). No change
    is half saved then.
    """

    def __init__(self, folder: Folder, storage: CachedMemory | None = None) -> None:
        """``storage``: the storage of the memory. None: the folder itself."""
        storage = FILES.place(folder) if storage is None else storage
        self.folder = folder
        self._lock = threading.RLock()
        self._ledger = storage.reader
        self._write_lock = threading.Lock()
        self._writer = storage.writer
        self._counts = storage.counts
        self._network: Network | None = None
        self._traces: dict[str, Trace] = {}
        """Ranking data of every engram, by id; complete after `_current_network()`."""
        self._words: WordIndex | None = None
        """The words of the engrams. Built when a query has a word that is no cue for the first time."""
        self._tip: Tip = EMPTY
        self._unsaved: Counter[str] = Counter()
        """Recalls of each cue that are not in the network file yet."""
        self._lag = 0
        """Maximum number of engrams that the network file lacks."""

    @property
    def size(self) -> int:
        """Number of engrams whose ranking data is cached."""
        return len(self._traces)

    # --- operations of a model --------------------------------------------------------------------------------

    def remember(
        self,
        batch: Sequence[NewEngram],
        now_ms: int,
        *,
        author: str = "",
        turn: str = "",
        limit: int | None = None,
        own_only: bool = False,
    ) -> Remembered:
        """Save a batch in one transaction, except engrams that are stored word for word.

        ``author``, ``turn``: see `Engram`. ``limit``: maximum number of engrams in the memory.
        ``own_only``: only engrams of ``author`` may be replaced.

        Raises:
            BadEngram: an engram is invalid, or replaces one that does not exist; the error names its index.
            MemoryFull: there would be more than ``limit`` engrams.
            NotYours: an engram replaces another author's.
        """
        if not batch:
            raise BadEngram(0, "the batch is empty; give at least one engram.")
        if len(batch) > MAX_BATCH:
            raise BadEngram(MAX_BATCH, f"a batch has at most {MAX_BATCH} engrams.")
        engrams = [
            replace(make_engram(index, item, now_ms), author=author, turn=turn) for index, item in enumerate(batch)
        ]
        # Compared and written under one lock, so that two threads cannot save the same engram. Another process may save
        # it in between: then the write is refused, and the batch is compared again.
        with self._write_lock:
            while True:
                newest = self._writer.newest_row()
                replaced = {
                    engram.id: engram
                    for engram in self._writer.fetch([engram.replaces for engram in engrams if engram.replaces])
                }
                for index, engram in enumerate(engrams):
                    if engram.replaces and engram.replaces not in replaced:
                        raise UnknownReplaced(index, engram.replaces)
                if own_only:
                    _check_author(replaced.values(), author)
                comparisons = [(engram, self._writer.near(near_words(engram))) for engram in engrams]
                same = {
                    engram.id: next((old for old in old_ones if is_same(engram, old)), None)
                    for engram, old_ones in comparisons
                }
                new = [engram for engram in engrams if engram.replaces or same[engram.id] is None]
                with suppress(NewerEngrams):
                    if new:
                        self._lag += self._writer.replace(new, limit, newest)
                    break
        self.save_if_behind()
        # An engram is expected to be similar to the one that it replaces.
        replaced_ids = {engram.replaces for engram in new}
        near = [
            SimilarEngrams(engram, nearest(engram, [old for old in old_ones if old.id not in replaced_ids]))
            for engram, old_ones in comparisons
        ]
        return Remembered(
            tuple(new),
            tuple(old for engram in engrams if engram not in new and (old := same[engram.id])),
            tuple(pair for pair in near if pair.similar and pair.engram in new),
        )

    def propose(self, engrams: Sequence[Engram], limit: int | None = None) -> int:
        """Add engrams that the server proposes, except those that are known in other words. Existing ids are ignored.

        Returns the number of added engrams.

        Raises:
            MemoryFull: there would be more than ``limit`` engrams; none was added.
        """
        # Compared and inserted under one lock, and again if another process saved engrams meanwhile, as in `remember`.
        with self._write_lock:
            while True:
                newest = self._writer.newest_row()
                new: list[Engram] = []
                for engram in engrams:
                    if not is_known(engram, [*self._writer.near(near_words(engram)), *new]):
                        new.append(engram)
                with suppress(NewerEngrams):
                    added = self._writer.insert(new, limit, newest) if new else 0
                    break
            self._lag += added
        self.save_if_behind()
        return added

    def recall(self, query: Query, mode: str, now_ms: int, *, counted: bool = True) -> Recollection:
        """Activate the network from `query` (text, a list of cues, or None for the overview) and rank the engrams.

        ``counted`` False: the recall leaves recall frequencies and state unchanged.

        Raises:
            BadRecall: mode or query is invalid.
        """
        if mode not in MODES:
            raise BadRecall("mode", f"must be one of {', '.join(MODES)}, not {ascii(mode)[:40]}.")
        _check_query(query)
        with self._lock:
            network = self._current_network()
            centres, fallback = choose_centres(network, query)
            mind = spread(network, centres, MODES[mode])
            center = centres[0] if centres else None
            engrams: list[Engram] = []
            depths: Mapping[str, int] = {}
            if query is not None and fallback != "dmn":  # PromptX shows only the map then, as recorded recalls show
                depths = collect(network, mind)
                ids = rank(depths, self._traces, MODES[mode].limit, now_ms)
                engrams = self._ledger.fetch(ids)
            matches, matched, fits = self._find(network, query, engrams, MODES[mode].limit)
            relevance = {
                engram.id: round(
                    fits[engram.id] if engram.id in fits else ASSOCIATED / (1 + depths.get(engram.id, 1)), 4
                )
                for engram in matches
            }
            overview = self._overview() if query in (None, "null") or fallback == "dmn" else ()
            if counted:
                self._count_recall(network, mind, center, now_ms)
        return Recollection(
            mind, center, mode, fallback, tuple(engrams), overview, tuple(mindmap(mind)), matches, matched, relevance
        )

    def _find(
        self, network: Network, query: Query, engrams: Sequence[Engram], limit: int
    ) -> tuple[tuple[Engram, ...], int, Mapping[str, float]]:
        """Return the answer to a query, best first; the number of engrams with its words; and the fit of these, by id.

        ``engrams``: the engrams from the network, in its order.
        """
        if query is None or query == "null":
            return tuple(engrams), 0, {}
        fits = self._fits(network, query)
        places = {engram.id: place for place, engram in enumerate(engrams)}
        last = len(engrams)
        best = nsmallest(
            limit,
            (key for key in fits if key in self._traces),
            # Rounded, so that the order of the network decides between almost equal fits.
            key=lambda key: (-round(fits[key], 2), places.get(key, last), -self._traces[key][2]),
        )
        by_id = {engram.id: engram for engram in engrams}
        by_id |= {engram.id: engram for engram in self._ledger.fetch([key for key in best if key not in by_id])}
        matched = [key for key in best if key in by_id]
        rest = [engram.id for engram in engrams if engram.id not in fits][: limit - len(matched)]
        words = {key: gist_of(by_id[key].content, by_id[key].cues) for key in (*matched, *rest)}
        times = {key: self._traces[key][2] for key in words}
        ordered = [*newest_first(matched, words, times), *newest_first(rest, words, times)]
        return tuple(by_id[key] for key in ordered), len(matched), fits

    def _fits(self, network: Network, query: str | Sequence[str]) -> dict[str, float]:
        """Return the fit of engrams to the words of a query, by id.

        If every word equals a cue, the network is enough. If a word is no cue, all words are also searched for in the
        folded texts.
        """
        words = query.split() if isinstance(query, str) else query
        if words and all(word in network.edges for word in words):
            shares = Counter(key for word in dict.fromkeys(words) for key in network.engrams_of(word))
            if shares:  # none if other engrams have replaced all those of the cues
                return {key: count / len(words) for key, count in shares.items()}
        index = self._words = self._words or WordIndex()
        for row, key, cues, content in giving_way(self._ledger.texts(index.upto), ENGRAMS_AT_ONCE):
            index.learn(key, words_of(content, cues), row)
        return index.find(query if isinstance(query, str) else "\n".join(query))

    def _overview(self) -> tuple[Engram, ...]:
        chosen: list[Engram] = []
        budget = OVERVIEW_CHARS
        for engram in self._ledger.strongest(OVERVIEW_ENGRAMS):
            budget -= len(engram.content)
            if chosen and budget < 0:
                break
            chosen.append(engram)
        return tuple(chosen)

    def _count_recall(self, network: Network, mind: RecallActivation, center: str | None, now_ms: int) -> None:
        """Count a recall and write `state.json`.

        As in PromptX, the next remember writes the frequencies. Recalls also work in a folder that cannot be written.
        """
        if not network.edges:
            return
        self._unsaved.update(dict.fromkeys(network.count_recall(mind.activated), RECALL_STEP))
        try:
            self._counts.write_state(mind, center, now_ms)
        except OSError as exc:
            log.warning("state.json of memory %r was not written: %s", self.folder.name, exc.strerror)

    # --- operations of the owner ------------------------------------------------------------------------------

    def browse(self, offset: int = 0, limit: int = 50, q: str = "", which: Which = "current") -> EngramPage:
        """Return a page of engrams whose content or keywords contain `q` (ASCII letters in any case), newest first."""
        with self._lock:
            total, engrams = self._ledger.page(max(0, offset), max(0, limit), q, which)
        return EngramPage(total, tuple(engrams))

    def fetch(self, ids: Sequence[str]) -> list[Engram]:
        """Return the existing engrams of these ids."""
        with self._lock:
            return self._ledger.fetch(ids)

    def lineage(self, engram_id: str) -> list[Engram]:
        """Return an engram and its predecessors, each of which the one before replaced. Empty if it does not exist."""
        chain: list[Engram] = []
        following = self.fetch([engram_id])
        # A damaged file may name an engram as its own predecessor.
        while following and following[0].id not in {engram.id for engram in chain}:
            chain += following
            older = self.fetch([following[0].replaces])
            following = [engram for engram in older if engram.replaced_by == following[0].id]
        return chain

    def check_known(self, engram_id: str) -> None:
        """Check that the memory has an engram. Raises `UnknownMemory` if it has none of this id."""
        if not (is_plain(engram_id) and self.fetch([engram_id])):
            raise UnknownMemory(engram_id)

    def forget(self, engram_id: str, author: str = "", *, own_only: bool = False) -> Engram:
        """Delete an engram and its predecessors, and erase their bytes. Return the engram.

        ``own_only``: only engrams of ``author`` may be deleted.

        Raises:
            UnknownMemory: this memory has no engram of this id.
            NotYours: another author wrote one of the engrams.
        """
        lineage = self.lineage(engram_id) if is_plain(engram_id) else []
        if not lineage:
            raise UnknownMemory(engram_id)
        if own_only:
            _check_author(lineage, author)
        self.delete([engram.id for engram in lineage])
        return lineage[0]

    def delete(self, ids: Sequence[str]) -> int:
        """Delete engrams by id. Return the number of deleted engrams. Unknown ids are ignored."""
        with self._write_lock:
            removed = self._writer.delete(ids)
        if removed:
            self.save()  # at once, because the owner wants the keywords removed from the file too
            self._counts.remove_state()
        return removed

    def check_room(self, ids: Collection[str], limit: int) -> None:
        """Check whether `add` would accept engrams of these ids.

        Raises:
            MemoryFull: there would be more than ``limit`` engrams.
        """
        unique_ids = list(dict.fromkeys(ids))
        with self._lock:
            parts = [unique_ids[start : start + BATCH] for start in range(0, len(unique_ids), BATCH)]
            stored_count = sum(len(self._ledger.fetch(part)) for part in parts)
            total, _ = self._ledger.page(0, 0, "", "all")  # an empty page has the total as well
        if stored_count < len(unique_ids) and total + len(unique_ids) - stored_count > limit:
            raise MemoryFull(self.folder.path, limit)

    def export(self) -> list[Engram]:
        """Return every engram, oldest first."""
        with self._lock:
            return self._ledger.all()

    def frequencies(self) -> dict[str, int]:
        """Return the recall frequency of each cue, without cues that were never recalled."""
        with self._lock:
            return dict(self._current_network().frequency)

    def add(self, engrams: Sequence[Engram], frequencies: Mapping[str, int], limit: int | None = None) -> int:
        """Add engrams of another memory in one transaction, and adopt its recall counts where they are greater.

        Existing ids are left unchanged. Returns the number of added engrams. The next `save` writes the counts.

        Raises:
            MemoryFull: there would be more than ``limit`` engrams; none was added.
        """
        with self._write_lock:
            added = self._writer.insert(engrams, limit)
            self._lag += added
        with self._lock:
            network = self._current_network() if frequencies else Network()
            for word, count in frequencies.items():
                if word in network.edges and (more := count - network.frequency.get(word, 0)) > 0:
                    network.frequency[word] = count
                    self._unsaved[word] += more
        return added

    # --- the cached network and its file ------------------------------------------------------------

    def _current_network(self) -> Network:
        """Return the network, complete up to the newest engram in the database. Call with `_lock` held."""
        try:
            with self._ledger.reading():
                tip = self._ledger.tip()
                if self._network is None or tip != self._tip:
                    self._network = self._complete(tip)
                self._tip = tip
        except BaseException:
            self._network = None  # it may have learned only some of the new engrams
            raise
        return self._network

    def _complete(self, tip: Tip) -> Network:
        if self._network is None:
            file = self._counts.read()
            if file is None or file.newest not in (None, tip.id):  # the process that saved the newest engram was killed
                self._lag = max(self._lag, tip.size)
            return self._build(Counter(file.frequencies if file else {}) + self._unsaved, tip)
        added = self._ledger.count_since(self._tip, tip)
        if added is None or self._tip.size + added != tip.size:
            # Engrams were deleted. Edges cannot be removed one by one, so rebuild the network.
            return self._build(self._network.frequency, tip)
        self._learn(self._network, self._ledger.lessons(self._tip.rowid, tip))
        for engram in self._ledger.replaced_since(self._tip.rowid, tip):
            self._network.leave(engram.id, engram.cues)
            self._traces.pop(engram.id, None)
        return self._network

    def _build(self, frequency: Mapping[str, int], tip: Tip) -> Network:
        """Return a network of all engrams up to a tip, with the frequencies of the cues that still exist."""
        self._drop_network()
        network = Network()
        self._learn(network, self._ledger.lessons(0, tip))
        network.frequency = {word: count for word, count in frequency.items() if count > 0 and word in network.edges}
        return network

    def _drop_network(self) -> None:
        """Empty the network item by item, because freeing a huge one at once blocks every thread for 50 ms."""
        network, self._network = self._network, None
        for part in (self._traces, network.edges, network.members) if network else ():
            while part:
                part.popitem()
        self._traces = {}
        words, self._words = self._words, None
        if words is not None:
            words.clear()

    def _learn(self, network: Network, lessons: Iterable[Lesson]) -> None:
        for engram_id, words, trace, recalled in giving_way(lessons, ENGRAMS_AT_ONCE):
            if recalled:
                self._traces[engram_id] = trace
            network.learn(engram_id, words, int(trace[2]), trace[1], recalled=recalled)

    def save(self) -> None:
        """Write `network.json` now, including frequencies that another process saved meanwhile.

        Raises:
            MemoryUnavailable: the file could not be written. Nothing is lost: the engrams have everything except the
                frequencies, which stay in memory.
        """
        # The lock between processes comes first, so that recalls go on while another process holds it.
        with self._counts.lock():
            with self._lock:
                network = self._current_network()
                with self._write_lock:
                    self._lag = 0
                tip = self._tip
                if newer := self._counts.read_changed():
                    both = Counter(newer.frequencies) + self._unsaved
                    network.frequency = {word: count for word, count in both.items() if word in network.edges}
                saved, self._unsaved = self._unsaved, Counter()
                words = object_order(network.edges)
            # Written without `_lock`: recalls meanwhile are counted for the next file.
            try:
                self._counts.write(network, words, tip, saved, time.time_ns() // 1_000_000)
            except MemoryUnavailable:
                with self._lock:
                    self._unsaved.update(saved)
                raise

    def save_if_behind(self) -> None:
        """Write `network.json` if it lacks more than one in `LAG_SHARE` engrams. Called after each remember."""
        with self._write_lock:
            behind = self._lag * LAG_SHARE > self._writer.newest_row()
        if behind:
            self.save_if_due()

    def save_if_due(self) -> None:
        """Write `network.json` if it lacks an engram. A failure is logged; the next opening of the memory retries."""
        if not self._lag:
            return
        try:
            if self._counts.is_there():  # a memory that was removed meanwhile gets no new file
                self.save()
        except MemoryUnavailable as exc:
            log.warning("%s", exc)

    def close(self) -> None:
        """Save the network file if due, close the database and free the network. The next use reopens both."""
        self.save_if_due()
        with self._lock, self._write_lock:
            self._drop_network()
            self._ledger.close()
            self._writer.close()


class MemoryCache:
    """The memories that this process keeps open. ``stock``: their storage."""

    def __init__(self, stock: Stock = FILES) -> None:
        self._stock = stock
        self._lock = threading.Lock()
        self._memories: OrderedDict[Folder, Memory] = OrderedDict()

    def has(self, folder: Folder) -> bool:
        """Return whether a folder has a memory."""
        return self._stock.has(folder)

    def roles(self, around: Folder) -> list[str]:
        """Return the roles that have a memory in the folder around them, by id."""
        return self._stock.roles(around)

    def memory(self, folder: Folder) -> Memory:
        """Return the open memory of a folder, and close the least recently used memories beyond the limits."""
        evicted: list[Memory] = []
        self._stock.prepare(folder)
        with self._lock:
            memory = self._memories.setdefault(folder, Memory(folder, self._stock.place(folder)))
            self._memories.move_to_end(folder)
            engrams = sum(memory.size for memory in self._memories.values())
            while len(self._memories) > 1 and (len(self._memories) > MAX_OPEN or engrams > MAX_ENGRAMS):
                evicted.append(self._memories.popitem(last=False)[1])
                engrams -= evicted[-1].size
        # Closing writes files. On a slow disk the caller stops waiting after a time limit, and the thread continues.
        if evicted:
            closing = threading.Thread(target=_close_all, args=(evicted,), name=CLOSER, daemon=True)
            closing.start()
            closing.join(CLOSE_SECONDS)
        return memory

    @contextmanager
    def visible(self, folder: Folder, hidden_turns: Collection[str]) -> Iterator[Memory]:
        """Open a memory without the engrams that these turns saved.

        Nothing that the memory returns depends on the hidden engrams. If there are any, the network is built for this
        use alone, and recalls are not counted.
        """
        memory = self.memory(folder)
        hidden = {engram.id for engram in memory.export() if engram.turn in hidden_turns} if hidden_turns else set()
        if not hidden:
            yield memory
            return
        part = Memory(folder, without_engrams(self._stock.place(folder), hidden))
        try:
            yield part
        finally:
            part.close()

    def remove(self, around: Folder) -> None:
        """Close and delete the memories in the folder around them. May raise OSError."""
        self.drop(around)
        self._stock.remove(around)

    def drop(self, around: Folder) -> None:
        """Close the memories in a folder that is about to be removed."""
        with self._lock:
            folders = [folder for folder in self._memories if folder.parent == around]
            memories = [self._memories.pop(folder) for folder in folders]
        for memory in memories:
            memory.close()

    def save(self) -> None:
        """Write the network files that lack engrams."""
        with self._lock:
            memories = list(self._memories.values())
        for memory in memories:
            memory.save_if_due()

    def close(self) -> None:
        """Save the network files that are due and close every memory. The next use reopens it."""
        with self._lock:
            memories = list(self._memories.values())
            self._memories.clear()
        for memory in memories:
            memory.close()


def _close_all(memories: Sequence[Memory]) -> None:
    for memory in memories:
        memory.close()


SHELF: Final = MemoryCache()
"""The cache of this process. Two open memories of one folder would be safe, but as wasteful as two processes."""

atexit.register(SHELF.close)


def _check_author(engrams: Iterable[Engram], author: str) -> None:
    for engram in engrams:
        if engram.author != author:
            raise NotYours(engram.id)


def _check_query(query: Query) -> None:
    words = [query] if isinstance(query, str) else list(query or ())
    if sum(map(len, words)) > MAX_QUERY:
        raise BadRecall("query", f"has more than {MAX_QUERY} characters; name a few cues.")
    if any(not is_plain(word) for word in words):
        raise BadRecall("query", "contains NUL or a lone surrogate; send plain Unicode text.")
