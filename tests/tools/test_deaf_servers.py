"""A server that stops answering is detected, restarted and shown; a slow one is left alone."""

import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import anyio
import pytest
from starlette.types import ASGIApp, Receive, Scope, Send

from agentic_rag.tools.toolset import open_toolset
from tests.tools.servers.plain import build
from tests.tools.support import QUICK, START, call, hostile, http_spec, open_hub, text_of, until
from tests.tools.test_http import serve

SHORT = replace(QUICK, ping=0.3, backoff=60)
"""A short wait for a pong, and a long pause after it, so that the state in between can be read."""


@pytest.mark.parametrize("name", ["deafen", "stop_itself", "orphan_output", "close_output"])
async def test_a_server_that_stops_answering_is_degraded_with_the_reason(tmp_path: Path, name: str) -> None:
    async with open_hub(tmp_path, patience=SHORT) as hub:
        toolset = await open_toolset(hub, [hostile("pongs")], wait=START)
        assert (await call(toolset, name, timeout=0.2)).status == "error"
        await until(lambda: hub.status()[0].state == "degraded")
        expected = "closed its output" if name == "close_output" else "nor a ping within 0.3 s"
        assert expected in hub.status()[0].reason


@pytest.mark.parametrize("name", ["deafen", "stop_itself", "orphan_output"])
async def test_an_unresponsive_server_is_restarted_and_answers_the_next_call(tmp_path: Path, name: str) -> None:
    async with open_hub(tmp_path, patience=replace(QUICK, ping=0.3)) as hub:
        toolset = await open_toolset(hub, [hostile("pongs")], wait=START)
        pid_before = text_of(await call(toolset, "pid"))
        await call(toolset, name, timeout=0.2)
        pid_after = ""

        async def is_restarted() -> bool:
            nonlocal pid_after
            pid_after = text_of(await call(toolset, "pid"))
            return pid_after.isdigit() and pid_after != pid_before

        await until(is_restarted)
        assert hub.status()[0].state == "ready"


async def test_an_externally_stopped_mcp_server_is_restarted(tmp_path: Path) -> None:
    async with open_hub(tmp_path, patience=replace(QUICK, ping=0.3)) as hub:
        toolset = await open_toolset(hub, [hostile()], wait=START)
        pid_before = text_of(await call(toolset, "pid"))
        os.kill(int(pid_before), signal.SIGSTOP)
        assert "within 0.2 s" in text_of(await call(toolset, "pid", timeout=0.2))

        async def is_restarted() -> bool:
            return text_of(await call(toolset, "pid")) not in ("", pid_before)

        await until(is_restarted)


@pytest.mark.parametrize("behaviour", ["pongs", "ok"])
async def test_a_server_with_a_slow_tool_that_answers_pings_stays_connected(tmp_path: Path, behaviour: str) -> None:
    async with open_hub(tmp_path, patience=replace(QUICK, ping=START)) as hub:
        toolset = await open_toolset(hub, [hostile(behaviour)], wait=START)
        before = text_of(await call(toolset, "pid"))
        for _ in range(3):
            assert "within 0.05 s" in text_of(await call(toolset, "silence", timeout=0.05))
        # "ok" answers pings with "method not found", which is a sign of life as well
        assert text_of(await call(toolset, "pid")) == before
        assert hub.status()[0].state == "ready"


async def test_a_call_with_effects_to_an_unresponsive_server_runs_once(tmp_path: Path) -> None:
    journal = tmp_path / "journal"
    async with open_hub(tmp_path / "homes", patience=replace(QUICK, ping=0.3)) as hub:
        toolset = await open_toolset(hub, [hostile("no-pong")], wait=START)
        pid_before = text_of(await call(toolset, "pid"))
        outcome = await call(toolset, "count", timeout=0.5, journal=str(journal))
        assert outcome.status == "error"

        async def is_restarted() -> bool:
            return text_of(await call(toolset, "pid")) not in ("", pid_before)

        await until(is_restarted)
        assert journal.read_text() == "ran\n"


async def test_a_running_call_ends_when_another_call_finds_the_server_unresponsive(tmp_path: Path) -> None:
    async with open_hub(tmp_path, patience=SHORT) as hub:
        toolset = await open_toolset(hub, [hostile("no-pong")], wait=START)
        texts: list[str] = []

        async def call_silent_tool() -> None:
            texts.append(text_of(await call(toolset, "silence", timeout=START)))

        async with anyio.create_task_group() as calls:
            calls.start_soon(call_silent_tool)
            await call(toolset, "silence", timeout=0.2)
        assert "nor a ping within" in texts[0]


async def test_a_server_unresponsive_after_each_start_is_abandoned(tmp_path: Path) -> None:
    # Failures of a zero-length window that are not counted together would never open the circuit.
    async with open_hub(tmp_path, patience=replace(QUICK, ping=0.1, window=1.5)) as hub:
        toolset = await open_toolset(hub, [hostile("no-pong")], wait=START)

        async def has_failed() -> bool:
            if hub.status()[0].state == "ready":
                await call(toolset, "silence", timeout=0.1)
            return hub.status()[0].state == "failed"

        await until(has_failed)
        assert "nor a ping within" in hub.status()[0].reason


class Hanging:
    """An HTTP application that, on demand, accepts requests and answers none."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app
        self.hangs = False
        self.held_requests = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and self.hangs:
            self.held_requests += 1
            with anyio.move_on_after(START):
                while (await receive())["type"] != "http.disconnect":
                    pass
            return
        await self.app(scope, receive, send)


@asynccontextmanager
async def serve_hanging(kind: str) -> AsyncIterator[tuple[Hanging, str]]:
    server = build()
    app = Hanging(server.streamable_http_app() if kind == "http" else server.sse_app())
    async with serve(app) as base:
        yield app, base + ("/mcp" if kind == "http" else "/sse")


@pytest.mark.parametrize("kind", ["http", pytest.param("sse", marks=pytest.mark.nightly("waits for ten seconds"))])
async def test_a_hanging_http_server_is_degraded_and_recovers(tmp_path: Path, kind: str) -> None:
    patience = replace(QUICK, ping=0.3, initialize=3, probe=1, close=0.5, failures=100)
    async with serve_hanging(kind) as (app, url), open_hub(tmp_path, patience=patience) as hub:
        toolset = await open_toolset(hub, [http_spec(url, kind=kind)], wait=START)
        app.hangs = True
        assert "within 0.2 s" in text_of(await call(toolset, "web__echo", timeout=0.2, text="hello"))
        await until(lambda: hub.status()[0].state in ("degraded", "starting"))
        assert "nor a ping within 0.3 s" in hub.status()[0].reason
        app.hangs = False

        async def is_answering() -> bool:
            return text_of(await call(toolset, "web__echo", text="again")) == "again"

        await until(is_answering)
