"""Mapping of the exceptions of the anthropic SDK and its HTTP client to `ModelError`.

`service_errors` builds the errors. A test fails if the SDK or httpx2 adds an exception that no rule here covers.
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
"""The SDK's exceptions, except the classes of one HTTP status, which are mapped by their number."""


def model_error(exc: Exception, endpoint: Endpoint, *, model: str, started: bool = False) -> ModelError:
    """Convert an exception of the SDK or of httpx2 to an error, to be raised ``from exc``.

    Raises:
        Exception: ``exc`` itself, if neither the SDK nor the HTTP client raised it: that is a bug in this project.
    """
    # Imported late, like every use of the SDK. An exception of the SDK proves that the SDK is already imported.
    import anthropic
    import httpx2

    if isinstance(exc, anthropic.APIStatusError):
        message = exc.api_message or exc.response.reason_phrase
        if exc.status_code == 200:  # an error event inside the answer
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
