"""Background work of a server: the demo domain, scans of documents folders, log cleanup and the consistency check.

Defines the jobs and their intervals. `Workers` retries a job that fails. Knows no route.
"""

import logging
import shutil
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

import anyio
import anyio.to_thread

from agentic_rag.access.auditing import FLUSH_SECONDS, AuditLog
from agentic_rag.access.keys import REFRESH_SECONDS, Access
from agentic_rag.base.errors import InvalidInput, NotFound, WorkspaceUnavailable
from agentic_rag.base.settings import Settings
from agentic_rag.base.threads import DomainThreads
from agentic_rag.base.workers import Workers, attempt
from agentic_rag.bundles.importing import Imports
from agentic_rag.directory.directory import Directory
from agentic_rag.documents.documents import Documents
from agentic_rag.documents.knowledge import Knowledge
from agentic_rag.domains.domains import Domains
from agentic_rag.domains.file_history import FileHistory
from agentic_rag.operations.deletion import LEFT_SECONDS, Deletion
from agentic_rag.operations.doctor import Doctor
from agentic_rag.operations.exclusive_jobs import ExclusiveJobs
from agentic_rag.operations.folder_marks import FolderMarks
from agentic_rag.operations.health import PROBE_SECONDS, Health
from agentic_rag.store import conversations, images, prompts, run_events
from agentic_rag.store.conversations import ConversationRecord
from agentic_rag.store.database import Database
from agentic_rag.store.domains import DomainRecord
from mcp_servers.retriever.errors import IndexFault

log = logging.getLogger(__name__)

SCAN_SECONDS = 30.0
"""Interval of the scans for files that were added to, changed in or removed from a documents folder."""
SPARE_SECONDS = 60.0
"""Interval of the checks that disk space is reserved for a start on a full disk."""
PRUNE_SECONDS = 3600.0
"""Interval of removing logs of turns that ended long ago."""

REST = 0.9
"""Part of an interval in which no other process repeats the job."""


SWEEP_SECONDS = 3600.0
AT_ONCE = 100
"""Maximum number of conversations archived in one transaction."""


class Retention:
    """Removes conversations that have been idle for longer than their domain's ``keepConversationsDays``."""

    def __init__(self, database: Database, directory: Directory, deletion: Deletion) -> None:
        self._db = database
        self._directory = directory
        self._deletion = deletion

    async def run(self) -> None:
        """Remove the conversations that are due now."""
        count = await self.sweep(datetime.now(UTC))
        if count:
            log.info("%d conversations were kept as long as their domains say, and are removed", count)

    async def sweep(self, moment: datetime) -> int:
        """Remove the conversations that are due at ``moment``. Returns their number."""
        count = 0
        for domain in await self._directory.list_all():
            try:
                days = (await self._directory.settings(domain.id)).keep_conversations_days
            except NotFound:
                continue  # the domain was deleted meanwhile
            if days is None:
                continue
            before = (moment - timedelta(days=days)).isoformat(timespec="milliseconds").removesuffix("+00:00") + "Z"
            while due := await self._due(domain.id, before):
                for conversation in due:
                    await self._deletion.remove(conversation, because="keepConversationsDays")
                count += len(due)
        return count

    async def _due(self, domain_id: str, before: str) -> list[ConversationRecord]:
        return await self._db.write(lambda conn: conversations.take_due(conn, domain_id, before, AT_ONCE))


