"""REST of the evaluation gate: cases, runs, comparisons, trials of changes and held drafts.

Defines what these routes take and answer. The rules are in `agentic_rag.evaluation`.
"""

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import Field, StringConstraints
from starlette.requests import Request

from agentic_rag.access.document_views import EVERY_DOCUMENT, DocumentView
from agentic_rag.access.users import User
from agentic_rag.base.errors import (
    BodyTooLarge,
    CommandNotAllowed,
    Forbidden,
    GenerationTimeout,
    InvalidInput,
    NotFound,
    SearchUnavailable,
    SecretLimit,
    ServerReserved,
    VersionConflict,
)
from agentic_rag.base.forms import Form, OwnJson
from agentic_rag.base.ids import DocumentId
from agentic_rag.base.json_form import Absent, Json
from agentic_rag.directory.cases import MAX_CSV_BYTES, CaseForm
from agentic_rag.evaluation.cases import CaseLine, Cases
from agentic_rag.evaluation.decisions import Comparison
from agentic_rag.evaluation.gate import ChangeGate, DomainChangeForm, decision_json
from agentic_rag.evaluation.runs import Runs, RunWish
from agentic_rag.evaluation.suggestions import Suggestions
from agentic_rag.server.replies import CsvTable, Items, Part, Redacted, answer, answer_from
from agentic_rag.server.routing import read_body, route
from agentic_rag.store.evaluation import (
    CaseOrigin,
    CaseState,
    DraftRecord,
    DraftState,
    ResultRecord,
    RunRecord,
    RunState,
    Scoring,
)

EVALUATION = "/api/domains/{domain}/evaluation"
CASES = f"{EVALUATION}/cases"
RUNS = f"{EVALUATION}/runs"
DRAFTS = f"{EVALUATION}/drafts"
APPLY_ERRORS = (NotFound, Forbidden, InvalidInput, VersionConflict, ServerReserved, CommandNotAllowed, SecretLimit)


class NewCase(CaseForm):
    """A case. ``origin`` is ``search`` for a hit picked by hand; ``source`` may name that search."""

    state: CaseState = CaseState.ACTIVE
    origin: Literal["hand", "search"] = "hand"
    source: OwnJson = None


class CaseChangeForm(Form):
    """A change of a case: a whole new form, a state, or both. ``version`` is the one that the change was made from."""

    case: CaseForm | None = None
    state: CaseState | None = None
    version: int | None = Field(None, ge=1)


class CaseQuery(Form):
    """Cases in one state, or all."""

    state: CaseState | None = None
    format: Literal["json", "csv"] = "json"


class NewRun(Form):
    """A run of the ``retrieval`` or ``answers`` tier over all active cases or some of them.

    ``maxTokens`` bounds an answers run; the default is the domain's setting.
    """

    tier: Literal["retrieval", "answers"] = "retrieval"
    label: Annotated[str, StringConstraints(max_length=200)] = ""
    case_ids: Annotated[tuple[str, ...], Field(max_length=10_000)] | None = None
    repeats: int | None = Field(None, ge=1, le=9)
    max_tokens: int | None = Field(None, ge=1, le=1_000_000_000)


class EvaluationRunQuery(Form):
    """The newest runs, of one tier or both."""

    tier: Literal["retrieval", "answers"] | None = None
    limit: int = Field(50, ge=1, le=300)


class ResultQuery(Form):
    """A page of the results of a run, by outcome if one is given."""

    outcome: Literal["passed", "failed", "gone", "unknown", "unchecked"] | None = None
    offset: int = Field(0, ge=0, le=100_000)
    limit: int = Field(200, ge=1, le=1_000)


class ComparisonQuery(Form):
    """``before`` and ``after`` are runs of the same tier."""

    before: Annotated[str, StringConstraints(max_length=64)]
    after: Annotated[str, StringConstraints(max_length=64)]


