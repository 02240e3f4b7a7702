"""Shards of the engine: create them, open them, and give them the indexes that their size needs.

All calls block. `edge_store` knows which shard belongs to which collection.

The engine creates files of up to 32 MiB for each index and vector store of a shard, and reads most of them when the
shard is opened. Searches in a shard with many points need that. For a shard with fifty points, the engine would read
46 MB of holes in 30 ms. So a small shard has no payload indexes (a filter scans its few points), and searches read its
dense vectors on demand: such a shard opens in 7 ms and holds 0.4 MB. A shard gets its indexes when it has grown.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import orjson
import qdrant_edge as engine
from qdrant_edge import UpdateOperation

from mcp_servers.retriever.edge_points import DOCUMENT, HEADINGS, ORDINAL, IndexedDocuments
from mcp_servers.retriever.errors import IndexMismatch, IndexUnavailable
from mcp_servers.retriever.index import DENSE, LEXICAL, WINDOWS, CollectionMeta

SMALL = 256
"""Maximum number of points of a shard without payload indexes; filtered searches then take 2 ms longer."""

SMALL_BYTES = 2**20
"""Maximum number of bytes on disk of dense vectors that are not read in advance."""

_FIELDS: dict[str, engine.PayloadSchemaType | engine.IntegerIndexParams] = {
    DOCUMENT: engine.PayloadSchemaType.Keyword,
    HEADINGS: engine.PayloadSchemaType.Keyword,
    ORDINAL: engine.IntegerIndexParams(lookup=False, range=True),
}

_IN_ADVANCE, _WHEN_NEEDED = "InRamChunkedMmap", "ChunkedMmap"
"""The engine's names of the two storage types of dense vectors: read when the shard is opened, or on demand."""


@dataclass(slots=True)
class Shard:
    """An open generation of a collection, with `points` points.

    `unindexed` lists the payload fields without an index, which a small shard does not need. `idf` caches token
    weights until `changed` points make them stale. `documents` is None until its first use.
    """

    name: str
    generation: int
    engine: engine.EdgeShard
    meta: CollectionMeta
    points: int
    unindexed: list[str]
    documents: IndexedDocuments | None = None
    idf: dict[int, float] = field(default_factory=dict)
    changed: int = 0
    unflushed: bool = False

    def update(self, operation: UpdateOperation) -> None:
        """Apply a change, which the engine's write-ahead log holds on return. Raises the errors of the engine."""
        self.unflushed = True
        self.engine.update(operation)

    def flush(self) -> None:
        """Write changes from the engine's log to its files. Raises the errors of the engine."""
        if self.unflushed:
            self.engine.flush()
            self.unflushed = False

    def index_field(self) -> bool:
        """Create one missing payload index that a shard of this size needs; return False if none is missing.

        Takes about 25 ms. Raises the errors of the engine.
        """
        if self.points <= SMALL or not self.unindexed:
            return False
        name = self.unindexed[0]
        self.update(UpdateOperation.create_field_index(name, _FIELDS[name]))
        self.unindexed.remove(name)
        return True


@contextmanager
def engine_errors(action: str) -> Iterator[None]:
    """Turn the bare `Exception` that the engine raises for everything into `IndexUnavailable`."""
    try:
        yield
    except (IndexMismatch, IndexUnavailable):
        raise
    except Exception as exc:
        raise IndexUnavailable(action, str(exc)) from exc


def create_shard(folder: Path, meta: CollectionMeta) -> None:
    """Create an empty shard in ``folder``, with dense vectors if their dimension is known.

    Raises the errors of the engine.
    """
    shard = engine.EdgeShard.create(str(folder), _config())
    for operation in dense_vectors(meta):
        shard.update(operation)
    shard.close()


def open_shard(folder: Path, name: str, generation: int, meta: CollectionMeta) -> Shard:
    """Open the shard in ``folder``. Raises the errors of the engine, and its panics, which are no `Exception`."""
    _place_dense(folder)
    handle = engine.EdgeShard.load(str(folder), _config())
    info = handle.info()
    unindexed = [name for name in _FIELDS if name not in info.payload_schema]
    shard = Shard(name, generation, handle, meta, info.points_count, unindexed)
    if shard.points <= SMALL // 2:  # hysteresis: a shard just below `SMALL` may soon grow again
        for field_name in _FIELDS.keys() - set(unindexed):
            shard.update(UpdateOperation.delete_field_index(field_name))
            unindexed.append(field_name)
    while shard.index_field():
        pass
    return shard


def dense_vectors(meta: CollectionMeta) -> list[UpdateOperation]:
    """Return the idempotent operations that add a collection's dense vectors to a shard."""
    if meta.dimension is None:
        return []
    # Turbo8: an exact scan of 50 000 x 384 takes 2.4 ms instead of 10, ten nearest agree in 99.4 % with float32.
    kind, distance = engine.VectorStorageDatatype.Turbo8, engine.Distance.Cosine
    operations = [UpdateOperation.create_dense_vector(DENSE, meta.dimension, distance, None, kind)]
    if meta.windowed:
        best = engine.MultiVectorConfig(engine.MultiVectorComparator.MaxSim)
        operations.append(UpdateOperation.create_dense_vector(WINDOWS, meta.dimension, distance, best, kind))
    return operations


def _config() -> engine.EdgeConfig:
    # One thread: there is one segment, and splitting a search of 20 000 points takes longer than the search itself.
    return engine.EdgeConfig(
        sparse_vectors={LEXICAL: engine.EdgeSparseVectorParams(modifier=engine.Modifier.Idf)}, max_search_threads=1
    )


def _place_dense(folder: Path) -> None:
    """Set in a closed shard's files whether its dense vectors are read in advance.

    The engine has no call that sets this for existing vectors, or for vectors that are added later. Files that cannot
    be parsed are left alone, because the engine reports them when it opens the shard.
    """
    for segment in (folder / "segments").glob("*/segment.json"):
        with suppress(OSError, ValueError, TypeError, KeyError, AttributeError):
            data = orjson.loads(segment.read_bytes())
            files = (segment.parent / f"vector_storage-{DENSE}").glob("*/chunk_*.mmap")
            size = sum(file.stat().st_blocks for file in files) * 512
            kind = _WHEN_NEEDED if size <= SMALL_BYTES else _IN_ADVANCE
            vectors = data["config"]["vector_data"].get(DENSE, {})
            if vectors.get("storage_type") in {_IN_ADVANCE, _WHEN_NEEDED} - {kind}:
                vectors["storage_type"] = kind
                write_whole(segment, folder / "segment.new", orjson.dumps(data))


def write_whole(path: Path, fresh: Path, data: bytes) -> None:
    """Replace ``path`` atomically through the temporary file ``fresh``. Raises `OSError`."""
    with fresh.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
        fresh.replace(path)
