"""Scheduled backups that a server writes: when one is due, and the age of the newest.

A separate command-line process writes each backup, so that no turn waits for it. If several servers share a data
folder, one of them writes.
"""

import time
from functools import partial
from pathlib import Path

import anyio.to_thread

from agentic_rag.backup.backups_folder import FOLDER, SKEW_SECONDS, alone_in, list_kept
from agentic_rag.backup.program import ProgramFailed, run_program
from agentic_rag.base.errors import BackupNotWritten
from agentic_rag.base.health_signals import Outcomes, PartState
from agentic_rag.base.settings import Settings
from agentic_rag.base.workers import Workers
from agentic_rag.operations.exclusive_jobs import ExclusiveJobs
from agentic_rag.operations.health import BackupHealth

LOOK_SECONDS = 60.0
"""Seconds between two checks whether a backup is due."""
LATE = 2
"""A backup older than this multiple of the configured interval is late."""


class ScheduledBackups:
    """The backups in ``{data}/backups``."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._folder = settings.data / FOLDER
        self._seconds = settings.backup_every * 3600
        self._outcomes = Outcomes()
        self._since = time.time()

    def begin(self, workers: Workers, alone: ExclusiveJobs) -> None:
        """Start the periodic check for due backups, if backups are configured."""
        if self._seconds:
            name = "writing a backup"
            workers.repeat(name, alone.job(name, self.run_due), LOOK_SECONDS, at_once=False)

    async def run_due(self) -> None:
        """Write a backup if the newest is too old and no other process is writing one.

        Raises:
            BackupNotWritten: the backup program failed; the error holds its last output line.
        """
        if not self._seconds:
            return
        newest = await anyio.to_thread.run_sync(_newest, self._folder)
        if newest is not None and time.time() - newest < self._seconds:
            return
        with alone_in(self._folder) as alone:
            if alone:
                await self._run()

    async def _run(self) -> None:
        settings = self._settings
        try:
            await run_program(settings, str(self._folder), "--keep", str(settings.backup_keep))
        except ProgramFailed as exc:
            self._outcomes.note_failure(time.time(), BackupNotWritten.code, str(exc))
            raise BackupNotWritten(str(exc), str(self._folder)) from exc
        self._outcomes.note_success(time.time())

    async def report(self) -> BackupHealth:
        """Return the age and health of the newest backup.

        The health is degraded if no backup was made for `LATE` intervals or the last attempt failed.
        """
        newest = await anyio.to_thread.run_sync(partial(_newest, self._folder))
        now = time.time()
        wished = self._settings.backup_every or None
        late = bool(self._seconds) and now - max(newest or 0.0, self._since) > LATE * self._seconds
        failure = self._outcomes.last_failure if self._outcomes.failing else None
        state = PartState.DEGRADED if late or failure is not None else PartState.READY
        age = None if newest is None else max(0, round(now - newest))
        return BackupHealth(state, age, wished, failure.reason if failure is not None else None)


def _newest(folder: Path) -> float | None:
    """Return the time of the newest backup, without those of a future time."""
    latest = time.time() + SKEW_SECONDS
    return next((backup.modified for backup in list_kept(folder) if backup.modified <= latest), None)
