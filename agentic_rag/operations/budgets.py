"""Budgets as operators set them and as other users see them.

Admins see the budgets of their domains, users their own. This module checks these rights and writes the audit rows.
`agentic_rag.runtime.spending` enforces the budgets.
"""

from dataclasses import dataclass
from decimal import Decimal

from sqlalchemy import Connection

from agentic_rag.access.auditing import audit, change
from agentic_rag.access.users import LOCAL, User
from agentic_rag.base.errors import InvalidInput, NotFound
from agentic_rag.models.prices import Prices
from agentic_rag.runtime.spending import Spending, Standing, standing_of
from agentic_rag.store import budgets, domains, keys, users
from agentic_rag.store.budgets import EVERY, BudgetRecord, Period, Unit
from agentic_rag.store.clock import new_id, now
from agentic_rag.store.database import Database
from agentic_rag.store.usage import Scope


@dataclass(frozen=True, slots=True)
class BudgetState:
    """A budget and its current use by ``subject``.

    ``standing`` is None for a budget that applies to every subject separately.
    """

    budget: BudgetRecord
    subject: str
    standing: Standing | None


@dataclass(frozen=True, slots=True)
class BudgetWish:
    """The budget that an operator wants to set.

    Amounts are tokens, or money in the currency of the price list.
    """

    scope: Scope
    subject: str
    unit: Unit
    period: Period
    soft: Decimal | None
    hard: Decimal | None


class Budgets:
    """The budgets of a database. ``spending`` enforces them."""

    def __init__(self, database: Database, spending: Spending) -> None:
        self._db = database
        self._spending = spending

    @property
    def currency(self) -> str:
        """The currency of money budgets; empty if no model has a price."""
        return self._spending.prices.currency

    async def list_for(self, user: User) -> list[BudgetState]:
        """Return the budgets that a user may see.

        Operators see all budgets. Other users see their own and those of the domains they administer.
        """
        prices = self._spending.prices
        return await self._db.read(lambda conn: _states(conn, user, prices))

    async def list_of_domains(self, most: int) -> list[BudgetState]:
        """Return at most ``most`` budgets that name a domain, by domain, without checking rights."""
        prices = self._spending.prices
        return await self._db.read(
            lambda conn: [_state(conn, budget, prices) for budget in budgets.list_of_domains(conn, most)]
        )

    async def put(self, wish: BudgetWish) -> BudgetState:
        """Set a budget, and wake the calls that wait for it.

        It replaces the budget with the same scope, subject, unit and period.

        Raises:
            InvalidInput: an amount is invalid, or the domain, user or key does not exist.
        """
        _check_amounts(wish, self._spending.prices)
        at = now()
        record = BudgetRecord(
            id=new_id("bud"),
            scope=wish.scope,
            subject=wish.subject,
            unit=wish.unit,
            period=wish.period,
            soft=None if wish.soft is None else plain(wish.soft),
            hard=None if wish.hard is None else plain(wish.hard),
            created_at=at,
            updated_at=at,
        )
        details = {"unit": record.unit, "period": record.period, "soft": record.soft, "hard": record.hard}
        audit_entry = change("budget.set", f"{wish.scope}/{wish.subject}", **details)
        prices = self._spending.prices

        def store(conn: Connection) -> BudgetState:
            _check_subject(conn, wish)
            stored_budget = budgets.put(conn, record)
            audit(conn, audit_entry)
            return _state(conn, stored_budget, prices)

        state = await self._db.write(store, durable=True)
        await self._spending.refresh()
        self._spending.wake_waiting()
        return state

    async def remove(self, budget_id: str) -> None:
        """Remove a budget and wake the calls that wait for it.

        Raises:
            NotFound: there is no budget with this id.
        """
        budget = await self._db.read(lambda conn: budgets.get(conn, budget_id))
        if budget is None:
            raise NotFound("budget", budget_id)
        audit_entry = change(
            "budget.remove", f"{budget.scope}/{budget.subject}", unit=budget.unit, period=budget.period
        )

        def store(conn: Connection) -> None:
            budgets.remove(conn, budget_id)
            audit(conn, audit_entry)

        await self._db.write(store, durable=True)
        await self._spending.refresh()
        self._spending.wake_waiting()


def plain(amount: Decimal) -> str:
    """Return an exact amount as text without an exponent or trailing zeros."""
    text = format(amount, "f")
    return text.rstrip("0").rstrip(".") if "." in text else text


def _check_amounts(wish: BudgetWish, prices: Prices) -> None:
    if wish.soft is None and wish.hard is None:
        raise InvalidInput("hard", "a budget needs a hard bound, a soft one, or both.")
    for name, amount in (("soft", wish.soft), ("hard", wish.hard)):
        if amount is not None and wish.unit is Unit.TOKENS and amount != amount.to_integral_value():
            raise InvalidInput(name, "tokens are whole.")
    if wish.soft is not None and wish.hard is not None and wish.soft > wish.hard:
        raise InvalidInput("soft", "it must not be more than the hard bound.")
    if wish.unit is Unit.MONEY and not prices.currency:
        raise InvalidInput("unit", "a budget in money needs prices: set AGENTIC_RAG_PRICES to a file of them.")


def _check_subject(conn: Connection, wish: BudgetWish) -> None:
    match wish.scope:
        case Scope.DOMAIN:
            there = domains.get(conn, wish.subject) is not None
        case Scope.USER:
            there = wish.subject == LOCAL.id or users.get(conn, wish.subject) is not None
        case Scope.KEY:
            there = any(key.id == wish.subject for key in keys.list_all(conn))
    if not there and wish.subject != EVERY:
        raise InvalidInput("subject", f"there is no {wish.scope} {wish.subject!r}. {EVERY!r} stands for each of them.")


def _states(conn: Connection, user: User, prices: Prices) -> list[BudgetState]:
    every = budgets.list_all(conn)
    own = [(Scope.USER, user.id), *((Scope.DOMAIN, domain) for domain in sorted(user.administered))]
    own += [(Scope.KEY, key.id) for key in keys.list_all(conn) if key.user_id == user.id and key.revoked_at is None]
    if user.operator:
        return [_state(conn, budget, prices) for budget in every]
    return [
        BudgetState(budget, subject, standing_of(conn, prices, budget, subject))
        for scope, subject in own
        for budget in budgets.of_subject(every, scope, subject)
    ]


def _state(conn: Connection, budget: BudgetRecord, prices: Prices) -> BudgetState:
    standing = None if budget.subject == EVERY else standing_of(conn, prices, budget, budget.subject)
    return BudgetState(budget, budget.subject, standing)
