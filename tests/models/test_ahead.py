"""The answer to a request that was sent ahead goes to who takes it from its first byte; headers wake no task."""

from collections.abc import Callable, Sequence
from contextlib import suppress

import anyio
import pytest
from anyio.abc import SocketStream
from hypothesis import given
from hypothesis import strategies as st

from agentic_rag.base.errors import ModelError
from agentic_rag.models.anthropic.model import AnthropicModel
from agentic_rag.models.anthropic.prepared import PreparedPost
from agentic_rag.models.base import ModelEvent, ModelProgress, ModelRequest, Push, PushingEvents, SentRequest
from tests.models.test_http_push import HELLO, STREAM, cut, serving
from tests.models.test_prepared import ANSWER

STREAMING = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ncontent-length: %d\r\n\r\n%s"
WHOLE = STREAMING % (len(STREAM), STREAM)


class Ahead:
    """Asks a service three times over one connection: plainly, ahead (the answer is in ``pieces``), and ahead again."""

    def __init__(self, pieces: Sequence[bytes]) -> None:
        self.pieces = pieces
        self.connections = 0
        self.asked = 0
        self.plain: list[ModelEvent] = []
        self.pushed: list[ModelEvent] = []
        self.found: list[ModelEvent] = []
        """Of the second answer, either way, in the order in which they came."""
        self.failure: Exception | None = None
        self.rests = False
        """Whether the connection could be used for the third."""

    async def ask(self, take: Callable[[ModelEvent], bool]) -> None:
        async with serving(self._serve) as url:
            model = AnthropicModel("k", url)
            async with model.stream(HELLO) as events:
                self.plain = [event async for event in events]
            try:
                await self._stream(self._send(model), take)
            except (ModelError, KeyError) as exc:
                self.failure = exc
            self.rests = (third := self._prepare(model).send("and again")) is not None
            if third is not None:
                third.abandon()
            await model.aclose()
        self.found = [event for event in self.found if not isinstance(event, ModelProgress)]

    def _prepare(self, model: AnthropicModel) -> PreparedPost:
        prepared = model.prepare(ModelRequest(HELLO.model, 100, (), (*HELLO.messages, ANSWER)))
        assert isinstance(prepared, PreparedPost)
        return prepared

    def _send(self, model: AnthropicModel) -> SentRequest:
        sent = self._prepare(model).send("again")
        assert sent is not None
        return sent

    async def _stream(self, sent: SentRequest, take: Callable[[ModelEvent], bool]) -> None:
        def push(event: ModelEvent) -> bool:
            if not take(event):
                return False
            self.found.append(event)
            self.pushed.append(event)
            return True

        async with sent.stream() as events:
            assert isinstance(events, PushingEvents)
            events.push(push)
            async for event in events:
                self.found.append(event)

    async def _serve(self, stream: SocketStream) -> None:
        self.connections += 1
        async with stream:
            while True:
                asked = b""
                while not asked.endswith(b'"stream":true}'):
                    try:
                        asked += await stream.receive()
                    except (anyio.EndOfStream, anyio.BrokenResourceError):
                        return
                self.asked += 1
                with suppress(anyio.BrokenResourceError):
                    for piece in self.pieces if self.asked == 2 else (WHOLE,):
                        await stream.send(piece)
                        await anyio.wait_all_tasks_blocked()
                if self.asked == 2 and b"".join(self.pieces) != WHOLE:
                    return


async def test_all_of_it_is_taken_where_it_comes_and_the_connection_rests_at_once() -> None:
    ahead = Ahead([WHOLE])
    await ahead.ask(lambda event: True)
    assert ahead.pushed == ahead.found == [event for event in ahead.plain if not isinstance(event, ModelProgress)]
    assert (ahead.failure, ahead.connections, ahead.rests) == (None, 1, True)


@given(places=st.lists(st.integers(0, 10_000), max_size=12), takes=st.lists(st.booleans(), max_size=12))
def test_it_is_the_same_in_any_pieces_whoever_takes_it(places: list[int], takes: list[bool]) -> None:
    taking = iter(takes)
    ahead = Ahead(cut(WHOLE, places))
    anyio.run(ahead.ask, lambda event: next(taking, True))
    assert ahead.found == [event for event in ahead.plain if not isinstance(event, ModelProgress)]
    assert (ahead.failure, ahead.connections, ahead.rests) == (None, 1, True)


@given(place=st.integers(0, 10_000), pieces=st.lists(st.integers(0, 10_000), max_size=3))
def test_one_that_is_cut_off_is_asked_again_before_it_began_and_an_error_afterwards(
    place: int, pieces: list[int]
) -> None:
    place %= len(WHOLE)
    ahead = Ahead(cut(WHOLE[:place], pieces))
    anyio.run(ahead.ask, lambda event: True)
    said = [event for event in ahead.plain if not isinstance(event, ModelProgress)]
    if place < WHOLE.index(b"\r\n\r\n") + 4:
        assert (ahead.found, ahead.failure, ahead.asked) == (said, None, 3)
        return
    assert ahead.found == said[: len(ahead.found)]
    assert ahead.asked == 2
    if len(ahead.found) < len(said):
        assert isinstance(ahead.failure, ModelError)
        assert ahead.failure.started


@pytest.mark.parametrize(
    ("head", "kind"),
    [
        (b"HTTP/1.1 200 OK\r\ncontent-type: text/html\r\ncontent-length: %d\r\n\r\n%s", "no_stream"),
        (b"HTTP/1.1 529 Busy\r\ncontent-type: text/event-stream\r\ncontent-length: %d\r\n\r\n%s", ""),
    ],
)
async def test_what_is_no_answer_is_given_to_nobody(head: bytes, kind: str) -> None:
    ahead = Ahead([head % (len(STREAM), STREAM)])
    await ahead.ask(lambda event: True)
    assert ahead.found == []
    assert isinstance(ahead.failure, ModelError)
    assert not kind or ahead.failure.kind == kind


async def test_an_error_of_who_takes_is_raised_where_the_next_event_is_waited_for() -> None:
    def take(event: ModelEvent) -> bool:
        raise KeyError("no such block")

    ahead = Ahead([WHOLE])
    await ahead.ask(take)
    assert isinstance(ahead.failure, KeyError)
    assert ahead.found == []


async def test_one_that_nobody_reads_to_its_end_is_closed() -> None:
    closed = anyio.Event()
    asked = 0

    async def serve(stream: SocketStream) -> None:
        nonlocal asked
        async with stream:
            with suppress(anyio.EndOfStream, anyio.BrokenResourceError):
                while await stream.receive():
                    asked += 1
                    await stream.send(WHOLE if asked == 1 else WHOLE[:-20])
            closed.set()

    def take(event: ModelEvent) -> bool:
        begun.set()
        return True

    begun = anyio.Event()
    async with serving(serve) as url:
        model = AnthropicModel("k", url)
        async with model.stream(HELLO) as events:
            assert [event async for event in events]
        sent = model.prepare(HELLO)
        assert sent is not None
        ahead = sent.send("again")
        assert ahead is not None

        async def read(taking: Push) -> None:
            async with ahead.stream() as events:
                assert isinstance(events, PushingEvents)
                events.push(taking)
                async for _ in events:
                    pass

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(read, take)
            await begun.wait()
            tasks.cancel_scope.cancel()
        await closed.wait()
        await model.aclose()
