"""Foreign text reaches an operator's terminal as plain text: it sets no title, no clipboard, and hides no line."""

import io
import json
import logging
import os
import re
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from agentic_rag.base.terminal import log_handler, safe, safe_json
from agentic_rag.cli import app
from tests.programs import run_program

pytestmark = pytest.mark.attack(kind="model")

HOSTILE = "bait\x1b]52;c;ZXZpbA==\x07\x1b]0;title\x07\x1b[2J\x9b31m\x90q\x9c\u202egnp\u2066\rover\x08\x7f\u2028end"
STEERING = set("\x1b\x07\x08\x7f\x9b\x90\x9c\u202e\u2066\u2028\r")
FINDING = {"file": HOSTILE, "line": 1, "column": 1, "severity": "info", "code": "c", "message": HOSTILE, "hint": "h"}
TOOL = {"name": HOSTILE, "description": HOSTILE, "inputSchema": {}}

ANSWERS: dict[str, Any] = {
    "/api/domains": {"items": [{"id": "d", "name": HOSTILE, "documentCount": 1, "version": 1}]},
    "/api/domains/d": {"id": "d", "name": HOSTILE, "settings": {HOSTILE: [HOSTILE]}},
    "/api/domains/d/roles": {"items": [{"id": "r", "title": HOSTILE, "source": "workspace", "findings": 0}]},
    "/api/domains/d/roles/r": {"text": HOSTILE, "findings": [FINDING]},
    "/api/domains/d/role-findings": {"items": [FINDING]},
    "/api/domains/d/memories": {
        "items": [{"id": "1", "type": "A", "strength": 1, "createdAt": "t", "cues": [HOSTILE], "content": HOSTILE}],
        "total": 1,
    },
    "/api/domains/d/mcp-servers/test": {
        "items": [{"name": HOSTILE, "state": "failed", "reason": HOSTILE, "tools": [TOOL], "log": [HOSTILE]}],
        "warnings": [{"path": HOSTILE, "text": HOSTILE}],
    },
    "/api/audit/verify": {"problems": [{"seq": 1, "problem": HOSTILE}], "rows": 1, "intact": False, "head": HOSTILE},
}
ERROR = {"code": "X", "message": HOSTILE, "error": {"code": "X", "message": HOSTILE}}


class Hostile(BaseHTTPRequestHandler):
    """Answers like a server whose tenants wrote every text that it shows."""

    def do_GET(self) -> None:  # the library's name
        body = ANSWERS.get(self.path.partition("?")[0])
        data = json.dumps(ERROR if body is None else body).encode()
        self.send_response(404 if body is None else 200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.do_GET()

    def log_message(self, format: str, *args: object) -> None:
        """Stay silent."""


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Hostile) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


COMMANDS = (
    ("domains", "list"),
    ("domains", "show", "d"),
    ("roles", "list", "d"),
    ("roles", "show", "d", "r"),
    ("roles", "check", "d"),
    ("memory", "show", "r", "--domain", "d"),
    ("mcp", "test", "d", "ENTRIES"),
    ("audit", "verify"),
)


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_command_output_contains_no_terminal_control_sequences(
    words: tuple[str, ...], url: str, tmp_path: Path
) -> None:
    entries = tmp_path / "entries.json"
    entries.write_text("{}")
    arguments = [str(entries) if word == "ENTRIES" else word for word in words]
    result = CliRunner().invoke(app, [*arguments, "--url", url, "--data", str(tmp_path / "data")])
    assert "bait" in result.output
    assert "end" in result.output
    assert not set(result.output) & STEERING


@pytest.mark.parametrize("words", [("roles", "list", "other"), ("chat", "other", "Hello")], ids=" ".join)
def test_an_error_contains_no_terminal_control_sequences(words: tuple[str, ...], url: str, tmp_path: Path) -> None:
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(("AGENTIC_RAG_", "ANTHROPIC_"))
    }
    result = run_program([*words, "--url", url, "--data", str(tmp_path / "data")], cwd=tmp_path, env=environment)
    assert result.returncode == 1
    assert "bait" in result.stderr
    assert not set(result.stdout + result.stderr) & STEERING


def test_a_log_line_contains_no_control_characters_and_no_second_line() -> None:
    stream = io.StringIO()
    handler = log_handler(stream)
    try:
        raise ValueError(HOSTILE)
    except ValueError:
        record = logging.LogRecord("n", 30, "p", 1, "file %s", (f"{HOSTILE}\n2026-01-01 INFO forged",), sys.exc_info())
    handler.handle(record)
    lines = stream.getvalue().split("\n")
    assert not set(stream.getvalue()) & STEERING
    assert sum(bool(re.match(r"\d{4}-", line)) for line in lines) == 1
    assert "    2026-01-01 INFO forged" in lines
    assert "Traceback (most recent call last):" in lines


def test_only_control_characters_are_replaced() -> None:
    text = "Grüße\t你好 👋🏽 שלום\nline\x20end"
    assert safe(text) == text
    assert safe("a\r\nb") == "a\nb"
    assert safe("\ud800") == "\N{REPLACEMENT CHARACTER}"
    assert json.loads(safe_json(json.dumps([HOSTILE], ensure_ascii=False))) == [HOSTILE]


def test_all_command_output_passes_one_function() -> None:
    package = Path(__file__).parents[2] / "agentic_rag"
    printing = re.compile(r"typer\.(?:echo|secho)|click\.|(?<![\w.])print\(|std(?:out|err)\.write\(")
    paths = {
        path.relative_to(package).as_posix()
        for place in ("commands", "chat", "operations")
        for path in (package / place).rglob("*.py")
        if printing.search(path.read_text("utf-8"))
    }
    assert paths == {"commands/line.py"}
    assert not printing.search((package / "cli.py").read_text("utf-8"))
