"""Shared parts of the sign-in tests: a protected MCP server and its authorization server on sockets, and a browser."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import httpx2

from agentic_rag.testing.authorization_server import AuthorizationServer, Guarded, Habits
from tests.server.rig import Rig
from tests.tools.servers.plain import build
from tests.tools.test_http import serve

CALLBACK = "/api/oauth/callback"


@dataclass
class Places:
    """A protected server and its authorization server."""

    granting: AuthorizationServer
    guarded: Guarded

    @property
    def url(self) -> str:
        return self.granting.resource


@asynccontextmanager
async def serve_places(habits: Habits | None = None) -> AsyncIterator[Places]:
    """Serve both on loopback."""
    granting = AuthorizationServer(habits)
    guarded = Guarded(build().streamable_http_app(), granting)
    async with serve(granting.app()) as issuer, serve(guarded) as base:
        granting.issuer, granting.resource = issuer, f"{base}/mcp"
        yield Places(granting, guarded)


def make_rig(folder: Path, *steps: Any, **settings: Any) -> Rig:
    """Return the application with permission to reach this machine."""
    return Rig(folder, *steps, mcp_hosts="127.0.0.1:*,localhost:*", **settings)


async def visit(address: str) -> dict[str, str]:
    """Open an authorization address as a browser does, up to the redirect back. Return the redirect's parameters."""
    async with httpx2.AsyncClient(trust_env=False) as browser:
        response = await browser.get(address, follow_redirects=False)
    assert response.status_code == 302, response.text
    return dict(parse_qsl(urlsplit(response.headers["location"]).query))


async def sign_in(rig: Rig, sign_in_state: dict[str, Any]) -> httpx2.Response:
    """Complete the sign-in in a connection's `signIn`, as the local user."""
    return await rig.http.get(CALLBACK, params=await visit(sign_in_state["address"]))


async def try_entry(rig: Rig, domain: str, entry: dict[str, Any], **options: Any) -> dict[str, Any]:
    """Return the result of testing an entry."""
    body = {"web": entry}
    report = await rig.ok("POST", f"/api/domains/{domain}/mcp-servers/test", body, **options)
    result: dict[str, Any] = report["items"][0]
    return result
