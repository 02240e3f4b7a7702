"""The files of a domain's documents folder: names, uploads, opening, hashes and placement.

A client's file name is data: the cleaned name never decides in which folder a file is stored. An upload grows in a
folder next to the workspaces, up to a limit, and is removed if it ends early. Knows no record.
"""

import hashlib
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from io import SEEK_END, FileIO
from pathlib import Path, PurePosixPath
from typing import BinaryIO, Generic, Protocol, Self, TypeVar

from agentic_rag.archive.files import write_all
from agentic_rag.base.errors import DocumentTooLarge, WorkspaceRefused, disk_errors
from agentic_rag.base.ids import DocumentId
from agentic_rag.base.threads import DomainThreads
from agentic_rag.documents.disk_reserve import DiskReserve
from mcp_servers.retriever.errors import MISSING_FILE, DocumentError
from mcp_servers.safe_files import Folder, Refused

Received = TypeVar("Received")

WRITE_BYTES = 256 * 1024
"""Uploaded bytes are collected to this size before a thread writes them."""

MAX_NAME_BYTES = 200
"""Maximum length of a name in bytes of UTF-8: file systems accept 255, and a number may be added."""


def clean_name(name: str) -> str:
    """Return the last component of a name without control, format and separator characters; never empty."""
    last = unicodedata.normalize("NFC", name).replace("\\", "/").rsplit("/", 1)[-1]
    cleaned = "".join(" " if c in ':*?"<>|' else c for c in last if unicodedata.category(c)[0] != "C")
    cleaned = " ".join(cleaned.split()).strip(". ")
    stem, suffix = split_name(cleaned)
    room = MAX_NAME_BYTES - len(suffix.encode())
    # The limit counts bytes; a character that the cut splits is dropped.
    return (stem.encode()[:room].decode(errors="ignore").rstrip() or "document") + suffix


def split_name(name: str) -> tuple[str, str]:
    """Return the name without its ending, and the ending with its dot (empty when there is none)."""
    suffix = PurePosixPath(name).suffix
    if not suffix or len(suffix.encode()) > MAX_NAME_BYTES // 4:
        return name, ""
    return name.removesuffix(suffix), suffix


def free_names(name: str) -> Iterator[str]:
    """Yield the name, then ``name (2)``, ``name (3)`` … before its ending."""
    yield name
    stem, suffix = split_name(name)
    number = 2
    while True:
        yield f"{stem} ({number}){suffix}"
        number += 1


def documents_of(workspace: str) -> Folder:
    """Return the documents folder of a workspace."""
    return Folder(Path(workspace)).at("documents")


def place(source: Path, folder: Folder, name: str, *, replace: bool = False) -> str:
    """Move a received file into the folder under a free name, or over the file of that name; return the name.

    Raises:
        WorkspaceRefused: the folder's path is something other than a folder.
        StorageFull: the folder cannot be written.
    """
    with disk_errors():
        for candidate in [name] if replace else free_names(name):
            try:
                folder.take_in(source, candidate, replace=replace)
            except FileExistsError:
                continue
            except Refused as exc:
                raise WorkspaceRefused(folder.name, exc.strerror or exc.why) from exc
            return candidate
    raise AssertionError("numbers do not end")


def open_document(folder: Folder, path: str) -> BinaryIO:
    """Open a document's file.

    Raises:
        DocumentError: the file is missing, or its path is not a regular file.
    """
    try:
        return folder.open(path)
    except Refused as exc:
        raise DocumentError("DOCUMENT_MISSING", f"the file cannot be read: {exc.strerror}") from exc
    except OSError as exc:
        raise DocumentError("DOCUMENT_MISSING", MISSING_FILE) from exc


def open_original(folder: Folder, path: str) -> tuple[BinaryIO, int]:
    """Open a document's file and return it with its size in bytes. Raises like `open_document`."""
    file = open_document(folder, path)
    size = file.seek(0, SEEK_END)
    return file, size


