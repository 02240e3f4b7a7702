"""Unpacking untrusted bundles: checked before the first byte is unpacked, and unpacked into a private folder.

Names, kinds, counts, sizes and compression ratios are checked first, then every byte against the manifest. A zip inside
the bundle stays a file. All functions here block.
"""

import hashlib
import os
import stat
import struct
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from agentic_rag.archive.zips import CHUNK, ZipTooLarge, open_zip
from agentic_rag.base import failpoints
from agentic_rag.base.bundle_errors import BundleDamaged, BundleRefused, BundleTooLarge
from agentic_rag.base.errors import DocumentTooLarge, StorageFull
from agentic_rag.bundles.form import (
    DOCUMENTS,
    MANIFEST,
    MAX_JSON,
    MAX_MEMBERS,
    BundleFile,
    Manifest,
    check_paths,
    limit_of,
    problem_of,
    read_manifest,
)

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


def unpack(source: Path, target: Path, bounds: Bounds) -> Manifest:
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
        except (zipfile.BadZipFile, zlib.error, EOFError, struct.error, NotImplementedError, ValueError) as exc:
            raise BundleDamaged(f"its content cannot be read: {exc}") from exc
        except RuntimeError as exc:  # `zipfile` raises it for a password
            raise BundleRefused("a member is encrypted") from exc


def _unpack(archive: zipfile.ZipFile, target: Path, bounds: Bounds) -> Manifest:
    members = _members_of(archive, bounds)
    if MANIFEST not in members:
        raise BundleDamaged("it is no bundle of a domain: it has no bundle.json")
    with _open(archive, members[MANIFEST]) as file:
        manifest = read_manifest(_read(file, MAX_JSON))
    listed = {each.path: each for each in manifest.files}
    if len(listed) != len(manifest.files):
        raise BundleDamaged(f"{MANIFEST} lists a file twice")
    if odd := sorted(listed.keys() ^ (members.keys() - {MANIFEST})):
        raise BundleDamaged(f"{odd[0]!a} is not both in it and in {MANIFEST}")
    for path, each in listed.items():
        if members[path].file_size != each.size:
            raise BundleDamaged(f"{path!a} has not the size that {MANIFEST} says")
        with _open(archive, members[path]) as file:
            _write(file, target / path, each, bounds)
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


def _open(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> IO[bytes]:
    try:
        return archive.open(info)
    except OSError as exc:  # the member starts before the beginning of the file
        raise BundleDamaged(f"its content cannot be read: {exc}") from exc


def _take(file: IO[bytes], size: int) -> bytes:
    try:
        return file.read(size)
    except OSError as exc:  # an error of reading; errors of writing raise `StorageFull`
        raise BundleDamaged(f"its content cannot be read: {exc}") from exc


def _read(file: IO[bytes], limit: int) -> bytes:
    data = _take(file, limit + 1)
    if len(data) > limit:
        raise BundleTooLarge(f"{MANIFEST} has more than {limit} bytes")
    return data


def _write(file: IO[bytes], target: Path, listed: BundleFile, bounds: Bounds) -> None:
    """Write a member's bytes durably, and no more of them than the manifest lists."""
    digest, left = hashlib.sha256(), listed.size
    bounds.check_room()
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        with open(descriptor, "wb", buffering=0) as out:
            while left:
                data = _take(file, min(CHUNK, left))
                if not data:
                    break
                digest.update(data)
                left -= len(data)
                view = memoryview(data)
                while view:
                    view = view[out.write(view) :]
                if left:
                    bounds.check_room()
            if left or _take(file, 1):
                raise BundleDamaged(f"{listed.path!a} has not the size that {MANIFEST} says")
            os.fsync(out.fileno())
    except OSError as exc:
        raise StorageFull(exc.strerror or "unknown reason") from exc
    if digest.hexdigest() != listed.sha256:
        raise BundleDamaged(f"the bytes of {listed.path!a} are not those that {MANIFEST} says")
