"""Run three servers on one database, with clients that see only their own frames, and with faults between the servers.

This module defines the cluster and the seeded run. The checks cover what clients can see: no number with two meanings,
one end for each turn, no acknowledged message lost, no effect twice, and the same log from every server.
"""

import base64
import os
import secrets
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any
from urllib.parse import urlsplit

from agentic_rag.store.migrations import Revisions
from tests.backup.later import make_later
from tests.faults.client import Chat
from tests.faults.ledger import Event, Ledger, check_messages
from tests.faults.outside import Outside, make_outside
from tests.faults.proxy import Proxy
from tests.faults.server import Dead, Refused, Server
from tests.store.conftest import PostgresqlServer, postgresql_server

SERVERS = 3
CLOCKS = (0, 3600, -3600)
"""Errors of the machines' clocks in seconds."""
TURN_SECONDS = 180.0
"""How long a client tries to see a turn's end despite faults."""
AGAIN = ("SERVER_STOPPING", "STORAGE_UNAVAILABLE", "STORAGE_FULL", "TURN_IN_PROGRESS", "INTERNAL_ERROR", "NOT_FOUND")
FAULTS = ("kill", "term", "cut", "silence", "delay", "database", "pause", "newer")
LONG_PAUSE = 40.0
AGAIN_SECONDS = 0.1
WARM = 10
"""Turns before CPU time is counted."""


@dataclass
class Cluster:
    """Servers with a shared folder. Each one reaches the database through its own proxy."""

    servers: list[Server]
    proxies: list[Proxy]
    database: PostgresqlServer
    outside: Outside
    newer: Revisions
    """Tables of the next version."""
    domain: str = ""
    paused: set[int] = field(default_factory=set)

    def alive(self) -> list[Server]:
        return [server for number, server in enumerate(self.servers) if server.alive and number not in self.paused]

    def ask(self, work: Callable[[Server], Any]) -> Any:
        """Ask the servers repeatedly until one answers."""
        deadline = time.monotonic() + TURN_SECONDS
        while True:
            for server in self.alive():
                try:
                    return work(server)
                except (Dead, Refused) as exc:
                    if isinstance(exc, Refused) and exc.code not in AGAIN:
                        raise
            assert time.monotonic() < deadline, "no server answers"
            time.sleep(AGAIN_SECONDS)


@contextmanager
def make_cluster(folder: Path, count: int = SERVERS, hosts: str = "", **environment: str) -> Iterator[Cluster]:
    """Run servers with a domain that has the counting tool. ``hosts``: further hosts that they may reach."""
    with ExitStack() as stack:
        outside = stack.enter_context(make_outside(folder))
        database = stack.enter_context(postgresql_server())
        port = urlsplit(database.url).port
        assert port is not None
        proxies = [stack.enter_context(Proxy(port)) for _ in range(count)]
        servers, key = [], base64.b64encode(secrets.token_bytes(32)).decode()
        for number, proxy in enumerate(proxies):
            variables = {
                "AGENTIC_RAG_LOCAL": str(folder / f"server-{number}"),
                "VICTIM_CLOCK": str(CLOCKS[number % len(CLOCKS)]),
                "AGENTIC_RAG_DATABASE_URL": database.url.replace(f":{port}/", f":{proxy.port}/"),
                "AGENTIC_RAG_SECRET_KEY": key,
                "AGENTIC_RAG_REPLICA": f"server-{number}",
                "AGENTIC_RAG_ALLOW_ROOT": "1",
                "AGENTIC_RAG_DRAIN_SECONDS": "1",
                "AGENTIC_RAG_MCP_HOSTS": f"{outside.environment['AGENTIC_RAG_MCP_HOSTS']},{hosts}".rstrip(","),
                **environment,
            }
            servers.append(Server(folder, outside, **variables))
        servers[0].start()  # the first server creates the tables
        starting = [threading.Thread(target=server.start) for server in servers[1:]]
        for thread in starting:
            thread.start()
        for thread in starting:
            thread.join()
        stack.callback(_end, servers)
        newer = make_later(folder / "tables", serves_before=True)
        cluster = Cluster(servers, proxies, database, outside, newer)
        cluster.domain = servers[0].domain(outside)
        yield cluster


def _end(servers: Sequence[Server]) -> None:
    for server in servers:
        if server.alive:
            server.signal()
    for server in servers:
        server.terminate()


@dataclass
class SentMessage:
    """A client's message and the turn that answered it."""

    key: str
    script: str
    turn: str


