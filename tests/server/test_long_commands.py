"""Long commands end cleanly on Ctrl-C, and each command that prints a table also prints JSON."""

import ast
import functools
import inspect
import signal
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import typer.main

from agentic_rag import commands
from agentic_rag.cli import app
from tests.command_page import commands_of
from tests.databases import prepare_data
from tests.e2e.serving import environment
from tests.programs import Program

SECONDS = 120
COMMANDS = {
    "ingest": (["ingest", "law", "note.md"], "Run the command again for the rest"),
    "reindex": (["reindex", "law"], "Run the command again to wait for its end"),
    "evaluate": (["evaluate", "law"], "Run the command again to judge all cases"),
    "export": (["domains", "export", "law", "law.zip"], "No bundle was written"),
    "import": (["domains", "import", "note.md"], "domains list"),
    "fetch-model": (["fetch-model"], "The model is not complete. Run the command again"),
}


@contextmanager
def silent_server() -> Iterator[tuple[str, threading.Event]]:
    """Serve an address that accepts requests and never answers. The event is set at the first request."""
    received, ended = threading.Event(), threading.Event()

    class Silent(BaseHTTPRequestHandler):
        def handle_one_request(self) -> None:
            self.raw_requestline = self.rfile.readline(1)
            received.set()
            ended.wait(SECONDS)
            self.close_connection = True

    with ThreadingHTTPServer(("127.0.0.1", 0), Silent) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}", received
        finally:
            ended.set()
            server.shutdown()
            thread.join()


def stop(child: Program) -> tuple[int, str]:
    """Press Ctrl-C, and return the exit code and the output."""
    child.send_signal(signal.SIGINT)
    code = child.wait(SECONDS)
    assert child.stdout is not None
    with child.stdout:
        return code, child.stdout.read()


@pytest.mark.slow("programs are started")
@pytest.mark.parametrize("name", COMMANDS)
def test_ctrl_c_ends_a_long_command_with_130_and_a_hint(tmp_path: Path, name: str) -> None:
    arguments, advice = COMMANDS[name]
    (tmp_path / "note.md").write_text("# Leave\n\nTwenty-five days a year.")
    with silent_server() as (url, received):
        local = {"HF_ENDPOINT": url, "HF_HUB_OFFLINE": "0", "NO_PROXY": "127.0.0.1", "HF_HUB_DISABLE_XET": "1"}
        variables = {**environment(), **local, "AGENTIC_RAG_MODEL_CACHE": str(tmp_path / "cache")}
        where = [] if name == "fetch-model" else ["--url", url]
        with Program(
            [*arguments, *where], cwd=tmp_path, env=variables, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        ) as child:
            assert received.wait(SECONDS)
            code, output = stop(child)
    assert code == 130, output
    assert output.count("Interrupted.") == 1
    assert advice in output
    assert "Traceback" not in output
    assert {path.name for path in tmp_path.iterdir()} <= {"note.md", "cache"}


@pytest.mark.sqlite("it backs up a file")
@pytest.mark.slow("a program is started")
def test_ctrl_c_leaves_no_part_of_a_backup(tmp_path: Path) -> None:
    documents = tmp_path / "data" / "workspaces" / "demo" / "documents"
    prepare_data(tmp_path / "data")
    documents.mkdir(parents=True)
    with (documents / "large.bin").open("wb") as file:
        file.truncate(8 * 2**30)  # takes no space, but copying takes far longer than the signal
    variables, target = environment(), tmp_path / "made"
    target.mkdir()
    arguments = ["backup", str(target / "all.arag"), "--data", "data"]
    with Program(arguments, cwd=tmp_path, env=variables, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as child:
        while not any(target.iterdir()):
            assert child.poll() is None
        code, output = stop(child)
    assert (code, output) == (130, "Interrupted. No backup was written. Run the command again.\n")
    assert list(target.iterdir()) == []


@functools.cache
def functions_of(path: str) -> dict[str, ast.AST]:
    nodes = ast.walk(ast.parse(Path(path).read_text(encoding="utf-8")))
    return {node.name: node for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}


def calls_of(function: Any) -> set[str]:
    """Return the names that a function calls, also through functions of its own module."""
    bodies = functions_of(inspect.getfile(function))
    called_names, unvisited = set[str](), [function.__name__]
    while unvisited:
        body = bodies.get(unvisited.pop())
        for node in ast.walk(body) if body is not None else ():
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id not in called_names:
                called_names.add(node.func.id)
                unvisited.append(node.func.id)
    return called_names


def test_every_command_with_a_table_also_prints_json() -> None:
    tables = 0
    for words, command in commands_of(typer.main.get_command(app)):
        options = {option for parameter in command.params for option in parameter.opts}
        assert command.callback is not None
        prints = "table" in calls_of(inspect.unwrap(command.callback))
        assert not prints or "--json" in options, words
        assert words[-1] != "list" or prints, f"{words} lists nothing as a table"
        tables += prints
    assert tables > 30
    for path in Path(inspect.getfile(commands)).parent.glob("*.py"):
        rows = path.read_text(encoding="utf-8").count('"\\t".join')
        assert rows == (path.name == "line.py"), f"{path.name} prints rows without `table`, so also without --json"
