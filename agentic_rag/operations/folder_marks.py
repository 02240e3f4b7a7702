"""Detect unchanged workspaces by the sizes and times of their files.

A workspace is scanned from time to time even if it is unchanged, because a waiting file may depend on something outside
the folder, such as a raised quota. Knows neither documents nor history; `agentic_rag.operations.maintenance` scans.
"""

import hashlib
from collections.abc import Iterator
from pathlib import Path
from zlib import crc32

from agentic_rag.base.threads import DomainThreads
from agentic_rag.domains.file_history import PROMPT_FOLDER
from agentic_rag.store.domains import DomainRecord
from mcp_servers.promptx.rolefiles import RESOURCE_FOLDER
from mcp_servers.safe_files import Folder, FolderEntry

WHOLE_EVERY = 10
"""Each domain is scanned fully in one of this many rounds, changed or not. Rounds differ between domains."""


class FolderMarks:
    """The last mark of each domain's workspace that needed no further work."""

    def __init__(self, threads: DomainThreads) -> None:
        self._threads = threads
        self._marks: dict[str, bytes] = {}
        self._looks = 0

    def begin(self) -> None:
        """Begin a new round of scans."""
        self._looks += 1

    async def new_mark(self, domain: DomainRecord) -> bytes | None:
        """Return the mark to keep after a scan of the workspace, or None if no scan is needed.

        Raises:
            WorkspaceUnavailable: the workspace does not answer.
        """
        listing = await self._threads.read(domain.id, _list_places, Path(domain.workspace))
        mark = hashlib.blake2b(b"%d\n%s" % (domain.version, listing)).digest()
        due = (self._looks + crc32(domain.id.encode())) % WHOLE_EVERY == 0
        return None if self._marks.get(domain.id) == mark and not due else mark

    def keep(self, domain_id: str, mark: bytes) -> None:
        """Keep a mark: the state that it stands for needs no further work."""
        self._marks[domain_id] = mark

    def forget(self, domain_id: str) -> None:
        """Forget the mark of a deleted domain."""
        self._marks.pop(domain_id, None)


def _list_places(workspace: Path) -> bytes:
    """Return one line per entry of the watched folders. Blocks."""
    root = Folder(workspace)
    places = root.at("documents"), root.at(PROMPT_FOLDER), root.at(RESOURCE_FOLDER)
    return b"\n".join(line for place in places for line in (place.is_there().to_bytes(), *_lines(place)))


def _lines(place: Folder) -> Iterator[bytes]:
    for entry in place.walk():
        yield _line(entry)


def _line(entry: FolderEntry) -> bytes:
    status = entry.status
    times = "" if status is None else f"{status.st_ctime_ns} {status.st_ino}"
    return f"{entry.kind} {entry.stamp} {times} {entry.path}".encode(errors="surrogateescape")
