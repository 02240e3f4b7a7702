"""The order in which the last turns of a session began, for readers that follow them in turn. Pure."""

from agentic_rag.base.ids import TurnId

MAX_ORDER = 16


class TurnOrder:
    """The last `MAX_ORDER` turns of one session, in the order of their beginning."""

    def __init__(self) -> None:
        self._begun: list[TurnId] = []

    def begin(self, turn_id: TurnId) -> None:
        """Add a turn that begins."""
        self._begun = [*self._begun[1 - MAX_ORDER :], turn_id]

    def following(self, after: TurnId | None, current: TurnId | None) -> TurnId | None:
        """Return the turn that began after ``after``, or the ``current`` one. None: not yet."""
        if after in self._begun:
            rest = self._begun[self._begun.index(after) + 1 :]
            return rest[0] if rest else None
        return current if current != after else None
