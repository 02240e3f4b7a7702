"""The path from a model's events to the readers of a turn's log."""

import asyncio
import socket
import time
from collections import deque
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import anyio.lowlevel
import pytest

from agentic_rag.base.errors import GenerationTimeout
from agentic_rag.base.events import AgentEvent, Usage
from agentic_rag.base.ids import MessageId
from agentic_rag.base.messages import text_block
from agentic_rag.base.redaction import Redaction
from agentic_rag.base.silence_timers import SUSPENDED_SECONDS
from agentic_rag.models.base import (
    BlockStarted,
    BlockStopped,
    MessageCompleted,
    ModelEvent,
    ModelProgress,
    TextDelta,
)
from agentic_rag.runtime.core.calls import Policy
from agentic_rag.runtime.core.turn import Turn
from agentic_rag.runtime.log.runlog import MAX_UNJOURNALLED
from agentic_rag.runtime.model_stream import ModelStream
from tests.runtime.log_rig import Desk, open_desk

IDLE = 60.0
END = (BlockStopped(0, text_block("")), MessageCompleted("end_turn", Usage(1, 0, 0, 1)))


class Answer(AsyncIterator[ModelEvent]):
    """An answer whose events are sent one by one."""

    def __init__(self) -> None:
        self._left: deque[ModelEvent] = deque()
        self._more = anyio.Event()
        self._over = False

    def say(self, *events: ModelEvent) -> None:
        self._left.extend(events)
        self._more.set()

    async def __anext__(self) -> ModelEvent:
        while not self._left:
            if self._over:
                raise StopAsyncIteration
            self._more = anyio.Event()
            await self._more.wait()
        event = self._left.popleft()
        self._over = isinstance(event, MessageCompleted)
        return event


class ReceivedEvents:
    """A reader that accepts pushed events."""

    def __init__(self) -> None:
        self.events: list[AgentEvent] = []

    def push(self, events: Sequence[AgentEvent]) -> int:
        self.events.extend(events)
        return len(events)

    @property
    def text(self) -> str:
        return "".join(event.fields()["text"] for event in self.events if event.type == "text")


@asynccontextmanager
async def receive_answer(
    desk: Desk, redaction: Redaction | None = None
) -> AsyncIterator[tuple[Answer, ReceivedEvents]]:
    """Receive an answer with one open block, with a reader at the log. The end of the block ends the answer."""
    turn = Turn(message_id=MessageId("msg_1"), model="m", policy=Policy(), max_steps=3)
    turn.next()
    turn.begin_step(())
    answer, received = Answer(), ReceivedEvents()

    @asynccontextmanager
    async def call() -> AsyncIterator[Answer]:
        yield answer

    async with anyio.create_task_group() as readers:
        readers.start_soon(desk.reader().next, received.push)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ModelStream(turn, desk.log, redaction or Redaction(), IDLE).run, call())
            await anyio.wait_all_tasks_blocked()
            answer.say(BlockStarted(0, text_block("")))
            yield answer, received
            answer.say(*END)
        readers.cancel_scope.cancel()


async def test_each_event_reaches_the_reader_before_the_next(tmp_path: Path) -> None:
    async with open_desk(tmp_path) as desk, receive_answer(desk) as (answer, received):
        for word in ("One ", "two ", "three."):
            answer.say(TextDelta(0, word), ModelProgress())
            await anyio.wait_all_tasks_blocked()
            assert received.text.endswith(word)
        assert received.text == "One two three."


async def test_a_silent_call_times_out_and_its_late_events_are_dropped(tmp_path: Path) -> None:
    turn = Turn(message_id=MessageId("msg_1"), model="m", policy=Policy(), max_steps=3)
    turn.next()
    turn.begin_step(())
    answer = Answer()

    @asynccontextmanager
    async def call() -> AsyncIterator[Answer]:
        try:
            yield answer
        finally:
            answer.say(BlockStarted(0, text_block("")), TextDelta(0, "Late."))

    async with open_desk(tmp_path) as desk:
        with pytest.raises(GenerationTimeout):
            await ModelStream(turn, desk.log, Redaction(), 0.001).run(call())
        assert desk.log.last == 0


def suspend() -> None:
    """Freeze the event loop as SIGSTOP freezes the process."""
    time.sleep(2 * SUSPENDED_SECONDS)


async def test_an_unread_answer_after_a_suspension_does_not_time_out(tmp_path: Path) -> None:
    turn = Turn(message_id=MessageId("msg_1"), model="m", policy=Policy(), max_steps=3)
    turn.next()
    turn.begin_step(())
    ours, theirs = socket.socketpair()
    received: list[str] = []

    @asynccontextmanager
    async def call() -> AsyncIterator[AsyncIterator[ModelEvent]]:
        reader, writer = await asyncio.open_connection(sock=ours)

        async def events() -> AsyncIterator[ModelEvent]:
            yield BlockStarted(0, text_block(""))
            theirs.sendall(b"It is here.\n")
            suspend()
            received.append((await reader.readline()).decode())
            yield TextDelta(0, received[-1])
            for event in END:
                yield event

        yield events()
        writer.close()

    with theirs:
        async with open_desk(tmp_path) as desk:
            await ModelStream(turn, desk.log, Redaction(), 0.05).run(call())
            assert received == ["It is here.\n"]


async def test_a_full_log_pauses_the_answer_and_loses_nothing(tmp_path: Path) -> None:
    words = [f"{number} " for number in range(3 * MAX_UNJOURNALLED)]
    async with open_desk(tmp_path) as desk:
        async with receive_answer(desk) as (answer, received):
            answer.say(*(TextDelta(0, word) for word in words))
            while desk.log.last < MAX_UNJOURNALLED:
                await anyio.lowlevel.checkpoint()
            assert desk.log.last == MAX_UNJOURNALLED  # the answer keeps the remaining events
            while received.text != "".join(words):
                await anyio.lowlevel.checkpoint()
        assert [event.seq for event in received.events] == list(range(1, len(words) + 1))


async def test_a_secret_split_over_deltas_reaches_no_reader(tmp_path: Path) -> None:
    redaction = Redaction()
    redaction.add("TOKEN", "tok-1234567890")
    async with open_desk(tmp_path) as desk, receive_answer(desk, redaction) as (answer, received):
        for delta in ("It is tok-", "12345", "67890", ", I", " think", ". Is it not, in the end?"):
            answer.say(TextDelta(0, delta))
            await anyio.wait_all_tasks_blocked()
            assert "tok-" not in received.text
        assert received.text.startswith("It is [secret TOKEN]")
