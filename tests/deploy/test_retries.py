"""The end of `scripts/test`: failed tests are retried alone, and the verdict of each is printed last."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TESTS = """
from pathlib import Path

def test_passes_alone(): pass
def test_passes_later():
    tried = Path(__file__).with_name("tried")
    again = tried.exists()
    tried.touch()
    assert again
def test_never_passes(): assert 1 == 2
"""


def retry(folder: Path, *failed_tests: str) -> tuple[int, str]:
    """Run the script in a folder where these tests have failed; return its exit code and output."""
    (folder / "scripts").mkdir()
    shutil.copy(ROOT / "scripts" / "test_again", folder / "scripts")
    (folder / "test_it.py").write_text(TESTS)
    cache = folder / ".pytest_cache" / "v" / "cache"
    cache.mkdir(parents=True)
    (cache / "lastfailed").write_text(json.dumps({f"test_it.py::{name}": True for name in failed_tests}))
    result = subprocess.run(
        [sys.executable, folder / "scripts" / "test_again"],
        env=os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},  # importing them is most of a run's time
        capture_output=True,
        text=True,
        timeout=240,
    )
    return result.returncode, result.stdout


def test_a_test_that_passes_alone_is_reported_as_flaky_at_the_end(tmp_path: Path) -> None:
    code, output = retry(tmp_path, "test_passes_alone@group", "test_passes_later")
    assert code == 0
    assert output.splitlines()[-2:] == [
        "UNSTEADY: test_it.py::test_passes_alone passed when it ran alone; open an issue",
        "UNSTEADY: test_it.py::test_passes_later passed when it ran alone; open an issue",
    ]


def test_a_test_that_fails_alone_too_is_named_last(tmp_path: Path) -> None:
    code, output = retry(tmp_path, "test_passes_alone", "test_never_passes")
    assert code == 1
    assert output.splitlines()[-2:] == [
        "UNSTEADY: test_it.py::test_passes_alone passed when it ran alone; open an issue",
        "FAILED: test_it.py::test_never_passes",
    ]


def test_more_than_three_failures_are_not_retried(tmp_path: Path) -> None:
    code, output = retry(tmp_path, "test_a", "test_b", "test_c", "test_d")
    assert code == 1
    assert output.splitlines()[-1] == "Not retried: 4 tests failed, and at most 3 are retried."
