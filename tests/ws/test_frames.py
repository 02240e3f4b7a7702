"""Every frame that a client may send, and its answer."""

import pytest

from tests.ws.memory import Desk
from tests.ws.serving import application, client, numbers, serving, types


def make_desk() -> Desk:
    desk = Desk()
    desk.open("conv_1")
    desk.open("conv_2")
    desk.open("conv_x", owner="somebody else")
    return desk


async def test_a_message_is_accepted_before_its_events_and_followed_to_its_end() -> None:
    desk = make_desk()
    desk.on_start = lambda turn_id: desk.answer(turn_id, "Hello", " there")
    async with serving(application(desk, desk)) as address, client(address) as c:
        accepted = await c.ask("message", conversationId="conv_1", content="Hi", clientMessageId="mine", requestId="r1")
        events = await c.hear_turn()
    assert accepted == {
        "type": "accepted",
        "conversationId": "conv_1",
        "turnId": "turn_1",
        "clientMessageId": "mine",
        "userMessageId": "msg_u",
        "messageId": "msg_a",
        "requestId": "r1",
    }
    assert types(events) == ["turn_started", "text", "text", "done"]
    assert numbers(events) == [1, 2, 3, 4]
    assert all(event["conversationId"] == "conv_1" and event["turnId"] == "turn_1" for event in events)


async def test_snake_case_frames_are_accepted() -> None:
    desk = make_desk()
    desk.on_start = lambda turn_id: desk.answer(turn_id)
    async with serving(application(desk, desk)) as address, client(address) as c:
        accepted = await c.ask(
            "message", conversation_id="conv_1", content="Hi", client_message_id="m", on_busy="queue"
        )
        await c.hear_turn()
        subscribed = await c.ask("subscribe", conversation_id="conv_1", turn_id="turn_1", after=1)
    assert (accepted["type"], accepted["clientMessageId"]) == ("accepted", "m")
    assert (subscribed["type"], subscribed["turnId"], subscribed["seq"]) == ("subscribed", "turn_1", 1)


async def test_accepted_comes_first_although_the_socket_already_follows_the_conversation() -> None:
    desk = make_desk()
    desk.on_start = lambda turn_id: desk.answer(turn_id, "fast")
    async with serving(application(desk, desk)) as address, client(address) as c:
        assert types([await c.ask("subscribe", conversationId="conv_1")]) == ["subscribed"]
        for _ in range(5):
            assert types([await c.ask("message", conversationId="conv_1", content="Hi")]) == ["accepted"]
            assert numbers(await c.hear_turn()) == [1, 2, 3]


async def test_subscribing_without_a_turn_starts_at_event_1_of_the_running_one() -> None:
    desk = make_desk()
    async with serving(application(desk, desk)) as address, client(address) as c, client(address) as other:
        await other.ask("message", conversationId="conv_1", content="Hi")
        subscribed = await c.ask("subscribe", conversationId="conv_1")
        desk.answer("turn_1", "a")
        assert subscribed == {"type": "subscribed", "conversationId": "conv_1", "turnId": "turn_1", "seq": 0}
        assert numbers(await c.hear_turn()) == [1, 2, 3]


async def test_subscribing_to_an_idle_conversation_follows_its_next_turns() -> None:
    desk = make_desk()
    async with serving(application(desk, desk)) as address, client(address) as c, client(address) as other:
        subscribed = await c.ask("subscribe", conversationId="conv_1")
        assert subscribed == {"type": "subscribed", "conversationId": "conv_1", "seq": 0}
        for turn_id in ("turn_1", "turn_2"):
            await other.ask("message", conversationId="conv_1", content="Hi")
            desk.answer(turn_id, "a")
            frames = await c.hear_turn()
            assert [(frame["turnId"], frame["seq"]) for frame in frames] == [(turn_id, n) for n in (1, 2, 3)]
            await other.hear_turn()


async def test_subscribing_to_a_finished_turn_replays_it_and_follows_the_next() -> None:
    desk = make_desk()
    desk.on_start = lambda turn_id: desk.answer(turn_id, "a", "b")
    async with serving(application(desk, desk)) as address, client(address) as c, client(address) as other:
        for _ in range(2):
            await other.ask("message", conversationId="conv_1", content="Hi")
            await other.hear_turn()
        await c.ask("subscribe", conversationId="conv_1", turnId="turn_1", after=2)
        assert [(f["turnId"], f["seq"]) for f in await c.hear_turn()] == [("turn_1", 3), ("turn_1", 4)]
        assert [(f["turnId"], f["seq"]) for f in await c.hear_turn()] == [("turn_2", n) for n in (1, 2, 3, 4)]


async def test_a_second_subscribe_replaces_the_first() -> None:
    desk = make_desk()
    async with serving(application(desk, desk)) as address, client(address) as c:
        await c.ask("message", conversationId="conv_1", content="Hi")
        await c.hear()
        await c.say("subscribe", conversationId="conv_1", turnId="turn_1", after=1)
        await c.say("subscribe", conversationId="conv_1", turnId="turn_1", after=0)
        await c.say("ping")
        confirmations = [await c.hear() for _ in range(2)]
        assert types(confirmations) == ["subscribed", "subscribed"]
        desk.answer("turn_1", "a")
        later_frames = [await c.hear() for _ in range(4)]
        assert sorted(types(later_frames)) == ["done", "pong", "text", "turn_started"]
        assert [frame["seq"] for frame in later_frames if "seq" in frame] == [1, 2, 3]


