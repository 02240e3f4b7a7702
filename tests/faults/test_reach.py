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
from tests.faults.outside import outside
from tests.faults.reach import (
    PLACES,
    Hook,
    check_delivered,
    count_fired,
    deliver,
    fire,
    make_schedules,
    set_back,
    until,
)
from tests.faults.replicas import cluster
from tests.faults.server import Dead, Server
from tests.faults.sweep import Rig
from tests.store.conftest import needs_postgresql


@pytest.fixture
def hook() -> Iterator[Hook]:
    made = Hook()
    yield made
    made.close()


@pytest.mark.sqlite("it changes the file of a server that does not run")
@pytest.mark.slow("a server is killed and started again")
@pytest.mark.parametrize(
    "places", [PLACES[2:3], pytest.param(PLACES, marks=pytest.mark.nightly("a kill at every step of a firing"))]
)
def test_each_time_of_a_schedule_fires_exactly_once_over_kills(tmp_path: Path, places: tuple[str, ...]) -> None:
    with outside(tmp_path) as around, Server(tmp_path, around) as server:
        domain = server.domain(around)
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
                    found = server.call("GET", f"{path}/firings")["items"]
                except Dead:
                    server.died()
                    server.start()
                    return False
                return len([each for each in found if each["state"] == "done"]) == 3

            until(ended)
            found = server.call("GET", f"{path}/firings")["items"]
            assert [each["slot"] for each in found] == slots[::-1]
            server.call("PATCH", path, {"name": f"done at {place}", "enabled": False})
        server.kill()
        fired = count_fired(file)
        assert fired.states == {"done": total}
        assert fired.slots == fired.conversations == fired.turns == fired.distinct_turns == total
        server.start()


@pytest.mark.slow("a server is killed while a turn waits")
def test_a_wait_is_answered_from_the_link_after_a_kill(tmp_path: Path, hook: Hook) -> None:
    with outside(tmp_path) as around:
        hosts = f"{around.environment['AGENTIC_RAG_MCP_HOSTS']},{hook.address}"
        with Server(tmp_path, around, AGENTIC_RAG_MCP_HOSTS=hosts) as server:
            made = Rig(server, around, server.domain(around))
            server.call("PATCH", f"/api/domains/{made.domain}", {"settings": {"toolPolicy": {"counter__spend": "ask"}}})
            endpoint = {
                "name": "me",
                "url": f"http://{hook.address}/",
                "events": ["wait.created"],
                "recipient": "local",
            }
            server.call("POST", f"/api/domains/{made.domain}/endpoints", {**endpoint, "events": ["wait.created"]})
            conversation, ledger = made.conversation(), Ledger()
            with Chat(server, conversation, ledger) as chat:
                turn = chat.send(f"Go {conversation} tools", conversation)["turnId"]
                chat.until(lambda event: event["type"] == "input_required")
                server.kill()  # perhaps before the notification was sent: it is stored with the wait
            server.start()
            until(lambda: hook.bodies)
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
            assert around.spent[conversation] == 1
            with pytest.raises(urllib.error.HTTPError) as caught:
                urllib.request.urlopen(link, b"action=accept", timeout=60)
            with caught.value as page:
                assert page.code == 409


@pytest.mark.slow("a sender is cancelled and started again under load")
def test_no_notification_is_lost_or_out_of_order_with_a_failing_receiver(tmp_path: Path) -> None:
    _, receiver, secret = anyio.run(deliver, tmp_path, 200, 1 / 3, 3, 1)
    check_delivered(receiver, 200)
    receiver.verify(secret)


@needs_postgresql
@pytest.mark.nightly("two servers are killed while schedules fire")
def test_each_firing_runs_exactly_once_on_two_servers_over_kills(tmp_path: Path) -> None:
    with cluster(tmp_path, 2) as made:
        fired = fire(made, 4, 10, 4, 1)
        assert fired.states == {"done": 40}
        assert fired.slots == fired.conversations == fired.turns == fired.distinct_turns == 40


@needs_postgresql
@pytest.mark.nightly("a server is killed while a turn waits, and the other one takes the answer")
def test_a_wait_is_answered_from_its_link_on_another_server_after_a_kill(tmp_path: Path, hook: Hook) -> None:
    with cluster(tmp_path, 2, hook.address) as made:
        asked, other = made.servers
        path = f"/api/domains/{made.domain}"
        asked.call("PATCH", path, {"settings": {"toolPolicy": {"counter__spend": "ask"}}})
        endpoint = {"name": "me", "url": f"http://{hook.address}/", "events": ["wait.created"], "recipient": "local"}
        asked.call("POST", f"{path}/endpoints", endpoint)
        conversation, ledger = asked.conversation(made.domain), Ledger()
        with Chat(asked, conversation, ledger) as chat:
            turn = chat.send(f"Go {conversation} tools", conversation)["turnId"]
            chat.until(lambda event: event["type"] == "input_required")
            asked.kill()
        until(lambda: hook.bodies)
        link = other.url + urllib.parse.urlsplit(hook.bodies[-1]["data"]["link"]).path
        with urllib.request.urlopen(link, b"action=accept", timeout=60) as page:
            assert page.status == 200
        events = ledger.check_log(other.log(turn))
        assert events[-1]["type"] == "done"
        assert made.outside.spent[conversation] == 1
