"""Receiving an untrusted bundle: it is stored, checked and unpacked on disk, and removed if it ends early.

The folder of an import holds ``bundle.zip`` during the upload, then ``files`` with its members. Before the first byte
is unpacked, names, kinds, counts, sizes and compression ratios are checked, then every byte against the manifest. A zip
inside the bundle stays a file.
"""

import shutil
import stat
import zipfile
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from io import FileIO
from pathlib import Path

import anyio
import anyio.to_thread

from agentic_rag.archive.files import CHUNK, HashingReader, write_all, write_new
from agentic_rag.archive.zips import UNREADABLE, ZipTooLarge, open_zip
from agentic_rag.base import failpoints
from agentic_rag.base.bundle_errors import BundleDamaged, BundleRefused, BundleTooLarge
from agentic_rag.base.errors import DocumentTooLarge, disk_errors
from agentic_rag.bundles.form import (
    DOCUMENTS,
    MANIFEST,
    MAX_JSON,
    MAX_MEMBERS,
    BundleFile,
    BundleManifest,
    check_paths,
    limit_of,
    problem_of,
    read_manifest,
)
from agentic_rag.documents.disk_reserve import DiskReserve
from agentic_rag.store.clock import new_id

AT_ONCE = 2
"""Number of bundles unpacked and imported concurrently; uploads in progress are limited only by the disk's reserve."""
MAX_RATIO = 200
"""Maximum compression ratio of a member with more than `RATIO_FROM` bytes."""
RATIO_FROM = 2**20
MAX_LIST = 64 * 2**20
"""Maximum size in bytes of the zip's list of files: `MAX_MEMBERS` long names."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """Limits of the unpacked bytes: of one document, and of all members. ``check_room`` raises `StorageFull`."""

    document: int
    total: int
    check_room: Callable[[], None]


@dataclass(frozen=True, slots=True)
class Received:
    """A fully checked bundle. ``folder`` is the import's folder; ``files`` holds the members under their names."""

    id: str
    folder: Path
    manifest: BundleManifest

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
            buffer, size = bytearray(), 0
            async for piece in pieces:
                buffer += piece
                size += len(piece)
                if size > self._bounds.total:
                    raise BundleTooLarge(f"it has more than {self._bounds.total} bytes")
                if len(buffer) >= CHUNK:
                    await anyio.to_thread.run_sync(self._put, file, bytes(buffer))
                    buffer.clear()
            await anyio.to_thread.run_sync(self._put, file, bytes(buffer))

    def _put(self, file: FileIO, data: bytes) -> None:
        self._reserve.check_now()
        with disk_errors():
            write_all(file, data)


def _make(folder: Path) -> None:
    with disk_errors():
        (folder / "files").mkdir(mode=0o700, parents=True)


def _create(path: Path) -> FileIO:
    with disk_errors():
        return FileIO(path, "x")


# Unpacking. These functions block.


def unpack(source: Path, target: Path, bounds: Bounds) -> BundleManifest:
    """Unpack a bundle into an empty folder, each member under its name; return its manifest.

    Raises:
        BundleRefused, BundleDamaged, BundleTooLarge, BundleTooNew: the bundle cannot be used; the error gives the
            reason.
        DocumentTooLarge: a document is too large.
        StorageFull: the disk is full.
    """
    with source.open("rb") as file:
        try:
            with open_zip(file, entries=MAX_MEMBERS + 1, list_bytes=MAX_LIST) as archive:
                return _unpack(archive, target, bounds)
        except ZipTooLarge as exc:
            raise BundleTooLarge(str(exc)) from exc
        except UNREADABLE as exc:
            if type(exc) is RuntimeError:  # `zipfile` raises it for a password
                raise BundleRefused("a member is encrypted") from exc
            raise BundleDamaged(f"its content cannot be read: {exc}") from exc


