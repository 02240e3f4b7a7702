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
        self._bytes_kept = bytes_kept

    async def check(self) -> None:
        """Raises `StorageFull` when the disk has no more room than the reserve."""
        await anyio.to_thread.run_sync(self.check_now)

    def check_now(self) -> None:
        """As `check`, blocking."""
        try:
            free = shutil.disk_usage(self._folder).free
        except OSError:
            return  # what is wrong with it is said by what writes to it
        if free < self._bytes_kept:
            raise StorageFull(
                f"the disk has {free // 2**20} MiB left, less than the reserve of {self._bytes_kept // 2**20} MiB"
            )
