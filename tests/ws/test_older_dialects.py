"""`/ws` in the older contracts: unmodified clients, their own frames, and refusals in their own form."""

from typing import Any

import orjson
import pytest
from starlette.applications import Starlette
from starlette.routing import WebSocketRoute
from starlette.types import ASGIApp
from websockets.asyncio.client import connect

from agentic_rag.base.events import IterationStart, StepReset, Text
from agentic_rag.base.redaction import Redactor
from agentic_rag.server.auth import Guard
from agentic_rag.server.ws.socket import websocket_endpoint
from tests.ws.memory import DONE, Desk, NoWaits
from tests.ws.serving import Client, application, client, serving, types

OLDER = ("observable", "message", "agentx", "knowledge", "chat")


def desk() -> Desk:
    made = Desk()
    made.open("conv_1")
    made.open("conv_2")
    made.open("conv_x", owner="somebody else")
    return made


def spoken_to_in(dialect: str, it: Desk) -> ASGIApp:
    """Return an application with an operator's default dialect."""
    endpoint = websocket_endpoint(it, it, NoWaits(), Redactor(), dialect)
    return Guard(Starlette(routes=[WebSocketRoute("/ws", endpoint)]))


async def hear_types(c: Client, *ends: str) -> list[str]:
    heard = [await c.hear()]
    while heard[-1]["type"] not in ends:
        heard.append(await c.hear())
    return types(heard)


async def test_an_unmodified_message_client_chats_on_plain_ws_and_aborts(tmp_path: object) -> None:
    it = desk()
    async with serving(spoken_to_in("message", it)) as address, client(address, None) as c:
        assert c.connection.subprotocol is None
        begun = await c.ask("message", conversationId="conv_1", content="Hi")
        assert begun == {
            "type": "message_start",
            "messageId": "msg_a",
            "conversationId": "conv_1",
            "turnId": "turn_1",
        }
        it.say("turn_1", IterationStart(1), Text("Hel"), Text("lo"))
        assert [(await c.hear())["delta"] for _ in range(2)] == ["Hel", "lo"]
        aborted = await c.ask("abort", conversationId="conv_1", reason="enough")
        assert (aborted["type"], aborted["code"], aborted["conversationId"]) == (
            "error",
            "GENERATION_ABORTED",
            "conv_1",
        )
        assert isinstance(aborted["error"], str)
        await c.say("message", conversationId="conv_1", content="Again")
        await c.hear()
        it.answer("turn_2", "Done.")
        assert await hear_types(c, "message_complete") == ["content_delta", "message_complete"]
        assert await c.ask("ping") == {"type": "pong"}


@pytest.mark.parametrize("named", [{}, {"messageId": "msg_a"}, {"message_id": "msg_a"}, {"conversation_id": "conv_1"}])
async def test_an_abort_without_a_target_stops_the_last_message(named: dict[str, str]) -> None:
    it = desk()
    async with serving(spoken_to_in("message", it)) as address, client(address, None) as c:
        await c.ask("message", conversationId="conv_1", content="Hi")
        assert (await c.ask("abort", **named))["code"] == "GENERATION_ABORTED"
        assert it.turns["turn_1"].ended


async def test_an_abort_of_an_ended_message_does_not_affect_the_next() -> None:
    it = desk()
    async with serving(spoken_to_in("message", it)) as address, client(address, None) as c:
        await c.ask("message", conversationId="conv_1", content="Hi")
        it.answer("turn_1", "a")
        await hear_types(c, "message_complete")
        # the rig gives every answer one id, by which the socket knows the newest turn
        await c.ask("message", conversationId="conv_2", content="Hi")
        await c.say("abort", conversationId="conv_1", messageId="msg_a")
        assert await c.ask("ping") == {"type": "pong"}
        assert not it.turns["turn_2"].ended


