"""REST routes for backups: list, write, verify and stop.

This module defines the answers. ``backup.jobs`` decides the rules. No route sends a backup's content, because it holds
all conversations, which operators may not read. Anyone with access to the data folder can copy a backup from there.
"""

from collections.abc import Sequence

from agentic_rag.access.auditing import AuditLog, change
from agentic_rag.access.users import User
from agentic_rag.backup.backups_folder import BackupFile
from agentic_rag.backup.jobs import BackupJob, BackupJobs
from agentic_rag.base.errors import BackupRefused, NotFound
from agentic_rag.base.json_form import Absent
from agentic_rag.server.replies import Items, answer
from agentic_rag.server.routing import route
from agentic_rag.store.clock import time_text

BACKUPS = "/api/backups"


@answer()
class Backup:
    """A backup in the server's folder.

    ``beforeUpgrade``: it was made before an upgrade and holds only the database records.
    """

    name: str
    size_bytes: int
    made_at: str
    before_upgrade: bool


@answer()
class Backups(Items[Backup]):
    """The backups, newest first. ``folder`` is their folder.

    ``everyHours`` is the interval of automatic backups, absent if there are none. ``keep`` is the number of automatic
    backups that are kept. ``job`` is the current or last job.
    """

    folder: str
    keep: int
    every_hours: Absent[float] = None
    job: Absent[BackupJob] = None


@answer()
class Stopped:
    """Whether a job was running."""

    stopped: bool


class BackupRoutes:
    """Backups that this server writes."""

    def __init__(self, jobs: BackupJobs, audit: AuditLog) -> None:
        self._jobs = jobs
        self._audit = audit

    @route("GET", BACKUPS)
    async def list_all(self) -> Backups:
        """List the backups in the data folder, and the current or last job."""
        items: Sequence[Backup] = [_show(listed) for listed in await self._jobs.list_all()]
        return Backups(items, str(self._jobs.folder), self._jobs.keep, self._jobs.every_hours, self._jobs.job)

    @route("POST", BACKUPS, status=202, errors=[BackupRefused])
    async def write(self, user: User) -> BackupJob:
        """Start writing a backup; `GET /api/backups` shows its progress. Secrets in the backup stay encrypted."""
        job = self._jobs.write(user.id)
        await self._audit.note(change("backup.begin", job.id))
        return job

    @route("POST", f"{BACKUPS}/{{backup}}/verify", status=202, errors=[BackupRefused, NotFound])
    async def verify(self, user: User, backup: str) -> BackupJob:
        """Start to verify a backup by reading it to its end."""
        job = await self._jobs.verify(user.id, backup)
        await self._audit.note(change("backup.verify", backup))
        return job

    @route("POST", f"{BACKUPS}/stop")
    async def stop(self) -> Stopped:
        """Stop the current job. An unfinished backup is removed."""
        stopped = self._jobs.stop()
        if stopped:
            await self._audit.note(change("backup.stop", BACKUPS))
        return Stopped(stopped)


def _show(listed: BackupFile) -> Backup:
    return Backup(listed.name, listed.size, time_text(listed.modified), listed.before_upgrade)
