"""The file format of a backup: a zstd-compressed tar with checksums of its members and a seal at the end.

``zstd -d | tar -x`` reads the file: the seal is a skippable frame with the SHA-256 of all preceding bytes, so that a
truncated or changed file is detected. Members are written and read in order, with constant memory. A list of sizes and
checksums follows each `PART` members. The manifest at the end holds the number of members and the checksum of the
lists. ``contents`` chooses the members. All functions here block.
"""

import hashlib
import io
import json
import struct
import tarfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO

import zstandard

from agentic_rag.archive.files import CHUNK, HashingReader, LeftOut, leads_out, write_all
from agentic_rag.base.errors import AgenticRagError, BackupDamaged, BackupNotWritten, BackupTooNew, disk_errors
from agentic_rag.base.json_form import from_text, reader_of, to_json
from agentic_rag.store.raw_tables import RawTable

FORMAT = 1
"""The newest format version that this program writes and reads."""
HEADER, MANIFEST, LISTS = "backup.json", "manifest.json", "manifest/"
PART = 1000
"""Number of members between two lists."""
BLOCK = 512
MAX_NOTES = 1000
MAX_HEADER = 4 * 2**20
"""Maximum size in bytes of a member that is read into memory as a whole."""

Progress = Callable[[str, int], object]
"""Called with the name and the size in bytes of each member that was written or read."""

_SEAL = struct.Struct("<II16s32s")
_SEAL_MAGIC = 0x184D2A5A
"""Magic number of a frame that every zstd decoder skips."""
_SEAL_NAME = b"agentic-rag\0\0\0\0\0"


def no_progress(name: str, count: int) -> None:
    """Ignore the progress."""


@dataclass(frozen=True, slots=True)
class Header:
    """The origin and the scope of a backup.

    ``revision`` is that of its tables. ``folder`` is the data folder that was backed up, ``store_id`` its store.
    ``records_only``: only records are included, as before an upgrade.
    """

    format: int
    id: str
    made_at: str
    version: str
    revision: str
    database: str
    store_id: str
    folder: str
    with_key: bool
    with_index: bool
    records_only: bool
    tables: tuple[RawTable, ...]


@dataclass(frozen=True, slots=True)
class BackupManifest:
    """The end of a backup: the number of members and bytes, and the SHA-256 of their lists."""

    members: int
    bytes: int
    lists_sha256: str
    left_out: tuple[LeftOut, ...] = ()


@dataclass(frozen=True, slots=True)
class Member:
    """One member while being read. ``modified``: nanoseconds since 1970."""

    name: str
    size: int
    modified: int
    content: HashingReader


class _Output(io.RawIOBase):
    """The growing file: hashes the written data, and reports a full disk as `BackupNotWritten`."""

    def __init__(self, file: io.FileIO, place: Path) -> None:
        self._file = file
        self._place = place
        self.digest = hashlib.sha256()

    def writable(self) -> bool:
        return True

    def write(self, data: "bytes | bytearray | memoryview") -> int:  # type: ignore[override]
        with disk_errors(partial(BackupNotWritten, place=str(self._place))):
            write_all(self._file, data)
        self.digest.update(data)
        return len(data)


