"""Evaluation records: cases of a domain, runs over them, the results of each case, and drafts of tried changes.

What a case expects, and how an answer is judged, is opaque to this module.
"""

from collections.abc import Collection, Sequence
from enum import StrEnum
from typing import Literal, TypedDict, Unpack

import sqlalchemy as sa
from sqlalchemy import Connection, Index
from sqlmodel import Field

from agentic_rag.base.ids import SessionId
from agentic_rag.base.json_form import Json
from agentic_rag.store import deliveries
from agentic_rag.store.columns import Indexed, Key
from agentic_rag.store.deliveries import Event
from agentic_rag.store.endpoints import EventKind
from agentic_rag.store.record import Record

Tier = Literal["retrieval", "answers"]


class CaseState(StrEnum):
    """Whether a case is judged: a draft waits for an admin, ``off`` is set aside."""

    DRAFT = "draft"
    ACTIVE = "active"
    OFF = "off"


class CaseOrigin(StrEnum):
    """Where a case came from."""

    HAND = "hand"
    FEEDBACK = "feedback"
    SEARCH = "search"
    CSV = "csv"
    SUGGESTED = "suggested"
    BUNDLE = "bundle"
    TEMPLATE = "template"


class CaseRecord(Record, table=True):
    """A case of a domain.

    ``expect`` is the JSON of its expectations. ``digest`` identifies its questions within the domain. ``source`` holds
    the message, search and reason that the case was drafted from.
    """

    __tablename__ = "evaluation_cases"
    __table_args__ = (Index("ix_evaluation_cases_digest", "domain_id", "digest", unique=True),)
    part_of = "domain"

    id: Key[str]
    domain_id: str
    questions: list[str]
    expect: Json
    note: str = ""
    state: CaseState = CaseState.ACTIVE
    origin: CaseOrigin = CaseOrigin.HAND
    source: Json = Field(default_factory=dict)
    author: str = ""
    digest: str
    session_id: Indexed[SessionId | None] = None
    """The conversation that feedback drafted the case from. An unconfirmed draft is deleted with its conversation."""
    version: int = 1
    created_at: str
    updated_at: str


CASES = CaseRecord.__table__
_cases = CASES.c


class RunState(StrEnum):
    """The state of a run. `RUN_ENDED` lists the final states."""

    QUEUED = "queued"
    RUNNING = "running"
    DONE = "done"
    STOPPED = "stopped"
    FAILED = "failed"


RUN_ENDED = (RunState.DONE, RunState.STOPPED, RunState.FAILED)


class Scoring(StrEnum):
    """The state of scoring an ended run's answers in a batch. Runs without one have `NONE`."""

    NONE = ""
    PLANNED = "planned"
    WAITING = "waiting"
    """The service has the batch; the run's ``batch_id`` names it."""
    STOPPING = "stopping"
    """A person stopped the scoring, and the service may not know yet."""
    DONE = "done"


SCORING_OPEN = (Scoring.PLANNED, Scoring.WAITING, Scoring.STOPPING)


class RunRecord(Record, table=True):
    """A run of a domain's cases on one image.

    ``subject`` is what the run judges: settings, prompt files, collection generation and left-out documents. ``label``
    names it for people. ``reason`` says why a run ended early. ``owner`` and ``beat_at`` tell which process runs it.
    ``scoring``: whether a batch scores its answers, ``batch_id`` the service's id of that batch, ``batch_at`` the time
    of its submission.
    """

    __tablename__ = "evaluation_runs"
    __table_args__ = (Index("ix_evaluation_runs_domain", "domain_id", "id"),)
    part_of = "domain"

    id: Key[str]
    domain_id: str
    tier: str
    purpose: str
    label: str = ""
    state: RunState = RunState.QUEUED
    subject: Json
    image_id: str = ""
    case_ids: list[str]
    repeats: int = 1
    done: int = 0
    passed: int = 0
    failed: int = 0
    gone: int = 0
    unknown: int = 0
    unchecked: int = 0
    tokens: int = 0
    max_tokens: int | None = None
    seconds: float = 0.0
    reason: str = ""
    user_id: str
    draft_id: str = ""
    owner: str = ""
    beat_at: str = ""
    scoring: Scoring = Scoring.NONE
    batch_id: str = ""
    batch_at: str = ""
    created_at: str
    ended_at: str | None = None


RUNS = RunRecord.__table__
_runs = RUNS.c
_other_runs = RUNS.alias()  # copying its 40 columns takes 3 ms, and servers look for runs at each start


