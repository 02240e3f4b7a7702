"""The command line as a user sees it: real processes, exit codes, one plain line for each error."""

import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from agentic_rag.operations.data_folder import DataFolder, lent_files
from tests.databases import prepare_data, without_demo
from tests.e2e.serving import environment
from tests.programs import Program, run_program

PROGRAM = str(Path(sys.executable).with_name("agentic-rag"))


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a command on the data folder below ``folder``, which gets its tables first if it is new."""
    prepare_data(folder / "data")
    return run_program(arguments, cwd=folder, env=environment())


def run_without_reader(folder: Path, *arguments: str) -> tuple[int, str]:
    """Run a command whose output nothing reads, like the end of ``| head``. Return the exit code and stderr."""
    reading, writing = os.pipe()
    os.close(reading)
    with open(writing, "w") as output, (folder / "errors").open("w+") as errors:
        child = Program(arguments, cwd=folder, env=environment(), stdout=output.fileno(), stderr=errors.fileno())
        code = child.wait()
        return code, errors.read()


@contextmanager
def serving(folder: Path) -> Iterator[None]:
    without_demo(folder / "data")
    prepare_data(folder / "data")
    command = ["serve", "--port", "0", "--data", str(folder / "data")]
    with Program(command, cwd=folder, env=environment(), stdout=subprocess.PIPE) as child:
        try:
            assert child.stdout is not None
            assert child.stdout.readline().startswith("Agentic RAG serves http://127.0.0.1:")
            yield
        finally:
            child.terminate()
            assert child.wait(60) == 0


def assert_one_line(result: subprocess.CompletedProcess[str], code: int, *words: str) -> None:
    assert result.returncode == code, result.stderr
    assert result.stderr.startswith("error: ")
    assert result.stderr.count("\n") == 1
    for word in words:
        assert word in result.stderr


def test_commands_work_without_a_server_and_with_one(tmp_path: Path) -> None:
    (tmp_path / "note.md").write_text("# Leave\n\nTwenty-five days a year.")
    (tmp_path / "program.exe").write_bytes(b"MZ")
    domain = run(tmp_path, "domains", "create", "Law").stdout.strip()
    assert domain.startswith("dom_")
    ingested = run(tmp_path, "ingest", domain, "note.md")
    assert ingested.returncode == 0, ingested.stderr
    with serving(tmp_path):
        assert domain in run(tmp_path, "domains", "list").stdout
        assert '"documentCount": 1' in run(tmp_path, "domains", "show", domain).stdout
        assert "assistant" in run(tmp_path, "roles", "list", domain).stdout
        failed_ingest = run(tmp_path, "ingest", domain, "note.md", "missing.md")
        assert failed_ingest.returncode == 1
        assert "missing.md: cannot be read" in failed_ingest.stderr
        refused_ingest = run(tmp_path, "ingest", domain, "program.exe")
        assert (refused_ingest.returncode, refused_ingest.stderr.count("program.exe")) == (1, 1), refused_ingest.stderr
        (tmp_path / "broken.pdf").write_bytes(b"no document")
        broken_ingest = run(tmp_path, "ingest", domain, "broken.pdf")
        assert (broken_ingest.returncode, broken_ingest.stderr.count("broken.pdf")) == (1, 1), broken_ingest.stderr
        handbook = tmp_path / "handbook"
        (handbook / ".git").mkdir(parents=True)
        (handbook / "pump.md").write_text("# Pump\n\nIt holds twelve bar.")
        (handbook / "old.doc").write_bytes(b"x")
        (handbook / "photo.heic").write_bytes(b"x")
        (handbook / "gone.md").symlink_to("nowhere")
        (handbook / ".hidden.md").write_text("x")
        shutil.copy(tmp_path / "handbook" / "pump.md", tmp_path / "handbook" / "pump copy.md")
        skipped_ingest = run(tmp_path, "ingest", domain, "handbook")
        assert skipped_ingest.returncode == 3, skipped_ingest.stderr
        assert (
            "old.doc: skipped, files ending in '.doc' are not read: open it in a word processor"
            in skipped_ingest.stderr
        )
        assert "photo.heic: skipped, files ending in '.heic' are not read" in skipped_ingest.stderr
        assert "gone.md: skipped, it is a link that leads nowhere" in skipped_ingest.stderr
        assert "Hidden files and folders skipped: 2" in skipped_ingest.stderr
        assert "pump.md: has the same content as pump copy.md, so it was not added again" in skipped_ingest.stderr
        assert "pump.md: skipped" not in skipped_ingest.stderr
        labelled_ingest = run(tmp_path, "ingest", domain, "note.md", "--label", "hr files", "--label", "board")
        assert labelled_ingest.returncode == 0, labelled_ingest.stderr
        assert run(tmp_path, "stale", domain, "--days", "7").stdout == ""
        (handbook / "empty").mkdir()
        nothing = run(tmp_path, "ingest", domain, "handbook/empty")
        assert (nothing.returncode, "No file to ingest." in nothing.stderr) == (1, True)
        assert run_without_reader(tmp_path, "chat", domain, "How many days?") == (1, "")
        assert_one_line(run(tmp_path, "domains", "show", "nope"), 1, "nope")
        assert_one_line(run(tmp_path, "serve", "--port", "0"), 3, "in use by process")
        assert run(tmp_path, "domains", "delete", domain, "--yes").returncode == 0
    assert_one_line(run(tmp_path, "domains", "show", domain), 1, domain)


def test_a_port_in_use_is_exit_code_4(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = str(listener.getsockname()[1])
        assert_one_line(run(tmp_path, "serve", "--port", port), 4, port)


def test_a_data_folder_of_another_process_is_exit_code_3(tmp_path: Path) -> None:
    owner = DataFolder.own(tmp_path / "data")
    try:
        assert_one_line(run(tmp_path, "domains", "list"), 3, f"process {os.getpid()}")
    finally:
        owner.release()


@pytest.mark.parametrize("arguments", [("--host", "0.0.0.0"), ("--host", "example.org"), ("--data", "/dev/null/data")])
def test_a_bad_configuration_is_exit_code_2(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    assert_one_line(run(tmp_path, "serve", "--port", "0", *arguments), 2)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root is asked")
def test_a_server_with_too_low_a_file_limit_does_not_start(tmp_path: Path) -> None:
    line = ["sh", "-c", 'ulimit -n 64; exec "$0" "$@"', PROGRAM, "serve", "--port", "0"]
    result = subprocess.run(
        line, cwd=tmp_path, env=environment(), capture_output=True, text=True, check=False, timeout=60
    )
    assert_one_line(result, 2, "open files", "64", "ulimit")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root is warned")
def test_root_serves_without_a_flag_and_with_one_line_of_warning(tmp_path: Path) -> None:
    command = ["serve", "--port", "0", "--data", str(tmp_path / "data")]
    with (
        (tmp_path / "log").open("w") as log,
        Program(command, cwd=tmp_path, env=environment(), stdout=subprocess.PIPE, stderr=log.fileno()) as child,
    ):
        assert child.stdout is not None
        assert child.stdout.readline().startswith("Agentic RAG serves http://127.0.0.1:")
        child.terminate()
    assert (tmp_path / "log").read_text().count("serving as root") == 1


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_the_server_switches_to_the_given_user_or_gives_the_reason(tmp_path: Path) -> None:
    assert_one_line(
        run(tmp_path, "serve", "--port", "0", "--user", "no-such-user"), 2, "user", "no-such-user", "useradd"
    )
    assert_one_line(run(tmp_path, "serve", "--port", "0", "--user", "nobody"), 2, "user", "chown -R nobody")


def test_a_servers_files_are_closed_to_other_users(tmp_path: Path) -> None:
    (tmp_path / "data" / "old").mkdir(parents=True)
    for folder in (tmp_path / "data", tmp_path / "data" / "old"):
        folder.chmod(0o755)
    with serving(tmp_path):
        run(tmp_path, "domains", "create", "Law")
        assert (tmp_path / "data").stat().st_mode & 0o777 == 0o700
        assert lent_files(tmp_path / "data") == ["old"]
    examined = run(tmp_path, "doctor")
    assert examined.returncode == 1
    assert "FILES_OPEN_TO_OTHERS" in examined.stdout
    assert run(tmp_path, "doctor", "--repair").returncode == 0
    assert run(tmp_path, "doctor").returncode == 0


@pytest.mark.parametrize("command", [(), ("serve",), ("ingest",), ("domains", "list"), ("roles", "check"), ("chat",)])
def test_every_command_has_help(tmp_path: Path, command: tuple[str, ...]) -> None:
    result = run(tmp_path, *command, "--help")
    assert result.returncode == 0
    assert "Usage" in result.stdout


def test_an_unreachable_server_is_a_one_line_error(tmp_path: Path) -> None:
    assert_one_line(run(tmp_path, "domains", "list", "--url", "http://127.0.0.1:9"), 1, "No server answers")
