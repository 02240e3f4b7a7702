"""Every failure of the anthropic SDK and its HTTP client, as a `ModelError` in plain words.

Owns the one mapping: which status and exception may be tried again, after how long, and what the operator is
told to check. Knows no request and no stream. It never repeats a key: the caller's is cut out of what the
service says. A test fails when the SDK or httpx2 grows an exception that no rule here covers.
"""

import math
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

from agentic_rag.errors import ModelError

MAX_REASON = 500
"""Characters kept of what the service says."""

RETRYABLE_STATUSES = frozenset({408, 409, 500, 502, 503, 504, 529})
"""Transient by their meaning. 429 is not among them: it is retried only when the service says when."""

FINAL_STATUSES = frozenset({400, 401, 402, 403, 404, 412, 413, 422, 431, 499, 501})
"""Asking again would fail again. With `RETRYABLE_STATUSES` and 429 all that the SDK has a class for."""

FINAL_KINDS = frozenset(
    {"invalid_request_error", "authentication_error", "billing_error", "permission_error", "not_found_error"}
)
"""Errors inside a stream that running the step again cannot mend."""

SDK_EXCEPTIONS = frozenset(
    {
        "APIError",
        "APIConnectionError",
        "APITimeoutError",
        "APIStatusError",
        "APIResponseValidationError",
        "APIWebhookValidationError",
        "CredentialsError",
        "IdentityTokenFileError",
        "RetryableError",
    }
)
"""The SDK's exceptions apart from the classes of a status, which go by their number."""

Headers = Mapping[str, str]


def status_error(status: int, kind: str, message: str, headers: Headers, *, model: str, base_url: str) -> ModelError:
    """Return the error for an HTTP answer that is not a success. ``kind`` is the API's ``error.type``."""
    retry_after = parse_retry_after(headers)
    retryable = status in RETRYABLE_STATUSES or status > 504 or (status == 429 and retry_after is not None)
    return ModelError(
        _reason(status, message.strip()[:MAX_REASON], model, base_url),
        http_status=status,
        kind=kind,
        retryable=retryable,
        retry_after=retry_after,
    )


def _reason(status: int, message: str, model: str, base_url: str) -> str:
    if status == 401:
        return "The model's service refused the key. Check ANTHROPIC_API_KEY."
    if status == 403:
        return "The model's service does not let this key do that. Check ANTHROPIC_API_KEY and its permissions."
    if status == 404:
        return (
            f"The model's service at {base_url} does not know the model {model!r}. "
            "Check AGENTIC_RAG_MODEL and ANTHROPIC_BASE_URL."
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
    """Return the error for an ``error`` event inside an answer that had begun with 200."""
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


def model_error(exc: Exception, *, model: str, base_url: str, secret: str, started: bool = False) -> ModelError:
    """Return what an exception of the SDK or of httpx2 means; raise it ``from exc``.

    ``base_url`` is shown and must hold no credentials; ``secret`` is cut out of all text.

    Raises:
        Exception: ``exc`` itself, if it is neither the SDK's nor the HTTP client's: that is a bug of ours.
    """
    # Lazily, like every use of the SDK; whoever holds one of its exceptions has it imported.
    import anthropic
    import httpx2

    if isinstance(exc, anthropic.APIStatusError):
        error = status_error(
            exc.status_code,
            exc.type or "",
            _without(secret, exc.api_message or exc.response.reason_phrase),
            exc.response.headers,
            model=model,
            base_url=base_url,
        )
    elif started and isinstance(exc, httpx2.HTTPError | httpx2.StreamError):
        error = broken_stream("broke off: the connection was lost", "connection")
    elif isinstance(exc, anthropic.APITimeoutError | httpx2.TimeoutException):
        error = _unreachable(f"did not answer in time at {base_url}", "timeout")
    elif isinstance(exc, anthropic.APIConnectionError | httpx2.TransportError):
        error = _unreachable(f"cannot be reached at {base_url}", "connection")
    elif isinstance(exc, anthropic.AnthropicError | httpx2.HTTPError | httpx2.InvalidURL | httpx2.StreamError):
        name = type(exc).__name__
        error = ModelError(f"The call of the model's service failed: {_without(secret, str(exc))}", kind=name)
    else:
        raise exc
    return error


def _unreachable(how: str, kind: str) -> ModelError:
    return ModelError(
        f"The model's service {how}. Check ANTHROPIC_BASE_URL and the network.", kind=kind, retryable=True
    )


def _without(secret: str, text: str) -> str:
    return text.replace(secret, "***")[:MAX_REASON] if secret else text[:MAX_REASON]


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
