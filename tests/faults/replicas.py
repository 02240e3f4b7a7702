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
from tests.faults.outside import Outside, outside
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
        until = time.monotonic() + TURN_SECONDS
        while True:
            for server in self.alive():
                try:
                    return work(server)
                except (Dead, Refused) as exc:
                    if isinstance(exc, Refused) and exc.code not in AGAIN:
                        raise
            assert time.monotonic() < until, "no server answers"
            time.sleep(AGAIN_SECONDS)


@contextmanager
def cluster(folder: Path, count: int = SERVERS, hosts: str = "", **environment: str) -> Iterator[Cluster]:
    """Run servers with a domain that has the counting tool. ``hosts``: further hosts that they may reach."""
    with ExitStack() as stack:
        around = stack.enter_context(outside(folder))
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
                "AGENTIC_RAG_MCP_HOSTS": f"{around.environment['AGENTIC_RAG_MCP_HOSTS']},{hosts}".rstrip(","),
                **environment,
            }
            servers.append(Server(folder, around, **variables))
        servers[0].start()  # the first server creates the tables
        starting = [threading.Thread(target=server.start) for server in servers[1:]]
        for thread in starting:
            thread.start()
        for thread in starting:
            thread.join()
        stack.callback(_end, servers)
        newer = make_later(folder / "tables", serves_before=True)
        made = Cluster(servers, proxies, database, around, newer)
        made.domain = servers[0].domain(around)
        yield made


def _end(servers: Sequence[Server]) -> None:
    for server in servers:
        if server.alive:
            server.signal()
    for server in servers:
        server.terminate()


@dataclass
class Said:
    """A client's message and the turn that answered it."""

    key: str
    script: str
    turn: str


class Client(threading.Thread):
    """One conversation. The client sends through any server that answers, and reads through another one."""

    def __init__(self, made: Cluster, seed: int, turns: int, scripts: tuple[str, ...]) -> None:
        super().__init__()
        self._made = made
        self._random = Random(seed)
        self._left = turns
        self._scripts = scripts
        self._name = f"c{seed}"
        self.ledger = Ledger()
        self.conversation = made.ask(lambda server: server.conversation(made.domain))
        self.said: list[Said] = []
        self.moves = 0
        """How often it had to change the server during a turn."""
        self.failure: BaseException | None = None

    def run(self) -> None:
        try:
            for number in range(self._left):
                script = self._random.choice(self._scripts)
                key = f"{self._name}-{number}"
                self.said.append(Said(key, script, self._speak(key, script)))
        except BaseException as exc:
            self.failure = exc

    def _speak(self, key: str, script: str) -> str:
        """Send a message and read to the end of its turn."""
        until = time.monotonic() + TURN_SECONDS
        turn, last = "", 0
        while True:
            assert time.monotonic() < until, f"{key}: no end of {turn or 'a turn that nobody takes'}"
            alive = self._made.alive()
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
            if chat.hear() is None and (chat.gone_wrong or "SERVER_STOPPING" in chat.asides):
                raise Dead

    def check(self) -> Counter[str]:
        """Read all turns again from each server, and count their results."""
        assert self.failure is None, f"{self._name}: {self.failure!r}"
        logs: list[tuple[str, list[Event]]] = []
        for entry in self.said:
            texts = {tuple(server.log(entry.turn)) for server in self._made.alive()}
            assert len(texts) == 1, f"{entry.turn} differs between servers"
            logs.append((entry.turn, self.ledger.check_log(texts.pop())))
        for server in self._made.alive():
            check_messages(server.messages(self.conversation), logs)
        spent = self._made.outside.spent
        for entry in self.said:
            assert spent[entry.key] <= 1, f"{entry.key} was spent {spent[entry.key]} times"
        return Counter(events[-1]["type"] for _, events in logs)


def strike(made: Cluster, kind: str, number: int, *, pause: float = LONG_PAUSE) -> None:
    """Cause one fault of a server, and repair it."""
    server, proxy = made.servers[number], made.proxies[number]
    if kind == "kill":
        server.kill()
        server.start()
    elif kind == "term":
        server.terminate()
        server.start()
    elif kind == "newer":  # the next version, whose tables also fit this version
        server.terminate()
        server.set_tables(made.newer)
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
        made.database.stop()
        made.database.start()
    else:
        made.paused.add(number)
        os.kill(server.pid, signal.SIGSTOP)
        time.sleep(pause)
        os.kill(server.pid, signal.SIGCONT)
        made.paused.discard(number)


