"""A kill at each step of an import or an export leaves the old or the new domain, and nothing else."""

import json
import os
from pathlib import Path

import pytest

from tests.programs import run_victim


@pytest.mark.sqlite("its servers have a file")
@pytest.mark.parametrize(
    ("every", "least"),
    [(20, 1), pytest.param(1, 6, marks=pytest.mark.nightly("a kill at each place"))],
)
async def test_an_import_killed_at_any_point_is_complete_or_absent(tmp_path: Path, every: int, least: int) -> None:
    result = await run_victim("tests.bundles.victim", tmp_path, every, env=os.environ)
    assert result.returncode == 0, result.stderr
    new, overlays, exports = json.loads(result.stdout)
    assert new[1] == []
    assert overlays[1] == []
    assert exports[1] == []
    assert new[0] >= least
    assert overlays[0] >= least
    assert exports[0] >= 3
