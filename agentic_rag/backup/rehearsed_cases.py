"""The retrieval tier of an upgrade's rehearsal: judge the cases of all domains on a copy indexed by this version.

The copy is a whole backup in a temporary folder of the backups folder. Only its documents are read and its index is
built: no turn, schedule or notification of the copy runs. The verdicts are compared with the newest search run of each
domain, which the version before made.
"""

import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial

import anyio
import anyio.to_thread

from agentic_rag.backup.backups_folder import FOLDER
from agentic_rag.backup.contents import BackupOptions
from agentic_rag.backup.making import make_backup
from agentic_rag.backup.restoring import Plan, restore
from agentic_rag.base.settings import Settings
from agentic_rag.base.threads import DomainThreads
from agentic_rag.directory.directory import Directory
from agentic_rag.documents.knowledge import Knowledge, open_knowledge
from agentic_rag.domains.case_records import expectations_of
from agentic_rag.evaluation.decisions import Comparison, compare_runs
from agentic_rag.evaluation.retrieval import RetrievalTier, RunSubject, view_documents
from agentic_rag.evaluation.runs import AT_ONCE, summaries_of
from agentic_rag.evaluation.verdicts import CaseOutcome, ResultSummary, summarise
from agentic_rag.store import documents, domains, evaluation
from agentic_rag.store.database import Database
from agentic_rag.store.domains import DomainRecord
from agentic_rag.store.evaluation import CaseRecord, CaseState, RunState
from agentic_rag.store.migrations import OWN, Revisions

COPY = ".agentic_rag_rehearsed_cases"
LOOK_SECONDS = 0.2
STALLED_SECONDS = 120.0
"""If embedding makes no progress for so long, the cases are judged without the missing vectors."""
RUNS_SEARCHED = 50
"""Newest search runs of a domain among which the one to compare with is searched."""


@dataclass(frozen=True, slots=True)
class RehearsedDomain:
    """The cases of a domain on the copy. ``comparison`` is None if no search run of the version before exists."""

    domain: str
    name: str
    passed: int
    cases: int
    comparison: Comparison | None
    worse: tuple[str, ...]
    """The questions of the cases that became worse."""


async def rehearse_cases(
    settings: Settings, report: Callable[[str], None], revisions: Revisions = OWN
) -> list[RehearsedDomain]:
    """Index a copy of all documents with this version, and judge the active cases of each domain by search.

    A server may run meanwhile. ``report`` receives lines of progress.

    Raises:
        BackupNotWritten, StorageError: there is not enough space for the copy.
        BackupRefused: a development version made the records.
    """
    async with _copy_data(settings, report, revisions) as copy, _open_copy(copy, revisions) as (database, knowledge):
        await _index_documents(database, knowledge, report)
        listed = await database.read(domains.list_all)
        judged = [await _judge_domain(database, knowledge, domain) for domain in listed]
        return [domain for domain in judged if domain is not None]


@asynccontextmanager
async def _copy_data(
    settings: Settings, report: Callable[[str], None], revisions: Revisions
) -> AsyncIterator[Settings]:
    """Yield the settings of a copy of the data folder, with a separate SQLite file and index."""
    folder = settings.data / FOLDER / COPY
    await anyio.to_thread.run_sync(partial(shutil.rmtree, folder, ignore_errors=True))
    await anyio.to_thread.run_sync(partial(folder.parent.mkdir, mode=0o700, exist_ok=True))
    await anyio.to_thread.run_sync(partial(folder.mkdir, mode=0o700))
    try:
        report("copying the data")
        backup, data = folder / "all.tar.zst", folder / "data"
        await make_backup(settings.database, settings.data, backup, BackupOptions())
        await restore(Plan(backup, data, data / "agentic-rag.db", end_turns=True, revisions=revisions))
        await anyio.to_thread.run_sync(backup.unlink)
        elsewhere = {"data": data, "local": None, "database_url": "", "qdrant_url": None, "fetch_model": "never"}
        yield settings.model_copy(update=elsewhere)
    finally:
        with anyio.CancelScope(shield=True):
            await anyio.to_thread.run_sync(partial(shutil.rmtree, folder, ignore_errors=True))


@asynccontextmanager
async def _open_copy(copy: Settings, revisions: Revisions) -> AsyncIterator[tuple[Database, Knowledge]]:
    database = await Database.open(copy.database, revisions)
    try:
        async with open_knowledge(copy, database, Directory(database), DomainThreads()) as knowledge:
            await knowledge.resume()
            await knowledge.begin()
            yield database, knowledge
    finally:
        await database.aclose()


async def _index_documents(database: Database, knowledge: Knowledge, report: Callable[[str], None]) -> None:
    """Wait until all documents of the copy are indexed, by words and by meaning."""
    last_count = -1
    while unfinished := await database.read(documents.list_unfinished):
        if len(unfinished) != last_count:
            last_count = len(unfinished)
            report(f"indexing: {last_count} documents left")
        await anyio.sleep(LOOK_SECONDS)
    embedded, since = -1, anyio.current_time()
    while knowledge.embedding.usable and (pending := await database.read(documents.pending_dense)):
        if len(pending) != embedded:
            embedded, since = len(pending), anyio.current_time()
            report(f"embedding: {embedded} documents left")
        if anyio.current_time() - since > STALLED_SECONDS:
            report(f"the embedder does not answer: {embedded} documents are searched by words only")
            return
        await anyio.sleep(LOOK_SECONDS)


async def _judge_domain(database: Database, knowledge: Knowledge, domain: DomainRecord) -> RehearsedDomain | None:
    """Judge the active cases of a domain; return None if it has none."""
    cases = await database.read(lambda conn: evaluation.list_cases(conn, domain.id, state=CaseState.ACTIVE))
    if not cases:
        return None
    settings = await knowledge.workshop.directory.settings(domain.id)
    subject, view = RunSubject(domain.settings), await view_documents(database, domain.id, ())
    tier, limiter = RetrievalTier(knowledge.search, knowledge.index), anyio.CapacityLimiter(AT_ONCE)
    after: dict[str, ResultSummary] = {}

    async def judge(case: CaseRecord) -> None:
        async with limiter:
            expect = expectations_of(case)
            verdict, _ = await tier.judge(domain.id, settings, subject, view, case.questions, expect)
            after[case.id] = summarise([(verdict.outcome, verdict.rank, verdict.reason)])

    async with anyio.create_task_group() as tasks:
        for case in cases:
            tasks.start_soon(judge, case)
    before = await _find_results_before(database, domain.id, {case.id: case.version for case in cases})
    comparison = compare_runs(before, after, varies=False) if before else None
    questions = {case.id: case.questions[-1] for case in cases}
    worse = tuple(questions[change.case_id] for change in comparison.worse) if comparison else ()
    passed = sum(summary.outcome is CaseOutcome.PASSED for summary in after.values())
    checked = sum(summary.outcome is not CaseOutcome.UNCHECKED for summary in after.values())
    return RehearsedDomain(domain.id, domain.name, passed, checked, comparison, worse)


async def _find_results_before(
    database: Database, domain_id: str, versions: dict[str, int]
) -> dict[str, ResultSummary]:
    """Return the results of the newest complete search run of the unchanged domain, for unchanged cases."""
    runs = await database.read(lambda conn: evaluation.list_runs(conn, domain_id, RUNS_SEARCHED, "retrieval"))
    for run in runs:
        if run.state is RunState.DONE and not run.draft_id:
            results = await database.read(partial(evaluation.results_of, run_id=run.id))
            return summaries_of([result for result in results if versions.get(result.case_id) == result.case_version])
    return {}
