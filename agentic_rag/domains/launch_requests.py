"""Requests for servers that the launch catalogue does not have: an admin requests, an operator decides.

A request is stored once per command line of a domain. The operator approves exactly what was shown, or refuses with a
reason. Approved requests are carried out in the background: install, allow, record. After a crash the next start
resumes; each step is idempotent. Knows no route.
"""

import logging
from collections.abc import AsyncIterator
from dataclasses import dataclass
from functools import partial

import anyio
import anyio.to_thread
from sqlalchemy import Connection
from sqlalchemy.exc import IntegrityError

from agentic_rag.access.auditing import audit, change
from agentic_rag.access.users import User
from agentic_rag.base import failpoints
from agentic_rag.base.errors import (
    AgenticRagError,
    BodyTooLarge,
    InvalidInput,
    LaunchRequestChanged,
    LaunchRequestClosed,
    LaunchRequestsFull,
    LineAllowed,
    NotFound,
    PackageProblem,
    StorageError,
)
from agentic_rag.base.forms import line
from agentic_rag.base.threads import DomainThreads
from agentic_rag.base.workers import Queue
from agentic_rag.directory.directory import Directory
from agentic_rag.directory.settings import DomainSettings
from agentic_rag.domains.launch_proposals import LaunchProposal, proposal_of, read_proposal
from agentic_rag.domains.vault import Vault
from agentic_rag.store import launch_requests
from agentic_rag.store.audit import AuditOutcome, Entry
from agentic_rag.store.clock import new_id, now
from agentic_rag.store.database import Database
from agentic_rag.store.launch_requests import PENDING, LaunchRequestRecord, RequestState
from agentic_rag.tools.entries.names import fit_name
from agentic_rag.tools.entries.reading import read_name
from agentic_rag.tools.launch.bundles import MAX_BUNDLE_BYTES
from agentic_rag.tools.launch.catalogue import CatalogueMatch, Package, Registry, match_line
from agentic_rag.tools.launch.facts import Facts
from agentic_rag.tools.launch.packages import Packages
from agentic_rag.tools.launch.policy import LaunchPolicy
from agentic_rag.tools.launch.requests import (
    SLOTS,
    LaunchGrant,
    PackageLine,
    ProgramLine,
    check_covers,
    entry_of,
    fingerprint_of,
    line_hash,
    make_table,
    plan_line,
    propose_template,
)

log = logging.getLogger(__name__)

MAX_OPEN = 20
"""Maximum open requests of one domain."""
MAX_REASON = 500
MOST_SHOWN = 500
INSPECTIONS = 2
"""Maximum packages inspected at once: each inspection runs a program."""
UPLOADS = 2
"""Maximum bundles received at once: each is in memory until it has been checked."""


