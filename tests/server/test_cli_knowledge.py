"""Documents and models on the command line: real processes, a watched folder, and a model hub that works or fails."""

import json
import signal
import socket
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

from tests.e2e.serving import environment
from tests.programs import Program, run_program
from tests.retriever.tiny_model import write_model
from tests.retriever.tiny_reranker import write_reranker
from tests.server.test_cli import assert_one_line, run, serving

WATCHING = "Watching."


class Watch:
    """A running ``ingest --watch`` whose output is recorded."""

    def __init__(self, folder: Path, domain: str, *paths: str) -> None:
        command = ["ingest", domain, *paths, "--watch"]
        # Python flushes each line to a pipe only if configured to.
        variables = {**environment(), "PYTHONUNBUFFERED": "1"}
        self.child = Program(command, cwd=folder, env=variables, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        self.output = ""

    def wait_for(self, *words: str) -> None:
        """Read on until one line contains all of these."""
        assert self.child.stdout is not None
        while line := self.child.stdout.readline():
            self.output += line
            if all(word in line for word in words):
                return
        raise AssertionError(self.output)

    def stop(self) -> int:
        """Press Ctrl-C."""
        self.child.send_signal(signal.SIGINT)
        assert self.child.stdout is not None
        self.output += self.child.stdout.read()
        return self.child.wait(60)


@contextmanager
def watch_folder(folder: Path, domain: str, *paths: str) -> Iterator[Watch]:
    watch = Watch(folder, domain, *paths)
    killer = threading.Timer(240, watch.child.kill)  # a hang must fail the test, not block it
    killer.start()
    try:
        yield watch
    finally:
        killer.cancel()
        watch.child.kill()
        watch.child.wait()
        if watch.child.stdout is not None:
            watch.child.stdout.close()


def names_of(folder: Path, domain: str) -> list[str]:
    documents = folder / "data" / "workspaces" / domain / "documents"
    return sorted(path.name for path in documents.iterdir())


def test_a_watched_folder_is_scanned_until_ctrl_c(tmp_path: Path) -> None:
    domain = run(tmp_path, "domains", "create", "Law").stdout.strip()
    files = tmp_path / "in"
    (files / "sub").mkdir(parents=True)
    (files / "note.md").write_text("# Leave\n\nTwenty-five days a year.")
    (files / "sub" / "note.md").write_text("# Sick\n\nA certificate after three days.")
    with watch_folder(tmp_path, domain, "in") as watch:
        watch.wait_for(WATCHING)
        assert "note.md" in watch.output
        assert "indexed, 1 chunks" in watch.output
        (files / "late.md").write_text("# Pumps\n\nThe pump holds twelve bar.")
        watch.wait_for("late.md", "indexed")
        (files / "sub" / "note.md").write_text("# Sick\n\nA certificate after five days.")
        watch.wait_for("note", "indexed")
        assert watch.stop() == 130
        assert "Traceback" not in watch.output
    assert names_of(tmp_path, domain) == ["late.md", "note (2).md", "note.md"]
    stored_texts = {path.read_text() for path in (tmp_path / "data" / "workspaces" / domain / "documents").iterdir()}
    assert stored_texts == {path.read_text() for path in files.rglob("*.md")}, (
        "each document is the newest state of its file"
    )
    assert '"documentCount": 3' in run(tmp_path, "domains", "show", domain).stdout, "the folder is free again"


def test_a_watched_file_that_becomes_a_copy_is_no_separate_document_until_it_changes(tmp_path: Path) -> None:
    domain = run(tmp_path, "domains", "create", "Law").stdout.strip()
    files = tmp_path / "in"
    files.mkdir()
    leave, sick, pumps, valves = (f"# {name}\n\nAbout {name}." for name in ("Leave", "Sick", "Pumps", "Valves"))
    (files / "dup.md").write_text(leave)
    (files / "rep.md").write_text(sick)
    documents = tmp_path / "data" / "workspaces" / domain / "documents"

    def texts() -> dict[str, str]:
        return {path.name: path.read_text() for path in documents.iterdir()}

    with watch_folder(tmp_path, domain, "in") as watch:
        watch.wait_for(WATCHING)
        assert texts() == {"dup.md": leave, "rep.md": sick}
        (files / "rep.md").write_text(leave)
        watch.wait_for("dup.md", "indexed")
        assert texts() == {"dup.md": leave}
        (files / "rep.md").write_text(pumps)
        watch.wait_for("rep.md", "indexed")
        assert texts() == {"dup.md": leave, "rep.md": pumps}
        (files / "rep.md").write_text(leave)
        watch.wait_for("dup.md", "indexed")
        (files / "dup.md").write_text(valves)
        watch.wait_for("rep.md", "indexed")
        assert texts() == {"dup.md": valves, "rep.md": leave}, "the copy is the only one now"
        assert watch.stop() == 130


def test_a_running_server_is_used_for_watching_and_reindexing(tmp_path: Path) -> None:
    domain = run(tmp_path, "domains", "create", "Law").stdout.strip()
    files = tmp_path / "in"
    files.mkdir()
    with serving(tmp_path):
        with watch_folder(tmp_path, domain, "in") as watch:
            watch.wait_for(WATCHING)
            (files / "late.md").write_text("# Pumps\n\nThe pump holds twelve bar.")
            watch.wait_for("late.md", "indexed")
            assert '"documentCount": 1' in run(tmp_path, "domains", "show", domain).stdout, "the server answers others"
            assert watch.stop() == 130
        result = run(tmp_path, "reindex", domain)
        assert (result.returncode, result.stderr) == (0, "The documents are being re-indexed.\n")
    back = run(tmp_path, "reindex", domain, "--rollback")
    assert (back.returncode, back.stderr) == (0, "The collection before is back.\n")
    result = run(tmp_path, "reindex", domain)
    assert result.returncode == 0, result.stderr
    assert_one_line(run(tmp_path, "reindex", "nope"), 1, "nope")


def fetch(folder: Path, endpoint: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run ``fetch-model`` against a hub, into an empty cache."""
    variables = {**environment(), "HF_ENDPOINT": endpoint, "AGENTIC_RAG_MODEL_CACHE": str(folder / "cache")}
    variables |= {"NO_PROXY": "127.0.0.1", "HF_HUB_DISABLE_XET": "1", "HF_HUB_OFFLINE": "0"}
    return run_program(["fetch-model", *arguments], cwd=folder, env=variables)


def test_a_failed_download_is_one_attempt_and_one_error(tmp_path: Path) -> None:
    attempts: list[str] = []
    with hub(tmp_path, attempts, status=503) as url:
        result = fetch(tmp_path, url)
    assert result.returncode == 1
    assert "could not be fetched" in result.stderr
    assert url in result.stderr
    assert "Traceback" not in result.stderr
    assert "sleeping" not in result.stderr
    with socket.create_server(("127.0.0.1", 0)) as listener:
        closed_url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    result = fetch(tmp_path, closed_url, "Xenova/ms-marco-MiniLM-L-6-v2")
    assert result.returncode == 1
    assert "refused" in result.stderr


def test_an_unknown_model_and_a_folder_without_a_model_have_different_errors(tmp_path: Path) -> None:
    assert "knows no model called 'acme/nope'" in fetch(tmp_path, "http://127.0.0.1:9", "acme/nope").stderr
    assert "'nowhere' is not on this machine" in fetch(tmp_path, "http://127.0.0.1:9", "./nowhere").stderr
    (tmp_path / "empty").mkdir()
    assert "there is no model.onnx" in fetch(tmp_path, "http://127.0.0.1:9", "./empty").stderr
    write_model(tmp_path / "local")
    result = fetch(tmp_path, "http://127.0.0.1:9", "./local")
    assert (result.returncode, "local:local is here" in result.stderr) == (0, True)


def test_a_model_is_downloaded_with_progress_and_then_used_offline(tmp_path: Path) -> None:
    name = write_reranker(tmp_path / "source")
    (files,) = (tmp_path / "source").glob("*/snapshots/*")
    requested_paths: list[str] = []
    with hub(files, requested_paths) as url:
        result = fetch(tmp_path, url, name)
    assert result.returncode == 0, result.stderr
    assert any(path.endswith("onnx/model.onnx") for path in requested_paths)
    assert "MiB" in result.stderr
    second_result = fetch(tmp_path, "http://127.0.0.1:9", name)
    assert (second_result.returncode, f"{name} is here" in second_result.stderr) == (0, True)


@contextmanager
def hub(folder: Path, requested_paths: list[str], status: int = 200, failures: int = 0) -> Iterator[str]:
    """Serve a model folder as huggingface.co serves every repository, or fail always or the first few times."""
    revision = "0" * 40
    files = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*") if path.is_file()}

    class Answers(BaseHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            """Stderr is empty."""

        def do_HEAD(self) -> None:
            self.do_GET()

        def do_GET(self) -> None:
            path = unquote(urlsplit(self.path).path)
            requested_paths.append(path)
            if status != 200 or len(requested_paths) <= failures:
                self.answer(503, b"{}")
            elif "/tree/" in path:
                rows = [
                    {"type": "file", "path": name, "size": file.stat().st_size, "oid": name}
                    for name, file in files.items()
                ]
                self.answer(200, json.dumps(rows).encode())
            elif path.startswith("/api/models/"):
                siblings = [{"rfilename": name} for name in files]
                about = {"id": "/".join(path.split("/")[3:5]), "sha": revision, "siblings": siblings}
                self.answer(200, json.dumps(about).encode())
            else:
                name = path.partition("/resolve/")[2].partition("/")[2]
                self.answer(200, files[name].read_bytes()) if name in files else self.answer(404, b"{}")

        def answer(self, code: int, body: bytes) -> None:
            self.send_response(code)
            self.send_header("Content-Length", str(len(body)))
            self.send_header("ETag", f'"{abs(hash(body))}"')
            self.send_header("X-Repo-Commit", revision)
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(body)

    with ThreadingHTTPServer(("127.0.0.1", 0), Answers) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()
