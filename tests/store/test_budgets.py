"""Reservations in the store: those of several processes together stay within the budget, on each database."""

import dataclasses
from decimal import Decimal
from functools import partial

import anyio
import pytest
from sqlalchemy import Connection

from agentic_rag.access.users import LOCAL
from agentic_rag.base import failpoints
from agentic_rag.base.budget_errors import BudgetExceeded, BudgetUnpriced
from agentic_rag.base.ids import SessionId
from agentic_rag.models.base import ModelRequest
from agentic_rag.models.prices import Price, Prices
from agentic_rag.operations.budgets import Budgets, BudgetWish
from agentic_rag.runtime.spending import Account, Spending
from agentic_rag.store import budgets, usage
from agentic_rag.store.budgets import BudgetRecord, Payer, Period, Unit
from agentic_rag.store.clock import new_id, now
from agentic_rag.store.database import Database
from agentic_rag.store.usage import Scope, UsageRecord

PAYER = Payer("dom_a", "mia", "key_1")
REQUEST = ModelRequest("scripted-1", 500, (), ())
COST = 100
HARD = 2000


def make_budget(**changes: object) -> BudgetRecord:
    values: dict[str, object] = {
        "id": new_id("bud"),
        "scope": Scope.DOMAIN,
        "subject": "dom_a",
        "unit": Unit.TOKENS,
        "period": Period.DAY,
        "soft": None,
        "hard": str(HARD),
        "created_at": now(),
        "updated_at": now(),
    }
    return BudgetRecord(**{**values, **changes})  # type: ignore[arg-type]


def make_usage(tokens: int) -> UsageRecord:
    return UsageRecord(
        id=new_id("usage"),
        session_id=SessionId("sess_a"),
        domain_id=PAYER.domain_id,
        user_id=PAYER.user_id,
        key_id=PAYER.key_id,
        model="scripted-1",
        input=tokens,
        cache_read=0,
        cache_write=0,
        output=0,
        created_at=now(),
    )


async def open_spending(url: str) -> tuple[Database, Spending]:
    database = await Database.open(url)
    spending = Spending(database)
    await spending.refresh()
    return database, spending


async def test_two_processes_do_not_exceed_a_budget_together(database: Database, url: str) -> None:
    await database.write(lambda conn: budgets.put(conn, make_budget()))
    shared = database.shared
    processes = [await open_spending(url) for _ in range(2)] if shared else [(database, Spending(database))] * 2
    for _, spending in processes:
        await spending.refresh()
    most_running = 0
    running = 0
    refusals: list[BudgetExceeded] = []
    paid_calls: list[int] = []

    async def call(number: int) -> None:
        nonlocal most_running, running
        base, spending = processes[number % 2]
        account = spending.account(PAYER)
        try:
            await account.reserve(REQUEST, 60, tokens=0)
        except BudgetExceeded as exc:
            refusals.append(exc)
            return
        running += 1
        most_running = max(most_running, running)
        await anyio.lowlevel.checkpoint()
        running -= 1

        def store_usage(conn: Connection) -> None:
            usage.put(conn, [make_usage(COST)])
            account.release(conn)

        await base.write(store_usage)
        account.settle()
        paid_calls.append(number)

    try:
        with anyio.fail_after(240):
            async with anyio.create_task_group() as tasks:
                for number in range(50):
                    tasks.start_soon(call, number)
        assert len(paid_calls) == HARD // COST, "each that could be paid was let through"
        assert most_running * 500 <= HARD, "what is reserved counts like what is spent"
        assert len(refusals) == 50 - len(paid_calls)
        assert not any(refusal.retryable for refusal in refusals), (
            "they waited for what was reserved, then nothing was left"
        )
        assert await database.read(lambda conn: budgets.list_reserved(conn, Scope.DOMAIN, "dom_a")) == []
    finally:
        if shared:
            for base, _ in processes:
                await base.aclose()


async def test_account_locks_are_reentrant_and_block_others(database: Database) -> None:
    await database.write(lambda conn: budgets.put(conn, make_budget(hard="100")))
    spending = Spending(database, patience=0)
    await spending.refresh()
    turn = spending.account(PAYER, "turn_1")
    compaction = turn.begin_job()
    for account in (turn, turn, compaction, compaction):
        await account.reserve(REQUEST, 60, tokens=0)
    with pytest.raises(BudgetExceeded) as refusal:
        await spending.account(PAYER).reserve(REQUEST, 60, tokens=0)
    assert refusal.value.retryable
    await compaction.aclose()
    rows = await database.read(lambda conn: budgets.list_reserved(conn, Scope.DOMAIN, "dom_a"))
    assert [row.turn_id for row in rows] == ["turn_1"] * 2, "what the turn has reserved stays"
    await turn.aclose()
    await spending.account(PAYER).reserve(REQUEST, 60, tokens=0)


