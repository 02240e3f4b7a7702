"""In which order the last turns of a session began, for readers that follow one after the other. Pure."""

from agentic_rag.ids import TurnId

MAX_ORDER = 16


class TurnOrder:
    """The last turns of one session, as they began; older ones are forgotten."""

    def __init__(self) -> None:
        self._begun: list[TurnId] = []

    def begin(self, turn_id: TurnId) -> None:
        """Take note that a turn begins."""
        self._begun = [*self._begun[1 - MAX_ORDER :], turn_id]

    def following(self, after: TurnId | None, current: TurnId | None) -> TurnId | None:
        """Return the turn that began after another one, or the ``current`` one; None: not yet."""
        if after in self._begun:
            rest = self._begun[self._begun.index(after) + 1 :]
            return rest[0] if rest else None
        return current if current != after else None
