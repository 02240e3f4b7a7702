"""Three servers on one database: a seeded part of ``scripts/faults replicas``, and their messages to each other."""

import json
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.faults.client import Chat
from tests.faults.ledger import Ledger
from tests.faults.outside import PATIENCE
from tests.faults.replicas import Cluster, make_cluster, run
from tests.faults.server import Server
from tests.store.conftest import needs_postgresql
from tests.tools.support import SERVERS
from tests.waiting import pause_thread

pytestmark = needs_postgresql


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with make_cluster(tmp_path_factory.mktemp("replicas")) as cluster:
        yield cluster


def wait_until(condition: Callable[[], Any]) -> None:
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end
        pause_thread()


def test_changes_on_one_server_reach_the_others(cluster: Cluster) -> None:
    a, b, c = cluster.servers
    path = f"/api/domains/{cluster.domain}"
    assert b.call("GET", path)["name"] == c.call("GET", path)["name"] == "proof"
    a.call("PATCH", path, {"name": "changed"})
    wait_until(lambda: b.call("GET", path)["name"] == c.call("GET", path)["name"] == "changed")
    b.call("PUT", f"{path}/secrets/token", {"value": "a-secret-value-of-some-length"})
    wait_until(lambda: "token" in str(c.call("GET", f"{path}/secrets")))
    assert [replica["id"] for replica in a.call("GET", "/api/health")["replicas"]] == [
        "server-0",
        "server-1",
        "server-2",
    ]


def test_a_turn_is_followed_and_interrupted_from_another_server(cluster: Cluster) -> None:
    a, b, c = cluster.servers
    conversation = a.conversation(cluster.domain)
    ledger = Ledger()
    with Chat(a, conversation, ledger) as sender, Chat(b, conversation, ledger) as reader:
        reader.subscribe()
        turn = sender.send("Go there lasting", "there")["turnId"]
        reader.until(lambda event: event["type"] == "text")
        c.call("POST", f"/api/conversations/{conversation}/interrupt", {})
        assert reader.finish(turn)["type"] == sender.finish(turn)["type"] == "interrupted"
    assert a.log(turn) == b.log(turn) == c.log(turn)


def test_messages_queue_in_arrival_order_despite_clock_differences(cluster: Cluster) -> None:
    a, b, c = cluster.servers
    conversation = a.conversation(cluster.domain)
    with Chat(a, conversation, Ledger()) as chat:
        first = chat.send("Go first slow", "first")["turnId"]
        chat.until(lambda event: event["type"] == "text")
        for server, key in ((b, "second"), (c, "third")):  # the second server's clock is two hours ahead
            with Chat(server, conversation, Ledger()) as client:
                assert client.send(f"Go {key} plain", key, onBusy="queue")["queued"]
        assert chat.finish(first)["type"] == "done"
    wait_until(lambda: len(a.messages(conversation)) == 6)
    contents = [message["content"] for message in a.messages(conversation) if message["role"] == "user"]
    assert [key for content in contents for key in ("first", "second", "third") if key in str(content)] == [
        "first",
        "second",
        "third",
    ]


@pytest.mark.nightly("store/test_server_affinity.py waits for a dead home every time")
def test_a_stateful_server_moves_when_its_home_is_killed(cluster: Cluster, tmp_path: Path) -> None:
    starts = tmp_path / "starts"
    command = {"command": sys.executable, "args": [str(SERVERS / "keeping.py")], "stateful": True}
    env = {"KEEPING_STARTS": {"value": str(starts), "secret": False}}
    settings = {"mcpServers": {"notes": {**command, "env": env}}, "toolPolicy": {"*": "allow"}}
    domain = str(cluster.servers[0].call("POST", "/api/domains", {"name": "kept", "settings": settings})["id"])

    def keep(server: Server, text: str) -> str:
        with Chat(server, server.conversation(domain), Ledger()) as chat:
            turn = chat.send(f"Go {text} keep", text)["turnId"]
            assert chat.finish(turn)["type"] == "done"
        return str([event for event in map(json.loads, server.log(turn)) if event["type"] == "tool_result"])

    wait_until(lambda: "one" in keep(cluster.servers[0], "one"))  # a turn waits at most 5 s for a starting server
    assert "one two" in keep(cluster.servers[1], "two")
    (line,) = starts.read_text().splitlines()
    parent = int(Path("/proc", line.split()[0], "stat").read_text().rpartition(")")[2].split()[1])
    home = next(server for server in cluster.servers if server.pid == parent)
    home.kill()
    remaining = next(server for server in cluster.servers if server is not home)
    assert "one two three" in keep(remaining, "three")
    home.start()
    assert "one two three four" in keep(home, "four")
    assert [line.split()[2] for line in starts.read_text().splitlines()] == ["0", "0"]


def test_clients_of_three_servers_lose_nothing_when_one_fails(cluster: Cluster) -> None:
    totals = run(cluster, 1, ("cut", "newer", "database", "kill"), clients=3, turns=3)
    assert totals["done"] == 9
