"""What a server does beside answering: the demo domain, the documents folders, old logs, the consistency check.

Owns what is done and how often. Each part may fail and is met again; `Workers` sees to that. Knows no route.
"""

import logging
import shutil
from datetime import UTC, datetime, timedelta
from functools import partial

import anyio
import anyio.to_thread

from agentic_rag.access.auditing import FLUSH_SECONDS, AuditLog
from agentic_rag.access.keys import REFRESH_SECONDS, Access
from agentic_rag.directory.directory import Directory
from agentic_rag.documents.documents import Documents
from agentic_rag.documents.knowledge import Knowledge
from agentic_rag.domains.domains import Domains
from agentic_rag.errors import InvalidInput, NotFound, WorkspaceUnavailable
from agentic_rag.operations.doctor import Doctor
from agentic_rag.operations.health import PROBE_SECONDS, Health
from agentic_rag.settings import Settings
from agentic_rag.store import run_events
from agentic_rag.store.database import Database
from agentic_rag.workers import Workers, attempt
from mcp_servers.retriever.errors import IndexFault

log = logging.getLogger(__name__)

SCAN_SECONDS = 30.0
"""Between two looks for files that were put into a documents folder, changed or taken away."""
PRUNE_SECONDS = 3600.0
"""How often logs of turns that ended long ago are removed."""


class Upkeep:
    """The background work of one process. ``scan_seconds``: between two looks into the documents folders."""

    def __init__(
        self,
        settings: Settings,
        database: Database,
        directory: Directory,
        domains: Domains,
        documents: Documents,
        knowledge: Knowledge,
        doctor: Doctor,
        scan_seconds: float = SCAN_SECONDS,
    ) -> None:
        self._settings = settings
        self._db = database
        self._directory = directory
        self._domains = domains
        self._documents = documents
        self._knowledge = knowledge
        self._doctor = doctor
        self._scan_seconds = scan_seconds

    async def prepare(self) -> None:
        """Clear what a killed process left half received, and make the demo domain at the first start."""
        incoming = self._settings.incoming
        await anyio.to_thread.run_sync(partial(shutil.rmtree, incoming, ignore_errors=True))
        await self._knowledge.intake.finish_removals()  # before a search can find what a kill left of them
        await self._load_demo()
        await self._look_for_default_domain()

    async def _look_for_default_domain(self) -> None:
        if "default_domain" not in self._settings.model_fields_set:
            return  # nobody asked for it
        name = self._settings.default_domain
        try:
            await self._directory.get(name)
        except NotFound:
            log.warning("there is no domain %r (AGENTIC_RAG_DEFAULT_DOMAIN): each conversation has to name one", name)

    def keep_records(self, workers: Workers, access: Access, audit: AuditLog, health: Health) -> None:
        """Begin what every serving process does, whether it listens yet or not."""
        workers.repeat("removing old logs", self._prune_logs, PRUNE_SECONDS)
        workers.repeat("asking the store whether it takes anything", health.probe, PROBE_SECONDS, at_once=False)
        workers.repeat("reading the keys", access.refresh, REFRESH_SECONDS)
        workers.repeat("writing the audit log", audit.write_due, FLUSH_SECONDS)

    def begin(self, workers: Workers) -> None:
        """Begin what waits until the server listens."""
        workers.start("taking up files", partial(self._take_up_files, workers))
        workers.start("dense vectors", self._knowledge.begin)
        workers.start("the consistency check", self._examine)

    async def _take_up_files(self, workers: Workers) -> None:
        """Go on with what was left, then follow what operators do in the documents folders."""
        await attempt("going on with documents", self._knowledge.resume, (IndexFault,))
        workers.repeat("looking into the documents folders", self._look_for_files, self._scan_seconds)

    async def _look_for_files(self) -> None:
        await self._knowledge.intake.finish_removals()
        for domain in await self._directory.list_all():
            try:
                await self._documents.rescan(domain.id)
            except NotFound:
                continue  # deleted meanwhile
            except WorkspaceUnavailable as exc:  # the other folders are looked into all the same
                log.warning("%s is looked into later: %s", domain.id, exc)
            finally:
                self._directory.folder_seen(domain.id)

    async def _load_demo(self) -> None:
        """Make the demo domain; once it was deleted it does not come back."""
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
            except (InvalidInput, ValueError) as exc:  # somebody edited the template: no reason not to start
                log.warning("the demo domain was not made: %s", exc)
                return
        await anyio.to_thread.run_sync(marker.touch)

    async def _prune_logs(self) -> None:
        """Remove logs of turns that ended long ago; in small steps, since there is one writer."""
        keep = timedelta(hours=self._settings.run_log_hours)
        before = (datetime.now(UTC) - keep).isoformat(timespec="milliseconds").removesuffix("+00:00") + "Z"
        while await self._db.write(partial(run_events.prune, ended_before=before)):
            pass

    async def _examine(self) -> None:
        """Say in the log what does not fit together; ``agentic-rag doctor --repair`` mends it."""
        for finding in await self._doctor.examine():
            log.warning("consistency check: %s", finding)
