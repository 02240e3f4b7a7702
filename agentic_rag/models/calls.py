"""Outcomes of model calls for the health report: the last answer and the recent failures.

A call fails if the model refused, broke off, or stayed silent until the caller's timeout. A request that the service
rejects as invalid is no failure of the model, and neither is a cancelled call. Knows no turn.
"""

import time

from agentic_rag.base.errors import GenerationTimeout, ModelError
from agentic_rag.base.health_signals import Outcomes, PartState, worst
from agentic_rag.models.names import ModelNames

TOLERATED = 0.25
"""Share of failed calls from which a model is degraded although it answers."""
ANSWERED = frozenset({400, 413, 422})
"""HTTP statuses that blame the request and show that the service works."""


class ModelCalls:
    """Recent outcomes of the calls of a server's model, in total and by provider.

    ``name``: the model's name. ``names``: finds the provider in a model's name; None if there is only one provider.
    """

    def __init__(self, name: str, names: ModelNames | None = None) -> None:
        self.name = name
        self.outcomes = Outcomes(TOLERATED)
        self._names = names
        self.by_provider: dict[str, Outcomes] = {}
        """Outcomes by provider, for providers that had calls."""

    def state(self, at: float) -> PartState:
        """Return the model's state: down if all called providers are down, degraded if at least one is not ready."""
        states = [outcomes.state(at) for outcomes in self.by_provider.values()]
        if len(states) < 2:
            return self.outcomes.state(at)
        combined = worst(states)
        # One dead provider among several leaves the domains of the others working.
        return PartState.DEGRADED if combined is PartState.DOWN and set(states) != {PartState.DOWN} else combined

    def watch(self, model: str) -> "WatchedCall":
        """Return a context manager that records the outcome of the model call made inside."""
        provider = self._names.split(model)[0] if self._names is not None else self.name
        outcomes = self.by_provider.get(provider)
        if outcomes is None:
            outcomes = self.by_provider[provider] = Outcomes(TOLERATED)
        return WatchedCall((self.outcomes, outcomes))


class WatchedCall:
    """Context manager that records the outcome of one model call."""

    __slots__ = ("_both",)

    def __init__(self, both: tuple[Outcomes, Outcomes]) -> None:
        self._both = both

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is None:
            for outcomes in self._both:
                outcomes.note_success(time.time())
        elif isinstance(error, ModelError) and error.http_status not in ANSWERED:
            for outcomes in self._both:
                outcomes.note_failure(time.time(), error.kind or error.code, str(error))
        elif isinstance(error, GenerationTimeout):
            for outcomes in self._both:
                outcomes.note_failure(time.time(), error.code, str(error))
