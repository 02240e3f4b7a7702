"""Shards on disk: which folder is which collection's live generation, who owns them, how a chunk lies in one.

Blocking, and called from one thread at a time, as `edge_collections` is. It does not know queries.

    {folder}/owner.lock                held by the one process that may open shards
    {folder}/{collection}/pointer.json which generation is live, which was before, what each was made with
    {folder}/{collection}/{n}/         the shard of generation n
    {folder}/.damaged/{collection}-…   what could not be read and was put aside, the newest of each collection
"""

import fcntl
import os
import shutil
import sys
import time
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import orjson
import qdrant_edge as engine

from mcp_servers.retriever.chunking import Chunk, Span
from mcp_servers.retriever.document import Json
from mcp_servers.retriever.errors import IndexClosed, IndexDamaged, IndexMismatch, IndexOwned, IndexUnavailable
from mcp_servers.retriever.index import (
    DENSE,
    LEXICAL,
    Calibration,
    CollectionMeta,
    Dense,
    Selection,
    ending,
    split_name,
)

MAX_OPEN = 128
"""Shards kept open; the least recently used is flushed and closed first. To open one again takes 30 ms, to search one
half a millisecond. An open one holds 0.4 MB, eight idle threads, and 13 MB of its files, which can be reclaimed."""

DOCUMENT = "document"
HEADINGS = "heading_path"
ORDINAL = "ordinal"
"""Payload fields that are filtered on."""

STORED = "stored"

Payload = dict[str, Any]
"""A JSON object, as the engine takes it."""

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

_SEPARATOR = "\n"
"""Between id and name of a document; ids are made by the server and are one line."""


class Documents:
    """The documents of a shard, by the values their chunks have in `DOCUMENT`."""

    def __init__(self, values: Iterable[str]) -> None:
        self._names: dict[str, set[str]] = {}
        for value in values:
            document_id, _, name = value.partition(_SEPARATOR)
            self.add(document_id, name)

    def add(self, document_id: str, name: str) -> None:
        self._names.setdefault(document_id, set()).add(name)

    def remove(self, document_id: str) -> None:
        self._names.pop(document_id, None)

    def values(self, selection: Selection) -> list[str]:
        """What `DOCUMENT` may be in the chunks of a selection, its heading apart."""
        ids = self._names if selection.document_ids is None else selection.document_ids
        return [
            document_id + _SEPARATOR + name
            for document_id in ids
            for name in self._names.get(document_id, ())
            if not selection.document or selection.document in (document_id, name)
            if not selection.type or selection.type == ending(name)
        ]


@dataclass(slots=True)
class Shard:
    """An open generation with `points` points. `idf` remembers token weights until `changed` points make them stale;
    `documents` is None until it was asked for."""

    name: str
    generation: int
    engine: engine.EdgeShard
    meta: CollectionMeta
    points: int
    documents: Documents | None = None
    idf: dict[int, float] = field(default_factory=dict)
    changed: int = 0


@dataclass(slots=True)
class _Pointer:
    live: int = 0
    previous: int | None = None
    newest: int = 0
    metas: dict[str, CollectionMeta] = field(default_factory=dict)


@contextmanager
def engine_errors(action: str) -> Iterator[None]:
    """The engine raises bare `Exception` for everything; this is the boundary where that ends."""
    try:
        yield
    except (IndexMismatch, IndexUnavailable):
        raise
    except Exception as exc:
        raise IndexUnavailable(action, str(exc)) from exc


