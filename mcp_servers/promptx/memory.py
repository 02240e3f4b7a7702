"""One role's memory: remember, recall, browse, delete, export, import.

The blocking API that the server, the CLI and the REST layer share; call it in a worker thread. Owns the layout of
scopes, the network kept in memory between calls, and when the derived files are written. Deliberately knows nothing of
MCP, of roles' texts or of who is allowed to do what.

Why a network in memory: making it from 100 000 engrams takes a second, a recall from it milliseconds. Why it can be
trusted: before each use the database's tip is compared with the tip last learned, so rows of other processes are seen.

When `network.json` is written (PromptX needs it, we do not): a `remember` writes it when it lacks more than a tenth of
the engrams, and it is made complete when a memory is closed or saved (the end of an MCP session, of the process, room
for others), and by delete and import. So it costs the same per engram at any size, and a folder can be copied as it is.
"""

import atexit
import logging
import threading
import time
import unicodedata
from collections import Counter, OrderedDict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from heapq import nsmallest
from pathlib import Path
from typing import Final, Literal

from mcp_servers.promptx import snapshot
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
from mcp_servers.promptx.ledger import BATCH, DATABASE, EMPTY, Engram, Ledger, Lesson, Tip, Which, has_memory
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
from mcp_servers.promptx.new_engrams import MAX_BATCH, NewEngram, check_engram, make_engram
from mcp_servers.promptx.similarity import is_known, is_same, near_words, nearest
from mcp_servers.promptx.tokenizer import WordIndex, gist_of, newest_first, words_of
from mcp_servers.promptx.yielding import giving_way
from mcp_servers.safe_files import Folder

Scope = Literal["domain", "user"]

MAX_QUERY: Final = 2_000
MAX_FOLDER_NAME: Final = 240
"""Bytes of an encoded user id; file systems stop at 255."""
ASSOCIATED: Final = 0.5
"""Relevance of a memory that has no word of the query, before its distance in the network counts."""
OVERVIEW_ENGRAMS: Final = 50
OVERVIEW_CHARS: Final = 4_000
"""Budget of the overview: about a thousand tokens of what the role knows best."""
MAX_OPEN: Final = 64
MAX_ENGRAMS: Final = 300_000
CLOSER: Final = "memory-closer"
CLOSE_SECONDS: Final = 1.0
"""How long somebody else's memory is waited for that makes room for one; its folder may hang, and is left to that."""
"""Memories, and engrams in all of them, kept open; above that the least recently used memory is closed."""
ENGRAMS_AT_ONCE: Final = 100
"""Learned before other threads have their turn."""
LAG_SHARE: Final = 10
"""A remember writes the network when more than one in this many engrams is missing in the file."""

_PLAIN_BYTES: Final = frozenset(b"abcdefghijklmnopqrstuvwxyz0123456789_-")

log = logging.getLogger(__name__)