class NewTrial(DomainChangeForm):
    """A change to try. ``tier`` is chosen by the change if absent. Nothing is applied, whatever the trial says."""

    tier: Literal["retrieval", "answers"] | None = None
    repeats: int | None = Field(None, ge=1, le=9)
    case_ids: Annotated[tuple[str, ...], Field(max_length=10_000)] | None = None


class DraftQuery(Form):
    """The newest drafts."""

    limit: int = Field(50, ge=1, le=300)


class WantedSuggestions(Form):
    """How many cases the domain's model should propose, from which documents (absent: any)."""

    count: int = Field(10, ge=1, le=40)
    document_ids: Annotated[tuple[DocumentId, ...], Field(max_length=100)] | None = None


@answer()
class LastResult:
    """The newest result of a case in one tier."""

    run_id: str
    outcome: str
    reason: str
    rank: int | None
    seconds: float
    at: str


@answer()
class Case:
    """A case. ``last`` has its newest result by tier. ``source`` tells where a drafted case came from."""

    id: str
    questions: Sequence[str]
    expect: Json
    note: str
    state: CaseState
    origin: CaseOrigin
    source: Json
    author: str
    version: int
    created_at: str
    updated_at: str
    last: Json


@answer()
class ImportProblem:
    """A row that is no case."""

    path: str
    message: str


@answer()
class ImportedCases:
    """The result of an import. Rows with problems were left out."""

    added: int
    changed: int
    same: int
    problems: Sequence[ImportProblem]


@answer()
class RunAnswer:
    """A run. ``passed`` and the other counts are cases; ``total`` is their number. ``imageId`` is what it ran on."""

    id: str
    tier: str
    purpose: str
    label: str
    state: RunState
    image_id: str
    total: int
    repeats: int
    done: int
    passed: int
    failed: int
    gone: int
    unknown: int
    unchecked: int
    tokens: int
    max_tokens: int | None
    seconds: float
    reason: str
    user_id: str
    draft_id: str
    scoring: Scoring
    """``planned``, ``waiting`` or ``stopping`` while a batch scores the answers of an ended run; then ``done``."""
    created_at: str
    ended_at: str | None


@answer()
class RunDetail(RunAnswer):
    """A run with what it judged."""

    subject: Json


@answer()
class Result:
    """The result of one case: its expectations with whether each was met (``checks``), and the evidence."""

    case_id: str
    repeat: int
    question: str
    case_version: int
    outcome: str
    reason: str
    rank: int | None
    checks: Sequence[Json]
    observed: Json
    seconds: float
    tokens: int
    at: str


@answer()
class ComparedCase:
    """A case that became worse or better, with its results in both runs."""

    case_id: str
    question: str
    direction: int
    before: Sequence[Result]
    after: Sequence[Result]


@answer()
class RunComparison:
    """Two runs over the same cases, compared. ``p`` is an exact one-sided sign test."""

    decision: str
    sentence: str
    compared: int
    unknown: int
    worse: Sequence[ComparedCase]
    better: Sequence[ComparedCase]
    p: float
    rank_worse: int
    rank_better: int
    rank_p: float
    before: RunAnswer
    after: RunAnswer


@answer()
class ChangeDraft:
    """A tried change. ``decision`` is empty until its trial has ended; ``mayApply``: the caller may apply it."""

    id: str
    kind: str
    label: str
    change: Json
    author: str
    state: DraftState
    decision: Json
    before_run: str
    after_run: str
    tier: str
    then_apply: bool
    decided_by: str
    created_at: str
    updated_at: str
    may_apply: bool


@answer()
class EvaluationSummary:
    """The state of a domain's evaluation: cases by state, the newest runs, and the number of held changes."""

    cases: dict[str, int]
    held: int
    retrieval: Absent[RunAnswer] = None
    answers: Absent[RunAnswer] = None


