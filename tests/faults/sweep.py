"""Kill the server at a named place of a turn, restart it, and check that nothing is lost, duplicated or garbled.

The turn calls two tools: one is read-only, the other has effects and counts its runs (its result is stored as a
payload). A place is ``name:n``, the n-th time that the turn reaches it. A dry run counts how often each is reached.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random

from tests.faults.client import Chat
from tests.faults.ledger import Event, Ledger, check_messages
from tests.faults.outside import SECRET, Outside, make_outside
from tests.faults.server import Dead, Server

PLACES = ("commit.begin", "commit.ready", "commit.done", "send.begin", "send.end", "tool.begin", "tool.end")
"""Before and after every commit, every send and every tool call."""
UNKNOWN = "outcome unknown"
REFUSALS = 3
"""Maximum number of writes that a full disk refuses before space is available again."""


@dataclass
class Rig:
    """A running server, its surroundings, and a domain with tools whose lists are known."""

    server: Server
    outside: Outside
    domain: str

    def conversation(self) -> str:
        return self.server.conversation(self.domain)


@contextmanager
def make_rig(folder: Path, **environment: str) -> Iterator[Rig]:
    """Run a server with a warmed-up domain until the block ends. Fails if the model refused a request."""
    with make_outside(folder) as outside, Server(folder, outside, **environment) as server:
        domain = server.domain(outside)
        new_rig = Rig(server, outside, domain)
        with Chat(server, new_rig.conversation(), Ledger()) as chat:
            chat.finish(chat.send("Hello warm plain", "warm")["turnId"])
        yield new_rig
        # An answer of megabytes exceeds the model's input limit, so its summary is refused and skipped.
        refusals = [text for text in outside.api.refused if not text.startswith("prompt is too long")]
        assert refusals == []
        assert all(SECRET not in str(request) for request in outside.api.requests)


@dataclass(frozen=True)
class Crash:
    """The result at one place: whether it was reached, and how the turn continued."""

    place: str
    died: bool
    seen: int
    spent: int
    unknown: bool
    resumed: bool


def dry_run(rig: Rig) -> Counter[str]:
    """Return how often a turn reaches each place without a kill."""
    conversation = rig.conversation()
    rig.server.arm("")
    with Chat(rig.server, conversation, Ledger()) as chat:
        chat.finish(chat.send(f"Hello {conversation} tools", conversation)["turnId"])
        return Counter({name: count for name, count in rig.server.read_place_counts().items() if name in PLACES})


def crash_at(rig: Rig, place: str, next_place: str = "") -> Crash:
    """Kill the server at a place of a turn and check the remains. ``again`` is a place in the start after it."""
    conversation, ledger = rig.conversation(), Ledger()
    rig.server.arm(place)
    turn, frames = _until_death(rig, conversation, ledger)
    has_died = not rig.server.alive
    if has_died:
        rig.server.wait_until_dead()
        rig.server.start(next_place)
    else:
        rig.server.arm("")
    events = _read_after_crash(rig, conversation, ledger, turn, frames)
    _next_message(rig, conversation, ledger)
    runs = rig.outside.spent[conversation]
    results = {event["toolName"].rpartition("__")[2]: event for event in events if event["type"] == "tool_result"}
    is_unknown = UNKNOWN in results["spend"]["content"]
    assert runs <= 1, f"{place}: the tool with effects ran {runs} times"
    assert (results["spend"]["status"] == "ok") == (not is_unknown)
    assert is_unknown or runs == 1, f"{place}: the tool never ran and its result says that it did"
    assert results["promptx_action"]["status"] == "ok", "what only reads is run again"
    return Crash(place, has_died, len(frames), runs, is_unknown, any(event["type"] == "resumed" for event in events))


def _until_death(rig: Rig, conversation: str, ledger: Ledger) -> tuple[str | None, list[str]]:
    """Send the message and read until the turn or the server ends. Return the turn, if known, and the frames."""
    turn, frames = None, []
    try:
        with Chat(rig.server, conversation, ledger) as chat:
            frames = chat.raw
            turn = _send_until_accepted(chat, conversation)
            chat.finish(turn)
            rig.server.read_place_counts()  # the armed place may be the end of the last send
    except Dead:
        rig.server.wait_until_dead()
    return turn, frames


def _send_until_accepted(chat: Chat, conversation: str) -> str:
    """Send the message until it is accepted. A full disk refuses it with a code, and nothing is stored."""
    for _ in range(REFUSALS + 1):
        reply = chat.send(_message_text(conversation), conversation)
        if reply["type"] == "accepted":
            return str(reply["turnId"])
        assert reply["code"] == "STORAGE_FULL", reply
    raise AssertionError("the message is refused although there is room")


def _message_text(conversation: str) -> str:
    return f"Hello {conversation} tools"


def _read_after_crash(rig: Rig, conversation: str, ledger: Ledger, turn: str | None, frames: list[str]) -> list[Event]:
    """Reconnect and read to the end as a client does. Compare all ways to read the turn, and return its log."""
    with Chat(rig.server, conversation, ledger) as chat:
        if turn is None:
            accepted = chat.send(_message_text(conversation), conversation)
            assert accepted["type"] == "accepted", accepted
            turn = accepted["turnId"]
        else:
            last = max(ledger.seen[turn], default=0)
            assert chat.subscribe(turn, last)["type"] == "subscribed"
        if turn not in ledger.ends:
            chat.finish(turn)
        second_reply = chat.send(_message_text(conversation), conversation)
        assert second_reply["turnId"] == turn, "a message sent again made a second turn"
    events = ledger.check_log(rig.server.log(turn))
    assert events[-1]["type"] == "done", events[-1]
    check_messages(rig.server.messages(conversation), [(turn, events)])
    return events


def _next_message(rig: Rig, conversation: str, ledger: Ledger) -> None:
    """Send another message in the conversation. The model must accept its transcript."""
    with Chat(rig.server, conversation, ledger) as chat:
        accepted = chat.send(f"And now? {conversation}-next plain", f"{conversation}-next")
        assert chat.finish(accepted["turnId"])["type"] == "done"
    assert rig.outside.api.refused == []
    assert len(rig.server.messages(conversation)) == 4


def sweep(rig: Rig, places: Iterable[str] = PLACES) -> Iterator[Crash]:
    """Crash at every place in turn: for each name, until a turn ends without reaching it that often.

    The number of commits depends on how deltas are grouped, so the count of a dry run is a minimum.
    """
    least = dry_run(rig)
    for name in places:
        number = 0
        while True:
            number += 1
            crash = crash_at(rig, f"{name}:{number}")
            if crash.died:
                yield crash
            elif number > least[name]:
                break


def stalls(rig: Rig) -> list[str]:
    """Return every write of a turn at which the disk is full for some attempts, with every place of a kill after it."""
    writes = dry_run(rig)["commit.begin"]
    return [
        f"full={write}*{1 + (write + number) % REFUSALS},{name}:{number}"
        for write in range(1, writes + 1)
        for name in PLACES
        for number in (1, 2)
    ]


def choose_places(rig: Rig, seed: int) -> list[str]:
    """Return one place for every name, out of those that a dry run reaches."""
    draw = Random(seed)
    counts = dry_run(rig)
    return [f"{name}:{draw.randint(1, counts[name])}" for name in PLACES]
