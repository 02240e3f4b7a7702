"""The local user of a server without keys, over real sockets. Some sockets belong to another user of the machine."""

import os
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPResponse
from pathlib import Path

import anyio
import anyio.to_thread
import httpx2
import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from agentic_rag.base.events import ToolStatus
from agentic_rag.server.peer_credentials import ask_system, look_up, system_tells, uid_of
from agentic_rag.testing.scripted import ScriptedModel, Stalled
from agentic_rag.testing.steps import say, use
from agentic_rag.tools.base import CallOutcome, CallRequest
from agentic_rag.tools.launch.allowed import ExtraRights
from tests.access.tenants import bearer, make_key
from tests.access.tenants import socket as chat_socket
from tests.e2e.serving import environment as clean
from tests.e2e.serving import serving_without_demo
from tests.programs import run_program
from tests.runtime.harness import bench, ok, toolset
from tests.server.rig import Rig
from tests.tools.captives import CAPTIVE, PYTHON
from tests.waiting import pause
from tests.ws.serving import PATIENCE, Client, serving

pytestmark = pytest.mark.skipif(not system_tells(), reason="this system does not tell whose a connection is")
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root makes another user's socket")
NOBODY = 65534


def connect_as(uid: int, address: str) -> socket.socket:
    """Return a connection whose socket belongs to a user, as the system reports it."""
    host, _, port = address.removeprefix("http://").rpartition(":")
    own_uid = os.geteuid()
    os.seteuid(uid)
    try:
        connection = socket.socket()
    finally:
        os.seteuid(own_uid)
    connection.settimeout(10)
    connection.connect((host, int(port)))
    return connection


def status_of(connection: socket.socket, path: str = "/api/domains", *headers: str) -> int:
    """Send a request on a connection and return the answer's status."""
    lines = [f"GET {path} HTTP/1.1", "Host: 127.0.0.1", *headers, "", ""]
    connection.sendall("\r\n".join(lines).encode())
    answer = HTTPResponse(connection)
    answer.begin()
    answer.read()
    return answer.status


