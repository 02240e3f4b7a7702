"""Starts and stops with a damaged or occupied data folder: real processes, real sockets, real disks."""

import json
import os
import signal
import socket
import sqlite3
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from tests.e2e.serving import environment
from tests.programs import Program, run_program
from tests.store.conftest import needs_postgresql, postgresql_server
from tests.waiting import pause_thread

PATIENCE = 240.0
"""Seconds after which a process's start or stop has failed."""

PROGRAM = str(Path(sys.executable).with_name("agentic-rag"))
OURS = ["serve"]
"""Arguments of `agentic-rag`, which runs in a process with everything imported."""
INTERPRETED = [PROGRAM, "serve"]
HOSTED = [sys.executable, "-m", "uvicorn", "agentic_rag.app.asgi:app", "--port", "{port}"]


class Child:
    """A started server, whether it answers or not."""

    def __init__(self, process: Program | subprocess.Popen[str], port: int, log_file: Path) -> None:
        self.process = process
        self.port = port
        self.folder = log_file.parent
        self._log_file = log_file

    @property
    def output(self) -> str:
        return self._log_file.read_text()

    def get(self, path: str) -> tuple[int, Any, Any]:
        """Return status, headers and JSON."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=PATIENCE) as answer:
                return answer.status, answer.headers, json.load(answer)
        except urllib.error.HTTPError as exc:
            with exc:
                return exc.code, exc.headers, json.load(exc)

    def wait_for(self, path: str, status: int) -> Any:
        """Return a path's answer once there is one."""
        while True:
            assert self.process.poll() is None, self.output
            try:
                code, _, body = self.get(path)
            except (urllib.error.URLError, ConnectionError):
                code = 0
            if code == status:
                return body
            pause_thread()

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(PATIENCE)


@contextmanager
def start_server(folder: Path, command: list[str], **variables: str) -> Iterator[Child]:
    """Start a server whose data folder is ``folder / "data"``. It is stopped at the end in any case."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    settings = {"DATA": str(folder / "data"), "PORT": str(port), "EMBEDDING": "none", "DRAIN_SECONDS": "1"}
    environment_variables = environment(
        **{f"AGENTIC_RAG_{name}": value for name, value in settings.items()}, **variables
    )
    log_file = folder / "said.log"
    with log_file.open("w") as file, _begin(folder, command, port, environment_variables, file.fileno()) as process:
        try:
            yield Child(process, port, log_file)
        finally:
            process.kill()


def _begin(
    folder: Path, command: list[str], port: int, env: dict[str, str], output: int
) -> Program | subprocess.Popen[str]:
    if command == OURS:
        return Program(command, cwd=folder, env=env, stdout=output, stderr=subprocess.STDOUT)
    words = [word.format(port=port) for word in command]
    return subprocess.Popen(words, env=env, text=True, stdout=output, stderr=subprocess.STDOUT, cwd=folder)


def assert_waiting(child: Child) -> None:
    """The process lives, and answers everything else with an error about its store."""
    assert child.wait_for("/api/version", 200)["version"]
    for path in ("/api/ready", "/api/health", "/api/domains", "/api/turns/t/events", "/nothing"):
        status, headers, body = child.get(path)
        assert (status, body["error"]["code"]) == (503, "STORAGE_UNAVAILABLE")
        assert body["error"]["requestId"] == headers["x-request-id"]
        assert int(headers["retry-after"]) > 0
        assert str(child.folder) not in str(body)
    with pytest.raises(InvalidStatus) as exc_info:
        connect(f"ws://127.0.0.1:{child.port}/ws", open_timeout=PATIENCE)
    assert exc_info.value.response.status_code == 503


def assert_serving(child: Child) -> None:
    assert child.wait_for("/api/ready", 200) == {"ready": True}
    assert child.get("/api/health")[2]["store"]["state"] == "ready"
    assert child.stop() in (0, -signal.SIGTERM)  # uvicorn alone raises the signal again
    assert "Traceback" not in child.output


@pytest.mark.parametrize(
    "command",
    [
        pytest.param(OURS, id="agentic-rag"),
        pytest.param(HOSTED, id="uvicorn", marks=pytest.mark.nightly("under agentic-rag it runs every time")),
    ],
)
def test_a_start_waits_for_the_data_folders_missing_volume(tmp_path: Path, command: list[str]) -> None:
    (tmp_path / "data").symlink_to(tmp_path / "volume")
    with start_server(tmp_path, command) as child:
        assert_waiting(child)
        assert f"{tmp_path / 'data'} cannot be used" in child.output
        (tmp_path / "volume").mkdir()
        assert_serving(child)


@needs_postgresql
def test_a_start_waits_for_postgresql(tmp_path: Path) -> None:
    with postgresql_server() as server:
        server.stop()
        with start_server(tmp_path, OURS, AGENTIC_RAG_DATABASE_URL=server.url) as child:
            assert_waiting(child)
            doctor = command_line(tmp_path, "doctor", AGENTIC_RAG_DATABASE_URL=server.url)
            assert_one_line(doctor, 3, "in use by process")
            server.start()
            assert_serving(child)


@pytest.mark.parametrize(
    "command",
    [
        pytest.param(OURS, id="agentic-rag", marks=pytest.mark.nightly("under uvicorn it runs every time")),
        pytest.param(HOSTED, id="uvicorn"),
    ],
)
def test_a_server_that_waits_for_its_store_can_be_stopped(tmp_path: Path, command: list[str]) -> None:
    (tmp_path / "data").symlink_to(tmp_path / "volume")
    with start_server(tmp_path, command) as child:
        child.wait_for("/api/version", 200)
        with socket.create_connection(("127.0.0.1", child.port)) as half_a_request:
            half_a_request.sendall(b"GET /api/ready HTTP/1.1\r\n")
            assert child.stop() in (0, -signal.SIGTERM)
        assert "Traceback" not in child.output
        assert not (tmp_path / "volume").exists()


def command_line(folder: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environment_variables = environment(
        AGENTIC_RAG_DATA=str(folder / "data"), AGENTIC_RAG_EMBEDDING="none", **variables
    )
    return run_program(arguments, cwd=folder, env=environment_variables)


def assert_one_line(result: subprocess.CompletedProcess[str], code: int, *words: str) -> None:
    assert result.returncode == code, result.stderr
    assert [line.startswith("error: ") for line in result.stderr.splitlines()] == [True]
    for word in words:
        assert word in result.stderr


@pytest.mark.parametrize("url", ["mysql://rag@127.0.0.1/rag", "postgresql://rag@127.0.0.1:port/rag"])
def test_a_wrong_database_url_is_refused_at_once(tmp_path: Path, url: str) -> None:
    refusal = command_line(tmp_path, "serve", "--port", "0", AGENTIC_RAG_DATABASE_URL=url)
    assert_one_line(refusal, 2, "AGENTIC_RAG_DATABASE_URL")


@pytest.mark.nightly("store/test_migrations.py refuses them every time")
def test_tables_upgraded_under_a_running_server_stop_it(tmp_path: Path) -> None:
    (tmp_path / "data").symlink_to(tmp_path / "volume")
    with start_server(tmp_path, HOSTED) as child:
        child.wait_for("/api/version", 200)
        (tmp_path / "new").mkdir()
        with closing(sqlite3.connect(tmp_path / "new" / "agentic-rag.db")) as newer:
            newer.execute("CREATE TABLE alembic_version (version_num)")
            newer.executescript("INSERT INTO alembic_version VALUES ('9999')")
        (tmp_path / "new").rename(tmp_path / "volume")
        child.process.wait(PATIENCE)
        assert "the tables have version '9999'" in child.output
        assert "Traceback" not in child.output


@pytest.fixture(scope="module")
def intact(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The database of a stopped server."""
    folder = tmp_path_factory.mktemp("intact")
    result = command_line(folder, "domains", "list")
    assert result.returncode == 0, result.stderr
    return (folder / "data" / "agentic-rag.db").read_bytes()


