"""The pure parts of access: token buckets, refusal windows and tickets. Time is an argument."""

from collections import Counter
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentic_rag.access.keys import Entrant
from agentic_rag.access.refusals import MAX_KINDS, MAX_OF_SOURCE, WINDOW_SECONDS, Refusal, Refusals
from agentic_rag.access.users import User
from agentic_rag.base.errors import RateLimited
from agentic_rag.base.token_bucket import TokenBucket
from agentic_rag.server.auth import MAX_TICKETS, TICKET_SECONDS, Tickets
from agentic_rag.server.limits import KeyLimits, Load

pytestmark = pytest.mark.attack(kind="web")

EVE = Entrant(User("eve"), "key_eve")
waits = st.lists(st.floats(0, 30), min_size=1, max_size=60)


@given(waits=waits, rate=st.floats(0.1, 50), burst=st.floats(0.5, 20))
def test_a_bucket_never_allows_more_than_its_burst_and_its_rate(waits: list[float], rate: float, burst: float) -> None:
    bucket, now, admitted = TokenBucket(rate, burst), 100.0, 0
    for wait in waits:
        now += wait
        admitted += bucket.take(now) == 0
        assert admitted <= max(1.0, burst) + (now - 100.0) * rate + 1e-6


@given(waits=waits, rate=st.floats(0.1, 50))
def test_a_client_that_waits_as_told_is_admitted(waits: list[float], rate: float) -> None:
    bucket, now = TokenBucket(rate, 3), 0.0
    for wait in waits:
        now += wait
        delay = bucket.take(now)
        if delay > 0:
            now += delay + 1e-6
            assert bucket.take(now) == 0


def test_a_clock_that_stops_or_goes_back_adds_no_tokens() -> None:
    bucket = TokenBucket(1, 2)
    assert [bucket.take(now) > 0 for now in (5, 5, 5, 4, 3)] == [False, False, True, True, True]


def test_spending_beyond_the_burst_must_be_refilled() -> None:
    bucket = TokenBucket(2, 10)
    assert [bucket.spend(0, 10), bucket.spend(0, 4), bucket.spend(1, 0)] == [0, 2, 1]
    assert bucket.take(2, 3) == 1.5
    assert bucket.take(3.5, 3) == 0


def test_a_load_refuses_one_more_than_its_limits() -> None:
    load = Load(KeyLimits(requests_per_second=1, messages_per_minute=2, connections=1, subscriptions=1))
    load.connections = load.subscriptions = 1
    for _ in range(2):
        load.request(0)
        load.message(0)
    for call in (partial(load.request, 0), partial(load.message, 0)):
        with pytest.raises(RateLimited):
            call()
    for check in (load.check_connections, load.check_subscriptions):
        with pytest.raises(RateLimited):
            check()


refusals = st.builds(
    Refusal,
    actor=st.sampled_from(["ann", "eve", "anonymous"]),
    action=st.sampled_from(["GET /a", "POST /b"]),
    target=st.integers(0, 200).map(str),
    code=st.sampled_from(["FORBIDDEN", "UNAUTHENTICATED"]),
    source=st.sampled_from(["10.0.0.1", "10.0.0.2"]),
)


@given(steps=st.lists(st.tuples(st.floats(0, 20), refusals), max_size=200))
def test_every_refusal_is_reported_exactly_once(steps: list[tuple[float, Refusal]]) -> None:
    window, now, reported = Refusals(), 0.0, 0
    for wait, refusal in steps:
        now += wait
        reported += sum(count for _, count in window.note(now, refusal))
    reported += sum(count for _, count in window.rest())
    assert reported == len(steps)


def test_a_flood_of_one_refusal_writes_two_audit_rows_a_minute() -> None:
    window, rows = Refusals(), Counter[str]()
    refusal = Refusal("anonymous", "GET", "/api/domains", "UNAUTHENTICATED", "10.0.0.1")
    for number in range(100_000):
        for entry, count in window.note(number * WINDOW_SECONDS / 100_000, refusal):
            rows[entry.action] += 1
            assert count == 1
    assert rows == {"GET": 1}
    assert window.rest() == [(refusal, 99_999)]


def test_a_flood_over_varying_paths_is_counted_together() -> None:
    window, rows = Refusals(), 0
    for number in range(10_000):
        rows += len(window.note(0, Refusal("eve", "GET", f"/api/{number}", "UNAUTHENTICATED", "10.0.0.1")))
    assert rows == MAX_OF_SOURCE + 1


def test_a_flood_from_many_addresses_is_counted_together() -> None:
    window, rows = Refusals(), 0
    for number in range(10_000):
        rows += len(window.note(0, Refusal("anonymous", "GET", "/", "UNAUTHENTICATED", f"10.0.{number}")))
    assert rows == MAX_KINDS + 1


def test_a_ticket_is_valid_once_and_for_thirty_seconds() -> None:
    tickets = Tickets()
    first, second = tickets.issue(0, EVE), tickets.issue(0, EVE)
    assert tickets.redeem(1, "another") is None
    assert tickets.redeem(TICKET_SECONDS - 1, first) is EVE
    assert tickets.redeem(TICKET_SECONDS - 1, first) is None
    assert tickets.redeem(TICKET_SECONDS, second) is None


def test_unused_tickets_are_bounded_and_end_with_their_key() -> None:
    tickets = Tickets()
    ann_ticket = tickets.issue(0, Entrant(User("ann"), "key_ann"))
    values = [tickets.issue(0, EVE) for _ in range(MAX_TICKETS + 5)]
    assert [tickets.redeem(1, value) for value in values[:5]] == [None] * 5
    assert tickets.redeem(1, values[5]) is EVE
    tickets.revoke("key_eve")
    assert tickets.redeem(1, values[6]) is None
    assert tickets.redeem(1, ann_ticket) is not None
