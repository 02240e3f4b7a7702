"""The audit log: append-only rows, each holding the hash of the previous row.

This module hashes rows, appends them inside the transaction of the audited action, and finds rows that were changed,
removed or inserted. Actors and actions are plain text here. A second table stores the number and hash of the last row,
so that a check notices rows cut off at the end. An attacker who can rewrite both tables is detected only by a `head`
that was noted elsewhere.
"""

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Connection

from agentic_rag.base.messages import clean_text
from agentic_rag.store.clock import now
from agentic_rag.store.columns import Key
from agentic_rag.store.record import Record


class AuditOutcome(StrEnum):
    """The outcome of an action: done, refused to the caller, or a model's tool call that was denied."""

    DONE = "done"
    REFUSED = "refused"
    DENIED = "denied"


MAX_TEXT = 300
"""Maximum length of an actor, action or target in characters; longer texts are cut."""
MAX_DETAIL = 4_000
"""Maximum length of one text in the details, in characters."""
MAX_PROBLEMS = 100
"""Maximum number of problems that one check lists."""
_BATCH = 1_000
_LOCK = 0x61756469  # an arbitrary constant: the advisory lock makes PostgreSQL append rows one after the other


@dataclass(frozen=True, slots=True)
class Entry:
    """The content of a row: an actor, the action and its target.

    ``details`` hold names and codes, never a secret. ``count`` is the number of identical actions that the row stands
    for.
    """

    actor: str
    action: str
    target: str = ""
    outcome: AuditOutcome = AuditOutcome.DONE
    details: Mapping[str, Any] = field(default_factory=dict)
    count: int = 1


class AuditRecord(Record, table=True):
    """One row of the audit log, chained to the previous row by ``previous``; never updated, never deleted."""

    __tablename__ = "audit"

    seq: Key[int]
    at: str
    actor: str
    action: str
    target: str
    outcome: AuditOutcome
    details: dict[str, Any]
    count: int
    """Number of identical actions that the row stands for."""
    previous: str
    """The ``hash`` of the previous row; empty in the first row."""
    hash: str


class AuditHeadRecord(Record, table=True):
    """The number and hash of the last audit row; the table has a single row."""

    __tablename__ = "audit_head"

    id: Key[int] = 1
    seq: int
    hash: str


@dataclass(frozen=True, slots=True)
class BrokenPlace:
    """A place where the chain is broken."""

    seq: int
    what: str


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result of a check.

    ``head`` (``seq:hash``) names the last row. A head noted elsewhere proves the rows up to it.
    """

    rows: int
    head: str
    problems: tuple[BrokenPlace, ...]


AUDIT = AuditRecord.__table__
AUDIT_HEAD = AuditHeadRecord.__table__
_audit = AUDIT.c


def last_actor(conn: Connection, action: str, target: str, since: str) -> str | None:
    """Return the actor of the last such action at or after ``since``, or None."""
    query = sa.select(_audit.actor).where(
        _audit.action == action,
        _audit.target == target,
        _audit.outcome == AuditOutcome.DONE,
        _audit.at >= since,
    )
    actor: str | None = conn.execute(query.order_by(_audit.seq.desc()).limit(1)).scalar()
    return actor


REDACTION = "audit_redaction"
"""Name of the engine's execution option that holds a function which removes secrets from an `Entry`."""


def append(conn: Connection, entry: Entry) -> AuditRecord:
    """Append a row inside the caller's transaction, so that both are committed or neither.

    Texts are cut and redacted before the row is hashed, because a stored row can never be changed.
    """
    redact: Callable[[Entry], Entry] | None = conn.engine.get_execution_options().get(REDACTION)
    # The first cut keeps twice the length: otherwise the cut could split a secret, and redaction would miss the half.
    entry = _cut_entry(entry, 2)
    entry = _cut_entry(redact(entry) if redact is not None else entry, 1)
    if conn.dialect.name == "postgresql":
        conn.execute(sa.text("SELECT pg_advisory_xact_lock(:key)"), {"key": _LOCK})
    last = AuditHeadRecord.first(conn, sa.select(AUDIT_HEAD))
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
    chained = record.replace(hash=digest(record))
    chained.insert(conn)
    conn.execute(sa.delete(AUDIT_HEAD))
    AuditHeadRecord(seq=chained.seq, hash=chained.hash).insert(conn)
    return chained


