"""Floods of the socket by clients without a key, while a client with a key streams turns.

This module defines the kinds of floods and the client with the key. Each kind yields the data of one connection piece
by piece. Answers and closes by the server are counted, and a new connection replaces the old one.
"""

import json
import socket
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import repeat
from random import Random
from threading import Event, Thread
from time import monotonic
from typing import Any

from websockets.sync.client import connect

from tests.faults.outside import PATIENCE
from tests.faults.sweep import Rig

HEAD = b"GET /api/domains HTTP/1.1\r\nHost: 127.0.0.1\r\n"
POST = b"POST /api/conversations HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 100000\r\n\r\n"
HANDSHAKE = (
    b"GET /ws HTTP/1.1\r\nHost: 127.0.0.1\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
)
Pieces = Iterator[bytes]
BURST = 10
"""New connections at once.

A client must show its key before more new connections arrive than the server holds for unauthenticated clients.
"""


def idle(random: Random) -> Pieces:
    yield from repeat(b"")


def half_open(random: Random) -> Pieces:
    yield HEAD[: random.randrange(1, len(HEAD))]
    yield from repeat(b"")


def slow_header(random: Random) -> Pieces:
    yield HEAD
    while True:
        yield b"X-%d: x\r\n" % random.randrange(1000)


def slow_body(random: Random) -> Pieces:
    yield POST
    yield from repeat(b"x")


def big_header(random: Random) -> Pieces:
    yield HEAD + b"X: "
    yield from repeat(b"x" * 65_536)


def garbage(random: Random) -> Pieces:
    while True:
        yield random.randbytes(random.randrange(1, 2000))


def bad_handshake(random: Random) -> Pieces:
    yield HANDSHAKE + b"X: " + b"x" * random.randrange(9_000, 20_000) + b"\r\n\r\n"
    yield from repeat(b"")


def refused_handshake(random: Random) -> Pieces:
    yield from repeat((HANDSHAKE if random.random() < 0.5 else HEAD) + b"\r\n")


KINDS: dict[str, Callable[[Random], Pieces]] = {
    kind.__name__: kind
    for kind in (idle, half_open, slow_header, slow_body, big_header, garbage, bad_handshake, refused_handshake)
}


@dataclass
class Figures:
    """The sent data and the answers of a flood, with the turns and pings (in seconds) of the client with the key."""

    opened: int = 0
    sent: int = 0
    answers: Counter[str] = field(default_factory=Counter)
    turns: int = 0
    slowest_ping: float = 0.0

    def __str__(self) -> str:
        answers = ", ".join(f"{count} x {status}" for status, count in sorted(self.answers.items()))
        return (
            f"{self.opened} connections, {self.sent / 1e6:.1f} MB, {answers or 'no answer'}; "
            f"beside it {self.turns} turns, slowest ping {self.slowest_ping * 1000:.0f} ms"
        )


class Flood:
    """Keeps a number of connections of one kind open, in a thread, until the block ends."""

    def __init__(self, url: str, kind: str, sockets: int, seed: int) -> None:
        host, _, port = url.removeprefix("http://").rpartition(":")
        self.figures = Figures()
        self._address = host, int(port)
        self._kind, self._sockets, self._random = KINDS[kind], sockets, Random(seed)
        self._over = Event()
        self._thread = Thread(target=self._run)

    def __enter__(self) -> "Flood":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        connections: dict[socket.socket, Pieces] = {}
        while not self._over.wait(0.01):  # the other client runs in this process, too
            for _ in range(min(BURST, self._sockets - len(connections))):
                connection_socket = socket.create_connection(self._address, PATIENCE)
                connection_socket.setblocking(False)
                connections[connection_socket] = self._kind(self._random)
                self.figures.opened += 1
            for connection, pieces in list(connections.items()):
                if not self._step(connection, pieces):
                    connection.close()
                    del connections[connection]
        for connection in connections:
            connection.close()

    def _step(self, connection: socket.socket, pieces: Pieces) -> bool:
        """Send one piece. Returns False if the server has ended the connection."""
        try:
            with suppress(BlockingIOError):
                self.figures.sent += connection.send(next(pieces))
            answer = connection.recv(65_536)
        except BlockingIOError:
            return True
        except OSError:
            self.figures.answers["reset"] += 1
            return False
        self.figures.answers[answer.split()[1].decode() if answer else "closed"] += 1
        return bool(answer) and b"connection: close" not in answer.lower()


def flood_beside_turns(rig: Rig, key: str, kind: str, *, seed: int, sockets: int, turns: int) -> Figures:
    """Flood with one kind while a client with a key has turns. Fails if that client is refused anything."""
    server, headers = rig.server, {"Authorization": f"Bearer {key}"}
    with Flood(server.url, kind, sockets, seed) as flood:
        figures = flood.figures
        for number in range(turns):
            body = {"domainId": rig.domain}
            conversation = server.call("POST", "/api/conversations", body, **headers)["id"]
            content = f"Hello {conversation}-{number} long"
            address = server.url.replace("http", "ws") + "/ws"
            # No pings by this client, because the flood's thread may keep this process from reading their answers.
            options: dict[str, Any] = {"compression": None, "proxy": None, "ping_interval": None}
            with connect(address, additional_headers=headers, **options) as socket:
                socket.send(json.dumps({"type": "message", "conversationId": conversation, "content": content}))
                start = monotonic()
                socket.send(json.dumps({"type": "ping"}))
                event: dict[str, Any] = {}
                while event.get("type") != "done":
                    event = json.loads(socket.recv(PATIENCE))
                    assert event["type"] not in ("error", "interrupted"), event
                    if event["type"] == "pong":
                        figures.slowest_ping = max(figures.slowest_ping, monotonic() - start)
                figures.turns += 1
    assert server.call("GET", "/api/health", **headers)["status"]
    return figures


def make_key(rig: Rig) -> str:
    """Create the first key. From then on every client needs one."""
    return str(rig.server.call("POST", "/api/keys", {"user": "ann", "role": "operator"})["key"])