class Client(threading.Thread):
    """One conversation. The client sends through any server that answers, and reads through another one."""

    def __init__(self, cluster: Cluster, seed: int, turns: int, scripts: tuple[str, ...]) -> None:
        super().__init__()
        self._cluster = cluster
        self._random = Random(seed)
        self._left = turns
        self._scripts = scripts
        self._name = f"c{seed}"
        self.ledger = Ledger()
        self.conversation = cluster.ask(lambda server: server.conversation(cluster.domain))
        self.sent_messages: list[SentMessage] = []
        self.moves = 0
        """How often it had to change the server during a turn."""
        self.failure: BaseException | None = None

    def run(self) -> None:
        try:
            for number in range(self._left):
                script = self._random.choice(self._scripts)
                key = f"{self._name}-{number}"
                self.sent_messages.append(SentMessage(key, script, self._speak(key, script)))
        except BaseException as exc:
            self.failure = exc

    def _speak(self, key: str, script: str) -> str:
        """Send a message and read to the end of its turn."""
        deadline = time.monotonic() + TURN_SECONDS
        turn, last = "", 0
        while True:
            assert time.monotonic() < deadline, f"{key}: no end of {turn or 'a turn that nobody takes'}"
            alive = self._cluster.alive()
            if not alive:
                time.sleep(AGAIN_SECONDS)
                continue
            try:
                with Chat(self._random.choice(alive), self.conversation, self.ledger) as chat:
                    if not turn:
                        reply = chat.send(f"Go {key} {script}", key)
                        if reply["type"] != "accepted":
                            assert reply["code"] in AGAIN, reply
                            time.sleep(AGAIN_SECONDS)
                            continue
                        turn = str(reply["turnId"])
                        if self._random.random() < 0.5:  # from here on read through another server
                            continue
                    else:
                        reply = chat.subscribe(turn, last)
                        if reply["type"] != "subscribed":
                            assert reply["code"] in AGAIN, reply
                            time.sleep(AGAIN_SECONDS)
                            continue
                    try:
                        self._finish(chat, turn)
                        return turn
                    finally:
                        last = chat.reader.last if chat.reader.turn == turn else last
            except Dead:
                self.moves += 1
                time.sleep(AGAIN_SECONDS)

    @staticmethod
    def _finish(chat: Chat, turn: str) -> None:
        while turn not in chat.reader.ended:
            if chat.hear() is None and (chat.has_unexpected_error or "SERVER_STOPPING" in chat.asides):
                raise Dead

    def check(self) -> Counter[str]:
        """Read all turns again from each server, and count their results."""
        assert self.failure is None, f"{self._name}: {self.failure!r}"
        logs: list[tuple[str, list[Event]]] = []
        for entry in self.sent_messages:
            texts = {tuple(server.log(entry.turn)) for server in self._cluster.alive()}
            assert len(texts) == 1, f"{entry.turn} differs between servers"
            logs.append((entry.turn, self.ledger.check_log(texts.pop())))
        for server in self._cluster.alive():
            check_messages(server.messages(self.conversation), logs)
        calls = self._cluster.outside.spent
        for entry in self.sent_messages:
            assert calls[entry.key] <= 1, f"{entry.key} was spent {calls[entry.key]} times"
        return Counter(events[-1]["type"] for _, events in logs)


def strike(cluster: Cluster, kind: str, number: int, *, pause: float = LONG_PAUSE) -> None:
    """Cause one fault of a server, and repair it."""
    server, proxy = cluster.servers[number], cluster.proxies[number]
    if kind == "kill":
        server.kill()
        server.start()
    elif kind == "term":
        server.terminate()
        server.start()
    elif kind == "newer":  # the next version, whose tables also fit this version
        server.terminate()
        server.set_tables(cluster.newer)
        server.start()
    elif kind == "cut":
        proxy.cut()
    elif kind == "silence":
        proxy.hold()
        time.sleep(5)
        proxy.release()
    elif kind == "delay":
        proxy.delay(0.05)
        time.sleep(2)
        proxy.delay(0)
    elif kind == "database":
        cluster.database.stop()
        cluster.database.start()
    else:
        cluster.paused.add(number)
        os.kill(server.pid, signal.SIGSTOP)
        time.sleep(pause)
        os.kill(server.pid, signal.SIGCONT)
        cluster.paused.discard(number)


def run(
    cluster: Cluster,
    seed: int,
    faults: tuple[str, ...],
    *,
    clients: int = 3,
    turns: int = 6,
    pause: float = LONG_PAUSE,
    say: Callable[[str], None] = lambda _: None,
) -> Counter[str]:
    """Let clients speak while faults occur one after another. Return the counts of turns by result.

    Raises:
        AssertionError: an invariant broke.
    """
    random = Random(seed)
    scripts = ("plain", "tools", "tools", "long", "cut")
    speaking = [Client(cluster, 1000 * seed + number, turns, scripts) for number in range(clients)]
    for client in speaking:
        client.start()
    for kind in faults:
        time.sleep(random.uniform(0.1, 0.8))
        number = random.randrange(len(cluster.servers))
        start = time.monotonic()
        strike(cluster, kind, number, pause=pause)
        say(f"{kind:<9} server-{number}  {time.monotonic() - start:.1f} s")
    for client in speaking:
        client.join(TURN_SECONDS * turns)
        assert not client.is_alive()
    totals = Counter[str]()
    for client in speaking:
        totals += client.check()
        totals["moves"] += client.moves
    return totals