@dataclass(frozen=True, slots=True)
class LaunchRequests:
    """The requests of all domains. ``policy`` provides the catalogue, the packages and the operator's folder."""

    directory: Directory
    database: Database
    vault: Vault
    policy: LaunchPolicy
    threads: DomainThreads
    approved: Queue[str]
    """Ids of approved requests that `run` has to carry out."""
    inspections: anyio.CapacityLimiter
    uploads: anyio.CapacityLimiter

    # -- an admin ---------------------------------------------------------------------------------------------

    async def request(self, user: User, domain_id: str, name: str, document: object) -> LaunchRequestRecord:
        """Request approval of a document's command line (see `read_proposal`). A repeated request returns the same one.

        Raises:
            NotFound: there is no such domain, or no such saved entry.
            InvalidInput, ServerReserved, CommandNotAllowed: the line cannot be allowed; the error says how to change
                it.
            LineAllowed: the line is already allowed.
            PackageProblem: the registry does not know the package, or cannot be reached.
            LaunchRequestsFull: the domain has too many open requests.
        """
        record = await self.directory.get(domain_id)
        settings = DomainSettings.model_validate(record.settings)
        name = read_name(name, "mcpServers")
        proposal = read_proposal(record, settings, name, document)
        secrets = await self.vault.values(domain_id)
        # The values of the request are stored nowhere. They are redacted from errors while the program is looked up.
        with self.vault.redact.trying(domain_id, proposal.values) as redaction:
            proposal.check_secrets({**secrets, **proposal.values}, redaction)
            plan = proposal.plan()
            self._check_new(proposal)
            if isinstance(plan, ProgramLine):
                find = partial(self.policy.local.find, plan, proposal.path)
                facts = (await self.threads.read(domain_id, find)).facts
            else:
                plan, facts = await self._look_up(plan, proposal)
                proposal = _pin(proposal, plan)
        return await self._store(user, domain_id, proposal, facts)

    async def propose_bundle(
        self, user: User, domain_id: str, name: str, pieces: AsyncIterator[bytes]
    ) -> LaunchRequestRecord:
        """Request approval of the server in a bundle (``.mcpb``); see `request`. An empty name means the bundle's own.

        ``pieces`` are the chunks of the uploaded file. Few uploads are accepted at once.

        Raises:
            InvalidInput: the bundle is not acceptable; the error says why.
            BodyTooLarge: the file exceeds the size limit.
        """
        await self.directory.get(domain_id)
        try:
            # Held while the pieces arrive, so that the memory of all uploads together is bounded.
            async with self.uploads:
                data = bytearray()
                async for piece in pieces:
                    data += piece
                    if len(data) > MAX_BUNDLE_BYTES:
                        raise BodyTooLarge(MAX_BUNDLE_BYTES)
                bundle = await self._packages.keep_bundle(bytes(data))
        except PackageProblem as exc:
            raise InvalidInput("bundle", exc.reason) from exc
        name = read_name(name or fit_name(bundle.facts.name), "mcpServers")
        proposal = proposal_of(bundle, name)
        proposal.check_secrets(await self.vault.values(domain_id), self.vault.redact.of(domain_id))
        proposal.plan()
        return await self._store(user, domain_id, proposal, bundle.facts)

    async def of_domain(self, domain_id: str) -> list[LaunchRequestRecord]:
        """Return the requests of a domain, newest first."""
        find = partial(launch_requests.list_newest, limit=MOST_SHOWN, domain_id=domain_id)
        return await self.database.read(find)

    async def withdraw(self, domain_id: str, request_id: str) -> None:
        """Withdraw an open request of a domain.

        Raises:
            NotFound: the domain has no such request.
            LaunchRequestClosed: the request was already decided.
        """
        record = await self.get(request_id)
        if record.domain_id != domain_id:
            raise NotFound("launch_request", request_id, hidden=True)
        entry = change("mcp.withdraw", f"{domain_id}/{record.server}", request=request_id)
        await self._move(record, RequestState.WITHDRAWN, entry)
        await self._forget_bundles(record)

    # -- an operator ------------------------------------------------------------------------------------------

    async def list_all(self, state: RequestState | None) -> list[LaunchRequestRecord]:
        """Return the requests of all domains, newest first."""
        states = () if state is None else (state,)
        return await self.database.read(partial(launch_requests.list_newest, limit=MOST_SHOWN, states=states))

    async def get(self, request_id: str) -> LaunchRequestRecord:
        """Return one request.

        Raises:
            NotFound: there is no such request.
        """
        record = await self.database.read(partial(launch_requests.get, request_id=request_id))
        if record is None:
            raise NotFound("launch_request", request_id)
        return record

    async def approve(
        self, user: User, request_id: str, reviewed: str, grant: LaunchGrant | None = None
    ) -> LaunchRequestRecord:
        """Approve an open request and queue its installation. A ``grant`` of None allows the line as proposed.

        ``reviewed`` is the fingerprint of the request as it was shown.

        Raises:
            NotFound: there is no such request.
            LaunchRequestClosed: the request is not open.
            LaunchRequestChanged: the program differs from the one shown.
            InvalidInput: the grant does not cover the requested line.
        """
        record = await self.get(request_id)
        if record.state is not RequestState.OPEN:
            raise LaunchRequestClosed(record.state)
        # Computed again, so that a row that was changed by hand cannot be approved.
        if reviewed != record.fingerprint or reviewed != _fingerprint(record):
            raise LaunchRequestChanged("The reviewed program is not the one that would run.")
        grant = grant or LaunchGrant(record.template)
        _check_slots(grant)
        places = await self._places(record)
        launch_entry = entry_of(self._table(record, grant, places))
        check_covers(launch_entry, record.command, record.args, record.env)
        entry = change(
            "mcp.approve",
            f"{record.domain_id}/{record.server}",
            request=request_id,
            fingerprint=reviewed,
            network=grant.network,
            write=grant.write,
            readOnly=list(grant.read_only),
        )
        # Before the queue: a crash between the two leaves an approved request, which `take_up` finds.
        approved = await self._move(
            record, RequestState.APPROVED, entry, grant=grant, decided_by=user.id, decided_at=now(), reason=""
        )
        self.approved.put(request_id)
        return approved

    async def refuse(self, user: User, request_id: str, reason: str) -> LaunchRequestRecord:
        """Refuse an open request. The reason is shown to its admin.

        Raises:
            NotFound: there is no such request.
            LaunchRequestClosed: the request is not open.
            InvalidInput: the reason is blank or too long.
        """
        record = await self.get(request_id)
        reason = line("reason", reason, MAX_REASON, required=True)
        entry = change("mcp.refuse", f"{record.domain_id}/{record.server}", request=request_id)
        values = {"reason": reason, "decided_by": user.id, "decided_at": now()}
        refused = await self._move(record, RequestState.REFUSED, entry, **values)
        await self._forget_bundles(record)
        return refused

    # -- carrying out -----------------------------------------------------------------------------------------

    async def take_up(self) -> None:
        """Resume the requests that were approved before this process started."""
        find = partial(launch_requests.list_newest, limit=None, states=(RequestState.APPROVED,))
        # The oldest first.
        for record in reversed(await self.database.read(find)):
            self.approved.put(record.id)
        await self._forget_bundles()

    async def run(self) -> None:
        """Carry out approved requests one after the other until cancelled."""
        while True:
            request_id = await self.approved.get()
            try:
                await self._carry_out(request_id)
            except StorageError as exc:  # it stays approved, and the next start resumes it
                log.error("the approved request %s is not installed: %s", request_id, exc)

    async def _carry_out(self, request_id: str) -> None:
        """Install the package of an approved request, allow its line, and record the end of the request.

        Each step may be repeated: after a kill, the request is still approved, and the next start runs all steps again.

        Raises:
            StorageError: the store refuses; the request stays approved.
        """
        record = await self.database.read(partial(launch_requests.get, request_id=request_id))
        if record is None or record.state is not RequestState.APPROVED or record.grant is None:
            return
        try:
            failpoints.reached("launch.approved")
            places = await self._places(record)
            sha256 = record.facts.integrity
            if record.facts.registry:
                sha256 = (await self._packages.install(_package(record.facts))).sha256
            failpoints.reached("launch.installed")
            table = self._table(record, record.grant, places)
            await anyio.to_thread.run_sync(self.policy.catalogue.put, table)
            failpoints.reached("launch.allowed")
        except StorageError:
            raise
        except Exception as exc:  # boundary: one package must not end the installation of all others
            if not isinstance(exc, (AgenticRagError, OSError)):
                log.error("the approved request %s failed", request_id, exc_info=exc)
            # The operator sees the reason and can approve again.
            await self._give_back(record, str(exc) or type(exc).__name__)
            return
        ident = str(table["id"])
        details = {"request": record.id, "sha256": sha256, "domain": record.domain_id}
        entry = Entry(record.decided_by, "mcp.allow", ident, details=details)
        if not await self._end(record, RequestState.INSTALLED, entry, sha256=sha256, catalogue_id=ident):
            # The request was deleted with its domain, or another process has recorded the entry, which then stays.
            current = await self.database.read(partial(launch_requests.get, request_id=record.id))
            if current is None:
                await anyio.to_thread.run_sync(self.policy.catalogue.revoke, ident)
        await self._forget_bundles(record)

    async def _forget_bundles(self, record: LaunchRequestRecord | None = None) -> None:
        """Remove the bundle of an ended request, and all bundles that no pending request needs."""
        # All of them: the bundle of a request that is not in this list is removed.
        find = partial(launch_requests.list_newest, limit=None, states=PENDING)
        needed = {request.facts.integrity for request in await self.database.read(find)}
        integrity = "" if record is None or record.facts.registry != "mcpb" else record.facts.integrity
        await anyio.to_thread.run_sync(self._packages.forget_bundles, needed, integrity)

    async def _give_back(self, record: LaunchRequestRecord, reason: str) -> None:
        """Reopen a request whose approval could not be carried out, with the reason for the operator."""
        reason = self.vault.redact.of(record.domain_id)(reason)[:MAX_REASON]
        log.warning("the approved request %s was not carried out: %s", record.id, reason)
        target = f"{record.domain_id}/{record.server}"
        entry = Entry(record.decided_by, "mcp.install", target, AuditOutcome.REFUSED, {"request": record.id})
        await self._end(record, RequestState.OPEN, entry, reason=reason)

    async def _end(self, record: LaunchRequestRecord, state: RequestState, entry: Entry, **values: object) -> bool:
        """Change the state of an approved request and write the audit row.

        Returns False if the request was no longer approved.
        """

        def save(conn: Connection) -> bool:
            moved = launch_requests.move(conn, record.id, RequestState.APPROVED, state, **values)
            if moved:
                audit(conn, entry)
            return moved

        return await self.database.write(save, durable=True)

    # -- parts ------------------------------------------------------------------------------------------------

    @property
    def _packages(self) -> Packages:
        if self.policy.packages is None:
            raise PackageProblem("", "this process has no package folder.")
        return self.policy.packages

    def _check_new(self, proposal: LaunchProposal) -> None:
        env = dict.fromkeys(proposal.env, "x")
        match = match_line(self.policy.catalogue.entries(), proposal.command, proposal.args, env)
        if isinstance(match, CatalogueMatch):
            raise LineAllowed(match.entry.id)

    async def _look_up(self, plan: PackageLine, proposal: LaunchProposal) -> tuple[PackageLine, Facts]:
        """Return the line with the package's exact version, and the registry's facts about it."""
        if plan.package.registry == "mcpb":
            place = f"{proposal.path}.command"
            raise InvalidInput(place, "a bundle is proposed by its file: agentic-rag mcp propose DOMAIN FILE.mcpb")
        async with self.inspections:
            facts = await self._packages.inspect(plan.package)
        if not facts.programs:
            raise PackageProblem(str(plan.package), "it brings no program that could be started.")
        if not facts.integrity or (plan.package.version and facts.version != plan.package.version):
            reason = "the registry names no integrity of exactly this version, so that it can be bound to no hash."
            raise PackageProblem(str(plan.package), reason)
        return PackageLine(Package(plan.package.registry, plan.package.name, facts.version), plan.args), facts

    async def _store(self, user: User, domain_id: str, proposal: LaunchProposal, facts: Facts) -> LaunchRequestRecord:
        """Store an open request, or return the pending request for the same line.

        Raises:
            LaunchRequestsFull: the domain has `MAX_OPEN` pending requests.
            LaunchRequestChanged: another process has stored and ended the same request meanwhile.
        """
        pending = line_hash(proposal.server, proposal.command, proposal.args, proposal.env)
        plan = plan_line(proposal.command, proposal.args, proposal.env)
        rest = plan.args if isinstance(plan, PackageLine | ProgramLine) else proposal.args
        record = LaunchRequestRecord(
            id=new_id("lreq"),
            domain_id=domain_id,
            server=proposal.server,
            command=proposal.command,
            args=proposal.args,
            env=proposal.env,
            template=propose_template(rest, proposal.kinds),
            secrets=proposal.secrets,
            facts=facts,
            fingerprint=fingerprint_of(proposal.command, proposal.args, proposal.env, facts),
            pending=pending,
            state=RequestState.OPEN,
            requested_by=user.id,
            requested_at=now(),
        )
        target = f"{domain_id}/{proposal.server}"
        entry = change("mcp.request", target, request=record.id, fingerprint=record.fingerprint)

        def save(conn: Connection) -> LaunchRequestRecord:
            existing = launch_requests.of_line(conn, domain_id, pending)
            if existing is not None and (
                existing.fingerprint == record.fingerprint or existing.state is RequestState.APPROVED
            ):
                return existing
            launch_requests.withdraw_others(conn, domain_id, proposal.server, record.id)
            waiting = launch_requests.list_newest(conn, MAX_OPEN, domain_id=domain_id, states=PENDING)
            if len(waiting) >= MAX_OPEN:
                raise LaunchRequestsFull(MAX_OPEN)
            launch_requests.insert(conn, record)
            audit(conn, entry)
            return record

        try:
            return await self.database.write(save, durable=True)
        except IntegrityError as exc:  # another process stored the request first
            existing = await self.database.read(partial(launch_requests.of_line, domain_id=domain_id, pending=pending))
            if existing is None:
                raise LaunchRequestChanged("The line was asked for and decided at the same time.") from exc
            return existing

    async def _move(
        self, record: LaunchRequestRecord, state: RequestState, entry: Entry, **values: object
    ) -> LaunchRequestRecord:
        """Change the state of an open request and write the audit row."""

        def save(conn: Connection) -> LaunchRequestRecord | None:
            if launch_requests.move(conn, record.id, RequestState.OPEN, state, **values):
                audit(conn, entry)
                return launch_requests.get(conn, record.id)
            return None

        moved = await self.database.write(save, durable=True)
        if moved is None:
            raise LaunchRequestClosed((await self.get(record.id)).state)
        return moved

    async def _places(self, record: LaunchRequestRecord) -> dict[str, str]:
        """Return the paths of a program's files, which must be unchanged since they were shown. Empty for a package.

        Raises:
            LaunchRequestChanged: the files have changed.
        """
        if record.facts.registry:
            return {}
        plan = plan_line(record.command, record.args, record.env)
        assert isinstance(plan, ProgramLine)
        path = f"mcpServers.{record.server}"
        try:
            result = await self.threads.read(record.domain_id, partial(self.policy.local.find, plan, path))
        except (AgenticRagError, OSError) as exc:
            raise LaunchRequestChanged(str(exc)) from exc
        if not result.facts.same_content(record.facts):
            raise LaunchRequestChanged("Its files are not those that were requested.")
        return result.places

    def _table(self, record: LaunchRequestRecord, grant: LaunchGrant, places: dict[str, str]) -> dict[str, object]:
        ident = f"{fit_name(record.facts.name) or 'server'}-{record.id[-8:]}"
        return make_table(ident, record.command, record.env, record.facts, grant, places)


