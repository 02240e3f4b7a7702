"""Runs: carry out the cases of a domain on one image, in one of two tiers, and store a result for each.

A run is a row with the cases it has to judge. Results are stored in small groups, so that a run that is stopped, or
whose process is killed, resumes with the cases that have no result yet. A domain has at most one run of a tier at work;
others wait.
"""

import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TypeVar

import anyio
from sqlalchemy import Connection

from agentic_rag.access.auditing import audit, change
from agentic_rag.access.users import acting
from agentic_rag.base import failpoints
from agentic_rag.base.errors import InvalidInput, NotFound, StorageError, first_cause
from agentic_rag.base.ids import ConversationId, SessionId
from agentic_rag.base.json_form import Json, from_json, to_json
from agentic_rag.base.telemetry import Observer, WorkKind
from agentic_rag.directory.cases import MAX_CASES
from agentic_rag.directory.directory import Directory
from agentic_rag.directory.settings import DomainSettings
from agentic_rag.documents.embedding_state import EmbeddingState
from agentic_rag.domains.case_records import expectations_of
from agentic_rag.domains.definitions import DefinitionDraft, Definitions
from agentic_rag.evaluation.answers import AnswerTier, evaluator_of
from agentic_rag.evaluation.retrieval import DomainView, RetrievalTier, RunSubject, view_documents
from agentic_rag.evaluation.verdicts import CaseOutcome, CaseVerdict, ResultSummary, summarise
from agentic_rag.runtime.core.definition import Image
from agentic_rag.store import evaluation, images
from agentic_rag.store.clock import new_id, now
from agentic_rag.store.conversations import ConversationRecord
from agentic_rag.store.database import Database
from agentic_rag.store.evaluation import (
    RUN_ENDED,
    CaseRecord,
    CaseState,
    ResultRecord,
    RunFields,
    RunRecord,
    RunState,
    Scoring,
    Tier,
)

T = TypeVar("T")
log = logging.getLogger(__name__)

GROUP = {"retrieval": 16, "answers": 1}
"""Cases whose results are stored in one transaction."""
AT_ONCE = 4
"""Searches that run in parallel."""
BEAT_SECONDS = 5.0
SILENT_SECONDS = 30.0
"""A run whose process has not reported for so long is taken over by another process."""
LOOK_SECONDS = 5.0
"""Seconds between two checks for runs of other processes on a shared database."""
RETRY_SECONDS = 5.0
"""Seconds to wait after a failure of the store."""
MAX_REPEATS = 9


@dataclass(frozen=True, slots=True)
class RunWish:
    """A run to start.

    ``case_ids`` is None for all active cases. ``subject`` is None for the unchanged domain. ``max_tokens`` limits the
    tokens of an answers run.
    """

    tier: Tier
    purpose: str = "demand"
    label: str = ""
    subject: RunSubject | None = None
    case_ids: Sequence[str] | None = None
    repeats: int = 1
    max_tokens: int | None = None
    draft_id: str = ""