BAD_FRAMES = [
    ("not json", "VALIDATION_ERROR"),
    ("[]", "VALIDATION_ERROR"),
    ('{"type": "shout"}', "VALIDATION_ERROR"),
    ('{"type": "message", "content": "Hi"}', "VALIDATION_ERROR"),
    ('{"type": "message", "conversationId": "conv_x", "content": "Hi"}', "CONVERSATION_NOT_FOUND"),
    ('{"type": "message", "conversationId": "conv_1", "content": " "}', "MESSAGE_CONTENT_REQUIRED"),
]
BAD_ABORTS = [
    ('{"type": "abort"}', "VALIDATION_ERROR"),  # nothing was sent yet
    ('{"type": "abort", "conversationId": 5}', "VALIDATION_ERROR"),
    ('{"type": "abort", "conversationId": ""}', "VALIDATION_ERROR"),
    ('{"type": "abort", "conversationId": "conv_x"}', "CONVERSATION_NOT_FOUND"),
    ('{"type": "abort", "messageId": ["x"]}', "VALIDATION_ERROR"),
]


@pytest.mark.parametrize("dialect", ["native", *OLDER])
async def test_a_bad_frame_is_refused_in_the_dialects_form_and_the_next_is_answered(dialect: str) -> None:
    it = desk()
    it.on_start = lambda turn_id: it.answer(turn_id, "Still here.")
    async with serving(application(it, it)) as address, client(address, dialect) as c:
        for text, code in BAD_FRAMES + (BAD_ABORTS if dialect == "message" else []):
            await c.connection.send(text)
            refused = await c.hear()
            assert (refused["type"], refused["code"]) == ("error", code), text
            said = refused["error" if dialect == "message" else "message"]
            assert isinstance(said, str)
            assert "Traceback" not in said
        await c.connection.send(b"\x00")
        assert (await c.hear())["code"] == "VALIDATION_ERROR"
        await c.say("message", conversationId="conv_1", content="Hi")
        ends = {"message": "message_complete", "agentx": "conversation_end"}
        assert await hear_types(c, ends.get(dialect, "done"))


async def test_observable_answers_frames_in_snake_case() -> None:
    it = desk()
    async with serving(application(it, it)) as address, client(address, "observable") as c:
        accepted = await c.ask("message", conversation_id="conv_1", content="Hi", client_message_id="m")
        assert accepted == {
            "type": "accepted",
            "conversation_id": "conv_1",
            "turn_id": "turn_1",
            "client_message_id": "m",
            "user_message_id": "msg_u",
            "message_id": "msg_a",
        }
        assert (await c.hear())["user_message_id"] == "msg_u"
        refused = await c.ask("message", conversationId="conv_x", content="Hi", requestId="r")
        assert (refused["conversation_id"], refused["request_id"]) == ("conv_x", "r")


@pytest.mark.parametrize("dialect", ["message", "agentx", "knowledge", "chat"])
async def test_a_stream_that_ended_with_a_reset_does_not_affect_the_next_turn(dialect: str) -> None:
    it = desk()
    async with serving(application(it, it)) as address, client(address, dialect) as c:
        await c.say("message", conversationId="conv_1", content="Hi")
        it_ends = {"agentx": "conversation_end"}.get(dialect, "error")
        while "turn_1" not in it.turns:
            await c.hear()
        it.say("turn_1", IterationStart(1), Text("Half a word"))
        it.say("turn_1", StepReset(1), IterationStart(1), Text("Anew"))
        heard = await hear_types(c, it_ends)
        assert "error" in heard
        it.say("turn_1", Text(" and on."), DONE)
        it.on_start = lambda turn_id: it.say(turn_id, IterationStart(1))  # every dialect has a frame for it
        await c.say("message", conversationId="conv_1", content="Again")
        frame = await c.hear()
        while frame["type"] == "accepted":
            frame = await c.hear()
        assert "turn_1" not in orjson.dumps(frame).decode()


