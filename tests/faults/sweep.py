"""Kill the server at a named place of a turn, start it again, and check that nothing was lost, doubled or garbled.

The turn has two tools, one that only reads and one with effects that counts its runs (its result is kept as a
payload). A place is ``name:n``: the n-th time that the turn reaches it. How often each is reached a dry run tells.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random

from tests.faults.client import Chat
from tests.faults.ledger import Event, Ledger, check_messages
from tests.faults.outside import SECRET, Outside, outside
from tests.faults.server import Dead, Server

PLACES = ("commit.begin", "commit.ready", "commit.done", "send.begin", "send.end", "tool.begin", "tool.end")
"""Around every commit, every send and every tool call."""
UNKNOWN = "outcome unknown"
REFUSALS = 3
"""Writes that a full disk refuses before there is room again, at most."""


@dataclass
class Rig:
    """A running server, what stands around it, and a domain with the tools whose lists are known."""

    server: Server
    outside: Outside
    domain: str

    def conversation(self) -> str:
        return self.server.conversation(self.domain)


@contextmanager
def rig(folder: Path, **environment: str) -> Iterator[Rig]:
    """Run a server with a warm domain until the block ends; fails if the model refused any request."""
    with outside(folder) as around, Server(folder, around, **environment) as server:
        domain = server.domain(around)
        made = Rig(server, around, domain)
        with Chat(server, made.conversation(), Ledger()) as chat:
            chat.finish(chat.send("Hello warm plain", "warm")["turnId"])
        yield made
        # An answer of megabytes is longer than a model reads: the summary of it is refused for its length, and left.
        refused = [each for each in around.api.refused if not each.startswith("prompt is too long")]
        assert refused == []
        assert all(SECRET not in str(request) for request in around.api.requests)


@dataclass(frozen=True)
class Crash:
    """What came of one place: whether it was reached, and how the turn went on."""

    place: str
    died: bool
    seen: int
    spent: int
    unknown: bool
    resumed: bool


def dry_run(made: Rig) -> Counter[str]:
    """Return how often a turn that nothing kills reaches each place."""
    conversation = made.conversation()
    made.server.arm("")
    with Chat(made.server, conversation, Ledger()) as chat:
        chat.finish(chat.send(f"Hello {conversation} tools", conversation)["turnId"])
        return Counter({name: count for name, count in made.server.reached().items() if name in PLACES})


def crash_at(made: Rig, place: str, again: str = "") -> Crash:
    """Kill the server at a place of a turn and check what is left; ``again``: a place of the start after it."""
    conversation, ledger = made.conversation(), Ledger()
    made.server.arm(place)
    turn, seen = _until_death(made, conversation, ledger)
    died = not made.server.alive
    if died:
        made.server.died()
        made.server.start(again)
    else:
        made.server.arm("")
    events = _recovered(made, conversation, ledger, turn, seen)
    _next_message(made, conversation, ledger)
    spent = made.outside.spent[conversation]
    results = {event["toolName"].rpartition("__")[2]: event for event in events if event["type"] == "tool_result"}
    unknown = UNKNOWN in results["spend"]["content"]
    assert spent <= 1, f"{place}: the tool with effects ran {spent} times"
    assert (results["spend"]["status"] == "ok") == (not unknown)
    assert unknown or spent == 1, f"{place}: the tool never ran and its result says that it did"
    assert results["promptx_action"]["status"] == "ok", "what only reads is run again"
    return Crash(place, died, len(seen), spent, unknown, any(event["type"] == "resumed" for event in events))


def _until_death(made: Rig, conversation: str, ledger: Ledger) -> tuple[str | None, list[str]]:
    """Send the message and read until the turn or the server ends; return the turn, if it was told, and frames."""
    turn, seen = None, []
    try:
        with Chat(made.server, conversation, ledger) as chat:
            seen = chat.raw
            turn = _accepted(chat, conversation)
            chat.finish(turn)
            made.server.reached()  # it may die of having sent the last frame
    except Dead:
        made.server.died()
    return turn, seen


def _accepted(chat: Chat, conversation: str) -> str:
    """Send the message until it is accepted: a full disk refuses it with a code, and nothing of it is kept."""
    for _ in range(REFUSALS + 1):
        reply = chat.send(_message(conversation), conversation)
        if reply["type"] == "accepted":
            return str(reply["turnId"])
        assert reply["code"] == "STORAGE_FULL", reply
    raise AssertionError("the message is refused although there is room")


def _message(conversation: str) -> str:
    return f"Hello {conversation} tools"


def _recovered(made: Rig, conversation: str, ledger: Ledger, turn: str | None, seen: list[str]) -> list[Event]:
    """Reconnect as a client does and read to the end; compare all ways to read the turn; return its log."""
    with Chat(made.server, conversation, ledger) as chat:
        if turn is None:
            sent = chat.send(_message(conversation), conversation)
            assert sent["type"] == "accepted", sent
            turn = sent["turnId"]
        else:
            last = max(ledger.seen[turn], default=0)
            assert chat.subscribe(turn, last)["type"] == "subscribed"
        if turn not in ledger.ends:
            chat.finish(turn)
        repeated = chat.send(_message(conversation), conversation)
        assert repeated["turnId"] == turn, "a message sent again made a second turn"
    events = ledger.check_log(made.server.log(turn))
    assert events[-1]["type"] == "done", events[-1]
    check_messages(made.server.messages(conversation), [(turn, events)])
    return events


def _next_message(made: Rig, conversation: str, ledger: Ledger) -> None:
    """The conversation goes on: its transcript is taken by the model."""
    with Chat(made.server, conversation, ledger) as chat:
        sent = chat.send(f"And now? {conversation}-next plain", f"{conversation}-next")
        assert chat.finish(sent["turnId"])["type"] == "done"
    assert made.outside.api.refused == []
    assert len(made.server.messages(conversation)) == 4


def sweep(made: Rig, places: Iterable[str] = PLACES) -> Iterator[Crash]:
    """Crash at every place in turn, each name until a turn ends without having reached it so often.

    How often a commit is reached depends on how deltas fall into groups, so the count of a dry run is the least.
    """
    least = dry_run(made)
    for name in places:
        number = 0
        while True:
            number += 1
            crash = crash_at(made, f"{name}:{number}")
            if crash.died:
                yield crash
            elif number > least[name]:
                break


def stalls(made: Rig) -> list[str]:
    """Return every write of a turn at which the disk is full for some tries, with every place of a kill after it."""
    writes = dry_run(made)["commit.begin"]
    return [
        f"full={write}*{1 + (write + number) % REFUSALS},{name}:{number}"
        for write in range(1, writes + 1)
        for name in PLACES
        for number in (1, 2)
    ]


def chosen(made: Rig, count: int, seed: int) -> list[str]:
    """Return ``count`` places, every name among them, of those that a dry run reaches."""
    draw = Random(seed)
    reached = dry_run(made)
    every = [f"{name}:{number}" for name in PLACES for number in range(1, reached[name] + 1)]
    first = [f"{name}:{draw.randint(1, reached[name])}" for name in PLACES]
    return [*first, *draw.sample([place for place in every if place not in first], count - len(first))]
