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


def run(made: Rig, steps: Sequence[float], restart_at: float) -> None:
    """Queue a message after each step and check the order of everything. Restart with another clock."""
    made.server.set_clock(0)
    conversation = made.conversation()
    sent = [f"{conversation}-{number}" for number in range(len(steps) + 1)]
    with Chat(made.server, conversation, Ledger()) as chat:
        turns = [chat.send(f"First {sent[0]} long", sent[0])["turnId"]]
        for step, key in zip(steps, sent[1:], strict=True):
            made.server.set_clock(step)
            turns.append(chat.send(f"Next {key} plain", key, onBusy="queue")["turnId"])
        for turn in turns:
            assert chat.finish(turn)["type"] == "done"
    _check_order(made, conversation, sent, turns)
    made.server.terminate()
    made.server.set_clock(restart_at)
    made.server.start()
    _check_order(made, conversation, sent, turns)
    with Chat(made.server, conversation, Ledger()) as chat:
        key = f"{conversation}-again"
        turns.append(chat.send(f"Again {key} plain", key)["turnId"])
        assert chat.finish(turns[-1])["type"] == "done"
    _check_order(made, conversation, [*sent, key], turns)
    _check_newest_branch(made, conversation, restart_at)


def _check_order(made: Rig, conversation: str, sent: Sequence[str], turns: Sequence[str]) -> None:
    messages = made.server.messages(conversation)
    answered = [str(message["content"]).split()[1] for message in messages if message["role"] == "user"]
    assert answered == list(sent), f"messages {list(sent)} were answered as {answered}"
    assert list(turns) == sorted(turns), "the ids of the turns are not in the order in which they were sent"


def _check_newest_branch(made: Rig, conversation: str, clock: float) -> None:
    """Answer the last question twice more, the second time with a clock that is behind.

    The last one is the newest branch.
    """
    question = [entry for entry in made.server.messages(conversation) if entry["role"] == "user"][-1]
    for wrong in (clock, clock - 2, clock - 4):
        made.server.set_clock(wrong)
        with Chat(made.server, conversation, Ledger()) as chat:
            reply = chat.ask("retry", messageId=question["id"])
            assert reply["type"] == "accepted", reply
            assert chat.finish(reply["turnId"])["type"] == "done"
    newest = made.server.call("GET", f"/api/conversations/{conversation}/messages?leaf={question['id']}")["items"]
    assert newest[-1]["turnId"] == reply["turnId"], "the newest branch is another one than the last"


def random_steps(random: Random) -> tuple[list[float], float]:
    """Return steps for `run`, and the clock after the restart."""
    return [random.choice(STEPS) for _ in range(QUEUED)], random.choice(STEPS)