def digest(record: AuditRecord) -> str:
    """Return the SHA-256 of a row: of all columns except ``hash``, including ``previous``, as canonical JSON."""
    fields = {name: value for name, value in record.column_values().items() if name != "hash"}
    return hashlib.sha256(json.dumps(fields, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def page(
    conn: Connection,
    limit: int,
    *,
    before: int | None = None,
    actor: str | None = None,
    outcome: AuditOutcome | None = None,
) -> list[AuditRecord]:
    """Return rows, newest first. ``before``: only rows with a smaller number."""
    query = sa.select(AUDIT).order_by(_audit.seq.desc()).limit(limit)
    if before is not None:
        query = query.where(_audit.seq < before)
    for column, value in ((_audit.actor, actor), (_audit.outcome, outcome)):
        if value is not None:
            query = query.where(column == value)
    return AuditRecord.all(conn, query)


def check(conn: Connection, known_head: str | None = None) -> Verdict:
    """Check the whole chain.

    ``known_head`` is a head (``seq:hash``) that was noted earlier and must still be part of the chain.
    """
    problems: list[BrokenPlace] = []
    rows, seq, previous = 0, 0, ""
    known_seq, _, known_hash = (known_head or "0:").partition(":")
    for row in _in_order(conn):
        rows += 1
        if row.seq != seq + 1:
            problems.append(BrokenPlace(row.seq, f"rows {seq + 1} to {row.seq - 1} are missing"))
        elif row.previous != previous:
            problems.append(BrokenPlace(row.seq, "it does not follow the row before"))
        if digest(row) != row.hash:
            problems.append(BrokenPlace(row.seq, "its content was changed"))
        if row.seq == int(known_seq) and row.hash != known_hash:
            problems.append(BrokenPlace(row.seq, "it is not the row that was noted"))
        seq, previous = row.seq, row.hash
    if seq < int(known_seq):
        problems.append(BrokenPlace(int(known_seq), "the row that was noted is missing"))
    last = AuditHeadRecord.first(conn, sa.select(AUDIT_HEAD))
    if (last.seq, last.hash) != (seq, previous) if last else rows > 0:
        problems.append(BrokenPlace(seq, "the last row is not the one that was appended last"))
    return Verdict(rows, f"{seq}:{previous}", tuple(problems[:MAX_PROBLEMS]))


def _in_order(conn: Connection) -> Iterator[AuditRecord]:
    seq = -(2**31)  # negative, so that inserted rows with numbers below 1 are read too
    while True:
        query = sa.select(AUDIT).where(_audit.seq > seq).order_by(_audit.seq).limit(_BATCH)
        batch = AuditRecord.all(conn, query)
        yield from batch
        if len(batch) < _BATCH:
            return
        seq = batch[-1].seq


def _text(text: str, times: int = 1) -> str:
    return clean_text(text[: 2 * times * MAX_TEXT])[: times * MAX_TEXT]


def _cut_entry(entry: Entry, times: int) -> Entry:
    """Return an entry with cleaned texts, cut to ``times`` the maximum length of a row's texts."""
    details = _cut_texts(dict(entry.details), times * MAX_DETAIL)
    return replace(entry, target=_text(entry.target, times), details=details)


def _cut_texts(value: Any, limit: int) -> Any:
    """Return the details as JSON, with each text and each member name cleaned and cut."""
    if isinstance(value, str):
        return clean_text(value[:limit])
    if isinstance(value, Mapping):
        return {_text(str(name)): _cut_texts(item, limit) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_cut_texts(item, limit) for item in value]
    return value
