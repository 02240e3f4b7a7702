"""Budgets for model calls: each call is checked against its budgets before it begins.

Owns the check and the reservations. A call may begin while the spent amount plus the reservations of running calls is
less than each hard budget. So a budget is exceeded by at most the cost of the last call that began. The attempts of a
step, after a service broke off its answer, count as one call.

A reservation is the expected maximum cost of a call. It is stored beside the usage and deleted in the transaction that
stores the call's real cost. Reservations are locked per budget, so that several processes of one store share the
budgets. Without budgets nothing is read and nothing written. This module does not resolve the ids of a payer.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Final

import anyio
from sqlalchemy import Connection

from agentic_rag.base.budget_errors import BudgetExceeded, BudgetUnpriced
from agentic_rag.base.errors import StorageError, StorageFull
from agentic_rag.base.events import Notice, Usage
from agentic_rag.models.base import ModelRequest
from agentic_rag.models.prices import Prices
from agentic_rag.models.profiles import profile_of
from agentic_rag.runtime.core.window import message_tokens, tokens_of
from agentic_rag.store import budgets, deliveries, usage
from agentic_rag.store.budgets import BudgetRecord, Payer, Period, ReservationRecord, Unit
from agentic_rag.store.clock import new_id, now, seconds_until
from agentic_rag.store.database import Database
from agentic_rag.store.deliveries import Event
from agentic_rag.store.endpoints import EventKind, of_event
from agentic_rag.store.usage import Scope

logger = logging.getLogger(__name__)

REFRESH_SECONDS: Final = 5.0
"""Longest time until a budget that another process has set applies here."""
LEFT_SECONDS: Final = 300.0
"""Between two checks for reservations that were never released. Expired ones do not count meanwhile."""
PATIENCE_SECONDS: Final = 20.0
"""How long a call waits for other calls to release their reservations."""
LOOK_SECONDS: Final = 1.0
"""Between two checks for reservations that other processes have released."""
RELEASE_SECONDS: Final = 5.0
"""How long a release waits for the store."""
MARGIN: Final = 1.1
"""Factor by which the model's count of a request may exceed ours."""

_WHOSE = {Scope.DOMAIN: "this domain", Scope.USER: "this user", Scope.KEY: "this key"}


@dataclass(frozen=True, slots=True)
class Standing:
    """The used part of a budget, in its unit and exact.

    ``since``: first day of the current period. ``renews_at``: start of the next one. ``unpriced``: models with calls of
    unknown cost.
    """

    spent: Decimal
    reserved: Decimal
    since: str
    renews_at: str
    unpriced: tuple[str, ...] = ()

    @property
    def used(self) -> Decimal:
        return self.spent + self.reserved


def bounds_of(period: Period, day: date) -> tuple[str, str]:
    """Return the first day of the period that contains ``day``, and the start of the next period (UTC)."""
    if period is Period.DAY:
        return day.isoformat(), f"{day + timedelta(days=1)}T00:00:00.000Z"
    # 32 days after the first of any month lie in the next month.
    first = day.replace(day=1)
    return first.isoformat(), f"{(first + timedelta(days=32)).replace(day=1)}T00:00:00.000Z"


def standing_of(
    conn: Connection, prices: Prices, budget: BudgetRecord, subject: str, without: Sequence[str] = ()
) -> Standing:
    """Return the part of a budget that a subject has used in the current period.

    ``subject``: id of the domain, user or key; a budget for every subject has a separate count for each. ``without``:
    ids of reservations that do not count.
    """
    today = datetime.now(UTC).date()
    since, renews_at = bounds_of(budget.period, today)
    # In this order: each statement in PostgreSQL sees all commits before it. A call that ends between the two reads is
    # counted twice, and other calls wait for that. It is never missing.
    running = budgets.list_reserved(conn, budget.scope, subject, without)
    rows = usage.day_sums(conn, budget.scope, subject, since)
    if budget.unit is Unit.TOKENS:
        spent = sum(row.input + row.cache_read + row.cache_write + row.output for row in rows)
        reserved = sum(reservation.sent + reservation.received for reservation in running)
        return Standing(Decimal(spent), Decimal(reserved), since, renews_at)
    cost, unpriced = Decimal(0), set()
    for row in rows:
        price, tokens = prices.find(row.model, row.day), Usage(row.input, row.cache_read, row.cache_write, row.output)
        if price is not None:
            cost += price.cost(tokens)
        elif tokens != Usage():
            unpriced.add(row.model)
    reserved_cost = Decimal(0)
    for reservation in running:
        price = prices.find(reservation.model, today.isoformat())
        reserved_cost += price.most(reservation.sent, reservation.received) if price is not None else 0
    return Standing(cost, reserved_cost, since, renews_at, tuple(sorted(unpriced)))