class Runs:
    """The runs of all domains. ``owner`` is the name of this process."""

    def __init__(
        self,
        database: Database,
        directory: Directory,
        definitions: Definitions,
        embedding: EmbeddingState,
        retrieval: RetrievalTier,
        answers: AnswerTier,
        observer: Observer,
        owner: str,
    ) -> None:
        self._db = database
        self._directory = directory
        self._definitions = definitions
        self._embedding = embedding
        self._retrieval = retrieval
        self._answers = answers
        self._observer = observer
        self._owner = owner
        self._news = anyio.Event()
        """Set when a run was queued or has ended."""

    # -- start, stop, read ------------------------------------------------------------------------------------

    async def start(self, domain_id: str, wish: RunWish) -> RunRecord:
        """Queue a run.

        Raises:
            NotFound: there is no such domain.
            InvalidInput: the domain has no active case, or a named case does not exist.
        """
        run = await self.plan(domain_id, wish)
        entry = change("evaluation.run", f"{domain_id}/{run.id}", tier=run.tier, cases=len(run.case_ids))

        def store(conn: Connection) -> None:
            evaluation.insert_run(conn, run)
            audit(conn, entry)

        await self._db.write(store, durable=True)
        self.announce()
        return run

    async def plan(self, domain_id: str, wish: RunWish) -> RunRecord:
        """Return a run that is not stored yet. Raises like `start`."""
        record = await self._directory.get(domain_id)
        listed = await self._db.read(lambda conn: evaluation.list_cases(conn, domain_id, state=CaseState.ACTIVE))
        case_ids = [case.id for case in listed]
        if wish.case_ids is not None:
            unknown = [case_id for case_id in wish.case_ids if case_id not in set(case_ids)]
            if unknown:
                raise InvalidInput("caseIds", f"{unknown[0]!r} is no active case of this domain.")
            case_ids = list(dict.fromkeys(wish.case_ids))
        if not case_ids:
            raise InvalidInput("caseIds", "the domain has no active case yet; add one first.")
        subject = wish.subject or RunSubject(record.settings)
        return RunRecord(
            id=new_id("run"),
            domain_id=domain_id,
            tier=wish.tier,
            purpose=wish.purpose,
            label=wish.label,
            subject=to_json(subject),
            case_ids=case_ids[:MAX_CASES],
            repeats=max(1, min(wish.repeats, MAX_REPEATS)),
            max_tokens=wish.max_tokens,
            user_id=acting().user_id,
            draft_id=wish.draft_id,
            created_at=now(),
        )

    def announce(self) -> None:
        """Wake the workers and the readers of runs, because a run was queued or has ended."""
        self._news.set()
        self._news = anyio.Event()

    async def get(self, domain_id: str, run_id: str) -> RunRecord:
        """Return a run.

        Raises:
            NotFound: the domain has no such run.
        """
        await self._directory.get(domain_id)
        run = await self._db.read(lambda conn: evaluation.get_run(conn, domain_id, run_id))
        if run is None:
            raise NotFound("run", run_id)
        return run

    async def list_of(self, domain_id: str, limit: int, tier: str | None = None) -> list[RunRecord]:
        """Return the newest runs of a domain, newest first.

        Raises:
            NotFound: there is no such domain.
        """
        await self._directory.get(domain_id)
        return await self._db.read(lambda conn: evaluation.list_runs(conn, domain_id, limit, tier))

    async def results(self, domain_id: str, run_id: str) -> list[ResultRecord]:
        """Return the results of a run.

        Raises:
            NotFound: the domain has no such run.
        """
        run = await self.get(domain_id, run_id)
        return await self._db.read(lambda conn: evaluation.results_of(conn, run.id))

    async def stop(self, domain_id: str, run_id: str) -> RunRecord:
        """Stop a run, or the scoring of an ended run. Its results so far stay.

        Raises:
            NotFound: the domain has no such run.
        """
        await self.get(domain_id, run_id)
        entry = change("evaluation.stop", f"{domain_id}/{run_id}")
        reason = f"stopped by {acting().user_id}"

        def store(conn: Connection) -> None:
            open_scoring = (Scoring.PLANNED, Scoring.WAITING)
            if evaluation.update_run(
                conn, run_id, state=RunState.STOPPED, reason=reason, ended_at=now()
            ) or evaluation.update_scoring(conn, run_id, open_scoring, {"scoring": Scoring.STOPPING}):
                audit(conn, entry)

        await self._db.write(store, durable=True)
        self.announce()
        return await self.get(domain_id, run_id)

    async def wait(self, domain_id: str, run_id: str) -> RunRecord:
        """Wait until a run has ended; return the run.

        Raises:
            NotFound: the domain has no such run, or no longer has it.
        """
        while True:
            news = self._news  # taken before the run is read, so that an end in between is not missed
            run = await self.get(domain_id, run_id)
            if run.state in RUN_ENDED:
                return run
            with anyio.move_on_after(LOOK_SECONDS if self._db.shared else None):
                await news.wait()

    @property
    def news(self) -> anyio.Event:
        """Set when a run is queued or ends, or when a trial is decided. Take it before reading the state."""
        return self._news

    async def wait_news(self, news: anyio.Event) -> None:
        """Wait for the event of `news`, or until another process may have changed something."""
        with anyio.move_on_after(LOOK_SECONDS if self._db.shared else None):
            await news.wait()

    # -- work -------------------------------------------------------------------------------------------------

    async def resume(self) -> None:
        """Queue the runs that an earlier process left unfinished.

        On a shared database this does nothing: missing heartbeats reveal such runs.
        """
        if not self._db.shared:
            await self._db.write(evaluation.free_runs)

    async def next_run(self, tier: Tier) -> RunRecord:
        """Wait for a run of the tier and claim it."""
        while True:
            news = self._news
            run = await self._db.write(lambda conn: self._claim(conn, tier))
            if run is not None:
                return run
            with anyio.move_on_after(LOOK_SECONDS if self._db.shared else None):
                await news.wait()

    def _claim(self, conn: Connection, tier: Tier) -> RunRecord | None:
        # Only other replicas can leave a run silent; without them, `resume` has freed all runs of dead processes.
        silent = seconds_ago(SILENT_SECONDS) if self._db.shared else ""
        return evaluation.claim_run(conn, tier, self._owner, now(), silent)

    async def carry_out(self, run: RunRecord) -> None:
        """Judge the cases of a run that have no result yet, then end the run. A stopped run ends early.

        A failure of the store queues the run again. Any other failure ends the run with the reason.
        """
        reason = ""
        try:
            reason = await self._judge_all(run)
        except Exception as exc:  # one run must not end the worker of all
            cause = first_cause(exc)  # a task group wraps errors into exception groups
            if isinstance(cause, StorageError):
                log.warning("the run %s continues later: %s", run.id, cause)
                await anyio.sleep(RETRY_SECONDS)
                await insist(partial(self._requeue, run))
            elif isinstance(cause, NotFound):
                log.info("the run %s ends: its domain was deleted", run.id)
            elif cause is not None:
                await self._end(run, RunState.FAILED, str(cause))
            else:
                log.error("the run %s failed", run.id, exc_info=exc)
                await self._end(run, RunState.FAILED, f"an internal error: {type(exc).__name__}")
        else:
            await self._end(run, RunState.STOPPED if reason else RunState.DONE, reason)
        finally:
            self.announce()

    async def _end(self, run: RunRecord, state: RunState, reason: str) -> None:
        fields: RunFields = {"state": state, "reason": reason[:2_000], "ended_at": now()}
        if state is RunState.DONE and run.tier == "answers":
            judging = DomainSettings.model_validate(from_json(RunSubject, run.subject).settings).evaluation
            if judging.judge and judging.judge_batch:
                fields["scoring"] = Scoring.PLANNED
        await insist(partial(self._update, run, fields))
        failpoints.reached("evaluation.ended")

    async def _requeue(self, run: RunRecord) -> None:
        # Only while it is ours: another replica may have taken it over meanwhile.
        await self._db.write(lambda conn: evaluation.requeue_run(conn, run.id, self._owner), durable=True)

    async def _update(self, run: RunRecord, fields: RunFields) -> None:
        await self._db.write(lambda conn: evaluation.update_run(conn, run.id, **fields), durable=True)

    async def _judge_all(self, run: RunRecord) -> str:
        """Judge the remaining cases; return a reason to stop early, or an empty text."""
        subject = from_json(RunSubject, run.subject)
        settings = DomainSettings.model_validate(subject.settings)
        await self._embedding.prepare()
        await self._note_image(run, settings, subject)
        view = await view_documents(self._db, run.domain_id, subject.without)

        def read(conn: Connection) -> tuple[dict[str, CaseRecord], list[ResultRecord]]:
            listed = evaluation.list_cases(conn, run.domain_id)
            return {case.id: case for case in listed}, evaluation.results_of(conn, run.id)

        cases, done = await self._db.read(read)
        tally = _Tally(run)
        for result in done:
            tally.add(result)
        finished = {(result.case_id, result.repeat) for result in done}
        todo = [
            (case_id, repeat)
            for repeat in range(run.repeats)
            for case_id in run.case_ids
            if (case_id, repeat) not in finished
        ]
        failpoints.reached("evaluation.begun")
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._beat, run)
            reason = ""
            size = GROUP[run.tier]
            # Stored group by group: a killed run repeats at most one group, and answers are not paid for twice.
            for start in range(0, len(todo), size):
                if run.max_tokens is not None and tally.tokens >= run.max_tokens:
                    reason = f"the run's budget of {run.max_tokens} tokens is used up"
                    break
                results: list[ResultRecord] = []
                stops: list[str] = []
                limiter = anyio.CapacityLimiter(AT_ONCE)
                async with anyio.create_task_group() as group:
                    for case_id, repeat in todo[start : start + size]:
                        group.start_soon(
                            self._judge_one, run, cases.get(case_id), case_id, repeat, settings, subject, view,
                            limiter, results, stops,
                        )  # fmt: skip
                for result in results:
                    tally.add(result)
                if not await self._store(run, results, tally):
                    break  # a person stopped the run, or deleted its domain
                if stops:
                    reason = stops[0]
                    break
            tasks.cancel_scope.cancel()  # ends the heartbeat
        return reason

    async def _store(self, run: RunRecord, results: Sequence[ResultRecord], tally: "_Tally") -> bool:
        """Store results with the run's new totals; return False if the run was stopped or removed."""

        def store(conn: Connection) -> bool:
            fields = tally.fields()
            fields["beat_at"] = now()
            going = evaluation.update_run(conn, run.id, **fields)
            if going:
                evaluation.put_results(conn, results)
            return going

        going = await self._db.write(store)
        failpoints.reached("evaluation.stored")
        return going

    async def _judge_one(
        self,
        run: RunRecord,
        case: CaseRecord | None,
        case_id: str,
        repeat: int,
        settings: DomainSettings,
        subject: RunSubject,
        view: DomainView,
        limiter: anyio.CapacityLimiter,
        results: list[ResultRecord],
        stops: list[str],
    ) -> None:
        async with limiter:
            began = anyio.current_time()
            observed: Json = {}
            tokens, seconds = 0, 0.0
            if case is None:
                verdict = CaseVerdict(CaseOutcome.UNKNOWN, reason="the case was deleted")
            else:
                expect = expectations_of(case)
                span = self._observer.begin(WorkKind.EVALUATION, run.tier, domain_id=run.domain_id)
                if run.tier == "retrieval":
                    verdict, observed = await self._retrieval.judge(
                        run.domain_id, settings, subject, view, case.questions, expect
                    )
                    seconds = anyio.current_time() - began
                else:
                    judged = await self._answers.judge(
                        run.domain_id, settings, subject, view, tuple(case.questions), expect
                    )
                    verdict, observed, tokens = judged.verdict, judged.observed, judged.tokens
                    seconds = judged.seconds or anyio.current_time() - began
                    stops += [judged.stops] if judged.stops else []
                score = 1 if verdict.outcome is CaseOutcome.PASSED else 0
                span.note(case=case_id, run=run.id, verdict=verdict.outcome.value, score=score, reason=verdict.reason)
                span.end("" if verdict.outcome is not CaseOutcome.UNKNOWN else "unknown")
        results.append(
            ResultRecord(
                run_id=run.id,
                case_id=case_id,
                repeat=repeat,
                domain_id=run.domain_id,
                question=case.questions[-1][:500] if case else "",
                case_version=case.version if case else 0,
                outcome=verdict.outcome.value,
                reason=verdict.reason[:1_000],
                rank=verdict.rank,
                checks=[to_json(check) for check in verdict.checks],
                observed=observed,
                seconds=round(seconds, 4),
                tokens=tokens,
                at=now(),
            )
        )

    async def _note_image(self, run: RunRecord, settings: DomainSettings, subject: RunSubject) -> None:
        """Store the image that the run judges, and record its id in the run."""
        at = now()
        # A definition belongs to a conversation, and the run has none, so an empty one stands for it.
        stub = ConversationRecord(
            id=ConversationId(""),
            domain_id=run.domain_id,
            owner_id="",
            session_id=SessionId(""),
            title="",
            transient=True,
            started_at=at,
            updated_at=at,
        )
        definition, _ = await self._definitions.definition(
            evaluator_of(run.domain_id), stub, DefinitionDraft(settings, subject.components)
        )
        image = Image.of(replace(definition, denies_effects=True))

        def store(conn: Connection) -> None:
            images.put(conn, image.id, run.domain_id, image.content)
            fields: RunFields = {"image_id": image.id}
            evaluation.update_run(conn, run.id, **fields)

        await self._db.write(store)

    async def _beat(self, run: RunRecord) -> None:
        while True:
            await anyio.sleep(BEAT_SECONDS)
            with suppress(StorageError):
                await self._db.write(lambda conn: evaluation.update_run(conn, run.id, beat_at=now()))