class CaseRoutes:
    """Evaluation cases of a domain."""

    def __init__(self, cases: Cases, suggestions: Suggestions) -> None:
        self._cases = cases
        self._suggestions = suggestions

    @route("GET", CASES, large=True)
    async def list_cases(self, domain: str, query: CaseQuery) -> Redacted[Items[Case]] | CsvTable:
        """List the cases with their newest results. ``format=csv`` exports the active ones."""
        if query.format == "csv":
            return CsvTable("cases", await self._cases.export_csv(domain))
        return Redacted(domain, Items([_case(line) for line in await self._cases.list_of(domain, query.state)]))

    @route("POST", CASES, status=201, errors=[InvalidInput])
    async def create(self, domain: str, body: NewCase) -> Redacted[Case]:
        """Add a case."""
        # Without a check: the fields were checked as those of the body.
        form = CaseForm.model_construct(questions=body.questions, expect=body.expect, note=body.note)
        origin = CaseOrigin(body.origin)
        case = await self._cases.create(domain, form, origin=origin, state=body.state, source=body.source)
        return Redacted(domain, _case(CaseLine(case, {})))

    @route("POST", f"{CASES}/import", takes="text/csv", max_bytes=MAX_CSV_BYTES, errors=[BodyTooLarge])
    async def import_csv(self, request: Request, domain: str) -> Redacted[ImportedCases]:
        """Add the cases of a CSV file. Rows that are no case are left out and listed."""
        imported = await self._cases.import_csv(domain, await read_body(request, MAX_CSV_BYTES))
        problems = [ImportProblem(problem.path, problem.problem) for problem in imported.problems[:200]]
        return Redacted(domain, ImportedCases(imported.added, imported.changed, imported.same, problems))

    @route("POST", f"{CASES}/suggest", status=201, errors=[GenerationTimeout, SearchUnavailable, InvalidInput])
    async def suggest(self, domain: str, body: WantedSuggestions) -> Redacted[Items[Case]]:
        """Let the domain's model propose cases from its documents, as drafts that an admin confirms."""
        cases = await self._suggestions.suggest(domain, body.count, body.document_ids)
        return Redacted(domain, Items([_case(CaseLine(case, {})) for case in cases]))

    @route("GET", f"{CASES}/{{case}}")
    async def get(self, domain: str, case: str) -> Redacted[Case]:
        """Show a case."""
        return Redacted(domain, _case(CaseLine(await self._cases.get(domain, case), {})))

    @route("PUT", f"{CASES}/{{case}}", errors=[VersionConflict])
    async def put(self, domain: str, case: str, body: CaseChangeForm) -> Redacted[Case]:
        """Change a case, or confirm a draft with ``state`` active."""
        changed = await self._cases.update(domain, case, body.case, body.state, body.version)
        return Redacted(domain, _case(CaseLine(changed, {})))

    @route("DELETE", f"{CASES}/{{case}}")
    async def delete(self, domain: str, case: str) -> None:
        """Delete a case. Its results in earlier runs stay."""
        await self._cases.delete(domain, case)


