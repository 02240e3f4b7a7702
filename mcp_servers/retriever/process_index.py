"""`Index` of a server as a client of the separate index process (`index_process`).

This module only packs and unpacks the values of each call. If the index process fails because of a full disk or a
damaged file, a search fails with the reason and the server keeps running. The interpreter lock that the engine holds
does not block the server either.
"""

from collections.abc import AsyncIterator, Callable, Collection, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

import anyio
import anyio.to_thread

from mcp_servers.frames import Frame
from mcp_servers.retriever.chunking import Chunk
from mcp_servers.retriever.document import Json
from mcp_servers.retriever.errors import IndexFault
from mcp_servers.retriever.index import (
    EVERYTHING,
    UPSERT_BATCH,
    Calibration,
    CandidateLimit,
    CollectionMeta,
    Dense,
    LegResults,
    Selection,
    split_name,
)
from mcp_servers.retriever.index_frames import (
    pack_chunks,
    pack_dense,
    pack_selection,
    pack_vectors,
    unpack_chunks,
    unpack_legs,
    unpack_sample,
)
from mcp_servers.retriever.index_supervisor import IndexSupervisor, Request
from mcp_servers.retriever.lexical import Sparse

READ_SECONDS = 10.0
WRITE_SECONDS = 60.0
"""Timeouts of requests. A write waits for writes of other collections, and a deletion for all chunks of the document.
"""

AHEAD = 2
"""Parts of a write sent concurrently: while the process writes one, the next one is already in its queue."""


@dataclass(frozen=True, slots=True)
class _CachedAnswer:
    """A cached answer about a collection, and the supervisor's mark from before the request."""

    mark: tuple[int, int]
    value: Any


T = TypeVar("T")

_Packed = tuple[Json, bytes]
"""The JSON data and the vectors of one part of a write."""


def _parts(count: int) -> list[slice]:
    """Return slices of at most `UPSERT_BATCH` that cover ``count`` items."""
    return [slice(at, at + UPSERT_BATCH) for at in range(0, count, UPSERT_BATCH)]


@asynccontextmanager
async def open_process_index(folder: Path) -> AsyncIterator["ProcessIndex"]:
    """Supervise an index process for ``folder`` while the block runs.

    The process starts on the first request or `ProcessIndex.wait_for_loss`, and only callers of those wait for the
    start. While another process owns the folder, every request fails with that reason.
    """
    supervisor = IndexSupervisor(folder)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(supervisor.run)
        try:
            yield ProcessIndex(supervisor)
        finally:
            await supervisor.close()
            tasks.cancel_scope.cancel()


