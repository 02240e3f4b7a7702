"""Record changes of prompt components and role files of a workspace in the history, each once.

The author is the user who changed a file through the server, else the user whose turn wrote the role, else the disk. A
check of unchanged files reads only sizes and times. Files that are not text or too large are not recorded.
"""

import hashlib
import logging
from collections.abc import AsyncIterator, Awaitable, Collection, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Protocol
from weakref import WeakValueDictionary

import anyio
from sqlalchemy import Connection

from agentic_rag.base.errors import NotFound, WorkspaceUnavailable
from agentic_rag.base.redaction import Redaction
from agentic_rag.base.threads import PATIENCE_SECONDS, DomainThreads
from agentic_rag.directory.directory import Directory
from agentic_rag.domains.components import READ_LIMIT, counts
from agentic_rag.domains.record_history import content_of
from agentic_rag.domains.vault import Vault
from agentic_rag.store import audit, history
from agentic_rag.store.clock import now
from agentic_rag.store.database import Database
from agentic_rag.store.history import DISK, GONE, HistoryKind, NewHistory
from mcp_servers.promptx.dpml import KINDS
from mcp_servers.promptx.rolefiles import RESOURCE_FOLDER
from mcp_servers.safe_files import Folder, is_text

log = logging.getLogger(__name__)

PROMPT_FOLDER = "prompt"
Thing = tuple[HistoryKind, str]
"""Identifies a file: its kind, and its name or path in the workspace."""


class ChangeNotice(Protocol):
    """`FileHistory.notice` bound to one domain, for callers that change its files."""

    def __call__(self, author: str = DISK, own_things: Collection[Thing] | None = None) -> Awaitable[int]:
        """Record the changes."""


@dataclass(frozen=True, slots=True)
class _File:
    """A file at the last check. ``sha256`` is empty if its content is not recorded."""

    stamp: str
    sha256: str


@dataclass(slots=True)
class _FileScan:
    """The files on disk now. ``folders`` holds the kinds whose folder exists; in others no file counts as deleted."""

    files: dict[Thing, _File] = field(default_factory=dict)
    folders: set[HistoryKind] = field(default_factory=set)
    texts: dict[Thing, str] = field(default_factory=dict)
    """Texts of the files whose stamp has changed."""


class FileHistory:
    """The files of all domains' workspaces."""

    def __init__(self, database: Database, directory: Directory, vault: Vault, threads: DomainThreads) -> None:
        self._db = database
        self._directory = directory
        self._vault = vault
        self._threads = threads
        self._files_by_domain: dict[str, dict[Thing, _File]] = {}
        self._looking: WeakValueDictionary[str, anyio.Lock] = WeakValueDictionary()

    async def notice(self, domain_id: str, author: str = DISK, own_things: Collection[Thing] | None = None) -> int:
        """Record the changes since the last check. Returns the number of changed files.

        ``author`` changed the files in ``own_things`` (None: all files). Other changes are attributed to the disk.

        Raises:
            NotFound: there is no such domain.
            WorkspaceUnavailable: the workspace does not answer.
        """
        async with self.changing(domain_id) as notice:
            return await notice(author, own_things)

    @asynccontextmanager
    async def changing(self, domain_id: str) -> AsyncIterator[ChangeNotice]:
        """Lock a domain's files against checks during a change.

        Yields `notice` of the domain, to call after the change.

        Without the lock, a check in the meantime would attribute the change to the disk.

        Raises:
            WorkspaceUnavailable: another change holds the lock for too long.
        """
        lock = self._looking.setdefault(domain_id, anyio.Lock())
        with anyio.move_on_after(PATIENCE_SECONDS) as waiting:
            await lock.acquire()
        if waiting.cancelled_caught:
            raise WorkspaceUnavailable("a change of its files does not end")
        try:
            yield partial(self._notice, domain_id)
        finally:
            lock.release()

    async def _notice(self, domain_id: str, author: str = DISK, own_things: Collection[Thing] | None = None) -> int:
        try:
            record = await self._directory.get(domain_id)
        except NotFound:
            self._files_by_domain.pop(domain_id, None)
            raise
        known_files = self._files_by_domain.get(domain_id, {})
        look = await self._threads.read(domain_id, _look, Path(record.workspace), known_files)
        # The first check of a process compares with the store, since nothing was checked before it.
        if look.files == known_files and domain_id in self._files_by_domain:
            return 0
        last_hashes = await self._db.read(partial(history.last_hashes, domain_id=domain_id))
        redaction = self._vault.redact.of(domain_id)
        await self._vault.values(domain_id)  # load the secrets to redact
        changes = list(_changes(look, last_hashes, author, own_things, redaction))
        at = now()

        def save(conn: Connection) -> None:
            rows = [_with_writer(conn, domain_id, change, last_hashes) for change in changes]
            history.append(conn, domain_id, rows, at)

        if changes:
            await self._db.write(save, durable=True)
        # After the commit: a failed write is repeated by the next check.
        self._files_by_domain[domain_id] = look.files
        return len(changes)


