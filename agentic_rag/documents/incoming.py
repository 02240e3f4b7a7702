"""A file on its way in: bytes to a file beside the workspaces, bounded, and nothing left behind if it ends early.

Owns the growing file. What it becomes is `documents`' to say.
"""

import hashlib
from collections.abc import Awaitable, Callable
from io import FileIO
from pathlib import Path
from typing import Self

import anyio
import anyio.to_thread

from agentic_rag.errors import DocumentTooLarge, StorageFull
from agentic_rag.store.documents import DocumentRecord

WRITE_BYTES = 256 * 1024
"""Uploaded bytes are collected to this size before a thread writes them."""


class Incoming:
    """An async context manager; leaving it before `finish` leaves nothing behind. Made by `Documents.receive`."""

    def __init__(
        self, name: str, path: Path, limit: int, finish: Callable[["Incoming"], Awaitable[DocumentRecord]]
    ) -> None:
        self.name = name
        self.path = path
        self.size = 0
        self._limit = limit
        self._finish = finish
        self._digest = hashlib.sha256()
        self._pending = bytearray()
        self._file: FileIO

    async def __aenter__(self) -> Self:
        self._file = await anyio.to_thread.run_sync(_create, self.path)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._file.close()
        self.path.unlink(missing_ok=True)

    @property
    def sha256(self) -> str:
        return self._digest.hexdigest()

    async def write(self, data: bytes) -> None:
        """Take more bytes.

        Raises:
            DocumentTooLarge: the file is over the limit.
            StorageFull: it cannot be written.
        """
        self.size += len(data)
        if self.size > self._limit:
            raise DocumentTooLarge(self.name, self._limit)
        self._pending += data
        if len(self._pending) >= WRITE_BYTES:
            await self._flush()

    async def finish(self) -> DocumentRecord:
        """Make it a document of the domain, or return the one that has these bytes already."""
        await self._flush()
        return await self._finish(self)

    async def _flush(self) -> None:
        pending, self._pending = bytes(self._pending), bytearray()
        await anyio.to_thread.run_sync(self._write, pending)

    def _write(self, data: bytes) -> None:
        self._digest.update(data)
        view = memoryview(data)
        try:
            while view:
                view = view[self._file.write(view) :]
        except OSError as exc:
            raise StorageFull(exc.strerror or "unknown reason") from exc


def _create(path: Path) -> FileIO:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return FileIO(path, "x")  # no buffer: one that cannot be written would fail again on closing
    except OSError as exc:
        raise StorageFull(exc.strerror or "unknown reason") from exc
