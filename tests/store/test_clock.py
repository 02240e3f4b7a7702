"""Ids and times sort in the order of creation."""

import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from agentic_rag.store.clock import advance_ids, first_id, new_id, now, seconds_of
from agentic_rag.store.database import Database
from tests.databases import prepare_file
from tests.test_layers import ROOT

from .records import turn


def test_ids_are_prefixed_and_unique() -> None:
    ids = [new_id("turn") for _ in range(2000)]
    assert len(set(ids)) == 2000
    assert all(re.fullmatch(r"turn_[0-9a-hjkmnp-tv-z]{26}", ident) for ident in ids)
    assert [ident[:15] for ident in ids] == sorted(ident[:15] for ident in ids)


def test_times_are_utc_with_milliseconds() -> None:
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", now())


def test_ids_of_a_process_sort_by_creation() -> None:
    ids = [new_id("turn") for _ in range(5_000)]
    assert ids == sorted(set(ids))


def test_later_ids_sort_after_the_first_id_of_a_time() -> None:
    lowest, ident = first_id("turn", seconds_of(now())), new_id("turn")
    assert lowest <= ident < first_id("turn", time.time() + 60)
    assert len(lowest) == len(ident)
    assert first_id("turn", -1) == first_id("turn", 0) == "turn_" + "0" * 26


def test_a_day_begins_at_midnight_utc() -> None:
    assert seconds_of("2026-07-31") == seconds_of("2026-07-31T00:00:00.000Z") == 1785456000


async def test_ids_sort_after_stored_ones_although_the_clock_was_set_back(tmp_path: Path) -> None:
    path, stored_id = tmp_path / "store.db", first_id("turn", time.time() + 600)
    prepare_file(path)
    database = await Database.open(path)
    await database.write(lambda conn: turn(stored_id).insert(conn))
    await database.aclose()
    script = f"""
import anyio
from pathlib import Path
from agentic_rag.store.clock import new_id
from agentic_rag.store.database import Database

async def main():
    print(new_id("turn"))
    database = await Database.open(Path({str(path)!r}))
    print(new_id("turn"))
    await database.aclose()

anyio.run(main)
"""
    before, after = run(script).split()
    assert before < stored_id < after


def test_a_small_step_back_of_the_clock_is_not_visible_in_times() -> None:
    script = """
import time
from agentic_rag.store.clock import new_id, now
first = now()
new_id("turn")  # not before `first`: between the two a millisecond may pass
real = time.time_ns
time.time_ns = lambda: real() - 2 * 10**9
print(first <= now())
time.time_ns = lambda: real() - 3600 * 10**9
print(first <= now())
"""
    assert run(script).split() == ["True", "False"]


def run(script: str) -> str:
    process = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=ROOT, check=True)
    return process.stdout.strip()


@pytest.mark.parametrize("text", ["", "turn_", "turn_short", "turn_" + "u" * 26, "turn_" + "é" * 26, "no id at all"])
def test_a_text_that_is_not_an_id_is_not_rewritten(text: str) -> None:
    before = new_id("turn")
    advance_ids(text)
    assert new_id("turn")[:10] == before[:10]
