"""The order of messages survives a clock that steps back, and a restart with a clock that is behind."""

from pathlib import Path

from tests.faults.clocks import run
from tests.faults.sweep import make_rig


def test_messages_and_branches_keep_their_order_while_the_clock_steps_back(tmp_path: Path) -> None:
    with make_rig(tmp_path) as rig:
        run(rig, steps=(0, -2, -90, -4000), restart_at=-4100)
