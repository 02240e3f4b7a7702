"""`/ws` of the whole application: real store, run log and turns; only the model is scripted."""

from pathlib import Path
from typing import Any

import anyio
import pytest

from agentic_rag.testing.scripted import Stalled
from agentic_rag.testing.steps import say
from tests.server.rig import Rig
from tests.ws.serving import Client, client, numbers, serving, types

ANSWER = "One sentence. And another one, a little longer than the first. A third."
TERMINAL_TYPES = ("done", "error", "interrupted")


async def hear_whole_turn(c: Client, after: int = 0) -> list[dict[str, Any]]:
    """Return the events of the turn in progress, after checking that their numbers have no gap."""
    frames = await c.hear_turn()
    assert numbers(frames) == list(range(after + 1, after + 1 + len(frames)))
    return frames


async def test_a_client_dropped_at_every_event_of_a_turn_resumes_to_the_uninterrupted_stream(tmp_path: Path) -> None:
    async with Rig(tmp_path, *[say(ANSWER)] * 40) as rig, serving(rig.application.app) as address:
        domain = await rig.domain()
        length = dropped_after = 1
        while dropped_after <= length:
            conversation = await rig.conversation(domain)
            async with client(address) as c:
                accepted = await c.ask("message", conversationId=conversation, content="Hi")
                frames = [await c.hear() for _ in range(dropped_after)]
                c.connection.transport.abort()
            async with client(address) as c:
                target = {"conversationId": conversation, "turnId": accepted["turnId"]}
                await c.ask("subscribe", **target, after=dropped_after)
                if frames[-1]["type"] not in TERMINAL_TYPES:
                    frames += await hear_whole_turn(c, dropped_after)
                await c.ask("subscribe", **target, after=0)
                assert frames == await hear_whole_turn(c)
            length = len(frames)
            dropped_after += 1
        assert length > 5
        for _ in range(40 - len(rig.model.requests)):  # the script is consumed to its end
            await rig.say(await rig.conversation(domain), "Hi")


async def test_a_queued_message_follows_an_interrupted_turn_on_the_same_socket(tmp_path: Path) -> None:
    stalled_step = Stalled(say(ANSWER), after=2)
    async with Rig(tmp_path, stalled_step, say("Second.")) as rig, serving(rig.application.app) as address:
        conversation = await rig.conversation()
        async with client(address) as c:
            first_accepted = await c.ask("message", conversationId=conversation, content="one")
            with anyio.fail_after(240):
                await stalled_step.reached.wait()
            await c.say("message", conversationId=conversation, content="two", onBusy="queue")
            frames = [await c.hear()]
            while frames[-1]["type"] != "accepted":
                frames.append(await c.hear())
            second_accepted = frames.pop()
            assert second_accepted["queued"] is True
            await c.say("interrupt", conversationId=conversation, turnId=first_accepted["turnId"])
            frames += await c.hear_turn()
            assert types(frames)[-1] == "interrupted"
            assert {event["turnId"] for event in frames} == {first_accepted["turnId"]}
            later_frames = await hear_whole_turn(c)
            assert types(later_frames)[-1] == "done"
            assert {event["turnId"] for event in later_frames} == {second_accepted["turnId"]}


async def test_concurrent_and_repeated_sends_of_one_message_make_one_turn(tmp_path: Path) -> None:
    async with Rig(tmp_path, say(ANSWER)) as rig, serving(rig.application.app) as address:
        conversation = await rig.conversation()
        answers: list[dict[str, Any]] = []
        turns: list[list[dict[str, Any]]] = []

        async def send() -> None:
            async with client(address) as c:
                answers.append(
                    await c.ask("message", conversationId=conversation, content="Hi", clientMessageId="mine")
                )
                turns.append(await hear_whole_turn(c))

        async with anyio.create_task_group() as tasks:
            for _ in range(50):
                tasks.start_soon(send)
    assert all(answer == answers[0] for answer in answers)
    assert answers[0]["type"] == "accepted"
    assert all(turn == turns[0] for turn in turns)


async def test_a_replay_after_a_restart_equals_the_stream(tmp_path: Path) -> None:
    async with Rig(tmp_path, say(ANSWER)) as rig, serving(rig.application.app) as address, client(address) as c:
        conversation = await rig.conversation()
        accepted = await c.ask("message", conversationId=conversation, content="Hi", clientMessageId="mine")
        all_frames = await hear_whole_turn(c)
    async with Rig(tmp_path, say("Next.")) as rig, serving(rig.application.app) as address, client(address) as c:
        message = {"conversationId": conversation, "content": "Hi", "clientMessageId": "mine"}
        assert await c.ask("message", **message) == accepted
        assert await hear_whole_turn(c) == all_frames
        await c.ask("subscribe", conversationId=conversation, turnId=accepted["turnId"], after=3)
        assert await c.hear_turn() == all_frames[3:]
        await c.ask("message", conversationId=conversation, content="And now?")
        assert types(await hear_whole_turn(c))[-1] == "done"


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"content": "x" * 10_001}, "MESSAGE_TOO_LONG"),
        ({"content": "\n"}, "MESSAGE_CONTENT_REQUIRED"),
        ({"content": "other", "clientMessageId": "mine"}, "IDEMPOTENCY_MISMATCH"),
        ({"content": "Hi", "conversationId": "conv_unknown"}, "CONVERSATION_NOT_FOUND"),
    ],
)
async def test_a_refused_message_keeps_the_socket_and_the_subscription(
    tmp_path: Path, fields: dict[str, str], code: str
) -> None:
    async with Rig(tmp_path, say("One."), say("Two.")) as rig, serving(rig.application.app) as address:
        conversation = await rig.conversation()
        async with client(address) as c:
            await c.ask("message", conversationId=conversation, content="Hi", clientMessageId="mine")
            await hear_whole_turn(c)
            answer = await c.ask("message", **{"conversationId": conversation, **fields})
            assert (answer["type"], answer["code"]) == ("error", code)
            await c.ask("message", conversationId=conversation, content="Again")
            assert types(await hear_whole_turn(c))[-1] == "done"


async def test_a_client_ahead_of_a_finished_turn_gets_a_resync(tmp_path: Path) -> None:
    async with Rig(tmp_path, say(ANSWER)) as rig, serving(rig.application.app) as address:
        conversation = await rig.conversation()
        async with client(address) as c:
            accepted = await c.ask("message", conversationId=conversation, content="Hi")
            last_seq = (await hear_whole_turn(c))[-1]["seq"]
        target = {"conversationId": conversation, "turnId": accepted["turnId"]}
        for dialect in ("native", "agentx"):  # the second encodes a turn from its start
            async with client(address, dialect) as c:
                assert (await c.ask("subscribe", **target, after=last_seq + 1))["type"] == "subscribed"
                resync = await c.hear()
                assert (resync["type"], resync["turnId"]) == ("resync", accepted["turnId"])
                assert f"before event {last_seq + 1}" in resync["reason"]
                assert await c.ask("ping") == {"type": "pong"}
        turn = f"/api/turns/{accepted['turnId']}"
        query = f"after={last_seq + 1}"
        for path in (f"events?{query}", f"events?{query}&dialect=agentx", f"stream?offset={last_seq + 1:016d}"):
            answer = await rig.http.get(f"{turn}/{path}")
            assert (answer.status_code, answer.json()["error"]["code"]) == (410, "LOG_GONE"), path
        assert (await rig.http.get(f"{turn}/events?after={last_seq}")).status_code == 200
