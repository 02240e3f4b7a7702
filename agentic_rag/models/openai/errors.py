"""Every failure of the openai SDK and its HTTP client, as a `ModelError`.

Owns the one mapping of these exceptions; what they mean is `service_errors`'. A test fails when the SDK or httpx2 grows
an exception that no rule here covers.
"""

from agentic_rag.base.errors import ModelError
from agentic_rag.models.service_errors import Endpoint, failed_call, lost_connection, status_error, unreachable

SDK_EXCEPTIONS = frozenset(
    {
        "APIError",
        "APIConnectionError",
        "APITimeoutError",
        "APIStatusError",
        "APIResponseValidationError",
        "ContentFilterFinishReasonError",
        "LengthFinishReasonError",
        "OAuthError",
        "SubjectTokenProviderError",
        "WebSocketConnectionClosedError",
        "WebSocketQueueFullError",
    }
)
"""The SDK's exceptions apart from the classes of a status, which go by their number."""


def model_error(exc: Exception, endpoint: Endpoint, *, model: str, started: bool = False) -> ModelError:
    """Return what an exception of the SDK or of httpx2 means; raise it ``from exc``.

    Raises:
        Exception: ``exc`` itself, if it is neither the SDK's nor the HTTP client's: that is a bug of ours.
    """
    # Lazily, like every use of the SDK; whoever holds one of its exceptions has it imported.
    import httpx2
    import openai

    if isinstance(exc, openai.APIStatusError):
        kind = str(exc.code or exc.type or "")
        return status_error(
            exc.status_code, kind, _own_words(exc.body, str(exc)), exc.response.headers, model=model, endpoint=endpoint
        )
    if started and isinstance(exc, httpx2.HTTPError | httpx2.StreamError):
        return lost_connection()
    if isinstance(exc, openai.APITimeoutError | httpx2.TimeoutException):
        return unreachable(endpoint, in_time=_was_closed(exc))
    if isinstance(exc, openai.APIConnectionError | httpx2.TransportError):
        return unreachable(endpoint, in_time=True)
    if isinstance(exc, openai.OpenAIError | httpx2.HTTPError | httpx2.InvalidURL | httpx2.StreamError):
        return failed_call(exc, endpoint)
    raise exc


def _was_closed(exc: BaseException) -> bool:
    """Whether a connection was closed or refused, which the SDK's transport calls a timeout of connecting."""
    import aiohttp

    cause = exc.__cause__
    while cause is not None and not isinstance(cause, aiohttp.ClientConnectionError):
        cause = cause.__cause__
    return cause is not None and not isinstance(cause, TimeoutError)


def _own_words(body: object, text: str) -> str:
    """Return the service's own words, with the parameter they are about if it is a tool; endpoints differ in both."""
    if isinstance(body, dict):
        parameter = body.get("param")
        about = f" ({parameter[:200]})" if isinstance(parameter, str) and parameter.startswith("tools") else ""
        for key in ("message", "detail", "error"):
            if isinstance(body.get(key), str):
                return str(body[key])[:400] + about if about else str(body[key])
    return text
