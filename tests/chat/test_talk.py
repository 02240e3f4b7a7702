"""One turn as the client shows it, however often the connection drops."""

import socket
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import anyio
import pytest

from agentic_rag.base.errors import InvalidInput, RequestRefused, ServerUnreachable
from agentic_rag.base.events import Error, Text
from agentic_rag.chat.command import TerminalChat, open_conversation
from agentic_rag.chat.talk import Ending, Server, Talk
from tests.chat.serving import Paper, break_connections, chat_server
from tests.ws.memory import DONE, Desk
from tests.ws.serving import PATIENCE

TEXTS = [f"part {n} " for n in range(6)]


@dataclass
class Listener:
    """Records a turn; ``on_event`` and ``on_note`` are called after each record."""

    events: list[dict[str, Any]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    on_event: Callable[[], object] = lambda: None
    on_note: Callable[[], object] = lambda: None

    def show(self, raw: str, frame: dict[str, Any]) -> None:
        self.events.append(frame)
        self.on_event()

    def note(self, text: str) -> None:
        self.notes.append(text)
        self.on_note()


def make_talk(url: str, events: list[dict[str, Any]], notes: list[str]) -> Talk:
    return Talk(Server(url), "conv_1", Listener(events, notes))


async def test_a_turn_is_received_completely_and_in_order() -> None:
    desk = Desk(lambda turn_id: desk.answer(turn_id, *TEXTS))
    events: list[dict[str, Any]] = []
    async with chat_server(desk) as url:
        assert await open_conversation(Server(url), "demo", None) == "conv_1"
        assert await make_talk(url, events, []).say("Hi") == "done"
    assert [event["seq"] for event in events] == list(range(1, 9))
    assert [event["text"] for event in events if event["type"] == "text"] == TEXTS


@pytest.mark.parametrize("dropped_after", range(1, 8))
async def test_a_connection_that_drops_after_any_event_is_resumed_without_gap_or_repeat(dropped_after: int) -> None:
    desk = Desk()
    desk.open("conv_1")
    events: list[dict[str, Any]] = []
    notes: list[str] = []

    def hear() -> None:
        if len(events) == dropped_after:
            break_connections()
            desk.answer("turn_1", *TEXTS[dropped_after - 1 :]) if dropped_after < 7 else desk.say("turn_1", DONE)

    desk.on_start = lambda turn_id: desk.say(turn_id, *(Text(text) for text in TEXTS[: dropped_after - 1]))
    async with chat_server(desk) as url:
        with anyio.fail_after(PATIENCE):
            assert await Talk(Server(url), "conv_1", Listener(events, notes, hear)).say("Hi") == "done"
    assert [event["seq"] for event in events] == list(range(1, 9))
    assert len(notes) == 1
    assert len(desk.turns) == 1


async def test_a_connection_lost_before_the_acceptance_arrives_creates_no_second_turn() -> None:
    desk = Desk()
    desk.open("conv_1")
    events: list[dict[str, Any]] = []

    def drop_once(turn_id: str) -> None:
        break_connections()
        desk.answer(turn_id, *TEXTS)

    desk.on_start = drop_once
    async with chat_server(desk) as url:
        with anyio.fail_after(PATIENCE):
            assert await make_talk(url, events, []).say("Hi") == "done"
    assert [event["seq"] for event in events] == list(range(1, 9))
    assert len(desk.turns) == 1


async def test_a_stopped_turn_ends_interrupted() -> None:
    desk = Desk()
    desk.open("conv_1")
    endings: list[Ending] = []
    turn_started = anyio.Event()
    desk.on_start = lambda turn_id: turn_started.set()

    async def say(talk: Talk) -> None:
        endings.append(await talk.say("Hi"))

    async with chat_server(desk) as url, anyio.create_task_group() as tasks:
        talk = make_talk(url, [], [])
        tasks.start_soon(say, talk)
        await turn_started.wait()
        await talk.stop()
    assert endings == ["interrupted"]


async def test_a_stop_during_a_broken_connection_is_sent_after_reconnecting() -> None:
    desk = Desk()
    desk.open("conv_1")
    talk: Talk
    stopping = anyio.Event()

    async def stop() -> None:
        await stopping.wait()
        await talk.stop()

    desk.on_start = lambda turn_id: break_connections()
    async with chat_server(desk) as url, anyio.create_task_group() as tasks:
        talk = Talk(Server(url), "conv_1", Listener(on_note=stopping.set))  # a note appears between two connections
        tasks.start_soon(stop)
        with anyio.fail_after(PATIENCE):
            assert await talk.say("Hi") == "interrupted"


async def test_a_refusal_is_printed_with_the_servers_text() -> None:
    desk = Desk()
    desk.open("conv_1")
    async with chat_server(desk) as url:
        with pytest.raises(RequestRefused, match="visible character"):
            await make_talk(url, [], []).say("  ")
        with pytest.raises(RequestRefused, match="no domain 'nowhere'"):
            await open_conversation(Server(url), "nowhere", None)
        with pytest.raises(RequestRefused, match="no conversation 'conv_9'"):
            await open_conversation(Server(url), "demo", "conv_9")
        with pytest.raises(InvalidInput, match="belongs to the domain 'demo'"):
            await open_conversation(Server(url), "other", "conv_1")


async def test_a_turn_that_fails_ends_with_its_error() -> None:
    desk = Desk(lambda turn_id: desk.say(turn_id, Error("LLM_SERVICE_ERROR", "overloaded", True)))
    desk.open("conv_1")
    async with chat_server(desk) as url:
        assert await make_talk(url, [], []).say("Hi") == "error"


async def test_without_a_server_the_first_attempt_reports_it() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    with pytest.raises(ServerUnreachable, match=url):
        await make_talk(url, [], []).say("Hi")
    with pytest.raises(ServerUnreachable, match=url):
        await open_conversation(Server(url), "demo", None)


@pytest.mark.parametrize("url", ["", "localhost:8000", "ftp://localhost", "http://"])
def test_an_invalid_address_is_refused(url: str) -> None:
    with pytest.raises(InvalidInput, match="url"):
        Server(url)


def test_the_key_is_not_shown() -> None:
    assert "secret" not in repr(Server("http://localhost:1", "secret"))


async def test_a_turn_without_events_is_shown_from_its_stored_answer() -> None:
    desk = Desk()
    desk.open("conv_1")
    paper = Paper()

    def lose(turn_id: str) -> None:
        desk.answer(turn_id, "unheard")
        desk.prune(turn_id)

    desk.on_start = lose
    async with chat_server(desk) as url:
        chat = TerminalChat(Server(url), paper.screen, "conv_1")
        assert await chat.turn("Hi") == "resync"
    assert paper.out == "stored turn_1\n"
    assert "gone" in paper.err
