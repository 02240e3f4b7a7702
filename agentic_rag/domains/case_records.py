"""Evaluation cases as records of a domain: make, merge and store them with their history, inside a transaction.

Services, imports and templates of domains share these functions. Callers have checked the user's rights.
"""

from collections.abc import Sequence

from sqlalchemy import Connection

from agentic_rag.base.errors import InvalidInput
from agentic_rag.base.json_form import Json
from agentic_rag.base.redaction import Redaction
from agentic_rag.directory.cases import MAX_CASES, CaseForm, Expectations, case_text, digest_of
from agentic_rag.domains.record_history import content_of
from agentic_rag.store import evaluation, history
from agentic_rag.store.clock import new_id, now
from agentic_rag.store.evaluation import CaseOrigin, CaseRecord, CaseState
from agentic_rag.store.history import GONE, HistoryKind, NewHistory, VersionContent


def form_of(record: CaseRecord) -> CaseForm:
    """Return the form of a stored case."""
    expect = Expectations.model_validate(record.expect) if record.expect else Expectations.model_construct()
    return CaseForm.model_construct(questions=tuple(record.questions), expect=expect, note=record.note)


def expectations_of(record: CaseRecord) -> Expectations:
    """Return the expectations of a stored case; a draft may have none yet."""
    return form_of(record).expect


def new_case(
    domain_id: str,
    form: CaseForm,
    origin: CaseOrigin,
    author: str,
    *,
    state: CaseState = CaseState.ACTIVE,
    source: Json | None = None,
) -> CaseRecord:
    """Return a case that is not stored yet."""
    at = now()
    return CaseRecord(
        id=new_id("case"),
        domain_id=domain_id,
        questions=list(form.questions),
        expect=form.expect.to_json(),
        note=form.note,
        state=state,
        origin=origin,
        source=source or {},
        author=author,
        digest=digest_of(form.questions),
        created_at=at,
        updated_at=at,
    )


def merge_cases(
    conn: Connection,
    domain_id: str,
    forms: Sequence[CaseForm],
    origin: CaseOrigin,
    author: str,
    redaction: Redaction,
    *,
    state: CaseState = CaseState.ACTIVE,
) -> tuple[int, int, int]:
    """Add cases inside a transaction; one with the same questions is replaced. Returns added, changed and same ones.

    Raises:
        InvalidInput: the domain would have too many cases.
    """
    by_digest = {case.digest: case for case in evaluation.list_cases(conn, domain_id)}
    added = changed = same = 0
    changes: list[tuple[CaseRecord | None, CaseRecord | None]] = []
    for form in forms:
        fresh = new_case(domain_id, form, origin, author, state=state)
        before = by_digest.get(fresh.digest)
        if before is None:
            added += 1
            by_digest[fresh.digest] = fresh
            changes.append((None, fresh))
        elif (before.expect, before.note) == (fresh.expect, fresh.note) and before.state is state:
            same += 1
        else:
            changed += 1
            after = with_form(before, form).replace(state=state, version=before.version + 1, updated_at=now())
            by_digest[fresh.digest] = after
            changes.append((before, after))
    if len(by_digest) > MAX_CASES:
        raise InvalidInput("cases", f"the domain would have {len(by_digest)} cases; at most {MAX_CASES} are possible.")
    store_cases(conn, changes, author, redaction)
    return added, changed, same


def with_form(before: CaseRecord, form: CaseForm) -> CaseRecord:
    return before.replace(
        questions=list(form.questions),
        expect=form.expect.to_json(),
        note=form.note,
        digest=digest_of(form.questions),
    )


def check_new(conn: Connection, record: CaseRecord) -> None:
    count = sum(evaluation.count_cases(conn, record.domain_id).values())
    if count >= MAX_CASES:
        raise InvalidInput("cases", f"the domain has {count} cases; at most {MAX_CASES} are possible.")
    check_distinct(conn, record)


def check_distinct(conn: Connection, record: CaseRecord) -> None:
    same = evaluation.find_case(conn, record.domain_id, record.digest)
    if same is not None and same.id != record.id:
        raise InvalidInput("questions", f"the case {same.id} already asks this; change that one.")


def store_cases(
    conn: Connection,
    changes: Sequence[tuple[CaseRecord | None, CaseRecord | None]],
    author: str,
    redaction: Redaction,
) -> None:
    """Store or delete cases, given before and after, with their history. Drafts have none until they are confirmed."""
    entries: list[NewHistory] = []
    for before, after in changes:
        record = after or before
        if record is None:
            continue
        if after is None:
            evaluation.delete_case(conn, record.id)
        else:
            evaluation.put_case(conn, after)
        old, new = _content(before, redaction), _content(after, redaction)
        if old != new:
            at = "" if before is None else before.updated_at
            kind = HistoryKind.CASE
            entries.append(NewHistory(kind=kind, subject=record.id, author=author, after=new, before=old, before_at=at))
    records = [record for pair in changes for record in pair if record is not None]
    if records:
        history.append(conn, records[0].domain_id, entries, now())


def _content(record: CaseRecord | None, redaction: Redaction) -> VersionContent:
    if record is None or record.state is CaseState.DRAFT:
        return GONE
    return content_of(case_text(form_of(record)), redaction)
