"""Which workspaces are as they were when they were last looked into, told by sizes and times alone.

Owns what counts as unchanged, and how often a workspace is looked into all the same: what waits there may wait for
something that is in no folder, as a quota that was raised. Knows neither documents nor history; ``upkeep`` looks.
"""

import hashlib
from collections.abc import Iterator
from pathlib import Path
from zlib import crc32

from agentic_rag.domains.file_history import PROMPT_FOLDER
from agentic_rag.store.domains import DomainRecord
from agentic_rag.threads import DomainThreads
from mcp_servers.beneath import Entry, Folder
from mcp_servers.promptx.rolefiles import RESOURCE_FOLDER

WHOLE_EVERY = 10
"""One of so many looks is a whole one, changed or not; of many domains a tenth with each."""


class FolderMarks:
    """What was seen of each domain's workspace when it was last found in order."""

    def __init__(self, threads: DomainThreads) -> None:
        self._threads = threads
        self._marks: dict[str, bytes] = {}
        self._looks = 0

    def begin(self) -> None:
        """Note that a round of looks begins."""
        self._looks += 1

    async def new_mark(self, domain: DomainRecord) -> bytes | None:
        """Return what is to be kept once a domain's workspace was found in order; None where it need not be looked at.

        Raises:
            WorkspaceUnavailable: the workspace does not answer.
        """
        seen = await self._threads.read(domain.id, _list_places, Path(domain.workspace))
        mark = hashlib.blake2b(b"%d\n%s" % (domain.version, seen)).digest()
        due = (self._looks + crc32(domain.id.encode())) % WHOLE_EVERY == 0
        return None if self._marks.get(domain.id) == mark and not due else mark

    def keep(self, domain_id: str, mark: bytes) -> None:
        """Note that nothing is left to be done about what a mark stands for."""
        self._marks[domain_id] = mark

    def forget(self, domain_id: str) -> None:
        """Keep nothing of a domain that is gone."""
        self._marks.pop(domain_id, None)


def _list_places(workspace: Path) -> bytes:
    """Return what stands in the folders that are looked into. Blocks."""
    root = Folder(workspace)
    places = root.at("documents"), root.at(PROMPT_FOLDER), root.at(RESOURCE_FOLDER)
    return b"\n".join(line for place in places for line in (place.is_there().to_bytes(), *_lines(place)))


def _lines(place: Folder) -> Iterator[bytes]:
    for entry in place.walk():
        yield _line(entry)


def _line(entry: Entry) -> bytes:
    status = entry.status
    times = "" if status is None else f"{status.st_ctime_ns} {status.st_ino}"
    return f"{entry.kind} {entry.stamp} {times} {entry.path}".encode(errors="surrogateescape")
