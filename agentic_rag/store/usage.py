"""Usage: the tokens of every model call.

There is one row per call. For budgets, the transaction that stores a row also updates the sums per day and model of its
domain, user and key. A row outlives its session, conversation and domain, and keeps their ids. Callers apply prices.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from operator import add
from typing import Any, Final

from sqlalchemy import ColumnElement, Connection, Label, bindparam, func, or_, select, text, update

from agentic_rag.base.events import Usage
from agentic_rag.base.ids import NO_CONVERSATION, ConversationId, SessionId, TurnId
from agentic_rag.base.json_form import Absent
from agentic_rag.store.clock import first_id, new_id, now, seconds_of
from agentic_rag.store.columns import BigInt, Indexed, Key
from agentic_rag.store.record import Record
from agentic_rag.store.statements import Prepared


class UsageRecord(Record, table=True):
    """The tokens of one model call, including failed ones. ``input`` counts uncached input only."""

    __tablename__ = "usage"

    id: Key[str]
    session_id: SessionId
    turn_id: Indexed[TurnId | None] = None
    """None if the call made a compaction's summary or a title, or proposed memories."""
    step: int = 0
    conversation_id: ConversationId = NO_CONVERSATION
    domain_id: str = ""
    user_id: str = ""
    key_id: str = ""
    """The key that authorised the turn's message; empty: the local user's."""
    agent: str = ""
    """Path of delegates; empty for the main agent."""
    model: str
    input: int
    cache_read: int
    cache_write: int
    output: int
    dropped_citations: int = 0
    """Citations of the call that do not match their passage and were not displayed."""
    unverified_citations: int = 0
    """Citations of the call that occur in their passage but share no word with the statement they support."""
    cache_miss: str = ""
    """Why the service could not reuse its prompt cache, in the service's words; empty if it could or does not say."""
    cache_missed: int = 0
    """Input tokens that the prompt cache would have held otherwise."""
    created_at: str


NO_SESSION: Final = SessionId("")


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageLabels:
    """Who pays for model calls outside of turns, and their name in the usage. Fields as in `UsageRecord`."""

    domain_id: str
    agent: str
    session_id: SessionId = NO_SESSION
    conversation_id: ConversationId = NO_CONVERSATION
    user_id: str = ""
    key_id: str = ""


def row_of(labels: UsageLabels, model: str, spent: Usage) -> UsageRecord:
    """Return the row of a call that has just ended."""
    return UsageRecord(
        id=new_id("usage"),
        session_id=labels.session_id,
        conversation_id=labels.conversation_id,
        domain_id=labels.domain_id,
        user_id=labels.user_id,
        key_id=labels.key_id,
        agent=labels.agent,
        model=model,
        input=spent.input,
        cache_read=spent.cache_read,
        cache_write=spent.cache_write,
        output=spent.output,
        created_at=now(),
    )


class UsageGroup(StrEnum):
    """The fields by which usage can be grouped."""

    DOMAIN = "domain"
    USER = "user"
    KEY = "key"
    MODEL = "model"
    AGENT = "agent"
    DAY = "day"
    CACHE_MISS = "cacheMiss"


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageTotal:
    """Tokens of ``calls`` model calls with these values in common; fields that are not grouped by are absent."""

    domain_id: Absent[str] = None
    user_id: Absent[str] = None
    key_id: Absent[str] = None
    model: Absent[str] = None
    agent: Absent[str] = None
    day: Absent[str] = None
    """The day in UTC."""
    cache_miss: Absent[str] = None
    """Why the prompt cache missed, as the model's service says; empty for the other calls."""
    calls: int
    input: int
    cache_read: int
    cache_write: int
    output: int
    dropped_citations: int
    unverified_citations: int
    cost: Absent[str] = None
    """Cost of the calls that have a price; absent if the operator configured no prices."""
    currency: Absent[str] = None
    unpriced_calls: Absent[int] = None
    """Number of calls whose model has no price; absent if there are none."""
    cache_missed: Absent[int] = None
    """Input tokens that the prompt cache would have held, had the prompt not changed; absent if there are none."""