async def test_unsubscribing_stops_the_events_of_that_conversation_only() -> None:
    desk = make_desk()
    async with serving(application(desk, desk)) as address, client(address) as c:
        for conversation_id in ("conv_1", "conv_2"):
            await c.ask("message", conversationId=conversation_id, content="Hi")
            await c.hear()
        await c.say("unsubscribe", conversationId="conv_1")
        await c.say("unsubscribe", conversationId="never followed")
        assert await c.ask("ping", requestId="p") == {"type": "pong", "requestId": "p"}
        desk.answer("turn_1", "unheard")
        desk.answer("turn_2", "heard")
        assert [frame["conversationId"] for frame in await c.hear_turn()] == ["conv_2", "conv_2"]


async def test_an_interrupt_ends_the_running_turn_and_an_ended_turn_id_is_a_no_op() -> None:
    desk = make_desk()
    async with serving(application(desk, desk)) as address, client(address) as c:
        await c.ask("message", conversationId="conv_1", content="Hi")
        await c.say("interrupt", conversationId="conv_1", turnId="turn_1")
        assert types(await c.hear_turn()) == ["turn_started", "interrupted"]
        await c.ask("message", conversationId="conv_1", content="Again")
        await c.hear()
        await c.say("interrupt", conversationId="conv_1", turnId="turn_1")
        assert types([await c.ask("ping")]) == ["pong"]
        desk.answer("turn_2", "still here")
        assert types(await c.hear_turn()) == ["text", "done"]


async def test_a_queued_message_is_followed_after_the_turn_before_it() -> None:
    desk = make_desk()
    async with serving(application(desk, desk)) as address, client(address) as c:
        await c.ask("message", conversationId="conv_1", content="one")
        await c.hear()
        accepted = await c.ask("message", conversationId="conv_1", content="two", onBusy="queue")
        assert (accepted["turnId"], accepted["queued"]) == ("turn_2", True)
        desk.answer("turn_1", "a")
        desk.answer("turn_2", "b")
        assert [(f["turnId"], f["seq"]) for f in await c.hear_turn()] == [("turn_1", 2), ("turn_1", 3)]
        assert [(f["turnId"], f["seq"]) for f in await c.hear_turn()] == [("turn_2", n) for n in (1, 2, 3)]


async def test_a_repeated_client_message_id_is_accepted_again_and_its_turn_replayed() -> None:
    desk = make_desk()
    desk.on_start = lambda turn_id: desk.answer(turn_id, "a")
    async with serving(application(desk, desk)) as address, client(address) as c:
        message = {"conversationId": "conv_1", "content": "Hi", "clientMessageId": "mine"}
        accepted = await c.ask("message", **message)
        events = await c.hear_turn()
        assert await c.ask("message", **message) == accepted
        assert await c.hear_turn() == events


async def test_a_repeated_send_of_a_waiting_message_does_not_disturb_the_turn_before_it() -> None:
    desk = make_desk()
    async with serving(application(desk, desk)) as address, client(address) as c:
        await c.ask("message", conversationId="conv_1", content="one")
        await c.hear()
        message = {"conversationId": "conv_1", "content": "two", "clientMessageId": "m2", "onBusy": "queue"}
        await c.ask("message", **message)
        assert (await c.ask("message", **message))["turnId"] == "turn_2"
        desk.answer("turn_1")
        desk.answer("turn_2")
        assert types(await c.hear_turn()) == ["done"]
        assert types(await c.hear_turn()) == ["turn_started", "done"]


async def test_a_deleted_log_asks_the_client_to_reload_and_the_socket_continues() -> None:
    desk = make_desk()
    desk.on_start = lambda turn_id: desk.answer(turn_id, "a")
    async with serving(application(desk, desk)) as address, client(address) as c, client(address) as other:
        await other.ask("message", conversationId="conv_1", content="Hi")
        await other.hear_turn()
        desk.prune("turn_1")
        await c.ask("subscribe", conversationId="conv_1", turnId="turn_1", after=1)
        resync = await c.hear()
        assert (resync["type"], resync["turnId"]) == ("resync", "turn_1")
        assert resync["reason"]
        await other.ask("message", conversationId="conv_1", content="Hi")
        assert numbers(await c.hear_turn()) == [1, 2, 3]


async def test_one_socket_serves_many_conversations_at_once() -> None:
    desk = make_desk()
    names = [f"conv_{n}" for n in range(10, 40)]
    for name in names:
        desk.open(name)
    async with serving(application(desk, desk)) as address, client(address) as c:
        turn_ids: dict[str, str] = {}
        for name in names:
            await c.say("message", conversationId=name, content="Hi")
        seqs_by_conversation: dict[str, list[int]] = {name: [] for name in names}
        while len(turn_ids) < len(names):
            frame = await c.hear()
            if frame["type"] == "accepted":
                turn_ids[frame["conversationId"]] = frame["turnId"]
            else:
                seqs_by_conversation[frame["conversationId"]].append(frame["seq"])
        for turn_id in turn_ids.values():
            desk.answer(turn_id, "a", "b")
        while any(len(seqs) < 4 for seqs in seqs_by_conversation.values()):
            frame = await c.hear()
            seqs_by_conversation[frame["conversationId"]].append(frame["seq"])
    assert all(seqs == [1, 2, 3, 4] for seqs in seqs_by_conversation.values())


@pytest.mark.parametrize("dialect", ["native", None])
async def test_native_is_the_default_dialect(dialect: str | None) -> None:
    desk = make_desk()
    async with serving(application(desk, desk)) as address, client(address, dialect) as c:
        assert c.connection.subprotocol == (f"agentic-rag.{dialect}" if dialect else None)
        assert await c.ask("ping") == {"type": "pong"}
