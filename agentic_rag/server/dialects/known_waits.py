"""What an encoder is told of a turn's waits before it is fed the turn."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class KnownWaits:
    """The waits of a turn that need no answer any more.

    ``ended``: the ids of those that have ended; none of them ends a stream. ``answered``: the ids of those whose
    answers a stream goes on from. Its client has what came before, so that nothing is said of that.
    """

    ended: frozenset[str] = frozenset()
    answered: frozenset[str] = frozenset()
