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

OLDER_DIALECTS = ("observable", "message", "agentx", "knowledge", "chat")


def make_desk() -> Desk:
    desk = Desk()
    desk.open("conv_1")
    desk.open("conv_2")
    desk.open("conv_x", owner="somebody else")
    return desk


def serve_dialect(dialect: str, desk: Desk) -> ASGIApp:
    """Return an application with an operator's default dialect."""
    endpoint = websocket_endpoint(desk, desk, NoWaits(), Redactor(), dialect)
    return Guard(Starlette(routes=[WebSocketRoute("/ws", endpoint)]))


async def hear_types(c: Client, *last_types: str) -> list[str]:
    frames = [await c.hear()]
    while frames[-1]["type"] not in last_types:
        frames.append(await c.hear())
    return types(frames)


async def test_an_unmodified_message_client_chats_on_plain_ws_and_aborts(tmp_path: object) -> None:
    desk = make_desk()
    async with serving(serve_dialect("message", desk)) as address, client(address, None) as c:
        assert c.connection.subprotocol is None
        first_frame = await c.ask("message", conversationId="conv_1", content="Hi")
        assert first_frame == {
            "type": "message_start",
            "messageId": "msg_a",
            "conversationId": "conv_1",
            "turnId": "turn_1",
        }
        desk.say("turn_1", IterationStart(1), Text("Hel"), Text("lo"))
        assert [(await c.hear())["delta"] for _ in range(2)] == ["Hel", "lo"]
        abort_answer = await c.ask("abort", conversationId="conv_1", reason="enough")
        assert (abort_answer["type"], abort_answer["code"], abort_answer["conversationId"]) == (
            "error",
            "GENERATION_ABORTED",
            "conv_1",
        )
        assert isinstance(abort_answer["error"], str)
        await c.say("message", conversationId="conv_1", content="Again")
        await c.hear()
        desk.answer("turn_2", "Done.")
        assert await hear_types(c, "message_complete") == ["content_delta", "message_complete"]
        assert await c.ask("ping") == {"type": "pong"}


@pytest.mark.parametrize("target", [{}, {"messageId": "msg_a"}, {"message_id": "msg_a"}, {"conversation_id": "conv_1"}])
async def test_an_abort_without_a_target_stops_the_last_message(target: dict[str, str]) -> None:
    desk = make_desk()
    async with serving(serve_dialect("message", desk)) as address, client(address, None) as c:
        await c.ask("message", conversationId="conv_1", content="Hi")
        assert (await c.ask("abort", **target))["code"] == "GENERATION_ABORTED"
        assert desk.turns["turn_1"].ended


async def test_an_abort_of_an_ended_message_does_not_affect_the_next() -> None:
    desk = make_desk()
    async with serving(serve_dialect("message", desk)) as address, client(address, None) as c:
        await c.ask("message", conversationId="conv_1", content="Hi")
        desk.answer("turn_1", "a")
        await hear_types(c, "message_complete")
        # the rig gives every answer one id, by which the socket knows the newest turn
        await c.ask("message", conversationId="conv_2", content="Hi")
        await c.say("abort", conversationId="conv_1", messageId="msg_a")
        assert await c.ask("ping") == {"type": "pong"}
        assert not desk.turns["turn_2"].ended


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


@pytest.mark.parametrize("dialect", ["native", *OLDER_DIALECTS])
async def test_a_bad_frame_is_refused_in_the_dialects_form_and_the_next_is_answered(dialect: str) -> None:
    desk = make_desk()
    desk.on_start = lambda turn_id: desk.answer(turn_id, "Still here.")
    async with serving(application(desk, desk)) as address, client(address, dialect) as c:
        for text, code in BAD_FRAMES + (BAD_ABORTS if dialect == "message" else []):
            await c.connection.send(text)
            answer = await c.hear()
            assert (answer["type"], answer["code"]) == ("error", code), text
            message = answer["error" if dialect == "message" else "message"]
            assert isinstance(message, str)
            assert "Traceback" not in message
        await c.connection.send(b"\x00")
        assert (await c.hear())["code"] == "VALIDATION_ERROR"
        await c.say("message", conversationId="conv_1", content="Hi")
        end_types = {"message": "message_complete", "agentx": "conversation_end"}
        assert await hear_types(c, end_types.get(dialect, "done"))


async def test_observable_answers_frames_in_snake_case() -> None:
    desk = make_desk()
    async with serving(application(desk, desk)) as address, client(address, "observable") as c:
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
        answer = await c.ask("message", conversationId="conv_x", content="Hi", requestId="r")
        assert (answer["conversation_id"], answer["request_id"]) == ("conv_x", "r")