@pytest.mark.parametrize("damage", ["header", "truncated", "pages"])
def test_a_damaged_database_is_a_one_line_error_with_a_remedy(tmp_path: Path, intact: bytes, damage: str) -> None:
    (tmp_path / "data").mkdir(mode=0o700)
    page = 4096
    damaged_files = {
        "header": os.urandom(100) + intact[100:],
        "truncated": intact[: len(intact) // 2],
        "pages": intact[:page] + bytes(len(intact) - page),
    }
    (tmp_path / "data" / "agentic-rag.db").write_bytes(damaged_files[damage])
    refusal = command_line(tmp_path, "serve", "--port", "0")
    assert_one_line(refusal, 1, "The database is damaged", "backup", "agentic-rag doctor")


def test_a_stop_does_not_wait_for_a_loading_model_client(tmp_path: Path) -> None:
    package = tmp_path / "site" / "anthropic"
    package.mkdir(parents=True)
    loading = tmp_path / "loading"
    lines = ("import pathlib, threading", f"pathlib.Path({str(loading)!r}).touch()", "threading.Event().wait()")
    (package / "__init__.py").write_text("\n".join(lines))
    places = os.pathsep.join([str(package.parent), os.environ.get("PYTHONPATH", "")])
    with start_server(tmp_path, INTERPRETED, ANTHROPIC_API_KEY="sk-test", PYTHONPATH=places) as child:
        child.wait_for("/api/health", 200)
        while not loading.exists():
            assert child.process.poll() is None, child.output
            pause_thread()
        assert child.stop() == 0
        assert "Traceback" not in child.output


def test_a_stop_delayed_by_a_hanging_folder_ends_with_a_warning(tmp_path: Path) -> None:
    result = run_program([], cwd=tmp_path, env=environment(), module="tests.server.hanging_stop")
    assert result.returncode == 1
    assert "a folder or a device does not answer" in result.stderr
