"""The texts that tell people why a turn failed. Pure.

Owns the wording of the ``error`` event and of the failed turn's message. The texts contain no address, no path and no
words of the provider; the operator finds those in the log. Knows no turn.
"""

import re

from agentic_rag.base.errors import AgenticRagError, ModelError, StorageError, TurnError
from agentic_rag.base.events import Error

_SETTINGS = re.compile(r"\b(?:AGENTIC_RAG_[A-Z_]+|[A-Z]+_API_KEY|[A-Z]+_BASE_URL)\b")
"""Names of settings, which help an operator and mean nothing to other readers."""
_OURS = (None, 401, 403, 404)
"""Statuses for which we write the error's reason ourselves."""


def failure_of(error: AgenticRagError) -> Error:
    """Return the error that the end of a turn reports. ``retryable``: the same request may succeed later."""
    if isinstance(error, ModelError):
        passing = error.http_status == 429 or (error.http_status or 0) >= 500
        return Error(error.code, _words_of(error), error.retryable or passing)
    if isinstance(error, StorageError):
        return Error(error.code, "The server cannot store anything at the moment.", error.retryable)
    if isinstance(error, TurnError):
        return Error(error.code, str(error), error.retryable)
    return Error(error.code, "The turn could not be finished.", error.retryable)


def _words_of(error: ModelError) -> str:
    setting_names = sorted(set(_SETTINGS.findall(error.reason))) if error.http_status in _OURS else []
    hint = f" The operator of this server should check {' and '.join(setting_names)}." if setting_names else ""
    match error.http_status:
        case None if error.retryable:
            return f"The model's service cannot be reached.{hint}"
        case 200:
            return "The model's service broke off its answer."
        case 401 | 403:
            return f"The model's service refused this server's key.{hint}"
        case 404:
            return f"The model's service does not know the model.{hint}"
        case 413:
            return "The conversation is too large for the model's service."
        case 429:
            return "The model's service takes no more requests for now. Try again in a moment."
        case int(status) if status >= 500:
            return "The model's service failed or has too much to do. Try again in a moment."
        case int():
            return "The model's service refused the request."
    return f"The model's service could not be asked.{hint}"
