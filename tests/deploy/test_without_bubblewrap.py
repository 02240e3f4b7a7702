"""Without bubblewrap, the doctor and `scripts/setup` report that it is missing, and what does not work without it."""

import hashlib
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from agentic_rag.tools.launch.sandbox import WITHOUT, Sandbox, find_sandbox
from tests.deploy.containers import container, find_problem, temporary
from tests.e2e.serving import environment

ROOT = Path(__file__).parents[2]
FOUND = find_sandbox()


def examine(data: Path, masked: str) -> subprocess.CompletedProcess[str]:
    """Run the doctor in a container on an empty data folder, with or without bubblewrap inside."""
    command = [sys.executable, "-m", "agentic_rag.cli", "doctor", "--data", str(data)]
    variables = environment(AGENTIC_RAG_EMBEDDING="none", PYTHONPATH=str(ROOT), TMPDIR=str(temporary(data)))
    return subprocess.run(
        container(data, *command, masked=masked),
        env=variables,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


@pytest.mark.skipif(isinstance(FOUND, str), reason=f"bubblewrap: {FOUND}")
@pytest.mark.skipif(bool(find_problem()), reason=f"no containers: {find_problem()}")
@pytest.mark.parametrize(
    "missing", [True, pytest.param(False, marks=pytest.mark.nightly("a container without bubblewrap runs every time"))]
)
def test_the_doctor_reports_a_missing_sandbox_and_its_consequences(tmp_path: Path, missing: bool) -> None:
    assert isinstance(FOUND, Sandbox)
    data = tmp_path / "data"
    data.mkdir(mode=0o700)
    temporary(data).mkdir()
    result = examine(data, FOUND.executable if missing else "")
    assert result.returncode == 0, result.stdout + result.stderr  # the data itself has no problem
    assert (WITHOUT in result.stdout) == missing, result.stdout
    assert ("bubblewrap is not installed" in result.stdout) == missing


@pytest.mark.skipif(sys.platform != "linux", reason="there is bubblewrap on Linux only")
@pytest.mark.parametrize("works", [True, False])
def test_setup_reports_a_missing_or_broken_bubblewrap(tmp_path: Path, works: bool) -> None:
    (tmp_path / "scripts").mkdir()
    (tmp_path / ".venv").mkdir()
    programs = tmp_path / "bin"
    programs.mkdir()
    shutil.copy(ROOT / "scripts" / "setup", tmp_path / "scripts" / "setup")
    for name in ("requirements.lock", "pyproject.toml"):
        (tmp_path / name).write_text(f"{name}\n")
    lock_text = b"requirements.lock\npyproject.toml\n"
    (tmp_path / ".venv" / ".agentic-rag-setup").write_text(f"{hashlib.sha256(lock_text).hexdigest()}  -\n")
    for name in ("bash", "dirname", "uname", "cat", "sha256sum", "true"):
        program = shutil.which(name)
        assert program is not None
        (programs / name).symlink_to(program)
    (programs / "bwrap").write_text(f"#!/bin/sh\nexit {0 if works else 1}\n")
    (programs / "bwrap").chmod(0o755)
    result = subprocess.run(
        [str(programs / "bash"), str(tmp_path / "scripts" / "setup")],
        env={"PATH": str(programs)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    assert ("apt install bubblewrap" in result.stderr) != works
