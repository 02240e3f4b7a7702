"""Ids and times sort as they were made."""

import re
import time

from agentic_rag.store.clock import first_id, new_id, now, seconds_of


def test_ids_are_prefixed_and_never_the_same() -> None:
    ids = [new_id("turn") for _ in range(2000)]
    assert len(set(ids)) == 2000
    assert all(re.fullmatch(r"turn_[0-9a-hjkmnp-tv-z]{26}", one) for one in ids)
    assert [one[:15] for one in ids] == sorted(one[:15] for one in ids)


def test_times_are_utc_with_milliseconds() -> None:
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", now())


def test_ids_of_a_process_sort_as_they_were_made() -> None:
    made = [new_id("turn") for _ in range(5_000)]
    assert made == sorted(set(made))


def test_no_id_that_is_made_later_sorts_before_the_first_of_a_time() -> None:
    first, made = first_id("turn", seconds_of(now())), new_id("turn")
    assert first <= made < first_id("turn", time.time() + 60)
    assert len(first) == len(made)
    assert first_id("turn", -1) == first_id("turn", 0) == "turn_" + "0" * 26


def test_a_day_begins_at_midnight_utc() -> None:
    assert seconds_of("2026-07-31") == seconds_of("2026-07-31T00:00:00.000Z") == 1785456000
