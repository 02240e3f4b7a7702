"""What uploads leave of a disk: database, index and journals go on writing when no more documents come in.

Owns the refusal, also of a disk that takes nothing: a volume that several servers mount may turn read-only under them.
Knows no file but the one it tries.
"""

import os
import secrets
import shutil
from pathlib import Path

import anyio.to_thread

from agentic_rag.base.errors import StorageFull


class DiskReserve:
    """``bytes_kept`` of the disk that ``folder`` lies on."""

    def __init__(self, folder: Path, bytes_kept: int) -> None:
        self._folder = folder
        self.bytes_kept = bytes_kept
        self.refused: str | None = None
        """The sentence that says that nothing can be written, since `probe` last looked."""

    async def check(self) -> None:
        """Raises `StorageFull` when the disk has no more room than the reserve, or takes nothing."""
        await anyio.to_thread.run_sync(self.check_now)

    def check_now(self) -> None:
        """As `check`, blocking."""
        if self.refused is not None:
            raise StorageFull(self.refused)
        free = self.free()
        if free is not None and free < self.bytes_kept:
            raise StorageFull(self.words(free))

    async def probe(self, size: int = 0) -> None:
        """Write so many bytes, so that a disk that takes nothing is known before somebody needs it."""
        self.refused = await anyio.to_thread.run_sync(self._try, size)

    def _try(self, size: int) -> str | None:
        place = self._folder / f".probe-{secrets.token_hex(8)}"
        try:
            descriptor = os.open(place, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
            try:
                if size:
                    os.posix_fallocate(descriptor, 0, size)
            finally:
                os.close(descriptor)
                place.unlink()
        except OSError as exc:
            return f"nothing can be written to the data folder now: {exc.strerror}"
        return None

    def free(self) -> int | None:
        """Return how many bytes the disk has left; None: what is wrong with it is said by what writes to it."""
        try:
            return shutil.disk_usage(self._folder).free
        except OSError:
            return None

    def words(self, free: int) -> str:
        """Return the sentence that says it is too little."""
        return f"the disk has {free // 2**20} MiB left, less than the reserve of {self.bytes_kept // 2**20} MiB"
