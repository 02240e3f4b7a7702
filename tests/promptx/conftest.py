"""Fixtures of the promptx tests: a copy of the recorded memory, an empty workspace."""

import shutil
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

DATA = Path(__file__).parent / "data"
ROLE = "assistant"

PATIENT = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
"""Property tests never judge time: the machine may be busy."""


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    """An empty workspace."""
    folder = tmp_path / "workspace"
    folder.mkdir()
    return folder


@pytest.fixture
def recorded(workspace: Path) -> Path:
    """A fresh copy of the recorded memory, laid out as the domain memory of the role `assistant`."""
    folder = workspace / ".promptx" / "cognition" / ROLE
    folder.mkdir(parents=True)
    for name in ("engrams.db", "network.json"):
        shutil.copyfile(DATA / name, folder / name)
    return folder


@pytest.fixture
def resources(workspace: Path) -> Path:
    """The folder role files are dropped into."""
    folder = workspace / ".promptx" / "resource"
    folder.mkdir(parents=True)
    return folder
