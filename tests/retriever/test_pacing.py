"""Batches grow and shrink with the duration of a call."""

from mcp_servers.retriever.pacing import Pace


def batch_after(pace: Pace, seconds: float, calls: int) -> int:
    for _ in range(calls):
        pace.took(pace.batch, pace.batch * seconds)
    return pace.batch


def test_batches_reach_the_wanted_duration() -> None:
    pace = Pace(0.005, 4, 64)
    assert pace.batch == 4
    assert 45 <= batch_after(pace, 0.0001, 50) <= 50
    assert 9 <= batch_after(pace, 0.0005, 50) <= 10


def test_batches_stay_between_least_and_most() -> None:
    pace = Pace(0.005, 4, 64)
    assert batch_after(pace, 0.000001, 50) == 64
    assert batch_after(pace, 1.0, 50) == 4


def test_one_very_slow_call_does_not_shrink_the_next_batches() -> None:
    pace = Pace(0.005, 4, 64)
    usual_batch = batch_after(pace, 0.0001, 50)
    pace.took(usual_batch, 10.0)
    assert pace.batch > usual_batch / 2
