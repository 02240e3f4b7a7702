"""Shards on disk: which folder is which collection's live generation, who owns them, which are open.

Blocking, and called from one thread at a time, as `edge_collections` is. It does not know queries, nor how a shard is
opened (`edge_shard`).

    {folder}/owner.lock                held by the one process that may open shards
    {folder}/{collection}/pointer.json which generation is live, which was before, what each was made with
    {folder}/{collection}/{n}/         the shard of generation n
    {folder}/.damaged/{collection}-…   what could not be read and was put aside, the newest of each collection
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
"""Shards kept open, where descriptors suffice."""

ALWAYS_OPEN = 128
MAX_POINTS = 500_000
"""So many shards stay open however large they are; more than that while all open ones have no more points together.
A point holds 2 KB of memory."""

Key = tuple[str, int]
"""A collection's name and a generation of it."""

DAMAGED = ".damaged"
"""A folder that no collection can have as its name."""

ROOM_BYTES = 64 * 2**20
"""With less room on the disk, what fails is taken for its fault; the engine makes files of 32 MiB at once."""

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
"""What the system says when nothing is wrong with a file that cannot be read or written."""


def is_index_folder(folder: Path) -> bool:
    """Whether a folder is there. Opening one that is missing would make it, and every search would find nothing."""
    return folder.is_dir()


def collections_in(folder: Path) -> list[str]:
    """Return the names of the collections of an index folder, sorted."""
    return sorted(each.parent.name for each in folder.glob("*/pointer.json"))


@dataclass(slots=True)
class _Pointer:
    live: int = 0
    previous: int | None = None
    newest: int = 0
    metas: dict[str, CollectionMeta] = field(default_factory=dict)


class ShardStore:
    """Raises `IndexOwned` when another process (or another store in this one) holds `folder`.

    ``max_open``: how many shards stay open.
    """

    def __init__(self, folder: Path, max_open: int = MAX_OPEN) -> None:
        self._folder = folder
        self._max_open = min(max_open, _descriptors() // 2)
        self._open: OrderedDict[Key, Shard] = OrderedDict()
        self._pointers: dict[str, _Pointer] = {}
        folder.mkdir(parents=True, exist_ok=True)
        self._lock: int | None = _take_lock(folder)

    def shard(self, collection: str, create: bool = False) -> Shard | None:
        """The open shard of `name` (its live generation) or `name@n`; None when there is none and not `create`."""
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
            while too_many([each.points for each in self._open.values()], self._max_open):
                self._close(random.choice(less_used([*self._open])))
        self._open.move_to_end(key)
        return self._open[key]

    def put_aside(self, name: str, action: str, reason: str) -> IndexUnavailable:
        """Move a collection that cannot be read out of the way, whole; return the error that says so.

        Nothing is moved when the system is short of something: then that is what the error says.
        """
        if any(text in reason for text in _SHORTAGES) or shutil.disk_usage(self._folder).free < ROOM_BYTES:
            return IndexUnavailable(action, reason)
        aside = self._folder / DAMAGED
        aside.mkdir(exist_ok=True)
        for older in aside.glob(f"{name}-[0-9]*"):
            shutil.rmtree(older, ignore_errors=True)
        place = aside / f"{name}-{time.strftime('%Y%m%dT%H%M%S', time.gmtime())}"
        with suppress(FileNotFoundError):
            (self._folder / name).rename(place)
        self._pointers.pop(name, None)
        for key in [key for key in self._open if key[0] == name]:
            del self._open[key]  # not flushed: what it holds is what could not be read
        return IndexDamaged(action, reason, str(place))

    def _load(self, name: str, generation: int, meta: CollectionMeta) -> Shard:
        try:
            return open_shard(self._folder / name / str(generation), name, generation, meta)
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as exc:  # a panic of the engine is no `Exception`
            raise self.put_aside(name, "open a collection", str(exc)) from exc

    def record_dense(self, shard: Shard, dense: Dense) -> Shard:
        """Make room for such vectors in ``shard``, once; return it, opened anew where that was done.

        Raises:
            IndexMismatch: it has another kind.
        """
        meta = shard.meta.with_dense(dense)
        if meta == shard.meta:
            return shard
        # First the vector, then the record: repeating the first after a crash in between does nothing.
        with engine_errors("add dense vectors"):
            for operation in dense_vectors(meta):
                shard.update(operation)
        self._record(shard, meta)
        self._close((shard.name, shard.generation))  # its size says at the opening when its vectors are read
        return cast(Shard, self.shard(f"{shard.name}@{shard.generation}"))

    def record_calibration(self, collection: str, calibration: Calibration) -> None:
        if shard := self.shard(collection):
            self._record(shard, replace(shard.meta, calibration=calibration))

    def begin(self, name: str, meta: CollectionMeta) -> int:
        """A new, empty generation beside the live one."""
        pointer = self._pointer(name)
        generation = self._new_generation(name, pointer, meta)
        self._save(name, pointer)
        return generation

    def swap(self, name: str, generation: int) -> None:
        """Make `generation` live and remove all but it and the one that was."""
        self._check_open()
        pointer = self._pointer(name)
        if str(generation) not in pointer.metas:
            raise IndexUnavailable("swap a collection", f"{name} has no generation {generation}")
        if generation == pointer.live:
            return
        pointer.previous, pointer.live = pointer.live or None, generation
        kept = {str(pointer.live), str(pointer.previous)}
        outdated = [int(number) for number in pointer.metas if number not in kept]
        pointer.metas = {number: meta for number, meta in pointer.metas.items() if number in kept}
        self._save(name, pointer)
        for number in outdated:
            self._remove(name, number)

    def roll_back(self, name: str) -> bool:
        """Exchange the live generation and the one before; False when there is none."""
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
        """Flush every shard that was changed."""
        with engine_errors("store chunks"):
            for shard in self._open.values():
                shard.flush()

    def close(self) -> None:
        """Flush and close every shard and give up the folder. A second call does nothing."""
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
        """Create the shard of the next generation; the caller saves the pointer that makes it known."""
        self._check_open()
        pointer.newest += 1
        folder = self._folder / name / str(pointer.newest)
        # What a crash left half-made is in no pointer; its number comes round again.
        shutil.rmtree(folder, ignore_errors=True)
        with engine_errors("create a collection"):
            folder.parent.mkdir(exist_ok=True)
            create_shard(folder, meta)
        pointer.metas[str(pointer.newest)] = meta
        return pointer.newest

    def _pointer(self, name: str) -> _Pointer:
        """What the file says, to be changed and saved; `_pointers` has what was saved last."""
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
    """Return whether one of the open shards, each with so many points, is to be closed; ``most`` may be open."""
    return len(points) > most or (len(points) > ALWAYS_OPEN and sum(points) > MAX_POINTS)


def less_used(keys: Sequence[Key]) -> Sequence[Key]:
    """Return those of the open shards, the least recently used first, of which any may be closed.

    Were it always the least recently used, collections that are searched by turns would each be closed before its turn
    as soon as there is one more of them than may be open.
    """
    return keys[: len(keys) // 2]


def _descriptors() -> int:
    """How many descriptors this process may have; an open shard has one or two."""
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
