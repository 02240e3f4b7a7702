"""The gate of a re-index: a rebuilt collection goes live only if it does not worsen the retrieval tier's results.

The trial is stored like any other, as two runs and a draft, so that the page can compare them and an admin can apply
the re-index anyway.
"""

import logging
from collections import Counter
from dataclasses import replace

import anyio
from sqlalchemy import Connection

from agentic_rag.access.users import SYSTEM
from agentic_rag.base.errors import AgenticRagError
from agentic_rag.base.json_form import to_json
from agentic_rag.directory.directory import Directory
from agentic_rag.documents.search import DomainSearch
from agentic_rag.domains.case_records import expectations_of
from agentic_rag.evaluation.decisions import Comparison, Decision, compare_runs
from agentic_rag.evaluation.gate import decision_json
from agentic_rag.evaluation.retrieval import RetrievalTier, RunSubject, view_documents
from agentic_rag.evaluation.runs import AT_ONCE, summaries_of
from agentic_rag.evaluation.verdicts import CaseOutcome
from agentic_rag.store import evaluation
from agentic_rag.store.clock import new_id, now
from agentic_rag.store.database import Database
from agentic_rag.store.evaluation import (
    CaseRecord,
    CaseState,
    DraftRecord,
    DraftState,
    ResultRecord,
    RunRecord,
    RunState,
)

log = logging.getLogger(__name__)

NO_HELP = "the context lines made no case better"


class ReindexGate:
    """Compares the live collection of a domain with a rebuilt one."""

    def __init__(self, database: Database, directory: Directory) -> None:
        self._db = database
        self._directory = directory

    async def compares(self, domain_id: str) -> bool:
        """Return whether a rebuilt collection of a domain is compared with the live one."""
        evaluated = (await self._directory.settings(domain_id)).evaluation
        counts = await self._db.read(lambda conn: evaluation.count_cases(conn, domain_id))
        return evaluated.mode_of("reindex") != "off" and bool(counts.get(CaseState.ACTIVE))

    async def refusal(self, search: DomainSearch, domain_id: str, collection: str, *, adds_lines: bool) -> str:
        """Return the reason why the rebuilt collection must not go live, or an empty text.

        ``adds_lines``: it has context lines, and the live one has none. It is held if they make no case better.
        """
        settings = await self._directory.settings(domain_id)
        mode = settings.evaluation.mode_of("reindex")
        cases = await self._db.read(lambda conn: evaluation.list_cases(conn, domain_id, state=CaseState.ACTIVE))
        if mode == "off" or not cases:
            return ""
        present = RunSubject((await self._directory.get(domain_id)).settings)
        draft_id = new_id("draft")
        # Both collections are judged now, with the same settings and documents, so that only the index differs.
        before, old = await self._judge(search, domain_id, draft_id, "live index", present, cases)
        rebuilt = replace(present, collection=collection)
        label = "index with context lines" if adds_lines else "rebuilt index"
        after, new = await self._judge(search, domain_id, draft_id, label, rebuilt, cases)
        comparison = compare_runs(summaries_of(old), summaries_of(new), varies=False)
        if adds_lines and not comparison.better and comparison.rank_better <= comparison.rank_worse:
            reason = "; ".join(filter(None, [comparison.reason, NO_HELP]))
            comparison = replace(comparison, decision=Decision.HOLD, reason=reason)
        label = "context lines" if adds_lines else "re-index"
        await self._store(draft_id, label, before, after, [*old, *new], comparison)
        holds = comparison.decision is Decision.HOLD and mode == "hold"
        if comparison.decision is not Decision.PASS:
            log.warning("the re-index of %s: %s", domain_id, comparison.sentence)
        return comparison.sentence if holds else ""

    async def _judge(
        self,
        search: DomainSearch,
        domain_id: str,
        draft_id: str,
        label: str,
        subject: RunSubject,
        cases: list[CaseRecord],
    ) -> tuple[RunRecord, list[ResultRecord]]:
        settings = await self._directory.settings(domain_id)
        tier, view = RetrievalTier(search, search.index), await view_documents(self._db, domain_id, ())
        run_id, began, results = new_id("run"), now(), list[ResultRecord]()
        limiter = anyio.CapacityLimiter(AT_ONCE)
        failures: list[AgenticRagError] = []
        tasks = anyio.create_task_group()

        async def judge(case: CaseRecord) -> None:
            async with limiter:
                start = anyio.current_time()
                expect = expectations_of(case)
                try:
                    verdict, observed = await tier.judge(domain_id, settings, subject, view, case.questions, expect)
                except AgenticRagError as exc:  # raised again outside, so that the task group does not wrap it
                    failures.append(exc)
                    tasks.cancel_scope.cancel()
                    return
            results.append(
                ResultRecord(
                    run_id=run_id,
                    case_id=case.id,
                    repeat=0,
                    domain_id=domain_id,
                    question=case.questions[-1][:500],
                    case_version=case.version,
                    outcome=verdict.outcome.value,
                    reason=verdict.reason[:1_000],
                    rank=verdict.rank,
                    checks=[to_json(check) for check in verdict.checks],
                    observed=observed,
                    seconds=round(anyio.current_time() - start, 4),
                    at=now(),
                )
            )

        async with tasks:
            for case in cases:
                tasks.start_soon(judge, case)
        if failures:
            raise failures[0]
        counts = Counter(result.outcome for result in results)
        run = RunRecord(
            id=run_id,
            domain_id=domain_id,
            tier="retrieval",
            purpose="reindex",
            label=label,
            state=RunState.DONE,
            subject=to_json(subject),
            case_ids=[case.id for case in cases],
            done=len(results),
            passed=counts[CaseOutcome.PASSED],
            failed=counts[CaseOutcome.FAILED],
            gone=counts[CaseOutcome.GONE],
            unknown=counts[CaseOutcome.UNKNOWN],
            unchecked=counts[CaseOutcome.UNCHECKED],
            seconds=round(sum(result.seconds for result in results), 3),
            user_id=SYSTEM,
            draft_id=draft_id,
            created_at=began,
            ended_at=now(),
        )
        return run, results

    async def _store(
        self,
        draft_id: str,
        label: str,
        before: RunRecord,
        after: RunRecord,
        results: list[ResultRecord],
        comparison: Comparison,
    ) -> None:
        states = {Decision.PASS: DraftState.PASSED, Decision.WARN: DraftState.WARNED, Decision.HOLD: DraftState.HELD}
        draft = DraftRecord(
            id=draft_id,
            domain_id=before.domain_id,
            kind="reindex",
            label=label,
            change={},
            author=SYSTEM,
            state=states[comparison.decision],
            decision=decision_json(comparison),
            before_run=before.id,
            after_run=after.id,
            tier="retrieval",
            created_at=before.created_at,
            updated_at=now(),
        )

        def store(conn: Connection) -> None:
            evaluation.insert_draft(conn, draft)
            evaluation.insert_run(conn, before)
            evaluation.insert_run(conn, after)
            evaluation.put_results(conn, results)

        await self._db.write(store, durable=True)
