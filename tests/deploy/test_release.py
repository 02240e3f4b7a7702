"""The release in fresh Debian roots, as a new user gets it: see ``scripts/try_release``."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

PROGRAM = Path(__file__).parents[2] / "scripts" / "try_release"

pytestmark = [
    pytest.mark.nightly("each way makes a Debian root and downloads all packages"),
    pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("mmdebstrap"), reason="needs root and mmdebstrap"),
]


@pytest.mark.parametrize("way", ["readme", "container", "wheel"])
def test_a_fresh_machine_gets_to_a_cited_answer(way: str) -> None:
    result = subprocess.run([str(PROGRAM), way], capture_output=True, text=True, timeout=3_600, check=False)
    assert result.returncode == 0, f"{result.stdout}\n{result.stderr}"[-4000:]
    assert result.stdout.startswith(f"{way}: ")
