"""The cases of all domains: create, change, import, export and delete them, each change with its history.

Callers have checked the user's rights.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from sqlalchemy import Connection

from agentic_rag.access.auditing import audit, change
from agentic_rag.access.users import acting
from agentic_rag.base.errors import InvalidInput, NotFound, VersionConflict
from agentic_rag.base.forms import read_form
from agentic_rag.base.json_form import Json
from agentic_rag.directory.cases import CaseForm, CsvCases, read_csv, write_csv
from agentic_rag.directory.directory import Directory
from agentic_rag.domains.case_records import (
    check_distinct,
    check_new,
    form_of,
    merge_cases,
    new_case,
    store_cases,
    with_form,
)
from agentic_rag.domains.vault import Vault
from agentic_rag.store import domains, evaluation
from agentic_rag.store.clock import now
from agentic_rag.store.database import Database
from agentic_rag.store.evaluation import CaseOrigin, CaseRecord, CaseState, ResultRecord


@dataclass(frozen=True, slots=True)
class CaseLine:
    """A case with its newest results, by tier."""

    record: CaseRecord
    last: Mapping[str, ResultRecord]


@dataclass(frozen=True, slots=True)
class CaseImport:
    """The result of an import of several cases."""

    added: int
    changed: int
    same: int
    problems: tuple[InvalidInput, ...]


class Cases:
    """The cases of all domains. Each method raises `NotFound` for an unknown domain.

    Each change locks the domain's row first. Otherwise two servers could pass the checks of version, number and
    questions at the same time.
    """

    def __init__(self, database: Database, directory: Directory, vault: Vault) -> None:
        self._db = database
        self._directory = directory
        self._vault = vault

    async def list_of(self, domain_id: str, state: CaseState | None = None) -> list[CaseLine]:
        """Return the cases of a domain, oldest first."""
        await self._directory.get(domain_id)

        def read(conn: Connection) -> list[CaseLine]:
            last = {
                tier: {result.case_id: result for result in evaluation.last_results(conn, domain_id, tier)}
                for tier in ("retrieval", "answers")
            }
            return [
                CaseLine(case, {tier: results[case.id] for tier, results in last.items() if case.id in results})
                for case in evaluation.list_cases(conn, domain_id, state=state)
            ]

        return await self._db.read(read)

    async def get(self, domain_id: str, case_id: str) -> CaseRecord:
        """Return a case.

        Raises:
            NotFound: the domain has no such case.
        """
        await self._directory.get(domain_id)
        case = await self._db.read(lambda conn: evaluation.get_case(conn, domain_id, case_id))
        if case is None:
            raise NotFound("case", case_id)
        return case

    async def counts(self, domain_id: str) -> dict[CaseState, int]:
        """Return the number of cases by state."""
        return await self._db.read(lambda conn: evaluation.count_cases(conn, domain_id))

    async def create(
        self,
        domain_id: str,
        form: CaseForm,
        *,
        origin: CaseOrigin = CaseOrigin.HAND,
        state: CaseState = CaseState.ACTIVE,
        source: Json | None = None,
    ) -> CaseRecord:
        """Create a case.

        Raises:
            InvalidInput: another case of the domain asks the same, or there are too many.
        """
        await self._directory.get(domain_id)
        record = new_case(domain_id, form, origin, acting().user_id, state=state, source=source)
        redaction = self._vault.redact.of(domain_id)
        entry, author = change("case.create", f"{domain_id}/{record.id}", origin=origin.value), acting().user_id

        def store(conn: Connection) -> None:
            domains.lock(conn, domain_id)
            check_new(conn, record)
            store_cases(conn, [(None, record)], author, redaction)
            audit(conn, entry)

        await self._db.write(store, durable=True)
        return record

    async def update(
        self, domain_id: str, case_id: str, form: CaseForm | None, state: CaseState | None, version: int | None = None
    ) -> CaseRecord:
        """Change a case. A draft becomes active when an admin confirms it with expectations.

        Raises:
            NotFound: the domain has no such case.
            InvalidInput: another case asks the same, or a case without expectations would become active.
            VersionConflict: ``version`` is given and not the current one.
        """
        await self._directory.get(domain_id)
        redaction = self._vault.redact.of(domain_id)
        entry, author = change("case.update", f"{domain_id}/{case_id}"), acting().user_id

        def store(conn: Connection) -> CaseRecord:
            domains.lock(conn, domain_id)
            before = evaluation.get_case(conn, domain_id, case_id)
            if before is None:
                raise NotFound("case", case_id)
            if version is not None and version != before.version:
                raise VersionConflict(version, before.version)
            after = before if form is None else with_form(before, form)
            # The version also grows if only the state changes, so that another admin's stale form is refused.
            after = after.replace(state=state or after.state, version=before.version + 1, updated_at=now())
            if after.state is CaseState.ACTIVE and not after.expect:
                raise InvalidInput("expect", "say what the answer must cite or contain before the case is active.")
            check_distinct(conn, after)
            store_cases(conn, [(before, after)], author, redaction)
            audit(conn, entry)
            return after

        return await self._db.write(store, durable=True)

    async def delete(self, domain_id: str, case_id: str) -> None:
        """Delete a case. Its results in earlier runs stay.

        Raises:
            NotFound: the domain has no such case.
        """
        await self._directory.get(domain_id)
        redaction = self._vault.redact.of(domain_id)
        entry, author = change("case.delete", f"{domain_id}/{case_id}"), acting().user_id

        def store(conn: Connection) -> None:
            domains.lock(conn, domain_id)
            before = evaluation.get_case(conn, domain_id, case_id)
            if before is None:
                raise NotFound("case", case_id)
            store_cases(conn, [(before, None)], author, redaction)
            audit(conn, entry)

        await self._db.write(store, durable=True)

    async def put_back(self, domain_id: str, case_id: str, document: Json | None) -> None:
        """Restore a case from a document of its history; None deletes the case.

        Raises:
            InvalidInput: the document is no longer a valid case, or another case has the same questions.
        """
        redaction = self._vault.redact.of(domain_id)
        form, author = None if document is None else read_form(CaseForm, document, "case"), acting().user_id

        def store(conn: Connection) -> None:
            domains.lock(conn, domain_id)
            before = evaluation.get_case(conn, domain_id, case_id)
            after = None
            if form is not None:
                fresh = new_case(domain_id, form, CaseOrigin.HAND, author)
                after = fresh.replace(id=case_id) if before is None else with_form(before, form)
                after = after.replace(state=CaseState.ACTIVE, version=after.version + (before is not None))
                check_distinct(conn, after)
            store_cases(conn, [(before, after)], author, redaction)

        await self._db.write(store, durable=True)

    async def import_csv(self, domain_id: str, data: bytes, *, state: CaseState = CaseState.ACTIVE) -> CaseImport:
        """Add the cases of a CSV file. A case with the same questions is replaced. Bad rows are left out and listed.

        Raises:
            InvalidInput: the file is not CSV, or has a wrong column. Nothing was added.
        """
        return await self.import_all(domain_id, read_csv(data), CaseOrigin.CSV, state=state)

    async def import_all(
        self, domain_id: str, parsed: CsvCases, origin: CaseOrigin, *, state: CaseState = CaseState.ACTIVE
    ) -> CaseImport:
        """Add several cases in one transaction. A case with the same questions is replaced.

        Raises:
            InvalidInput: the domain would have too many cases. Nothing was added.
        """
        await self._directory.get(domain_id)
        redaction = self._vault.redact.of(domain_id)
        entry = change("case.import", domain_id, origin=origin.value, cases=len(parsed.cases))
        author = acting().user_id

        def store(conn: Connection) -> tuple[int, int, int]:
            domains.lock(conn, domain_id)
            result = merge_cases(conn, domain_id, parsed.cases, origin, author, redaction, state=state)
            audit(conn, entry)
            return result

        added, changed, same = await self._db.write(store, durable=True)
        return CaseImport(added, changed, same, parsed.problems)

    async def export_csv(self, domain_id: str) -> str:
        """Return all active cases as CSV."""
        lines = await self.list_of(domain_id, CaseState.ACTIVE)
        return write_csv([form_of(line.record) for line in lines])
