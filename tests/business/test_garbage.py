"""Turns after which a full collection runs."""

import gc
import weakref
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from agentic_rag.base import garbage


@dataclass
class Turns:
    """Run a number of turns."""

    running_count: int


class Knot:
    """Refers to itself, so only a collection removes it."""

    def __init__(self) -> None:
        self.itself = self


@pytest.fixture(autouse=True)
def no_automatic_collection() -> Iterator[None]:
    gc.disable()
    yield
    gc.enable()


def make_old_garbage() -> weakref.ref[Knot]:
    """Return a reference to garbage that only a full collection finds."""
    knot = Knot()
    gc.collect(1)
    return weakref.ref(knot)


async def test_garbage_collection_runs_while_no_turn_runs() -> None:
    reference = make_old_garbage()
    await garbage.look_where_quiet(Turns(0))
    assert reference() is None


async def test_no_full_garbage_collection_runs_during_a_turn() -> None:
    reference = make_old_garbage()
    await garbage.look_where_quiet(Turns(1))
    assert reference() is not None


async def test_garbage_collection_is_skipped_after_few_allocations() -> None:
    gc.collect()
    before = gc.get_stats()[2]["collections"]
    await garbage.look_where_quiet(Turns(0))
    assert gc.get_stats()[2]["collections"] == before
