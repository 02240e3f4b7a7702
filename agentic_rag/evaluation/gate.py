"""The gate: evaluate a change on the resulting image before the change takes effect.

A trial is a pair of runs over the same cases: the domain before the change, and the domain after the change. If a
search can show the effect, the trial runs at once, within the request. Other changes need whole answers: such a change
waits as a draft, and the server applies the change after its trial has passed. A held change stays a draft, which its
author or an operator can still apply.
"""

import logging
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Annotated, Any

from pydantic import Field, StringConstraints
from sqlalchemy import Connection

from agentic_rag.access.auditing import audit, change
from agentic_rag.access.document_views import EVERY_DOCUMENT
from agentic_rag.access.users import User, acting, acting_for
from agentic_rag.base import failpoints
from agentic_rag.base.errors import (
    AgenticRagError,
    ChangeHeld,
    ChangeOnTrial,
    Forbidden,
    InvalidInput,
    NotFound,
    StorageError,
    VersionConflict,
)
from agentic_rag.base.forms import Form
from agentic_rag.base.ids import DocumentId
from agentic_rag.base.json_form import Json, from_json, to_json
from agentic_rag.directory.cases import Expectations
from agentic_rag.directory.directory import Directory
from agentic_rag.directory.settings import ChangeKind, DomainSettings, EvaluationSettings, GateMode
from agentic_rag.documents.documents import Documents
from agentic_rag.domains.case_records import expectations_of
from agentic_rag.domains.domains import Domains
from agentic_rag.domains.prompt_files import PromptFiles, check_name
from agentic_rag.evaluation.decisions import Comparison, Decision, compare_runs
from agentic_rag.evaluation.retrieval import RunSubject
from agentic_rag.evaluation.runs import SILENT_SECONDS, Runs, RunWish, insist, seconds_ago, summaries_of
from agentic_rag.evaluation.verdicts import summarise
from agentic_rag.roles.roles import Roles
from agentic_rag.roles.trials import check_size
from agentic_rag.store import evaluation
from agentic_rag.store.clock import new_id, now
from agentic_rag.store.database import Database
from agentic_rag.store.evaluation import (
    RUN_ENDED,
    CaseState,
    DraftFields,
    DraftRecord,
    DraftState,
    RunRecord,
    RunState,
    Tier,
)
from mcp_servers.promptx.dpml import Kind
from mcp_servers.promptx.nuwa import RoleFile

log = logging.getLogger(__name__)

MAX_AT_ONCE = 1_000
"""Cases up to which a search trial is awaited within the request; a longer one makes the change a draft first."""
AGAIN = 2
"""Further repetitions of cases that differ between two runs of a model whose answers vary."""
MAX_WORSE_SHOWN = 200

MAX_COMPONENT = 64 * 1024
"""Maximum characters of a prompt file in a trial."""

Text = Annotated[str, StringConstraints(max_length=MAX_COMPONENT)]


class RoleDraftFile(Form):
    """A file of a drafted role."""

    kind: Kind
    id: Annotated[str, StringConstraints(min_length=1, max_length=96)]
    content: Annotated[str, StringConstraints(max_length=256 * 1024)]


class RoleChange(Form):
    """The changed files of a domain's primary role."""

    id: Annotated[str, StringConstraints(min_length=1, max_length=96)]
    files: tuple[RoleDraftFile, ...] = Field(min_length=1, max_length=100)


class DomainChangeForm(Form):
    """A change to try. ``settings`` are merged like a PATCH, without ``mcpServers``.

    ``components`` are prompt files by name, null to delete. ``removes`` are ids or names of documents.
    """

    name: Annotated[str, StringConstraints(max_length=200)] | None = None
    description: Annotated[str, StringConstraints(max_length=4_000)] | None = None
    settings: dict[str, Any] | None = None
    replace_maps: bool = False
    components: Annotated[dict[str, Text | None], Field(max_length=100)] = Field(default_factory=dict)
    role: RoleChange | None = None
    removes: Annotated[tuple[str, ...], Field(max_length=10_000)] = ()

    def to_json(self) -> Json:
        """Return the stored form, with only the given fields."""
        return self.model_dump(mode="json", by_alias=True, exclude_unset=True)


