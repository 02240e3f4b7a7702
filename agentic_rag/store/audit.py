"""The audit log: rows that are only ever appended, each holding the hash of the one before.

Owns the chain: how a row is hashed, how it is appended inside the transaction of what it tells of, and how a
changed, removed or inserted row is found. Knows no action and no user. The last row's number and hash stand in a
table of their own too, so that rows cut off at the end are missed; who can rewrite both can only be found by a
`head` that was noted elsewhere.
"""

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Connection

from agentic_rag.messages import clean_text
from agentic_rag.store.clock import now
from agentic_rag.store.records import RecordTable


class AuditOutcome(StrEnum):
    """What became of an action: done, refused to the one who asked, or a model's call that was denied."""

    DONE = "done"
    REFUSED = "refused"
    DENIED = "denied"


MAX_TEXT = 300
"""Characters of an actor, action or target; what is longer is cut."""
MAX_DETAIL = 4_000
"""Characters of a text among the details."""
MAX_PROBLEMS = 100
"""Problems that one check lists."""
_BATCH = 1_000
_LOCK = 0x61756469  # any constant of ours: on PostgreSQL rows are appended one after the other


@dataclass(frozen=True, slots=True)
class Entry:
    """What a row tells: who did (or was refused) what, to what. ``details`` hold names and codes, never a secret.

    ``count``: how many like this one the row stands for.
    """

    actor: str
    action: str
    target: str = ""
    outcome: AuditOutcome = AuditOutcome.DONE
    details: Mapping[str, Any] = field(default_factory=dict)
    count: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditRecord:
    """One row of the audit log, chained to the one before by ``previous``; never updated, never deleted."""

    seq: int
    at: str
    actor: str
    action: str
    target: str
    outcome: AuditOutcome
    details: dict[str, Any]
    count: int
    """How many alike the row stands for."""
    previous: str
    """``hash`` of the row before; empty in the first one."""
    hash: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditHeadRecord:
    """The number and hash of the last audit row: one row."""

    id: int = 1
    seq: int
    hash: str