@dataclass(frozen=True, slots=True)
class _Verdict:
    """The result of a check.

    ``exceeded``: the reason why a call may not begin now. ``near``: budgets whose soft limit the call exceeds.
    """

    exceeded: BudgetExceeded | None = None
    near: tuple[BudgetRecord, ...] = ()


class Spending:
    """The budgets of one store, as this process last read them. Without a call of `refresh` there are none.

    ``patience``: seconds that a call waits for other calls to release their reservations.
    """

    def __init__(self, database: Database, prices: Prices | None = None, patience: float = PATIENCE_SECONDS) -> None:
        self._db = database
        self._patience = patience
        self.prices = prices or Prices()
        self._budgets: tuple[BudgetRecord, ...] = ()
        self._returned = anyio.Event()

    async def refresh(self) -> None:
        """Read the current budgets.

        Raises:
            StorageError: the budgets cannot be read.
        """
        self._budgets = tuple(await self._db.read(budgets.list_all))

    async def release_left(self) -> None:
        """Remove the reservations of a dead process, before this one makes any.

        On a full disk they stay until they expire (see `release_left_behind`), so that the server can start and read.
        """
        if not await self._db.read(budgets.has_reservations):
            return
        try:
            await self._db.write(lambda conn: budgets.release_left(conn, alone=not self._db.shared))
        except StorageFull as exc:
            logger.warning("reservations of an earlier process stay until they expire: %s", exc)

    async def release_left_behind(self) -> None:
        """Delete the reservations of calls whose time is over."""
        if self._budgets:
            await self._db.write(lambda conn: budgets.release_left(conn, alone=False))

    def account(self, payer: Payer, turn_id: str = "") -> "Account":
        """Return the account for the calls of one turn or job.

        ``turn_id``: the user's turn, whose next owner releases remaining reservations. Empty: there is no turn.
        """
        return Account(self, payer, turn_id)

    def governs(self, payer: Payer) -> bool:
        """Return whether any budget applies to calls of a payer."""
        return bool(self._budgets) and bool(budgets.of_payer(self._budgets, payer))

    def check_in(self, conn: Connection, payer: Payer) -> None:
        """Refuse work that would call a model if a budget is used up. Part of the caller's transaction.

        Raises:
            BudgetExceeded: a budget is used up.
        """
        for budget in budgets.of_payer(self._budgets, payer):
            if budget.hard is not None:
                standing = standing_of(conn, self.prices, budget, payer.subject(budget.scope))
                # Reservations do not count here: they may be released, and then the message could have run.
                if standing.spent >= Decimal(budget.hard):
                    raise _refusal(budget, standing)

    def announce_crossed(self, conn: Connection, payer: Payer) -> None:
        """Notify the domain's endpoints of budgets whose limit a payer has reached. Part of the caller's transaction.

        An endpoint is notified once per budget, subject, limit and period.
        """
        if not of_event(conn, EventKind.BUDGET_CROSSED, payer.domain_id):
            return
        for budget in budgets.of_payer(self._budgets, payer):
            subject = payer.subject(budget.scope)
            standing = standing_of(conn, self.prices, budget, subject)
            for name, limit in (("soft", budget.soft), ("hard", budget.hard)):
                if limit is None or standing.spent < Decimal(limit):
                    continue
                facts = {
                    "budgetId": budget.id,
                    "scope": budget.scope.value,
                    "subject": subject,
                    "unit": budget.unit.value,
                    "period": budget.period.value,
                    "limit": name,
                    "amount": limit,
                    "spent": str(standing.spent),
                    "renewsAt": standing.renews_at,
                }
                # With the limit in it, a changed limit is announced again.
                once = f"{budget.id} {subject} {name} {limit} {standing.since}"
                user_id = subject if budget.scope is Scope.USER else ""
                event = Event(EventKind.BUDGET_CROSSED, payer.domain_id, facts, user_id=user_id, once=once)
                deliveries.announce(conn, event)

    async def reserve(
        self, payer: Payer, record: ReservationRecord, seconds: float, own: Sequence[str] = ()
    ) -> tuple[BudgetRecord, ...]:
        """Reserve the expected cost of a call for at most ``seconds``.

        Return the budgets whose soft limit is exceeded.

        Waits for a while for other calls to release their reservations. ``own``: ids of the caller's earlier
        reservations, which are released only after this call. They do not count, because the caller would wait for
        itself.

        Raises:
            BudgetExceeded, BudgetUnpriced: the call may not begin.
            StorageError: the store refuses writes.
        """
        deadline = anyio.current_time() + self._patience
        while True:
            # Taken before the attempt, so that a release during it is not missed.
            returned = self._returned
            verdict = await self._db.write(lambda conn: self._try(conn, payer, record, seconds, own))
            if verdict.exceeded is None:
                return verdict.near
            if not verdict.exceeded.retryable or anyio.current_time() >= deadline:
                raise verdict.exceeded
            with anyio.move_on_after(LOOK_SECONDS):
                await returned.wait()

    def _try(
        self, conn: Connection, payer: Payer, record: ReservationRecord, seconds: float, own: Sequence[str]
    ) -> _Verdict:
        near = []
        # Locked in one order for all callers, so that two calls cannot wait for each other.
        for budget in budgets.lock(conn, payer):
            price = self.prices.find(record.model, now()[:10]) if budget.unit is Unit.MONEY else None
            if budget.unit is Unit.MONEY and price is None and budget.hard is not None:
                raise BudgetUnpriced(record.model)
            standing = standing_of(conn, self.prices, budget, payer.subject(budget.scope), own)
            if budget.hard is not None and standing.used >= Decimal(budget.hard):
                return _Verdict(_refusal(budget, standing))
            if budget.hard is not None and standing.unpriced:  # by a fallback model or an earlier call
                raise BudgetUnpriced(standing.unpriced[0])
            if budget.soft is not None and standing.spent >= Decimal(budget.soft):
                near.append(budget)
        budgets.reserve(conn, record, seconds)
        return _Verdict(near=tuple(near))

    async def release_unused(self, ids: Sequence[str]) -> None:
        """Release the reservations of calls without cost. If the store does not answer, they stay until they expire."""
        try:
            with anyio.move_on_after(RELEASE_SECONDS, shield=True):
                await self._db.write(lambda conn: budgets.release(conn, ids))
        except StorageError as exc:
            logger.warning("reservations are left until their time is over: %s", exc)
        self.wake_waiting()

    def wake_waiting(self) -> None:
        """Wake the calls of this process that wait for released reservations."""
        self._returned.set()
        self._returned = anyio.Event()


