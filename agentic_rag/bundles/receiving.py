"""Receiving a bundle: it is stored and unpacked on disk, and removed if it ends early.

The folder of an import holds ``bundle.zip`` during the upload, then ``files`` with its members.
"""

import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from io import FileIO
from pathlib import Path

import anyio
import anyio.to_thread

from agentic_rag.base import failpoints
from agentic_rag.base.bundle_errors import BundleTooLarge
from agentic_rag.base.errors import StorageFull
from agentic_rag.bundles.form import Manifest
from agentic_rag.bundles.unpacking import Bounds, unpack
from agentic_rag.documents.disk_reserve import DiskReserve
from agentic_rag.store.clock import new_id

WRITE_BYTES = 256 * 1024
AT_ONCE = 2
"""Number of bundles unpacked and imported concurrently; uploads in progress are limited only by the disk's reserve."""


@dataclass(frozen=True, slots=True)
class Received:
    """A fully checked bundle. ``folder`` is the import's folder; ``files`` holds the members under their names."""

    id: str
    folder: Path
    manifest: Manifest

    @property
    def files(self) -> Path:
        return self.folder / "files"


class Reception:
    """Receives bundles below a folder. ``document`` limits the bytes of one document, ``total`` those of all."""

    def __init__(self, folder: Path, reserve: DiskReserve, document: int, total: int) -> None:
        self.folder = folder
        self._reserve = reserve
        self._bounds = Bounds(document, total, reserve.check_now)
        self._places = anyio.CapacityLimiter(AT_ONCE)

    @property
    def max_bytes(self) -> int:
        """Maximum size of a bundle in bytes."""
        return self._bounds.total

    @asynccontextmanager
    async def receive(self, pieces: AsyncIterator[bytes]) -> AsyncIterator[Received]:
        """Receive a bundle and yield it unpacked; its folder is removed at the end.

        Raises:
            BundleRefused, BundleTooNew, DocumentTooLarge: the bundle cannot be used; the error gives the reason.
            StorageFull: the disk is full.
        """
        ident = new_id("imp")
        folder = self.folder / ident
        try:
            await anyio.to_thread.run_sync(_make, folder)
            await self._write(folder / "bundle.zip", pieces)
            failpoints.reached("bundle.received")
            async with self._places:  # not earlier, because a client may upload slowly
                work = partial(unpack, folder / "bundle.zip", folder / "files", self._bounds)
                manifest = await anyio.to_thread.run_sync(work)
                failpoints.reached("bundle.unpacked")
                yield Received(ident, folder, manifest)
        finally:
            with anyio.CancelScope(shield=True):
                await anyio.to_thread.run_sync(partial(shutil.rmtree, folder, ignore_errors=True))

    async def _write(self, path: Path, pieces: AsyncIterator[bytes]) -> None:
        with await anyio.to_thread.run_sync(_create, path) as file:
            held, size = bytearray(), 0
            async for piece in pieces:
                held += piece
                size += len(piece)
                if size > self._bounds.total:
                    raise BundleTooLarge(f"it has more than {self._bounds.total} bytes")
                if len(held) >= WRITE_BYTES:
                    await anyio.to_thread.run_sync(self._put, file, bytes(held))
                    held.clear()
            await anyio.to_thread.run_sync(self._put, file, bytes(held))

    def _put(self, file: FileIO, data: bytes) -> None:
        self._reserve.check_now()
        view = memoryview(data)
        try:
            while view:
                view = view[file.write(view) :]
        except OSError as exc:
            raise StorageFull(exc.strerror or "unknown reason") from exc


def _make(folder: Path) -> None:
    try:
        (folder / "files").mkdir(mode=0o700, parents=True)
    except OSError as exc:
        raise StorageFull(exc.strerror or "unknown reason") from exc


def _create(path: Path) -> FileIO:
    try:
        return FileIO(path, "x")  # unbuffered: closing a buffered file would fail once more on a full disk
    except OSError as exc:
        raise StorageFull(exc.strerror or "unknown reason") from exc
