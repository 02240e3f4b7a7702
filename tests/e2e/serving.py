"""The real server as a subprocess, and a client that uses its public interface."""

import json
import os
import subprocess
import urllib.request
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import httpx2
from websockets.asyncio.client import ClientConnection, connect

from tests.databases import database_url, prepare_data, without_demo
from tests.programs import Program
from tests.waiting import pause

START_SECONDS = 240.0

Event = dict[str, Any]
BY_MEANING = {"AGENTIC_RAG_EMBEDDING": ""}
"""The product's default: the embedder of the installation, if there is one."""


def environment(**variables: str) -> dict[str, str]:
    """Return this process's environment without server settings, plus the given variables.

    No model is used for titles, because scripted models answer only the test's messages. No embedder is used, because
    its process costs seconds of CPU; tests of searches by meaning set `BY_MEANING`.
    """
    inherited = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("AGENTIC_RAG_", "ANTHROPIC_", "PROMPTX_", "RETRIEV"))
    }
    return inherited | {"AGENTIC_RAG_TITLES": "message", "AGENTIC_RAG_EMBEDDING": "none"} | variables


class Server:
    """One running server process at ``url``."""

    def __init__(self, child: Program | subprocess.Popen[str], url: str, data: Path) -> None:
        self.child = child
        self.url = url
        self.data = data

    def call(self, method: str, path: str, body: Any = None) -> Any:
        """Send one JSON request and return the answer's JSON (None when empty)."""
        payload = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, payload, {"Content-Type": "application/json"}, method=method)
        with urllib.request.urlopen(request, timeout=START_SECONDS) as answer:
            text = answer.read()
        return json.loads(text) if text else None

    async def ask(self, method: str, path: str, body: Any = None) -> Any:
        return await anyio.to_thread.run_sync(self.call, method, path, body)

    async def domain(self) -> str:
        domain = await self.ask("POST", "/api/domains", {"name": "Law"})
        return str(domain["id"])

    async def make_domain_with(self, name: str, text: bytes) -> str:
        """Create a domain with one document, which is indexed. Costs a tenth of the demo's CPU time."""
        domain = await self.domain()
        async with httpx2.AsyncClient(base_url=self.url, trust_env=False) as http:
            response = await http.post(f"/api/domains/{domain}/documents", files={"file": (name, text)})
            response.raise_for_status()
        await self.wait_until_indexed(domain)
        return domain

    async def conversation(self, domain: str = "demo") -> str:
        conversation = await self.ask("POST", "/api/conversations", {"domainId": domain})
        return str(conversation["id"])

    async def wait_until_indexed(self, domain: str = "demo", *, by_meaning: bool = False) -> list[Any]:
        """Wait until every document of a domain is searchable and return them."""
        with anyio.fail_after(START_SECONDS):
            for checks in count():
                items = (await self.ask("GET", f"/api/domains/{domain}/documents"))["items"]
                finished = items and all(item["status"] in ("indexed", "failed") for item in items)
                if finished and not (by_meaning and any(item["denseState"] == "pending" for item in items)):
                    return list(items)
                await pause(checks)
        raise AssertionError("unreachable")

    @asynccontextmanager
    async def chat(self, conversation: str) -> AsyncIterator["Chat"]:
        async with connect(self.url.replace("http", "ws") + "/ws", compression=None) as socket:
            yield Chat(socket, conversation)


class Chat:
    """A socket with one conversation."""

    def __init__(self, socket: ClientConnection, conversation: str) -> None:
        self.socket = socket
        self.conversation = conversation

    async def send(self, **frame: Any) -> None:
        await self.socket.send(json.dumps(frame))

    async def frame(self) -> Event:
        with anyio.fail_after(START_SECONDS):
            received: Event = json.loads(await self.socket.recv())
        return received

    async def say(self, content: str, on_event: Callable[[Event], Any] | None = None, **options: Any) -> list[Event]:
        """Send a message and return the turn's events. ``on_event`` may return a frame to send."""
        await self.send(type="message", conversationId=self.conversation, content=content, **options)
        events: list[Event] = []
        while True:
            received = await self.frame()
            if "seq" not in received or received["type"] == "subscribed":
                assert received["type"] in ("accepted", "subscribed"), received
                continue
            events.append(received)
            reply = on_event(received) if on_event is not None else None
            if reply is not None:
                await self.send(**reply)
            if received["type"] in ("done", "error", "interrupted"):
                return events


@contextmanager
def serving(data: Path, *options: str, **variables: str) -> Iterator[Server]:
    """Run ``agentic-rag serve`` on a free port until the block ends (SIGTERM)."""
    if "AGENTIC_RAG_DATABASE_URL" not in variables:
        prepare_data(data)
    child = Program(
        ["serve", "--port", "0", "--data", str(data), *options],
        env=environment(
            **{"AGENTIC_RAG_DATABASE_URL": database_url(data), "AGENTIC_RAG_DRAIN_SECONDS": "1", **variables}
        ),
        stdout=subprocess.PIPE,
        cwd=data.parent,
    )
    try:
        assert child.stdout is not None
        line = ""
        while not (line := child.stdout.readline()).startswith("Agentic RAG serves"):
            assert line, f"the server ended with {child.wait()}"
        yield Server(child, line.split()[3], data)
    finally:
        child.terminate()
        try:
            child.wait(START_SECONDS)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
        if child.stdout is not None:
            child.stdout.close()


def serving_without_demo(data: Path, *options: str, **variables: str) -> AbstractContextManager[Server]:
    """Run a server as `serving` does, with a new data folder and without the demo domain."""
    prepare_data(data)
    without_demo(data)
    return serving(data, *options, **variables)


def text_of(events: list[Event]) -> str:
    return "".join(event["text"] for event in events if event["type"] == "text")
