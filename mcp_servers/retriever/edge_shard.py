"""A shard: made, opened, and kept as its size wants it. Blocking; which collection's it is, `edge_store` knows.

The engine makes files of up to 32 MiB for whatever a shard has, and reads most of them when it opens it. A shard with
many points needs that in its searches; of one with fifty, 46 MB of holes are read in 30 ms. So a small shard has no
payload indexes (a filter looks at its few points), and what it has of dense vectors is read by the searches: then it
opens in 7 ms and holds 0.4 MB. It gets its indexes when it has grown.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import orjson
import qdrant_edge as engine
from qdrant_edge import UpdateOperation

from mcp_servers.retriever.edge_points import DOCUMENT, HEADINGS, ORDINAL, Documents
from mcp_servers.retriever.errors import IndexMismatch, IndexUnavailable
from mcp_servers.retriever.index import DENSE, LEXICAL, WINDOWS, CollectionMeta

SMALL = 256
"""Points of a shard that needs no payload index: a search with a filter takes 2 ms more than with one."""

SMALL_BYTES = 2**20
"""What there may be on disk of dense vectors that are not read in advance."""

_FIELDS: dict[str, engine.PayloadSchemaType | engine.IntegerIndexParams] = {
    DOCUMENT: engine.PayloadSchemaType.Keyword,
    HEADINGS: engine.PayloadSchemaType.Keyword,
    ORDINAL: engine.IntegerIndexParams(lookup=False, range=True),
}

_IN_ADVANCE, _WHEN_NEEDED = "InRamChunkedMmap", "ChunkedMmap"
"""The engine's names of one layout of dense vectors, by when they are read."""


@dataclass(slots=True)
class Shard:
    """An open generation with `points` points. `unindexed` are the payload fields without an index, which a small one
    does not need; `idf` remembers token weights until `changed` points make them stale; `documents` is None until it
    was asked for."""

    name: str
    generation: int
    engine: engine.EdgeShard
    meta: CollectionMeta
    points: int
    unindexed: list[str]
    documents: Documents | None = None
    idf: dict[int, float] = field(default_factory=dict)
    changed: int = 0
    unflushed: bool = False

    def update(self, operation: UpdateOperation) -> None:
        """Change the shard; the engine's log has it when this returns. Raises whatever the engine does."""
        self.unflushed = True
        self.engine.update(operation)

    def flush(self) -> None:
        """Bring what changed from the engine's log into its files. Raises whatever the engine does."""
        if self.unflushed:
            self.engine.flush()
            self.unflushed = False

    def index_field(self) -> bool:
        """Make one of the indexes that a shard of this size should have; False when there is none to be made.

        Takes about 25 ms. Raises whatever the engine does.
        """
        if self.points <= SMALL or not self.unindexed:
            return False
        name = self.unindexed[0]
        self.update(UpdateOperation.create_field_index(name, _FIELDS[name]))
        self.unindexed.remove(name)
        return True


@contextmanager
def engine_errors(action: str) -> Iterator[None]:
    """The engine raises bare `Exception` for everything; this is the boundary where that ends."""
    try:
        yield
    except (IndexMismatch, IndexUnavailable):
        raise
    except Exception as exc:
        raise IndexUnavailable(action, str(exc)) from exc


def create_shard(folder: Path, meta: CollectionMeta) -> None:
    """Make an empty shard in ``folder``, for dense vectors if their dimension is known. Raises what the engine does."""
    shard = engine.EdgeShard.create(str(folder), _config())
    for operation in dense_vectors(meta):
        shard.update(operation)
    shard.close()


def open_shard(folder: Path, name: str, generation: int, meta: CollectionMeta) -> Shard:
    """Open the shard in ``folder``. Raises whatever the engine does, a panic too, which is no `Exception`."""
    _place_dense(folder)
    handle = engine.EdgeShard.load(str(folder), _config())
    info = handle.info()
    unindexed = [each for each in _FIELDS if each not in info.payload_schema]
    shard = Shard(name, generation, handle, meta, info.points_count, unindexed)
    if shard.points <= SMALL // 2:  # not at once below `SMALL`, where it may soon be again
        for each in _FIELDS.keys() - set(unindexed):
            shard.update(UpdateOperation.delete_field_index(each))
            unindexed.append(each)
    while shard.index_field():
        pass
    return shard


def dense_vectors(meta: CollectionMeta) -> list[UpdateOperation]:
    """Return what adds the dense vectors of a collection to a shard. Each does nothing if it was done before."""
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
    # One thread: there is one segment, and to hand a search of 20 000 points to several takes longer than it.
    return engine.EdgeConfig(
        sparse_vectors={LEXICAL: engine.EdgeSparseVectorParams(modifier=engine.Modifier.Idf)}, max_search_threads=1
    )


def _place_dense(folder: Path) -> None:
    """Say in a closed shard's files whether its dense vectors are read in advance.

    The engine has no call that says so of vectors that exist, or that are added later. What it cannot understand it
    reports itself.
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
    """Replace a file by way of ``fresh``: after a crash it is the old or the new one. Raises `OSError`."""
    with fresh.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
        fresh.replace(path)
