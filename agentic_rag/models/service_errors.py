"""Errors of model services, as a `ModelError` with a readable text.

Owns the retryable statuses, the delay before a retry, and the hints for the operator. Each provider package maps its
SDK's exceptions to the functions here. Errors never contain a key: the texts of the service are stripped of it.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from urllib.parse import urlsplit

from agentic_rag.base.errors import ModelError
from agentic_rag.base.startup_errors import BadConfiguration
from agentic_rag.models.retirement import retirements_of

NO_KEY = "none"
"""Placeholder key for services that need none, mostly local ones, which ignore the key."""
MAX_REASON = 500
"""Most characters quoted from a service's message."""

RETRYABLE_STATUSES = frozenset({408, 409, 429, 500, 502, 503, 504, 529})
"""Transient errors. The caller waits as long as the service asks, or chooses a delay if the service names none."""

FINAL_STATUSES = frozenset({400, 401, 402, 403, 404, 412, 413, 422, 431, 499, 501})
"""Permanent errors. Together with `RETRYABLE_STATUSES` these are all statuses for which the SDKs have a class."""

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
"""Error types that are permanent with any status. The last three are Bedrock's."""

Headers = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A provider's service, as error texts name it.

    ``url``: shown to users, without credentials. ``key``, ``base_url``, ``model``: names of the settings to check.
    ``secret``: the key, which is removed from quoted texts.
    """

    url: str
    key: str = "ANTHROPIC_API_KEY"
    base_url: str = "ANTHROPIC_BASE_URL"
    model: str = "AGENTIC_RAG_MODEL"
    secret: str = field(default="", repr=False)

    def without_secret(self, text: str) -> str:
        """Return the first `MAX_REASON` characters of a text, with the key masked."""
        return (text.replace(self.secret, "***") if self.secret else text)[:MAX_REASON]


def status_error(
    status: int, kind: str, message: str, headers: Headers, *, model: str, endpoint: Endpoint
) -> ModelError:
    """Return the error for an unsuccessful HTTP answer. ``kind`` is the service's name of the error."""
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
        today = datetime.now(UTC).date()
        retired = "".join(
            retirement.text(today) for retirement in retirements_of([model], today) if retirement.days_left(today) <= 0
        )
        return (
            f"The model's service at {endpoint.url} does not know the model {model!r}. "
            f"Check {endpoint.model} and {endpoint.base_url}." + (f" {retired}" if retired else "")
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
    """Return the error for an error event inside an answer with status 200."""
    text = message.strip()[:MAX_REASON]
    return ModelError(
        "The model's service broke off its answer" + (f": {text}" if text else "."),
        http_status=200,
        kind=kind,
        retryable=kind not in FINAL_KINDS,
        started=True,
    )


def broken_stream(reason: str, kind: str) -> ModelError:
    """Return the error for an answer that ended early or cannot be read. ``kind`` is this project's own."""
    return ModelError(f"The model's answer {reason}.", http_status=200, kind=kind, retryable=True, started=True)


def lost_connection() -> ModelError:
    """Return the error for a connection lost during an answer."""
    return broken_stream("broke off: the connection was lost", "connection")


def unreachable(endpoint: Endpoint, *, in_time: bool) -> ModelError:
    """Return the error for a service that did not answer. ``in_time``: False after a timeout."""
    how, kind = ("cannot be reached", "connection") if in_time else ("did not answer in time", "timeout")
    reason = f"The model's service {how} at {endpoint.url}. Check {endpoint.base_url} and the network."
    return ModelError(reason, kind=kind, retryable=True)


def failed_call(exc: Exception, endpoint: Endpoint) -> ModelError:
    """Return the error for any other failure of an SDK or its HTTP client."""
    text = endpoint.without_secret(str(exc))
    return ModelError(f"The call of the model's service failed: {text}", kind=type(exc).__name__)


def parse_retry_after(headers: Headers) -> float | None:
    """Return the seconds the service asks to wait: ``retry-after-ms``, or ``retry-after`` as seconds or HTTP date.

    Returns None if the headers are missing or match no standard format. Never negative.
    """
    for name, scale in (("retry-after-ms", 1000.0), ("retry-after", 1.0)):
        try:
            seconds = float(headers.get(name, "")) / scale
        except ValueError:
            continue
        if math.isfinite(seconds):  # Python also reads "nan" and "inf" as floats
            return max(0.0, seconds)
    try:
        date = parsedate_to_datetime(headers.get("retry-after", ""))
    except (ValueError, OverflowError):  # the parser lets numbers of any size through
        return None
    if date.tzinfo is None:  # the zone was `-0000`, which is UTC
        date = date.replace(tzinfo=UTC)
    return max(0.0, (date - datetime.now(UTC)).total_seconds())


def public_url(base_url: str, setting: str, example: str) -> str:
    """Return a URL without user, password and query, fit to be shown.

    Raises:
        BadConfiguration: the text is not a URL. The error names the setting.
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
    """Check that a key can be sent in a header, and return the key without surrounding white space.

    An HTTP client that cannot encode a header would quote the key in its message.

    Raises:
        BadConfiguration: the key cannot be sent. The message does not repeat the key.
    """
    key = key.strip()
    if not key or not key.isascii() or not key.isprintable() or " " in key:
        raise BadConfiguration(setting, "must be a key of printable ASCII characters without spaces")
    return key
