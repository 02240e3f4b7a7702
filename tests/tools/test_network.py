"""Targets of a user's address: only public hosts over https, checked at the address that is really connected to."""

import asyncio
import ipaddress
import ssl
import threading
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import anyio
import anyio.abc
import anyio.streams.tls
import httpcore2
import httpx2
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from hypothesis import given
from hypothesis import strategies as st
from starlette.types import Receive, Scope, Send

from agentic_rag.base.errors import CommandNotAllowed, InvalidInput
from agentic_rag.tools.launch.addresses import address_problem, parse_hosts
from agentic_rag.tools.launch.policy import LaunchPolicy
from agentic_rag.tools.status import ConnectionTimeouts
from agentic_rag.tools.toolset import open_toolset
from agentic_rag.tools.transports.network import CheckedBackend, CheckedTransport, resolve_host
from tests.tools.servers.plain import build
from tests.tools.support import QUICK, START, Hub, call, http_spec, text_of
from tests.tools.test_http import serve

pytestmark = pytest.mark.attack(kind="network")

PRIVATE = [
    "127.0.0.1", "127.255.255.254", "0.0.0.0", "0.1.2.3", "10.0.0.1", "172.16.0.1", "172.31.255.255", "192.168.0.1",
    "169.254.169.254", "169.254.170.2", "100.64.0.1", "100.100.100.200", "168.63.129.16", "192.0.0.192", "192.0.0.1",
    "198.18.0.1", "192.0.2.1", "198.51.100.1", "203.0.113.1", "224.0.0.1", "239.255.255.255", "240.0.0.1",
    "255.255.255.255", "192.88.99.1", "::", "::1", "fe80::1", "fc00::1", "fd00:ec2::254", "fec0::1", "ff02::1",
    "2001:db8::1", "::ffff:127.0.0.1", "::ffff:169.254.169.254", "::ffff:10.0.0.1", "::127.0.0.1", "::10.1.2.3",
    "2002:7f00:0001::", "2002:a9fe:a9fe::", "2002:0a00:0001::1", "64:ff9b::127.0.0.1", "64:ff9b::169.254.169.254",
    "64:ff9b::10.0.0.1", "64:ff9b:1::1", "2001:0:7f00:1::", "100::1", "3fff::1", "5f00::1",
]  # fmt: skip

PUBLIC = [
    "1.1.1.1", "8.8.8.8", "93.184.216.34", "172.32.0.1", "100.128.0.1", "2606:4700::1111", "::ffff:8.8.8.8",
    "64:ff9b::8.8.8.8",
]  # fmt: skip

SPELLINGS = [
    *("127.0.0.1", "127.1", "0", "0.0.0.0", "2130706433", "0x7f000001", "0177.0.0.1", "0x7f.1", "017700000001"),
    *("127.0.0.01", "localhost", "LOCALHOST", "[::1]", "[::ffff:7f00:1]", "[::ffff:127.0.0.1]", "[0:0:0:0:0:0:0:1]"),
    *("①②⑦.⓪.⓪.①", "１２７.０.０.１", "127。0。0。1", "ⓛⓞⓒⓐⓛⓗⓞⓢⓣ", "[::]", "0x0", "00000177.1"),
]


@pytest.mark.parametrize("text", PRIVATE)
def test_a_private_address_is_refused(text: str) -> None:
    assert address_problem(ipaddress.ip_address(text))


@pytest.mark.parametrize("text", PUBLIC)
def test_a_public_address_is_accepted(text: str) -> None:
    assert address_problem(ipaddress.ip_address(text)) == ""


@given(st.ip_addresses(v=4).filter(lambda address: not address.is_global))
def test_no_notation_of_a_private_address_is_accepted(private_address: ipaddress.IPv4Address) -> None:
    number = int(private_address)
    for embedded in (0xFFFF << 32 | number, 0x2002 << 112 | number << 80, 0x64FF9B << 96 | number):
        assert address_problem(ipaddress.IPv6Address(embedded))


@pytest.mark.parametrize("host", SPELLINGS)
async def test_every_spelling_of_this_machine_is_refused_without_a_connection(host: str) -> None:
    async with count_connections() as (port, count):
        async with httpx2.AsyncClient(transport=CheckedTransport(CheckedBackend(frozenset()))) as client:
            with pytest.raises((httpx2.TransportError, httpx2.InvalidURL)):
                await client.get(f"http://{host}:{port}/")
        assert count() == 0


async def test_a_name_with_one_private_address_among_public_ones_is_refused() -> None:
    async with count_connections() as (port, count):

        async def resolve(host: str, port: int) -> list[str]:
            return ["93.184.216.34", "127.0.0.1"]

        reasons: list[str] = []

        async def note_refusal(reason: str) -> None:
            reasons.append(reason)

        backend = CheckedBackend(frozenset(), resolve=resolve, refused=note_refusal)
        with pytest.raises(httpcore2.ConnectError, match=r"^both\.test leads to an address that is refused$"):
            await backend.connect_tcp("both.test", port)
        assert count() == 0
        assert reasons == ["both.test leads to 127.0.0.1, which is refused (loopback)"]


