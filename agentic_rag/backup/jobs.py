"""Backups that an operator asks a running server for: write one now, read one to its end, stop either.

Owns the one job there is at a time, how far it is, and how the last one ended. Of a process, not of the store: whoever
asks another of several servers sees the backups, and not who writes one. Knows no contents.
"""

import json
from dataclasses import dataclass, replace
from enum import StrEnum

import anyio
import anyio.to_thread

from agentic_rag.backup.backups_folder import FOLDER, Listed, alone_in, keep_newest, list_all, name_by_time
from agentic_rag.backup.making import remove_leftovers
from agentic_rag.backup.program import ProgramFailed, run_program
from agentic_rag.errors import BackupRefused, NotFound
from agentic_rag.json_form import Absent
from agentic_rag.settings import Settings
from agentic_rag.store.clock import new_id, now
from agentic_rag.workers import Queue


class JobKind(StrEnum):
    """What is done."""

    WRITE = "write"
    VERIFY = "verify"


class JobState(StrEnum):
    """Where it is."""

    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True)
class Job:
    """Writing or verifying one backup. ``bytes``: so many are done, before they are packed; ``part``: the last member.

    ``name``: the file, once there is one. ``reason``: why it failed.
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
    """The backups of one data folder, as an operator asks for them. `run` does what was asked."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self.folder = settings.data / FOLDER
        self.keep = settings.backup_keep
        self.every_hours = settings.backup_every or None
        self._asked: Queue[Job] = Queue()
        self._job: Job | None = None
        self._running = anyio.CancelScope()

    @property
    def job(self) -> Job | None:
        """What is being done, or was done last; None: nothing was asked for yet."""
        return self._job

    async def list_all(self) -> list[Listed]:
        """Return the backups, the newest first."""
        return await anyio.to_thread.run_sync(list_all, self.folder)

    def write(self, user_id: str) -> Job:
        """Have a backup written.

        Raises:
            BackupRefused: something is being done already.
        """
        return self._begin(JobKind.WRITE, user_id, "")

    async def verify(self, user_id: str, name: str) -> Job:
        """Have a backup read to its end.

        Raises:
            NotFound: there is none of that name.
            BackupRefused: something is being done already.
        """
        if name not in [each.name for each in await self.list_all()]:
            raise NotFound("backup", name)
        return self._begin(JobKind.VERIFY, user_id, name)

    def stop(self) -> bool:
        """Stop what is being done; False: nothing was. Of a backup that was being written nothing is left."""
        running = self._job is not None and self._job.state is JobState.RUNNING
        self._running.cancel()
        return running

    async def run(self) -> None:
        """Do what is asked for, one after the other, for ever."""
        while True:
            await self._do(await self._asked.get())

    def _begin(self, kind: JobKind, user_id: str, name: str) -> Job:
        if self._job is not None and self._job.state is JobState.RUNNING:
            raise BackupRefused("A backup is being written or verified already: wait for its end, or stop it.")
        self._running = anyio.CancelScope()
        self._job = Job(new_id("job"), kind, JobState.RUNNING, name, user_id, now())
        self._asked.put(self._job)
        return self._job

    async def _do(self, job: Job) -> None:
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
                await run_program(self._settings, str(target), "--tell", hear=self._hear)
            finally:
                with anyio.CancelScope(shield=True):
                    await anyio.to_thread.run_sync(remove_leftovers, target)
            await anyio.to_thread.run_sync(keep_newest, self.folder, self.keep)

    async def _verify(self, name: str) -> None:
        await run_program(self._settings, "verify", str(self.folder / name), "--tell", hear=self._hear)

    def _hear(self, line: str) -> None:
        """Take up how far it is; the last line is words for a person at the command line."""
        try:
            said = json.loads(line)
            self._change(bytes=int(said["bytes"]), part=str(said["name"]))
        except (ArithmeticError, ValueError, TypeError, KeyError):
            return

    def _end(self, state: JobState, **values: object) -> None:
        self._change(state=state, ended_at=now(), **values)

    def _change(self, **values: object) -> None:
        assert self._job is not None
        self._job = replace(self._job, **values)  # type: ignore[arg-type]
