"""A seeded subset of `scripts/faults damage`: the content of a damaged file is never missing silently."""

from pathlib import Path
from random import Random

import anyio
import pytest

from tests.faults.damage import Ground, prepare, run

NAMES = ("mutable_id_tracker.mappings", "payload_storage/page_0.dat", "pointer.json")
SEED = 44


@pytest.fixture(scope="module")
def ground(tmp_path_factory: pytest.TempPathFactory) -> Ground:
    """The data folder that each trial copies."""
    return anyio.run(prepare, tmp_path_factory.mktemp("damage"))


@pytest.mark.sqlite("copies a folder with its file")
@pytest.mark.parametrize(
    "names", [NAMES[:1], pytest.param(NAMES[1:], marks=pytest.mark.nightly("another file is damaged every time"))]
)
async def test_searches_report_losses_of_a_damaged_index(
    ground: Ground, tmp_path: Path, names: tuple[str, ...]
) -> None:
    random = Random(SEED)
    for name in names:
        trial = random.choice([candidate for candidate in ground.trials() if name in candidate.file])
        assert await run(ground, trial, tmp_path / name.replace("/", "-"), random) == []


@pytest.mark.sqlite("copies a folder with its file")
@pytest.mark.parametrize(
    "kind",
    [
        *("flipped", "gone"),
        *(
            pytest.param(kind, marks=pytest.mark.nightly("a changed and a missing file are tried every time"))
            for kind in ("empty", "half")
        ),
    ],
)
async def test_a_damaged_stored_result_is_ignored(ground: Ground, tmp_path: Path, kind: str) -> None:
    (trial,) = [
        candidate for candidate in ground.trials() if "payloads/ref_" in candidate.file and candidate.kind == kind
    ]
    assert await run(ground, trial, tmp_path / kind, Random(SEED)) == []
