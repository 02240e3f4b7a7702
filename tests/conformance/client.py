"""The product as the client of the public conformance suite: ``python -m tests.conformance.client ADDRESS``.

The suite starts a server, and starts this program with the server's address. The program pastes the address as an
``http`` entry of a domain. A scripted model then calls every offered tool in a turn, and a simulated person answers the
turn's waits: forms with their defaults, pages by following them as a browser does. This module does not speak MCP.
"""

import json
import logging
import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import anyio
import httpx2

from agentic_rag.app.application import open_application
from agentic_rag.base.json_form import Json
from agentic_rag.base.settings import Settings
from agentic_rag.models.base import ModelRequest
from agentic_rag.testing.scripted import ScriptedModel
from agentic_rag.testing.steps import Say, Step, Use
from tests.databases import without_demo
from tests.waiting import pause

NAME = "suite"
OURS = "http://127.0.0.1"
PUBLIC = "conformance-test.local"
TOLD = ("127.0.0.1:8000", PUBLIC)
"""Addresses at which the product believes that browsers reach it.

The second one is used if its published document identifies the client.
"""
PATIENCE = 240.0
REDIRECTS = 10
SIGN_INS = 5
"""Maximum number of sign-ins that the simulated person follows."""

SAMPLES: Mapping[str, Any] = {"string": "text", "number": 5, "integer": 5, "boolean": True, "array": [], "object": {}}


class Caller:
    """A model that calls each tool of the suite once, with the arguments that the suite requires, or with samples."""

    def __init__(self, wishes: Sequence[Json]) -> None:
        self._wanted = wishes

    def __call__(self, request: ModelRequest) -> Step:
        """Return the next step."""
        if any(block["type"] == "tool_result" for block in request.messages[-1]["content"]):
            return Step((Say("Done."),))
        schemas = {tool["name"]: tool["input_schema"] for tool in request.tools if tool["name"].startswith(f"{NAME}__")}
        arguments = {f"{NAME}__{wish['name']}": wish["arguments"] for wish in self._wanted}
        calls = [Use(name, arguments.get(name, sample_of(schema))) for name, schema in schemas.items()]
        return Step(tuple(calls) or (Say("There is nothing to call."),))


def sample_of(schema: Json) -> Json:
    """Return arguments that fit a simple schema."""
    properties = schema.get("properties") or {}
    return {name: SAMPLES.get(str(properties.get(name, {}).get("type")), "text") for name in schema.get("required", ())}


class Person:
    """Answers the waits of turns."""

    def __init__(self, http: httpx2.AsyncClient) -> None:
        self._http = http

    async def attend(self) -> None:
        """Answer each wait when it appears, until cancelled."""
        while True:
            for wait in (await self._http.get("/api/waits", params={"state": "open"})).json()["items"]:
                await self._answer(wait)
            await pause()

    async def _answer(self, wait: Json) -> None:
        content: Json = {}
        if wait["kind"] == "form":
            properties = wait["schema"]["properties"]
            required = [name for name in wait["schema"]["required"] if "default" not in properties[name]]
            content = sample_of({"properties": properties, "required": required})
        elif wait["kind"] == "url":
            await self.visit(wait["url"])
        body = {"action": "accept", "content": content}
        answer = await self._http.post(f"/api/waits/{wait['id']}", json=body)  # 409: the visit has ended the wait
        sys.stderr.write(f"answered {wait['kind']}: {answer.status_code}\n")

    async def visit(self, address: str) -> None:
        """Open a page and follow its redirects, as a browser does."""
        async with httpx2.AsyncClient(trust_env=False) as browser:
            for _ in range(REDIRECTS):
                parts = urlsplit(address)
                if parts.netloc in TOLD:
                    answer = await self._http.get(f"{parts.path}?{parts.query}", follow_redirects=False)
                else:
                    answer = await browser.get(address, follow_redirects=False)
                if not answer.has_redirect_location:
                    return
                address = str(httpx2.URL(address).join(answer.headers["location"]))


def entry_of(url: str, context: Json) -> Json:
    """Return the entry that an admin would paste."""
    entry: dict[str, Any] = {"type": "http", "url": url}
    if "client_id" in context:
        secrets = {"clientSecret": context.get("client_secret"), "privateKey": context.get("private_key_pem")}
        entry["oauth"] = {"clientId": context["client_id"], **{name: text for name, text in secrets.items() if text}}
    return entry


async def run(url: str, context: Json, folder: Path) -> list[Json]:
    """Paste the address, start the server, and run a turn; return the turn's events."""
    without_demo(folder)
    published = "cimd" in os.environ.get("MCP_CONFORMANCE_SCENARIO", "")
    settings = Settings(
        _env_file=None,
        data=folder,
        embedding="none",
        anthropic_api_key=None,
        mcp_hosts="localhost:*,127.0.0.1:*",
        public_url=f"https://{PUBLIC}" if published else "",
    )
    async with (
        ScriptedModel(then=Caller(context.get("toolCalls") or ())) as model,
        open_application(settings, model=model) as application,
        httpx2.AsyncClient(base_url=OURS, transport=httpx2.ASGITransport(application.app), timeout=PATIENCE) as http,
    ):
        body = {"mcpServers": {NAME: entry_of(url, context)}, "toolPolicy": {"*": "allow"}}
        domain = (await http.post("/api/domains", json={"name": "Suite", "settings": body})).json()["id"]
        for _ in range(SIGN_INS):
            state = (await http.post(f"/api/domains/{domain}/mcp-servers/{NAME}/restart")).json()
            sys.stderr.write(f"{state['state']}: {state['reason']}\n")
            if not state.get("signIn"):
                break
            await Person(http).visit(state["signIn"]["address"])
        conversation = (await http.post("/api/conversations", json={"domainId": domain})).json()["id"]
        async with anyio.create_task_group() as attending:
            attending.start_soon(Person(http).attend)
            answer = await http.post(f"/api/conversations/{conversation}/messages", json={"content": "Go"})
            attending.cancel_scope.cancel()
    lines = [line.removeprefix("data: ") for line in answer.text.splitlines() if line.startswith("data: ")]
    return [json.loads(line) for line in lines]


def main() -> None:
    """Run as the suite starts a client."""
    logging.basicConfig(level=logging.WARNING)
    context = json.loads(os.environ.get("MCP_CONFORMANCE_CONTEXT") or "{}")
    with tempfile.TemporaryDirectory() as folder:
        for event in anyio.run(run, sys.argv[-1], context, Path(folder) / "data"):
            if event["type"] in ("tool_result", "input_required", "notice", "error"):
                sys.stderr.write(f"{json.dumps(event)[:2000]}\n")


if __name__ == "__main__":
    main()