class ArchiveWriter:
    """Writes members one after the other; created by `write_archive`."""

    def __init__(self, out: _Output) -> None:
        self._compressor = zstandard.ZstdCompressor(level=3, write_checksum=True)
        self._out = self._compressor.stream_writer(out, closefd=False)  # type: ignore[arg-type]
        self._listed: list[str] = []
        self._lists = hashlib.sha256()
        self._parts = 0
        self._left_out: list[LeftOut] = []
        self.members = 0
        self.bytes = 0

    def add(self, name: str, data: bytes) -> None:
        """Add a member from memory."""
        self.add_file(name, io.BytesIO(data), len(data), 0)

    def add_file(self, name: str, file: IO[bytes], size: int, modified: int) -> None:
        """Add ``size`` bytes of an open file; a file that has become shorter is padded with zeros and noted."""
        self._begin(name, size, modified)
        digest = hashlib.sha256()
        missing = size
        while missing:
            data = file.read(min(CHUNK, missing))
            if not data:
                self.leave_out(name, f"became shorter while it was read: {missing} bytes of zeros are in their place")
                while missing:
                    filling = bytes(min(CHUNK, missing))
                    digest.update(filling)
                    self._out.write(filling)
                    missing -= len(filling)
                break
            digest.update(data)
            self._out.write(data)
            missing -= len(data)
        self._end(size)
        self._listed.append(json.dumps([name, size, digest.hexdigest()]))
        self.members += 1
        self.bytes += size
        if len(self._listed) == PART:
            self._write_list()

    def leave_out(self, name: str, reason: str) -> None:
        """Record a file that is missing or incomplete in the archive."""
        if len(self._left_out) < MAX_NOTES:
            self._left_out.append(LeftOut(name, reason))

    def finish(self) -> BackupManifest:
        """Write the manifest and close the archive."""
        if self._listed:
            self._write_list()
        manifest = BackupManifest(self.members, self.bytes, self._lists.hexdigest(), tuple(self._left_out))
        data = json.dumps(to_json(manifest), indent=1).encode()
        self._begin(MANIFEST, len(data), 0)
        self._out.write(data)
        self._end(len(data))
        self._out.write(bytes(2 * BLOCK))
        self._out.close()  # type: ignore[no-untyped-call]
        return manifest

    def _write_list(self) -> None:
        data = "".join(f"{line}\n" for line in self._listed).encode()
        self._lists.update(data)
        self._listed.clear()
        self._parts += 1
        self._begin(f"{LISTS}{self._parts:06}.jsonl", len(data), 0)
        self._out.write(data)
        self._end(len(data))

    def _begin(self, name: str, size: int, modified: int) -> None:
        info = tarfile.TarInfo(name)
        info.size, info.mode = size, 0o600
        info.pax_headers = {"mtime": f"{modified // 10**9}.{modified % 10**9:09d}"}
        self._out.write(info.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape"))

    def _end(self, size: int) -> None:
        self._out.write(bytes(-size % BLOCK))


@contextmanager
def write_archive(file: io.FileIO, place: Path) -> Iterator[ArchiveWriter]:
    """Yield a writer for the members; on exit the file is complete and sealed. Errors name ``place``.

    Raises:
        BackupNotWritten: the disk is full.
    """
    out = _Output(file, place)
    writer = ArchiveWriter(out)
    yield writer
    writer.finish()
    out.write(_SEAL.pack(_SEAL_MAGIC, _SEAL.size - 8, _SEAL_NAME, out.digest.digest()))


class ArchiveReader:
    """Reads a backup; created by `read_archive`, which has checked the seal."""

    def __init__(self, path: Path, file: IO[bytes]) -> None:
        self.path = path
        window = zstandard.ZstdDecompressor(max_window_size=2**27)
        self._tar = tarfile.open(  # noqa: SIM115 - it holds only the stream, which the caller closes
            fileobj=window.stream_reader(file, closefd=False),
            mode="r|",
            encoding="utf-8",
            errors="surrogateescape",
        )
        self._lists = hashlib.sha256()
        self._read: list[tuple[str, int, str]] = []
        self._members = 0
        self._bytes = 0
        first = self._next()
        if first is None or first.name != HEADER:
            raise BackupDamaged(str(path), "it is no backup of this product: its first member is another's")
        self.header = self._read_header(first)

    def members(self) -> Iterator[Member]:
        """Yield the members after the header, and compare each with its checksum when the next list follows.

        The unread rest of a member is read before the next member. If the loop ends without an error, the whole archive
        was valid.

        Raises:
            BackupDamaged: a member differs from its list.
        """
        while (entry := self._next()) is not None:
            if entry.name == MANIFEST:
                self._check_end(self._whole(entry))
                return
            if entry.name.startswith(LISTS):
                self._check_list(self._whole(entry))
                continue
            check_name(self.path, entry.name)
            content = HashingReader(self._open(entry))
            modified = entry.pax_headers.get("mtime", "0.0")
            whole, _, part = modified.partition(".")
            yield Member(entry.name, entry.size, int(whole) * 10**9 + int(part or 0), content)
            while content.read(CHUNK):
                pass
            self._note(entry.name, entry.size, content.sha256)
        raise BackupDamaged(str(self.path), "it has no end: it was cut")

    def _note(self, name: str, size: int, digest: str) -> None:
        self._read.append((name, size, digest))
        self._members += 1
        self._bytes += size
        if len(self._read) > PART:
            raise BackupDamaged(str(self.path), "its members are not listed")

    def _next(self) -> tarfile.TarInfo | None:
        entry = self._tar.next()
        self._tar.members.clear()  # type: ignore[attr-defined]  # it would keep all of them
        if entry is not None and not entry.isreg():
            raise BackupDamaged(str(self.path), f"{entry.name[:200]!a} is no file")
        return entry

    def _open(self, entry: tarfile.TarInfo) -> IO[bytes]:
        content = self._tar.extractfile(entry)
        assert content is not None
        return content

    def _whole(self, entry: tarfile.TarInfo) -> bytes:
        if entry.size > MAX_HEADER:
            raise BackupDamaged(str(self.path), f"{entry.name[:200]!a} is too large")
        return self._open(entry).read()

    def _read_header(self, entry: tarfile.TarInfo) -> Header:
        data = self._whole(entry)
        self._note(entry.name, entry.size, hashlib.sha256(data).hexdigest())
        document = from_text(data.decode())
        if not isinstance(document, dict) or not isinstance(document.get("format"), int):
            raise BackupDamaged(str(self.path), "its header is none")
        if document["format"] > FORMAT:
            raise BackupTooNew(str(self.path), str(document.get("version", "?")))
        header = reader_of(Header)(document)
        assert isinstance(header, Header)
        return header

    def _check_list(self, data: bytes) -> None:
        self._lists.update(data)
        listed = [tuple(json.loads(line)) for line in data.splitlines()]
        if listed != self._read:
            by_name = {line[0]: line for line in listed}
            name = next((line[0] for line in self._read if by_name.get(line[0]) != line), "its list")
            raise BackupDamaged(str(self.path), f"{name!a} is not what was written")
        self._read.clear()

    def _check_end(self, data: bytes) -> None:
        manifest = reader_of(BackupManifest)(from_text(data.decode()))
        assert isinstance(manifest, BackupManifest)
        totals: tuple[int, int, str, list[tuple[str, int, str]]]
        totals = self._members, self._bytes, self._lists.hexdigest(), []
        if totals != (manifest.members, manifest.bytes, manifest.lists_sha256, self._read):
            raise BackupDamaged(str(self.path), "its members are not those that its manifest counts")


def check_name(path: Path, name: str) -> None:
    """Reject a member whose name leads out of the target folder.

    Raises:
        BackupDamaged: the name leads out of the folder.
    """
    if leads_out(name):
        raise BackupDamaged(str(path), f"{name[:200]!a} is no name below a folder")


@contextmanager
def read_archive(path: Path) -> Iterator[ArchiveReader]:
    """Check the seal, which reads the file once, then yield the reader.

    Raises:
        BackupDamaged: the file is no backup, or is incomplete.
        BackupTooNew: a newer version wrote the file.
    """
    try:
        with path.open("rb") as file:
            _check_seal(path, file)
            file.seek(0)
            with _damage(path):
                reader = ArchiveReader(path, file)
            with _damage(path):
                yield reader
    except OSError as exc:
        raise BackupDamaged(str(path), exc.strerror or "it cannot be read") from exc


@contextmanager
def _damage(path: Path) -> Iterator[None]:
    """Translate the libraries' exceptions about the file's content into `BackupDamaged`."""
    try:
        yield
    except AgenticRagError:
        raise
    except (tarfile.TarError, zstandard.ZstdError, EOFError, ValueError, KeyError, TypeError) as exc:
        raise BackupDamaged(str(path), f"its content cannot be read: {exc}") from exc


def _check_seal(path: Path, file: IO[bytes]) -> None:
    size = file.seek(0, io.SEEK_END)
    if size < _SEAL.size:
        raise BackupDamaged(str(path), "it is no backup, or it was cut")
    file.seek(size - _SEAL.size)
    magic, length, name, digest = _SEAL.unpack(file.read(_SEAL.size))
    if (magic, length, name) != (_SEAL_MAGIC, _SEAL.size - 8, _SEAL_NAME):
        raise BackupDamaged(str(path), "it is no backup, or it was cut")
    file.seek(0)
    checksum, unread = hashlib.sha256(), size - _SEAL.size
    while unread:
        data = file.read(min(CHUNK, unread))
        checksum.update(data)
        unread -= len(data)
    if checksum.digest() != digest:
        raise BackupDamaged(str(path), "its bytes are not those that were written")


def verify(path: Path, advance: Progress = no_progress) -> Header:
    """Read a backup to its end and return its header.

    Raises:
        BackupDamaged, BackupTooNew: as in `read_archive`, or a member differs from its list.
    """
    with read_archive(path) as reader:
        for member in reader.members():
            advance(member.name, member.size)
        return reader.header