class EvaluationRoutes:
    """Runs, comparisons and drafts of a domain."""

    def __init__(self, cases: Cases, runs: Runs, gate: ChangeGate) -> None:
        self._cases = cases
        self._runs = runs
        self._gate = gate

    @route("GET", EVALUATION)
    async def summary(self, domain: str) -> Redacted[EvaluationSummary]:
        """Show the state of the domain's evaluation."""
        newest = await self._runs.list_of(domain, 100)
        own = [run for run in newest if not run.draft_id]  # runs of a draft judge a change, not the live domain
        drafts = await self._gate.drafts(domain, 300)
        counts = await self._cases.counts(domain)
        last = {tier: next((run for run in own if run.tier == tier), None) for tier in ("retrieval", "answers")}
        shown = {tier: None if run is None else _run(run) for tier, run in last.items()}
        return Redacted(
            domain,
            EvaluationSummary(
                {state.value: counts.get(state, 0) for state in CaseState},
                sum(draft.state is DraftState.HELD for draft in drafts),
                **shown,
            ),
        )

    @route("GET", RUNS, large=True)
    async def list_runs(self, domain: str, query: EvaluationRunQuery) -> Redacted[Items[RunAnswer]]:
        """List the newest runs, newest first."""
        return Redacted(domain, Items([_run(run) for run in await self._runs.list_of(domain, query.limit, query.tier)]))

    @route("POST", RUNS, status=202, errors=[InvalidInput])
    async def start(self, domain: str, body: NewRun) -> Redacted[RunAnswer]:
        """Start a run of the domain as it is. Only one run of a tier is active at a time; others wait."""
        settings = await self._gate.settings(domain)
        answers = body.tier == "answers"
        wish = RunWish(
            body.tier,
            "demand",
            body.label,
            case_ids=body.case_ids,
            repeats=body.repeats or (settings.repeats if answers else 1),
            max_tokens=(body.max_tokens or settings.max_tokens) if answers else None,
        )
        return Redacted(domain, _run(await self._runs.start(domain, wish)))

    @route("GET", f"{RUNS}/{{run}}")
    async def get(self, domain: str, run: str) -> Redacted[RunDetail]:
        """Show a run with what it judged."""
        record = await self._runs.get(domain, run)
        return Redacted(domain, answer_from(RunDetail, record, total=len(record.case_ids)))

    @route("POST", f"{RUNS}/{{run}}/stop")
    async def stop(self, domain: str, run: str) -> Redacted[RunAnswer]:
        """Stop a run, or the batch that scores the answers of an ended run. Its results so far stay."""
        return Redacted(domain, _run(await self._runs.stop(domain, run)))

    @route("GET", f"{RUNS}/{{run}}/results", large=True)
    async def results(self, domain: str, run: str, query: ResultQuery) -> Redacted[Part[Result]]:
        """List the results of a run, those that need attention first."""
        results = [
            result for result in await self._runs.results(domain, run) if query.outcome in (None, result.outcome)
        ]
        results.sort(key=lambda result: (_ORDER.index(result.outcome), result.case_id, result.repeat))
        end = query.offset + query.limit
        shown = [answer_from(Result, result) for result in results[query.offset : end]]
        return Redacted(domain, Part(shown, len(results) > end))

    @route("GET", f"{EVALUATION}/comparison", large=True, errors=[InvalidInput])
    async def compare(self, domain: str, query: ComparisonQuery) -> Redacted[RunComparison]:
        """Compare two runs over the cases that both judged."""
        before, after = [await self._runs.get(domain, run_id) for run_id in (query.before, query.after)]
        if before.tier != after.tier:
            raise InvalidInput("after", f"{after.id} is a run of the tier {after.tier}, {before.id} of {before.tier}.")
        results = [await self._runs.results(domain, run.id) for run in (before, after)]
        comparison = await self._gate.compare([before, after])
        return Redacted(domain, _comparison(comparison, before, after, results))

    @route("POST", f"{EVALUATION}/try", status=202, errors=APPLY_ERRORS)
    async def try_change(self, user: User, domain: str, body: NewTrial) -> Redacted[ChangeDraft]:
        """Try a change on the cases without making it. The draft's decision follows when its runs have ended."""
        form = DomainChangeForm.model_validate(
            body.model_dump(exclude_unset=True, exclude={"tier", "repeats", "case_ids"})
        )
        plan = await self._gate.plan(domain, form)
        settings = await self._gate.settings(domain)
        tier = body.tier or (plan.tiers[-1] if plan.tiers else "retrieval")
        repeats = body.repeats or (settings.repeats if tier == "answers" else 1)
        draft = await self._gate.start(domain, plan, tier, repeats=repeats, case_ids=body.case_ids)
        return Redacted(domain, _draft(draft, user, EVERY_DOCUMENT))

    @route("GET", DRAFTS, allow="author", large=True)
    async def list_drafts(
        self, user: User, domain: str, query: DraftQuery, view: DocumentView
    ) -> Redacted[Items[ChangeDraft]]:
        """List tried changes, newest first. Who does not see all documents sees only their own changes."""
        drafts = await self._gate.drafts(domain, query.limit)
        return Redacted(domain, Items([_draft(draft, user, view) for draft in drafts if _shows(view, draft, user)]))

    @route("GET", f"{DRAFTS}/{{draft}}", allow="author")
    async def get_draft(self, user: User, domain: str, draft: str, view: DocumentView) -> Redacted[ChangeDraft]:
        """Show a tried change."""
        record = await self._gate.draft(domain, draft)
        if not _shows(view, record, user):
            raise NotFound("draft", draft, hidden=True)
        return Redacted(domain, _draft(record, user, view))

    @route("POST", f"{DRAFTS}/{{draft}}/apply", allow="author", errors=APPLY_ERRORS)
    async def apply(self, user: User, domain: str, draft: str, view: DocumentView) -> Redacted[ChangeDraft]:
        """Apply a tried change whatever its trial said. For its author and operators; audited."""
        return Redacted(domain, _draft(await self._gate.apply(user, domain, draft), user, view))

    @route("POST", f"{DRAFTS}/{{draft}}/drop", allow="author", errors=[InvalidInput])
    async def drop(self, user: User, domain: str, draft: str, view: DocumentView) -> Redacted[ChangeDraft]:
        """Drop a tried change."""
        return Redacted(domain, _draft(await self._gate.drop(user, domain, draft), user, view))


