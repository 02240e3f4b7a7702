"""Importing a bundle as a new domain or over an existing one, atomically even if the process dies.

A new domain's workspace is built in a temporary folder. A row records the import in progress, and the folder is moved
into place. The transaction that stores the domain also deletes the row. Over an existing domain, one transaction stores
the settings and such a row; the files follow by renames. At the next start, `finish` undoes an import of the first kind
and completes one of the second kind. No command line of an entry is run during an import. Entries that this server does
not permit are imported as disabled.
"""

import logging
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import anyio
import anyio.to_thread
from sqlalchemy import Connection

from agentic_rag.access.auditing import audit, change
from agentic_rag.access.users import User
from agentic_rag.base import failpoints
from agentic_rag.base.bundle_errors import BundleBindsSecrets
from agentic_rag.base.errors import CommandNotAllowed, QuotaExceeded, StorageUnavailable
from agentic_rag.base.json_form import Json
from agentic_rag.base.threads import DomainThreads
from agentic_rag.bundles.entries import needed_secrets, new_bindings
from agentic_rag.bundles.form import DOCUMENTS, ROLES
from agentic_rag.bundles.overlay import Overlay, change_of, give_own_names, overlay_of
from agentic_rag.bundles.pending import PendingImports
from agentic_rag.bundles.placing import (
    Owners,
    build_workspace,
    check_memories,
    check_places,
    import_memories,
    move_folder,
    write_expected,
)
from agentic_rag.bundles.reading import DescribedDomain, fit_settings, read_described
from agentic_rag.bundles.receiving import Received, Reception
from agentic_rag.bundles.report import (
    KIND_OF,
    Action,
    AskedSecret,
    Difference,
    ImportReport,
    SecretState,
    WithheldServer,
    compare_records,
    cut,
)
from agentic_rag.directory.cases import CaseForm, digest_of
from agentic_rag.directory.directory import Directory
from agentic_rag.directory.document_labels import LabelRules, distinct
from agentic_rag.directory.settings import DomainSettings
from agentic_rag.domains.case_records import form_of, merge_cases, store_cases
from agentic_rag.domains.domains import DomainDraft, Domains
from agentic_rag.domains.file_history import FileHistory
from agentic_rag.domains.notification_records import BundledNotifications, merge_notifications, notifications_to_add
from agentic_rag.domains.vault import Vault
from agentic_rag.roles.roles import Roles
from agentic_rag.store import context_lines, documents, evaluation, imports
from agentic_rag.store.clock import new_id, now
from agentic_rag.store.database import Database
from agentic_rag.store.documents import DocumentRecord
from agentic_rag.store.evaluation import CaseOrigin
from agentic_rag.store.imports import ImportRecord
from agentic_rag.tools.entries.reading import Note
from mcp_servers.promptx.rolefiles import RESOURCE_FOLDER

log = logging.getLogger(__name__)

ROLE = ".role.md"


@dataclass(frozen=True, slots=True)
class ImportOptions:
    """The admin's options of an import.

    ``dry_run``: nothing is changed. ``name``: the name of a new domain, None: the bundle's. ``remove_others``: remove
    the domain's items that the bundle lacks. ``bind``: servers that may receive the domain's secrets.
    """

    dry_run: bool = False
    name: str | None = None
    remove_others: bool = False
    bind: frozenset[str] = frozenset()


