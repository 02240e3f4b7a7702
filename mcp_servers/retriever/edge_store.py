"""Shards on disk: the generations of each collection, the lock on the folder, and the cache of open shards.

All calls block. Only one thread may call the module at once, as with `edge_collections`. The module knows neither
queries nor how a shard is opened (`edge_shard`).

    {folder}/owner.lock                held by the one process that may open shards
    {folder}/{collection}/pointer.json which generation is live, which was before, what each was made with
    {folder}/{collection}/{n}/         the shard of generation n
    {folder}/.damaged/{collection}-…   quarantined damaged collections, the newest of each name
"""

import fcntl
import os
import random
import resource
import shutil
import sys
import time
from collections import OrderedDict
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import cast

import orjson

from mcp_servers.retriever.edge_shard import Shard, create_shard, dense_vectors, engine_errors, open_shard, write_whole
from mcp_servers.retriever.errors import IndexClosed, IndexDamaged, IndexOwned, IndexUnavailable
from mcp_servers.retriever.index import Calibration, CollectionMeta, Dense, split_name

MAX_OPEN = 1_024
"""Default limit of open shards; lower if the process may have few file descriptors."""

ALWAYS_OPEN = 128
MAX_POINTS = 500_000
"""`ALWAYS_OPEN` shards of any size stay open, and more only while the open shards have at most `MAX_POINTS` points in
total. A point takes 2 KB of memory."""

Key = tuple[str, int]
"""A collection's name and a generation of it."""

DAMAGED = ".damaged"
"""Name of the quarantine folder, which is not a valid collection name."""

ROOM_BYTES = 64 * 2**20
"""With less free disk space, a failure counts as a full disk and not as damage: the engine allocates 32 MiB at once."""

_SHORTAGES = (
    "No space left",
    "Disk quota",
    "File too large",
    "Too many open files",
    "Cannot allocate memory",
    "Permission denied",
    "Read-only file system",
    "Resource temporarily unavailable",
)
"""Parts of error texts that mean a lack of space, descriptors, memory or permission, and not a damaged file."""


def is_index_folder(folder: Path) -> bool:
    """Return whether the folder exists: opening a missing one would create it, and searches would find nothing."""
    return folder.is_dir()


def collections_in(folder: Path) -> list[str]:
    """Return the names of the collections of an index folder, sorted."""
    return sorted(pointer.parent.name for pointer in folder.glob("*/pointer.json"))


@dataclass(slots=True)
class _Pointer:
    live: int = 0
    previous: int | None = None
    newest: int = 0
    metas: dict[str, CollectionMeta] = field(default_factory=dict)