@pytest.mark.parametrize("dialect", ["message", "agentx", "knowledge", "chat"])
async def test_a_stream_that_ended_with_a_reset_does_not_affect_the_next_turn(dialect: str) -> None:
    desk = make_desk()
    async with serving(application(desk, desk)) as address, client(address, dialect) as c:
        await c.say("message", conversationId="conv_1", content="Hi")
        end_type = {"agentx": "conversation_end"}.get(dialect, "error")
        while "turn_1" not in desk.turns:
            await c.hear()
        desk.say("turn_1", IterationStart(1), Text("Half a word"))
        desk.say("turn_1", StepReset(1), IterationStart(1), Text("Anew"))
        types_heard = await hear_types(c, end_type)
        assert "error" in types_heard
        desk.say("turn_1", Text(" and on."), DONE)
        desk.on_start = lambda turn_id: desk.say(turn_id, IterationStart(1))  # every dialect has a frame for it
        await c.say("message", conversationId="conv_1", content="Again")
        frame = await c.hear()
        while frame["type"] == "accepted":
            frame = await c.hear()
        assert "turn_1" not in orjson.dumps(frame).decode()


async def test_a_subprotocol_overrides_the_dialect_of_the_address() -> None:
    desk = make_desk()
    desk.on_start = lambda turn_id: desk.answer(turn_id, "a b")
    async with serving(serve_dialect("message", desk)) as address:

        async def hear_first_type(url: str, *offered: Any) -> str:
            async with connect(url, subprotocols=list(offered) or None, compression=None, proxy=None) as connection:
                c = Client(connection)
                desk.open("conv_1")
                await c.say("message", conversationId="conv_1", content="Hi")
                frame = await c.hear()
                return str((await c.hear() if frame["type"] == "accepted" else frame)["type"])

        url = f"ws://{address}/ws"
        assert await hear_first_type(url) == "message_start"
        assert await hear_first_type(f"{url}?dialect=agentx") == "conversation_start"
        assert await hear_first_type(f"{url}?dialect=agentx", "agentic-rag.chat") == "session_created"
        assert await hear_first_type(f"{url}?dialect=native") == "turn_started"


async def test_a_chat_socket_creates_a_session_once_in_each_conversation() -> None:
    desk = make_desk()
    desk.on_start = lambda turn_id: desk.answer(turn_id, "a b")
    async with serving(application(desk, desk)) as address, client(address, "chat") as c:
        type_lists = []
        for name in ("conv_1", "conv_1", "conv_2", "conv_1"):
            await c.say("message", conversationId=name, content="Hi")
            type_lists.append(await hear_types(c, "done"))
        assert [frame_types.count("session_created") for frame_types in type_lists] == [1, 0, 1, 0]
        async with client(address, "chat") as later_client:
            await later_client.say("subscribe", conversationId="conv_1", turnId="turn_1", after=0)
            assert "session_created" in await hear_types(later_client, "done")
            await later_client.say("subscribe", conversationId="conv_1", turnId="turn_2", after=0)
            assert "session_created" not in await hear_types(later_client, "done")


@pytest.mark.parametrize("dialect", ["native", *OLDER_DIALECTS])
async def test_unknown_keys_are_refused_by_name_where_the_contract_is_closed(dialect: str) -> None:
    desk = make_desk()
    desk.on_start = lambda turn_id: desk.answer(turn_id, "a b")
    async with serving(application(desk, desk)) as address, client(address, dialect) as c:
        for frame in (
            {"type": "message", "conversationId": "conv_1", "content": "Hi", "userId": "eve"},
            {"type": "subscribe", "conversationId": "conv_1", "colour": "red"},
            {"type": "ping", "x" * 5_000: 1},
        ):
            await c.connection.send(orjson.dumps(frame).decode())
            if dialect == "native":
                continue
            answer = await c.hear()
            assert (answer["type"], answer["code"]) == ("error", "VALIDATION_ERROR")
            text = answer["error" if dialect == "message" else "message"]
            assert text.split(":")[0] == list(frame)[-1][:200]
        if dialect == "native":
            assert "pong" in await hear_types(c, "pong")
            return
        assert not desk.turns, "a refused message begins no turn"
        await c.say("interrupt", conversationId="conv_1", reason="enough")
        assert (await c.ask("ping"))["type"] == "pong", "a request to stop is never refused for a key"


@pytest.mark.parametrize("dialect", OLDER_DIALECTS)
async def test_many_conversations_share_a_socket_and_a_reader_that_joins_later_gets_what_follows(dialect: str) -> None:
    desk = make_desk()
    async with serving(application(desk, desk)) as address, client(address, dialect) as c:
        for name in ("conv_1", "conv_2"):
            await c.say("message", conversationId=name, content="Hi")
        await c.say("ping")
        while (await c.hear())["type"] != "pong":
            pass
        for turn in ("turn_1", "turn_2"):
            desk.say(turn, IterationStart(1), Text("Hello wor"), Text("ld"), DONE)
        frames = [await c.hear()]
        end_type = {"message": "message_complete", "agentx": "conversation_end"}.get(dialect, "done")
        while types(frames).count(end_type) < 2:
            frames.append(await c.hear())
        first_turn_frames = [frame for frame in frames if "turn_1" in (frame.get("turnId"), frame.get("turn_id"))]
        async with client(address, dialect) as later_client:
            await later_client.say("subscribe", conversationId="conv_1", turnId="turn_1", after=3)
            later_frames = [await later_client.hear()]
            while later_frames[-1]["type"] != end_type:
                later_frames.append(await later_client.hear())
            later_frames = [frame for frame in later_frames if frame["type"] != "subscribed"]
            assert later_frames == first_turn_frames[-len(later_frames) :]
            assert len(later_frames) < len(first_turn_frames)