class ResultRecord(Record, table=True):
    """The result of one case in a run. ``repeat`` counts from 0.

    ``observed`` is what the verdict was computed from: the answer with its citations, or the passages found.
    """

    __tablename__ = "evaluation_results"
    part_of = "domain"

    run_id: Key[str]
    case_id: Key[str]
    repeat: Key[int]
    domain_id: Indexed[str]
    question: str
    case_version: int
    outcome: str
    reason: str = ""
    rank: int | None = None
    checks: list[Json] = Field(default_factory=list)
    observed: Json = Field(default_factory=dict)
    seconds: float = 0.0
    tokens: int = 0
    at: str


RESULTS = ResultRecord.__table__
_results = RESULTS.c


class DraftState(StrEnum):
    """The state of a tried change."""

    TRYING = "trying"
    PASSED = "passed"
    WARNED = "warned"
    HELD = "held"
    APPLIED = "applied"
    DROPPED = "dropped"
    FAILED = "failed"


TO_APPLY = (DraftState.PASSED, DraftState.WARNED)
"""States in which the server applies a change that it was asked to apply after the trial."""


class DraftRecord(Record, table=True):
    """A change that was tried before it counts. ``change`` is applied as it is; ``decision`` compares the two runs.

    ``then_apply``: the server applies the change if its trial does not hold it.
    """

    __tablename__ = "evaluation_drafts"
    part_of = "domain"

    id: Key[str]
    domain_id: Indexed[str]
    kind: str
    label: str
    change: Json
    author: str
    state: DraftState = DraftState.TRYING
    decision: Json = Field(default_factory=dict)
    before_run: str = ""
    after_run: str = ""
    tier: str = ""
    then_apply: bool = False
    decided_by: str = ""
    created_at: str
    updated_at: str


DRAFTS = DraftRecord.__table__
_drafts = DRAFTS.c

MAX_RUNS = 300
"""Ended runs kept per domain; the results of older ones are removed with them."""
MAX_DRAFTS = 300


# Cases


def put_case(conn: Connection, case: CaseRecord) -> None:
    """Store a case, replacing the one with its id."""
    conn.execute(sa.delete(CASES).where(_cases.id == case.id))
    case.insert(conn)


def get_case(conn: Connection, domain_id: str, case_id: str) -> CaseRecord | None:
    """Return a case of the domain, or None."""
    return CaseRecord.first(conn, sa.select(CASES).where(_cases.id == case_id, _cases.domain_id == domain_id))


def find_case(conn: Connection, domain_id: str, digest: str) -> CaseRecord | None:
    """Return the case with these questions, or None."""
    return CaseRecord.first(conn, sa.select(CASES).where(_cases.domain_id == domain_id, _cases.digest == digest))


def list_cases(
    conn: Connection, domain_id: str, *, state: CaseState | None = None, ids: Collection[str] | None = None
) -> list[CaseRecord]:
    """Return the cases of a domain in order of creation."""
    query = sa.select(CASES).where(_cases.domain_id == domain_id)
    if state is not None:
        query = query.where(_cases.state == state)
    if ids is not None:
        query = query.where(_cases.id.in_(ids))
    return CaseRecord.all(conn, query.order_by(_cases.id))


def count_cases(conn: Connection, domain_id: str) -> dict[CaseState, int]:
    """Return the number of cases by state."""
    query = sa.select(_cases.state, sa.func.count()).where(_cases.domain_id == domain_id).group_by(_cases.state)
    return {CaseState(state): count for state, count in conn.execute(query)}


def delete_case(conn: Connection, case_id: str) -> None:
    """Delete a case. Results of earlier runs stay."""
    conn.execute(sa.delete(CASES).where(_cases.id == case_id))


def delete_drafts_of_session(conn: Connection, session_id: SessionId) -> None:
    """Delete the drafts that came from a conversation and were never confirmed."""
    conn.execute(sa.delete(CASES).where(_cases.session_id == session_id, _cases.state == CaseState.DRAFT))


# Runs


class RunFields(TypedDict, total=False):
    """Fields of a run that change."""

    state: RunState
    image_id: str
    done: int
    passed: int
    failed: int
    gone: int
    unknown: int
    unchecked: int
    tokens: int
    seconds: float
    reason: str
    owner: str
    beat_at: str
    scoring: Scoring
    batch_id: str
    batch_at: str
    ended_at: str | None