def memory_folder(workspace: Path, scope: str, user: str | None, role: str) -> Folder:
    """Where a role's memory lives.

    `domain` is the layout of a PromptX home: `.promptx/cognition/{role}`. `user` is
    `.promptx/cognition.user/{user}/{role}`, the user id percent-encoded so that any two ids give two folders, also on
    file systems that fold case.

    Raises:
        BadScope: unknown scope, or a user id that is empty, too long or tries to be a path.
        BadRoleId: the role is no id.
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
class Near:
    """Engrams that were there and say about what ``engram``, a new one, says; the most alike first."""

    engram: Engram
    known: tuple[Engram, ...]


@dataclass(frozen=True, slots=True)
class Remembered:
    """What became of a batch: engrams saved, those that were there word by word, and what is like the new ones."""

    saved: tuple[Engram, ...]
    known: tuple[Engram, ...]
    near: tuple[Near, ...]

    @property
    def others(self) -> list[Engram]:
        """Engrams that were there and are shown."""
        return [*self.known, *(old for each in self.near for old in each.known)]


@dataclass(frozen=True, slots=True)
class Recollection:
    """What a recall found.

    `engrams` are those of the activated cues, ranked as PromptX does; `overview` are the strongest of the whole memory
    and only filled when the hubs of the network were shown because the query named no cue, or nothing was asked.
    `found` is what the query is answered with: what has its own words first, then the rest of `engrams`; of those that
    are about the same, the newest first. `matched`: how many of them have words of the query.
    """

    mind: RecallActivation
    center: str | None
    mode: str
    fallback: Fallback | None
    engrams: tuple[Engram, ...]
    overview: tuple[Engram, ...]
    mindmap: tuple[str, ...]
    found: tuple[Engram, ...]
    matched: int
    relevance: Mapping[str, float]
    """Of each id in `found`, from 0 to 1: the share of the query's words that it has; for those that were only reached
    through the network, less than `ASSOCIATED`, the further away the less."""

    @property
    def edges(self) -> Sequence[Edge]:
        """The recorded steps of the activation."""
        return self.mind.edges


@dataclass(frozen=True, slots=True)
class Page:
    """Part of a memory, newest first; `total` counts all engrams that match."""

    total: int
    engrams: tuple[Engram, ...]


@dataclass(frozen=True, slots=True)
class ImportReport:
    """Outcome of an import: engrams added, and one reason per engram that could not be."""

    added: int
    skipped: tuple[str, ...]


class Memory:
    """The memory of one folder, kept there or elsewhere under its name.

    Cheap to make; safe to use from several threads and processes, and after `close`.

    `_lock` guards the network and the reading connection. Writing has a connection and a lock of its own, so that a
    remember waits neither for a recall nor for the network to be made.

    Every method may raise MemoryUnavailable: locked for too long, disk full, read-only or corrupt files. Nothing is
    half saved then.
    """

    def __init__(self, folder: Folder, kept: CachedMemory | None = None) -> None:
        """``kept``: where; None: in the folder itself."""
        kept = FILES.place(folder) if kept is None else kept
        self.folder = folder
        self._lock = threading.RLock()
        self._ledger = kept.reader
        self._write_lock = threading.Lock()
        self._writer = kept.writer
        self._counts = kept.counts
        self._network: Network | None = None
        self._traces: dict[str, Trace] = {}
        """Ranking data of every engram, by id; complete after `_current_network()`."""
        self._words: WordIndex | None = None
        """The words of the engrams; made when a query first has a word that is no cue."""
        self._tip: Tip = EMPTY
        self._unsaved: Counter[str] = Counter()
        """Recalls of each cue that the network file does not count yet."""
        self._lag = 0
        """Engrams that the network file may lack."""

    @property
    def size(self) -> int:
        """Number of engrams held in memory."""
        return len(self._traces)

    # --- what a model does --------------------------------------------------------------------------------

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
        """Save a batch, all or nothing, but for what is there word by word. ``author``, ``turn``: see `Engram`.

        ``limit``: the memory may hold so many. ``own_only``: only what ``author`` wrote may be replaced.

        Raises:
            BadEngram: one of them is invalid, or replaces what is not there; names its index.
            MemoryFull: there would be more than ``limit``.
            NotYours: one of them replaces another author's.
        """
        if not batch:
            raise BadEngram(0, "the batch is empty; give at least one engram.")
        if len(batch) > MAX_BATCH:
            raise BadEngram(MAX_BATCH, f"a batch has at most {MAX_BATCH} engrams.")
        engrams = [
            replace(make_engram(index, item, now_ms), author=author, turn=turn) for index, item in enumerate(batch)
        ]
        with self._write_lock:
            replaced = {
                each.id: each for each in self._writer.fetch([each.replaces for each in engrams if each.replaces])
            }
            for index, each in enumerate(engrams):
                if each.replaces and each.replaces not in replaced:
                    raise UnknownReplaced(index, each.replaces)
            if own_only:
                _check_author(replaced.values(), author)
            there = [(each, self._writer.near(near_words(each))) for each in engrams]
            same = {each.id: next((old for old in old_ones if is_same(each, old)), None) for each, old_ones in there}
            new = [each for each in engrams if each.replaces or same[each.id] is None]
            if new:
                self._lag += self._writer.replace(new, limit)
        self.save_if_behind()
        gone = {each.replaces for each in new}
        near = [Near(each, nearest(each, [old for old in old_ones if old.id not in gone])) for each, old_ones in there]
        return Remembered(
            tuple(new),
            tuple(old for each in engrams if each not in new and (old := same[each.id])),
            tuple(each for each in near if each.known and each.engram in new),
        )

    def propose(self, engrams: Sequence[Engram], limit: int | None = None) -> int:
        """Add engrams that nobody asked for, but for what is known already in other words. Ids come once.

        Raises:
            MemoryFull: there would be more than ``limit``.
        """
        with self._write_lock:
            new = [each for each in engrams if not is_known(each, self._writer.near(near_words(each)))]
        added = self._insert(new, limit) if new else 0
        self.save_if_behind()
        return added

    def recall(self, query: Query, mode: str, now_ms: int, *, counted: bool = True) -> Recollection:
        """Activate the network from `query` (text, a list of cues, or None for the overview) and rank what it finds.

        ``counted`` False: the memory is looked at, and its recall frequencies and state stay as they are.

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
            if query is not None and fallback != "dmn":  # PromptX shows the map alone then; so it is recorded
                depths = collect(network, mind)
                ids = rank(depths, self._traces, MODES[mode].limit, now_ms)
                engrams = self._ledger.fetch(ids)
            found, matched, fits = self._find(network, query, engrams, MODES[mode].limit)
            relevance = {
                each.id: round(fits[each.id] if each.id in fits else ASSOCIATED / (1 + depths.get(each.id, 1)), 4)
                for each in found
            }
            overview = self._overview() if query in (None, "null") or fallback == "dmn" else ()
            if counted:
                self._count_recall(network, mind, center, now_ms)
        return Recollection(
            mind, center, mode, fallback, tuple(engrams), overview, tuple(mindmap(mind)), found, matched, relevance
        )

    def _find(
        self, network: Network, query: Query, engrams: Sequence[Engram], limit: int
    ) -> tuple[tuple[Engram, ...], int, Mapping[str, float]]:
        """Return what answers a query, best first, how much of it has the query's own words, and how well that fits.

        ``engrams``: what the network gave, in its order.
        """
        if query is None or query == "null":
            return tuple(engrams), 0, {}
        fits = self._fits(network, query)
        places = {each.id: place for place, each in enumerate(engrams)}
        last = len(engrams)
        best = nsmallest(
            limit,
            (key for key in fits if key in self._traces),
            key=lambda key: (-round(fits[key], 2), places.get(key, last), -self._traces[key][2]),
        )
        known = {each.id: each for each in engrams}
        known |= {each.id: each for each in self._ledger.fetch([key for key in best if key not in known])}
        matched = [key for key in best if key in known]
        rest = [each.id for each in engrams if each.id not in fits][: limit - len(matched)]
        words = {key: gist_of(known[key].content, known[key].cues) for key in (*matched, *rest)}
        times = {key: self._traces[key][2] for key in words}
        ordered = [*newest_first(matched, words, times), *newest_first(rest, words, times)]
        return tuple(known[key] for key in ordered), len(matched), fits

    def _fits(self, network: Network, query: str | Sequence[str]) -> dict[str, float]:
        """Return how well engrams fit the words of a query, by id.

        Words that are cues, letter by letter, are looked up in the network; only when one is none, all words are looked
        for in the texts too, folded.
        """
        words = query.split() if isinstance(query, str) else query
        if words and all(word in network.edges for word in words):
            shares = Counter(key for word in dict.fromkeys(words) for key in network.engrams_of(word))
            if shares:
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

        The frequencies reach the disk with the next remember, as in PromptX. A folder that cannot be written can
        still be recalled from.
        """
        if not network.edges:
            return
        self._unsaved.update(dict.fromkeys(network.count_recall(mind.activated), RECALL_STEP))
        try:
            self._counts.write_state(mind, center, now_ms)
        except OSError as exc:
            log.warning("state.json of memory %r was not written: %s", self.folder.name, exc.strerror)

    # --- what its owner does ------------------------------------------------------------------------------

    def browse(self, offset: int = 0, limit: int = 50, q: str = "", which: Which = "current") -> Page:
        """Engrams newest first, those whose content or keywords contain `q` (ASCII letters in any case)."""
        with self._lock:
            total, engrams = self._ledger.page(max(0, offset), max(0, limit), q, which)
        return Page(total, tuple(engrams))

    def fetch(self, ids: Sequence[str]) -> list[Engram]:
        """Engrams by id, those there are."""
        with self._lock:
            return self._ledger.fetch(ids)

    def lineage(self, engram_id: str) -> list[Engram]:
        """Return an engram and what it replaced, one after the other; nothing when it is not there."""
        found: list[Engram] = []
        following = self.fetch([engram_id])
        while following and following[0].id not in {each.id for each in found}:
            found += following
            older = self.fetch([following[0].replaces])
            following = [each for each in older if each.replaced_by == following[0].id]
        return found

    def forget(self, engram_id: str, author: str = "", *, own_only: bool = False) -> Engram:
        """Forget one engram and what it replaced, their bytes too; return it. ``own_only``: only what ``author`` wrote.

        Raises:
            UnknownMemory: there is none of this id here.
            NotYours: another author wrote it.
        """
        lineage = self.lineage(engram_id) if is_plain(engram_id) else []
        if not lineage:
            raise UnknownMemory(engram_id)
        if own_only:
            _check_author(lineage, author)
        self.delete([each.id for each in lineage])
        return lineage[0]

    def delete(self, ids: Sequence[str]) -> int:
        """Forget engrams by id; returns how many there were. Unknown ids are no error."""
        with self._write_lock:
            removed = self._writer.delete(ids)
        if removed:
            self.save()  # now, not later: the owner wants the keywords gone from the file too
            self._counts.remove_state()
        return removed

    def check_room(self, ids: Collection[str], limit: int) -> None:
        """Refuse engrams of these ids as `add` would.

        Raises:
            MemoryFull: there would be more than ``limit``.
        """
        wanted = list(dict.fromkeys(ids))
        with self._lock:
            parts = [wanted[start : start + BATCH] for start in range(0, len(wanted), BATCH)]
            known = sum(len(self._ledger.fetch(part)) for part in parts)
            total, _ = self._ledger.page(0, 0, "", "all")
        if known < len(wanted) and total + len(wanted) - known > limit:
            raise MemoryFull(self.folder.path, limit)

    def export(self) -> list[Engram]:
        """Every engram, oldest first."""
        with self._lock:
            return self._ledger.all()

    def frequencies(self) -> dict[str, int]:
        """How often each cue was recalled; those never recalled are left out."""
        with self._lock:
            return dict(self._current_network().frequency)

    def add(self, engrams: Sequence[Engram], frequencies: Mapping[str, int], limit: int | None = None) -> int:
        """Add engrams of another memory in one transaction, and take over its recall counts where they are greater.

        Engrams whose id is already here are left as they are. Returns how many were added. The counts are on disk after
        the next `save`.

        Raises:
            MemoryFull: there would be more than ``limit``; nothing was added.
        """
        added = self._insert(engrams, limit)
        with self._lock:
            network = self._current_network() if frequencies else Network()
            for word, count in frequencies.items():
                if word in network.edges and (more := count - network.frequency.get(word, 0)) > 0:
                    network.frequency[word] = count
                    self._unsaved[word] += more
        return added

    def import_folder(self, folder: Folder) -> ImportReport:
        """Add the engrams of a PromptX folder (``engrams.db``, and recall frequencies from `network.json`).

        Engrams whose id is already here are left as they are; ids, times and strengths are kept.
        """
        if not has_memory(folder):
            raise MemoryUnavailable(folder.path, f"there is no {DATABASE} in the folder to import")
        source = Ledger(folder, read_only=True)
        good: list[Engram] = []
        skipped: list[str] = []
        try:
            for number, engram in enumerate(source.all()):
                try:
                    nobodys = replace(engram, author="", turn="")  # ids of another place mean nobody here
                    good.append(check_engram(number, nobodys, sum(map(len, engram.cues))))
                except BadEngram as exc:
                    skipped.append(f"{engram.id[:40]}: {exc.reason}")
        finally:
            source.close()
        file = snapshot.read_network(folder)
        added = self.add(good, file.frequencies if file else {})
        self.save()
        return ImportReport(added, tuple(skipped))

    # --- the network in memory and in its file ------------------------------------------------------------

    def _insert(self, engrams: Sequence[Engram], limit: int | None) -> int:
        with self._write_lock:
            added = self._writer.insert(engrams, limit)
            self._lag += added
        return added

    def _current_network(self) -> Network:
        """The network, complete up to the newest engram in the database. Call with `_lock` held."""
        try:
            with self._ledger.reading():
                tip = self._ledger.tip()
                if self._network is None or tip != self._tip:
                    self._network = self._complete(tip)
                self._tip = tip
        except BaseException:
            self._network = None  # it may have learned half of what is new
            raise
        return self._network

    def _complete(self, tip: Tip) -> Network:
        if self._network is None:
            file = self._counts.read()
            if file is None or file.newest not in (None, tip.id):  # the process that wrote the newest was killed
                self._lag = max(self._lag, tip.size)
            return self._build(Counter(file.frequencies if file else {}) + self._unsaved, tip)
        added = self._ledger.count_since(self._tip, tip)
        if added is None or self._tip.size + added != tip.size:
            # Something was deleted: an edge cannot be taken back, so start again.
            return self._build(self._network.frequency, tip)
        self._learn(self._network, self._ledger.lessons(self._tip.rowid, tip))
        for each in self._ledger.replaced_since(self._tip.rowid, tip):
            self._network.leave(each.id, each.cues)
            self._traces.pop(each.id, None)
        return self._network

    def _build(self, frequency: Mapping[str, int], tip: Tip) -> Network:
        """A network from all engrams up to a tip, with the frequencies of those cues that still exist."""
        self._drop_network()
        network = Network()
        self._learn(network, self._ledger.lessons(0, tip))
        network.frequency = {word: count for word, count in frequency.items() if count > 0 and word in network.edges}
        return network

    def _drop_network(self) -> None:
        """Take the network apart item by item: freed at once, a huge one stops every thread for 50 ms."""
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
        """Write `network.json` now, with frequencies another process saved meanwhile added to ours.

        Raises:
            MemoryUnavailable: it could not be written; nothing is lost, the engrams have everything but frequencies.
        """
        with self._counts.lock():
            with self._lock:
                network = self._current_network()
                with self._write_lock:
                    self._lag = 0
                tip = self._tip
                if theirs := self._counts.read_changed():
                    both = Counter(theirs.frequencies) + self._unsaved
                    network.frequency = {word: count for word, count in both.items() if word in network.edges}
                saved, self._unsaved = self._unsaved, Counter()
                words = object_order(network.edges)
            try:
                self._counts.write(network, words, tip, saved, time.time_ns() // 1_000_000)
            except MemoryUnavailable:
                with self._lock:
                    self._unsaved.update(saved)
                raise

    def save_if_behind(self) -> None:
        """Write `network.json` if it lacks more than a share of the engrams, as after each remember."""
        with self._write_lock:
            behind = self._lag * LAG_SHARE > self._writer.newest_row()
        if behind:
            self.save_if_due()

    def save_if_due(self) -> None:
        """Write `network.json` if it lacks an engram; after a failure, which is logged, the next to open it does."""
        if not self._lag:
            return
        try:
            if self._counts.is_there():
                self.save()
        except MemoryUnavailable as exc:
            log.warning("%s", exc)

    def close(self) -> None:
        """Save what is due, close the database and let go of the network. All is made again when used."""
        self.save_if_due()
        with self._lock, self._write_lock:
            self._drop_network()
            self._ledger.close()
            self._writer.close()


class MemoryCache:
    """The memories that this process keeps open. ``stock``: where they are kept."""

    def __init__(self, stock: Stock = FILES) -> None:
        self._stock = stock
        self._lock = threading.Lock()
        self._memories: OrderedDict[Folder, Memory] = OrderedDict()

    def has(self, folder: Folder) -> bool:
        """Whether anything was ever remembered in a folder."""
        return self._stock.has(folder)

    def roles(self, around: Folder) -> list[str]:
        """Return the roles that have a memory in the folder around them, by id."""
        return self._stock.roles(around)

    def memory(self, folder: Folder) -> Memory:
        """The one open memory of this folder."""
        evicted: list[Memory] = []
        self._stock.prepare(folder)
        with self._lock:
            memory = self._memories.setdefault(folder, Memory(folder, self._stock.place(folder)))
            self._memories.move_to_end(folder)
            engrams = sum(each.size for each in self._memories.values())
            while len(self._memories) > 1 and (len(self._memories) > MAX_OPEN or engrams > MAX_ENGRAMS):
                evicted.append(self._memories.popitem(last=False)[1])
                engrams -= evicted[-1].size
        if evicted:
            closing = threading.Thread(target=_close_all, args=(evicted,), name=CLOSER, daemon=True)
            closing.start()
            closing.join(CLOSE_SECONDS)
        return memory

    def remove(self, around: Folder) -> None:
        """Forget the memories in the folder around them, all that they are kept in too. May raise OSError."""
        self.drop(around)
        self._stock.remove(around)

    def drop(self, around: Folder) -> None:
        """Close the memories in a folder, which is about to be removed."""
        with self._lock:
            gone = [each for each in self._memories if each.parent == around]
            memories = [self._memories.pop(each) for each in gone]
        for memory in memories:
            memory.close()

    def save(self) -> None:
        """Write the network files that lack something."""
        with self._lock:
            memories = list(self._memories.values())
        for memory in memories:
            memory.save_if_due()

    def close(self) -> None:
        """Save what is due and close every memory. They open again when used."""
        with self._lock:
            memories = list(self._memories.values())
            self._memories.clear()
        for memory in memories:
            memory.close()


def _close_all(memories: Sequence[Memory]) -> None:
    for each in memories:
        each.close()


SHELF: Final = MemoryCache()
"""Of this process. Two open memories of one folder would be as safe as two processes, and as wasteful."""

atexit.register(SHELF.close)


def _check_author(engrams: Iterable[Engram], author: str) -> None:
    for each in engrams:
        if each.author != author:
            raise NotYours(each.id)


def _check_query(query: Query) -> None:
    words = [query] if isinstance(query, str) else list(query or ())
    if sum(map(len, words)) > MAX_QUERY:
        raise BadRecall("query", f"has more than {MAX_QUERY} characters; name a few cues.")
    if any(not is_plain(word) for word in words):
        raise BadRecall("query", "contains NUL or a lone surrogate; send plain Unicode text.")