# Figures

IDLE_SECONDS = 5.0


def time_cpu(cluster: Cluster, alone: Server, times: int) -> tuple[float, float]:
    """Return the CPU milliseconds of a turn on PostgreSQL and on SQLite, measured alternately."""
    shared = cluster.servers[0]
    conversations = {
        shared: shared.conversation(cluster.domain),
        alone: alone.conversation(alone.domain(cluster.outside)),
    }
    cpu_spent = dict.fromkeys(conversations, 0.0)
    for number in range(-WARM, times):
        for server, conversation in conversations.items():
            before = server.cpu_seconds
            with Chat(server, conversation, Ledger()) as chat:
                chat.finish(chat.send(f"Go cpu{number} plain", f"cpu{number}")["turnId"])
            cpu_spent[server] += server.cpu_seconds - before if number >= 0 else 0.0
    return 1000 * cpu_spent[shared] / times, 1000 * cpu_spent[alone] / times


def weigh_idle_sockets(cluster: Cluster, servers: int, sockets_each: int) -> tuple[float, float]:
    """Return the cost of idle sockets that follow conversations, ``sockets_each`` at every one of ``servers`` servers.

    The first value is KB of memory for a socket, the second the share of a core that a server uses without a turn.
    """
    measured_servers = cluster.servers[:servers]
    conversations = [server.conversation(cluster.domain) for server in measured_servers]
    with ExitStack() as stack:
        for server, conversation in zip(
            measured_servers, conversations, strict=True
        ):  # the first sockets also load modules, which does not count
            for _ in range(20):
                stack.enter_context(Chat(server, conversation, Ledger())).subscribe()
        before = [server.resident for server in measured_servers]
        for server, conversation in zip(measured_servers, conversations, strict=True):
            for _ in range(sockets_each):
                stack.enter_context(Chat(server, conversation, Ledger())).subscribe()
        grown = sum(
            server.resident - memory_before for server, memory_before in zip(measured_servers, before, strict=True)
        )
        cpu_before, start = sum(server.cpu_seconds for server in measured_servers), time.monotonic()
        time.sleep(IDLE_SECONDS)
        busy = (
            (sum(server.cpu_seconds for server in measured_servers) - cpu_before) / (time.monotonic() - start) / servers
        )
    return grown / servers / sockets_each / 1024, busy


def _first_text(chat: Chat) -> float:
    chat.until(lambda event: event["type"] == "text")
    return time.monotonic()


def time_interrupts(cluster: Cluster, times: int) -> list[float]:
    """Return how many milliseconds an interrupt through one server takes to end a turn on another one."""
    a, b, _ = cluster.servers
    conversation, times_ms = a.conversation(cluster.domain), []
    with Chat(a, conversation, Ledger()) as chat:
        for number in range(times):
            turn = chat.send(f"Go i{number} slow", f"i{number}")["turnId"]
            _first_text(chat)
            start = time.monotonic()
            b.call("POST", f"/api/conversations/{conversation}/interrupt", {})
            assert chat.finish(turn)["type"] == "interrupted"
            times_ms.append(1000 * (time.monotonic() - start))
    return times_ms


def time_first_texts(cluster: Cluster, times: int) -> list[float]:
    """Return by how many milliseconds a turn's first text is later through another server."""
    a, b, _ = cluster.servers
    conversation, delays, ledger = a.conversation(cluster.domain), [], Ledger()
    with Chat(a, conversation, ledger) as sender, Chat(b, conversation, ledger) as reader:
        reader.subscribe()
        for number in range(times):
            remote_times: list[float] = []
            watching = threading.Thread(target=lambda texts=remote_times: texts.append(_first_text(reader)))
            watching.start()
            turn = sender.send(f"Go f{number} long", f"f{number}")["turnId"]
            local_time = _first_text(sender)
            watching.join()
            delays.append(1000 * (remote_times[0] - local_time))
            sender.finish(turn)
            reader.finish(turn)
    return delays


def time_takeover(cluster: Cluster, end: Callable[[Server], object]) -> float:
    """Return the seconds without events for a reader of another server when the server of its turn ends."""
    a, b, _ = cluster.servers
    conversation, ledger = a.conversation(cluster.domain), Ledger()
    key = f"t{time.monotonic()}"
    with Chat(a, conversation, ledger) as sender, Chat(b, conversation, ledger) as reader:
        reader.subscribe()
        turn = sender.send(f"Go {key} slow", key)["turnId"]
        _first_text(reader)
        ending = threading.Thread(target=end, args=(a,))
        ending.start()
        last, gap = time.monotonic(), 0.0
        while turn not in reader.reader.ended:
            event = reader.hear()
            if event is not None and event["type"] == "resumed":
                gap = time.monotonic() - last
            last = time.monotonic()
    ending.join()
    a.start()
    return gap
