"""The product's own MCP servers as processes on loopback: a domain's endpoint, and the built-in servers standalone.

They are started as a user would start them, with an empty domain and without a model.
"""

import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, aclosing, contextmanager
from pathlib import Path

import anyio
import httpx2

from mcp_servers.retriever.chunking import chunk_document
from mcp_servers.retriever.document import Block, ParsedDocument
from mcp_servers.retriever.edge_index import EdgeIndex
from tests.databases import without_demo
from tests.waiting import pause_thread

ROOT = Path(__file__).resolve().parent.parent.parent
PATIENCE = 240.0
SERVE = "import sys; from agentic_rag.cli import main; sys.exit(main())"


@contextmanager
def run_servers() -> Iterator[dict[str, str]]:
    """Run all servers in the block. Yields their addresses by name."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        without_demo(folder / "data")
        door = _free_port()
        options = ["--data", str(folder / "data"), "--port", str(door), "--allow-root"]
        stack.enter_context(_run_program(door, "-c", SERVE, "serve", *options, AGENTIC_RAG_EMBEDDING="none"))
        created = httpx2.post(f"http://127.0.0.1:{door}/api/domains", json={"name": "Suite"}, trust_env=False)
        addresses = {"/mcp/{domain}": f"http://127.0.0.1:{door}/mcp/{created.raise_for_status().json()['id']}"}
        for name, setting in (("promptx", "PROMPTX_PROJECT_DIR"), ("retriever", "RETRIEVER_INDEX_DIR")):
            place, port = folder / name, _free_port()
            place.mkdir()
            if name == "retriever":
                anyio.run(_make_index, place)
            variables = {setting: str(place), "AGENTIC_RAG_EMBEDDING": "none", "DOMAIN_ID": "suite"}
            stack.enter_context(
                _run_program(port, "-m", f"mcp_servers.{name}", "--http", "--port", str(port), **variables)
            )
            addresses[name] = f"http://127.0.0.1:{port}/mcp"
        yield addresses


async def _make_index(folder: Path) -> None:
    chunks = chunk_document(ParsedDocument((Block("prose", "The suite searches this."),)), "suite", "suite.md")
    async with aclosing(EdgeIndex(folder)) as index:
        await index.upsert("domain_suite", chunks)


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


@contextmanager
def _run_program(port: int, *arguments: str, **environment: str) -> Iterator[None]:
    """Run a program of the product until the block ends. Yields when it listens."""
    environment_variables = {
        name: text for name, text in os.environ.items() if not name.startswith(("AGENTIC_RAG_", "ANTHROPIC_"))
    }
    environment_variables |= {"PYTHONPATH": str(ROOT), **environment}
    with tempfile.TemporaryFile("w+") as log_file:
        child = subprocess.Popen(
            [sys.executable, *arguments], env=environment_variables, stdout=log_file, stderr=log_file
        )
        try:
            end = time.monotonic() + PATIENCE
            while not _listens(port):
                if child.poll() is not None or time.monotonic() > end:
                    log_file.seek(0)
                    raise RuntimeError(f"{arguments} does not start: {log_file.read()[-2000:]}")
                pause_thread()
            yield
        finally:
            child.terminate()
            child.wait(timeout=PATIENCE)


def _listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True
