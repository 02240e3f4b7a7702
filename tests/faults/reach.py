"""Schedules over kills, and notifications to a receiver that fails: the drivers of two fault tests."""

import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from random import Random
from typing import Any

import anyio
import orjson
from starlette.responses import Response

from agentic_rag.reach import cron
from agentic_rag.store import deliveries, schedules
from agentic_rag.store.clock import later
from agentic_rag.store.database import Database
from agentic_rag.store.deliveries import DeliveryState
from agentic_rag.store.schedules import FIRINGS, FiringState
from agentic_rag.store.turns import TURNS
from tests.faults.outside import PATIENCE
from tests.faults.replicas import Cluster
from tests.faults.server import Dead, Refused, Server
from tests.reach.receiver import Receiver, outbox, run_sender
from tests.waiting import pause, pause_thread

Json = dict[str, Any]
EVERY = f"{(datetime.now(UTC).minute + 30) % 60} * * * *"
"""Once an hour, and not within the next minutes."""
PLACES = ("schedule.claim", "schedule.conversation", "schedule.sent", "commit.ready", "commit.done")


@dataclass(frozen=True)
class Fired:
    """The firings in a store: their number by state, of distinct slots, and of turns with a firing's message.

    ``problems`` are the reasons of the failed ones.
    """

    states: Counter[str]
    slots: int
    conversations: int
    turns: int
    distinct_turns: int
    problems: tuple[str, ...] = ()


def wait_until(condition: Callable[[], Any], seconds: float = PATIENCE) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        pause_thread()


def make_schedules(server: Server, domain: str, count: int) -> list[str]:
    """Create schedules that catch up on all missed times."""
    ids = []
    for number in range(count):
        body = {"name": f"s{number}", "cron": EVERY, "prompt": f"Go s{number} plain", "catchUp": "all"}
        path = f"/api/domains/{domain}/schedules"
        ids.append(str(server.call("POST", path, {**body, "maxFailures": 100})["id"]))
    return ids


def set_back(database_url: str | Path, ids: Sequence[str], times: int) -> list[str]:
    """Make the last ``times`` times of schedules due, and return those times."""

    async def change() -> list[str]:
        async with aclosing(await Database.open(database_url)) as database:
            now = await database.read(schedules.moment)
            first = cron.last_time(EVERY, "UTC", later(-3600 * (times - 1)))
            assert first is not None
            slots = cron.times_between(EVERY, "UTC", first, now, times)
            for schedule in ids:
                await database.write(partial(schedules.update, schedule_id=schedule, next_at=slots[0]))
            return slots

    return anyio.run(change)


def count_fired(database_url: str | Path) -> Fired:
    """Count the firings in a store."""

    async def count() -> Fired:
        async with aclosing(await Database.open(database_url)) as database:
            rows = await database.read(
                lambda conn: conn.execute(
                    FIRINGS.select().with_only_columns(
                        FIRINGS.c.schedule_id,
                        FIRINGS.c.slot,
                        FIRINGS.c.state,
                        FIRINGS.c.conversation_id,
                        FIRINGS.c.detail,
                    )
                ).all()
            )
            message_ids = await database.read(
                lambda conn: (
                    conn.execute(
                        TURNS.select()
                        .with_only_columns(TURNS.c.client_message_id)
                        .where(TURNS.c.client_message_id.startswith("fire_"))
                    )
                    .scalars()
                    .all()
                )
            )
            return Fired(
                Counter(FiringState(row[2]).value for row in rows),
                len({(row[0], row[1]) for row in rows}),
                len({row[3] for row in rows if row[3]}),
                len(message_ids),
                len(set(message_ids)),
                tuple(row[4] for row in rows if row[2] == FiringState.FAILED),
            )

    return anyio.run(count)


def fire(cluster: Cluster, count: int, times: int, kills: int, seed: int) -> Fired:
    """Fire ``count`` schedules ``times`` times while servers are killed and started again.

    Between two kills at least one firing ends: a turn that kills cut off again and again ends with RESUME_LIMIT.
    """
    random = Random(seed)
    ids = make_schedules(cluster.servers[0], cluster.domain, count)
    set_back(cluster.database.url, ids, times)

    def ended() -> int:
        total = 0
        for schedule in ids:
            path = f"/api/domains/{cluster.domain}/schedules/{schedule}/firings?limit=500"
            try:
                firings = cluster.ask(partial(Server.call, method="GET", path=path))["items"]
            except (Dead, Refused):
                return 0
            total += sum(firing["endedAt"] is not None for firing in firings)
        return total

    def wait_for_more_than(before: int) -> None:
        wait_until(lambda: before == count * times or ended() > before, 900)

    for _ in range(kills):
        victim = random.choice(cluster.servers)
        time.sleep(random.uniform(0.2, 2.0))
        before = ended()
        victim.kill()
        victim.start()
        wait_for_more_than(before)
    wait_until(lambda: ended() >= count * times, 900)
    return count_fired(cluster.database.url)


async def deliver(folder: Path, events: int, failure_rate: float, kills: int, seed: int) -> tuple[float, Receiver, str]:
    """Deliver events to a receiver that fails now and then, while the sender is cancelled and restarted.

    Returns the seconds, the receiver, and the endpoint's secret.
    """
    random = Random(seed)
    receiver = Receiver(lambda number: Response(status_code=503 if random.random() < failure_rate else 200))
    async with receiver.open(), outbox(folder, receiver.address) as box:
        endpoint, secret = await box.add(receiver.url)
        start = time.monotonic()

        async def pending() -> int:
            counts = await box.database.read(lambda conn: deliveries.count_by_state(conn, [endpoint]))
            return counts.get((endpoint, DeliveryState.PENDING), 0)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(lambda: box.announce(*range(events)))
            for _ in range(kills):
                with run_sender(tasks, box.sender(*[0.0] * 1_000)):
                    await anyio.sleep(random.uniform(0.05, 0.5))
            with run_sender(tasks, box.sender(*[0.0] * 1_000)):
                await receiver.wait_for(events, 3_600)
                with anyio.fail_after(PATIENCE):
                    while await pending():
                        await pause()
        return time.monotonic() - start, receiver, secret


def check_delivered(receiver: Receiver, events: int) -> int:
    """Check that no event is missing and that first deliveries are in order. Returns the number of repeated ones."""
    first: dict[int, None] = {}
    for event in receiver.received:
        first.setdefault(event["data"]["number"])
    assert list(first) == list(range(events))
    numbers = [event["data"]["number"] for event in receiver.received]
    assert numbers == sorted(numbers)
    return len(numbers) - events


class Hook:
    """A receiver of notifications in a thread, which outlives the servers."""

    def __init__(self) -> None:
        self.bodies: list[Json] = []
        hook = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                hook.bodies.append(orjson.loads(self.rfile.read(int(self.headers["content-length"]))))
                self.send_response(204)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                return

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
