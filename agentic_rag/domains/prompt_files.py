"""List, write and delete prompt components: the Markdown files of ``{workspace}/prompt/``.

`agentic_rag.domains.components` cleans and cuts their texts.
"""

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from agentic_rag.access.auditing import audit, change
from agentic_rag.access.users import acting
from agentic_rag.base.errors import InvalidInput, NotFound
from agentic_rag.base.threads import DomainThreads
from agentic_rag.directory.directory import Directory
from agentic_rag.domains.component_errors import ComponentChanged
from agentic_rag.domains.components import READ_LIMIT, counts
from agentic_rag.domains.file_history import ChangeNotice, FileHistory
from agentic_rag.store.database import Database
from agentic_rag.store.history import HistoryKind
from mcp_servers.safe_files import Folder

NOT_THERE = ""
"""The version of a component that does not exist."""
_UNREADABLE = "unreadable"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,95}\.md")


@dataclass(frozen=True, slots=True)
class PromptFile:
    """One component: its file name, and its text as written, None if it is unreadable.

    ``version`` is a hash of the file's bytes.
    """

    name: str
    content: str | None
    version: str


class PromptFiles:
    """The components of all domains. Each method raises `NotFound` for an unknown domain."""

    def __init__(self, database: Database, directory: Directory, threads: DomainThreads, history: FileHistory) -> None:
        self._db = database
        self._history = history
        self._directory = directory
        self._threads = threads

    async def list_of(self, domain_id: str) -> Sequence[PromptFile]:
        """Return the components of a domain in the order of the prompt."""
        folder = await self._folder(domain_id)

        def read() -> list[PromptFile]:
            if not folder.is_there():
                return []
            return [
                _read(folder, name) for name in sorted(entry.name for entry in folder.entries() if counts(entry.name))
            ]

        return await self._threads.read(str(folder.root), read)

    async def write(self, domain_id: str, name: str, content: str, version: str | None = None) -> PromptFile:
        """Write a component and return it. The change takes effect at the next turn.

        ``version`` is the expected current version, `NOT_THERE` for a new component.

        Raises:
            ComponentChanged: the component has another version; nothing was written.
            InvalidInput: the name is invalid, the text is too long, or the disk refuses the write.
        """
        check_name(name)
        data = content.encode()
        if len(data) > READ_LIMIT:
            raise InvalidInput("content", f"at most {READ_LIMIT // 1024} KiB are possible.")
        folder = await self._folder(domain_id)

        def put() -> None:
            if version is not None and version != _version(folder, name):
                raise ComponentChanged(name)
            folder.write(name, [data])

        async with self._history.changing(domain_id) as notice:  # blocks other writes between check and write
            try:
                await self._threads.run(str(folder.root), put)
            except OSError as exc:
                raise InvalidInput("name", f"{name} cannot be written: {exc.strerror or exc}.") from exc
            await self._tell("prompt.write", domain_id, name, notice)
        return PromptFile(name, content, _version_of(data))

    async def delete(self, domain_id: str, name: str) -> None:
        """Delete a component.

        Raises:
            NotFound: there is no component with this name.
            InvalidInput: the disk refuses.
        """
        folder = await self._folder(domain_id)

        def remove() -> bool:
            existed = folder.is_there() and name in {entry.name for entry in folder.entries() if counts(entry.name)}
            if existed:
                folder.remove(name)
            return existed

        async with self._history.changing(domain_id) as notice:
            try:
                removed = await self._threads.run(str(folder.root), remove)
            except OSError as exc:
                raise InvalidInput("name", f"{name} cannot be deleted: {exc.strerror or exc}.") from exc
            if not removed:
                raise NotFound("component", name)
            await self._tell("prompt.delete", domain_id, name, notice)

    async def _folder(self, domain_id: str) -> Folder:
        return Folder(Path((await self._directory.get(domain_id)).workspace)).at("prompt")

    async def _tell(self, action: str, domain_id: str, name: str, notice: ChangeNotice) -> None:
        entry = change(action, f"{domain_id}/{name}")
        await self._db.write(lambda conn: audit(conn, entry), durable=True)
        await notice(acting().user_id, [(HistoryKind.PROMPT, name)])


def check_name(name: str, path: str = "name") -> None:
    """Refuse an invalid component name. Raises `InvalidInput`, which names ``path``."""
    if not _NAME.fullmatch(name):
        raise InvalidInput(path, "letters, digits and . _ - are expected, and .md at the end.")


def _read(folder: Folder, name: str) -> PromptFile:
    try:
        data = folder.read(name, READ_LIMIT)
    except (OSError, ValueError):
        return PromptFile(name, None, _UNREADABLE)
    try:
        # Some editors begin a file with a byte order mark. The version covers it, the text does not.
        return PromptFile(name, data.decode("utf-8-sig"), _version_of(data))
    except ValueError:
        return PromptFile(name, None, _version_of(data))


def _version(folder: Folder, name: str) -> str:
    try:
        return _version_of(folder.read(name, READ_LIMIT))
    except FileNotFoundError:
        return NOT_THERE
    except (OSError, ValueError):
        return _UNREADABLE


def _version_of(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]