@as_root
async def test_another_user_of_this_machine_is_not_the_local_user(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig, serving(rig.application.app) as address:

        def attack() -> None:
            with connect_as(NOBODY, address) as foreign_connection, connect_as(os.geteuid(), address) as own_connection:
                assert status_of(foreign_connection) == 401
                assert status_of(own_connection) == 200
                assert status_of(foreign_connection) == 401
                assert status_of(foreign_connection, "/api/ready") == 200
                header = f"Authorization: Bearer {rig.application.access.local_key}"
                assert status_of(foreign_connection, "/api/domains", header) == 200
                assert status_of(foreign_connection) == 401

        await anyio.to_thread.run_sync(attack)
        foreign_socket = connect_as(NOBODY, address)
        foreign_socket.setblocking(False)
        with pytest.raises(InvalidStatus) as refusal:
            await connect(f"ws://{address}/ws", sock=foreign_socket, proxy=None)
        assert refusal.value.response.status_code == 401
        async with connect(f"ws://{address}/ws", proxy=None, compression=None) as own_socket:
            assert (await Client(own_socket).ask("ping"))["type"] == "pong"


@as_root
async def test_a_connection_belongs_to_its_user_under_other_asgi_servers_too(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig, serving(rig.application.app, http="h11") as address:

        def attack() -> None:
            with connect_as(NOBODY, address) as foreign_connection, connect_as(os.geteuid(), address) as own_connection:
                assert status_of(foreign_connection) == 401
                assert status_of(own_connection) == 200

        await anyio.to_thread.run_sync(attack)


@contextmanager
def connect_pair(family: int, host: str, target: str) -> Iterator[tuple[socket.socket, socket.socket]]:
    with socket.socket(family) as listener, socket.socket(socket.AF_INET6 if ":" in target else family) as peer:
        if family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        listener.bind((host, 0))
        listener.listen()
        peer.connect((target, listener.getsockname()[1]))
        own, _ = listener.accept()
        with own:
            yield peer, own


@pytest.mark.parametrize(
    ("family", "host", "target"),
    [
        (socket.AF_INET, "127.0.0.1", "127.0.0.1"),
        (socket.AF_INET6, "::1", "::1"),
        (socket.AF_INET, "127.0.0.1", "::ffff:127.0.0.1"),
    ],
    ids=["IPv4", "IPv6", "IPv4 in IPv6"],
)
def test_the_system_reports_the_owner_of_a_connection(family: int, host: str, target: str) -> None:
    try:
        with connect_pair(family, host, target) as (peer, own):
            client_address = own.getpeername()[:2]
            to = own.getsockname()[:2]
            ways = (uid_of, ask_system, look_up)
            assert [way(client_address, to) for way in ways] == [os.geteuid()] * 3
            assert [way((client_address[0], 1), to) for way in ways] == [None] * 3
            assert [way(to, (to[0], 9)) for way in ways] == [None] * 3, "a socket that listens is no peer"
            peer.close()
            assert [way(client_address, to) for way in ways] == [None] * 3
    except OSError as exc:
        pytest.skip(f"{target} cannot be used: {exc}")


async def test_approving_a_server_with_network_ends_keyless_access(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig, serving(rig.application.app) as address:
        policy = rig.application.parts.policy
        assert policy.packages is not None
        async with httpx2.AsyncClient(base_url=f"http://{address}", trust_env=False) as http:
            assert (await http.get("/api/domains")).status_code == 200
            await policy.catalogue.allow(["/bin/true"], ExtraRights(), policy.packages, [])
            assert (await http.get("/api/domains")).status_code == 200
            allowed = await policy.catalogue.allow(["/bin/false"], ExtraRights(network=True), policy.packages, [])
            response = await http.get("/api/domains")
            assert response.status_code == 401
            assert "may use the network" in response.text
            assert "agentic-rag open --data /" in response.text
            local = bearer(rig.application.access.local_key)
            assert (await http.get("/api/domains", headers=local)).status_code == 200
            policy.catalogue.revoke(allowed.id)
            assert (await http.get("/api/domains")).status_code == 200


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    variables = {**clean(), "AGENTIC_RAG_DATA": str(folder / "data")}
    return run_program(arguments, env=variables, cwd=folder)


def test_commands_use_the_local_key_and_open_prints_a_ticket(tmp_path: Path) -> None:
    assert run(tmp_path, "open").returncode == 1
    assert run(tmp_path, "mcp", "allow", "--network", "--", "/bin/true").returncode == 0, "the line is allowed"

    async def visit(url: str, ticket: str) -> None:
        address = url.replace("http", "ws") + "/ws"
        async with connect(address, subprotocols=[f"ticket.{ticket}"], proxy=None, compression=None) as page:  # type: ignore[list-item]
            assert (await Client(page).ask("ping"))["type"] == "pong"
        with pytest.raises(InvalidStatus):
            await connect(address, proxy=None)

    with serving_without_demo(tmp_path / "data", AGENTIC_RAG_EMBEDDING="none") as server:
        with pytest.raises(Exception, match="401"):
            server.call("GET", "/api/domains")
        assert run(tmp_path, "domains", "list").returncode == 0
        result = run(tmp_path, "open", "--no-browser")
        url, _, ticket = result.stdout.strip().partition("/#ticket=")
        assert url == server.url
        anyio.run(visit, url, ticket)


async def test_a_turn_from_before_the_first_key_loses_single_user_rights(tmp_path: Path) -> None:
    called_tools: list[str] = []

    async def write(request: CallRequest) -> CallOutcome:
        called_tools.append(request.tool.name)
        return ok("written")

    stalled = Stalled(use("srv__write", query="x"), 1)
    model = ScriptedModel(use("srv__write", query="x"), stalled, say("Done."))
    async with model, bench(tmp_path, model, toolset(srv__write=write)) as it:
        accepted = await it.send("Write it twice.")
        with anyio.fail_after(PATIENCE):
            await stalled.reached.wait()
        it.services.alone = False
        stalled.until.set()
        with anyio.fail_after(PATIENCE):
            events = [event async for event in it.runtime.follow(accepted.turn_id)]
        results = [event.fields()["status"] for event in events if event.type == "tool_result"]
        assert results == [ToolStatus.OK, ToolStatus.DENIED]
        assert called_tools == ["srv__write"]


async def test_the_first_key_restarts_servers_allowed_by_a_single_user(tmp_path: Path) -> None:
    async with Rig(tmp_path, any_command=True) as rig:
        domain = await rig.domain()
        server = {"command": PYTHON, "args": ["-I", "-S", str(CAPTIVE)]}
        await rig.ok("PATCH", f"/api/domains/{domain}", {"settings": {"mcpServers": {"tame": server}}})
        path = f"/api/domains/{domain}/mcp-servers"
        await rig.ok("POST", f"{path}/tame/restart")

        async def state() -> str:
            items = (await rig.ok("GET", path))["items"]
            return str(next(server["state"] for server in items if server["name"] == "tame"))

        assert await state() == "ready"
        await make_key(rig, "ann", "operator")
        with anyio.fail_after(PATIENCE):
            while await state() != "failed":
                await pause()


async def test_the_first_key_closes_keyless_connections(tmp_path: Path) -> None:
    stalled = Stalled(say("One. Two."), after=2)
    async with Rig(tmp_path, stalled) as rig, serving(rig.application.app) as address:
        conversation = (await rig.ok("POST", "/api/conversations", {"domainId": await rig.domain()}))["id"]
        path = f"/api/conversations/{conversation}/messages"
        local_key = rig.application.access.local_key
        ticket = (await rig.ok("POST", "/api/ws-tickets"))["ticket"]
        async with chat_socket(address) as ends, chat_socket(address, key=local_key) as stays:
            assert await ends.ask("ping") == {"type": "pong"}
            async with anyio.create_task_group() as tasks:
                responses: list[str] = []

                async def stream() -> None:
                    async with rig.http.stream("POST", path, json={"content": "Hi"}) as response:
                        responses.append((await response.aread()).decode())

                tasks.start_soon(stream)
                with anyio.fail_after(PATIENCE):
                    await stalled.reached.wait()
                await make_key(rig, "ann", "operator")
                with anyio.fail_after(PATIENCE):
                    while not responses:
                        await pause()
            assert "turn_started" in responses[0]
            assert "event: done" not in responses[0]
            assert await ends.close_code() == 1008
            assert ends.connection.close_reason == "A key is needed now."
            assert await stays.ask("ping") == {"type": "pong"}
        with pytest.raises(InvalidStatus):
            async with chat_socket(address, f"ticket.{ticket}"):
                pass