class ProcessIndex:
    """`Index` in a supervised process; created by `open_process_index`."""

    def __init__(self, supervisor: IndexSupervisor) -> None:
        self._supervisor = supervisor
        self._answers: dict[tuple[str, str], _CachedAnswer] = {}
        """Cached answers by method and collection."""

    @property
    def pid(self) -> int | None:
        """Id of the index process; None while none runs."""
        return self._supervisor.pid

    @property
    def asked(self) -> int:
        """Number of requests sent to the process."""
        return self._supervisor.asked

    async def _read(self, method: str, action: str, data: Json, floats: bytes = b"") -> Frame:
        split_name(data["collection"])
        return await self._supervisor.ask(Request(method, action, data, floats, READ_SECONDS))

    async def _write(
        self, method: str, action: str, data: Json, floats: bytes = b"", *, repeatable: bool = True
    ) -> Frame:
        split_name(data["collection"])
        return await self._supervisor.ask(Request(method, action, data, floats, WRITE_SECONDS, repeatable, writes=True))

    async def _write_in_parts(
        self, method: str, action: str, collection: str, parts: Sequence[slice], pack: Callable[[slice], _Packed]
    ) -> None:
        """Send the parts of a write, at most `AHEAD` of them concurrently; stop at the first fault and raise it."""
        faults: list[IndexFault] = []

        async def write(part: slice) -> None:
            data, floats = pack(part)
            await self._write(method, action, {"collection": collection, **data}, floats)

        async def write_beside(part: slice) -> None:
            try:
                await write(part)
            except IndexFault as fault:
                faults.append(fault)
            finally:
                places.release()

        split_name(collection)
        if len(parts) == 1:  # most writes: nothing to send concurrently
            await write(parts[0])
            return
        places = anyio.Semaphore(AHEAD)
        async with anyio.create_task_group() as tasks:
            for part in parts:
                await places.acquire()
                if faults:
                    break
                tasks.start_soon(write_beside, part)
        if faults:
            raise faults[0]

    async def _remember(self, method: str, action: str, collection: str, unpack: Callable[[Any], T]) -> T:
        """Return the unpacked answer of a read method, cached for as long as the collection cannot have changed."""
        mark = self._supervisor.mark(collection)
        cached = self._answers.get((method, collection))
        if cached is None or cached.mark != mark:
            answer = await self._read(method, action, {"collection": collection})
            cached = _CachedAnswer(mark, unpack(answer.data["value"]))
            self._answers[method, collection] = cached
        value: T = cached.value
        return value

    async def upsert(
        self,
        collection: str,
        chunks: Sequence[Chunk],
        dense: Dense | None = None,
        lexical: Sequence[Sparse] | None = None,
        *,
        known_only: bool = False,
    ) -> None:
        only = {"known_only": True} if known_only else {}

        def pack(part: slice) -> _Packed:
            said, floats = pack_dense(dense.of_chunks(part) if dense else None)
            sparse = [[*vector] for vector in lexical[part]] if lexical else None
            return {"chunks": pack_chunks(chunks[part]), "lexical": sparse, **only, **said}, floats

        await self._write_in_parts("upsert", "store chunks", collection, _parts(len(chunks)), pack)

    async def add_dense(self, collection: str, chunk_ids: Sequence[str], dense: Dense) -> None:
        def pack(part: slice) -> _Packed:
            said, floats = pack_dense(dense.of_chunks(part))
            return {"chunk_ids": [*chunk_ids[part]], **said}, floats

        await self._write_in_parts("add_dense", "store vectors", collection, _parts(len(chunk_ids)), pack)

    async def without_dense(self, collection: str, limit: int) -> list[Chunk]:
        answer = await self._read("without_dense", "read chunks", {"collection": collection, "limit": limit})
        return unpack_chunks(answer.data["value"])

    async def delete_document(self, collection: str, document_id: str) -> None:
        data = {"collection": collection, "document_id": document_id}
        await self._write("delete_document", "delete a document", data)

    async def drop(self, collection: str) -> None:
        await self._write("drop", "drop a collection", {"collection": collection})

    async def count(self, collection: str, document_id: str | None = None) -> int:
        value: int
        if document_id is None:
            value = await self._remember("count", "count chunks", collection, int)
        else:
            data = {"collection": collection, "document_id": document_id}
            value = (await self._read("count", "count chunks", data)).data["value"]
        return value

    async def chunks(self, collection: str, document_id: str, offset: int = 0, limit: int = 100) -> list[Chunk]:
        data = {"collection": collection, "document_id": document_id, "offset": offset, "limit": limit}
        return unpack_chunks((await self._read("chunks", "read chunks", data)).data["value"])

    async def get(self, collection: str, chunk_ids: Sequence[str]) -> dict[str, Chunk]:
        answer = await self._read("get", "read chunks", {"collection": collection, "chunk_ids": [*chunk_ids]})
        return {chunk.chunk_id: chunk for chunk in unpack_chunks(answer.data["value"])}

    async def existing(self, collection: str, chunk_ids: Collection[str]) -> set[str]:
        answer = await self._read("existing", "read chunks", {"collection": collection, "chunk_ids": [*chunk_ids]})
        return set(answer.data["value"])

    async def document_names(self, collection: str, selection: Selection, part: str = "") -> list[str]:
        data = {"collection": collection, "selection": pack_selection(selection), "part": part}
        names: list[str] = (await self._read("document_names", "list documents", data)).data["value"]
        return names

    async def search_legs(
        self,
        collection: str,
        query: str,
        vector: Sequence[float] | None = None,
        selection: Selection = EVERYTHING,
        limit: int = 100,
        lead: CandidateLimit | None = None,
    ) -> LegResults:
        data = {"collection": collection, "query": query, "selection": pack_selection(selection), "limit": limit}
        if lead:
            data["lead"] = asdict(lead)
        floats = b"" if vector is None else pack_vectors([vector])
        return unpack_legs((await self._read("search_legs", "search", data, floats)).data["value"])

    async def sample(self, collection: str, limit: int) -> list[tuple[Chunk, list[list[float]]]]:
        answer = await self._read("sample", "sample chunks", {"collection": collection, "limit": limit})
        # In a thread: 256 chunks of 8 windows are a million numbers, which would block the event loop for 100 ms.
        return await anyio.to_thread.run_sync(unpack_sample, answer)

    async def meta(self, collection: str) -> CollectionMeta | None:
        def unpack(data: Json | None) -> CollectionMeta | None:
            return None if data is None else CollectionMeta.from_json(data)

        return await self._remember("meta", "open a collection", collection, unpack)

    async def set_calibration(self, collection: str, calibration: Calibration) -> None:
        data = {"collection": collection, "calibration": asdict(calibration)}
        await self._write("set_calibration", "record a collection", data)

    async def rebuild(self, collection: str, meta: CollectionMeta) -> str:
        data = {"collection": collection, "meta": meta.to_json()}
        value: str = (await self._write("rebuild", "create a collection", data, repeatable=False)).data["value"]
        return value

    async def swap(self, collection: str, generation: str) -> None:
        split_name(generation)
        await self._write("swap", "swap a collection", {"collection": collection, "generation": generation})

    async def roll_back(self, collection: str) -> bool:
        answer = await self._write("roll_back", "roll back a collection", {"collection": collection}, repeatable=False)
        return bool(answer.data["value"])

    async def wait_for_loss(self) -> None:
        await self._supervisor.wait_for_loss()

    async def aclose(self) -> None:
        await self._supervisor.close()
