"""The application under three ASGI servers and with its own: one turn has the same frames everywhere."""

import json
import re
import signal
import socket
import subprocess
import sys
import urllib.error
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count, groupby
from pathlib import Path

import anyio
import anyio.to_thread
import pytest

from tests.databases import prepare_data, without_demo
from tests.e2e.serving import Server, environment, serving_without_demo
from tests.programs import run_program
from tests.waiting import pause

QUESTION = "How many days of paid leave do full-time staff have?"
LEAVE = b"# Leave\n\nFull-time staff have 25 days of paid leave a year.\n"

PATIENCE = 240.0
"""Seconds after which a server's start or stop has failed. Five servers start here."""

MODULE = (sys.executable, "-m")

COMMANDS = {
    "uvicorn": [*MODULE, "uvicorn", "agentic_rag.app.asgi:app", "--port", "{port}"],
    "uvicorn, fast": [
        *(*MODULE, "uvicorn", "agentic_rag.app.asgi:app", "--port", "{port}"),
        *("--http", "agentic_rag.server.http_protocol:ENTRANCE"),
        *("--ws", "agentic_rag.server.ws.fast_socket:SocketProtocol"),
    ],
    "hypercorn": [*MODULE, "hypercorn", "agentic_rag.app.asgi:app", "--bind", "127.0.0.1:{port}"],
    "granian": [*MODULE, "granian", "--interface", "asgi", "--port", "{port}", "agentic_rag.app.asgi:app"],
}

CHANGING = re.compile(
    r'"(?:conv|turn|msg|call|img|ref|ret|doc|toolu)_[^"]*"'
    r'|"\d{4}-\d\d-\d\dT[^"]*"'
    r'|"[0-9a-f]{8}-[0-9a-f-]{27}"'
    r'|"[0-9a-f]{32}"'
    r'|(?<="durationMs":)\d+'
    r'|(?<="timings":){[^}]*}'
)
"""Ids, times and durations inside a frame."""

SIDE_BY_SIDE = ("tool_result", "retrieval")
"""Events of concurrent calls, which arrive in the order in which the calls end."""


@contextmanager
def run_server(command: list[str], data: Path) -> Iterator[Server]:
    """Run a server on a free port. At the end it stops without a kill and releases the data folder."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    variables = environment(AGENTIC_RAG_DATA=str(data), AGENTIC_RAG_PORT=str(port), AGENTIC_RAG_EMBEDDING="none")
    words = [word.format(port=port) for word in command]
    prepare_data(data)
    without_demo(data)
    with subprocess.Popen(words, env=variables, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as child:
        try:
            yield Server(child, f"http://127.0.0.1:{port}", data)
        finally:
            child.send_signal(signal.SIGTERM)
            try:
                child.wait(PATIENCE)
            except subprocess.TimeoutExpired:
                child.kill()
                raise


async def until_ready(server: Server) -> None:
    with anyio.fail_after(PATIENCE):
        checks = count()
        while True:
            assert server.child.poll() is None, server.child.stdout and server.child.stdout.read()
            try:
                await server.ask("GET", "/api/ready")
            except urllib.error.URLError as exc:
                if isinstance(exc, urllib.error.HTTPError):
                    exc.close()
                await pause(next(checks))
                continue
            return


def normalise_frames(texts: list[str]) -> list[str]:
    """Return frames without their variable parts, with the results of concurrent calls in one order."""
    events = [json.loads(text) for text in texts]
    assert [event["seq"] for event in events[1:]] == list(range(1, len(texts)))
    frames: list[str] = []
    for at_once, run in groupby(zip(events, texts, strict=True), lambda pair: pair[0]["type"] in SIDE_BY_SIDE):
        masked_texts = [CHANGING.sub('""', text) for _, text in run]
        frames += sorted(re.sub(r'"seq":\d+', "", text) for text in masked_texts) if at_once else masked_texts
    return frames


async def frames_of_a_turn(server: Server) -> list[str]:
    await until_ready(server)
    domain = await server.make_domain_with("leave.md", LEAVE)
    async with server.chat(await server.conversation(domain)) as chat:
        await chat.send(type="message", conversationId=chat.conversation, content=QUESTION, clientMessageId="m1")
        texts: list[str] = []
        with anyio.fail_after(PATIENCE):
            while not texts or json.loads(texts[-1])["type"] not in ("done", "error"):
                text = await chat.socket.recv()
                assert isinstance(text, str)
                texts.append(text)
        return normalise_frames(texts)


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The frames of the server's own process, by the fast path."""
    with serving_without_demo(tmp_path_factory.mktemp("own") / "data", AGENTIC_RAG_EMBEDDING="none") as server:
        return anyio.run(frames_of_a_turn, server)


@pytest.mark.parametrize(
    "name",
    [
        "uvicorn",
        pytest.param("uvicorn, fast", marks=pytest.mark.nightly("the expected frames come from the same classes")),
        pytest.param("hypercorn", marks=pytest.mark.nightly("uvicorn runs every time")),
        pytest.param("granian", marks=pytest.mark.nightly("uvicorn runs every time")),
    ],
)
async def test_a_turn_has_the_same_frames_and_a_second_process_is_refused(
    name: str, expected: list[str], tmp_path: Path
) -> None:
    with run_server(COMMANDS[name], tmp_path / "data") as server:
        frames = await frames_of_a_turn(server)
        assert (tmp_path / "data" / "server.json").exists()
        if name == "uvicorn":
            await anyio.to_thread.run_sync(check_second_process_refused, server)
    assert frames == expected
    assert json.loads(frames[-1])["type"] == "done"
    assert not (tmp_path / "data" / "server.json").exists(), "the lifespan did not end"


def check_second_process_refused(server: Server) -> None:
    """Start a second process on the data folder of a server. It must end and name the first one."""
    second = run_program(
        ["agentic_rag.app.asgi:app", "--port", "0"],
        module="uvicorn",
        cwd=server.data.parent,
        env=environment(AGENTIC_RAG_DATA=str(server.data)),
    )
    assert second.returncode != 0
    assert f"is in use by process {server.child.pid}" in second.stderr
