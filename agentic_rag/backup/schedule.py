"""Backups that a server writes by itself: when one is due, and how old the last one is.

Owns that. Each is written by a process of its own, the command line's, so that no turn waits for it; where several
servers share a data folder, one of them does it. Knows no contents.
"""

import time
from functools import partial
from pathlib import Path

import anyio.to_thread

from agentic_rag.backup.backups_folder import FOLDER, alone_in, list_kept
from agentic_rag.backup.program import ProgramFailed, run_program
from agentic_rag.errors import BackupNotWritten
from agentic_rag.operations.alone import Alone
from agentic_rag.operations.health import BackupHealth
from agentic_rag.outcomes import Outcomes, PartState
from agentic_rag.settings import Settings
from agentic_rag.workers import Workers

LOOK_SECONDS = 60.0
"""Between two looks whether one is due."""
LATE = 2
"""So many times the wished age is too old."""


class ScheduledBackups:
    """The backups in ``{data}/backups``."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._folder = settings.data / FOLDER
        self._seconds = settings.backup_every * 3600
        self._outcomes = Outcomes()
        self._since = time.time()

    def begin(self, workers: Workers, alone: Alone) -> None:
        """Look from now on whether one is due, if any are wished for."""
        if self._seconds:
            name = "writing a backup"
            workers.repeat(name, alone.job(name, self.run_due), LOOK_SECONDS, at_once=False)

    async def run_due(self) -> None:
        """Write one, if the newest is too old and nobody writes one.

        Raises:
            BackupNotWritten: it failed, with what it said last.
        """
        if not self._seconds:
            return
        kept = await anyio.to_thread.run_sync(list_kept, self._folder)
        if kept and time.time() - kept[0].modified < self._seconds:
            return
        with alone_in(self._folder) as alone:
            if alone:
                await self._run()

    async def _run(self) -> None:
        given = self._settings
        try:
            await run_program(given, str(self._folder), "--keep", str(given.backup_keep))
        except ProgramFailed as exc:
            self._outcomes.note_failure(time.time(), BackupNotWritten.code, str(exc))
            raise BackupNotWritten(str(exc), str(self._folder)) from exc
        self._outcomes.note_success(time.time())

    async def report(self) -> BackupHealth:
        """Return how old the newest is; late: where they are wished for, and it is `LATE` times as old as wished."""
        kept = await anyio.to_thread.run_sync(partial(_newest, self._folder))
        now = time.time()
        wished = self._settings.backup_every or None
        late = bool(self._seconds) and now - max(kept or 0.0, self._since) > LATE * self._seconds
        failure = self._outcomes.last_failure if self._outcomes.failing else None
        state = PartState.DEGRADED if late or failure is not None else PartState.READY
        age = None if kept is None else max(0, round(now - kept))
        return BackupHealth(state, age, wished, failure.reason if failure is not None else None)


def _newest(folder: Path) -> float | None:
    kept = list_kept(folder)
    return kept[0].modified if kept else None