class Imports:
    """Imports bundles.

    An import has four steps: `Reception` receives and checks the bundle in a separate folder, the report is written (a
    dry run ends here), the files are placed, and one transaction stores the records.

    Invariants:

    - A row in `imports` exists while files are placed. After a kill, `finish` reads the row and either removes the
      files or completes the import. A reader of the domain sees the state before or after, never a part.
    - A bundle starts no program and brings no secret. ``bind`` names the servers that may get the domain's secrets.

    ``owners`` choose the owner of each imported memory, ``pending`` finishes the imports that were cut off, and
    ``max_bytes`` is the maximum size of a bundle in bytes.
    """

    def __init__(
        self,
        database: Database,
        directory: Directory,
        domains: Domains,
        roles: Roles,
        vault: Vault,
        history: FileHistory,
        threads: DomainThreads,
        reception: Reception,
        owners: Owners,
        pending: PendingImports,
    ) -> None:
        self._db = database
        self._directory = directory
        self._domains = domains
        self._roles = roles
        self._vault = vault
        self._history = history
        self._threads = threads
        self._reception = reception
        self.max_bytes = reception.max_bytes
        self._owners = owners
        self._pending = pending

    # -- a new domain -----------------------------------------------------------------------------------------

    async def create(self, user: User, chunks: AsyncIterator[bytes], options: ImportOptions) -> ImportReport:
        """Create a domain from a bundle.

        Raises:
            BundleRefused, BundleTooNew, InvalidInput, ServerReserved: the bundle cannot be used; the error gives the
                reason.
            QuotaExceeded, DocumentTooLarge, StorageFull: the bundle exceeds a limit or the free space.
        """
        async with self._reception.receive(chunks) as received:
            described = await anyio.to_thread.run_sync(read_described, received.files)
            await self._check_documents(received, {}, None)
            domain_id = new_id("dom")
            built = received.folder / "workspace"
            await anyio.to_thread.run_sync(build_workspace, received.files, built)
            withheld: dict[str, CommandNotAllowed] = {}

            async def attempt(settings: Json) -> DomainDraft:
                return await self._domains.draft(
                    domain_id,
                    options.name or described.name,
                    described.description,
                    {**settings, "mcpServers": described.documents},
                    roles_in=built,
                    withheld=withheld,
                )

            draft, notes = await fit_settings(described.settings, attempt)
            assert isinstance(draft, DomainDraft)
            owner = self._owners.of(user.id, draft.change.settings)
            await anyio.to_thread.run_sync(import_memories, received.files, built, owner)
            cases = [Difference("case", _title_of(case), "add") for case in described.cases]
            notifications = await self._notifications_to_add(domain_id, described)
            differences = [
                *compare_records(None, draft.record),
                *_additions(received),
                *cases,
                *_new_notifications(notifications),
            ]
            if not options.dry_run:
                await self._place_new(user, received, draft, described)
            change_notes = [
                *notes,
                *described.case_notes,
                *notifications.notes,
                *await self._findings(built if options.dry_run else Path(draft.record.workspace)),
            ]
            return self._report(
                options,
                None if options.dry_run else domain_id,
                draft,
                differences,
                change_notes,
                withheld,
                frozenset(),
                (),
            )

    async def _place_new(self, user: User, received: Received, draft: DomainDraft, described: DescribedDomain) -> None:
        """Move the workspace into place, then store the domain; after a crash between the two, the move is undone."""
        domain_id = draft.record.id
        pending_import = ImportRecord(id=received.id, domain_id=domain_id, user_id=user.id, begun_at=now())
        async with self._history.changing(domain_id) as notice:
            await self._store_new(received, draft, pending_import, described)
            failpoints.reached("bundle.stored")
            await self._pending.attribute(pending_import, notice)
        await self._pending.add_documents(domain_id)

    async def _store_new(
        self, received: Received, draft: DomainDraft, pending_import: ImportRecord, described: DescribedDomain
    ) -> None:
        """Move the files into place, then store the domain, which commits the import.

        ``pending_import`` is stored first. After a kill, the next start finds its row without a domain and removes the
        files (`PendingImports.finish`).
        """
        domain_id, user_id = pending_import.domain_id, pending_import.user_id
        redaction = self._vault.redact.of(domain_id)
        audit_entry = change("domain.import", domain_id, files=len(received.manifest.files))
        labelled, lines = expected_labels(received, described, draft), expected_lines(received, described, draft)

        def end(conn: Connection) -> None:
            imports.delete(conn, pending_import.id)
            audit(conn, audit_entry)
            merge_cases(conn, domain_id, described.cases, CaseOrigin.BUNDLE, user_id, redaction)
            for labels in labelled:
                documents.expect_labels(conn, labels)
            context_lines.put(conn, lines)
            merge_notifications(conn, domain_id, described.notifications, user_id)

        target, storing = Path(draft.record.workspace), False
        try:
            with anyio.CancelScope(shield=True):
                await self._db.write(lambda conn: imports.insert(conn, pending_import), durable=True)
            failpoints.reached("bundle.begun")
            await anyio.to_thread.run_sync(move_folder, received.folder / "workspace", target)
            failpoints.reached("bundle.placed")
            storing = True
            with anyio.CancelScope(shield=True):  # the result of a commit that is cancelled would be unknown
                await self._domains.insert(draft, end)
        except BaseException as exc:
            if not (storing and _is_unknown(exc)):
                with anyio.CancelScope(shield=True):
                    await self._pending.undo(pending_import)
            raise

    # -- over a domain ----------------------------------------------------------------------------------------

    async def update(
        self, user: User, domain_id: str, chunks: AsyncIterator[bytes], options: ImportOptions
    ) -> ImportReport:
        """Import a bundle over a domain: shared items are replaced, the domain's name and its other items stay.

        Raises:
            NotFound: there is no such domain.
            BundleBindsSecrets: new or changed servers would receive secrets of the domain; nothing was changed.
            BundleRefused, BundleTooNew, InvalidInput, ServerReserved: the bundle cannot be used; the error gives the
                reason.
            QuotaExceeded, DocumentTooLarge, StorageFull, WorkspaceRefused: there is not enough space, or a path is
                blocked.
            VersionConflict: another process changes the domain.
        """
        await self._directory.get(domain_id)
        async with self._reception.receive(chunks) as received:
            described = await anyio.to_thread.run_sync(read_described, received.files)
            async with self._domains.changing(domain_id):
                return await self._update_domain(user, domain_id, received, described, options)

    async def _update_domain(
        self, user: User, domain_id: str, received: Received, described: DescribedDomain, options: ImportOptions
    ) -> ImportReport:
        """Compare a bundle with a domain, check all that could fail, and change the domain unless it is a dry run."""
        if not options.dry_run:
            await self._pending.complete_earlier(domain_id)
        record = await self._directory.get(domain_id)
        listed = await self._db.read(lambda conn: documents.list_of(conn, domain_id))
        rename = partial(give_own_names, received, record.workspace, [document.path for document in listed])
        received = await self._threads.run(domain_id, rename)
        secrets = await self._vault.values(domain_id)
        redaction = self._vault.redact.of(domain_id)
        work = partial(overlay_of, record, listed, received, redaction, remove_others=options.remove_others)
        overlay = await self._threads.run(domain_id, work)
        # The settings may name roles of the bundle, which are not in the workspace yet. They are checked against a
        # folder with an empty file for each role that the domain will have.
        roles_in = received.folder / "roles"
        ids = [info.id for info in await self._roles.list_of(domain_id) if info.source == "workspace"]
        await anyio.to_thread.run_sync(_lay_roles, roles_in, ids, received, overlay.removed)
        before = DomainSettings.model_validate(record.settings)
        withheld: dict[str, CommandNotAllowed] = {}

        same = described.description == redaction(record.description)
        description = None if same else described.description or None

        async def attempt(settings: Json) -> DomainDraft:
            domain_change = change_of(before, described, settings, redaction, remove_others=options.remove_others)
            return await self._domains.draft_change(
                domain_id, None, description, domain_change, False, roles_in=roles_in, withheld=withheld
            )

        draft, notes = await fit_settings(described.settings, attempt)
        assert isinstance(draft, DomainDraft)
        bindings = [
            binding
            for binding in new_bindings(before, draft.change.settings, secrets.keys())
            if binding.server not in options.bind
        ]
        if bindings and not options.dry_run:
            raise BundleBindsSecrets(tuple(binding.to_json() for binding in bindings))
        await self._check_documents(received, overlay.documents, domain_id, overlay.removed, overlay.same)
        cases = await self._compare_cases(domain_id, described, remove_others=options.remove_others)
        notifications = await self._notifications_to_add(domain_id, described)
        differences = [
            *compare_records(record, draft.record),
            *overlay.differences,
            *cases,
            *_new_notifications(notifications),
        ]
        owner = self._owners.of(user.id, draft.change.settings)
        await self._threads.run(domain_id, check_memories, received.files, Path(record.workspace), owner)
        if not options.dry_run:
            notes += await self._store_update(
                user, received, draft, overlay, described, remove_cases=options.remove_others
            )
        notes += [*described.case_notes, *notifications.notes]
        confirm = [(binding.server, name) for binding in bindings for name in binding.secrets]
        findings = [*notes, *await self._findings(Path(record.workspace))]
        return self._report(options, domain_id, draft, differences, findings, withheld, secrets.keys(), confirm)

    async def _notifications_to_add(self, domain_id: str, described: DescribedDomain) -> BundledNotifications:
        return await self._db.read(lambda conn: notifications_to_add(conn, domain_id, described.notifications))

    async def _compare_cases(
        self, domain_id: str, described: DescribedDomain, *, remove_others: bool
    ) -> list[Difference]:
        """Return the differences of evaluation cases, which are the same case if they ask the same questions."""
        listed = await self._db.read(lambda conn: evaluation.list_cases(conn, domain_id))
        by_digest = {case.digest: case for case in listed}
        differences: list[Difference] = []
        for form in described.cases:
            before = by_digest.pop(digest_of(form.questions), None)
            if before is None:
                differences.append(Difference("case", _title_of(form), "add"))
            elif (before.expect, before.note) != (form.expect.to_json(), form.note):
                after = form.expect.to_json()
                differences.append(Difference("case", _title_of(form), "change", before=before.expect, after=after))
        unmatched = [case for case in by_digest.values() if case.state is evaluation.CaseState.ACTIVE]
        action: Action = "remove" if remove_others else "keep"
        return [*differences, *(Difference("case", _title_of(form_of(case)), action) for case in unmatched)]

    async def _store_update(
        self,
        user: User,
        received: Received,
        draft: DomainDraft,
        overlay: Overlay,
        described: DescribedDomain,
        *,
        remove_cases: bool,
    ) -> list[Note]:
        """Store the settings, which commits the import, then move the files into place.

        Returns notes about the parts that were left out.
        """
        record = draft.record
        paths = [file.path for file in received.manifest.files if file.path not in overlay.same]
        await self._threads.run(record.id, check_places, Path(record.workspace), paths)
        await anyio.to_thread.run_sync(_drop_files, received.files, overlay.same)
        await anyio.to_thread.run_sync(write_expected, received.folder, overlay.expected)
        pending_import = ImportRecord(
            id=received.id, domain_id=record.id, user_id=user.id, removed=overlay.removed, begun_at=now()
        )
        audit_entry = change("domain.import", record.id, over=True, files=len(paths), removed=len(overlay.removed))
        labelled, lines = expected_labels(received, described, draft), expected_lines(received, described, draft)
        paths_by_sha = {file.sha256: file.path for file in received.manifest.files if file.path.startswith(DOCUMENTS)}
        redaction = self._vault.redact.of(record.id)

        def begin(conn: Connection) -> None:
            imports.insert(conn, pending_import)
            audit(conn, audit_entry)
            for labels in labelled:
                documents.expect_labels(conn, labels)
                before = overlay.documents.get(paths_by_sha[labels.sha256])
                if before is not None:  # the file will be replaced before the record gets the new bytes
                    documents.add_labels(conn, before.id, labels.labels)
            merge_cases(conn, record.id, described.cases, CaseOrigin.BUNDLE, user.id, redaction)
            merge_notifications(conn, record.id, described.notifications, user.id)
            context_lines.put(conn, lines)
            documents.unmark_joined(conn, record.id)  # also documents with the same bytes take their lines
            if remove_cases:
                digests = {digest_of(case.questions) for case in described.cases}
                # A bundle has active cases only, so the absence of a draft says nothing.
                active = evaluation.list_cases(conn, record.id, state=evaluation.CaseState.ACTIVE)
                removed = [case for case in active if case.digest not in digests]
                store_cases(conn, [(case, None) for case in removed], user.id, redaction)

        notes: list[Note] = []
        storing = is_stored = False
        self._pending.busy.add(pending_import.id)
        try:
            await anyio.to_thread.run_sync(move_folder, received.folder, self._pending.folder_of(received.id))
            failpoints.reached("bundle.begun")
            storing = True
            with anyio.CancelScope(shield=True):  # the import is committed: a client that disconnects must not stop it
                await self._domains.store_change(draft, begin)
                is_stored = True
                failpoints.reached("bundle.stored")
                notes += await self._pending.complete(pending_import)
        except BaseException as exc:
            if not is_stored and not (storing and _is_unknown(exc)):
                with anyio.CancelScope(shield=True):
                    await self._pending.remove_unstored(pending_import)
            raise
        finally:
            self._pending.busy.discard(pending_import.id)
        return notes

    # -- imports in progress ----------------------------------------------------------------------------------

    async def finish(self) -> None:
        """Complete or undo the imports of an earlier process, and remove its temporary files."""
        await self._pending.finish()

    async def resume(self) -> None:
        """Resume imports over domains that could not be completed when they were stored, because the disk was full."""
        await self._pending.resume()

    # -- parts ------------------------------------------------------------------------------------------------

    async def _check_documents(
        self,
        received: Received,
        documents_by_path: Mapping[str, DocumentRecord],
        domain_id: str | None,
        removed: Sequence[str] = (),
        same: Collection[str] = (),
    ) -> None:
        """Reject more documents than the domain may hold, before anything is changed.

        Raises:
            QuotaExceeded: there are too many documents, or they are too large together.
        """
        more, size = 0, 0
        for file in received.manifest.files:
            if file.path.startswith(DOCUMENTS) and file.path not in same:
                before = documents_by_path.get(file.path)
                more += before is None
                size += file.size - (0 if before is None else before.size)
        replaced = [documents_by_path[path] for path in removed if path in documents_by_path]
        more, size = more - len(replaced), size - sum(document.size for document in replaced)
        quotas = self._directory.quotas
        if domain_id is None:
            for noun, count in (("documents", more), ("document_bytes", size)):
                limit: int = getattr(quotas.limits, noun)
                if count > limit:
                    raise QuotaExceeded(noun.replace("_", " "), limit, f"AGENTIC_RAG_QUOTA_{noun.upper()}")
        elif more > 0 or size > 0:
            await self._db.read(lambda conn: quotas.check_more_documents(conn, domain_id, max(0, more), max(0, size)))

    async def _findings(self, workspace: Path) -> list[Note]:
        """Return the errors in the roles and skills of a workspace; these files are imported unchanged nevertheless."""
        findings = await self._roles.check_workspace(workspace)
        return [
            Note(f"{finding.file}:{finding.line}", finding.message)
            for finding in findings
            if finding.severity == "error"
        ]

    def _report(
        self,
        options: ImportOptions,
        domain_id: str | None,
        draft: DomainDraft,
        differences: Sequence[Difference],
        findings: Sequence[Note],
        withheld: Mapping[str, CommandNotAllowed],
        secret_names: Collection[str],
        confirm: Sequence[tuple[str, str]],
    ) -> ImportReport:
        settings = draft.change.settings
        first_differences, more = cut(differences)
        asked_secrets = [
            AskedSecret(secret.name, secret.server, _state(secret.server, secret.name, secret_names, confirm))
            for secret in needed_secrets(settings.mcp_servers.values(), settings.variables)
        ]
        place = f"/api/domains/{domain_id or draft.record.id}/mcp-servers"
        withheld_servers = [
            WithheldServer(name, f"{exc.path}: {exc.reason}", exc.allow, f"{place}/{name}/request")
            for name, exc in sorted(withheld.items())
        ]
        notes = (*findings, *draft.change.changes, *draft.change.warnings, *draft.advice)
        return ImportReport(
            options.dry_run,
            domain_id,
            draft.record.name,
            first_differences,
            more,
            tuple(notes),
            tuple(asked_secrets),
            tuple(withheld_servers),
        )


