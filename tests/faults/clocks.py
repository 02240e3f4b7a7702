"""A conversation while the clock steps and the server restarts. All ordered lists must keep their order.

Messages are queued behind a slow answer, and the clock is set before each of them. At the end the server restarts with
a clock that is behind. Every list is compared with the order of sending.
"""

from collections.abc import Sequence
from random import Random

from tests.faults.client import Chat
from tests.faults.ledger import Ledger
from tests.faults.sweep import Rig

STEPS = (-3600.0, -61.0, -2.0, -0.5, 0.0, 2.0, 61.0, 3600.0)
"""Errors of the clock in seconds after a step."""

QUEUED = 4
"""Messages that are queued behind the first one."""


def run(rig: Rig, steps: Sequence[float], restart_at: float) -> None:
    """Queue a message after each step and check the order of everything. Restart with another clock."""
    rig.server.set_clock(0)
    conversation = rig.conversation()
    message_ids = [f"{conversation}-{number}" for number in range(len(steps) + 1)]
    with Chat(rig.server, conversation, Ledger()) as chat:
        turns = [chat.send(f"First {message_ids[0]} long", message_ids[0])["turnId"]]
        for step, key in zip(steps, message_ids[1:], strict=True):
            rig.server.set_clock(step)
            turns.append(chat.send(f"Next {key} plain", key, onBusy="queue")["turnId"])
        for turn in turns:
            assert chat.finish(turn)["type"] == "done"
    _check_order(rig, conversation, message_ids, turns)
    rig.server.terminate()
    rig.server.set_clock(restart_at)
    rig.server.start()
    _check_order(rig, conversation, message_ids, turns)
    with Chat(rig.server, conversation, Ledger()) as chat:
        key = f"{conversation}-again"
        turns.append(chat.send(f"Again {key} plain", key)["turnId"])
        assert chat.finish(turns[-1])["type"] == "done"
    _check_order(rig, conversation, [*message_ids, key], turns)
    _check_newest_branch(rig, conversation, restart_at)


def _check_order(rig: Rig, conversation: str, message_ids: Sequence[str], turns: Sequence[str]) -> None:
    messages = rig.server.messages(conversation)
    answered_ids = [str(message["content"]).split()[1] for message in messages if message["role"] == "user"]
    assert answered_ids == list(message_ids), f"messages {list(message_ids)} were answered as {answered_ids}"
    assert list(turns) == sorted(turns), "the ids of the turns are not in the order in which they were sent"


def _check_newest_branch(rig: Rig, conversation: str, clock: float) -> None:
    """Answer the last question twice more, the second time with a clock that is behind.

    The last one is the newest branch.
    """
    question = [entry for entry in rig.server.messages(conversation) if entry["role"] == "user"][-1]
    for offset in (clock, clock - 2, clock - 4):
        rig.server.set_clock(offset)
        with Chat(rig.server, conversation, Ledger()) as chat:
            reply = chat.ask("retry", messageId=question["id"])
            assert reply["type"] == "accepted", reply
            assert chat.finish(reply["turnId"])["type"] == "done"
    newest = rig.server.call("GET", f"/api/conversations/{conversation}/messages?leaf={question['id']}")["items"]
    assert newest[-1]["turnId"] == reply["turnId"], "the newest branch is another one than the last"


def random_steps(random: Random) -> tuple[list[float], float]:
    """Return steps for `run`, and the clock after the restart."""
    return [random.choice(STEPS) for _ in range(QUEUED)], random.choice(STEPS)
