"""What uploads leave of a disk: database, index and journals go on writing when no more documents come in.

Owns the refusal. Knows no file.
"""

import shutil
from pathlib import Path

import anyio.to_thread

from agentic_rag.errors import StorageFull


class DiskReserve:
    """``bytes_kept`` of the disk that ``folder`` lies on."""

    def __init__(self, folder: Path, bytes_kept: int) -> None:
        self._folder = folder
        self.bytes_kept = bytes_kept

    async def check(self) -> None:
        """Raises `StorageFull` when the disk has no more room than the reserve."""
        await anyio.to_thread.run_sync(self.check_now)

    def check_now(self) -> None:
        """As `check`, blocking."""
        free = self.free()
        if free is not None and free < self.bytes_kept:
            raise StorageFull(self.words(free))

    def free(self) -> int | None:
        """Return how many bytes the disk has left; None: what is wrong with it is said by what writes to it."""
        try:
            return shutil.disk_usage(self._folder).free
        except OSError:
            return None

    def words(self, free: int) -> str:
        """Return the sentence that says it is too little."""
        return f"the disk has {free // 2**20} MiB left, less than the reserve of {self.bytes_kept // 2**20} MiB"
