"""The part of a disk that uploads must leave free, so that database, index and journals can still be written.

Owns the refusal of uploads, also for a disk that accepts no writes: a volume that several servers mount may turn
read-only. Knows no file except its probe file.
"""

import os
import secrets
import shutil
from pathlib import Path

import anyio.to_thread

from agentic_rag.base.errors import StorageFull


class DiskReserve:
    """A reserve of ``bytes_kept`` bytes on the disk of ``folder``."""

    def __init__(self, folder: Path, bytes_kept: int) -> None:
        self._folder = folder
        self.bytes_kept = bytes_kept
        self.refused: str | None = None
        """The error text of the last `probe` if the disk refused its write."""

    async def check(self) -> None:
        """Check that an upload may write to the disk.

        Raises:
            StorageFull: the disk has less room than the reserve, or accepts no writes.
        """
        await anyio.to_thread.run_sync(self.check_now)

    def check_now(self) -> None:
        """Check like `check`, blocking."""
        if self.refused is not None:
            raise StorageFull(self.refused)
        free = self.free()
        if free is not None and free < self.bytes_kept:
            raise StorageFull(self.words(free))

    async def probe(self, size: int = 0) -> None:
        """Try to write ``size`` bytes, so that a disk that accepts no writes is detected before an upload needs it."""
        self.refused = await anyio.to_thread.run_sync(self._try, size)

    def _try(self, size: int) -> str | None:
        place = self._folder / f".probe-{secrets.token_hex(8)}"
        try:
            descriptor = os.open(place, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
            try:
                if size:  # a sparse file of this size would fit on a full disk; allocating blocks does not
                    os.posix_fallocate(descriptor, 0, size)
            finally:
                os.close(descriptor)
                place.unlink()
        except OSError as exc:
            return f"nothing can be written to the data folder now: {exc.strerror}"
        return None

    def free(self) -> int | None:
        """Return the free bytes of the disk, or None if the disk cannot be read; the next write reports that error."""
        try:
            return shutil.disk_usage(self._folder).free
        except OSError:
            return None

    def words(self, free: int) -> str:
        """Return the error text for a disk with too little free space."""
        return f"the disk has {free // 2**20} MiB left, less than the reserve of {self.bytes_kept // 2**20} MiB"
