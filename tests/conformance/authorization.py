"""The product's authorization server under the suite's ``authorization`` command.

The suite prints the address of its authorization request. A simulated person opens it, allows the client with a key of
the domain, and follows the redirect to the suite's callback.
"""

import json
import re
import socket
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import anyio
import httpx2
from anyio.streams.text import TextReceiveStream

from tests.access.tenants import bearer, make_key
from tests.conformance.suite import PATIENCE, SUITE, Result
from tests.node import node
from tests.server.rig import Json, Rig
from tests.ws.serving import serving

SCENARIOS: Final = ("authorization-server-metadata-endpoint", "authorization-code-grant")
_REQUEST = re.compile(r"^(http\S+/oauth/authorize\?\S+)$", re.MULTILINE)


async def run_authorization(folder: Path, only: Sequence[str] = ()) -> list[Result]:
    """Run the scenarios of authorization servers. The second one needs the results of the first."""
    async with Rig(folder, mcp_registration=True) as rig, serving(rig.application.app) as address:
        domain = await rig.domain()
        ann = await make_key(rig, "ann", "member", domain)
        with socket.create_server(("127.0.0.1", 0)) as listener:
            port = int(listener.getsockname()[1])
        redirect = f"http://127.0.0.1:{port}/callback"
        body = {"redirect_uris": [redirect], "client_name": "Suite"}
        async with httpx2.AsyncClient(base_url=f"http://{address}", trust_env=False) as http:
            client = (await http.post("/oauth/register", json=body)).raise_for_status().json()["client_id"]
            with tempfile.TemporaryDirectory() as results:
                options = ["--url", f"http://{address}", "--client-id", client, "--port", str(port), "-o", results]
                options += ["--resource", f"http://{address}/mcp/{domain}", "--spec-version", "2026-07-28"]
                command = [str(node()), str(SUITE / "dist" / "index.js"), "authorization", *options]
                output = await _run(command, http, ann)
                checks = _read_checks(Path(results))
    outcomes = []
    for scenario in SCENARIOS:
        own = [check for check in checks if _belongs(check["id"], scenario)]
        failed = tuple(
            f"{check['name']}: {check.get('errorMessage', '')}" for check in own if check["status"] != "SUCCESS"
        )
        outcomes.append(Result(scenario, bool(own) and not failed, failed, output))
    return [result for result in outcomes if not only or any(text in result.scenario for text in only)]


def _read_checks(folder: Path) -> list[Json]:
    return [check for path in folder.rglob("checks.json") for check in json.loads(path.read_text())]


def _belongs(check: str, scenario: str) -> bool:
    return check.startswith("authorization-server-metadata") == scenario.startswith("authorization-server-metadata")


async def _run(command: list[str], http: httpx2.AsyncClient, key: str) -> str:
    """Run the suite, answer its authorization request, and return its output."""
    output, is_answered = "", False
    with anyio.fail_after(PATIENCE):
        async with await anyio.open_process(command, stderr=-2) as process:  # stderr to stdout
            assert process.stdout is not None
            async for piece in TextReceiveStream(process.stdout, errors="replace"):
                output += piece
                request = _REQUEST.search(output)
                if request is not None and output.endswith("\n") and not is_answered:
                    is_answered = True
                    await _allow(http, request[1], key)
    return output


async def _allow(http: httpx2.AsyncClient, address: str, key: str) -> None:
    """Allow the client's request, as a person does on the console's page."""
    response = await http.get(address, follow_redirects=False)
    secret = response.headers["location"].removeprefix("/#/authorize/")
    body = {"allow": True, "scopes": ["search", "ask", "remember"]}
    path = f"/api/authorizations/requests/{secret}"
    decision = (await http.post(path, json=body, headers=bearer(key))).raise_for_status()
    (await http.get(decision.json()["redirectTo"])).raise_for_status()
