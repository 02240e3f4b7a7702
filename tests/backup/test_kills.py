"""A kill at each step of a backup or a restore, and a full disk, leave everything or nothing."""

import json
import os
from pathlib import Path

import pytest

from tests.programs import run_victim


@pytest.mark.parametrize(
    ("every", "least"), [(5, 1), pytest.param(1, 7, marks=pytest.mark.nightly("a kill at each place"))]
)
async def test_a_killed_backup_leaves_no_file_and_a_killed_restore_can_be_repeated(
    data_and_backup: tuple[Path, Path], tmp_path: Path, every: int, least: int
) -> None:
    folder = tmp_path / "kills"
    folder.mkdir()
    result = await run_victim("tests.backup.victim", data_and_backup[0], folder, every, env=os.environ)
    assert result.returncode == 0, result.stderr
    backups, restores, starved = json.loads(result.stdout)
    assert backups[1] == [], result.stderr
    assert restores[1] == [], result.stderr
    assert starved[1] == [], result.stderr
    assert backups[0] >= least
    assert restores[0] >= least
