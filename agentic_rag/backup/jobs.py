"""The backups of a running server: scheduled ones, and jobs that an operator requests (write, verify, stop).

A separate command-line process does the work, so that no turn waits for it. If several servers share a data folder, one
of them writes the scheduled backups.

At most one job runs at a time; its progress and result are kept. The job belongs to a process, not to the store: other
servers of the same store list the backups but not the job.
"""

import json
import time
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial
from pathlib import Path

import anyio
import anyio.to_thread

from agentic_rag.backup.backups_folder import (
    FOLDER,
    SKEW_SECONDS,
    BackupFile,
    alone_in,
    keep_newest,
    list_all,
    list_kept,
    name_by_time,
)
from agentic_rag.backup.making import remove_leftovers
from agentic_rag.backup.program import ProgramFailed, run_program
from agentic_rag.base.errors import BackupNotWritten, BackupRefused, NotFound
from agentic_rag.base.health_signals import Outcomes, PartState
from agentic_rag.base.json_form import Absent
from agentic_rag.base.settings import Settings
from agentic_rag.base.workers import Queue, Workers
from agentic_rag.operations.exclusive_jobs import ExclusiveJobs
from agentic_rag.operations.health import BackupHealth
from agentic_rag.store.clock import new_id, now

LOOK_SECONDS = 60.0
"""Seconds between two checks whether a backup is due."""
LATE = 2
"""A backup older than this multiple of the configured interval is late."""


class ScheduledBackups:
    """Writes a backup when the newest in ``{data}/backups`` is too old, and reports its age."""

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


class JobKind(StrEnum):
    """The kind of a job."""

    WRITE = "write"
    VERIFY = "verify"


class JobState(StrEnum):
    """The state of a job."""

    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True)
class BackupJob:
    """A job that writes or verifies one backup.

    ``bytes`` is the amount done so far, before compression; ``part`` is the last member. ``name`` is the file, once
    known. ``reason`` explains a failure.
    """

    id: str
    kind: JobKind
    state: JobState
    name: str
    by: str
    begun_at: str
    bytes: int = 0
    part: str = ""
    ended_at: Absent[str] = None
    reason: Absent[str] = None


class BackupJobs:
    """The backup jobs of one data folder, as requested by an operator. `run` executes them."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self.folder = settings.data / FOLDER
        self.keep = settings.backup_keep
        self.every_hours = settings.backup_every or None
        self._asked: Queue[BackupJob] = Queue()
        self._job: BackupJob | None = None
        self._running = anyio.CancelScope()

    @property
    def job(self) -> BackupJob | None:
        """The current job, or else the last one; None if there was none."""
        return self._job

    async def list_all(self) -> list[BackupFile]:
        """Return the backups, newest first."""
        return await anyio.to_thread.run_sync(list_all, self.folder)

    def write(self, user_id: str) -> BackupJob:
        """Start writing a backup.

        Raises:
            BackupRefused: another job is running.
        """
        return self._begin(JobKind.WRITE, user_id, "")

    async def verify(self, user_id: str, name: str) -> BackupJob:
        """Start verifying a backup.

        Raises:
            NotFound: there is no backup with this name.
            BackupRefused: another job is running.
        """
        if name not in [backup.name for backup in await self.list_all()]:
            raise NotFound("backup", name)
        return self._begin(JobKind.VERIFY, user_id, name)

    def stop(self) -> bool:
        """Stop the current job; False if none was running. An unfinished backup is removed."""
        running = self._job is not None and self._job.state is JobState.RUNNING
        self._running.cancel()
        return running

    async def run(self) -> None:
        """Execute the requested jobs one after the other, until cancelled."""
        while True:
            await self._do(await self._asked.get())

    def _begin(self, kind: JobKind, user_id: str, name: str) -> BackupJob:
        if self._job is not None and self._job.state is JobState.RUNNING:
            raise BackupRefused("A backup is being written or verified already: wait for its end, or stop it.")
        self._running = anyio.CancelScope()
        self._job = BackupJob(new_id("job"), kind, JobState.RUNNING, name, user_id, now())
        self._asked.put(self._job)
        return self._job

    async def _do(self, job: BackupJob) -> None:
        try:
            with self._running as scope:
                await (self._write() if job.kind is JobKind.WRITE else self._verify(job.name))
                self._end(JobState.DONE)
            if scope.cancelled_caught:
                self._end(JobState.STOPPED)
        except (ProgramFailed, BackupRefused, OSError) as exc:
            self._end(JobState.FAILED, reason=str(exc))

    async def _write(self) -> None:
        with alone_in(self.folder) as alone:
            if not alone:
                raise BackupRefused("Another process writes a backup into the same folder.")
            target = await anyio.to_thread.run_sync(name_by_time, self.folder)
            self._change(name=target.name)
            try:
                await run_program(self._settings, str(target), "--tell", on_line=self._hear)
            finally:
                with anyio.CancelScope(shield=True):
                    await anyio.to_thread.run_sync(remove_leftovers, target)
            await anyio.to_thread.run_sync(keep_newest, self.folder, self.keep)

    async def _verify(self, name: str) -> None:
        await run_program(self._settings, "verify", str(self.folder / name), "--tell", on_line=self._hear)

    def _hear(self, line: str) -> None:
        """Read a progress line; the last line is a text for people at the command line and is ignored."""
        try:
            report = json.loads(line)
            self._change(bytes=int(report["bytes"]), part=str(report["name"]))
        except (ArithmeticError, ValueError, TypeError, KeyError):
            return

    def _end(self, state: JobState, **values: object) -> None:
        self._change(state=state, ended_at=now(), **values)

    def _change(self, **values: object) -> None:
        assert self._job is not None
        self._job = replace(self._job, **values)  # type: ignore[arg-type]