async def test_a_subprotocol_overrides_the_dialect_of_the_address() -> None:
    it = desk()
    it.on_start = lambda turn_id: it.answer(turn_id, "a b")
    async with serving(spoken_to_in("message", it)) as address:

        async def first(url: str, *offered: Any) -> str:
            async with connect(url, subprotocols=list(offered) or None, compression=None, proxy=None) as connection:
                c = Client(connection)
                it.open("conv_1")
                await c.say("message", conversationId="conv_1", content="Hi")
                frame = await c.hear()
                return str((await c.hear() if frame["type"] == "accepted" else frame)["type"])

        url = f"ws://{address}/ws"
        assert await first(url) == "message_start"
        assert await first(f"{url}?dialect=agentx") == "conversation_start"
        assert await first(f"{url}?dialect=agentx", "agentic-rag.chat") == "session_created"
        assert await first(f"{url}?dialect=native") == "turn_started"


async def test_a_chat_socket_creates_a_session_once_in_each_conversation() -> None:
    it = desk()
    it.on_start = lambda turn_id: it.answer(turn_id, "a b")
    async with serving(application(it, it)) as address, client(address, "chat") as c:
        heard = []
        for name in ("conv_1", "conv_1", "conv_2", "conv_1"):
            await c.say("message", conversationId=name, content="Hi")
            heard.append(await hear_types(c, "done"))
        assert [types_heard.count("session_created") for types_heard in heard] == [1, 0, 1, 0]
        async with client(address, "chat") as later:
            await later.say("subscribe", conversationId="conv_1", turnId="turn_1", after=0)
            assert "session_created" in await hear_types(later, "done")
            await later.say("subscribe", conversationId="conv_1", turnId="turn_2", after=0)
            assert "session_created" not in await hear_types(later, "done")


@pytest.mark.parametrize("dialect", ["native", *OLDER])
async def test_unknown_keys_are_refused_by_name_where_the_contract_is_closed(dialect: str) -> None:
    it = desk()
    it.on_start = lambda turn_id: it.answer(turn_id, "a b")
    async with serving(application(it, it)) as address, client(address, dialect) as c:
        for frame in (
            {"type": "message", "conversationId": "conv_1", "content": "Hi", "userId": "eve"},
            {"type": "subscribe", "conversationId": "conv_1", "colour": "red"},
            {"type": "ping", "x" * 5_000: 1},
        ):
            await c.connection.send(orjson.dumps(frame).decode())
            if dialect == "native":
                continue
            refused = await c.hear()
            assert (refused["type"], refused["code"]) == ("error", "VALIDATION_ERROR")
            text = refused["error" if dialect == "message" else "message"]
            assert text.split(":")[0] == list(frame)[-1][:200]
        if dialect == "native":
            assert "pong" in await hear_types(c, "pong")
            return
        assert not it.turns, "a refused message begins no turn"
        await c.say("interrupt", conversationId="conv_1", reason="enough")
        assert (await c.ask("ping"))["type"] == "pong", "a request to stop is never refused for a key"


@pytest.mark.parametrize("dialect", OLDER)
async def test_many_conversations_share_a_socket_and_a_reader_that_joins_later_gets_what_follows(dialect: str) -> None:
    it = desk()
    async with serving(application(it, it)) as address, client(address, dialect) as c:
        for name in ("conv_1", "conv_2"):
            await c.say("message", conversationId=name, content="Hi")
        await c.say("ping")
        while (await c.hear())["type"] != "pong":
            pass
        for turn in ("turn_1", "turn_2"):
            it.say(turn, IterationStart(1), Text("Hello wor"), Text("ld"), DONE)
        raw = [await c.hear()]
        ends = {"message": "message_complete", "agentx": "conversation_end"}.get(dialect, "done")
        while types(raw).count(ends) < 2:
            raw.append(await c.hear())
        of_first = [each for each in raw if "turn_1" in (each.get("turnId"), each.get("turn_id"))]
        async with client(address, dialect) as later:
            await later.say("subscribe", conversationId="conv_1", turnId="turn_1", after=3)
            heard = [await later.hear()]
            while heard[-1]["type"] != ends:
                heard.append(await later.hear())
            heard = [each for each in heard if each["type"] != "subscribed"]
            assert heard == of_first[-len(heard) :]
            assert len(heard) < len(of_first)
