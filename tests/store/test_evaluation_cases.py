"""Evaluation cases that several servers change at once, on each database."""

from pathlib import Path

import anyio

from agentic_rag.base.errors import InvalidInput, VersionConflict
from agentic_rag.base.redaction import Redactor
from agentic_rag.directory.cases import CaseForm
from agentic_rag.directory.directory import Directory
from agentic_rag.domains.vault import Vault
from agentic_rag.evaluation.cases import Cases
from agentic_rag.store import domains
from agentic_rag.store.clock import now
from agentic_rag.store.database import Database
from agentic_rag.store.domains import DomainRecord

DOMAIN = "dom_cases"
ROUNDS = 10


def make_form(number: int, answer: str) -> CaseForm:
    return CaseForm.model_validate({"questions": [f"Question {number}?"], "expect": {"contains": [answer]}})


async def make_cases(database: Database, folder: Path) -> Cases:
    domain = DomainRecord(
        id=DOMAIN, name="Cases", settings={}, workspace=str(folder), created_at=now(), updated_at=now()
    )
    await database.write(lambda conn: domains.insert(conn, domain))
    return Cases(database, Directory(database), await Vault.open(database, folder, None, Redactor()))


async def test_one_of_two_changes_from_the_same_version_is_refused(database: Database, tmp_path: Path) -> None:
    cases = await make_cases(database, tmp_path)
    for number in range(ROUNDS):
        case = await cases.create(DOMAIN, make_form(number, "one"))
        refusals: list[VersionConflict] = []

        async def change(answer: str, number: int = number, case_id: str = case.id) -> None:
            try:
                await cases.update(DOMAIN, case_id, make_form(number, answer), None, version=1)
            except VersionConflict as exc:
                refusals.append(exc)  # noqa: B023

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(change, "two")
            tasks.start_soon(change, "three")
        assert len(refusals) == 1
        assert (await cases.get(DOMAIN, case.id)).version == 2


async def test_one_of_two_new_cases_with_the_same_questions_is_refused(database: Database, tmp_path: Path) -> None:
    cases = await make_cases(database, tmp_path)
    refusals: list[InvalidInput] = []

    async def create(number: int) -> None:
        try:
            await cases.create(DOMAIN, make_form(number, "one"))
        except InvalidInput as exc:
            refusals.append(exc)

    for number in range(ROUNDS):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(create, number)
            tasks.start_soon(create, number)
    assert len(refusals) == ROUNDS
    assert len(await cases.list_of(DOMAIN)) == ROUNDS
