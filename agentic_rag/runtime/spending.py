"""What model calls may cost: each is checked against the budgets it counts for before it begins.

Owns the check and the reservations. A call may begin while what was spent and what running calls have reserved is less
than each hard budget; so a budget is passed by no more than one call's cost, that of the last which began; the
attempts of a step, where a service broke off, are one call. A reservation is the most that a call is expected to cost.
It lies in the store beside the usage, goes in the transaction that stores what the call did cost, and is locked by
budget: several processes of one store keep the same budgets. Whom a payer's ids stand for it does not know.
Where there are no budgets nothing is asked and nothing written.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Final

import anyio
from sqlalchemy import Connection

from agentic_rag.budget_errors import BudgetExceeded, BudgetUnpriced
from agentic_rag.errors import StorageError, StorageFull
from agentic_rag.events import Notice, Usage
from agentic_rag.models.base import ModelRequest
from agentic_rag.models.prices import Prices
from agentic_rag.models.profiles import profile_of
from agentic_rag.runtime.core.window import message_tokens, tokens_of
from agentic_rag.store import budgets, usage
from agentic_rag.store.budgets import BudgetRecord, Payer, Period, ReservationRecord, Unit
from agentic_rag.store.clock import new_id, now, seconds_until
from agentic_rag.store.database import Database
from agentic_rag.store.usage import Scope

logger = logging.getLogger(__name__)

REFRESH_SECONDS: Final = 5.0
"""How long a budget that another process has set is unknown here."""
LEFT_SECONDS: Final = 300.0
"""Between two looks for what was reserved and never given back; it does not count meanwhile."""
PATIENCE_SECONDS: Final = 20.0
"""How long a call waits for others to give back what they have reserved."""
LOOK_SECONDS: Final = 1.0
"""Between two looks at what other processes have given back."""
GIVE_BACK_SECONDS: Final = 5.0
"""How long the store is waited for when something is given back."""
MARGIN: Final = 1.1
"""By how much our count of a request may be less than the model's."""

_WHOSE = {Scope.DOMAIN: "this domain", Scope.USER: "this user", Scope.KEY: "this key"}


@dataclass(frozen=True, slots=True)
class Standing:
    """How far a budget is used, in its unit: exact. ``since`` is its period's first day, ``renews_at`` the next one's.

    ``unpriced``: models of whose calls nobody knows what they cost.
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
    """Return the first day of the period in which a day lies, and the time at which the next one begins (UTC)."""
    if period is Period.DAY:
        return day.isoformat(), f"{day + timedelta(days=1)}T00:00:00.000Z"
    first = day.replace(day=1)
    return first.isoformat(), f"{(first + timedelta(days=32)).replace(day=1)}T00:00:00.000Z"


def standing_of(
    conn: Connection, prices: Prices, budget: BudgetRecord, subject: str, without: Sequence[str] = ()
) -> Standing:
    """Return how far a budget is used by its subject (or by one of each) in this period.

    ``without``: reservations that do not count, by their ids.
    """
    today = datetime.now(UTC).date()
    since, renews_at = bounds_of(budget.period, today)
    # In this order: PostgreSQL shows each statement what is committed by then. A call that ends in between is counted
    # twice then, which a call waits for, and never not at all.
    running = budgets.list_reserved(conn, budget.scope, subject, without)
    rows = usage.day_sums(conn, budget.scope, subject, since)
    if budget.unit is Unit.TOKENS:
        spent = sum(row.input + row.cache_read + row.cache_write + row.output for row in rows)
        reserved = sum(each.sent + each.received for each in running)
        return Standing(Decimal(spent), Decimal(reserved), since, renews_at)
    cost, unpriced = Decimal(0), set()
    for row in rows:
        price, tokens = prices.find(row.model, row.day), Usage(row.input, row.cache_read, row.cache_write, row.output)
        if price is not None:
            cost += price.cost(tokens)
        elif tokens != Usage():
            unpriced.add(row.model)
    held = Decimal(0)
    for each in running:
        price = prices.find(each.model, today.isoformat())
        held += price.most(each.sent, each.received) if price is not None else 0
    return Standing(cost, held, since, renews_at, tuple(sorted(unpriced)))


@dataclass(frozen=True, slots=True)
class _Verdict:
    """``exceeded``: why a call may not begin now. ``near``: budgets beyond whose soft bound it begins."""

    exceeded: BudgetExceeded | None = None
    near: tuple[BudgetRecord, ...] = ()


class Spending:
    """The budgets of one store, as this process knows them. Without `refresh` it knows none.

    ``patience``: seconds that a call waits for others to give back what they have reserved.
    """

    def __init__(self, database: Database, prices: Prices | None = None, patience: float = PATIENCE_SECONDS) -> None:
        self._db = database
        self._patience = patience
        self.prices = prices or Prices()
        self._budgets: tuple[BudgetRecord, ...] = ()
        self._returned = anyio.Event()

    async def refresh(self) -> None:
        """Take up the budgets as they are now.

        Raises:
            StorageError: they cannot be read.
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
        """Remove what was reserved by calls whose time is over."""
        if self._budgets:
            await self._db.write(lambda conn: budgets.release_left(conn, alone=False))

    def account(self, payer: Payer, turn_id: str = "") -> "Account":
        """Return what the calls of one turn or job are paid from.

        ``turn_id``: the user's turn, whose next owner gives back what is left reserved; empty: there is none.
        """
        return Account(self, payer, turn_id)

    def governs(self, payer: Payer) -> bool:
        """Whether any budget counts for calls of a payer."""
        return bool(self._budgets) and bool(budgets.of_payer(self._budgets, payer))

    def check_in(self, conn: Connection, payer: Payer) -> None:
        """Refuse what is about to ask a model where a budget has nothing left; part of the caller's transaction.

        Raises:
            BudgetExceeded: one has nothing left.
        """
        for budget in budgets.of_payer(self._budgets, payer):
            if budget.hard is not None:
                standing = standing_of(conn, self.prices, budget, payer.subject(budget.scope))
                if standing.spent >= Decimal(budget.hard):
                    raise _refusal(budget, standing)

    async def reserve(
        self, payer: Payer, record: ReservationRecord, seconds: float, own: Sequence[str] = ()
    ) -> tuple[BudgetRecord, ...]:
        """Reserve what a call may cost, for so many seconds at most; return the budgets beyond whose soft bound it is.

        What others have reserved is waited for, a while. ``own``: ids of what who asks has reserved before. It goes
        only once this call has ended: who waited for it would wait for himself.

        Raises:
            BudgetExceeded, BudgetUnpriced: the call may not begin.
            StorageError: the store takes nothing.
        """
        deadline = anyio.current_time() + self._patience
        while True:
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
        for budget in budgets.lock(conn, payer):
            price = self.prices.find(record.model, now()[:10]) if budget.unit is Unit.MONEY else None
            if budget.unit is Unit.MONEY and price is None and budget.hard is not None:
                raise BudgetUnpriced(record.model)
            standing = standing_of(conn, self.prices, budget, payer.subject(budget.scope), own)
            if budget.hard is not None and standing.used >= Decimal(budget.hard):
                return _Verdict(_refusal(budget, standing))
            if budget.hard is not None and standing.unpriced:  # another answered than was asked, or it was before
                raise BudgetUnpriced(standing.unpriced[0])
            if budget.soft is not None and standing.spent >= Decimal(budget.soft):
                near.append(budget)
        budgets.reserve(conn, record, seconds)
        return _Verdict(near=tuple(near))

    async def give_back(self, ids: Sequence[str]) -> None:
        """Give back what calls had reserved that have cost nothing; a store that does not answer keeps it."""
        try:
            with anyio.move_on_after(GIVE_BACK_SECONDS, shield=True):
                await self._db.write(lambda conn: budgets.release(conn, ids))
        except StorageError as exc:
            logger.warning("reservations are left until their time is over: %s", exc)
        self.tell_returned()

    def tell_returned(self) -> None:
        """Wake the calls of this process that wait for what others had reserved."""
        self._returned.set()
        self._returned = anyio.Event()