def insert_run(conn: Connection, run: RunRecord) -> None:
    """Store a new run, and remove the oldest ended ones beyond `MAX_RUNS`.

    The domain's endpoints are notified of a run that is stored after its end.
    """
    run.insert(conn)
    if run.state in RUN_ENDED:
        _announce_end(conn, run.id)
    ended = sa.select(_runs.id).where(_runs.domain_id == run.domain_id, _runs.state.in_(RUN_ENDED))
    old = list(conn.execute(ended.order_by(_runs.id.desc()).offset(MAX_RUNS)).scalars())
    if old:
        conn.execute(sa.delete(RESULTS).where(_results.run_id.in_(old)))
        conn.execute(sa.delete(RUNS).where(_runs.id.in_(old)))


def get_run(conn: Connection, domain_id: str, run_id: str) -> RunRecord | None:
    """Return a run of the domain, or None."""
    return RunRecord.first(conn, sa.select(RUNS).where(_runs.id == run_id, _runs.domain_id == domain_id))


def list_runs(conn: Connection, domain_id: str, limit: int, tier: str | None = None) -> list[RunRecord]:
    """Return the newest runs, newest first."""
    query = sa.select(RUNS).where(_runs.domain_id == domain_id)
    if tier is not None:
        query = query.where(_runs.tier == tier)
    return RunRecord.all(conn, query.order_by(_runs.id.desc()).limit(limit))


def update_run(conn: Connection, run_id: str, **fields: Unpack[RunFields]) -> bool:
    """Change the given fields of a run that has not ended. Returns False if it has ended or does not exist."""
    query = sa.update(RUNS).where(_runs.id == run_id, _runs.state.not_in(RUN_ENDED)).values(dict(fields))
    if conn.execute(query).rowcount != 1:
        return False
    if fields.get("state") in RUN_ENDED:
        _announce_end(conn, run_id)
    return True


def _announce_end(conn: Connection, run_id: str) -> None:
    """Notify the domain's endpoints of the end of a run."""
    run = RunRecord.first(conn, sa.select(RUNS).where(_runs.id == run_id))
    assert run is not None
    counts = {name: getattr(run, name) for name in ("done", "passed", "failed", "gone", "unknown", "unchecked")}
    facts = {
        "runId": run.id,
        "tier": run.tier,
        "purpose": run.purpose,
        "state": run.state.value,
        **counts,
        "tokens": run.tokens,
        "endedAt": run.ended_at,
    }
    texts = {"label": run.label, "reason": run.reason}
    deliveries.announce(conn, Event(EventKind.EVALUATION_FINISHED, run.domain_id, facts, texts, run.user_id))


def scoring_runs(conn: Connection) -> list[RunRecord]:
    """Return the ended runs of all domains whose answers are being scored in batches, oldest first."""
    query = sa.select(RUNS).where(_runs.scoring.in_(SCORING_OPEN), _runs.state.in_(RUN_ENDED))
    return RunRecord.all(conn, query.order_by(_runs.id))


def update_scoring(
    conn: Connection, run_id: str, among: Collection[Scoring], fields: RunFields, spent: int = 0
) -> bool:
    """Change the given fields of a run whose scoring is in one of the states, and add ``spent`` to its tokens.

    Returns False if the scoring is in another state, or the run does not exist.
    """
    query = sa.update(RUNS).where(_runs.id == run_id, _runs.scoring.in_(among))
    return conn.execute(query.values({**fields, "tokens": _runs.tokens + spent})).rowcount == 1


def claim_run(conn: Connection, tier: str, owner: str, at: str, silent_since: str) -> RunRecord | None:
    """Take the oldest run of a tier that waits, or that its process has left; return it, or None.

    A running run whose last heartbeat is older than ``silent_since`` has been left. A domain has at most one run of a
    tier at work.
    """
    at_work = _runs.state == RunState.RUNNING
    abandoned = sa.and_(at_work, _runs.beat_at < silent_since)
    busy = sa.select(_other_runs.c.domain_id).where(
        _other_runs.c.state == RunState.RUNNING, _other_runs.c.tier == tier, _other_runs.c.beat_at >= silent_since
    )
    waits = sa.and_(_runs.state == RunState.QUEUED, _runs.domain_id.not_in(busy))
    query = sa.select(RUNS).where(_runs.tier == tier, sa.or_(abandoned, waits)).order_by(_runs.id).limit(1)
    run = RunRecord.first(conn, query.with_for_update(skip_locked=True))
    if run is not None:
        changes: RunFields = {"state": RunState.RUNNING, "owner": owner, "beat_at": at}
        update_run(conn, run.id, **changes)
    return run


