"""The door's tool ``ask`` as the fixtures of the suite's Tasks scenarios (SEP-2663).

The suite calls tools of its reference server: one that answers at once, one that works for some seconds, one that
fails. Here `ask` plays them: this module renames the calls before they reach the door, and a scripted model takes the
time, or fails. All answers are the product's own, unchanged.
"""

import asyncio
import json
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final

import anyio
import anyio.to_thread
import httpx2
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from agentic_rag.app.application import open_application
from agentic_rag.base.errors import ModelError
from agentic_rag.base.json_form import Json
from agentic_rag.base.messages import plain_text
from agentic_rag.base.settings import Settings
from agentic_rag.models.base import ModelRequest
from agentic_rag.testing.scripted import Plain, ScriptedModel, Stalled
from agentic_rag.testing.steps import say
from tests.conformance.suite import Result, run_scenario
from tests.databases import without_demo
from tests.ws.serving import serving

SCENARIOS: Final = (
    "tasks-lifecycle",
    "tasks-capability-negotiation",
    "tasks-wire-fields",
    "tasks-request-state-removal",
    "tasks-request-headers",
    "tasks-dispatch-and-envelope",
    "tasks-status-notifications",
)

NOT_PLAYED: Final = {
    "tasks-mrtr-input": "no task of this server asks a person: `ask` runs without one",
    "tasks-mrtr-composition": "no tool of this server asks before its task begins",
    "tasks-required-task-error": "`ask` also answers clients without tasks, so no tool requires the extension",
}
"""Scenarios whose fixtures the product cannot play, with the reasons."""

NOT_HELD_CHECKS: Final = {
    "TasksHeadersTolerateMcpMethodOnToolsCall": "it expects the words with which the reference server's tool greets",
    "TasksProtocolErrorFailedShape": "a turn that failed has a result which says why, so no task is `failed`",
}
"""Single checks of `SCENARIOS` that do not hold, with the reasons."""


PLAYED: Final = ("slow_compute", "failing_job", "protocol_error_job", "confirm_delete")
"""Tools of the suite that `ask` plays."""


class Fixtures:
    """An ASGI application that renames the suite's tools in requests to the door."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on."""
        if scope["type"] != "http" or scope["method"] != "POST":
            return await self._app(scope, receive, send)
        body, more = b"", True
        while more:
            message = await receive()
            body, more = body + message.get("body", b""), message.get("more_body", False)
        name, body = rename_tool(body)
        headers = [(key, value) for key, value in scope["headers"] if key != b"content-length"]
        renames = {name.encode(): b"ask" if name != "greet" else b"search_documents"}
        headers = [(key, renames.get(value, value) if key == b"mcp-name" else value) for key, value in headers]
        sent = False

        async def read() -> Message:
            nonlocal sent
            if sent:
                return await receive()
            sent = True
            return {"type": "http.request", "body": body, "more_body": False}

        headers.append((b"content-length", str(len(body)).encode()))
        return await self._app({**scope, "headers": headers}, read, send)


def rename_tool(body: bytes) -> tuple[str, bytes]:
    """Return the called tool of the suite and the request for the product's tool; "" and the body for others."""
    try:
        request = json.loads(body)
    except ValueError:
        return "", body
    if not isinstance(request, dict) or request.get("method") != "tools/call":
        return "", body
    params: Json = request["params"]
    name, arguments = params["name"], params.get("arguments") or {}
    if name == "greet":
        params |= {"name": "search_documents", "arguments": {"query": "greeting"}}
    elif name in PLAYED:
        params |= {"name": "ask", "arguments": {"question": f"{name} {arguments.get('seconds', 0)}"}}
    else:
        return "", body
    return name, json.dumps(request).encode()


def act(request: ModelRequest) -> Plain:
    """Answer as the tool that the question names."""
    words = plain_text(request.messages[-1]["content"]).split()
    place = next(index for index, word in enumerate(words) if word in PLAYED)
    if words[place] in ("failing_job", "protocol_error_job"):
        return ModelError("the job failed", http_status=400)
    seconds = float(words[place + 1])
    if not seconds:
        return say("Computed.")
    answer = Stalled(say("Computed now."), after=2)
    asyncio.get_running_loop().call_later(seconds, answer.until.set)
    return answer


@asynccontextmanager
async def run_task_server(folder: Path) -> AsyncGenerator[str]:
    """Serve a domain's endpoint as the suite's server with tasks. Yields its address."""
    without_demo(folder)
    settings = Settings(_env_file=None, data=folder, embedding="none", anthropic_api_key=None)
    async with (
        ScriptedModel(then=act) as model,
        open_application(settings, model=model) as application,
        serving(Fixtures(application.app)) as address,
        httpx2.AsyncClient(base_url=f"http://{address}", trust_env=False) as http,
    ):
        created = (await http.post("/api/domains", json={"name": "Suite"})).raise_for_status().json()
        yield f"http://{address}/mcp/{created['id']}"


async def run_tasks(folder: Path, only: Sequence[str] = ()) -> list[Result]:
    """Run the scenarios whose names contain one of the texts. Checks of `NOT_HELD_CHECKS` do not count."""
    results = []
    async with run_task_server(folder) as url:
        for scenario in SCENARIOS:
            if only and not any(text in scenario for text in only):
                continue
            run = partial(run_scenario, scenario, "2026-07-28", "server", url=url, extension=True)
            result = await anyio.to_thread.run_sync(run)
            failed = tuple(check for check in result.failed if check.partition(":")[0] not in NOT_HELD_CHECKS)
            passed = result.passed or bool(result.failed and not failed)
            results.append(replace(result, passed=passed, failed=failed))
    return results
