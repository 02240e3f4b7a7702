"""The proxies with the configurations in `docs/deploy`: streams, WebSockets, uploads, and trusted headers.

A model pauses in the middle of its answer. The text before the pause must arrive during it, so no proxy buffers.
"""

import json
import shutil
import ssl
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import anyio
import httpx2
import pytest
from websockets.asyncio.client import connect
from websockets.typing import Origin, Subprotocol

from agentic_rag.testing.fake_api import FakeMessagesAPI, Fault, Reply
from agentic_rag.testing.steps import say
from tests.access.tenants import bearer
from tests.deploy.proxies import NAME, Proxy, caddy, nginx, nginx_program
from tests.e2e.serving import Server, serving_without_demo
from tests.waiting import pause

PATIENCE = 240.0
SILENT = Reply(say("These words come, and then it is silent for a long time."), Fault(silent_after=6))
PROXIES = [
    pytest.param(nginx, marks=pytest.mark.skipif(nginx_program() is None, reason="nginx is not here"), id="nginx"),
    pytest.param(
        caddy, marks=pytest.mark.skipif(shutil.which("caddy") is None, reason="caddy is not here"), id="caddy"
    ),
]
FORGED = {"x-forwarded-for": "203.0.113.9", "x-forwarded-proto": "gopher"}


class Guest:
    """A client behind a proxy, with an operator's key."""

    def __init__(self, proxy: Proxy, server: Server, key: str) -> None:
        self.proxy, self.server, self.key = proxy, server, key
        self.http = httpx2.AsyncClient(
            base_url=f"{proxy.origin.partition(':')[0]}://127.0.0.1:{proxy.port}",
            headers={"host": proxy.authority, **bearer(key)},
            verify=False,
            trust_env=False,
            timeout=PATIENCE,
        )

    async def ok(self, method: str, path: str, body: Any = None, **options: Any) -> Any:
        answer = await self.http.request(method, path, json=body, **options)
        assert answer.is_success, answer.text
        return answer.json() if answer.content else None

    @asynccontextmanager
    async def socket(self) -> AsyncIterator[Any]:
        """A WebSocket as a page of the proxy's origin opens it."""
        scheme = "wss" if self.proxy.secure else "ws"
        async with connect(
            f"{scheme}://{self.proxy.authority}/ws",
            host="127.0.0.1",
            port=self.proxy.port,
            ssl=_make_trusting_context() if self.proxy.secure else None,
            origin=Origin(self.proxy.origin),
            subprotocols=[Subprotocol("agentic-rag.native")],
            additional_headers=bearer(self.key),
            proxy=None,
        ) as socket:
            yield socket


def _make_trusting_context() -> ssl.SSLContext:
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


@contextmanager
def _server(folder: Path, api: FakeMessagesAPI, **variables: str) -> Iterator[tuple[Server, str]]:
    """Run a server with an operator's key. Every request needs it."""
    settings = {"ANTHROPIC_API_KEY": api.key, "ANTHROPIC_BASE_URL": api.url, "AGENTIC_RAG_ALLOWED_HOSTS": NAME}
    settings["AGENTIC_RAG_EMBEDDING"] = "none"
    with serving_without_demo(folder / "data", **settings, **variables) as server:
        key = str(server.call("POST", "/api/keys", {"user": "ann", "role": "operator"})["key"])
        yield server, key


@pytest.mark.parametrize("run", PROXIES)
async def test_a_proxy_forwards_at_once_and_forged_headers_are_ignored(
    run: Callable[[Path, str], AbstractContextManager[Proxy]], tmp_path: Path
) -> None:
    async with FakeMessagesAPI(then=lambda body: SILENT, enforced=False) as api:
        with (
            _server(tmp_path, api) as (server, key),
            run(tmp_path / "proxy", server.url.partition("://")[2]) as proxy,
        ):
            guest = Guest(proxy, server, key)
            async with guest.http:
                with anyio.fail_after(PATIENCE):
                    checks = count()
                    while (await guest.http.get("/api/ready")).status_code == 503:
                        await pause(next(checks))
                assert await guest.ok("GET", "/api/ready") == {"ready": True}
                domain = (await guest.ok("POST", "/api/domains", {"name": "Law"}))["id"]
                await _check_stream(guest, domain)
                await _check_socket(guest, domain)
                await _check_upload(guest, domain)
                await _check_forged_headers(guest)


