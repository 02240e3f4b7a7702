"""Which refusals become audit rows at once, and which are only counted. Pure: time is an argument.

Owns the bounds that keep a flood of refusals from filling the disk. The first of its kind is told at once; what
is alike within `WINDOW_SECONDS` is counted and told in one more row when that time is over. When one source, or
all together, have opened too many kinds, further ones are counted under what they have in common.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace

WINDOW_SECONDS = 60.0
MAX_OF_SOURCE = 30
"""Kinds of refusals that one actor at one address can open in a window."""
MAX_KINDS = 300
"""Kinds that can be open at all, beside one for each error code."""

ANY = "*"
"""Stands for the actors, actions or targets of refusals that are counted together."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """What was refused: equal ones are alike. ``code``: the error's. ``source``: the client's address.

    ``place``: where in the request's body, if its error names that.
    """

    actor: str
    action: str
    target: str
    code: str
    source: str
    place: str = ""


@dataclass(slots=True)
class _Window:
    ends: float
    more: int = 0


class Refusals:
    """The refusals of the last window. Methods return what is to be told now: (refusal, how many)."""

    def __init__(self) -> None:
        self._open: dict[Refusal, _Window] = {}
        self._of_source: Counter[tuple[str, str]] = Counter()

    def note(self, now: float, refusal: Refusal) -> list[tuple[Refusal, int]]:
        """Count one refusal. ``now``: seconds of a clock that does not go back."""
        told = self.due(now)
        kind = self._kind(refusal)
        window = self._open.get(kind)
        if window is not None:
            window.more += 1
            return told
        self._open[kind] = _Window(now + WINDOW_SECONDS)
        self._of_source[kind.actor, kind.source] += 1
        return [*told, (kind, 1)]

    def due(self, now: float) -> list[tuple[Refusal, int]]:
        """End the windows that are over."""
        return list(self._end(now))

    def rest(self) -> list[tuple[Refusal, int]]:
        """End all windows: the process stops, or somebody reads the log."""
        return list(self._end(float("inf")))

    def _kind(self, refusal: Refusal) -> Refusal:
        if refusal in self._open:
            return refusal
        if self._of_source[refusal.actor, refusal.source] >= MAX_OF_SOURCE:
            refusal = replace(refusal, action=ANY, target=ANY, place="")
        if refusal not in self._open and len(self._open) >= MAX_KINDS:
            refusal = Refusal(ANY, ANY, ANY, refusal.code, ANY)
        return refusal

    def _end(self, now: float) -> Iterator[tuple[Refusal, int]]:
        while self._open:  # in order of their ends: all are equally long
            refusal, window = next(iter(self._open.items()))
            if window.ends > now:
                return
            del self._open[refusal]
            self._of_source[refusal.actor, refusal.source] -= 1
            if not self._of_source[refusal.actor, refusal.source]:
                del self._of_source[refusal.actor, refusal.source]
            if window.more:
                yield refusal, window.more
