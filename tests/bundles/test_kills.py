"""A kill at each step of an import or an export leaves a domain as it was or as it shall be, and nothing beside it."""

import json
import subprocess
import sys
from functools import partial
from pathlib import Path

import anyio.to_thread
import pytest


@pytest.mark.sqlite("its servers have a file")
@pytest.mark.parametrize(
    ("every", "least"),
    [(9, 1), pytest.param(1, 6, marks=pytest.mark.nightly("a kill at each place"))],
)
async def test_an_import_happens_or_not_wherever_it_is_killed(tmp_path: Path, every: int, least: int) -> None:
    command = [sys.executable, "-m", "tests.bundles.victim", str(tmp_path), str(every)]
    done = await anyio.to_thread.run_sync(partial(subprocess.run, command, capture_output=True, text=True, timeout=400))
    assert done.returncode == 0, done.stderr
    new, over, exports = json.loads(done.stdout)
    assert new[1] == []
    assert over[1] == []
    assert exports[1] == []
    assert new[0] >= least
    assert over[0] >= least
    assert exports[0] >= 3