class Maintenance:
    """The background work of one process. ``alone`` runs the jobs that only one of several processes needs to do.

    ``incoming`` is the folder of this process's uploads. ``scan_seconds`` is the interval of the documents folder
    scans.
    """

    def __init__(
        self,
        settings: Settings,
        incoming: Path,
        alone: ExclusiveJobs,
        database: Database,
        directory: Directory,
        domains: Domains,
        documents: Documents,
        knowledge: Knowledge,
        deletion: Deletion,
        imports: Imports,
        history: FileHistory,
        doctor: Doctor,
        scan_seconds: float = SCAN_SECONDS,
    ) -> None:
        self._settings = settings
        self._incoming = incoming
        self.alone = alone
        self._db = database
        self._directory = directory
        self._domains = domains
        self._documents = documents
        self._knowledge = knowledge
        self._deletion = deletion
        self._imports = imports
        self._history = history
        self._marks = FolderMarks(DomainThreads(1))
        self._doctor = doctor
        self._scan_seconds = scan_seconds

    async def prepare(self) -> None:
        """Remove unfinished uploads of a killed process, and create the demo domain at the first start."""
        await anyio.to_thread.run_sync(partial(shutil.rmtree, self._incoming, ignore_errors=True))
        await self._imports.finish()
        finish = self._knowledge.intake.finish_removals
        # Before a search can find leftovers of an interrupted removal.
        await self.alone.run("finishing removals", finish)
        if not self._db.shared:  # no other process has turns there
            await self._deletion.end_left_calls(at_start=True)
            await self._deletion.end_left_calls_of_apps(seconds=0)
        await self.alone.run("making the demo domain", self._load_demo)
        await self._look_for_default_domain()

    async def _look_for_default_domain(self) -> None:
        if "default_domain" not in self._settings.model_fields_set:
            return  # the setting was not set explicitly
        name = self._settings.default_domain
        try:
            await self._directory.get(name)
        except NotFound:
            log.warning("there is no domain %r (AGENTIC_RAG_DEFAULT_DOMAIN): each conversation has to name one", name)

    def keep_records(
        self,
        workers: Workers,
        access: Access,
        audit: AuditLog,
        health: Health,
        keep_spare: Callable[[], Awaitable[None]],
    ) -> None:
        """Start the jobs that every serving process does, even before it listens.

        ``keep_spare`` reserves space on the data folder's disk; see `DataFolder.keep_spare`.
        """
        retention = Retention(self._db, self._directory, self._deletion)
        for name, work, seconds, at_once in (
            ("removing old logs", self._prune_logs, PRUNE_SECONDS, True),
            ("removing leftovers of calls", self._deletion.end_left_calls, LEFT_SECONDS, False),
            ("ending calls of apps whose server died", self._deletion.end_left_calls_of_apps, LEFT_SECONDS, False),
            ("removing conversations that are kept no longer", retention.run, SWEEP_SECONDS, True),
        ):
            workers.repeat(name, self.alone.job(name, work, REST * seconds), seconds, at_once=at_once)
        workers.repeat("asking the store whether it takes anything", health.probe, PROBE_SECONDS, at_once=False)
        workers.repeat("keeping room for the next start", keep_spare, SPARE_SECONDS, at_once=False)
        workers.repeat("reading the keys", access.refresh, REFRESH_SECONDS)
        workers.repeat("writing the audit log", audit.write_due, FLUSH_SECONDS)

    def begin(self, workers: Workers) -> None:
        """Start the jobs that wait until the server listens."""
        workers.start("taking up files", partial(self._take_up_files, workers))
        workers.start("dense vectors", self._knowledge.begin)
        workers.start("the consistency check", self._examine)

    async def _take_up_files(self, workers: Workers) -> None:
        """Resume unfinished documents, then watch the documents folders."""
        await attempt("going on with documents", self._knowledge.resume, (IndexFault,))
        workers.repeat("looking into the documents folders", self._look_into_folders, self._scan_seconds)

    async def _look_into_folders(self) -> None:
        await attempt("going on with imports", self._imports.resume)  # imports of this process only
        every = REST * self._scan_seconds
        await self.alone.run("looking into the documents folders", self._look_for_files, every)
        for domain in await self._directory.list_all():  # whichever process scanned
            self._directory.folder_seen(domain.id)

    async def _look_for_files(self) -> None:
        """Scan the folders of each domain. A problem in one domain does not stop the others."""
        await attempt("removing documents", self._knowledge.intake.finish_removals)
        self._marks.begin()
        for domain in await self._directory.list_all():
            await attempt(f"looking into the folders of {domain.id}", partial(self._look_into, domain))

    async def _look_into(self, domain: DomainRecord) -> None:
        try:
            mark = await self._marks.new_mark(domain)
            if mark is None:
                return
            any_new = await self._documents.rescan(domain.id)
            changed = await self._history.notice(domain.id)
            # After a change the folder is scanned once more, because it may have changed again during the scan.
            if not any_new and not changed:
                self._marks.keep(domain.id, mark)
        except NotFound:  # the domain was deleted meanwhile
            self._marks.forget(domain.id)
        except WorkspaceUnavailable as exc:
            log.warning("%s is looked into later: %s", domain.id, exc)
        finally:
            self._directory.folder_seen(domain.id)

    async def _load_demo(self) -> None:
        """Create the demo domain. A deleted demo domain is not created again."""
        marker = self._settings.workspaces / ".demo-loaded"
        template = self._settings.templates / "demo"
        if await anyio.to_thread.run_sync(lambda: marker.exists() or not (template / "domain.json").is_file()):
            return
        try:
            await self._directory.get(template.name)
        except NotFound:
            await anyio.to_thread.run_sync(lambda: marker.parent.mkdir(parents=True, exist_ok=True))
            try:
                await self._domains.load_template(template)
                self._directory.expect_files(template.name)
            except (InvalidInput, ValueError) as exc:  # an edited template must not prevent the start
                log.warning("the demo domain was not made: %s", exc)
                return
        await anyio.to_thread.run_sync(marker.touch)

    async def _prune_logs(self) -> None:
        """Remove old logs and unreferenced data, in small transactions because the database has one writer."""
        keep = timedelta(hours=self._settings.run_log_hours)
        before = (datetime.now(UTC) - keep).isoformat(timespec="milliseconds").removesuffix("+00:00") + "Z"
        while await self._db.write(partial(run_events.prune, ended_before=before)):
            pass  # each call is a separate transaction, and others can write between them
        for prune in (images.prune, prompts.prune):  # rows of deleted turns and sessions
            await self._db.write(partial(prune, made_before=before))

    async def _examine(self) -> None:
        """Log the findings of the consistency check; ``agentic-rag doctor --repair`` repairs them."""
        for finding in await self._doctor.examine(sums=True):
            log.warning("consistency check: %s", finding)