_ORDER = ("failed", "gone", "unknown", "passed", "unchecked")


def _case(line: CaseLine) -> Case:
    # A result of an earlier version says nothing about the current case.
    last = {
        tier: answer_from(LastResult, result)
        for tier, result in line.last.items()
        if result.case_version == line.record.version
    }
    return answer_from(Case, line.record, last=last)


def _run(record: RunRecord) -> RunAnswer:
    return answer_from(RunAnswer, record, total=len(record.case_ids))


def _shows(view: DocumentView, record: DraftRecord, user: User) -> bool:
    """Return whether a caller may see a draft. A draft may name documents and quote the questions of cases."""
    return view.visible is None or record.author == user.id


def _draft(record: DraftRecord, user: User, view: DocumentView) -> ChangeDraft:
    ended = record.state in (DraftState.APPLIED, DraftState.DROPPED)
    decision = record.decision
    if view.visible is not None:  # the sentence may name the cases that became worse, which quote documents
        decision = {key: value for key, value in decision.items() if key in ("decision", "compared", "p")}
    may_apply = not ended and (user.operator or user.id == record.author)
    return answer_from(ChangeDraft, record, decision=decision, may_apply=may_apply)


def _comparison(
    comparison: Comparison, before: RunRecord, after: RunRecord, results: Sequence[Sequence[ResultRecord]]
) -> RunComparison:
    def show(changes: Sequence[Any]) -> list[ComparedCase]:
        shown: list[ComparedCase] = []
        for change in changes:
            sides = [[result for result in side if result.case_id == change.case_id] for side in results]
            question = next((result.question for side in sides for result in side), "")
            old, new = ([answer_from(Result, result) for result in side] for side in sides)
            shown.append(ComparedCase(change.case_id, question, change.direction, old, new))
        return shown

    decided = decision_json(comparison)
    return RunComparison(
        decided["decision"],
        decided["sentence"],
        comparison.compared,
        comparison.unknown,
        show(comparison.worse[:200]),
        show(comparison.better[:200]),
        decided["p"],
        comparison.rank_worse,
        comparison.rank_better,
        decided["rankP"],
        _run(before),
        _run(after),
    )
