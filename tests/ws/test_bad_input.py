"""Malformed frames are answered with a coded error, and the socket stays open."""

from contextlib import suppress

import orjson
import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.typing import Subprotocol

from agentic_rag.base.errors import InvalidInput
from agentic_rag.base.events import Text
from agentic_rag.server.dialects import choose_dialect
from agentic_rag.server.ws import socket as ws
from tests.ws.memory import Desk
from tests.ws.serving import application, client, serving, types

DEEP_JSON = "[" * 5000 + "]" * 5000


def make_desk() -> Desk:
    desk = Desk()
    desk.open("conv_1")
    desk.open("conv_x", owner="somebody else")
    return desk


@pytest.mark.parametrize(
    ("frame", "message"),
    [
        ("", "not JSON"),
        ("nonsense", "not JSON"),
        ('{"type":"ping"', "not JSON"),
        ('{"type":"ping","x":NaN}', "not JSON"),
        ('{"type":"ping","x":"\\ud800"}', "not JSON"),
        ('{"type":"ping","x":' + DEEP_JSON + "}", "not JSON"),
        (b'{"type":"ping"}', "binary"),
        ("[]", "JSON object"),
        ("null", "JSON object"),
        ("{}", "type: "),
        ('{"type":7}', "type: "),
        ('{"type":"' + "x" * 1000 + '"}', "Known: message, retry"),
        ('{"type":"message"}', "conversationId: "),
        ('{"type":"message","conversationId":"conv_1"}', "content: "),
        ('{"type":"message","conversationId":"conv_1","content":7}', "content: "),
        ('{"type":"message","conversationId":"","content":"Hi"}', "conversationId: "),
        ('{"type":"message","conversationId":"conv_1","content":"Hi","onBusy":"wait"}', "onBusy: "),
        ('{"type":"message","conversationId":"conv_1","content":"Hi","clientMessageId":""}', "clientMessageId: "),
        ('{"type":"subscribe"}', "conversationId: "),
        ('{"type":"subscribe","conversationId":"conv_1","after":3}', "after: "),
        ('{"type":"subscribe","conversationId":"conv_1","turnId":"t","after":"3"}', "after: "),
        ('{"type":"subscribe","conversationId":"conv_1","turnId":"t","after":true}', "after: "),
        ('{"type":"subscribe","conversationId":"conv_1","turnId":"t","after":-1}', "after: "),
        ('{"type":"subscribe","conversationId":"conv_1","turnId":"t","after":1e300}', "after: "),
        ('{"type":"unsubscribe"}', "conversationId: "),
        ('{"type":"interrupt","conversationId":["conv_1"]}', "conversationId: "),
        ('{"type":"interrupt","conversationId":"conv_1","queued":1}', "queued: "),
    ],
    ids=lambda value: str(value)[:60] or "empty",
)
async def test_an_invalid_frame_is_refused_with_a_message_and_the_socket_stays_open(
    frame: str | bytes, message: str
) -> None:
    desk = make_desk()
    async with serving(application(desk, desk)) as address, client(address) as c:
        await c.connection.send(frame)
        answer = await c.hear()
        assert (answer["type"], answer["code"]) == ("error", "VALIDATION_ERROR")
        assert message in answer["message"]
        assert "turnId" not in answer
        assert await c.ask("ping") == {"type": "pong"}
        assert desk.turns == {}


@pytest.mark.parametrize(
    ("kind", "fields", "code"),
    [
        ("message", {"conversationId": "conv_9", "content": "Hi"}, "CONVERSATION_NOT_FOUND"),
        ("message", {"conversationId": "conv_x", "content": "Hi"}, "CONVERSATION_NOT_FOUND"),
        ("message", {"conversationId": "conv_1", "content": " "}, "MESSAGE_CONTENT_REQUIRED"),
        ("subscribe", {"conversationId": "conv_9"}, "CONVERSATION_NOT_FOUND"),
        ("subscribe", {"conversationId": "conv_x"}, "CONVERSATION_NOT_FOUND"),
        ("subscribe", {"conversationId": "conv_1", "turnId": "turn_9"}, "TURN_NOT_FOUND"),
        ("interrupt", {"conversationId": "conv_x"}, "CONVERSATION_NOT_FOUND"),
    ],
)
async def test_refusals_have_their_code_and_the_ids_of_their_frame(
    kind: str, fields: dict[str, str], code: str
) -> None:
    desk = make_desk()
    async with serving(application(desk, desk)) as address, client(address) as c:
        answer = await c.ask(kind, **fields, clientMessageId="mine", requestId="r1")
        assert (answer["type"], answer["code"]) == ("error", code)
        assert answer["conversationId"] == fields["conversationId"]
        assert (answer["clientMessageId"], answer["requestId"]) == ("mine", "r1")
        assert "turnId" not in answer
        assert await c.ask("ping") == {"type": "pong"}


async def test_a_turn_of_another_conversation_is_unknown_here() -> None:
    desk = make_desk()
    desk.open("conv_2")
    async with serving(application(desk, desk)) as address, client(address) as c:
        await c.ask("message", conversationId="conv_2", content="Hi")
        await c.hear()
        answer = await c.ask("subscribe", conversationId="conv_1", turnId="turn_1")
        assert answer["code"] == "TURN_NOT_FOUND"


