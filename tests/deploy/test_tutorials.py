"""Every command of the tutorials works, and prints the output on the page."""

import json
import os
import re
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.programs import Program

ROOT = Path(__file__).resolve().parent.parent.parent
PAGES = ROOT / "docs" / "tutorials"
SECONDS = 240
PAUSE = 0.1
BLOCK = re.compile(r"^```(sh|text)\n(.*?)^```$", re.M | re.S)
END = "== end of block =="


def is_ready(port: int) -> bool:
    """Return whether the server is ready and all documents of the demo can be searched.

    Raises:
        OSError: the server does not listen yet, or is not ready.
    """
    url = f"http://127.0.0.1:{port}"
    urllib.request.urlopen(f"{url}/api/ready", timeout=30).close()
    with urllib.request.urlopen(f"{url}/api/domains/demo/documents", timeout=30) as answer:
        documents = json.load(answer)["items"]
    return bool(documents) and all(document["status"] == "indexed" for document in documents)


@contextmanager
def run_server(folder: Path) -> Iterator[tuple[int, dict[str, str]]]:
    """Serve from a folder as `scripts/serve` does; yield the port and the environment of a reader's shell.

    No embedder is used, because its process costs seconds of CPU, and all pages print the same without one.
    """
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    inherited = {name: text for name, text in os.environ.items() if not name.startswith(("AGENTIC_RAG_", "ANTHROPIC_"))}
    paths = {
        "PATH": f"{Path(sys.executable).parent}:{inherited['PATH']}",
        "PYTHONPATH": f"{ROOT}:{ROOT / 'clients' / 'python'}",
    }
    environment = inherited | paths | {"AGENTIC_RAG_EMBEDDING": "none"}
    with (folder / "served.txt").open("wb") as log:
        log_descriptor = log.fileno()
        server = Program(
            ["serve", "--port", str(port)], cwd=folder, env=environment, stdout=log_descriptor, stderr=log_descriptor
        )
    try:
        deadline = time.monotonic() + SECONDS
        while True:
            try:
                if is_ready(port):
                    break
            except OSError:
                assert server.poll() is None, (folder / "served.txt").read_text()
            assert time.monotonic() < deadline, (folder / "served.txt").read_text()
            time.sleep(PAUSE)
        yield port, environment
    finally:
        server.terminate()
        server.wait(SECONDS)


@pytest.mark.slow("runs a server and each command as a program")
@pytest.mark.parametrize(
    "page",
    [
        pytest.param(path, id=path.stem, marks=[] if path.stem == "client-author" else pytest.mark.nightly("one page"))
        for path in sorted(PAGES.glob("*.md"))
        if path.stem != "README"
    ],
)
def test_each_command_of_a_tutorial_prints_what_the_page_says(page: Path, tmp_path: Path) -> None:
    blocks = BLOCK.findall(page.read_text(encoding="utf-8"))
    with run_server(tmp_path) as (port, environment):
        commands = [text for kind, text in blocks if kind == "sh"]
        script = "set -eu\nexec 2>&1\n" + "".join(f"{text}\necho '{END}'\n" for text in commands)
        script = script.replace("127.0.0.1:8000", f"127.0.0.1:{port}")
        ran = subprocess.run(
            ["bash", "-c", script], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=SECONDS
        )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    printed = ran.stdout.split(END)
    index = -1
    for kind, text in blocks:
        index += kind == "sh"
        for line in text.splitlines() if kind == "text" else ():
            assert line in printed[index], f"{page.name}: {line!r} is not in\n{printed[index]}"
