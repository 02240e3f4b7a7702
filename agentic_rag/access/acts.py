"""What an operator did by command line beside a server: noted in the data folder, told in the audit log by its owner.

A command that changes files of the data folder while a server runs cannot write to the database itself: only one
process may. So it leaves a note, and whoever owns the folder makes a row of it: a running server within seconds, any
other command when it opens the records. A kill between the row and the removal of its note tells an act twice, never
not at all.
"""

import json
import logging
import os
import secrets
import time
from functools import partial
from pathlib import Path
from typing import Any

import anyio.to_thread

from agentic_rag.access.users import LOCAL
from agentic_rag.store.audit import Entry, append
from agentic_rag.store.database import Database

logger = logging.getLogger(__name__)

BY = "command line"


def act(action: str, target: str = "", **details: Any) -> Entry:
    """Return the entry of what the data folder's own user did by command line."""
    return Entry(LOCAL.id, action, target, details={**details, "by": BY})


class Acts:
    """The notes in one data folder."""

    def __init__(self, data: Path) -> None:
        self._folder = data / "acts"

    def leave(self, entry: Entry) -> None:
        """Note an act, before this returns. Raises OSError when the disk takes nothing."""
        for folder in (self._folder.parent, self._folder):  # the mode is not that of parents
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        name = f"act_{time.time_ns():020}_{secrets.token_hex(4)}"  # in the order in which they were left
        draft = self._folder / f".{name}"
        with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
            json.dump({"action": entry.action, "target": entry.target, "details": dict(entry.details)}, file)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(self._folder / f"{name}.json")

    async def take_in(self, database: Database) -> int:
        """Make audit rows of the notes, in their order; return how many.

        Raises:
            StorageError: a row could not be written; its note stays.
        """
        notes = await anyio.to_thread.run_sync(self._notes)
        for path, entry in notes:
            await database.write(partial(append, entry=entry), durable=True)
            await anyio.to_thread.run_sync(partial(path.unlink, missing_ok=True))
        return len(notes)

    def _notes(self) -> list[tuple[Path, Entry]]:
        notes = []
        for path in sorted(self._folder.glob("*.json")):
            try:
                said = json.loads(path.read_text(encoding="utf-8"))
                notes.append((path, Entry(LOCAL.id, said["action"], said["target"], details=said["details"])))
            except (ValueError, KeyError, TypeError) as exc:
                logger.error("%s is no note of an act and is put aside: %r", path, exc)
                path.replace(path.with_suffix(".damaged"))
        return notes