def _changes(
    look: _FileScan,
    last_hashes: dict[Thing, tuple[str, str]],
    author: str,
    own_things: Collection[Thing] | None,
    redaction: Redaction,
) -> Iterator[NewHistory]:
    for thing in sorted(look.files):
        kind, subject = thing
        sha256 = look.files[thing].sha256
        if not sha256 or last_hashes.get(thing, ("", ""))[0] == sha256 or thing not in look.texts:
            continue
        writer = author if own_things is None or thing in own_things else DISK
        yield NewHistory(kind=kind, subject=subject, author=writer, after=content_of(look.texts[thing], redaction))
    for thing, (sha256, _) in sorted(last_hashes.items()):
        kind, subject = thing
        # A whole folder that is missing is more likely a mount that is not there than a deletion of all files.
        if sha256 and kind in look.folders and thing not in look.files:
            writer = author if own_things is None or thing in own_things else DISK
            yield NewHistory(kind=kind, subject=subject, author=writer, after=GONE)


def _with_writer(
    conn: Connection, domain_id: str, change: NewHistory, last_hashes: dict[Thing, tuple[str, str]]
) -> NewHistory:
    """Return a role file's change attributed to the user whose turn wrote the role, if any."""
    if change.author != DISK or change.kind is not HistoryKind.ROLE:
        return change
    role = change.subject.rpartition("/")[2].partition(".")[0]
    around = change.subject.split("/")
    names = {role, *(around[around.index("role") + 1 : around.index("role") + 2] if "role" in around else ())}
    since = last_hashes.get((change.kind, change.subject), ("", ""))[1]
    for name in sorted(names):
        actor = audit.last_actor(conn, "role.write", f"{domain_id}/{name}", since)
        if actor is not None:
            return NewHistory(kind=change.kind, subject=change.subject, author=actor, after=change.after)
    return change


def _look(workspace: Path, known_files: dict[Thing, _File]) -> _FileScan:
    """Read the files that differ from ``known_files``. Blocks."""
    look = _FileScan()
    root = Folder(workspace)
    for kind, place in ((HistoryKind.PROMPT, root.at(PROMPT_FOLDER)), (HistoryKind.ROLE, root.at(RESOURCE_FOLDER))):
        if not place.is_there():
            continue
        look.folders.add(kind)
        for inner, stamp in _files_in(kind, place):
            thing = (kind, inner if kind is HistoryKind.PROMPT else f"{RESOURCE_FOLDER}/{inner}")
            before = known_files.get(thing)
            # Times and sizes say whether a file changed; its bytes are read only then.
            if before is not None and before.stamp == stamp:
                look.files[thing] = before
                continue
            sha256 = ""
            with suppress(OSError, UnicodeDecodeError):
                data = place.read(inner, READ_LIMIT)
                text = data.decode()
                if "\0" not in text:  # PostgreSQL cannot store NUL
                    look.texts[thing] = text
                    sha256 = hashlib.sha256(data).hexdigest()
            look.files[thing] = _File(stamp, sha256)
    return look


def _files_in(kind: HistoryKind, place: Folder) -> Iterator[tuple[str, str]]:
    entries = place.entries() if kind is HistoryKind.PROMPT else place.walk()
    for entry in entries:
        if entry.kind != "file" or entry.status is None or not is_text(entry.path):
            continue
        belongs = (
            counts(entry.name)
            if kind is HistoryKind.PROMPT
            else any(entry.name.endswith(f".{suffix}.md") for suffix in KINDS)
        )
        if belongs:
            yield entry.path, f"{entry.stamp}:{entry.status.st_ctime_ns}:{entry.status.st_ino}"
