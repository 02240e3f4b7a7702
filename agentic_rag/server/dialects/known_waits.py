"""A turn's waits that are known to an encoder before the first event."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class KnownWaits:
    """The waits of a turn that need no answer any more.

    ``ended`` holds the ids of ended waits, which do not end the stream. ``answered`` holds the ids of waits from whose
    answers the stream continues. The client already has the events before them, so these are not sent again.
    """

    ended: frozenset[str] = frozenset()
    answered: frozenset[str] = frozenset()