RETRIEVAL_FIELDS = frozenset(
    {"retrieval_top_k", "retrieval_threshold", "retrieval_tokens", "retrieval_fusion", "retrieval_prefer_newer"}
)
MODEL_FIELDS = frozenset({"model", "fallback_model", "thinking", "effort", "temperature", "max_tokens"})
ROLE_FIELDS = frozenset({"primary_role_id", "sub_role_ids", "adopt_role"})
SERVER_KEYS = frozenset({"mcpServers", "mcp_servers"})
UNSEEN_FIELDS = frozenset(
    {
        "allowed_models",
        "context_lines",
        "evaluation",
        "folder_labels",
        "group_labels",
        "keep_conversations_days",
        "mcp_servers",
        "memory",
        "starters",
    }
)
"""Settings that no trial can show. MCP servers are tested separately, and rights must not wait for a trial.

Trials ask the domain's own model, so a model that users may choose changes none of them. Context lines are compared
once they are written, when the index would begin to use them.
"""


@dataclass(frozen=True, slots=True)
class PlannedTrial:
    """A change with its kinds, the image it results in, and the tiers that can show a difference."""

    change: DomainChangeForm
    kinds: tuple[ChangeKind, ...]
    tiers: tuple[Tier, ...]
    subject: RunSubject
    label: str

    @property
    def kind(self) -> ChangeKind:
        return self.kinds[0] if self.kinds else "settings"


def affected_kinds(before: DomainSettings, after: DomainSettings) -> dict[ChangeKind, set[Tier]]:
    """Return the kinds of a change of settings, each with the tiers that can show a difference."""
    kinds: dict[ChangeKind, set[Tier]] = {}
    for name in DomainSettings.model_fields:
        if name in UNSEEN_FIELDS or getattr(before, name) == getattr(after, name):
            continue
        if name in RETRIEVAL_FIELDS:
            kinds.setdefault("settings", set()).add("retrieval")
        elif name == "reranker":
            kinds.setdefault("reranker", set()).add("retrieval")
        elif name in MODEL_FIELDS:
            kinds.setdefault("model", set()).add("answers")
        elif name in ROLE_FIELDS:
            kinds.setdefault("roles", set()).add("answers")
        else:
            kinds.setdefault("settings", set()).add("answers")
    return kinds


def _label(before: DomainSettings, after: DomainSettings, form: DomainChangeForm, removed: Sequence[str]) -> str:
    """Summarise a change in a few words, such as ``retrievalThreshold 0 → 0.9``."""
    old, new = before.model_dump(mode="json", by_alias=True), after.model_dump(mode="json", by_alias=True)
    changed = sorted(key for key in old.keys() - {"mcpServers"} if old[key] != new[key])
    parts = [f"{key} {_short(old[key])} → {_short(new[key])}" for key in changed]
    parts += [f"{'deleted' if text is None else 'edited'} {name}" for name, text in form.components.items()]
    parts += [f"role {form.role.id}"] if form.role is not None else []
    parts += [f"without {name}" for name in removed]
    parts += ["renamed"] if form.name is not None else []
    return "; ".join(parts)[:300] or "no change"


def _short(value: object) -> str:
    text = str(value) if not isinstance(value, dict | list) else "…"
    return text if len(text) <= 40 else f"{text[:39]}…"


