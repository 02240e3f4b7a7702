"""Zip files: written with reproducible bytes, and opened within limits if a stranger made them.

All functions here block.
"""

import io
import lzma
import stat
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import BinaryIO, Final

from agentic_rag.archive.files import CHUNK

UNREADABLE: Final = (
    *(OSError, EOFError, ValueError, RuntimeError, NotImplementedError),
    *(zipfile.BadZipFile, zlib.error, lzma.LZMAError, struct.error),
)
"""Exceptions of `zipfile` for a file that is no zip, is damaged, or uses a feature that Python cannot read."""

ENTRIES, LIST_BYTES = 100_000, 4 << 20
"""Default limits of a stranger's zip."""

_EARLIEST = (1980, 1, 1, 0, 0, 0)
_UNIX = 3
_ENTRY = b"PK\1\2"
"""The first bytes of each entry in the list of files at the end of a zip."""


# Writing


@dataclass(frozen=True, slots=True)
class ZipMember:
    """A file to be written. ``size`` is the number of bytes that ``read`` yields."""

    name: str
    size: int
    read: Callable[[], Iterable[bytes]]


def write_zip(members: Iterable[ZipMember]) -> Iterator[bytes]:
    """Yield the bytes of a zip whose members are stored uncompressed, in pieces of about `CHUNK` bytes.

    Equal members in equal order give equal bytes: all of them have the same date, permissions and system. An exception
    of `ZipMember.read` ends the iteration.
    """
    sink = _Sink()
    with zipfile.ZipFile(sink, "w") as archive:  # it needs only write, tell and flush
        for member in members:
            with archive.open(_describe(member), "w") as out:
                for data in member.read():
                    out.write(data)
                    if len(sink.pending) >= CHUNK:
                        yield sink.take()
    yield sink.take()


def measure_zip(members: Iterable[ZipMember]) -> int:
    """Return the number of bytes that `write_zip` yields, without reading the members."""
    sink = _Sink()
    with zipfile.ZipFile(sink, "w") as archive:
        for member in members:
            info = _describe(member)
            with archive.open(info, "w"):
                sink.position += member.size  # instead of writing the content
            info.file_size = info.compress_size = member.size  # `zipfile` has counted no bytes
    return sink.position


def _describe(member: ZipMember) -> zipfile.ZipInfo:
    info = zipfile.ZipInfo(member.name, _EARLIEST)
    info.create_system = _UNIX
    info.external_attr = (stat.S_IFREG | 0o644) << 16
    info.file_size = member.size  # decides on the extension for members of more than 2 GiB
    return info


class _Sink(io.RawIOBase):
    """A file without seeking: it holds the written bytes until they are taken."""

    def __init__(self) -> None:
        self.pending = bytearray()
        self.position = 0

    def write(self, data: "bytes | bytearray | memoryview") -> int:  # type: ignore[override]
        self.pending += data
        self.position += len(data)
        return len(data)

    def tell(self) -> int:
        return self.position

    def take(self) -> bytes:
        piece = bytes(self.pending)
        self.pending.clear()
        return piece


# Reading


class ZipTooLarge(ValueError):
    """The list of files of a zip has too many entries or bytes."""


def open_zip(file: BinaryIO, *, entries: int = ENTRIES, list_bytes: int = LIST_BYTES) -> zipfile.ZipFile:
    """Open a zip of a stranger, whose list of files `zipfile` would otherwise load without any limit.

    ``entries``: maximum number of files and folders. ``list_bytes``: maximum size of the list of files in bytes.

    Raises:
        ZipTooLarge: the list of files exceeds a limit.
        UNREADABLE: the file is no zip.
    """
    limited = _LimitedFile(file, entries, list_bytes)
    archive = zipfile.ZipFile(limited)
    limited.opening = False
    return archive


class _LimitedFile(io.RawIOBase):
    """A zip file that refuses to return a list of files beyond the limits.

    `zipfile` finds the list by several rules and reads it at once, so a limit on what it can read holds for all rules.
    The number of entries that the zip states is not used, because `zipfile` ignores it.
    """

    def __init__(self, file: BinaryIO, entries: int, list_bytes: int) -> None:
        self._file = file
        self._entries = entries
        self._list_bytes = list_bytes
        self.opening = True

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        return self._file.seek(offset, whence)

    def tell(self) -> int:
        return self._file.tell()

    def read(self, size: int = -1, /) -> bytes:
        if not self.opening:
            return self._file.read(size)
        data = self._file.read(self._list_bytes + 1 if size < 0 else min(size, self._list_bytes + 1))
        if len(data) > self._list_bytes:
            raise ZipTooLarge(f"its list of files has more than {self._list_bytes} bytes")
        if data.startswith(_ENTRY) and data.count(_ENTRY) > self._entries:
            raise ZipTooLarge(f"it has more than {self._entries} files")
        return data
