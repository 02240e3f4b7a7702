"""``agentic-rag secrets`` as an operator uses it: real processes, values from standard input only."""

import os
import subprocess
from pathlib import Path

from tests.programs import run_program

VALUE = "sk-planted-0123456789-wxyz"


def run(folder: Path, *arguments: str, stdin_text: str = "", **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(("AGENTIC_RAG_", "ANTHROPIC_"))
    }
    return run_program(
        arguments, cwd=folder, env={**environment, "AGENTIC_RAG_ALLOW_ROOT": "1", **variables}, given=stdin_text
    )


def test_a_secret_is_set_listed_rotated_and_deleted_without_being_shown(tmp_path: Path) -> None:
    domain = run(tmp_path, "domains", "create", "Law").stdout.strip()
    results = [
        run(tmp_path, "secrets", "set", domain, "TOKEN", stdin_text=f"{VALUE}\n"),
        run(tmp_path, "secrets", "list", domain),
        run(tmp_path, "secrets", "rotate"),
        run(tmp_path, "secrets", "list", domain),
        run(tmp_path, "secrets", "delete", domain, "TOKEN"),
    ]
    assert [result.returncode for result in results] == [0] * 5, [result.stderr for result in results]
    assert results[1].stdout == results[3].stdout == "TOKEN\t…wxyz\n"
    assert results[2].stdout.startswith("1 secrets are sealed with the new key")
    assert VALUE not in "".join(result.stdout + result.stderr for result in results)
    assert '"sealed": 1' in run(tmp_path, "audit", "list").stdout, "a change by command line is told like any"
    assert run(tmp_path, "secrets", "delete", domain, "TOKEN").returncode == 1
    assert (tmp_path / "data" / "secret.key").stat().st_mode & 0o777 == 0o600


def test_a_weak_key_in_the_environment_stops_the_start_and_is_not_repeated(tmp_path: Path) -> None:
    for key in ("password", "ab" * 32):
        result = run(tmp_path, "serve", "--port", "0", AGENTIC_RAG_SECRET_KEY=key)
        assert result.returncode == 2
        assert result.stderr.startswith("error: AGENTIC_RAG_SECRET_KEY: ")
        assert key not in result.stderr