def make_launch_requests(
    directory: Directory, database: Database, vault: Vault, policy: LaunchPolicy, threads: DomainThreads
) -> LaunchRequests:
    """Return the requests of all domains, with an empty queue."""
    inspections, uploads = anyio.CapacityLimiter(INSPECTIONS), anyio.CapacityLimiter(UPLOADS)
    return LaunchRequests(directory, database, vault, policy, threads, Queue(), inspections, uploads)


def _pin(proposal: LaunchProposal, plan: PackageLine) -> LaunchProposal:
    """Return the proposal with the exact package version."""
    args = (*plan.package.line[1:], *plan.args)
    return LaunchProposal(proposal.server, proposal.command, args, proposal.env, proposal.secrets, proposal.kinds)


def _package(facts: Facts) -> Package:
    registry: Registry = "npm" if facts.registry == "npm" else "pypi" if facts.registry == "pypi" else "mcpb"
    return Package(registry, facts.name, facts.version, "", facts.integrity)


def _fingerprint(record: LaunchRequestRecord) -> str:
    return fingerprint_of(record.command, record.args, record.env, record.facts)


def _check_slots(grant: LaunchGrant) -> None:
    """Refuse a text that looks like a slot but is none, because it would match only itself."""
    for index, text in enumerate(grant.args):
        value: str = text.partition("=")[2] if text.startswith("-") and "=" in text else text
        if value.startswith("{") and value.rstrip("?*.") not in SLOTS:
            raise InvalidInput(f"args.{index}", f"{value!r} is no slot; slots are {', '.join(SLOTS)}.")
