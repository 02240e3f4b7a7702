"""A seeded subset of what `scripts/faults damage` does: what a damaged file held is never missing without a word."""

from pathlib import Path
from random import Random

import pytest

from tests.faults.damage import prepare, run

NAMES = ("mutable_id_tracker.mappings", "payload_storage/page_0.dat", "pointer.json")
SEED = 44


@pytest.mark.sqlite("copies a folder with its file")
@pytest.mark.parametrize(
    "names", [NAMES[:1], pytest.param(NAMES[1:], marks=pytest.mark.nightly("another file is damaged every time"))]
)
async def test_searches_report_losses_of_a_damaged_index(tmp_path: Path, names: tuple[str, ...]) -> None:
    ground = await prepare(tmp_path / "ground")
    random = Random(SEED)
    for name in names:
        trial = random.choice([each for each in ground.trials() if name in each.file])
        assert await run(ground, trial, tmp_path / name.replace("/", "-"), random) == []


@pytest.mark.sqlite("copies a folder with its file")
async def test_a_damaged_stored_result_is_ignored(tmp_path: Path) -> None:
    ground = await prepare(tmp_path / "ground")
    for trial in [each for each in ground.trials() if "payloads/ref_" in each.file]:
        assert await run(ground, trial, tmp_path / trial.kind, Random(SEED)) == []