class Account:
    """What the calls of one turn or job have reserved and have not stored the usage of.

    The order for each call: `reserve`, the call, then `release` in the transaction that stores its usage and `settle`
    after that; or `give_back` where it has cost nothing. Calls may follow each other before such a transaction: what
    those before the last one had reserved stays until then. `aclose` gives back all that is left.
    """

    def __init__(self, spending: Spending, payer: Payer, turn_id: str, above: "Account | None" = None) -> None:
        self._spending = spending
        self._payer = payer
        self._turn_id = turn_id
        self._above = above
        self._before: list[str] = []
        """Of calls before the last one, which may have cost something."""
        self._last: list[str] = []
        self._told: set[str] = set()

    @property
    def limited(self) -> bool:
        """Whether any budget counts for its calls."""
        return self._spending.governs(self._payer)

    async def reserve(self, request: ModelRequest, seconds: float, tokens: int | None = None) -> list[Notice]:
        """Reserve what a call may cost; return what is to be told of budgets, once each.

        ``seconds``: how long the call takes at most; ``tokens``: about those of the request, where they are known.

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
        # before it is stored: one that is cancelled may be stored all the same
        self._before, self._last = [*self._before, *self._last], [record.id]
        near = await self._spending.reserve(payer, record, seconds, own)
        fresh = [each for each in near if each.id not in self._told]
        self._told.update(each.id for each in fresh)
        return [Notice("BUDGET_NEAR", _words_of(each)) for each in fresh]

    @property
    def _own(self) -> tuple[str, ...]:
        return (*self._before, *self._last, *(self._above._own if self._above is not None else ()))

    def begin_job(self) -> "Account":
        """Return what a job inside of the turn is paid from; it does not wait for what the turn has reserved."""
        return Account(self._spending, self._payer, self._turn_id, self)

    def release(self, conn: Connection) -> None:
        """Give back what is reserved, in the transaction that stores what it was reserved for."""
        budgets.release(conn, [*self._before, *self._last])

    def settle(self) -> None:
        """Take notice that such a transaction is through."""
        if self._before or self._last:
            self._before, self._last = [], []
            self._spending.tell_returned()

    async def give_back(self) -> None:
        """Give back what was reserved for the last call, which has cost nothing."""
        if self._last:
            ids, self._last = self._last, []
            await self._spending.give_back(ids)

    async def aclose(self) -> None:
        """Give back all that is reserved: nothing more will be stored of what it was reserved for."""
        self._before, self._last = [], [*self._before, *self._last]
        await self.give_back()


def request_tokens(request: ModelRequest) -> int:
    """Return about how many tokens a request has."""
    said = sum(map(message_tokens, request.messages))
    return said + tokens_of([list(request.system), [dict(tool) for tool in request.tools]])


def most_received(request: ModelRequest) -> int:
    """Return how many tokens an answer may have, its thinking included."""
    profile = profile_of(request.model)
    thinks = profile.thinks or bool(profile.thinking and request.thinking != "off")
    wanted = request.max_tokens + (profile.room(request.effort) if thinks else 0)
    return min(wanted, profile.output_limit) if profile.output_limit else wanted


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
