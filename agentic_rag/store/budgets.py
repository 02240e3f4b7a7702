"""Budgets: spending limits of a domain, a user or a key per day or month, and reservations of running calls.

This module owns two tables and their queries. The ``usage`` module stores the actual spending. Prices are unknown here:
amounts are exact decimal text.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from sqlalchemy import Connection, UniqueConstraint, and_, delete, insert, or_, select

from agentic_rag.store import signals
from agentic_rag.store.columns import BigInt, Indexed, Key
from agentic_rag.store.database_time import DatabaseTime
from agentic_rag.store.record import Record
from agentic_rag.store.signals import SignalKind
from agentic_rag.store.usage import Scope

EVERY = "*"
"""The subject of a budget that applies to each domain, user or key separately."""


class Unit(StrEnum):
    """The unit that a budget counts."""

    TOKENS = "tokens"
    MONEY = "money"


class Period(StrEnum):
    """The period of a budget; a period begins at midnight UTC, of each day or of the first day of a month."""

    DAY = "day"
    MONTH = "month"


@dataclass(frozen=True, slots=True)
class Payer:
    """The domain, user and key that a model call is charged to; an empty field charges none."""

    domain_id: str
    user_id: str
    key_id: str = ""

    def subject(self, scope: Scope) -> str:
        """Return the subject whose budgets of this scope apply."""
        return {Scope.DOMAIN: self.domain_id, Scope.USER: self.user_id, Scope.KEY: self.key_id}[scope]


class BudgetRecord(Record, table=True):
    """A spending limit for one subject, or for each subject of a scope (``subject``: `EVERY`).

    Exceeding ``soft`` causes a notice, exceeding ``hard`` a refusal. There is one budget per scope, subject, unit and
    period. A budget that names its subject takes precedence over one for `EVERY` subject.
    """

    __tablename__ = "budgets"
    __table_args__ = (UniqueConstraint("scope", "subject", "unit", "period"),)

    id: Key[str]
    scope: Scope
    subject: str
    unit: Unit
    period: Period
    soft: str | None
    hard: str | None
    created_at: str
    updated_at: str

    @property
    def place(self) -> tuple[Scope, Unit, Period]:
        return self.scope, self.unit, self.period


class ReservationRecord(Record, table=True):
    """The maximum tokens of a running call; the reservation counts until the usage is stored, or until ``until``."""

    __tablename__ = "budget_reservations"

    id: Key[str]
    domain_id: Indexed[str]
    user_id: Indexed[str]
    key_id: Indexed[str]
    turn_id: str
    """The user's turn that the call belongs to; empty if there is none."""
    model: str
    sent: BigInt
    received: BigInt
    until: str


BUDGETS = BudgetRecord.__table__
RESERVATIONS = ReservationRecord.__table__
_budgets = BUDGETS.c
_reserved = RESERVATIONS.c
_COLUMNS = {Scope.DOMAIN: _reserved.domain_id, Scope.USER: _reserved.user_id, Scope.KEY: _reserved.key_id}


def list_all(conn: Connection) -> list[BudgetRecord]:
    """Return all budgets, by scope and subject."""
    return BudgetRecord.all(
        conn, select(BUDGETS).order_by(_budgets.scope, _budgets.subject, _budgets.unit, _budgets.period)
    )


def list_of_domains(conn: Connection, most: int) -> list[BudgetRecord]:
    """Return at most ``most`` budgets that name a domain, sorted by domain."""
    query = select(BUDGETS).where(_budgets.scope == Scope.DOMAIN, _budgets.subject != EVERY)
    return BudgetRecord.all(conn, query.order_by(_budgets.subject, _budgets.unit, _budgets.period).limit(most))


def get(conn: Connection, budget_id: str) -> BudgetRecord | None:
    """Return the budget, or None."""
    return BudgetRecord.first(conn, select(BUDGETS).where(_budgets.id == budget_id))


