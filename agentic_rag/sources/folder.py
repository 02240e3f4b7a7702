"""A folder on the server as a source.

Owns which folders an admin may name, and the listing and reading of files. The operator's setting names the folders.
`safe_files` follows no link below them.
"""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path, PurePosixPath
from typing import BinaryIO, Final

from agentic_rag.base.errors import InvalidInput, SourceUnreadable
from agentic_rag.base.threads import DomainThreads
from agentic_rag.directory.source_forms import FolderSource
from agentic_rag.documents.files import clean_name
from agentic_rag.sources.items import ItemContent, ItemGone, Listing, Patterns, RunNotes, SourceItem, refuse_item
from agentic_rag.store.clock import time_text
from agentic_rag.store.sources import SourceItemRecord
from mcp_servers.retriever.formats import suffixes
from mcp_servers.safe_files import Folder, FolderEntry, Refused, is_text

READ_BYTES: Final = 256 * 1024


class AllowedFolders:
    """The folders that the operator allows as sources: absolute paths, which may contain ``{domain}``.

    ``data`` is the data folder, which no source may read.
    """

    def __init__(self, setting: str, data: Path) -> None:
        self._roots = tuple(part.strip() for part in setting.split(",") if part.strip())
        self._data = data.absolute()

    def find(self, domain_id: str, path: str) -> Folder:
        """Return the folder at an absolute path that an admin names.

        Raises:
            InvalidInput: the path is not inside an allowed folder, or is or contains the data folder.
        """
        named = PurePosixPath(path)
        if "\0" in path or not named.is_absolute() or ".." in named.parts:
            raise InvalidInput("folder.path", f"{path[:200]!r} is not an absolute path without '..'.")
        for root in self._roots:
            allowed = PurePosixPath(root.replace("{domain}", domain_id))
            if not named.is_relative_to(allowed):
                continue
            wanted = Path(named)
            if wanted.is_relative_to(self._data) or self._data.is_relative_to(wanted):
                raise InvalidInput("folder.path", "the server's own data folder cannot be a source.")
            inner = named.relative_to(allowed).as_posix()
            return Folder(Path(allowed)).at("" if inner == "." else inner)
        remedy = "ask the operator to list it in AGENTIC_RAG_SOURCE_FOLDERS"
        raise InvalidInput("folder.path", f"{path[:200]!r} is not in an allowed folder; {remedy}.")


class FolderReader:
    """Reads the files below a folder. Implements `ItemReader`."""

    def __init__(self, folder: Folder, form: FolderSource, domain_id: str, threads: DomainThreads, limit: int) -> None:
        """``limit``: maximum bytes of a file."""
        self._folder = folder
        self._path = PurePosixPath(form.path)
        self._include = Patterns(form.include)
        self._all = not form.include
        self._domain_id = domain_id
        self._threads = threads
        self._limit = limit

    async def list_items(self, most: int) -> Listing:
        """See `ItemReader.list_items`. Links, pipes and names that are not UTF-8 are left out."""
        if not await self._threads.run(self._domain_id, self._folder.is_there):
            raise SourceUnreadable(f"the folder {self._path} does not exist, or a part of its path is a link")
        try:
            entries, more = await self._threads.run(self._domain_id, partial(self._walk, most))
        except OSError as exc:
            raise SourceUnreadable(f"the folder {self._path}: {exc.strerror or 'unknown reason'}") from exc
        notes = RunNotes()
        items = []
        for entry in entries:
            if not is_text(entry.path):
                notes.add(f"{ascii(entry.path)[:200]}: the name is not UTF-8")
            elif entry.kind != "file":
                notes.add(f"{entry.path[:200]}: it is a link or no regular file")
            else:
                items.append(self._item(entry))
        if more:
            notes.add(f"the folder has more than {most} files; the others are left out")
        return Listing(items, not more, notes.texts)

    def _walk(self, most: int) -> tuple[Sequence[FolderEntry], bool]:
        files: list[FolderEntry] = []
        endings = suffixes()
        for entry in self._folder.walk(hidden=False):
            wanted = self._all or self._include.match(entry.path) or self._include.match(entry.name)
            if not wanted or (self._all and not entry.name.lower().endswith(endings)):
                continue
            if len(files) == most:  # one more than fits: the list is incomplete, and nothing may count as missing
                return files, True
            files.append(entry)
        return files, False

    def _item(self, entry: FolderEntry) -> SourceItem:
        around = "/".join(filter(None, (clean_name(part) for part in entry.path.split("/")[:-1])))
        modified = "" if entry.status is None else time_text(entry.status.st_mtime)
        uri = (self._path / entry.path).as_posix()
        return SourceItem(uri, entry.name, "", entry.stamp, modified, key=entry.path, path=around)

    @asynccontextmanager
    async def read_item(self, item: SourceItem, stored: SourceItemRecord | None) -> AsyncIterator[ItemContent | None]:
        """See `ItemReader.read_item`."""
        try:
            # In a thread of the domain: a network folder that hangs must not stop the event loop.
            file = await self._threads.run(self._domain_id, self._folder.open, item.key)
        except FileNotFoundError as exc:
            raise ItemGone from exc
        except Refused as exc:
            raise refuse_item(f"{exc.strerror}") from exc
        except OSError as exc:
            raise refuse_item(exc.strerror or "unknown reason") from exc
        try:
            yield ItemContent(item.name, "", self._chunks(file))
        finally:
            file.close()

    async def _chunks(self, file: BinaryIO) -> AsyncIterator[bytes]:
        while True:
            try:
                chunk = await self._threads.run(self._domain_id, file.read, READ_BYTES)
            except OSError as exc:
                raise refuse_item(exc.strerror or "unknown reason") from exc
            if not chunk:
                return
            yield chunk