class ShardStore:
    """Raises `IndexOwned` when another process (or another store in this one) holds `folder`.

    ``max_open``: how many shards stay open.
    """

    def __init__(self, folder: Path, max_open: int = MAX_OPEN) -> None:
        self._folder = folder
        self._max_open = max_open
        self._open: OrderedDict[tuple[str, int], Shard] = OrderedDict()
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
            handle, points = self._load(name, generation)
            self._open[key] = Shard(name, generation, handle, pointer.metas[str(generation)], points)
            while len(self._open) > self._max_open:
                self._close(next(iter(self._open)))
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

    def _load(self, name: str, generation: int) -> tuple[engine.EdgeShard, int]:
        action = "open a collection"
        try:
            handle = engine.EdgeShard.load(str(self._folder / name / str(generation)))
            return handle, handle.info().points_count
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as exc:  # a panic of the engine is no `Exception`
            raise self.put_aside(name, action, str(exc)) from exc

    def record_dense(self, shard: Shard, dense: Dense) -> None:
        """Make room for such vectors in ``shard``, once. Raises `IndexMismatch` when it has another kind."""
        meta = shard.meta.with_dense(dense)
        if meta != shard.meta:
            # First the vector, then the record: repeating the first after a crash in between does nothing.
            with engine_errors("add dense vectors"):
                shard.engine.update(_dense_vector(meta))
            self._record(shard, meta)

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

    def _close(self, key: tuple[str, int]) -> None:
        shard = self._open.pop(key)
        with engine_errors("close a collection"):
            shard.engine.flush()
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
        config = engine.EdgeConfig(
            sparse_vectors={LEXICAL: engine.EdgeSparseVectorParams(modifier=engine.Modifier.Idf)},
        )
        with engine_errors("create a collection"):
            folder.parent.mkdir(exist_ok=True)
            shard = engine.EdgeShard.create(str(folder), config)
            for key in (DOCUMENT, HEADINGS):
                shard.update(engine.UpdateOperation.create_field_index(key, engine.PayloadSchemaType.Keyword))
            ranges = engine.IntegerIndexParams(lookup=False, range=True)
            shard.update(engine.UpdateOperation.create_field_index(ORDINAL, ranges))
            if meta.dimension is not None:
                shard.update(_dense_vector(meta))
            shard.close()
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
            raise self.put_aside(name, "read what is recorded of a collection", f"pointer.json: {exc}") from exc

    def _save(self, name: str, pointer: _Pointer) -> None:
        path = self._folder / name / "pointer.json"
        fresh = path.with_suffix(".new")
        with engine_errors("record a collection"), fresh.open("wb") as file:
            file.write(orjson.dumps(pointer))
            file.flush()
            os.fsync(file.fileno())
            fresh.replace(path)
        self._pointers[name] = pointer


def point_payload(chunk: Chunk) -> Payload:
    """Return a point's payload: the stored text that citations are checked against, and what filters look at.

    The engine's binding takes about 8 µs for each string and each list element, with the interpreter lock held, so
    that there are few of them: id and name of the document in one, the headings, the ordinal, and all the rest of
    the chunk as one JSON string.
    """
    offsets = [offset for span in chunk.sentences for offset in span]
    stored = (chunk.heading_path, chunk.page, chunk.cells, chunk.text, chunk.start, chunk.end, offsets)
    payload: Payload = {
        DOCUMENT: chunk.document_id + _SEPARATOR + chunk.document_name,
        ORDINAL: chunk.ordinal,
        STORED: orjson.dumps(stored).decode(),
    }
    if chunk.heading_path:
        # A list is given element by element after everything else was tried; most chunks have one heading.
        payload[HEADINGS] = list(chunk.heading_path) if len(chunk.heading_path) > 1 else chunk.heading_path[0]
    return payload


def stored_chunk(chunk_id: str, payload: Json) -> Chunk:
    """Return the chunk of a point; reverses `point_payload`."""
    document_id, _, document_name = payload[DOCUMENT].partition(_SEPARATOR)
    headings, page, cells, text, start, end, offsets = orjson.loads(payload[STORED])
    return Chunk(
        chunk_id=chunk_id,
        document_id=document_id,
        document_name=document_name,
        ordinal=payload[ORDINAL],
        heading_path=tuple(headings),
        page=page,
        cells=cells,
        text=text,
        start=start,
        end=end,
        sentences=tuple(map(Span, offsets[::2], offsets[1::2])),
    )


def document_name(value: str) -> str:
    """Return the name in a value of `DOCUMENT`."""
    return value.partition(_SEPARATOR)[2]


def _dense_vector(meta: CollectionMeta) -> engine.UpdateOperation:
    # Turbo8: an exact scan of 50 000 x 384 takes 2.4 ms instead of 10, ten nearest agree in 99.4 % with float32.
    return engine.UpdateOperation.create_dense_vector(
        DENSE, meta.dimension or 0, engine.Distance.Cosine, None, engine.VectorStorageDatatype.Turbo8
    )


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
