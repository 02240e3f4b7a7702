"""What services of models answer instead of an answer, as a `ModelError` in plain words.

Owns which status may be tried again and after how long, and what the operator is told to check. Each SDK's exceptions
are mapped by its own package; all of them end here. It never repeats a key: that is cut out of what a service says.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from urllib.parse import urlsplit

from agentic_rag.base.errors import ModelError
from agentic_rag.base.startup_errors import BadConfiguration

NO_KEY = "none"
"""What a service without keys is sent: local ones mostly, which do not look at it."""
MAX_REASON = 500
"""Characters kept of what the service says."""

RETRYABLE_STATUSES = frozenset({408, 409, 429, 500, 502, 503, 504, 529})
"""Transient by their meaning. One that says when is waited for so long, else the caller chooses."""

FINAL_STATUSES = frozenset({400, 401, 402, 403, 404, 412, 413, 422, 431, 499, 501})
"""Asking again would fail again. With `RETRYABLE_STATUSES` all that the SDKs have a class for."""

FINAL_KINDS = frozenset(
    {
        "invalid_request_error",
        "authentication_error",
        "billing_error",
        "permission_error",
        "not_found_error",
        "insufficient_quota",
        "validationException",
        "accessDeniedException",
        "resourceNotFoundException",
    }
)
"""Errors that trying again cannot mend, whatever their status; the last ones are Bedrock's."""

Headers = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A provider's service as errors name it. ``url`` is shown and holds no credentials; ``secret`` is cut out.

    ``key``, ``base_url``, ``model``: the settings that an operator is told to check.
    """

    url: str
    key: str = "ANTHROPIC_API_KEY"
    base_url: str = "ANTHROPIC_BASE_URL"
    model: str = "AGENTIC_RAG_MODEL"
    secret: str = field(default="", repr=False)

    def without_secret(self, text: str) -> str:
        """Return the beginning of a text without the key."""
        return (text.replace(self.secret, "***") if self.secret else text)[:MAX_REASON]


def status_error(
    status: int, kind: str, message: str, headers: Headers, *, model: str, endpoint: Endpoint
) -> ModelError:
    """Return the error for an HTTP answer that is not a success. ``kind`` is the service's name for it."""
    retryable = (status in RETRYABLE_STATUSES or status > 504) and kind not in FINAL_KINDS
    return ModelError(
        _reason(status, endpoint.without_secret(message.strip()), model, endpoint),
        http_status=status,
        kind=kind,
        retryable=retryable,
        retry_after=parse_retry_after(headers),
    )


def _reason(status: int, message: str, model: str, endpoint: Endpoint) -> str:
    if status == 401:
        return f"The model's service refused the key. Check {endpoint.key}."
    if status == 403:
        return f"The model's service does not let this key do that. Check {endpoint.key} and its permissions."
    if status == 404:
        return (
            f"The model's service at {endpoint.url} does not know the model {model!r}. "
            f"Check {endpoint.model} and {endpoint.base_url}."
        )
    says = f": {message}" if message else "."
    if status == 429:
        return f"The model's service takes no more requests for now{says}"
    if status == 413:
        return f"The request is too large for the model's service{says}"
    if status >= 500:
        return f"The model's service failed ({status}){says}"
    return f"The model's service refused the request ({status}){says}"


def stream_error(kind: str, message: str) -> ModelError:
    """Return the error for one that the service reports inside an answer that had begun with 200."""
    text = message.strip()[:MAX_REASON]
    return ModelError(
        "The model's service broke off its answer" + (f": {text}" if text else "."),
        http_status=200,
        kind=kind,
        retryable=kind not in FINAL_KINDS,
        started=True,
    )


def broken_stream(reason: str, kind: str) -> ModelError:
    """Return the error for an answer that ended early or cannot be read. ``kind`` is ours."""
    return ModelError(f"The model's answer {reason}.", http_status=200, kind=kind, retryable=True, started=True)


def lost_connection() -> ModelError:
    """Return the error for a connection that was lost inside an answer."""
    return broken_stream("broke off: the connection was lost", "connection")


def unreachable(endpoint: Endpoint, *, in_time: bool) -> ModelError:
    """Return the error for a service that did not answer: ``in_time`` False after a timeout."""
    how, kind = ("cannot be reached", "connection") if in_time else ("did not answer in time", "timeout")
    reason = f"The model's service {how} at {endpoint.url}. Check {endpoint.base_url} and the network."
    return ModelError(reason, kind=kind, retryable=True)


def failed_call(exc: Exception, endpoint: Endpoint) -> ModelError:
    """Return the error for any other failure of an SDK or its HTTP client."""
    said = endpoint.without_secret(str(exc))
    return ModelError(f"The call of the model's service failed: {said}", kind=type(exc).__name__)


def parse_retry_after(headers: Headers) -> float | None:
    """Return the seconds the service asks to wait: ``retry-after-ms``, or ``retry-after`` as seconds or HTTP date.

    None when it does not say, or says it in no form the standards know. Never negative.
    """
    for name, scale in (("retry-after-ms", 1000.0), ("retry-after", 1.0)):
        try:
            seconds = float(headers.get(name, "")) / scale
        except ValueError:
            continue
        if math.isfinite(seconds):
            return max(0.0, seconds)
    try:
        date = parsedate_to_datetime(headers.get("retry-after", ""))
    except ValueError:
        return None
    if date.tzinfo is None:
        date = date.replace(tzinfo=UTC)
    return max(0.0, (date - datetime.now(UTC)).total_seconds())


def public_url(base_url: str, setting: str, example: str) -> str:
    """Return a URL as it may be shown: without user, password, query.

    Raises:
        BadConfiguration: it is none; names the setting.
    """
    try:
        parts = urlsplit(base_url)
        host, port = parts.hostname, parts.port
    except ValueError:
        parts, host, port = urlsplit(""), None, None
    if parts.scheme not in ("http", "https") or not host:
        raise BadConfiguration(setting, f"must be a URL such as {example}")
    return f"{parts.scheme}://{host}{f':{port}' if port else ''}{parts.path.rstrip('/')}"


def check_key(key: str, setting: str) -> str:
    """Return a key as it can be sent in a header.

    Checked here, since a client that fails to encode the header quotes it in its message.

    Raises:
        BadConfiguration: it cannot; the message does not repeat it.
    """
    key = key.strip()
    if not key or not key.isascii() or not key.isprintable() or " " in key:
        raise BadConfiguration(setting, "must be a key of printable ASCII characters without spaces")
    return key
