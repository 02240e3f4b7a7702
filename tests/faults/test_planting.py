"""A seeded subset of `scripts/faults planting`: nothing outside a workspace is read or changed."""

from pathlib import Path

import pytest

from tests.faults.planting import KINDS, NAMES, Trial, choose_trials, run

SUBSET = choose_trials(44, 7)


@pytest.mark.attack(kind="files")
@pytest.mark.parametrize("trial", SUBSET, ids=str)
def test_links_planted_in_a_workspace_reach_nothing(trial: Trial, tmp_path: Path) -> None:
    assert run(trial, tmp_path) == []


def test_the_subset_has_every_name_and_every_kind() -> None:
    assert {trial.name for trial in SUBSET} == set(NAMES)
    assert {trial.kind for trial in SUBSET} == set(KINDS)
