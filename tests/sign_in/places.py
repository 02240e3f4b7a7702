"""What the tests of sign-ins share: a protected MCP server, its authorization server, on real sockets; a browser."""

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
    """A protected server and who grants its tokens."""

    granting: AuthorizationServer
    guarded: Guarded

    @property
    def url(self) -> str:
        return self.granting.resource


@asynccontextmanager
async def places(habits: Habits | None = None) -> AsyncIterator[Places]:
    """Serve both on loopback."""
    granting = AuthorizationServer(habits)
    guarded = Guarded(build().streamable_http_app(), granting)
    async with serve(granting.app()) as issuer, serve(guarded) as base:
        granting.issuer, granting.resource = issuer, f"{base}/mcp"
        yield Places(granting, guarded)


def entered(folder: Path, *steps: Any, **settings: Any) -> Rig:
    """The application, which may reach this machine."""
    return Rig(folder, *steps, mcp_hosts="127.0.0.1:*,localhost:*", **settings)


async def visit(address: str) -> dict[str, str]:
    """Go to an authorization address as a browser does, up to the redirect back; return what it carries."""
    async with httpx2.AsyncClient(trust_env=False) as browser:
        answer = await browser.get(address, follow_redirects=False)
    assert answer.status_code == 302, answer.text
    return dict(parse_qsl(urlsplit(answer.headers["location"]).query))


async def sign_in(rig: Rig, found: dict[str, Any]) -> httpx2.Response:
    """Complete what `signIn` of a connection asks for, as the local user."""
    return await rig.http.get(CALLBACK, params=await visit(found["address"]))


async def try_entry(rig: Rig, domain: str, entry: dict[str, Any], **options: Any) -> dict[str, Any]:
    """Return how the entry fares in a trial."""
    body = {"web": entry}
    trial = await rig.ok("POST", f"/api/domains/{domain}/mcp-servers/test", body, **options)
    found: dict[str, Any] = trial["items"][0]
    return found
