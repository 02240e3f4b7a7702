"""The calls of a model as health sees them: when it answered last, and what came of those that it did not answer.

Owns what counts as a failure of the model: that it refused, broke off, or was silent until its caller gave up; not that
a request was one it cannot take, and not that somebody stopped waiting. Knows no turn.
"""

import time

from agentic_rag.base.errors import GenerationTimeout, ModelError
from agentic_rag.base.health_signals import Outcomes, PartState, worst
from agentic_rag.models.names import ModelNames

TOLERATED = 0.25
"""Share of failed calls from which on a model that answers is degraded all the same."""
ANSWERED = frozenset({400, 413, 422})
"""HTTP statuses that say something of the request, and that the service works."""


class ModelCalls:
    """What lately became of the calls of a server's model, all together and by its providers.

    ``name``: of the model; ``names``: how a model's name names its provider; None: there is one.
    """

    def __init__(self, name: str, names: ModelNames | None = None) -> None:
        self.name = name
        self.outcomes = Outcomes(TOLERATED)
        self._names = names
        self.by_provider: dict[str, Outcomes] = {}
        """Of those that were asked."""

    def state(self, at: float) -> PartState:
        """Return how the model is: down where every provider that was asked is, degraded where one is not ready."""
        states = [each.state(at) for each in self.by_provider.values()]
        if len(states) < 2:
            return self.outcomes.state(at)
        found = worst(states)
        return PartState.DEGRADED if found is PartState.DOWN and set(states) != {PartState.DOWN} else found

    def watch(self, model: str) -> "WatchedCall":
        """Note what becomes of the call of a model that is made inside."""
        provider = self._names.split(model)[0] if self._names is not None else self.name
        known = self.by_provider.get(provider)
        if known is None:
            known = self.by_provider[provider] = Outcomes(TOLERATED)
        return WatchedCall((self.outcomes, known))


class WatchedCall:
    """The block in which a call of a model is made."""

    __slots__ = ("_both",)

    def __init__(self, both: tuple[Outcomes, Outcomes]) -> None:
        self._both = both

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is None:
            for each in self._both:
                each.note_success(time.time())
        elif isinstance(error, ModelError) and error.http_status not in ANSWERED:
            for each in self._both:
                each.note_failure(time.time(), error.kind or error.code, str(error))
        elif isinstance(error, GenerationTimeout):
            for each in self._both:
                each.note_failure(time.time(), error.code, str(error))