@dataclass(frozen=True, slots=True)
class Problem:
    """A place where the chain is broken."""

    seq: int
    what: str


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a check found. ``head`` (``seq:hash``) names the last row; noted elsewhere it proves the rows up to it."""

    rows: int
    head: str
    problems: tuple[Problem, ...]


AUDIT = RecordTable(AuditRecord, "audit", key=("seq",))
AUDIT_HEAD = RecordTable(AuditHeadRecord, "audit_head")
_audit = AUDIT.c


def last_actor(conn: Connection, action: str, target: str, since: str) -> str | None:
    """Return who did something last, if that was at a time or after it; None when nobody did."""
    query = sa.select(_audit.actor).where(
        _audit.action == action,
        _audit.target == target,
        _audit.outcome == AuditOutcome.DONE,
        _audit.at >= since,
    )
    found: str | None = conn.execute(query.order_by(_audit.seq.desc()).limit(1)).scalar()
    return found


REDACTION = "audit_redaction"
"""The execution option of an engine that takes secrets out of entries: a function of an `Entry`."""


def append(conn: Connection, entry: Entry) -> AuditRecord:
    """Append a row inside the caller's transaction: both are kept, or neither.

    Texts are cut and redacted before the row is hashed: a row can never be changed afterwards.
    """
    redact: Callable[[Entry], Entry] | None = conn.engine.get_execution_options().get(REDACTION)
    # Twice as long at first: a secret that the first cut divides must not be left in what is stored.
    entry = _cut_entry(entry, 2)
    entry = _cut_entry(redact(entry) if redact is not None else entry, 1)
    if conn.dialect.name == "postgresql":
        conn.execute(sa.text("SELECT pg_advisory_xact_lock(:key)"), {"key": _LOCK})
    last = AUDIT_HEAD.first(conn, AUDIT_HEAD.select)
    record = AuditRecord(
        seq=(last.seq if last else 0) + 1,
        at=now(),
        actor=_text(entry.actor),
        action=_text(entry.action),
        target=entry.target,
        outcome=entry.outcome,
        details=dict(entry.details),
        count=entry.count,
        previous=last.hash if last else "",
        hash="",
    )
    stored = replace(record, hash=digest(record))
    AUDIT.insert(conn, stored)
    conn.execute(sa.delete(AUDIT_HEAD.table))
    AUDIT_HEAD.insert(conn, AuditHeadRecord(seq=stored.seq, hash=stored.hash))
    return stored


def digest(record: AuditRecord) -> str:
    """Return the SHA-256 of a row: of all its columns but ``hash``, as canonical JSON, ``previous`` among them."""
    fields = {name: value for name, value in AUDIT.values(record).items() if name != "hash"}
    return hashlib.sha256(json.dumps(fields, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def page(
    conn: Connection,
    limit: int,
    *,
    before: int | None = None,
    actor: str | None = None,
    outcome: AuditOutcome | None = None,
) -> list[AuditRecord]:
    """Return the newest rows first; ``before``: those with a smaller number."""
    query = AUDIT.select.order_by(_audit.seq.desc()).limit(limit)
    if before is not None:
        query = query.where(_audit.seq < before)
    for column, wanted in ((_audit.actor, actor), (_audit.outcome, outcome)):
        if wanted is not None:
            query = query.where(column == wanted)
    return AUDIT.all(conn, query)


def check(conn: Connection, known: str | None = None) -> Verdict:
    """Read the whole chain. ``known``: a head (``seq:hash``) noted before, which must still be part of it."""
    problems: list[Problem] = []
    rows, seq, previous = 0, 0, ""
    known_seq, _, known_hash = (known or "0:").partition(":")
    for row in _in_order(conn):
        rows += 1
        if row.seq != seq + 1:
            problems.append(Problem(row.seq, f"rows {seq + 1} to {row.seq - 1} are missing"))
        elif row.previous != previous:
            problems.append(Problem(row.seq, "it does not follow the row before"))
        if digest(row) != row.hash:
            problems.append(Problem(row.seq, "its content was changed"))
        if row.seq == int(known_seq) and row.hash != known_hash:
            problems.append(Problem(row.seq, "it is not the row that was noted"))
        seq, previous = row.seq, row.hash
    if seq < int(known_seq):
        problems.append(Problem(int(known_seq), "the row that was noted is missing"))
    last = AUDIT_HEAD.first(conn, AUDIT_HEAD.select)
    if (last.seq, last.hash) != (seq, previous) if last else rows > 0:
        problems.append(Problem(seq, "the last row is not the one that was appended last"))
    return Verdict(rows, f"{seq}:{previous}", tuple(problems[:MAX_PROBLEMS]))


def _in_order(conn: Connection) -> Iterator[AuditRecord]:
    seq = -(2**31)  # whatever somebody inserted is read too
    while True:
        query = AUDIT.select.where(_audit.seq > seq).order_by(_audit.seq).limit(_BATCH)
        batch = AUDIT.all(conn, query)
        yield from batch
        if len(batch) < _BATCH:
            return
        seq = batch[-1].seq


def _text(text: str, times: int = 1) -> str:
    return clean_text(text[: 2 * times * MAX_TEXT])[: times * MAX_TEXT]


def _cut_entry(entry: Entry, times: int) -> Entry:
    """Return an entry whose texts are clean and at most so many times as long as a row's."""
    details = _cut_texts(dict(entry.details), times * MAX_DETAIL)
    return replace(entry, target=_text(entry.target, times), details=details)


def _cut_texts(value: Any, limit: int) -> Any:
    """Return the JSON form of details, each text and each name of a member cut and clean."""
    if isinstance(value, str):
        return clean_text(value[:limit])
    if isinstance(value, Mapping):
        return {_text(str(name)): _cut_texts(item, limit) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_cut_texts(item, limit) for item in value]
    return value