async def insist(write: Callable[[], Awaitable[T]]) -> T:
    """Repeat a write until the store accepts it.

    A claimed run and a trial whose runs have ended wait for this process. Without the write they would end only after
    the next start.
    """
    while True:
        try:
            return await write()
        except StorageError as exc:
            log.warning("an evaluation is stored later: %s", exc)
            await anyio.sleep(RETRY_SECONDS)


def seconds_ago(seconds: float) -> str:
    """Return the time before so many seconds, in the format of stored times."""
    at = datetime.now(UTC) - timedelta(seconds=seconds)
    return at.isoformat(timespec="milliseconds").removesuffix("+00:00") + "Z"


class _Tally:
    """The totals of a run so far."""

    def __init__(self, run: RunRecord) -> None:
        self._outcomes: dict[str, list[tuple[CaseOutcome, int | None, str]]] = {}
        self._repeats = run.repeats
        self.tokens = 0
        self._seconds = 0.0
        self._count = 0

    def add(self, result: ResultRecord) -> None:
        outcome = (CaseOutcome(result.outcome), result.rank, result.reason)
        self._outcomes.setdefault(result.case_id, []).append(outcome)
        self.tokens += result.tokens
        self._seconds += result.seconds
        self._count += 1

    def fields(self) -> RunFields:
        counts = Counter(summarise(outcomes).outcome for outcomes in self._outcomes.values())
        return {
            "done": self._count // self._repeats,
            "passed": counts[CaseOutcome.PASSED],
            "failed": counts[CaseOutcome.FAILED],
            "gone": counts[CaseOutcome.GONE],
            "unknown": counts[CaseOutcome.UNKNOWN],
            "unchecked": counts[CaseOutcome.UNCHECKED],
            "tokens": self.tokens,
            "seconds": round(self._seconds, 3),
        }


def summaries_of(results: Sequence[ResultRecord]) -> dict[str, ResultSummary]:
    """Return the summary of each case of a run."""
    grouped: dict[str, list[tuple[CaseOutcome, int | None, str]]] = {}
    for result in results:
        grouped.setdefault(result.case_id, []).append((CaseOutcome(result.outcome), result.rank, result.reason))
    return {case_id: summarise(outcomes) for case_id, outcomes in grouped.items()}
