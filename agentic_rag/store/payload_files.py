"""The bytes of payloads: one file each, named by its ref.

Owns the folder. Knows no table: a file without a record, which a kill between the two can leave, is found by
the doctor.
"""

import os
import re
from collections.abc import Iterable
from pathlib import Path

import anyio.to_thread

from agentic_rag.errors import StorageFull

_REF = re.compile(r"ref_[0-9a-z]{26}")


class PayloadFiles:
    """A folder of payloads, made with the first one."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    async def write(self, ref: str, data: bytes) -> None:
        """Write a payload so that it survives a loss of power, before its record is stored.

        Raises:
            StorageFull: the folder cannot be written; nothing was kept.
        """
        await anyio.to_thread.run_sync(self._write, ref, data)

    async def read(self, ref: str) -> bytes | None:
        """Return a payload; None when there is no such file, or it cannot be read."""
        return await anyio.to_thread.run_sync(self._read, ref)

    async def remove(self, refs: Iterable[str]) -> None:
        """Remove files whose records are gone; one that cannot be removed is left to the doctor."""
        await anyio.to_thread.run_sync(self._remove, list(refs))

    def listed(self) -> set[str]:
        """Return the refs of all files."""
        try:
            return {entry.name for entry in os.scandir(self._folder) if _REF.fullmatch(entry.name)}
        except OSError:
            return set()

    def _write(self, ref: str, data: bytes) -> None:
        path = self._path(ref)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("xb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
        except OSError as exc:
            self._remove([ref])
            raise StorageFull(exc.strerror or "unknown reason") from exc

    def _read(self, ref: str) -> bytes | None:
        try:
            return self._path(ref).read_bytes()
        except (OSError, ValueError):
            return None

    def _remove(self, refs: list[str]) -> None:
        for ref in refs:
            try:
                self._path(ref).unlink(missing_ok=True)
            except OSError:
                continue

    def _path(self, ref: str) -> Path:
        if not _REF.fullmatch(ref):  # a model or a server may ask for anything: only our names are paths
            raise ValueError(f"not a ref: {ref!r}")
        return self._folder / ref