async def _check_stream(guest: Guest, domain: str) -> None:
    """Server-sent events arrive while the model is silent."""
    conversation = (await guest.ok("POST", "/api/conversations", {"domainId": domain}))["id"]
    path = f"/api/conversations/{conversation}"
    events: list[str] = []
    with anyio.fail_after(PATIENCE):
        async with guest.http.stream("POST", f"{path}/messages", json={"content": "Hello"}) as stream:
            assert stream.headers["content-type"].startswith("text/event-stream")
            async for line in stream.aiter_lines():
                if line.startswith("event: "):
                    events.append(line.removeprefix("event: "))
                    if events.count("text") == 1 and events[-1] == "text":
                        await guest.ok("POST", f"{path}/interrupt")
    assert events[-1] == "interrupted"


async def _check_socket(guest: Guest, domain: str) -> None:
    """A WebSocket of a page of the proxy's origin. Frames arrive while the model is silent."""
    conversation = (await guest.ok("POST", "/api/conversations", {"domainId": domain}))["id"]
    async with guest.socket() as socket:
        await socket.send(json.dumps({"type": "message", "conversationId": conversation, "content": "Hello"}))
        kinds: list[str] = []
        with anyio.fail_after(PATIENCE):
            while "interrupted" not in kinds:
                kinds.append(json.loads(await socket.recv())["type"])
                if kinds.count("text") == 1 and kinds[-1] == "text":
                    await socket.send(json.dumps({"type": "interrupt", "conversationId": conversation}))


async def _check_upload(guest: Guest, domain: str) -> None:
    """More than nginx's default limit of one megabyte."""
    files = {"file": ("large.txt", b"The pump holds 3 litres.\n" * 45_000)}
    answer = await guest.http.post(f"/api/domains/{domain}/documents", files=files)
    assert answer.status_code == 202, answer.text


async def _check_forged_headers(guest: Guest) -> None:
    """The proxy determines the client's address and scheme; the server determines names and origins."""
    wrong_credentials = {"name": "ann", "key": "arag_" + "x" * 43}
    page = {"x-requested-with": "page", "authorization": "", **FORGED}
    refusal = await guest.http.post("/api/auth/sign-in", json=wrong_credentials, headers=page)
    assert refusal.status_code == 401
    rows = (await guest.ok("GET", "/api/audit?limit=50"))["items"]
    (row,) = [row for row in rows if "sign-in" in row["action"] and row["outcome"] == "refused"]
    assert row["details"]["from"] == "127.0.0.1"
    right = {"name": "ann", "key": guest.key}
    response = await guest.http.post("/api/auth/sign-in", json=right, headers=page)
    assert response.status_code == 201, response.text
    cookie = response.headers["set-cookie"]
    assert cookie.startswith("__Host-agentic-rag=" if guest.proxy.secure else "agentic-rag=")
    assert ("Secure" in cookie) == guest.proxy.secure
    for headers, code in (({"origin": "https://evil.example"}, 403), ({"origin": guest.proxy.origin}, 200)):
        assert (await guest.http.get("/api/domains", headers=headers)).status_code == code
    if guest.proxy.secure:  # nginx forwards any host name; Caddy answers only to its own
        assert (await guest.http.get("/api/domains", headers={"host": "evil.example"})).status_code == 403


async def test_only_a_trusted_proxy_sets_client_address_and_scheme(tmp_path: Path) -> None:
    async with FakeMessagesAPI(then=lambda body: SILENT, enforced=False) as api:
        for place, trusted, name in (
            ("on this machine", "127.0.0.0/8", "__Host-agentic-rag"),
            ("elsewhere", "10.0.0.0/8, 192.0.2.7", "agentic-rag"),
        ):
            (tmp_path / place).mkdir()
            with _server(tmp_path / place, api, AGENTIC_RAG_TRUSTED_PROXIES=trusted) as (server, key):
                forwarded = {"x-requested-with": "page", "x-forwarded-proto": "https"}
                async with httpx2.AsyncClient(base_url=server.url, headers=forwarded, trust_env=False) as http:
                    answer = await http.post("/api/auth/sign-in", json={"name": "ann", "key": key})
            assert answer.headers["set-cookie"].partition("=")[0] == name, place
