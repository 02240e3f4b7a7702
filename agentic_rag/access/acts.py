"""Acts: command-line changes made while a server runs, recorded in the data folder until they become audit rows.

A command that changes files of the data folder while a server runs cannot write to the database, because only one
process may. The command leaves a note instead. The owner of the folder turns the note into an audit row: a running
server within seconds, any other command when it opens the records. A crash between storing the row and removing the
note records an act twice, but never loses one.
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
    """Return the audit entry of a command-line action by the data folder's own user."""
    return Entry(LOCAL.id, action, target, details={**details, "by": BY})


class Acts:
    """The notes in one data folder."""

    def __init__(self, data: Path) -> None:
        self._folder = data / "acts"

    def leave(self, entry: Entry) -> None:
        """Store an act as a note, durably. Raises OSError if the note cannot be written."""
        for folder in (self._folder.parent, self._folder):  # `mkdir` does not apply the mode to parents
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        # names sort in the order in which the notes were left
        name = f"act_{time.time_ns():020}_{secrets.token_hex(4)}"
        draft = self._folder / f".{name}"
        with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
            json.dump({"action": entry.action, "target": entry.target, "details": dict(entry.details)}, file)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(self._folder / f"{name}.json")

    async def take_in(self, database: Database) -> int:
        """Store the notes as audit rows, in order, and return their number.

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
                note = json.loads(path.read_text(encoding="utf-8"))
                notes.append((path, Entry(LOCAL.id, note["action"], note["target"], details=note["details"])))
            except (ValueError, KeyError, TypeError) as exc:
                logger.error("%s is not an action record and was moved aside: %r", path, exc)
                path.replace(path.with_suffix(".damaged"))
        return notes
