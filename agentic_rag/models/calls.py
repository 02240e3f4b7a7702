"""The calls of a model as health sees them: when it answered last, and what came of those that it did not answer.

Owns what counts as a failure of the model: that it refused, broke off, or was silent until its caller gave up; not that
a request was one it cannot take, and not that somebody stopped waiting. Knows no turn.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager

from agentic_rag.errors import GenerationTimeout, ModelError
from agentic_rag.outcomes import Outcomes

TOLERATED = 0.25
"""Share of failed calls from which on a model that answers is degraded all the same."""
ANSWERED = frozenset({400, 413, 422})
"""HTTP statuses that say something of the request, and that the service works."""


class ModelCalls:
    """What lately became of the calls of a model, by its name."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.outcomes = Outcomes(TOLERATED)

    @contextmanager
    def watch(self) -> Iterator[None]:
        """Note what becomes of the call that is made inside."""
        try:
            yield
        except ModelError as error:
            if error.http_status not in ANSWERED:
                self.outcomes.note_failure(time.time(), error.kind or error.code, str(error))
            raise
        except GenerationTimeout as error:
            self.outcomes.note_failure(time.time(), error.code, str(error))
            raise
        self.outcomes.note_success(time.time())