class Account:
    """The reservations of one turn or job for calls whose usage is not stored yet.

    The order for each call: `reserve`, the call, `release` in the transaction that stores its usage, and `settle` after
    that. A call without cost needs `release_unused` instead. Several calls may come before such a transaction; the
    reservations of the earlier ones stay until then. `aclose` releases all remaining ones.
    """

    def __init__(self, spending: Spending, payer: Payer, turn_id: str, above: "Account | None" = None) -> None:
        self._spending = spending
        self._payer = payer
        self._turn_id = turn_id
        self._above = above
        self._before: list[str] = []
        """Reservations of calls before the last one, which may have had a cost."""
        self._last: list[str] = []
        self._near_reported: set[str] = set()

    @property
    def limited(self) -> bool:
        """Whether any budget applies to its calls."""
        return self._spending.governs(self._payer)

    async def reserve(self, request: ModelRequest, seconds: float, tokens: int | None = None) -> list[Notice]:
        """Reserve the expected cost of a call.

        Return a notice for each budget above its soft limit, once per budget.

        ``seconds``: longest duration of the call. ``tokens``: approximate tokens of the request, if known.

        Raises:
            BudgetExceeded, BudgetUnpriced, StorageError: the call may not begin.
        """
        if not self.limited:
            return []
        sent = request_tokens(request) if tokens is None else tokens
        payer = self._payer
        record = ReservationRecord(
            id=new_id("resv"),
            domain_id=payer.domain_id,
            user_id=payer.user_id,
            key_id=payer.key_id,
            turn_id=self._turn_id,
            model=request.model,
            sent=round(sent * MARGIN),  # type: ignore[arg-type]
            received=most_received(request),  # type: ignore[arg-type]
            until="",
        )
        own = self._own
        # noted before the write, because a cancelled write may be stored
        self._before, self._last = [*self._before, *self._last], [record.id]
        near = await self._spending.reserve(payer, record, seconds, own)
        fresh = [budget for budget in near if budget.id not in self._near_reported]
        self._near_reported.update(budget.id for budget in fresh)
        return [Notice("BUDGET_NEAR", _words_of(budget)) for budget in fresh]

    @property
    def _own(self) -> tuple[str, ...]:
        return (*self._before, *self._last, *(self._above._own if self._above is not None else ()))

    def begin_job(self) -> "Account":
        """Return the account for a job inside the turn. The job does not wait for the turn's reservations."""
        return Account(self._spending, self._payer, self._turn_id, self)

    def release(self, conn: Connection) -> None:
        """Release the reservations in the transaction that stores the usage, after the usage."""
        budgets.release(conn, [*self._before, *self._last])
        if self.limited and (self._before or self._last):
            self._spending.announce_crossed(conn, self._payer)

    def settle(self) -> None:
        """Note that the transaction of `release` was committed."""
        if self._before or self._last:
            self._before, self._last = [], []
            self._spending.wake_waiting()

    async def release_unused(self) -> None:
        """Release the reservation of the last call, which had no cost."""
        if self._last:
            ids, self._last = self._last, []
            await self._spending.release_unused(ids)

    async def aclose(self) -> None:
        """Release all reservations, because no usage will be stored for them any more."""
        self._before, self._last = [], [*self._before, *self._last]
        await self.release_unused()


def request_tokens(request: ModelRequest) -> int:
    """Return the approximate tokens of a request."""
    message_total = sum(map(message_tokens, request.messages))
    return message_total + tokens_of([list(request.system), [dict(tool) for tool in request.tools]])


def most_received(request: ModelRequest) -> int:
    """Return the most tokens of an answer, including its thinking."""
    profile = profile_of(request.model)
    thinks = profile.thinks or bool(profile.thinking and request.thinking != "off")
    max_tokens = request.max_tokens + (profile.room(request.effort) if thinks else 0)
    return min(max_tokens, profile.output_limit) if profile.output_limit else max_tokens


def _refusal(budget: BudgetRecord, standing: Standing) -> BudgetExceeded:
    waits = budget.hard is not None and standing.spent < Decimal(budget.hard)
    seconds = LOOK_SECONDS if waits else max(1.0, seconds_until(standing.renews_at))
    return BudgetExceeded(
        _WHOSE[budget.scope],
        budget.scope.value,
        budget.unit.value,
        budget.period.value,
        standing.renews_at,
        round(seconds, 3),
        retryable=waits,
    )


def _words_of(budget: BudgetRecord) -> str:
    return f"Most of this {budget.period}'s budget of {_WHOSE[budget.scope]} is used."