class ChangeGate:
    """Tries, holds and applies changes of all domains.

    ``quotes_only``: the server has no language model, so that answers do not vary.
    """

    def __init__(
        self,
        database: Database,
        directory: Directory,
        domains: Domains,
        prompts: PromptFiles,
        roles: Roles,
        documents: Documents,
        runs: Runs,
        *,
        quotes_only: bool,
    ) -> None:
        self._db = database
        self._directory = directory
        self._domains = domains
        self._prompts = prompts
        self._roles = roles
        self._documents = documents
        self._runs = runs
        self._quotes_only = quotes_only
        self._decided: set[str] = set()
        """The drafts about which this process has just decided."""

    async def settings(self, domain_id: str) -> EvaluationSettings:
        """Return the evaluation settings of a domain. Raises `NotFound` if there is no such domain."""
        return (await self._directory.settings(domain_id)).evaluation

    # -- trying -----------------------------------------------------------------------------------------------

    async def plan(self, domain_id: str, form: DomainChangeForm) -> PlannedTrial:
        """Return the effects of a change without trying the change.

        Raises:
            NotFound: there is no such domain or document.
            InvalidInput, ServerReserved, CommandNotAllowed: the change itself is invalid.
        """
        if form.settings and not SERVER_KEYS.isdisjoint(form.settings):
            raise InvalidInput("settings.mcpServers", "servers are tested on their own; leave them out of a trial.")
        before = await self._directory.settings(domain_id)
        after = before
        if form.settings:
            changes = dict(form.settings)
            after = await self._domains.settings_after(domain_id, changes, replace_maps=form.replace_maps)
        kinds = affected_kinds(before, after)
        for name in form.components:
            check_name(name, f"components.{name[:100]}")
            kinds.setdefault("prompt", set()).add("answers")
        if form.role is not None:
            check_size([RoleFile(file.kind, file.id, file.content) for file in form.role.files])
            kinds.setdefault("roles", set()).add("answers")
        if form.name is not None and form.name != (await self._directory.get(domain_id)).name:
            kinds.setdefault("settings", set()).add("answers")
        removed = await self._find_documents(domain_id, form.removes)
        if removed:
            kinds.setdefault("removal", set()).add("retrieval")
        files = () if form.role is None else tuple((file.kind, file.id, file.content) for file in form.role.files)
        subject = RunSubject(
            after.to_json(),
            dict(form.components),
            "" if form.role is None else form.role.id,
            files,
            tuple(removed),
        )
        affected = set[Tier]().union(*kinds.values())
        tiers: list[Tier] = [tier for tier in ("retrieval", "answers") if tier in affected]
        label = _label(before, after, form, list(removed.values()))
        return PlannedTrial(form, tuple(kinds), tuple(tiers), subject, label)

    async def _find_documents(self, domain_id: str, references: Sequence[str]) -> dict[str, str]:
        """Return the names of documents by id, found by id or name.

        Raises:
            NotFound: there is no such document.
        """
        if not references:
            return {}
        listed = await self._documents.list_of(domain_id, EVERY_DOCUMENT)
        names: dict[str, str] = {}
        for reference in references:
            matching = [document for document in listed if reference in (document.id, document.name)]
            if not matching:
                raise NotFound("document", reference)
            names |= {document.id: document.name for document in matching}
        return names

    async def start(
        self,
        domain_id: str,
        plan: PlannedTrial,
        tier: Tier,
        *,
        then_apply: bool = False,
        repeats: int = 1,
        case_ids: Sequence[str] | None = None,
    ) -> DraftRecord:
        """Store a change as a draft and queue its pair of runs.

        Raises:
            InvalidInput: the domain has no active case.
        """
        settings = await self._directory.settings(domain_id)
        present = RunSubject((await self._directory.get(domain_id)).settings)
        draft_id, at = new_id("draft"), now()
        bound = settings.evaluation.max_tokens if tier == "answers" else None

        async def run_of(label: str, subject: RunSubject) -> RunRecord:
            wish = RunWish(tier, "gate", label, subject, case_ids, repeats, bound, draft_id)
            return await self._runs.plan(domain_id, wish)

        before, after = await run_of("now", present), await run_of(plan.label, plan.subject)
        draft = DraftRecord(
            id=draft_id,
            domain_id=domain_id,
            kind=plan.kind,
            label=plan.label,
            change=plan.change.to_json(),
            author=acting().user_id,
            before_run=before.id,
            after_run=after.id,
            tier=tier,
            then_apply=then_apply,
            created_at=at,
            updated_at=at,
        )
        entry = change("evaluation.try", f"{domain_id}/{draft_id}", kind=plan.kind, tier=tier)

        def store(conn: Connection) -> None:  # one transaction: a draft without its runs would be tried forever
            evaluation.insert_draft(conn, draft)
            evaluation.insert_run(conn, before)
            evaluation.insert_run(conn, after)
            audit(conn, entry)

        await self._db.write(store, durable=True)
        self._runs.announce()
        return draft

    async def wait(self, domain_id: str, draft_id: str) -> DraftRecord:
        """Return a draft once its trial has ended."""
        while True:
            news = self._runs.news  # taken before the draft is read, so that no decision in between is missed
            draft = await self.draft(domain_id, draft_id)
            if draft.state is not DraftState.TRYING:
                return draft
            await self._runs.wait_news(news)

    async def guard(self, domain_id: str, form: DomainChangeForm, version: int | None = None) -> list[str]:
        """Try a change before it is made, as far as the domain's settings ask for it; return warnings.

        ``version`` is the domain's version from which the change was made.

        Raises:
            VersionConflict: the domain has another version.
            ChangeHeld: cases became worse, or the trial failed; the change is a draft.
            ChangeOnTrial: the change is tried with whole answers; the server applies it afterwards.
        """
        counts = await self._db.read(lambda conn: evaluation.count_cases(conn, domain_id))
        active = counts.get(CaseState.ACTIVE, 0)
        if not active:
            return []
        if form.settings and not SERVER_KEYS.isdisjoint(form.settings):  # secrets in entries must not be stored here
            rest = {key: value for key, value in form.settings.items() if key not in SERVER_KEYS}
            form = form.model_copy(update={"settings": rest})
        record = await self._directory.get(domain_id)
        if version is not None and version != record.version:
            raise VersionConflict(version, record.version)
        evaluated = (await self._directory.settings(domain_id)).evaluation
        plan = await self.plan(domain_id, form)
        modes: list[GateMode] = [evaluated.mode_of(kind) for kind in plan.kinds]
        if all(mode == "off" for mode in modes):
            return []
        warns_only = "hold" not in modes
        # Without a case that expects these documents, no case can lose its passage.
        if plan.kinds == ("removal",) and not await self._names_document(domain_id, plan):
            return []
        warnings: list[str] = []
        if "retrieval" in plan.tiers:
            later = active > MAX_AT_ONCE
            draft = await self.start(domain_id, plan, "retrieval", then_apply=later)
            if later:
                raise ChangeOnTrial(draft.id)
            draft = await self.wait(domain_id, draft.id)
            decision = draft.decision
            # A trial that could not be carried out has shown nothing, so it counts like one that found worse cases.
            if draft.state in (DraftState.HELD, DraftState.FAILED) and not warns_only:
                raise ChangeHeld(
                    draft.id,
                    decision["decision"],
                    len(decision.get("worse", ())),
                    decision.get("compared", 0),
                    decision.get("p", 1.0),
                    decision["sentence"],
                )
            if draft.state in (DraftState.HELD, DraftState.WARNED, DraftState.FAILED):
                warnings.append(f"evaluation: {decision['sentence']}")
        if evaluated.answers and "answers" in plan.tiers:
            draft = await self.start(domain_id, plan, "answers", then_apply=True, repeats=evaluated.repeats)
            raise ChangeOnTrial(draft.id)
        return warnings

    async def guard_settings(self, domain_id: str, settings: Json) -> list[str]:
        """Try a change that is merged into the settings before it is made. See `guard`."""
        return await self.guard(domain_id, DomainChangeForm(settings=dict(settings)))

    async def guard_component(self, domain_id: str, name: str, content: str | None) -> None:
        """Try a change of a prompt file before it is made; None as content deletes the file.

        Raises:
            ChangeOnTrial: the change is tried with whole answers; the server applies it afterwards.
        """
        settings = await self.settings(domain_id)
        if settings.answers and (content is None or len(content) <= MAX_COMPONENT):
            await self.guard(domain_id, DomainChangeForm(components={name: content}))

    async def guard_role(self, domain_id: str, role: str, files: Sequence[RoleFile] | None) -> None:
        """Try a change of the domain's primary role before it is made. Other roles are not tried.

        Raises:
            ChangeOnTrial: the change is tried with whole answers; the server applies it afterwards.
        """
        settings = await self._directory.settings(domain_id)
        if not settings.evaluation.answers or files is None or role != settings.primary_role_id:
            return
        drafted = [RoleDraftFile(kind=file.kind, id=file.id, content=file.content) for file in files]
        await self.guard(domain_id, DomainChangeForm(role=RoleChange(id=role, files=tuple(drafted))))

    async def _names_document(self, domain_id: str, plan: PlannedTrial) -> bool:
        """Return whether an active case expects a passage of a removed document."""
        removed = await self._find_documents(domain_id, plan.subject.without)
        names = {name.casefold() for name in removed.values()}
        listed = await self._db.read(lambda conn: evaluation.list_cases(conn, domain_id, state=CaseState.ACTIVE))
        return any(_cites_any(expectations_of(case), names) for case in listed)

    # -- deciding ---------------------------------------------------------------------------------------------

    async def work(self, tier: Tier) -> None:
        """Run the queued runs of a tier, and decide about the changes that they try."""
        while True:
            run = await self._runs.next_run(tier)
            await self._runs.carry_out(run)
            if not run.draft_id:
                continue
            # Two steps, as a refused write of the second must not repeat the first.
            draft = await insist(partial(self._decide_ended, run.domain_id, run.draft_id))
            if draft is not None:
                await insist(partial(self._apply_tried, draft))

    async def work_searches(self) -> None:
        """Run the queued runs of the retrieval tier."""
        await self.work("retrieval")

    async def work_answers(self) -> None:
        """Run the queued runs of the answers tier."""
        await self.work("answers")

    async def resume(self) -> None:
        """Resume the runs and trials that an earlier process left unfinished."""
        await self._runs.resume()
        # On a shared database, another process may be deciding about a trial or applying its change right now.
        await self.settle_abandoned(SILENT_SECONDS if self._db.shared else 0.0)

    async def settle_abandoned(self, silent: float = SILENT_SECONDS) -> None:
        """Decide about trials whose process died after their last run, and apply changes that it had still to apply.

        ``silent``: seconds without a change of the draft after which its process counts as dead.
        """
        for draft in await self._db.read(evaluation.unsettled_drafts):
            if draft.updated_at <= seconds_ago(silent):
                current = await self._decide_ended(draft.domain_id, draft.id, abandoned=True)
                if current is not None:
                    await self._apply_tried(current)

    async def _decide_ended(self, domain_id: str, draft_id: str, *, abandoned: bool = False) -> DraftRecord | None:
        """Decide about a change whose runs have ended. Return its draft if this process is to apply the change now.

        ``abandoned``: the process that decided, if any did, is dead.
        """
        draft = await self._db.read(lambda conn: evaluation.get_draft(conn, domain_id, draft_id))
        if draft is not None and draft.state is DraftState.TRYING:
            abandoned = False
            await self._decide(draft)
            draft = await self._db.read(lambda conn: evaluation.get_draft(conn, domain_id, draft_id))
        decided_here = draft_id in self._decided or not self._db.shared
        self._decided.discard(draft_id)
        if draft is None or not draft.then_apply or draft.state not in evaluation.TO_APPLY:
            return None
        return draft if decided_here or abandoned else None

    async def _decide(self, draft: DraftRecord) -> None:
        """Store the decision about a change, unless its runs are still going on or some cases have to be repeated."""
        ids = [draft.before_run, draft.after_run, *draft.decision.get("again", ())]
        loaded = [
            await self._db.read(partial(evaluation.get_run, domain_id=draft.domain_id, run_id=run_id)) for run_id in ids
        ]
        runs = [run for run in loaded if run is not None]
        if any(run.state not in RUN_ENDED for run in runs):
            return
        broken = next((run for run in runs if run.state is RunState.FAILED), None)
        if len(runs) < len(ids) or broken is not None:
            reason = broken.reason if broken is not None else "a run of the trial was removed"
            await self._store_decision(draft, DraftState.FAILED, {"decision": "unknown", "sentence": reason})
            return
        comparison = await self.compare(runs[:2], again=runs[2:])
        if not draft.decision.get("again") and await self._ask_again(draft, runs, comparison):
            return
        state = {Decision.PASS: DraftState.PASSED, Decision.WARN: DraftState.WARNED, Decision.HOLD: DraftState.HELD}
        decided = state[comparison.decision]
        stopped = next((run.reason for run in runs if run.state is RunState.STOPPED), "")
        if stopped and decided is DraftState.PASSED:  # passed on the judged cases only; the others are unknown
            decided = DraftState.WARNED
        if decided is DraftState.HELD and draft.then_apply:
            kind: Any = draft.kind
            # Stored with the decision, so that a later change of the mode applies no change that was held before.
            if (await self.settings(draft.domain_id)).mode_of(kind) == "warn":
                decided = DraftState.WARNED
        await self._store_decision(
            draft, decided, decision_json(comparison, stopped) | {"again": [run.id for run in runs[2:]]}
        )

    async def _store_decision(self, draft: DraftRecord, state: DraftState, decision: Json) -> None:
        fields: DraftFields = {"state": state, "decision": decision, "updated_at": now()}
        # Another replica may have decided meanwhile; then its decision counts, and it applies the change.
        if await self._db.write(
            lambda conn: evaluation.update_draft(conn, draft.id, [DraftState.TRYING], **fields), durable=True
        ):
            self._decided.add(draft.id)
        failpoints.reached("evaluation.decided")
        self._runs.announce()

    async def _ask_again(self, draft: DraftRecord, runs: Sequence[RunRecord], comparison: Comparison) -> bool:
        """Repeat the cases that differ, because a model's answers vary; return whether the repetition began."""
        differing = [case.case_id for case in (*comparison.worse, *comparison.better)]
        # Searches and quoted answers do not vary, and repeated runs have shown the variation already.
        if draft.tier != "answers" or self._quotes_only or not differing or runs[0].repeats > 1:
            return False
        if any(run.state is RunState.STOPPED for run in runs):
            return False
        again: list[RunRecord] = []
        # Without a token limit the repetitions could cost more than the trial, so each has that of its run.
        for run in runs:
            subject = from_json(RunSubject, run.subject)
            wish = RunWish("answers", "gate", run.label, subject, differing, AGAIN, run.max_tokens, draft.id)
            with acting_for(draft.author):
                again.append(await self._runs.plan(draft.domain_id, wish))
        fields: DraftFields = {"decision": {"again": [repetition.id for repetition in again]}, "updated_at": now()}

        def store(conn: Connection) -> None:
            # Another replica may have decided about the draft or repeated it meanwhile.
            if evaluation.update_draft(conn, draft.id, [DraftState.TRYING], **fields):
                for repetition in again:
                    evaluation.insert_run(conn, repetition)

        await self._db.write(store, durable=True)
        self._runs.announce()
        return True

    async def compare(self, pair: Sequence[RunRecord], *, again: Sequence[RunRecord] = ()) -> Comparison:
        """Compare two runs. ``again`` are further repetitions of the same two."""
        results = [await self._db.read(partial(evaluation.results_of, run_id=run.id)) for run in (*pair, *again)]
        before, after = summaries_of(results[0]), summaries_of(results[1])
        if len(results) == 4:
            for target, first, more in ((before, results[0], results[2]), (after, results[1], results[3])):
                for case_id in {result.case_id for result in more}:
                    # The first answer counts like its repetitions: the majority of all of them decides.
                    outcomes = [result for result in (*first, *more) if result.case_id == case_id]
                    target[case_id] = summarise(
                        [(summaries_of([result])[case_id].outcome, result.rank, result.reason) for result in outcomes]
                    )
        removes = bool(pair[1].subject.get("without")) and not pair[0].subject.get("without")
        varies = pair[0].tier == "answers" and not self._quotes_only
        return compare_runs(before, after, varies=varies, removes_documents=removes)

    # -- drafts -----------------------------------------------------------------------------------------------

    async def draft(self, domain_id: str, draft_id: str) -> DraftRecord:
        """Return a draft.

        Raises:
            NotFound: the domain has no such draft.
        """
        await self._directory.get(domain_id)
        draft = await self._db.read(lambda conn: evaluation.get_draft(conn, domain_id, draft_id))
        if draft is None:
            raise NotFound("draft", draft_id)
        return draft

    async def drafts(self, domain_id: str, limit: int) -> list[DraftRecord]:
        """Return the newest drafts of a domain, newest first."""
        await self._directory.get(domain_id)
        return await self._db.read(lambda conn: evaluation.list_drafts(conn, domain_id, limit))

    async def apply(self, user: User, domain_id: str, draft_id: str) -> DraftRecord:
        """Apply a draft, regardless of the result of its trial.

        Raises:
            NotFound: the domain has no such draft.
            Forbidden: the user is neither its author nor an operator, or may not make this change.
            InvalidInput: the draft was applied or dropped already, is still being tried, or is no longer valid.
        """
        draft = await self.draft(domain_id, draft_id)
        self._check_decider(user, draft)
        if draft.state in (DraftState.APPLIED, DraftState.DROPPED):
            raise InvalidInput("draft", f"the draft was {draft.state.value} already.")
        await self._make(draft)
        entry = change("evaluation.apply", f"{domain_id}/{draft_id}", state=draft.state.value, kind=draft.kind)
        await self._mark(draft, DraftState.APPLIED, entry, user.id)
        return await self.draft(domain_id, draft_id)

    async def drop(self, user: User, domain_id: str, draft_id: str) -> DraftRecord:
        """Drop a draft, so that it can no longer be applied.

        Raises:
            NotFound: the domain has no such draft.
            Forbidden: the user is neither its author nor an admin of the domain.
            InvalidInput: the draft was applied already.
        """
        draft = await self.draft(domain_id, draft_id)
        if draft.author != user.id and not user.administers(domain_id):
            raise Forbidden("Only the draft's author or an admin of the domain may drop it.")
        if draft.state is DraftState.APPLIED:
            raise InvalidInput("draft", "the draft was applied already.")
        entry = change("evaluation.drop", f"{domain_id}/{draft_id}", state=draft.state.value)
        await self._mark(draft, DraftState.DROPPED, entry, user.id)
        return await self.draft(domain_id, draft_id)

    def _check_decider(self, user: User, draft: DraftRecord) -> None:
        if draft.author != user.id and not user.operator:
            raise Forbidden("Only the draft's author or an operator may apply it.")
        if not user.administers(draft.domain_id) and not draft.change.keys() <= {"components", "role"}:
            raise Forbidden("Only an admin of the domain may make this change.")

    async def _mark(self, draft: DraftRecord, state: DraftState, entry: Any, user_id: str) -> None:
        fields: DraftFields = {"state": state, "decided_by": user_id, "updated_at": now()}
        among = [possible for possible in DraftState if possible not in (DraftState.APPLIED, DraftState.DROPPED)]

        def store(conn: Connection) -> None:
            if evaluation.update_draft(conn, draft.id, among, **fields):
                audit(conn, entry)

        await self._db.write(store, durable=True)
        self._runs.announce()

    async def _apply_tried(self, draft: DraftRecord) -> None:
        """Apply a change after its trial. A change that is no longer possible becomes a failed draft."""
        with acting_for(draft.author):  # history and audit rows name the author, not the server
            try:
                await self._make(draft)
            except StorageError:
                raise
            except AgenticRagError as exc:
                log.warning("the draft %s cannot be applied: %s", draft.id, exc)
                await self._note_unapplied(draft, str(exc))
                return
            except Exception:
                # `resume` runs this at each start of a server. An error that is raised here would end every start.
                log.exception("the draft %s cannot be applied", draft.id)
                await self._note_unapplied(draft, "an internal error, which the server's log describes")
                return
            details = {"state": draft.state.value, "kind": draft.kind}
            entry = change("evaluation.apply", f"{draft.domain_id}/{draft.id}", **details)
            await self._mark(draft, DraftState.APPLIED, entry, draft.author)

    async def _note_unapplied(self, draft: DraftRecord, reason: str) -> None:
        decision = {**draft.decision, "sentence": f"it could not be applied: {reason}"}
        fields: DraftFields = {"state": DraftState.FAILED, "decision": decision, "updated_at": now()}
        await self._db.write(lambda conn: evaluation.update_draft(conn, draft.id, [draft.state], **fields))

    async def _make(self, draft: DraftRecord) -> None:
        """Make the change of a draft like a normal request, with its checks, history and audit rows."""
        if draft.kind == "reindex":
            await self._documents.reindex(draft.domain_id, anyway=True)
            return
        form = DomainChangeForm.model_validate(draft.change)
        if form.settings or form.name is not None or form.description is not None:
            await self._domains.update(
                draft.domain_id,
                name=form.name,
                description=form.description,
                settings=form.settings,
                replace_maps=form.replace_maps,
            )
        for name, text in form.components.items():
            if text is None:
                with suppress(NotFound):  # after a kill, the change is made again
                    await self._prompts.delete(draft.domain_id, name)
            else:
                await self._prompts.write(draft.domain_id, name, text)
        if form.role is not None:
            files = [RoleFile(file.kind, file.id, file.content) for file in form.role.files]
            await self._roles.write(draft.domain_id, form.role.id, files)
        for reference in form.removes:
            with suppress(NotFound):
                for document_id in await self._find_documents(draft.domain_id, [reference]):
                    await self._documents.delete(draft.domain_id, DocumentId(document_id))

    # -- nightly ----------------------------------------------------------------------------------------------

    async def run_nightly(self) -> None:
        """Queue the nightly answers run of each domain that wants one at this hour (UTC).

        Domains with a nightly run in the last 20 hours are skipped.
        """
        hour = datetime.now(UTC).hour
        for record in await self._directory.list_all():
            settings = DomainSettings.model_validate(record.settings).evaluation
            if settings.nightly != hour:
                continue
            newest = await self._runs.list_of(record.id, 20, "answers")
            if any(run.purpose == "nightly" and run.created_at[:13] >= _hours_ago(20) for run in newest):
                continue
            counts = await self._db.read(partial(evaluation.count_cases, domain_id=record.id))
            if counts.get(CaseState.ACTIVE):
                wish = RunWish("answers", "nightly", repeats=settings.repeats, max_tokens=settings.max_tokens)
                await self._runs.start(record.id, wish)


def _hours_ago(hours: int) -> str:
    """Return an ISO time up to and including its hour, which compares like a text with other such times."""
    return (datetime.now(UTC) - timedelta(hours=hours)).isoformat()[:13]


def _cites_any(expect: Expectations, names: set[str]) -> bool:
    return any(passage.document.casefold() in names for passage in expect.cites)


def decision_json(comparison: Comparison, stopped: str = "") -> Json:
    """Return a comparison in the form for drafts and clients."""
    sentence = "; ".join(filter(None, [comparison.sentence, stopped]))
    return {
        "decision": comparison.decision.value,
        "sentence": sentence,
        "compared": comparison.compared,
        "unknown": comparison.unknown,
        "worse": to_json(comparison.worse[:MAX_WORSE_SHOWN]),
        "better": to_json(comparison.better[:MAX_WORSE_SHOWN]),
        "p": round(comparison.p, 4),
        "rankWorse": comparison.rank_worse,
        "rankBetter": comparison.rank_better,
        "rankP": round(comparison.rank_p, 4),
    }