class Original:
    """A document's open file, ready to be sent. `Documents.original` makes it; the sender closes it."""

    def __init__(
        self, domain_id: str, name: str, media_type: str, size: int, file: BinaryIO, threads: DomainThreads
    ) -> None:
        """``size`` is in bytes."""
        self.name = name
        self.media_type = media_type
        self.size = size
        self._domain_id = domain_id
        self._file = file
        self._threads = threads

    async def read(self, start: int, size: int) -> bytes:
        """Return up to ``size`` bytes from ``start``; fewer only at the end of the file.

        Raises:
            WorkspaceUnavailable: the folder does not answer.
        """
        return await self._threads.run(self._domain_id, self._read, start, size)

    def _read(self, start: int, size: int) -> bytes:
        self._file.seek(start)
        return self._file.read(size)

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def stamp_of(folder: Folder, path: str) -> str:
    """Return a file's size and modification time as a string (`Entry.stamp`); empty when the file is gone.

    Every write to the file changes the stamp.
    """
    try:
        status = folder.check(path)
    except OSError:
        return ""
    return "" if status is None else f"{status.st_size}:{status.st_mtime_ns}"


class Taker(Protocol[Received]):
    """Turns received files into documents or attachments."""

    async def take(self, incoming: "Incoming[Received]") -> Received:
        """Return the record made from a file, or the existing document with the same bytes."""
        ...


@dataclass(frozen=True, slots=True)
class Origin:
    """The source of a received file.

    ``folder`` is the source's folder in the documents folder. ``instead`` is the document that holds the item's earlier
    bytes and gets the new ones, or None for a new document. ``date`` is the item's date, `YYYY-MM-DD`.
    """

    source_id: str
    uri: str
    folder: str
    instead: DocumentId | None = None
    date: str | None = None


class Incoming(Generic[Received]):
    """An upload in progress, an async context manager; leaving it before `finish` removes the file.

    `Documents.receive` and `Attachments.receive` make it. ``path`` is the growing file, of at most ``limit`` bytes.
    ``taker`` turns the file into a record. With ``replace``, an existing document of the same name gets the new bytes.
    ``labels`` are added to those of the document. ``origin`` is set for an item of a source.
    """

    def __init__(
        self,
        taker: Taker[Received],
        domain_id: str,
        name: str,
        path: Path,
        limit: int,
        reserve: DiskReserve,
        threads: DomainThreads,
        *,
        replace: bool,
        labels: Sequence[str] = (),
        origin: Origin | None = None,
    ) -> None:
        self.labels = labels
        self.origin = origin
        self.domain_id = domain_id
        self.name = name
        self.path = path
        self.replace = replace
        self.size = 0
        self._taker = taker
        self._threads = threads
        self._limit = limit
        self._reserve = reserve
        self._digest = hashlib.sha256()
        self._pending = bytearray()
        self._file: FileIO

    async def __aenter__(self) -> Self:
        self._file = await self._threads.run(self.domain_id, _create, self.path)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._file.close()
        self.path.unlink(missing_ok=True)  # missing if the taker moved it into the documents folder

    @property
    def sha256(self) -> str:
        return self._digest.hexdigest()

    async def write(self, data: bytes) -> None:
        """Append bytes to the file.

        Raises:
            DocumentTooLarge: the file is over the limit.
            StorageFull: the file cannot be written.
        """
        self.size += len(data)
        if self.size > self._limit:
            raise DocumentTooLarge(self.name, self._limit)
        self._pending += data
        if len(self._pending) >= WRITE_BYTES:
            await self._flush()

    async def digest(self) -> str:
        """Write the buffered bytes, and return the SHA-256 of all bytes."""
        await self._flush()
        return self.sha256

    async def finish(self) -> Received:
        """Turn the upload into a record, or return the existing document with the same bytes."""
        await self._flush()
        return await self._taker.take(self)

    def open(self) -> BinaryIO:
        """Open the received file to read it. Blocks."""
        return self.path.open("rb")

    def read_bytes(self) -> bytes:
        """Return the whole received file. Blocks."""
        return self.path.read_bytes()

    async def _flush(self) -> None:
        pending, self._pending = bytes(self._pending), bytearray()
        await self._threads.run(self.domain_id, self._write, pending)

    def _write(self, data: bytes) -> None:
        self._reserve.check_now()  # for every block, since other uploads fill the same disk meanwhile
        self._digest.update(data)
        with disk_errors():
            write_all(self._file, data)


def _create(path: Path) -> FileIO:
    with disk_errors():
        path.parent.mkdir(parents=True, exist_ok=True)
        return FileIO(path, "x")  # no buffer: a buffer that cannot be written would fail again on closing
