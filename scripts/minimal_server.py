"""A minimal process with this server's duties for a delta, as the reference of `bench_bars`.

    minimal_server.py PORT API REQUEST DATABASE

It checks a key, stores a message with fsync before it says that it has it, sends a session of 50 messages, numbers each
event, journals it in groups and sends it over a WebSocket. One user, one conversation at a time on a socket, no tools,
nothing to resume. It reads the answers with aiohttp and the server's own reader of event streams. ``REQUEST`` is a
file with the JSON of such a session's request; ``KEY`` in the environment is the key of all users.
"""

import asyncio
import hmac
import logging
import os
import queue
import sqlite3
import sys
import threading
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import aiohttp
import anyio
import orjson
from websockets.asyncio.server import ServerConnection, serve

from agentic_rag.models.sse import SSEReader

FLUSH_SECONDS = 0.05
"""How long events wait to be journalled in one group."""
TABLES = """
CREATE TABLE messages (turn TEXT, content TEXT);
CREATE TABLE events (turn TEXT, first INTEGER, data BLOB);
"""

SILENT = logging.getLogger("minimal")
SILENT.setLevel(logging.CRITICAL)  # the readiness probe does not speak WebSocket

Work = Callable[[sqlite3.Connection], object]


class Store:
    """A thread with two connections to one database: one syncs on each commit, the other does not."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._work: queue.SimpleQueue[tuple[Work, bool, asyncio.Future[None] | None]] = queue.SimpleQueue()
        self._loop = asyncio.get_running_loop()
        threading.Thread(target=self._run, daemon=True).start()

    async def keep(self, work: Work) -> None:
        """Run work in a transaction and return when it is on disk."""
        done: asyncio.Future[None] = self._loop.create_future()
        self._work.put((work, True, done))
        await done

    def note(self, work: Work) -> None:
        """Run work in a transaction soon."""
        self._work.put((work, False, None))

    def _connect(self, synchronous: str) -> sqlite3.Connection:
        connection = sqlite3.connect(self._path, isolation_level=None)
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute(f"PRAGMA synchronous={synchronous}")
        return connection

    def _run(self) -> None:
        connections = {True: self._connect("FULL"), False: self._connect("NORMAL")}
        connections[True].executescript(TABLES)
        while True:
            batch = [self._work.get()]
            while not self._work.empty():  # works that wait at the same time share a commit
                batch.append(self._work.get())
            for durable, connection in connections.items():
                mine = [each for each in batch if each[1] is durable]
                if mine:
                    connection.execute("BEGIN IMMEDIATE")
                    for work, _, _ in mine:
                        work(connection)
                    connection.execute("COMMIT")
            waiting = [done for _, _, done in batch if done is not None]
            if waiting:
                self._loop.call_soon_threadsafe(_tell, waiting)


def _tell(waiting: list["asyncio.Future[None]"]) -> None:
    for done in waiting:
        if not done.done():
            done.set_result(None)


class Minimal:
    """Answers over WebSockets."""

    def __init__(self, api: str, request: dict[str, Any], store: Store, key: str) -> None:
        headers = {"content-type": "application/json", "anthropic-version": "2023-06-01", "x-api-key": key}
        self._client = aiohttp.ClientSession(headers=headers, connector=aiohttp.TCPConnector(limit=0))
        self._url = f"{api}/v1/messages"
        self._store = store
        self._key = key
        said = [orjson.dumps(each) for each in request.pop("messages")[:-1]]
        self._before = b'{"messages":[' + b"".join(each + b"," for each in said)
        self._after = b"]," + orjson.dumps({**request, "stream": True})[1:]
        self._events: list[tuple[str, int, bytes]] = []
        self._flushing = False

    async def talk(self, socket: ServerConnection) -> None:
        """Answer a client's messages one after another."""
        assert socket.request is not None
        if not hmac.compare_digest(socket.request.headers.get("authorization", ""), f"Bearer {self._key}"):
            return
        async for text in socket:
            await self._answer(socket, orjson.loads(text)["content"])

    async def _answer(self, socket: ServerConnection, content: str) -> None:
        turn = uuid.uuid4().hex
        await self._store.keep(lambda conn: conn.execute("INSERT INTO messages VALUES (?, ?)", (turn, content)))
        number = 0
        await socket.send(self._event(turn, number := number + 1, {"type": "turn_started"}), text=True)
        message = orjson.dumps({"role": "user", "content": [{"type": "text", "text": content}]})
        reader, answer = SSEReader(), []
        async with self._client.post(self._url, data=self._before + message + self._after) as response:
            assert response.status == 200, await response.read()
            async for piece in response.content.iter_any():
                for _, data in reader.feed(piece):
                    event = orjson.loads(data)
                    if event["type"] == "content_block_delta" and event["delta"]["type"] == "text_delta":
                        said = event["delta"]["text"]
                        answer.append(said)
                        frame = self._event(turn, number := number + 1, {"type": "text", "content": said})
                        await socket.send(frame, text=True)
        whole = "".join(answer)
        await self._store.keep(lambda conn: conn.execute("INSERT INTO messages VALUES (?, ?)", (turn, whole)))
        await socket.send(self._event(turn, number + 1, {"type": "done"}), text=True)

    def _event(self, turn: str, number: int, body: dict[str, Any]) -> bytes:
        """Return an encoded event and queue it for the journal."""
        data = orjson.dumps({"turnId": turn, "seq": number, **body})
        self._events.append((turn, number, data))
        if not self._flushing:
            self._flushing = True
            asyncio.get_running_loop().call_later(FLUSH_SECONDS, self._flush)
        return data

    def _flush(self) -> None:
        self._flushing = False
        groups: dict[str, tuple[int, list[bytes]]] = {}
        for turn, number, data in self._events:
            groups.setdefault(turn, (number, []))[1].append(data)
        self._events = []
        rows = [(turn, first, b"\n".join(datas)) for turn, (first, datas) in groups.items()]
        self._store.note(lambda conn: conn.executemany("INSERT INTO events VALUES (?, ?, ?)", rows))


async def main(port: int, api: str, request: dict[str, Any], database: Path) -> None:
    """Serve until the process ends."""
    minimal = Minimal(api, request, Store(database), os.environ["KEY"])
    async with serve(minimal.talk, "127.0.0.1", port, compression=None, max_size=None, logger=SILENT):
        await anyio.sleep_forever()


if __name__ == "__main__":
    port, api, request, database = sys.argv[1:]
    read = orjson.loads(Path(request).read_bytes())
    anyio.run(main, int(port), api, read, Path(database), backend_options={"use_uvloop": True})
