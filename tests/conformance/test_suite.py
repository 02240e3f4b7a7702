"""The driver of the public conformance suite: its parser, and one complete scenario of each protocol era."""

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.conformance.authorization import SCENARIOS as AUTHORIZATION
from tests.conformance.authorization import run_authorization
from tests.conformance.suite import INSTALL, REVISIONS, advise_install, required_scenarios, run_scenario, verdict
from tests.conformance.tasks import run_tasks
from tests.node import node

SAID = """Passed: 3/5, 2 failed, 0 warnings

=== Failed Checks ===

  - ServerRejects: A server MUST reject.
    Error: Not testable: server does not list the diagnostic tool
  - HttpStatus: The status MUST be 400.
    Error: {why}
"""


def test_scripts_in_a_fresh_clone_print_how_to_set_it_up(tmp_path: Path) -> None:
    scripts = Path(__file__).parents[2] / "scripts"
    heads = [path.read_bytes().partition(b"\n")[0] for path in scripts.iterdir() if path.is_file()]
    assert not [head for head in heads if b".venv" in head], "scripts start with scripts/python"
    (tmp_path / "scripts").mkdir()
    for name in ("python", "conformance"):
        shutil.copy(scripts / name, tmp_path / "scripts")
    result = subprocess.run(["scripts/conformance"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (result.returncode, result.stdout) == (1, "")
    assert result.stderr == "Run scripts/setup first: it installs the packages of this command.\n"


def test_a_clone_without_packages_prints_how_to_install_them(tmp_path: Path) -> None:
    advice = advise_install(tmp_path / "node_modules" / "conformance")
    assert advice.endswith(f"\n\n    {INSTALL}")
    assert INSTALL.startswith("npm ci --prefix tests/clients")
    (tmp_path / "dist").mkdir()
    (tmp_path / "dist" / "index.js").touch()
    assert advise_install(tmp_path) == ""


def test_a_check_that_only_the_reference_server_can_pass_does_not_count() -> None:
    assert verdict(SAID.format(why="Server executed 'test_missing_capability'"), 1) == (True, ())
    assert verdict(SAID.format(why="it was 200"), 1) == (False, ("HttpStatus: The status MUST be 400. it was 200",))
    assert verdict("Passed: 5/5", 0) == (True, ())
    assert verdict("the suite did not start", 1) == (False, ())


def test_the_frozen_lists_of_the_suite_are_read_whole() -> None:
    node()
    counts = {
        revision: (len(required_scenarios(revision, "client")), len(required_scenarios(revision, "server")))
        for revision in REVISIONS
    }
    assert counts == {"2026-07-28": (32, 37), "2025-11-25": (18, 30)}
    assert "sep-2322-client-request-state" in required_scenarios("2026-07-28", "client")


@pytest.mark.parametrize(
    ("revision", "scenario"),
    [
        ("2026-07-28", "sep-2322-client-request-state"),
        pytest.param(
            *("2025-11-25", "elicitation-sep1034-client-defaults"),
            marks=pytest.mark.nightly("a scenario of the newer revision runs every time"),
        ),
    ],
)
def test_a_person_answers_what_the_suites_server_asks_for(revision: str, scenario: str) -> None:
    result = run_scenario(scenario, revision, "client")
    assert result.passed, result.output[-4000:]


def test_a_scenario_that_the_suite_skipped_has_not_passed() -> None:
    output = "SKIPPED: scenario 'tasks-lifecycle' is not applicable at spec version 2026-07-28"
    assert verdict(output, 0) == (False, (output,))


async def test_the_suite_gets_a_token_from_the_authorization_server(tmp_path: Path) -> None:
    results = await run_authorization(tmp_path)
    assert [result.scenario for result in results if result.passed] == [*AUTHORIZATION], results[-1].output[-4000:]


@pytest.mark.nightly("a minute of waiting for tasks; test_mcp_door tests the same with the SDK's client")
async def test_tasks_of_the_mcp_endpoint_pass_the_suite(tmp_path: Path) -> None:
    for result in await run_tasks(tmp_path):
        assert result.passed, (result.scenario, result.failed, result.output[-4000:])