async def test_a_host_is_resolved_once_for_each_connection() -> None:
    async with count_connections() as (port, count):
        answers = [["198.51.100.7"], ["127.0.0.1"]]
        hosts: list[str] = []

        async def resolve(host: str, port: int) -> list[str]:
            hosts.append(host)
            return answers[len(hosts) - 1]

        reasons: list[str] = []

        async def note_refusal(reason: str) -> None:
            reasons.append(reason)

        backend = CheckedBackend(frozenset(), resolve=resolve, refused=note_refusal)
        for _ in range(2):
            with pytest.raises(httpcore2.ConnectError):
                await backend.connect_tcp("rebind.test", port, timeout=5)
        assert hosts == ["rebind.test"] * 2
        assert [reason.split(" ")[3].rstrip(",") for reason in reasons] == ["198.51.100.7", "127.0.0.1"]
        assert count() == 0


async def test_tls_uses_the_host_name_at_the_checked_address(tmp_path: Path) -> None:
    names: list[str | None] = []
    server, client = certificate(tmp_path, "mcp.example.org")
    server.sni_callback = lambda socket, name, context: names.append(name)
    async with count_connections(server) as (port, _):

        async def resolve(host: str, port: int) -> list[str]:
            return ["127.0.0.1"]

        class Lenient(CheckedBackend):  # as if the address were a public one
            async def connect_tcp(self, host: str, *args: Any, **kwargs: Any) -> Any:
                return await self._plain.connect_tcp((await self._resolve(host, port))[0], *args, **kwargs)

        transport = CheckedTransport(Lenient(frozenset(), resolve=resolve), client)
        async with httpx2.AsyncClient(transport=transport) as http:
            assert (await http.get(f"https://mcp.example.org:{port}/")).text == "hello mcp.example.org"
            with pytest.raises(httpx2.ConnectError, match="certificate"):
                await http.get(f"https://other.example.org:{port}/")
    assert names == ["mcp.example.org", "other.example.org"]


async def test_a_users_entry_for_this_machine_fails_without_a_connection(tmp_path: Path) -> None:
    async with count_connections() as (port, count):
        policy = LaunchPolicy(tmp_path)
        for kind in ("http", "sse"):
            spec = http_spec(f"https://127.0.0.1:{port}/mcp", kind=kind)
            async with Hub(policy=policy, patience=QUICK) as hub:
                toolset = await open_toolset(hub, [spec], wait=START)
                assert toolset.tools == ()
                assert "refused (loopback)" in toolset.notices[0][1]
        assert count() == 0


