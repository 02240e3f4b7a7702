"""The embedded index in this process: `EdgeCollections`, called in one worker thread.

Standalone programs use it (`python -m mcp_servers.retriever`, scripts). A server runs its index in a separate process
(`process_index`), because here the engine's lock blocks the event loop during each step, and a fault in its mapped
files ends the process.
"""

from collections.abc import Callable, Collection, Sequence
from functools import partial
from pathlib import Path
from typing import ParamSpec, TypeVar

import anyio
import anyio.to_thread

from mcp_servers.retriever.chunking import Chunk
from mcp_servers.retriever.edge_collections import EdgeCollections, Steps
from mcp_servers.retriever.edge_store import MAX_OPEN
from mcp_servers.retriever.index import (
    EVERYTHING,
    Calibration,
    CandidateLimit,
    CollectionMeta,
    Dense,
    LegResults,
    Selection,
)
from mcp_servers.retriever.lexical import Sparse

P = ParamSpec("P")
T = TypeVar("T")


class EdgeIndex:
    """`Index` on the collections under ``folder``, at most ``max_open`` of which stay open.

    Raises:
        IndexOwned: another process holds the folder.
    """

    def __init__(self, folder: Path, max_open: int = MAX_OPEN) -> None:
        self._collections = EdgeCollections(folder, max_open)
        self._worker = anyio.CapacityLimiter(1)

    async def _call(self, method: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        return await anyio.to_thread.run_sync(partial(method, *args, **kwargs), limiter=self._worker)

    async def _take(self, steps: Steps) -> None:
        while await anyio.to_thread.run_sync(_has_stepped, steps, limiter=self._worker):
            pass

    async def upsert(
        self,
        collection: str,
        chunks: Sequence[Chunk],
        dense: Dense | None = None,
        lexical: Sequence[Sparse] | None = None,
        *,
        known_only: bool = False,
    ) -> None:
        await self._take(self._collections.upsert(collection, chunks, dense, lexical, known_only=known_only))

    async def add_dense(self, collection: str, chunk_ids: Sequence[str], dense: Dense) -> None:
        await self._take(self._collections.add_dense(collection, chunk_ids, dense))

    async def delete_document(self, collection: str, document_id: str) -> None:
        await self._take(self._collections.delete_document(collection, document_id))

    async def without_dense(self, collection: str, limit: int) -> list[Chunk]:
        return await self._call(self._collections.without_dense, collection, limit)

    async def drop(self, collection: str) -> None:
        await self._call(self._collections.drop, collection)

    async def count(self, collection: str, document_id: str | None = None) -> int:
        return await self._call(self._collections.count, collection, document_id)

    async def chunks(self, collection: str, document_id: str, offset: int = 0, limit: int = 100) -> list[Chunk]:
        return await self._call(self._collections.chunks, collection, document_id, offset, limit)

    async def get(self, collection: str, chunk_ids: Sequence[str]) -> dict[str, Chunk]:
        return await self._call(self._collections.get, collection, chunk_ids)

    async def existing(self, collection: str, chunk_ids: Collection[str]) -> set[str]:
        return await self._call(self._collections.existing, collection, chunk_ids)

    async def document_names(self, collection: str, selection: Selection, part: str = "") -> list[str]:
        return await self._call(self._collections.document_names, collection, selection, part)

    async def search_legs(
        self,
        collection: str,
        query: str,
        vector: Sequence[float] | None = None,
        selection: Selection = EVERYTHING,
        limit: int = 100,
        lead: CandidateLimit | None = None,
    ) -> LegResults:
        return await self._call(self._collections.search_legs, collection, query, vector, selection, limit, lead)

    async def sample(self, collection: str, limit: int) -> list[tuple[Chunk, list[list[float]]]]:
        return await self._call(self._collections.sample, collection, limit)

    async def meta(self, collection: str) -> CollectionMeta | None:
        return await self._call(self._collections.meta, collection)

    async def set_calibration(self, collection: str, calibration: Calibration) -> None:
        await self._call(self._collections.set_calibration, collection, calibration)

    async def rebuild(self, collection: str, meta: CollectionMeta) -> str:
        return await self._call(self._collections.rebuild, collection, meta)

    async def swap(self, collection: str, generation: str) -> None:
        await self._call(self._collections.swap, collection, generation)

    async def roll_back(self, collection: str) -> bool:
        return await self._call(self._collections.roll_back, collection)

    async def wait_for_loss(self) -> None:
        await anyio.sleep_forever()

    async def aclose(self) -> None:
        with anyio.CancelScope(shield=True):  # bounded: a flush takes a second at most, and must not be interrupted
            await self._call(self._collections.close)


def _has_stepped(steps: Steps) -> bool:
    """Execute one step; return False if none was left."""
    return next(steps, steps) is not steps
