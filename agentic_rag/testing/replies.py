"""What `FakeMessagesAPI` answers: a step, and what goes wrong with it on the wire.

Owns faults and scripts with their JSON form. Knows no HTTP: `fake_api` carries them out.

The JSON form of a script file::

    {"steps": [REPLY, …],            answered in this order
     "then": REPLY?,                 answers every call after them; without it such a call is a 500
     "api_key": "…"?}                the only key taken; without it any key is

``REPLY`` is a step (see `steps`) with two more keys: ``"fault": {…}?`` (the fields of `Fault`) and
``"rate": deltas per second?``; or ``{"demo": {"deltas": N, "text": "…"?}, …}``, an answer of N text deltas.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from agentic_rag.testing.steps import Say, Step, step_from_json

DEMO_TEXT = "The quick brown fox jumps over the lazy dog. "


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault. Events are counted as SSE frames of the answer from its start, bytes in its body.

    ========================  ====================================================================================
    ``status``                an HTTP error instead of an answer; ``retry_after`` is its header, ``error_type`` and
                              ``message`` its body's
    ``refuse``                the connection is closed without an answer
    ``drop_at``               after so many bytes the connection is closed
    ``end_at``                after so many bytes the body ends, as if it were complete
    ``error_after``           after so many events an ``error`` event of ``error_type`` ends the body
    ``garbage_after``         after so many events comes one whose data is ``garbage``, then the rest
    ``silent_after``          after so many events nothing more is sent, the connection stays open;
                              with ``ping_seconds`` pings go on
    ``chunk``                 the body is written in pieces of so many bytes
    ``newline``               ends every line: LF, CRLF or CR
    ``content_type``          what the body is said to be
    ========================  ====================================================================================
    """

    status: int | None = None
    retry_after: str | None = None
    refuse: bool = False
    drop_at: int | None = None
    end_at: int | None = None
    error_after: int | None = None
    error_type: str = ""
    message: str = ""
    garbage_after: int | None = None
    garbage: str = '{"type": "content_block_del'
    silent_after: int | None = None
    ping_seconds: float | None = None
    chunk: int | None = None
    newline: str = "\n"
    content_type: str = "text/event-stream; charset=utf-8"


NO_FAULT = Fault()


@dataclass(frozen=True, slots=True)
class Reply:
    """A step with its fault and its pace (``rate`` deltas per second; None: the server's, 0: all at once)."""

    step: Step
    fault: Fault = NO_FAULT
    rate: float | None = None


Answer = Step | Reply | Fault

Scripted = Answer | Callable[[dict[str, Any]], Answer]
"""A callable gets the request's JSON."""


def as_reply(answer: Answer) -> Reply:
    """Return the answer as a `Reply`; a bare `Fault` befalls a short text."""
    if isinstance(answer, Reply):
        return answer
    return Reply(answer) if isinstance(answer, Step) else Reply(demo(8), answer)


def demo(deltas: int, text: str = DEMO_TEXT) -> Step:
    """Return a step of one text block in ``deltas`` pieces, the words of ``text`` over and over."""
    words = [word + " " for word in text.split()]
    pieces = tuple(words[number % len(words)] for number in range(deltas))
    return Step((Say("".join(pieces), pieces=pieces),))


def reply_from_json(value: Mapping[str, Any]) -> Reply:
    """Return the reply of its JSON form (see the module).

    Raises:
        KeyError, TypeError, ValueError: the value does not have that form.
    """
    unknown = value.keys() - {"blocks", "stop_reason", "usage", "fault", "rate", "demo"}
    if unknown:
        raise ValueError(f"unknown keys in a step: {sorted(unknown)}")
    step = demo(**value["demo"]) if "demo" in value else step_from_json(value)
    return Reply(step, Fault(**value.get("fault", {})), value.get("rate"))