def run(
    made: Cluster,
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
    speaking = [Client(made, 1000 * seed + number, turns, scripts) for number in range(clients)]
    for client in speaking:
        client.start()
    for kind in faults:
        time.sleep(random.uniform(0.1, 0.8))
        number = random.randrange(len(made.servers))
        began = time.monotonic()
        strike(made, kind, number, pause=pause)
        say(f"{kind:<9} server-{number}  {time.monotonic() - began:.1f} s")
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


def time_cpu(made: Cluster, alone: Server, times: int) -> tuple[float, float]:
    """Return the CPU milliseconds of a turn on PostgreSQL and on SQLite, measured alternately."""
    shared = made.servers[0]
    talks = {shared: shared.conversation(made.domain), alone: alone.conversation(alone.domain(made.outside))}
    spent = dict.fromkeys(talks, 0.0)
    for number in range(-WARM, times):
        for server, conversation in talks.items():
            before = server.cpu_seconds
            with Chat(server, conversation, Ledger()) as chat:
                chat.finish(chat.send(f"Go cpu{number} plain", f"cpu{number}")["turnId"])
            spent[server] += server.cpu_seconds - before if number >= 0 else 0.0
    return 1000 * spent[shared] / times, 1000 * spent[alone] / times


def weigh_idle_sockets(made: Cluster, servers: int, each: int) -> tuple[float, float]:
    """Return the cost of idle sockets that follow conversations, ``each`` at every one of ``servers`` servers.

    The first value is KB of memory for a socket, the second the share of a core that a server uses without a turn.
    """
    used = made.servers[:servers]
    talks = [server.conversation(made.domain) for server in used]
    with ExitStack() as stack:
        for server, talk in zip(used, talks, strict=True):  # the first sockets also load modules, which does not count
            for _ in range(20):
                stack.enter_context(Chat(server, talk, Ledger())).subscribe()
        before = [server.resident for server in used]
        for server, talk in zip(used, talks, strict=True):
            for _ in range(each):
                stack.enter_context(Chat(server, talk, Ledger())).subscribe()
        grown = sum(server.resident - was for server, was in zip(used, before, strict=True))
        spent, began = sum(server.cpu_seconds for server in used), time.monotonic()
        time.sleep(IDLE_SECONDS)
        busy = (sum(server.cpu_seconds for server in used) - spent) / (time.monotonic() - began) / servers
    return grown / servers / each / 1024, busy


def _first_text(chat: Chat) -> float:
    chat.until(lambda event: event["type"] == "text")
    return time.monotonic()


def time_interrupts(made: Cluster, times: int) -> list[float]:
    """Return how many milliseconds an interrupt through one server takes to end a turn on another one."""
    a, b, _ = made.servers
    conversation, times_ms = a.conversation(made.domain), []
    with Chat(a, conversation, Ledger()) as chat:
        for number in range(times):
            turn = chat.send(f"Go i{number} slow", f"i{number}")["turnId"]
            _first_text(chat)
            began = time.monotonic()
            b.call("POST", f"/api/conversations/{conversation}/interrupt", {})
            assert chat.finish(turn)["type"] == "interrupted"
            times_ms.append(1000 * (time.monotonic() - began))
    return times_ms


def time_first_texts(made: Cluster, times: int) -> list[float]:
    """Return by how many milliseconds a turn's first text is later through another server."""
    a, b, _ = made.servers
    conversation, delays, ledger = a.conversation(made.domain), [], Ledger()
    with Chat(a, conversation, ledger) as sender, Chat(b, conversation, ledger) as reader:
        reader.subscribe()
        for number in range(times):
            there: list[float] = []
            watching = threading.Thread(target=lambda texts=there: texts.append(_first_text(reader)))
            watching.start()
            turn = sender.send(f"Go f{number} long", f"f{number}")["turnId"]
            here = _first_text(sender)
            watching.join()
            delays.append(1000 * (there[0] - here))
            sender.finish(turn)
            reader.finish(turn)
    return delays


def time_takeover(made: Cluster, end: Callable[[Server], object]) -> float:
    """Return the seconds without events for a reader of another server when the server of its turn ends."""
    a, b, _ = made.servers
    conversation, ledger = a.conversation(made.domain), Ledger()
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