async def test_a_second_message_during_a_turn_is_refused_and_the_turn_continues() -> None:
    desk = make_desk()
    async with serving(application(desk, desk)) as address, client(address) as c:
        await c.ask("message", conversationId="conv_1", content="Hi")
        await c.hear()
        answer = await c.ask("message", conversationId="conv_1", content="Again", clientMessageId="m2")
        assert (answer["code"], answer["details"]) == ("TURN_IN_PROGRESS", {"turnId": "turn_1"})
        assert "turnId" not in answer
        desk.answer("turn_1", "a")
        assert types(await c.hear_turn()) == ["text", "done"]


async def test_a_refused_subscribe_leaves_the_earlier_one_in_place() -> None:
    desk = make_desk()
    async with serving(application(desk, desk)) as address, client(address) as c:
        await c.ask("message", conversationId="conv_1", content="Hi")
        await c.hear()
        assert (await c.ask("subscribe", conversationId="conv_1", turnId="turn_9"))["type"] == "error"
        desk.answer("turn_1", "a")
        assert types(await c.hear_turn()) == ["text", "done"]


async def test_a_socket_follows_a_bounded_number_of_conversations() -> None:
    desk = make_desk()
    names = [f"many_{n}" for n in range(ws.MAX_SUBSCRIPTIONS + 1)]
    for name in names:
        desk.open(name)
    async with serving(application(desk, desk)) as address, client(address) as c:
        for name in names[:-1]:
            assert (await c.ask("subscribe", conversationId=name))["type"] == "subscribed"
        for kind in ("subscribe", "message"):
            answer = await c.ask(kind, conversationId=names[-1], content="Hi")
            assert (answer["type"], answer["code"]) == ("error", "RATE_LIMITED")
        assert desk.turns == {}
        assert (await c.ask("subscribe", conversationId=names[0]))["type"] == "subscribed"
        await c.say("unsubscribe", conversationId=names[0])
        assert (await c.ask("subscribe", conversationId=names[-1]))["type"] == "subscribed"


async def test_an_internal_error_is_answered_with_a_reference_and_no_detail(caplog: pytest.LogCaptureFixture) -> None:
    desk = make_desk()
    desk.broken = True
    async with serving(application(desk, desk)) as address, client(address) as c:
        answer = await c.ask("subscribe", conversationId="conv_1")
        assert answer["code"] == "INTERNAL_ERROR"
        assert "a bug" not in answer["message"]
        desk.broken = False
        assert await c.ask("ping") == {"type": "pong"}
    record_with_error = next(record for record in caplog.records if record.exc_info)
    assert record_with_error.getMessage().split()[1] in answer["message"]


async def test_an_oversize_frame_closes_the_socket_with_1009() -> None:
    desk = make_desk()
    async with serving(application(desk, desk)) as address, client(address) as c, client(address) as other:
        await c.ask("message", conversationId="conv_1", content="Hi")
        await c.hear()
        with suppress(ConnectionClosed):
            await c.say("message", conversationId="conv_1", content="x" * (4 * 1024 * 1024))
        desk.say("turn_1", *[Text("sent while the socket closes")] * 10)
        assert await c.close_code() == 1009
        assert await other.ask("ping") == {"type": "pong"}


async def test_a_frame_just_below_the_limit_is_read() -> None:
    desk = make_desk()
    async with serving(application(desk, desk)) as address, client(address) as c:
        assert (await c.ask("ping", padding="x" * (1024 * 1024 - 100)))["type"] == "pong"


async def test_text_that_is_not_utf_8_closes_that_socket_only(caplog: pytest.LogCaptureFixture) -> None:
    desk = make_desk()
    async with serving(application(desk, desk)) as address, client(address) as c, client(address) as other:
        await c.connection.send(b'{"type":"\xff"}', text=True)
        assert await c.close_code() == 1007
        assert await other.ask("ping") == {"type": "pong"}
    assert [record.getMessage() for record in caplog.records if record.exc_info] == []
    assert any(record.getMessage().startswith("BAD_REQUEST: ") for record in caplog.records)


async def test_an_unknown_dialect_is_refused_at_the_handshake_with_a_reason(caplog: pytest.LogCaptureFixture) -> None:
    desk = make_desk()
    async with serving(application(desk, desk)) as address:
        with pytest.raises(InvalidStatus) as refusal:
            await connect(f"ws://{address}/ws", subprotocols=[Subprotocol("agentic-rag.klingon")], proxy=None)
    answer = refusal.value.response
    assert answer.status_code == 422
    error = orjson.loads(answer.body or b"")["error"]
    assert error["code"] == "VALIDATION_ERROR"
    assert "klingon" in error["message"]
    assert "native" in error["message"]
    assert [record.getMessage() for record in caplog.records if record.levelname == "ERROR"] == []


async def test_a_foreign_page_is_refused_at_the_handshake() -> None:
    desk = make_desk()
    async with serving(application(desk, desk)) as address:
        with pytest.raises(InvalidStatus) as refusal:
            await connect(f"ws://{address}/ws", additional_headers={"Origin": "http://evil.example"}, proxy=None)
    assert refusal.value.response.status_code == 403


def test_the_first_offered_dialect_that_is_known_is_chosen_and_others_are_ignored() -> None:
    assert choose_dialect([]) == ("native", None)
    assert choose_dialect(["ticket.abc"]) == ("native", None)
    assert choose_dialect(["ticket.abc", "agentic-rag.new", "agentic-rag.native"]) == ("native", "agentic-rag.native")
    with pytest.raises(InvalidInput):
        choose_dialect(["agentic-rag."])
