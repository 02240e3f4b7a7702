"""Every failure of the anthropic SDK and its HTTP client, as a `ModelError`.

Owns the one mapping of these exceptions; what they mean is `service_errors`'. A test fails when the SDK or httpx2 grows
an exception that no rule here covers.
"""

from agentic_rag.base.errors import ModelError
from agentic_rag.models.service_errors import (
    Endpoint,
    failed_call,
    lost_connection,
    status_error,
    stream_error,
    unreachable,
)

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


def model_error(exc: Exception, endpoint: Endpoint, *, model: str, started: bool = False) -> ModelError:
    """Return what an exception of the SDK or of httpx2 means; raise it ``from exc``.

    Raises:
        Exception: ``exc`` itself, if it is neither the SDK's nor the HTTP client's: that is a bug of ours.
    """
    # Lazily, like every use of the SDK; whoever holds one of its exceptions has it imported.
    import anthropic
    import httpx2

    if isinstance(exc, anthropic.APIStatusError):
        message = exc.api_message or exc.response.reason_phrase
        if exc.status_code == 200:  # reported inside the answer
            return stream_error(exc.type or "", endpoint.without_secret(message))
        headers = exc.response.headers
        return status_error(exc.status_code, exc.type or "", message, headers, model=model, endpoint=endpoint)
    if started and isinstance(exc, httpx2.HTTPError | httpx2.StreamError):
        return lost_connection()
    if isinstance(exc, anthropic.APITimeoutError | httpx2.TimeoutException):
        return unreachable(endpoint, in_time=False)
    if isinstance(exc, anthropic.APIConnectionError | httpx2.TransportError):
        return unreachable(endpoint, in_time=True)
    if isinstance(exc, anthropic.AnthropicError | httpx2.HTTPError | httpx2.InvalidURL | httpx2.StreamError):
        return failed_call(exc, endpoint)
    raise exc
