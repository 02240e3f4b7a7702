"""Limits for audited refusals: which become audit rows at once, and which are only counted.

Pure: time is an argument. The limits keep a flood of refusals from filling the disk. The first refusal of a kind is
reported at once. Identical refusals within `WINDOW_SECONDS` are counted, and one more row reports them when that window
ends. If one source, or all together, have opened too many kinds, further ones are counted under their common fields.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace

WINDOW_SECONDS = 60.0
MAX_OF_SOURCE = 30
"""Maximum kinds of refusals that one actor at one address can open in a window."""
MAX_KINDS = 300
"""Maximum kinds open in total, in addition to one per error code."""

ANY = "*"
"""Placeholder for the actors, actions or targets of refusals that are counted together."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """A refusal; equal refusals are counted together.

    ``code`` is the error's code, ``source`` the client's address. ``place`` is the error's path in the request body, if
    any.
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
    """The refusals of the current windows. Methods return the refusals to record now: (refusal, count)."""

    def __init__(self) -> None:
        self._open: dict[Refusal, _Window] = {}
        self._of_source: Counter[tuple[str, str]] = Counter()

    def note(self, now: float, refusal: Refusal) -> list[tuple[Refusal, int]]:
        """Count one refusal. ``now``: monotonic seconds."""
        due = self.due(now)
        kind = self._kind(refusal)
        window = self._open.get(kind)
        if window is not None:
            window.more += 1
            return due
        self._open[kind] = _Window(now + WINDOW_SECONDS)
        self._of_source[kind.actor, kind.source] += 1
        return [*due, (kind, 1)]

    def due(self, now: float) -> list[tuple[Refusal, int]]:
        """Close the expired windows."""
        return list(self._end(now))

    def rest(self) -> list[tuple[Refusal, int]]:
        """Close all windows, because the process stops or the log is read."""
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
        while self._open:  # sorted by end, because all windows have the same length
            refusal, window = next(iter(self._open.items()))
            if window.ends > now:
                return
            del self._open[refusal]
            self._of_source[refusal.actor, refusal.source] -= 1
            if not self._of_source[refusal.actor, refusal.source]:
                del self._of_source[refusal.actor, refusal.source]
            if window.more:
                yield refusal, window.more
