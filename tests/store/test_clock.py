"""Ids and times sort as they were made."""

import re

from agentic_rag.store.clock import new_id, now


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
