"""Mapping of the exceptions of the openai SDK and its HTTP client to `ModelError`.

`service_errors` builds the errors. A test fails if the SDK or httpx2 adds an exception that no rule here covers.
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
"""The SDK's exceptions, except the classes of one HTTP status, which are mapped by their number."""


def model_error(exc: Exception, endpoint: Endpoint, *, model: str, started: bool = False) -> ModelError:
    """Convert an exception of the SDK or of httpx2 to an error, to be raised ``from exc``.

    Raises:
        Exception: ``exc`` itself, if neither the SDK nor the HTTP client raised it: that is a bug in this project.
    """
    # Imported late, like every use of the SDK. An exception of the SDK proves that the SDK is already imported.
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
    """Whether a connection was closed or refused. The SDK's transport reports this as a connect timeout."""
    import aiohttp

    cause = exc.__cause__
    while cause is not None and not isinstance(cause, aiohttp.ClientConnectionError):
        cause = cause.__cause__
    return cause is not None and not isinstance(cause, TimeoutError)


def _own_words(body: object, text: str) -> str:
    """Return the service's own message, with the parameter it concerns if that is a tool. Endpoints differ in both."""
    if isinstance(body, dict):
        parameter = body.get("param")
        about = f" ({parameter[:200]})" if isinstance(parameter, str) and parameter.startswith("tools") else ""
        for key in ("message", "detail", "error"):
            if isinstance(body.get(key), str):
                return str(body[key])[:400] + about if about else str(body[key])
    return text
