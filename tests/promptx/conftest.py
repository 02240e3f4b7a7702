"""Fixtures of the promptx tests: a copy of the recorded memory, and an empty workspace."""

import shutil
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

DATA = Path(__file__).parent / "data"
ROLE = "assistant"

PATIENT = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
"""Settings of property tests without time limits, because the machine may be busy."""


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    """Return an empty workspace."""
    folder = tmp_path / "workspace"
    folder.mkdir()
    return folder


@pytest.fixture
def recorded_folder(workspace: Path) -> Path:
    """Return a new copy of the recorded memory, as the domain memory of the role `assistant`."""
    folder = workspace / ".promptx" / "cognition" / ROLE
    folder.mkdir(parents=True)
    for name in ("engrams.db", "network.json"):
        shutil.copyfile(DATA / name, folder / name)
    return folder


@pytest.fixture
def resources(workspace: Path) -> Path:
    """Return the folder for role files."""
    folder = workspace / ".promptx" / "resource"
    folder.mkdir(parents=True)
    return folder