def _unpack(archive: zipfile.ZipFile, target: Path, bounds: Bounds) -> BundleManifest:
    members = _members_of(archive, bounds)
    if MANIFEST not in members:
        raise BundleDamaged("it is not a bundle of a domain: it has no bundle.json")
    manifest = read_manifest(_read(_MemberReader(archive.open(members[MANIFEST])), MAX_JSON))
    listed = {file.path: file for file in manifest.files}
    if len(listed) != len(manifest.files):
        raise BundleDamaged(f"{MANIFEST} lists a file twice")
    if odd := sorted(listed.keys() ^ (members.keys() - {MANIFEST})):
        raise BundleDamaged(f"{odd[0]!a} is only in the bundle or only in its {MANIFEST}")
    for path, file in listed.items():
        if members[path].file_size != file.size:
            raise BundleDamaged(f"{path!a} does not have the size that {MANIFEST} says")
        _write(_MemberReader(archive.open(members[path])), target / path, file, bounds)
        failpoints.reached("bundle.member")
    return manifest


def _members_of(archive: zipfile.ZipFile, bounds: Bounds) -> dict[str, zipfile.ZipInfo]:
    """Return the members by name, after checking each and their total size."""
    members: dict[str, zipfile.ZipInfo] = {}
    total = 0
    for info in archive.infolist():
        name = info.orig_filename
        if "\0" in name:
            raise BundleRefused(f"the name {name[:200]!a} has control or invisible characters")
        mode = stat.S_IFMT(info.external_attr >> 16)
        if name.endswith("/") and not info.file_size and mode in (0, stat.S_IFDIR):
            if (problem := problem_of(f"{name}x")) and "leads" in problem:
                raise BundleRefused(f"the name {name[:200]!a} {problem}")
            continue  # a folder's own entry, as written by other programs
        if mode not in (0, stat.S_IFREG):
            raise BundleRefused(f"{name[:200]!a} is a link, a device or no regular file")
        if name in members:
            raise BundleRefused(f"it has two members of the name {name[:200]!a}")
        _check_member(info, name, bounds)
        members[name] = info
        total += info.file_size
        if total > bounds.total:
            raise BundleTooLarge(f"it would unpack to more than {bounds.total} bytes")
    check_paths(members)
    return members


def _check_member(info: zipfile.ZipInfo, name: str, bounds: Bounds) -> None:
    if info.flag_bits & 0x1:
        raise BundleRefused("a member is encrypted")
    if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise BundleRefused(f"{name[:200]!a} is compressed in a way that is not read here; store or deflate it")
    if info.file_size > RATIO_FROM and info.file_size > MAX_RATIO * max(1, info.compress_size):
        raise BundleTooLarge(f"{name[:200]!a} stands for more than {MAX_RATIO} times its bytes")
    limit = limit_of(name)
    if limit is not None and info.file_size > limit:
        raise BundleTooLarge(f"{name[:200]!a} has {info.file_size} bytes; {limit} are possible")
    if limit is None and info.file_size > bounds.document:
        raise DocumentTooLarge(name.removeprefix(DOCUMENTS)[:200], bounds.document)


class _MemberReader(HashingReader):
    """A member's content: an error of reading is the bundle's, while an error of writing means a full disk."""

    def read(self, size: int = -1, /) -> bytes:
        try:
            return super().read(size)
        except OSError as exc:
            raise BundleDamaged(f"its content cannot be read: {exc}") from exc


def _read(file: HashingReader, limit: int) -> bytes:
    data = file.read(limit + 1)
    if len(data) > limit:
        raise BundleTooLarge(f"{MANIFEST} has more than {limit} bytes")
    return data


def _write(content: HashingReader, target: Path, listed: BundleFile, bounds: Bounds) -> None:
    """Write a member's bytes durably. `zipfile` yields no more of them than the zip and the manifest state."""
    with disk_errors():
        target.parent.mkdir(parents=True, exist_ok=True)
        write_new(target, content, check_room=bounds.check_room)
    if content.size != listed.size:
        raise BundleDamaged(f"{listed.path!a} does not have the size that {MANIFEST} says")
    if content.sha256 != listed.sha256:
        raise BundleDamaged(f"the bytes of {listed.path!a} are not those that {MANIFEST} says")