def _state(server: str, name: str, secret_names: Collection[str], confirm: Collection[tuple[str, str]]) -> SecretState:
    if (server, name) in confirm:
        return "confirm"
    return "set" if name in secret_names else "missing"


def expected_labels(
    received: Received, described: DescribedDomain, draft: DomainDraft
) -> list[documents.ExpectedLabelsRecord]:
    """Return the labels and dates of a bundle's documents, to be stored before their files appear in the workspace.

    A folder rule of the bundle may be missing in the stored settings, because this domain did not accept it. The
    documents then get the rule's labels as their own: otherwise the import would make them visible to everyone.
    """
    bundle_rules, domain_rules = (
        LabelRules.of_settings(described.settings),
        LabelRules.of_settings(draft.record.settings),
    )
    by_sha: dict[str, documents.ExpectedLabelsRecord] = {}
    for file in received.manifest.files:
        if not file.path.startswith(DOCUMENTS):
            continue
        path = file.path.removeprefix(DOCUMENTS)
        labels = {*(file.labels or ()), *(bundle_rules.labels_of(path) - domain_rules.labels_of(path))}
        if file.sha256 in by_sha:
            labels |= {*by_sha[file.sha256].labels}
        if labels or file.date or file.review:
            by_sha[file.sha256] = documents.ExpectedLabelsRecord(
                domain_id=draft.record.id,
                sha256=file.sha256,
                labels=distinct(labels),
                own_date=file.date,
                review_by=file.review,
            )
    return list(by_sha.values())


