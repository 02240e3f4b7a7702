"""Kills of the real server: at places of a turn, at random in a conversation, and SIGTERM under load.

Seeded subsets; all places and long runs are in ``scripts/faults``.
"""

from random import Random

import pytest

from tests.faults.client import Chat
from tests.faults.ledger import Ledger, check_messages
from tests.faults.machine import run_machine
from tests.faults.sweep import PLACES, Rig, choose_places, crash_at, dry_run, stalls


@pytest.mark.parametrize(
    ("names", "least"),
    [
        (("commit.ready", "send.begin", "tool.end"), 1),
        pytest.param(PLACES, 4, marks=pytest.mark.nightly("a kill at a place of each name")),
    ],
    ids=["some", "all"],
)
def test_a_turn_killed_at_a_commit_a_send_or_a_tool_call_loses_and_repeats_nothing(
    rig: Rig, names: tuple[str, ...], least: int
) -> None:
    crashes = [crash_at(rig, place) for place in choose_places(rig, seed=6) if place.partition(":")[0] in names]
    assert len(crashes) == len(names)
    assert sum(crash.died for crash in crashes) >= least, crashes  # the number of commits depends on groups of deltas


def test_a_full_disk_and_a_later_kill_lose_and_repeat_nothing(rig: Rig) -> None:
    for place in Random(7).sample(stalls(rig), 2):
        crash_at(rig, place)


def test_a_turn_reaches_every_kind_of_place(rig: Rig) -> None:
    assert set(dry_run(rig)) == set(PLACES)


def test_a_turn_killed_while_resuming_still_continues(rig: Rig) -> None:
    crash = crash_at(rig, "tool.end:2", next_place="commit.begin:2")
    assert crash.died
    assert crash.resumed


def test_a_randomly_used_and_interrupted_conversation_keeps_the_invariants(rig: Rig) -> None:
    run_machine(rig, examples=2, steps=10)


def test_turns_still_running_after_a_drain_resume_at_the_next_start(rig: Rig) -> None:
    conversations = [rig.conversation() for _ in range(5)]
    ledgers = [Ledger() for _ in conversations]
    chats = [
        Chat(rig.server, conversation, ledger) for conversation, ledger in zip(conversations, ledgers, strict=True)
    ]
    turns = []
    for number, chat in enumerate(chats):
        script = "slow" if number % 2 == 0 else "plain"
        turns.append(chat.send(f"Go {chat.conversation} {script}", chat.conversation)["turnId"])
        chat.until(lambda event: event["type"] == "text")
    code = rig.server.terminate()  # drains for a second; "slow" takes three
    for chat in chats:
        chat.drop()
    rig.server.start()
    assert code == 0
    resumptions = 0
    for conversation, ledger, turn in zip(conversations, ledgers, turns, strict=True):
        events = ledger.check_log(rig.server.log(turn))
        assert events[-1]["type"] == "done"
        check_messages(rig.server.messages(conversation), [(turn, events)])
        resumptions += any(event["type"] == "resumed" for event in events)
    assert resumptions >= 1
