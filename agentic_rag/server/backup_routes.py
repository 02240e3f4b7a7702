"""REST of backups: which there are, writing one now, verifying one, stopping either.

Owns what these routes take and answer. Knows no rule: those are ``backup.jobs``'s. A backup is not sent: it holds what
everybody said, which no operator is shown. Whoever may read the data folder takes it from there.
"""

from collections.abc import Sequence

from agentic_rag.access.auditing import AuditLog, change
from agentic_rag.access.users import User
from agentic_rag.backup.backups_folder import Listed
from agentic_rag.backup.jobs import BackupJobs, Job
from agentic_rag.base.errors import BackupRefused, NotFound
from agentic_rag.base.json_form import Absent
from agentic_rag.server.replies import Items, answer
from agentic_rag.server.routes import route
from agentic_rag.store.clock import time_text

BACKUPS = "/api/backups"


@answer()
class Backup:
    """A backup in the server's folder. ``beforeUpgrade``: it holds the records of before one, and nothing else."""

    name: str
    size_bytes: int
    made_at: str
    before_upgrade: bool


@answer()
class Backups(Items[Backup]):
    """The backups, newest first; ``folder``: where they lie.

    ``everyHours``: how far apart the server writes them by itself, absent where it does not; ``keep``: how many of
    those stay. ``job``: what is being done, or was done last.
    """

    folder: str
    keep: int
    every_hours: Absent[float] = None
    job: Absent[Job] = None


@answer()
class Stopped:
    """Whether something was being done."""

    stopped: bool


class BackupRoutes:
    """The backups that this server writes."""

    def __init__(self, jobs: BackupJobs, audit: AuditLog) -> None:
        self._jobs = jobs
        self._audit = audit

    @route("GET", BACKUPS)
    async def list_all(self) -> Backups:
        """List the backups in the data folder, and what is being done with one."""
        items: Sequence[Backup] = [_show(each) for each in await self._jobs.list_all()]
        return Backups(items, str(self._jobs.folder), self._jobs.keep, self._jobs.every_hours, self._jobs.job)

    @route("POST", BACKUPS, status=202, errors=[BackupRefused])
    async def write(self, user: User) -> Job:
        """Begin to write a backup; `GET /api/backups` says how far it is. Secrets in it stay sealed."""
        job = self._jobs.write(user.id)
        await self._audit.note(change("backup.begin", job.id))
        return job

    @route("POST", f"{BACKUPS}/{{backup}}/verify", status=202, errors=[BackupRefused, NotFound])
    async def verify(self, user: User, backup: str) -> Job:
        """Begin to read a backup to its end: whether it is whole."""
        job = await self._jobs.verify(user.id, backup)
        await self._audit.note(change("backup.verify", backup))
        return job

    @route("POST", f"{BACKUPS}/stop")
    async def stop(self) -> Stopped:
        """Stop what is being done; of a backup that was being written nothing is left."""
        stopped = self._jobs.stop()
        if stopped:
            await self._audit.note(change("backup.stop", BACKUPS))
        return Stopped(stopped)


def _show(listed: Listed) -> Backup:
    return Backup(listed.name, listed.size, time_text(listed.modified), listed.before_upgrade)