def expected_lines(
    received: Received, described: DescribedDomain, draft: DomainDraft
) -> list[context_lines.ContextLineRecord]:
    """Return the context lines of a bundle's documents, to be adopted by the documents with the same bytes."""
    documents_of_bundle = {file.sha256 for file in received.manifest.files if file.path.startswith(DOCUMENTS)}
    return [
        context_lines.ContextLineRecord(
            document_id=context_lines.imported_id(draft.record.id, line.sha256),
            digest=line.digest,
            model=line.model,
            domain_id=draft.record.id,
            line=line.line,
            updated_at=now(),
        )
        for line in described.lines
        if line.sha256 in documents_of_bundle
    ]


def _is_unknown(exc: BaseException) -> bool:
    """Return whether a commit with this error may have succeeded; the next start then checks its result."""
    return isinstance(exc, (StorageUnavailable, anyio.get_cancelled_exc_class()))


def _new_notifications(added: BundledNotifications) -> list[Difference]:
    """Return the differences that the added endpoints, schedules and sources make."""
    return [
        *(Difference("endpoint", endpoint.name, "add") for endpoint in added.endpoints),
        *(Difference("schedule", schedule.name, "add") for schedule in added.schedules),
        *(Difference("source", source.name, "add") for source in added.sources),
    ]


