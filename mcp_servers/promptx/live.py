"""Memory folders kept open: one `LiveFolder` per folder and process, and the worker that writes their networks.

Owns what must be shared between calls: the network in memory, completed from the database before each use; recall
frequencies not saved yet; and when `network.json` is written. Deliberately knows nothing of roles, users or engram
validation. All methods block and may be called from any thread.

Why a network in memory: making it from 100 000 engrams takes a second, a recall from it milliseconds. Why it can be
trusted: before each use the database's tip is compared with the tip last learned, so rows of other processes are seen.
"""

import atexit
import logging
import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

from mcp_servers.promptx import snapshot
from mcp_servers.promptx.errors import MemoryUnavailable
from mcp_servers.promptx.ledger import EMPTY, Engram, Ledger, Lesson, Tip, file_lock
from mcp_servers.promptx.network import RECALL_STEP, Network, object_order
from mcp_servers.promptx.recall import Mind, Trace

NETWORK_LOCK: Final = ".network.lock"
MAX_FOLDERS: Final = 64
MAX_ENGRAMS: Final = 300_000
"""Folders, and engrams in all of them, kept in memory; above that the least recently used folder is closed."""
SAVE_SECONDS: Final = 1.0
"""A network is written at most once in this time."""
SAVE_SHARE: Final = 4
"""And no sooner than this many times the last write's duration, so that a huge memory does not keep a core busy."""

log = logging.getLogger(__name__)