async def test_a_host_the_operator_listed_is_exempt_from_both_checks_and_no_other_port_is(tmp_path: Path) -> None:
    async with serve(build().streamable_http_app()) as base:
        port = int(base.rpartition(":")[2])
        policy = LaunchPolicy(tmp_path, hosts=parse_hosts(f"127.0.0.1:{port}, other.example.org:80"))
        async with Hub(policy=policy, patience=QUICK) as hub:
            spec = http_spec(f"{base}/mcp")
            toolset = await open_toolset(hub, [spec], wait=START)
            assert text_of(await call(toolset, "web__echo", text="hello")) == "hello"
        for url in (f"http://127.0.0.1:{port + 1}/mcp", f"http://localhost:{port}/mcp", "http://mcp.example.org/mcp"):
            with pytest.raises(CommandNotAllowed, match="https is needed"):
                policy.endpoint(http_spec(url))


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_a_redirect_is_not_followed_and_leaks_no_header(tmp_path: Path, status: int) -> None:
    async with count_connections() as (other_port, count):
        authorizations: list[bytes | None] = []

        async def redirect(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["type"] != "http":
                return
            authorizations.append(dict(scope["headers"]).get(b"authorization"))
            location = f"http://127.0.0.1:{other_port}/mcp".encode()
            await send({"type": "http.response.start", "status": status, "headers": [(b"location", location)]})
            await send({"type": "http.response.body", "body": b""})

        async with serve(redirect) as base:
            hosts = f"127.0.0.1:{base.rpartition(':')[2]}, 127.0.0.1:{other_port}"
            policy = LaunchPolicy(tmp_path, hosts=parse_hosts(hosts))
            spec = http_spec(f"{base}/mcp", {"Authorization": "Bearer token"})
            async with Hub(policy=policy, patience=QUICK) as hub:
                toolset = await open_toolset(hub, [spec], wait=START)
                assert toolset.tools == ()
        assert authorizations[0] == b"Bearer token"
        assert count() == 0


async def test_an_sse_server_cannot_name_another_host_to_post_to(tmp_path: Path) -> None:
    async with count_connections() as (other_port, count):

        async def name_other_host(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["type"] != "http":
                return
            headers = [(b"content-type", b"text/event-stream")]
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            body = f"event: endpoint\ndata: http://127.0.0.1:{other_port}/post\n\n".encode()
            await send({"type": "http.response.body", "body": body})

        async with serve(name_other_host) as base:
            hosts = f"127.0.0.1:{base.rpartition(':')[2]}, 127.0.0.1:{other_port}"
            policy = LaunchPolicy(tmp_path, hosts=parse_hosts(hosts))
            spec = http_spec(f"{base}/sse", {"Authorization": "Bearer token"}, "sse")
            async with Hub(policy=policy, patience=ConnectionTimeouts(initialize=1, failures=1)) as hub:
                toolset = await open_toolset(hub, [spec], wait=START)
                assert toolset.tools == ()
        assert count() == 0


@pytest.mark.parametrize(
    "url",
    [
        *("", "x", "https://", "file:///etc/passwd", "ftp://h/", "gopher://h/", "unix:///s", "https://[::1", "//h/"),
        *("https://h:99999/", "https://user:pw@h/", "https://user@h/", "javascript:1", "https:///h"),
    ],
)
def test_an_address_that_is_not_plain_http_is_refused(tmp_path: Path, url: str) -> None:
    with pytest.raises(InvalidInput) as refusal:
        LaunchPolicy(tmp_path).review(http_spec(url))
    assert refusal.value.path == "mcpServers.web.url"


@pytest.mark.parametrize(
    ("name", "text"),
    [
        *(("Host", "internal"), ("Content-Length", "0"), ("Transfer-Encoding", "chunked"), ("Connection", "close")),
        *(("Mcp-Session-Id", "x"), ("Proxy-Authorization", "x"), ("X", "a\r\nHost: b"), ("X", "a\nb"), ("X y", "a")),
        *(("X\r\nY", "a"), ("X:", "a"), ("", "a"), ("X", "\u010d")),
    ],
)
def test_a_header_that_belongs_to_the_connection_is_refused(tmp_path: Path, name: str, text: str) -> None:
    spec = http_spec("https://mcp.example.org/mcp", {name: text})
    with pytest.raises(InvalidInput) as refusal:
        LaunchPolicy(tmp_path).review(spec)
    assert refusal.value.path == f"mcpServers.web.headers.{name}"


def test_a_public_https_address_may_be_saved(tmp_path: Path) -> None:
    spec = http_spec("https://mcp.example.org/mcp", {"Authorization": "Bearer ${TOKEN}"})
    assert LaunchPolicy(tmp_path).review(spec).target == spec.entry.target


async def test_a_local_socket_is_not_an_address() -> None:
    with pytest.raises(httpcore2.ConnectError):
        await CheckedBackend(frozenset()).connect_unix_socket("/run/docker.sock")


async def test_numbers_are_resolved_to_one_form() -> None:
    assert await resolve_host("0x7f.1", 80) == ["127.0.0.1"]


@asynccontextmanager
async def count_connections(context: ssl.SSLContext | None = None) -> AsyncIterator[tuple[int, Any]]:
    """Listen on loopback, in both address families if available; yields the port and the number of connections.

    With a TLS context, an HTTP answer names the requested host.
    """
    count = 0

    async def answer(stream: anyio.abc.SocketStream) -> None:
        nonlocal count
        count += 1
        async with stream:
            if context is None:
                return
            try:
                secure = await anyio.streams.tls.TLSStream.wrap(stream, server_side=True, ssl_context=context)
                request = (await secure.receive()).decode()
            except (ssl.SSLError, anyio.BrokenResourceError, anyio.EndOfStream):
                return
            host = request.lower().partition("host: ")[2].partition(":")[0]
            body = f"hello {host}"
            head = f"HTTP/1.1 200 OK\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
            await secure.send((head + body).encode())

    async with await anyio.create_tcp_listener(local_host="127.0.0.1") as listener, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, answer)
        yield listener.extra(anyio.abc.SocketAttribute.local_port), lambda: count
        tasks.cancel_scope.cancel()


def certificate(folder: Path, name: str) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """Return TLS contexts of a server of this name and of a client that trusts it."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    now = datetime.now(UTC)
    signed_certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    file = folder / "certificate.pem"
    secret = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    file.write_bytes(secret + signed_certificate.public_bytes(serialization.Encoding.PEM))
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(file)
    client = ssl.create_default_context(cafile=str(file))
    return server, client


async def test_resolving_a_users_host_does_not_wait_for_other_lookups() -> None:
    answers, names = threading.Event(), ThreadPoolExecutor(1)
    loop = asyncio.get_running_loop()
    loop.set_default_executor(names)
    names.submit(answers.wait)
    try:
        with anyio.fail_after(240):
            assert await resolve_host("127.0.0.1", 80) == ["127.0.0.1"]
    finally:
        answers.set()
        loop.set_default_executor(ThreadPoolExecutor())
        names.shutdown()
