"""Rules for the numbers of events, checked across sockets, processes and kills.

Pure: frames in, `AssertionError` for the first one that breaks a rule. A `Ledger` has all events that any client has
seen. A `Reader` has those of one subscription.
"""

import json
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

TERMINAL = ("done", "error", "interrupted")
DELTAS = ("text", "thinking", "tool_call_started", "tool_arguments")
"""Types of events that may be delivered before they are journalled."""

Event = dict[str, Any]


def is_event(frame: Event) -> bool:
    """Whether a frame is an event of a turn, not a reply to the client."""
    return "turnId" in frame and "seq" in frame and frame["type"] not in ("accepted", "subscribed", "resync")


def event_of(raw: str) -> Event:
    """Return the event of a frame or an SSE ``data`` line."""
    event: Event = json.loads(raw)
    assert is_event(event), event
    return event


class Ledger:
    """All seen events as they were sent, by turn and number."""

    def __init__(self) -> None:
        self.seen: dict[str, dict[int, str]] = defaultdict(dict)
        self.ends: dict[str, int] = {}

    def record(self, raw: str) -> Event:
        """Record one event. A number has one event, a turn ends once, and nothing follows its end."""
        event = event_of(raw)
        turn, number = event["turnId"], event["seq"]
        first_raw = self.seen[turn].setdefault(number, raw)
        assert first_raw == raw, f"number {number} of {turn} means two events:\n{first_raw}\n{raw}"
        if event["type"] in TERMINAL:
            assert self.ends.setdefault(turn, number) == number, f"{turn} ends at {self.ends[turn]} and at {number}"
        end = self.ends.get(turn)
        assert end is None or max(self.seen[turn]) <= end, f"something follows the end of {turn}"
        return event

    def check_log(self, log: Sequence[str]) -> list[Event]:
        """Compare a whole log, read after the turn's end, with the seen events, and return its events.

        Seen events missing in the log must be void deltas, because only deltas are delivered before they are durable.
        """
        reader = Reader(self)
        events = [reader.take(raw) for raw in log]
        assert events, "the log is empty"
        assert events[-1]["type"] in TERMINAL, events[-1]
        assert sum(event["type"] in TERMINAL for event in events) == 1
        logged = {event["seq"] for event in events}
        voids = voids_of(events)
        delivered = self.seen[events[0]["turnId"]]
        lost = [number for number in delivered if number not in logged and not is_void(number, voids)]
        void = [number for number in sorted(delivered) if is_void(number, voids)]
        hasty = [delivered[number] for number in void if event_of(delivered[number])["type"] not in DELTAS]
        contradictory = [number for number in sorted(logged) if is_void(number, voids)]
        assert not hasty, f"delivered and not durable: {hasty}"
        assert not lost, f"events {lost} were seen and are not in the log"
        assert not contradictory, f"{contradictory} are void and in the log"
        return events


class Reader:
    """The order of events in one subscription."""

    def __init__(self, ledger: Ledger, turn: str | None = None, after: int = 0) -> None:
        self._ledger = ledger
        self.turn = turn
        self.last = after
        self.ended: list[str] = [turn] if turn is not None and ledger.ends.get(turn) == after else []
        """Turns whose end was seen, in order."""
        self.again: str | None = None
        """A turn whose message was sent again. It may restart from event 1 at any moment."""

    def take(self, raw: str) -> Event:
        """Record the next event. Gaps must be named by a ``resumed`` event."""
        event = self._ledger.record(raw)
        if event["turnId"] == self.again and event["seq"] == 1:
            self.turn, self.last, self.again = self.again, 0, None
            self.ended = [turn for turn in self.ended if turn != self.turn]
        if event["turnId"] != self.turn:
            assert self.turn is None or self.turn in self.ended, (
                f"{event['turnId']} came into the middle of {self.turn}"
            )
            assert event["turnId"] not in self.ended, f"{event['turnId']} came twice"
            self.turn, self.last = event["turnId"], 0
        number = event["seq"]
        assert number > self.last, f"{self.turn}: {number} came after {self.last}"
        missing_numbers = range(self.last + 1, number)
        if missing_numbers:
            voids = voids_of([event])
            declared_void = is_void(missing_numbers[0], voids) and is_void(missing_numbers[-1], voids)
            assert declared_void, f"{self.turn}: {missing_numbers} is missing and not void: {raw}"
        self.last = number
        if event["type"] in TERMINAL:
            self.ended.append(event["turnId"])
        return event


def voids_of(events: Iterable[Event]) -> list[range]:
    """Return the ranges of numbers that ``resumed`` events declare void. They are too large for a set."""
    return [range(event["voids"][0], event["voids"][1] + 1) for event in events if event["type"] == "resumed"]


def is_void(number: int, voids: Sequence[range]) -> bool:
    """Whether a ``resumed`` event declares the number void."""
    return any(number in void for void in voids)


def check_messages(messages: Sequence[Event], turns: Sequence[tuple[str, Sequence[Event]]]) -> None:
    """Check a conversation's messages against its turns' logs (turn id, events) in order. Each turn has two messages.

    The user's message exists exactly once. The answer is missing only if the end of the turn says so. A message
    withdrawn from the queue has no place.
    """
    expected: list[tuple[str, str]] = []
    for _, events in turns:
        start_event = next((event for event in events if event["type"] == "turn_started"), None)
        if start_event is None:
            continue
        expected.append(("user", start_event["userMessageId"]))
        last = events[-1]
        failed_answer = last["type"] == "error" and any(entry["id"] == start_event["messageId"] for entry in messages)
        if last["type"] == "done" or last.get("messageId") or failed_answer:
            expected.append(("assistant", start_event["messageId"]))
    actual = [(message["role"], message["id"]) for message in messages]
    assert actual == expected, f"{actual}\n{expected}"