class LiveFolder:
    """One memory folder, open.

    `lock` guards the network and the reading connection. Writing has a connection and a lock of its own, so that a
    remember waits neither for a recall nor for the network to be made.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.lock = threading.RLock()
        self.ledger = Ledger(path)
        self._write_lock = threading.Lock()
        self._writer = Ledger(path)
        self.traces: dict[str, Trace] = {}
        """Ranking data of every engram, by id; complete after `network()`."""
        self._network: Network | None = None
        self._tip: Tip = EMPTY
        self._unsaved: Counter[str] = Counter()
        self._seen: tuple[int, int, int] | None = None

    @property
    def size(self) -> int:
        """Number of engrams held in memory."""
        return len(self.traces)

    def network(self) -> Network:
        """The network, complete up to the newest engram in the database. Call with `lock` held."""
        try:
            with self.ledger.reading():
                tip = self.ledger.tip()
                if self._network is None or tip != self._tip:
                    self._network = self._completed(tip)
                self._tip = tip
        except BaseException:
            self._network = None  # it may have learned half of what is new
            raise
        return self._network

    def _completed(self, tip: Tip) -> Network:
        if self._network is None:
            path = self.path / snapshot.NETWORK
            self._seen = snapshot.signature(path)
            return self._build(Counter(snapshot.read_frequencies(path) or {}) + self._unsaved)
        added = self.ledger.added(self._tip)
        if added is None or self._tip.size + added != tip.size:
            # Something was deleted: an edge cannot be taken back, so start again.
            return self._build(self._network.frequency)
        self._learn(self._network, self.ledger.lessons(self._tip.rowid))
        return self._network

    def _build(self, frequency: Mapping[str, int]) -> Network:
        """A network from all engrams, with the frequencies of those cues that still exist."""
        self._forget()
        network = Network()
        self._learn(network, self.ledger.lessons(0))
        network.frequency = {word: count for word, count in frequency.items() if count > 0 and word in network.edges}
        return network

    def _forget(self) -> None:
        """Take the network apart item by item: freed at once, a huge one stops every thread for 50 ms."""
        network, self._network = self._network, None
        for part in (self.traces, network.edges, network.members) if network else ():
            while part:
                part.popitem()
        self.traces = {}

    def _learn(self, network: Network, lessons: Iterable[Lesson]) -> None:
        for engram_id, words, trace in lessons:
            self.traces[engram_id] = trace
            network.learn(engram_id, words, int(trace[2]), trace[1])

    def recalled(self, network: Network, mind: Mind, center: str | None, now_ms: int) -> None:
        """Count a recall and write `state.json`. Call with `lock` held.

        The frequencies reach the disk with the next remember, as in PromptX. A folder that cannot be written can
        still be recalled from.
        """
        if not network.edges:
            return
        self._unsaved.update(dict.fromkeys(network.recalled(mind.activated), RECALL_STEP))
        try:
            snapshot.write_state(self.path, mind, center, now_ms)
        except OSError as exc:
            log.warning("state.json of memory %r was not written: %s", self.path.name, exc.strerror)

    def insert(self, engrams: Sequence[Engram]) -> int:
        """Save a batch, all or nothing; the network learns it at its next use."""
        with self._write_lock:
            return self._writer.insert(engrams)

    def delete(self, ids: Sequence[str]) -> int:
        """Remove engrams; the network is made anew at its next use."""
        with self._write_lock:
            return self._writer.delete(ids)

    def save(self) -> None:
        """Write `network.json`, with frequencies another process saved meanwhile added to ours.

        Raises:
            MemoryUnavailable: it could not be written; nothing is lost, the engrams have everything but frequencies.
        """
        path = self.path / snapshot.NETWORK
        with file_lock(self.path, NETWORK_LOCK):
            with self.lock:
                network = self.network()
                tip = self._tip
                if snapshot.signature(path) != self._seen and (theirs := snapshot.read_frequencies(path)):
                    both = Counter(theirs) + self._unsaved
                    network.frequency = {word: count for word, count in both.items() if word in network.edges}
                saved, self._unsaved = self._unsaved, Counter()
                words = object_order(network.edges)
            try:
                snapshot.write_network(path, network, words, tip.id, time.time_ns() // 1_000_000)
            except OSError as exc:
                with self.lock:
                    self._unsaved.update(saved)
                raise MemoryUnavailable(self.path, f"{snapshot.NETWORK} was not written ({exc})") from exc
            self._seen = snapshot.signature(path)

    def merge_frequencies(self, stored: Mapping[str, int]) -> None:
        """Take over recall counts of an imported memory where they are greater."""
        with self.lock:
            network = self.network()
            for word, count in stored.items():
                if word in network.edges and (more := count - network.frequency.get(word, 0)) > 0:
                    network.frequency[word] = count
                    self._unsaved[word] += more

    def close(self) -> None:
        """Close the database and let go of the network. Both are made again when used."""
        with self.lock, self._write_lock:
            self._forget()
            self.ledger.close()
            self._writer.close()


class Shelf:
    """The open folders of this process and the thread that writes their networks."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._folders: OrderedDict[Path, LiveFolder] = OrderedDict()
        self._due: dict[Path, float] = {}
        """Folders to save → earliest time (monotonic seconds)."""
        self._earliest: dict[Path, float] = {}
        """Folders saved lately → when they may be saved again."""
        self._worker: threading.Thread | None = None
        self._saving = False

    def folder(self, path: Path) -> LiveFolder:
        """The one open folder of this path."""
        evicted: list[tuple[LiveFolder, bool]] = []
        with self._changed:
            live = self._folders.setdefault(path, LiveFolder(path))
            self._folders.move_to_end(path)
            engrams = sum(folder.size for folder in self._folders.values())
            while len(self._folders) > 1 and (len(self._folders) > MAX_FOLDERS or engrams > MAX_ENGRAMS):
                oldest, folder = self._folders.popitem(last=False)
                engrams -= folder.size
                evicted.append((folder, self._due.pop(oldest, None) is not None))
        self._finish(evicted)
        return live

    def soil(self, live: LiveFolder) -> None:
        """Have the folder's network written soon."""
        with self._changed:
            self._due.setdefault(live.path, max(time.monotonic(), self._earliest.get(live.path, 0.0)))
            if self._worker is None or not self._worker.is_alive():
                self._worker = threading.Thread(target=self._work, name="promptx-network", daemon=True)
                self._worker.start()
            self._changed.notify_all()

    def _work(self) -> None:
        while True:
            with self._changed:
                path = min(self._due, key=self._due.__getitem__, default=None)
                wait = None if path is None else self._due[path] - time.monotonic()
                if path is None or wait is None or wait > 0:
                    self._changed.wait(wait)
                    continue
                del self._due[path]
                live = self._folders.get(path)
                self._saving = True
            try:
                if live is not None:
                    self._save(live)
            finally:
                live = None
                with self._changed:
                    self._saving = False
                    self._changed.notify_all()

    def _save(self, live: LiveFolder) -> None:
        started = time.monotonic()
        try:
            live.save()
        except MemoryUnavailable as exc:  # derived data: the next remember or the next start makes it again
            log.warning("%s", exc)
        took = time.monotonic() - started
        with self._changed:
            self._earliest[live.path] = time.monotonic() + max(SAVE_SECONDS, SAVE_SHARE * took)

    def _finish(self, folders: Sequence[tuple[LiveFolder, bool]]) -> None:
        for live, unsaved in folders:
            if unsaved:
                self._save(live)
            live.close()

    def close(self) -> None:
        """Save what is due and close every folder. They open again when used."""
        with self._changed:
            self._changed.wait_for(lambda: not self._saving)
            folders = [(live, self._due.pop(path, None) is not None) for path, live in self._folders.items()]
            self._folders.clear()
            self._earliest.clear()
        self._finish(folders)


SHELF: Final = Shelf()
"""Of this process. Two shelves on one folder would be as safe as two processes, and as wasteful."""

atexit.register(SHELF.close)