class ShardStore:
    """The shards of an index folder, at most ``max_open`` of which stay open.

    Raises:
        IndexOwned: another process, or another store in this one, holds ``folder``.
    """

    def __init__(self, folder: Path, max_open: int = MAX_OPEN) -> None:
        self._folder = folder
        self._max_open = min(max_open, _descriptors() // 2)
        self._open: OrderedDict[Key, Shard] = OrderedDict()
        self._pointers: dict[str, _Pointer] = {}
        folder.mkdir(parents=True, exist_ok=True)
        self._lock: int | None = _take_lock(folder)

    def shard(self, collection: str, create: bool = False) -> Shard | None:
        """Return the open shard of `name` (its live generation) or `name@n`.

        A missing shard is created if ``create`` is true; otherwise the result is None.
        """
        self._check_open()
        name, generation = split_name(collection)
        if name not in self._pointers and (self._folder / name / "pointer.json").exists():
            self._pointers[name] = self._pointer(name)
        pointer = self._pointers.get(name) or _Pointer()
        generation = generation or pointer.live
        if str(generation) not in pointer.metas:
            if not create:
                return None
            pointer = self._pointer(name)
            generation = self._new_generation(name, pointer, CollectionMeta())
            pointer.live = generation
            self._save(name, pointer)
        key = (name, generation)
        if key not in self._open:
            self._open[key] = self._load(name, generation, pointer.metas[str(generation)])
            while too_many([shard.points for shard in self._open.values()], self._max_open):
                self._close(random.choice(less_used([*self._open])))
        self._open.move_to_end(key)
        return self._open[key]

    def put_aside(self, name: str, action: str, reason: str) -> IndexUnavailable:
        """Quarantine an unreadable collection with all generations, and return `IndexDamaged` for the caller to raise.

        If the failure comes from a shortage, such as a full disk, nothing is moved and the error names the shortage.
        """
        if any(text in reason for text in _SHORTAGES) or shutil.disk_usage(self._folder).free < ROOM_BYTES:
            return IndexUnavailable(action, reason)
        aside = self._folder / DAMAGED
        aside.mkdir(exist_ok=True)
        for older in aside.glob(f"{name}-{'[0-9]' * 8}T{'[0-9]' * 6}"):
            shutil.rmtree(older, ignore_errors=True)
        place = aside / f"{name}-{time.strftime('%Y%m%dT%H%M%S', time.gmtime())}"
        with suppress(FileNotFoundError):
            (self._folder / name).rename(place)
        self._pointers.pop(name, None)
        for key in [key for key in self._open if key[0] == name]:
            del self._open[key]  # without a flush: its data is the damaged data
        return IndexDamaged(action, reason, str(place))

    def _load(self, name: str, generation: int, meta: CollectionMeta) -> Shard:
        try:
            return open_shard(self._folder / name / str(generation), name, generation, meta)
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as exc:  # a panic of the engine is no `Exception`
            raise self.put_aside(name, "open a collection", str(exc)) from exc

    def record_dense(self, shard: Shard, dense: Dense) -> Shard:
        """Prepare ``shard`` for its first dense vectors, and return it, reopened if that changed it.

        Raises:
            IndexMismatch: the shard has vectors of another embedder or dimension.
        """
        meta = shard.meta.with_dense(dense)
        if meta == shard.meta:
            return shard
        # The vector before the record: after a crash between the two, repeating the first does nothing.
        with engine_errors("add dense vectors"):
            for operation in dense_vectors(meta):
                shard.update(operation)
        self._record(shard, meta)
        self._close((shard.name, shard.generation))  # opening it sets when its vectors are read
        return cast(Shard, self.shard(f"{shard.name}@{shard.generation}"))

    def record_calibration(self, collection: str, calibration: Calibration) -> None:
        if shard := self.shard(collection):
            self._record(shard, replace(shard.meta, calibration=calibration))

    def begin(self, name: str, meta: CollectionMeta) -> int:
        """Create an empty generation beside the live one and return its number."""
        pointer = self._pointer(name)
        generation = self._new_generation(name, pointer, meta)
        self._save(name, pointer)
        return generation

    def swap(self, name: str, generation: int) -> None:
        """Make `generation` live and remove all generations but this one and the previous one."""
        self._check_open()
        pointer = self._pointer(name)
        if str(generation) not in pointer.metas:
            raise IndexUnavailable("swap a collection", f"{name} has no generation {generation}")
        if generation == pointer.live:
            return
        pointer.previous, pointer.live = pointer.live or None, generation
        retained = {str(pointer.live), str(pointer.previous)}
        outdated = [int(number) for number in pointer.metas if number not in retained]
        pointer.metas = {number: meta for number, meta in pointer.metas.items() if number in retained}
        self._save(name, pointer)
        for number in outdated:
            self._remove(name, number)

    def roll_back(self, name: str) -> bool:
        """Swap the live generation and the previous one; return False if there is no previous one."""
        self._check_open()
        pointer = self._pointer(name)
        if pointer.previous is None:
            return False
        pointer.live, pointer.previous = pointer.previous, pointer.live
        self._save(name, pointer)
        return True

    def drop(self, name: str) -> None:
        self._check_open()
        self._pointers.pop(name, None)
        for key in [key for key in self._open if key[0] == name]:
            self._close(key)
        shutil.rmtree(self._folder / name, ignore_errors=True)

    def flush(self) -> None:
        """Flush every changed shard."""
        with engine_errors("store chunks"):
            for shard in self._open.values():
                shard.flush()

    def close(self) -> None:
        """Flush and close every shard and release the lock of the folder. Idempotent."""
        if self._lock is None:
            return
        try:
            while self._open:
                self._close(next(iter(self._open)))
        finally:
            os.close(self._lock)
            self._lock = None

    def _check_open(self) -> None:
        if self._lock is None:
            raise IndexClosed

    def _record(self, shard: Shard, meta: CollectionMeta) -> None:
        pointer = self._pointer(shard.name)
        pointer.metas[str(shard.generation)] = meta
        self._save(shard.name, pointer)
        shard.meta = meta

    def _close(self, key: Key) -> None:
        shard = self._open.pop(key)
        with engine_errors("close a collection"):
            shard.flush()
            shard.engine.close()

    def _remove(self, name: str, generation: int) -> None:
        if (name, generation) in self._open:
            self._close((name, generation))
        shutil.rmtree(self._folder / name / str(generation), ignore_errors=True)

    def _new_generation(self, name: str, pointer: _Pointer, meta: CollectionMeta) -> int:
        """Create the shard of the next generation and return its number; the caller saves the pointer."""
        self._check_open()
        pointer.newest += 1
        folder = self._folder / name / str(pointer.newest)
        # After a crash the folder may hold an incomplete shard, which no pointer names: its number is reused.
        shutil.rmtree(folder, ignore_errors=True)
        with engine_errors("create a collection"):
            folder.parent.mkdir(exist_ok=True)
            create_shard(folder, meta)
        pointer.metas[str(pointer.newest)] = meta
        return pointer.newest

    def _pointer(self, name: str) -> _Pointer:
        """Read the pointer file into a copy that the caller may change and save; `_pointers` has the saved one."""
        try:
            data = orjson.loads((self._folder / name / "pointer.json").read_bytes())
            metas = {number: CollectionMeta.from_json(meta) for number, meta in data.pop("metas").items()}
            return _Pointer(**data, metas=metas)
        except FileNotFoundError:
            return _Pointer()
        except (ValueError, TypeError, KeyError, AttributeError) as exc:
            raise self.put_aside(name, "read the record of a collection", f"pointer.json: {exc}") from exc

    def _save(self, name: str, pointer: _Pointer) -> None:
        path = self._folder / name / "pointer.json"
        with engine_errors("record a collection"):
            write_whole(path, path.with_suffix(".new"), orjson.dumps(pointer))
        self._pointers[name] = pointer


def too_many(points: Collection[int], most: int) -> bool:
    """Return whether a shard has to be closed, by the points of each open shard and the limit ``most`` of open ones."""
    return len(points) > most or (len(points) > ALWAYS_OPEN and sum(points) > MAX_POINTS)


def less_used(keys: Sequence[Key]) -> Sequence[Key]:
    """Return the half of the open shards from which a random one is closed; ``keys`` begin with the least recent.

    With strict least-recently-used eviction, one collection more than the limit would be enough to make every search
    reopen its shard, if the collections are searched in turn.
    """
    return keys[: len(keys) // 2]


def _descriptors() -> int:
    """Return the limit of file descriptors of this process; an open shard has one or two."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return sys.maxsize if soft == resource.RLIM_INFINITY else soft


def _take_lock(folder: Path) -> int:
    path = folder / "owner.lock"
    lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        raise IndexOwned(str(folder), path.read_text() or "another process") from None
    os.ftruncate(lock, 0)
    program = Path(sys.argv[0] or "python").name
    os.pwrite(lock, f"process {os.getpid()} ({program})".encode(), 0)
    return lock