_APART = 3600.0
"""Maximum seconds between the creation of a row's id and its date, with a generous margin for wrong clocks."""


class Scope(StrEnum):
    """The subject whose usage is summed by day."""

    DOMAIN = "domain"
    USER = "user"
    KEY = "key"


class DaySumRecord(Record, table=True):
    """The tokens that one domain, user or key spent with a model on a day (UTC)."""

    __tablename__ = "usage_day_sums"

    scope: Key[Scope]
    subject: Key[str]
    day: Key[str]
    model: Key[str]
    input: BigInt
    cache_read: BigInt
    cache_write: BigInt
    output: BigInt


USAGE = UsageRecord.__table__
DAY_SUMS = DaySumRecord.__table__
_usage = USAGE.c
_sums = DAY_SUMS.c

_TOKENS = ("input", "cache_read", "cache_write", "output")


@cache
def _addition(count: int) -> tuple[Prepared, Sequence[str]]:
    """Return a statement that adds to ``count`` sums, and the names of its parameters, sum by sum."""
    binds = [
        bindparam(f"{name}_{place}", type_=_sums[name].type) for place in range(count) for name in DaySumRecord.names
    ]
    width = len(DaySumRecord.names)
    rows = (", ".join(f":{bind.key}" for bind in binds[at : at + width]) for at in range(0, len(binds), width))
    sums = ", ".join(f"{name} = usage_day_sums.{name} + excluded.{name}" for name in _TOKENS)
    statement = text(
        f"INSERT INTO usage_day_sums ({', '.join(DaySumRecord.names)}) VALUES {', '.join(f'({row})' for row in rows)} "
        f"ON CONFLICT (scope, subject, day, model) DO UPDATE SET {sums}"
    )
    return Prepared(statement.bindparams(*binds)), [bind.key for bind in binds]


def put(conn: Connection, rows: Iterable[UsageRecord]) -> None:
    """Store the usage of calls that have ended."""
    spent: dict[tuple[Scope, str, str, str], tuple[int, ...]] = {}
    for row in rows:
        row.insert(conn)
        tokens = row.input, row.cache_read, row.cache_write, row.output
        for scope, subject in ((Scope.DOMAIN, row.domain_id), (Scope.USER, row.user_id), (Scope.KEY, row.key_id)):
            if subject:
                key = scope, subject, row.created_at[:10], row.model
                spent[key] = tuple(map(add, spent[key], tokens)) if key in spent else tokens
    if spent:
        # the same order everywhere, or two transactions that lock several sums could deadlock
        values = [value for key in sorted(spent) for value in (*key, *spent[key])]
        statement, names = _addition(len(spent))
        statement.run(conn, **dict(zip(names, values, strict=True)))


def day_sums(conn: Connection, scope: Scope, subject: str, since: str) -> list[DaySumRecord]:
    """Return the usage of a domain, user or key since a day (included), by day and model."""
    where = (_sums.scope == scope, _sums.subject == subject, _sums.day >= since)
    return DaySumRecord.all(conn, select(DAY_SUMS).where(*where).order_by(_sums.day, _sums.model))


def of_session(conn: Connection, session_id: SessionId) -> list[UsageRecord]:
    """Return the calls of a session, oldest first."""
    query = select(USAGE).where(_usage.session_id == session_id)
    return UsageRecord.all(conn, query.order_by(_usage.id))


def count_calls(conn: Connection, user_id: str, agent: str, since: str) -> int:
    """Return the number of calls that an agent made for a user since a time."""
    own = (_usage.user_id == user_id, _usage.agent == agent, *_since(since))
    return int(conn.execute(select(func.count()).where(*own)).scalar_one())