def _title_of(case: CaseForm) -> str:
    """Return the last question of a case, cut, to name the case in a report."""
    return case.questions[-1][:200]


def _additions(received: Received) -> list[Difference]:
    """Return the files that a new domain gets in addition to its settings."""
    additions = []
    for file in received.manifest.files:
        folder, _, name = file.path.partition("/")
        if name:
            kind = KIND_OF[f"{folder}/"]
            additions.append(Difference(kind, name, "add", after={"size": file.size, "sha256": file.sha256}))
    return additions


def _lay_roles(folder: Path, ids: Sequence[str], received: Received, removed: Sequence[str]) -> None:
    """Create a workspace with empty files for the roles that the domain will have."""
    removed_roles = {path.rpartition("/")[2].removesuffix(ROLE) for path in removed if path.endswith(ROLE)}
    bundled_roles = {
        file.path.rpartition("/")[2].removesuffix(ROLE)
        for file in received.manifest.files
        if file.path.startswith(ROLES) and file.path.endswith(ROLE)
    }
    place = folder / RESOURCE_FOLDER
    place.mkdir(parents=True)
    for role in (set(ids) - removed_roles) | bundled_roles:
        (place / f"{role}{ROLE}").touch()


def _drop_files(files: Path, same: Collection[str]) -> None:
    for path in same:
        (files / path).unlink(missing_ok=True)