def put(conn: Connection, budget: BudgetRecord) -> BudgetRecord:
    """Store a budget, replacing the one for the same scope, subject, unit and period, whose id is kept."""
    signals.send(conn, SignalKind.BUDGETS)
    budget.put(conn, ("scope", "subject", "unit", "period"), keep=("id", "created_at"))
    same = (
        _budgets.scope == budget.scope,
        _budgets.subject == budget.subject,
        _budgets.unit == budget.unit,
        _budgets.period == budget.period,
    )
    stored = BudgetRecord.first(conn, select(BUDGETS).where(*same))
    assert stored is not None
    return stored


def remove(conn: Connection, budget_id: str) -> None:
    """Remove a budget, if it exists."""
    conn.execute(delete(BUDGETS).where(_budgets.id == budget_id))
    signals.send(conn, SignalKind.BUDGETS)


def forget(conn: Connection, scope: Scope, subject: str) -> None:
    """Remove the budgets of a subject that was deleted."""
    conn.execute(delete(BUDGETS).where(_budgets.scope == scope, _budgets.subject == subject))
    signals.send(conn, SignalKind.BUDGETS)


def of_subject(budgets: Sequence[BudgetRecord], scope: Scope, subject: str) -> list[BudgetRecord]:
    """Select the budgets that apply to one domain, user or key; a budget that names it replaces the general one."""
    applying = [budget for budget in budgets if budget.scope is scope and budget.subject in (subject, EVERY)]
    by_place = {budget.place: budget for budget in sorted(applying, key=lambda budget: budget.subject != EVERY)}
    return list(by_place.values())


def of_payer(budgets: Sequence[BudgetRecord], payer: Payer) -> list[BudgetRecord]:
    """Select the budgets that a payer's call counts against."""
    if not budgets:
        return []
    subjects = [(scope, payer.subject(scope)) for scope in Scope]
    return [budget for scope, subject in subjects if subject for budget in of_subject(budgets, scope, subject)]


def lock(conn: Connection, payer: Payer) -> list[BudgetRecord]:
    """Lock and return the budgets that a payer's call counts against.

    Other reservations against these budgets wait until this transaction ends.
    """
    conditions = [
        and_(_budgets.scope == scope, _budgets.subject.in_((subject, EVERY)))
        for scope in Scope
        if (subject := payer.subject(scope))
    ]
    if not conditions:
        return []
    # the same order everywhere, or two transactions could deadlock
    query = select(BUDGETS).where(or_(*conditions)).order_by(_budgets.id).with_for_update()
    return of_payer(BudgetRecord.all(conn, query), payer)


def reserve(conn: Connection, record: ReservationRecord, seconds: float) -> None:
    """Store a reservation that expires after ``seconds``."""
    values = record.column_values() | {"until": DatabaseTime(seconds)}
    conn.execute(insert(RESERVATIONS).values(**values))


def release(conn: Connection, ids: Sequence[str]) -> None:
    """Remove reservations, in the transaction that stores the usage of the calls."""
    if ids:
        conn.execute(delete(RESERVATIONS).where(_reserved.id.in_(ids)))


def list_reserved(conn: Connection, scope: Scope, subject: str, without: Sequence[str] = ()) -> list[ReservationRecord]:
    """Return the running calls' reservations against a domain, user or key, except those with an id in ``without``."""
    running = [_COLUMNS[scope] == subject, _reserved.until > DatabaseTime()]
    if without:
        running.append(_reserved.id.not_in(without))
    return ReservationRecord.all(conn, select(RESERVATIONS).where(*running))


def release_of_turns(conn: Connection, turn_ids: Sequence[str]) -> None:
    """Remove the reservations of turns whose owner is gone."""
    if turn_ids:
        conn.execute(delete(RESERVATIONS).where(_reserved.turn_id.in_(turn_ids)))


def has_reservations(conn: Connection) -> bool:
    """Return whether any reservation exists."""
    return conn.execute(select(_reserved.id).limit(1)).first() is not None


def release_left(conn: Connection, *, alone: bool) -> None:
    """Remove the reservations of calls that ended without releasing them.

    Without ``alone``, only expired reservations are removed. ``alone`` means that no other process can hold any.
    """
    leftovers = delete(RESERVATIONS)
    conn.execute(leftovers if alone else leftovers.where(_reserved.until <= DatabaseTime()))
