"""The operator's web proxy: the requests that use it, those that do not, and the admin's error when it fails."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import httpx2
import pytest
from anyio.abc import SocketAttribute, SocketStream

from agentic_rag.tools.launch.addresses import AddressPolicy
from agentic_rag.tools.oauth.errors import SignInProblem, SignInSilent
from agentic_rag.tools.oauth.web import CheckedWeb
from agentic_rag.tools.transports.network import CheckedBackend, CheckedTransport
from agentic_rag.tools.transports.proxies import Proxies, environment_proxies, proxied_problem
from tests.server.rig import Rig
from tests.tools.servers.plain import build
from tests.tools.test_http import serve


@asynccontextmanager
async def recording_proxy(target: str = "") -> AsyncIterator[tuple[str, list[bytes]]]:
    """A proxy that records the first line of each request. It forwards requests to ``target``, or answers 502."""
    lines: list[bytes] = []

    async def handle(client: SocketStream) -> None:
        async with client:
            head = b""
            with anyio.move_on_after(30):
                while b"\r\n\r\n" not in head:
                    head += await client.receive()
            line, _, headers = head.partition(b"\r\n")
            lines.append(line)
            if not target:
                await client.send(b"HTTP/1.1 502 no such host\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
                return
            method, address, version = line.split(b" ")
            host, _, port = target.partition(":")
            async with await anyio.connect_tcp(host, int(port)) as server, anyio.create_task_group() as tasks:

                async def pump(source: SocketStream, sink: SocketStream) -> None:
                    try:
                        async for data in source:
                            await sink.send(data)
                    except (anyio.BrokenResourceError, anyio.ClosedResourceError):
                        pass
                    tasks.cancel_scope.cancel()

                path = httpx2.URL(address.decode()).raw_path
                await server.send(b"%s %s %s\r\nconnection: close\r\n%s" % (method, path, version, headers))
                tasks.start_soon(pump, server, client)
                await pump(client, server)

    listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
    async with listener, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, handle)
        yield f"http://user:pa55word@127.0.0.1:{listener.extra(SocketAttribute.local_port)}", lines
        tasks.cancel_scope.cancel()


def use_proxy(monkeypatch: pytest.MonkeyPatch, address: str, exceptions: str = "") -> None:
    for name in ("HTTP_PROXY", "HTTPS_PROXY"):
        monkeypatch.setenv(name, address)
        monkeypatch.setenv(name.lower(), address)
    monkeypatch.setenv("NO_PROXY", exceptions)
    monkeypatch.setenv("no_proxy", exceptions)


async def reason_of(rig: Rig, domain: str, url: str) -> tuple[str, str]:
    report = await rig.ok("POST", f"/api/domains/{domain}/mcp-servers/test", {"mcpServers": {"s": {"url": url}}})
    return report["items"][0]["state"], report["items"][0]["reason"]


async def test_a_host_that_only_the_proxy_can_resolve_is_reached_through_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = build().streamable_http_app(host="mcp.corp.test")
    async with serve(app) as base, recording_proxy(base.removeprefix("http://")) as (address, lines):
        use_proxy(monkeypatch, address)
        async with Rig(tmp_path, mcp_hosts="mcp.corp.test:80") as rig:
            assert (await reason_of(rig, await rig.domain(), "http://mcp.corp.test/mcp"))[0] == "ready"
    assert lines
    assert {line.split(b" ")[1] for line in lines} == {b"http://mcp.corp.test/mcp"}


async def test_https_uses_a_tunnel_and_a_failing_proxy_is_named_without_its_password(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with recording_proxy() as (address, lines), Rig(tmp_path) as rig:
        use_proxy(monkeypatch, address)
        state, reason = await reason_of(rig, await rig.domain(), "https://mcp.example.org/mcp")
    assert state == "failed"
    assert set(lines) == {b"CONNECT mcp.example.org:443 HTTP/1.1"}
    assert reason.startswith("the proxy 127.0.0.1:")
    assert "502" in reason
    assert "pa55word" not in reason


@pytest.mark.parametrize(
    "url",
    [
        "https://10.0.0.7/mcp",
        "https://[fd00::7]/mcp",
        "https://169.254.169.254/mcp",
        "https://167772167/mcp",
        "https://0x0a.7/mcp",
        "https://intranet/mcp",
        "https://metadata.google.internal/mcp",
    ],
)
@pytest.mark.attack("network")
async def test_unlisted_private_addresses_are_not_requested_through_the_proxy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, url: str
) -> None:
    async with recording_proxy() as (address, lines), Rig(tmp_path) as rig:
        use_proxy(monkeypatch, address)
        state, reason = await reason_of(rig, await rig.domain(), url)
    assert (state, lines) == ("failed", [])
    assert "AGENTIC_RAG_MCP_HOSTS" in reason


async def test_a_host_that_resolves_to_a_private_address_is_not_requested() -> None:
    refusals: list[str] = []

    async def resolve(host: str, port: int) -> list[str]:
        return ["10.1.2.3"]

    async def note_refusal(reason: str) -> None:
        refusals.append(reason)

    async with recording_proxy() as (address, lines):
        backend = CheckedBackend(frozenset(), resolve=resolve, refused=note_refusal)
        async with httpx2.AsyncClient(transport=CheckedTransport(backend, proxies=Proxies({"https": address}))) as http:
            with pytest.raises(httpx2.ConnectError, match="is not asked for"):
                await http.get("https://rebind.example.org/")
    assert lines == []
    assert len(refusals) == 1


async def test_a_sign_in_goes_through_the_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    async with recording_proxy() as (address, lines):
        use_proxy(monkeypatch, address)
        with pytest.raises((SignInProblem, SignInSilent)):
            await CheckedWeb(AddressPolicy()).send(httpx2.Request("GET", "https://login.example.org/token"))
    assert lines == [b"CONNECT login.example.org:443 HTTP/1.1"]


@pytest.mark.parametrize(
    ("url", "exceptions", "direct"),
    [
        ("https://a.example.org/", "", False),
        ("https://a.example.org/", "example.org", True),
        ("https://a.example.org/", ".example.org", True),
        ("https://a.example.org/", "*.example.org", True),
        ("https://badexample.org/", "example.org", False),
        ("https://a.example.org/", "b.example.org, *", True),
        ("https://a.example.org:8443/", "a.example.org:8443", True),
        ("https://a.example.org/", "a.example.org:8443", False),
        ("https://10.1.2.3/", "10.0.0.0/8", True),
        ("https://[fd00::1]/", "fd00::/8", True),
        ("https://[fd00::1]:444/", "[fd00::1]:444", True),
        ("https://11.1.2.3/", "10.0.0.0/8,x/y", False),
        ("http://localhost:8000/", "", True),
        ("http://127.0.0.1:8000/", "", True),
        ("http://[::1]:8000/", "", True),
    ],
)
def test_no_proxy_hosts_and_this_machine_are_connected_directly(
    monkeypatch: pytest.MonkeyPatch, url: str, exceptions: str, direct: bool
) -> None:
    use_proxy(monkeypatch, "proxy.corp.test:3128", exceptions)
    proxy = environment_proxies().proxy_for(httpx2.URL(url))
    assert (proxy is None) is direct


def test_a_proxy_of_another_kind_is_refused_by_name_without_its_password() -> None:
    with pytest.raises(httpx2.ProxyError, match="a proxy of http"):
        Proxies({"https": "socks5://user:pa55word@p.test:1080"}).proxy_for(httpx2.URL("https://h.example/"))


@pytest.mark.parametrize("host", ["mcp.example.org", "8.8.8.8", "xn--bcher-kva.example", "1.1.1.1.nip.io"])
def test_a_public_host_can_be_requested(host: str) -> None:
    assert proxied_problem(host) == ""