def requeue_run(conn: Connection, run_id: str, owner: str) -> None:
    """Queue a run again, if the given process still runs it."""
    ours = (_runs.id == run_id, _runs.state == RunState.RUNNING, _runs.owner == owner)
    conn.execute(sa.update(RUNS).where(*ours).values(state=RunState.QUEUED))


def free_runs(conn: Connection) -> None:
    """Queue the runs of an earlier process again. Only for a database that one process uses."""
    conn.execute(sa.update(RUNS).where(_runs.state == RunState.RUNNING).values(state=RunState.QUEUED))


# Results


def put_results(conn: Connection, results: Sequence[ResultRecord]) -> None:
    """Store results, replacing those of the same case and repetition."""
    for result in results:
        place = (_results.run_id == result.run_id, _results.case_id == result.case_id, _results.repeat == result.repeat)
        conn.execute(sa.delete(RESULTS).where(*place))
        result.insert(conn)


def results_of(conn: Connection, run_id: str) -> list[ResultRecord]:
    """Return all results of a run, by case and repetition."""
    return ResultRecord.all(
        conn, sa.select(RESULTS).where(_results.run_id == run_id).order_by(_results.case_id, _results.repeat)
    )


def last_results(conn: Connection, domain_id: str, tier: str) -> list[ResultRecord]:
    """Return the results of the newest finished run of the domain itself, in a tier."""
    query = sa.select(_runs.id).where(
        _runs.domain_id == domain_id, _runs.tier == tier, _runs.state == RunState.DONE, _runs.draft_id == ""
    )
    run_id = conn.execute(query.order_by(_runs.id.desc()).limit(1)).scalar()
    return [] if run_id is None else results_of(conn, run_id)


# Drafts


class DraftFields(TypedDict, total=False):
    """Fields of a draft that change."""

    state: DraftState
    decision: Json
    before_run: str
    after_run: str
    tier: str
    decided_by: str
    updated_at: str


def insert_draft(conn: Connection, draft: DraftRecord) -> None:
    """Store a draft, and remove the oldest decided ones beyond `MAX_DRAFTS`."""
    draft.insert(conn)
    decided = (DraftState.APPLIED, DraftState.DROPPED, DraftState.PASSED, DraftState.WARNED, DraftState.FAILED)
    ended = sa.select(_drafts.id).where(_drafts.domain_id == draft.domain_id, _drafts.state.in_(decided))
    old = list(conn.execute(ended.order_by(_drafts.id.desc()).offset(MAX_DRAFTS)).scalars())
    if old:
        conn.execute(sa.delete(DRAFTS).where(_drafts.id.in_(old)))


def get_draft(conn: Connection, domain_id: str, draft_id: str) -> DraftRecord | None:
    """Return a draft of the domain, or None."""
    return DraftRecord.first(conn, sa.select(DRAFTS).where(_drafts.id == draft_id, _drafts.domain_id == domain_id))


def list_drafts(conn: Connection, domain_id: str, limit: int) -> list[DraftRecord]:
    """Return the newest drafts, newest first."""
    query = sa.select(DRAFTS).where(_drafts.domain_id == domain_id).order_by(_drafts.id.desc()).limit(limit)
    return DraftRecord.all(conn, query)


def unsettled_drafts(conn: Connection) -> list[DraftRecord]:
    """Return the drafts of all domains that are undecided or still to be applied, oldest first."""
    to_apply = sa.and_(_drafts.then_apply.is_(True), _drafts.state.in_(TO_APPLY))
    return DraftRecord.all(
        conn, sa.select(DRAFTS).where(sa.or_(_drafts.state == DraftState.TRYING, to_apply)).order_by(_drafts.id)
    )


def update_draft(conn: Connection, draft_id: str, among: Sequence[DraftState], **fields: Unpack[DraftFields]) -> bool:
    """Change the given fields of a draft in one of the states. Returns False if it is in another one."""
    query = sa.update(DRAFTS).where(_drafts.id == draft_id, _drafts.state.in_(among)).values(dict(fields))
    return conn.execute(query).rowcount == 1


def rename_user(conn: Connection, user_id: str, instead: str) -> None:
    """Replace a user's name in cases, runs and drafts."""
    for column in (_cases.author, _runs.user_id, _drafts.author, _drafts.decided_by):
        conn.execute(sa.update(column.table).where(column == user_id).values({column.name: instead}))
