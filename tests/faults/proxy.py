"""A TCP proxy that misbehaves on demand: it cuts, delays, or stops forwarding without closing connections."""

import asyncio
import threading
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any, Self, TypeVar

T = TypeVar("T")
SECONDS = 30


class Proxy:
    """Forwards to a port of this machine, in a separate thread. A context manager."""

    def __init__(self, target: int) -> None:
        self._target = target
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._links: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._open: asyncio.Event
        self._delay = 0.0
        self.port = 0

    def __enter__(self) -> Self:
        self._thread.start()
        self._call(self._start())
        return self

    def __exit__(self, *_: object) -> None:
        self._call(self._stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(SECONDS)
        self._loop.close()

    def cut(self) -> None:
        """Close every connection at once. New ones are accepted."""
        self._call(self._cut())

    def hold(self) -> None:
        """Stop forwarding without closing connections. Data sent meanwhile is swallowed."""
        self._loop.call_soon_threadsafe(self._open.clear)

    def release(self) -> None:
        """Forward again on new connections. The old ones are closed."""
        self._call(self._cut())
        self._loop.call_soon_threadsafe(self._open.set)

    def delay(self, seconds: float) -> None:
        """Delay each piece by some seconds."""
        self._delay = seconds

    def _call(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(SECONDS)

    async def _start(self) -> None:
        self._open = asyncio.Event()
        self._open.set()
        self._server = await asyncio.start_server(self._take, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def _stop(self) -> None:
        self._server.close()
        self._open.set()
        await self._cut()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _cut(self) -> None:
        for link in list(self._links):
            link.transport.abort()

    async def _take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self._links.add(writer)
        try:
            await self._open.wait()
            upstream_reader, upstream_writer = await asyncio.open_connection("127.0.0.1", self._target)
            self._links.add(upstream_writer)
            try:
                await asyncio.gather(self._forward(reader, upstream_writer), self._forward(upstream_reader, writer))
            finally:
                self._links.discard(upstream_writer)
                upstream_writer.transport.abort()
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            self._links.discard(writer)
            writer.transport.abort()
            self._tasks.discard(task)

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await reader.read(65536):
                await self._open.wait()
                if self._delay:
                    await asyncio.sleep(self._delay)
                writer.write(data)
                await writer.drain()
        writer.transport.abort()
