"""Which modules a value is carried through: a profile of one call, for tests of the code's shape.

A *room* is a file of the product. It is entered when one of its functions is called with an argument that carries the
value (itself, or inside containers and records); ``self`` does not count, what merely lies in an object is not
carried.
"""

import dataclasses
import sys
import threading
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

from pydantic import BaseModel

ROOT = Path(__file__).resolve().parent.parent
PRODUCT = (f"{ROOT}/agentic_rag/", f"{ROOT}/mcp_servers/")
DEPTH = 5
"""How deep inside containers and records a value is looked for."""
PARTS = 300
"""How many parts of an argument are looked at, those outside first: enough for any value, not for the application."""


@dataclass
class Trip:
    """What a value saw: ``rooms`` in the order they were first entered, moves and returns between two of them.

    Nothing is looked at before `begin`: threads are followed only if they start inside of the block.
    """

    begun: bool = False
    rooms: list[str] = field(default_factory=list)
    moves: int = 0
    returns: int = 0

    def begin(self) -> None:
        """Look at calls from now on."""
        self.begun = True


@contextmanager
def followed(value: str) -> Iterator[Trip]:
    """Follow a text that occurs nowhere else through every thread for as long as the block runs."""
    trip = Trip()

    def watch(frame: FrameType, event: str, arg: Any) -> None:
        if not trip.begun or (event != "call" and event != "return"):
            return
        room = frame.f_code.co_filename
        if not room.startswith(PRODUCT):
            return
        caller = _caller(frame)
        if event == "call" and any(carries(each, value) for each in _arguments(frame)):
            if room not in trip.rooms:
                trip.rooms.append(room)
            trip.moves += caller not in ("", room)
        elif event == "return" and caller not in ("", room) and carries(arg, value):
            trip.returns += 1

    before = sys.getprofile()
    threading.setprofile(watch)
    sys.setprofile(watch)
    try:
        yield trip
    finally:
        sys.setprofile(before)
        threading.setprofile(None)
        trip.rooms[:] = [room.removeprefix(f"{ROOT}/") for room in trip.rooms]


def carries(held: object, value: str) -> bool:
    """Whether a text is, or lies in, what is held."""
    data = value.encode()
    waiting: deque[tuple[object, int]] = deque([(held, DEPTH)])
    for _ in range(PARTS):
        if not waiting:
            break
        each, depth = waiting.popleft()
        if isinstance(each, str):
            if value in each:
                return True
        elif isinstance(each, bytes | bytearray):
            if data in each:
                return True
        elif depth:
            waiting.extend((part, depth - 1) for part in _parts(each))
    return False


def _parts(held: object) -> Iterable[object]:
    if type(held) is dict:
        return [*held.keys(), *held.values()][:PARTS]
    if isinstance(held, list | tuple):
        return held[:PARTS]
    if isinstance(held, BaseModel):
        return held.__dict__.values()
    if dataclasses.is_dataclass(held) and not isinstance(held, type):
        return [getattr(held, part.name, None) for part in dataclasses.fields(held)]
    return ()


def _arguments(frame: FrameType) -> list[object]:
    code = frame.f_code
    count = code.co_argcount + code.co_kwonlyargcount
    names = [*code.co_varnames[:count], *code.co_varnames[count : count + 2]]
    return [frame.f_locals.get(name) for name in names if name not in ("self", "cls")]


def _caller(frame: FrameType) -> str:
    """Return the file of the product that the call came from, past the libraries between."""
    above = frame.f_back
    while above is not None and not above.f_code.co_filename.startswith(PRODUCT):
        above = above.f_back
    return "" if above is None else above.f_code.co_filename
