"""Schedules, notifications and answer links over kill -9: parts of ``scripts/faults schedules`` and ``webhooks``."""

import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest

from tests.faults.client import Chat
from tests.faults.ledger import Ledger
from tests.faults.outside import make_outside
from tests.faults.reach import (
    PLACES,
    Hook,
    check_delivered,
    count_fired,
    deliver,
    fire,
    make_schedules,
    set_back,
    wait_until,
)
from tests.faults.replicas import make_cluster
from tests.faults.server import Dead, Server
from tests.faults.sweep import Rig
from tests.store.conftest import needs_postgresql


@pytest.fixture
def hook() -> Iterator[Hook]:
    new_hook = Hook()
    yield new_hook
    new_hook.close()


@pytest.mark.sqlite("it changes the file of a server that does not run")
@pytest.mark.slow("a server is killed and started again")
@pytest.mark.parametrize(
    "places", [PLACES[2:3], pytest.param(PLACES, marks=pytest.mark.nightly("a kill at every step of a firing"))]
)
def test_each_time_of_a_schedule_fires_exactly_once_over_kills(tmp_path: Path, places: tuple[str, ...]) -> None:
    with make_outside(tmp_path) as outside, Server(tmp_path, outside) as server:
        domain = server.domain(outside)
        file, total = server.data / "agentic-rag.db", 0
        for place in places:
            (schedule,) = make_schedules(server, domain, 1)
            server.kill()
            slots = set_back(file, [schedule], 3)
            total += len(slots)
            server.start(f"{place}:2")
            path = f"/api/domains/{domain}/schedules/{schedule}"

            def ended(path: str = path) -> bool:
                try:
                    firings = server.call("GET", f"{path}/firings")["items"]
                except Dead:
                    server.wait_until_dead()
                    server.start()
                    return False
                return len([firing for firing in firings if firing["state"] == "done"]) == 3

            wait_until(ended)
            all_firings = server.call("GET", f"{path}/firings")["items"]
            assert [firing["slot"] for firing in all_firings] == slots[::-1]
            server.call("PATCH", path, {"name": f"done at {place}", "enabled": False})
        server.kill()
        counts = count_fired(file)
        assert counts.states == {"done": total}
        assert counts.slots == counts.conversations == counts.turns == counts.distinct_turns == total
        server.start()


@pytest.mark.slow("a server is killed while a turn waits")
def test_a_wait_is_answered_from_the_link_after_a_kill(tmp_path: Path, hook: Hook) -> None:
    with make_outside(tmp_path) as outside:
        hosts = f"{outside.environment['AGENTIC_RAG_MCP_HOSTS']},{hook.address}"
        with Server(tmp_path, outside, AGENTIC_RAG_MCP_HOSTS=hosts) as server:
            rig = Rig(server, outside, server.domain(outside))
            server.call("PATCH", f"/api/domains/{rig.domain}", {"settings": {"toolPolicy": {"counter__spend": "ask"}}})
            endpoint = {
                "name": "me",
                "url": f"http://{hook.address}/",
                "events": ["wait.created"],
                "recipient": "local",
            }
            server.call("POST", f"/api/domains/{rig.domain}/endpoints", {**endpoint, "events": ["wait.created"]})
            conversation, ledger = rig.conversation(), Ledger()
            with Chat(server, conversation, ledger) as chat:
                turn = chat.send(f"Go {conversation} tools", conversation)["turnId"]
                chat.until(lambda event: event["type"] == "input_required")
                server.kill()  # perhaps before the notification was sent: it is stored with the wait
            server.start()
            wait_until(lambda: hook.bodies)
            link = server.url + urllib.parse.urlsplit(hook.bodies[-1]["data"]["link"]).path
            with urllib.request.urlopen(link, timeout=60) as page:
                assert "counter__spend" in page.read().decode()
            server.kill()
            server.start()
            link = server.url + urllib.parse.urlsplit(link).path
            with urllib.request.urlopen(link, b"action=accept", timeout=60) as page:
                assert page.status == 200
            events = ledger.check_log(server.log(turn))
            assert events[-1]["type"] == "done"
            assert outside.spent[conversation] == 1
            with pytest.raises(urllib.error.HTTPError) as refusal:
                urllib.request.urlopen(link, b"action=accept", timeout=60)
            with refusal.value as page:
                assert page.code == 409


@pytest.mark.slow("a sender is cancelled and started again under load")
def test_no_notification_is_lost_or_out_of_order_with_a_failing_receiver(tmp_path: Path) -> None:
    _, receiver, secret = anyio.run(deliver, tmp_path, 200, 1 / 3, 3, 1)
    check_delivered(receiver, 200)
    receiver.verify(secret)


@needs_postgresql
@pytest.mark.nightly("two servers are killed while schedules fire")
def test_each_firing_runs_exactly_once_on_two_servers_over_kills(tmp_path: Path) -> None:
    with make_cluster(tmp_path, 2) as cluster:
        counts = fire(cluster, 4, 10, 4, 1)
        assert counts.states == {"done": 40}
        assert counts.slots == counts.conversations == counts.turns == counts.distinct_turns == 40


@needs_postgresql
@pytest.mark.nightly("a server is killed while a turn waits, and the other one takes the answer")
def test_a_wait_is_answered_from_its_link_on_another_server_after_a_kill(tmp_path: Path, hook: Hook) -> None:
    with make_cluster(tmp_path, 2, hook.address) as cluster:
        asking_server, answering_server = cluster.servers
        path = f"/api/domains/{cluster.domain}"
        asking_server.call("PATCH", path, {"settings": {"toolPolicy": {"counter__spend": "ask"}}})
        endpoint = {"name": "me", "url": f"http://{hook.address}/", "events": ["wait.created"], "recipient": "local"}
        asking_server.call("POST", f"{path}/endpoints", endpoint)
        conversation, ledger = asking_server.conversation(cluster.domain), Ledger()
        with Chat(asking_server, conversation, ledger) as chat:
            turn = chat.send(f"Go {conversation} tools", conversation)["turnId"]
            chat.until(lambda event: event["type"] == "input_required")
            asking_server.kill()
        wait_until(lambda: hook.bodies)
        link = answering_server.url + urllib.parse.urlsplit(hook.bodies[-1]["data"]["link"]).path
        with urllib.request.urlopen(link, b"action=accept", timeout=60) as page:
            assert page.status == 200
        events = ledger.check_log(answering_server.log(turn))
        assert events[-1]["type"] == "done"
        assert cluster.outside.spent[conversation] == 1
