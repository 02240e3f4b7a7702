"""A kill at each step of a backup or a restore, and a disk that fills up, leave something whole or nothing."""

import json
import subprocess
import sys
from functools import partial
from pathlib import Path

import anyio.to_thread
import pytest


@pytest.mark.parametrize(
    ("every", "least"), [(3, 2), pytest.param(1, 7, marks=pytest.mark.nightly("a kill at each place"))]
)
async def test_a_backup_is_whole_or_absent_and_a_killed_restore_can_be_repeated(
    made: tuple[Path, Path], tmp_path: Path, every: int, least: int
) -> None:
    folder = tmp_path / "kills"
    folder.mkdir()
    command = [sys.executable, "-m", "tests.backup.victim", str(made[0]), str(folder), str(every)]
    done = await anyio.to_thread.run_sync(partial(subprocess.run, command, capture_output=True, text=True, timeout=240))
    assert done.returncode == 0, done.stderr
    backups, restores, starved = json.loads(done.stdout)
    assert backups[1] == [], done.stderr
    assert restores[1] == [], done.stderr
    assert starved[1] == [], done.stderr
    assert backups[0] >= least
    assert restores[0] >= least