def _since(at: str) -> tuple[ColumnElement[bool], ...]:
    """Return the conditions that a call ended at or after a time.

    Ids sort by time, so that the primary key is the only index needed. An id is created at about its row's time.
    """
    try:
        first = first_id("usage", seconds_of(at) - _APART)
    except ValueError:  # an invalid date, for example, is compared as text
        return (_usage.created_at >= at,)
    return _usage.created_at >= at, _usage.id >= first


def rename_user(conn: Connection, user_id: str, name: str) -> None:
    """Count a user's calls under another name."""
    conn.execute(update(USAGE).where(_usage.user_id == user_id).values(user_id=name))
    where = (_sums.scope == Scope.USER, _sums.subject == user_id)
    conn.execute(update(DAY_SUMS).where(*where).values(subject=name))


def of_turn(conn: Connection, turn_id: TurnId) -> Usage:
    """Return the usage of a turn so far."""
    sums = [func.coalesce(func.sum(_usage[name]), 0) for name in ("input", "cache_read", "cache_write", "output")]
    row = conn.execute(select(*sums).where(_usage.turn_id == turn_id)).one()
    return Usage(*(int(number) for number in row))


def totals_of_turns(conn: Connection, turn_ids: Sequence[TurnId]) -> list[tuple[TurnId, UsageTotal]]:
    """Return the usage of turns so far, by model and day, without their delegates."""
    by = [_GROUPS[UsageGroup.MODEL], _GROUPS[UsageGroup.DAY]]
    query = (
        select(_usage.turn_id, *by, *_sum_columns()).where(_usage.turn_id.in_(turn_ids)).group_by(_usage.turn_id, *by)
    )
    rows = [dict(row) for row in conn.execute(query).mappings()]
    return [(row.pop("turn_id"), _total(row)) for row in rows]


_SUMS = (*_TOKENS, "dropped_citations", "unverified_citations", "cache_missed")
_GROUPS = {
    UsageGroup.DOMAIN: _usage.domain_id.label("domain_id"),
    UsageGroup.USER: _usage.user_id.label("user_id"),
    UsageGroup.KEY: _usage.key_id.label("key_id"),
    UsageGroup.MODEL: _usage.model.label("model"),
    UsageGroup.AGENT: _usage.agent.label("agent"),
    UsageGroup.DAY: func.substr(_usage.created_at, 1, 10).label("day"),
    UsageGroup.CACHE_MISS: _usage.cache_miss.label("cache_miss"),
}


def _sum_columns() -> list[Label[int]]:
    tokens = [func.coalesce(func.sum(_usage[name]), 0).label(name) for name in _SUMS]
    return [func.count().label("calls"), *tokens]


def _total(row: Mapping[Any, Any]) -> UsageTotal:
    sums = {name: int(row[name]) for name in _SUMS}
    return UsageTotal(**{**row, **sums, "cache_missed": sums["cache_missed"] or None})


def totals(
    conn: Connection,
    groups: Sequence[UsageGroup],
    since: str,
    until: str,
    *,
    user_id: str,
    domain_ids: Sequence[str] | None,
) -> list[UsageTotal]:
    """Return the sums of each group, unordered. ``since`` (included) and ``until`` (not included) are times, or empty.

    The sums cover the calls of ``user_id`` and those in ``domain_ids``, or all calls if ``domain_ids`` is None.
    """
    by = [_GROUPS[group] for group in groups]
    query = select(*by, *_sum_columns())
    if domain_ids is not None:
        query = query.where(or_(_usage.user_id == user_id, _usage.domain_id.in_(domain_ids)))
    if since:
        query = query.where(*_since(since))
    if until:
        query = query.where(_usage.created_at < until)
    rows = conn.execute(query.group_by(*by) if by else query).mappings()
    return [_total(row) for row in rows if row["calls"]]


def dropped_of_turn(conn: Connection, turn_id: TurnId) -> int:
    """Return the number of citations of a turn that did not match their passage."""
    total = select(func.sum(_usage.dropped_citations)).where(_usage.turn_id == turn_id)
    return conn.execute(total).scalar() or 0