async def test_a_raised_limit_wakes_a_waiting_call(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agentic_rag.runtime.spending.LOOK_SECONDS", 3600.0)
    budget = make_budget(scope=Scope.USER, subject=LOCAL.id, hard="100")
    payer = dataclasses.replace(PAYER, user_id=LOCAL.id)
    await database.write(lambda conn: budgets.put(conn, budget))
    spending = Spending(database, patience=3600.0)
    await spending.refresh()
    await spending.account(payer).reserve(REQUEST, 60, tokens=0)
    is_refused = anyio.Event()

    def note(place: str) -> None:
        if place == "commit.done":  # of the waiting call, which then waits without another step in between
            is_refused.set()

    async with anyio.create_task_group() as tasks:
        with failpoints.heard_by(note):
            tasks.start_soon(partial(spending.account(payer).reserve, REQUEST, 60, tokens=0))
            with anyio.fail_after(240):
                await is_refused.wait()
        hard = Decimal(100_000)
        await Budgets(database, spending).put(
            BudgetWish(Scope.USER, LOCAL.id, budget.unit, budget.period, soft=None, hard=hard)
        )
        tasks.cancel_scope.deadline = anyio.current_time() + 240
    assert not tasks.cancel_scope.cancelled_caught, "the call still waits"


async def test_only_the_reservation_of_an_unpaid_last_call_is_released(
    database: Database,
) -> None:
    await database.write(lambda conn: budgets.put(conn, make_budget()))
    spending = Spending(database)
    await spending.refresh()
    account = spending.account(PAYER, "turn_1")
    for tokens in (1000, 2000):
        await account.reserve(REQUEST, 60, tokens=tokens)
    await account.release_unused()
    await account.release_unused()
    (reservation,) = await database.read(lambda conn: budgets.list_reserved(conn, Scope.DOMAIN, "dom_a"))
    assert reservation.sent == 1100, "that of the call before, which broke off"
    await account.aclose()
    assert await database.read(lambda conn: budgets.list_reserved(conn, Scope.DOMAIN, "dom_a")) == []


async def test_a_call_of_a_model_without_a_price_has_an_unknown_cost(database: Database) -> None:
    price = Price("", Decimal(1), Decimal(1), Decimal(1), Decimal(1))
    await database.write(lambda conn: budgets.put(conn, make_budget(unit=Unit.MONEY, hard="1")))
    spending = Spending(database, Prices("USD", {"scripted-1": [price]}))
    await spending.refresh()
    account = spending.account(PAYER)
    await account.reserve(REQUEST, 60, tokens=0)
    await account.release_unused()
    unpriced, unused = make_usage(COST).replace(model="stranger-2"), make_usage(0).replace(model="silent-3")
    await database.write(lambda conn: usage.put(conn, [unused]))
    await account.reserve(REQUEST, 60, tokens=0)
    await database.write(lambda conn: usage.put(conn, [unpriced]))
    with pytest.raises(BudgetUnpriced) as refusal:
        await account.reserve(REQUEST, 60, tokens=0)
    assert refusal.value.model == "stranger-2", "what to name a price for"
    priced = Spending(database, Prices("USD", {"scripted-1": [price], "stranger-2": [price]}))
    await priced.refresh()
    await priced.account(PAYER).reserve(REQUEST, 60, tokens=0)


async def test_a_reservation_expires(database: Database) -> None:
    await database.write(lambda conn: budgets.put(conn, make_budget(hard="100")))
    spending = Spending(database)
    await spending.refresh()
    account: Account = spending.account(PAYER)
    await account.reserve(REQUEST, -1, tokens=0)
    assert await database.read(lambda conn: budgets.list_reserved(conn, Scope.DOMAIN, "dom_a")) == []
    await spending.account(PAYER).reserve(REQUEST, 60, tokens=0)
    rows = await database.read(lambda conn: budgets.list_reserved(conn, Scope.USER, "mia"))
    assert [(row.sent, row.received) for row in rows] == [(0, 500)]


async def test_daily_sums_equal_the_rows(database: Database) -> None:
    rows = [make_usage(1), make_usage(2), make_usage(3)]
    await database.write(lambda conn: usage.put(conn, rows))
    await database.write(lambda conn: usage.put(conn, [make_usage(4)]))
    for scope, subject in ((Scope.DOMAIN, "dom_a"), (Scope.USER, "mia"), (Scope.KEY, "key_1")):
        (day_sum,) = await database.read(lambda conn, s=scope, i=subject: usage.day_sums(conn, s, i, ""))  # type: ignore[misc]
        assert (day_sum.day, day_sum.model, day_sum.input) == (rows[0].created_at[:10], "scripted-1", 10)
    await database.write(lambda conn: usage.rename_user(conn, "mia", "#7"))
    assert await database.read(lambda conn: usage.day_sums(conn, Scope.USER, "mia", "")) == []
    (renamed_sum,) = await database.read(lambda conn: usage.day_sums(conn, Scope.USER, "#7", ""))
    assert renamed_sum.input == 10


async def test_a_budget_for_one_subject_overrides_the_budget_for_all(database: Database) -> None:
    for_all = make_budget(subject="*", hard="5")
    for_domain = make_budget(hard="7")
    monthly = make_budget(subject="*", period=Period.MONTH, hard="9")
    for record in (for_all, for_domain, monthly):
        await database.write(lambda conn, record=record: budgets.put(conn, record))  # type: ignore[misc]
    updated = await database.write(lambda conn: budgets.put(conn, make_budget(hard="8")))
    assert updated.id == for_domain.id
    applied = await database.write(lambda conn: budgets.lock(conn, PAYER))
    assert {(record.subject, record.period, record.hard) for record in applied} == {
        ("dom_a", Period.DAY, "8"),
        ("*", Period.MONTH, "9"),
    }
