"""Every failure of the SDK and its HTTP client has a rule."""

import inspect
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import anthropic
import httpx2
import openai
import pytest
from anthropic import _error_classes
from hypothesis import example, given
from hypothesis import strategies as st

from agentic_rag.base.errors import ModelError
from agentic_rag.models.anthropic.errors import SDK_EXCEPTIONS, model_error
from agentic_rag.models.openai import errors as openai_errors
from agentic_rag.models.service_errors import (
    FINAL_STATUSES,
    RETRYABLE_STATUSES,
    Endpoint,
    parse_retry_after,
    stream_error,
)

KEY = "sk-very-secret"
REQUEST = httpx2.Request("POST", "https://api.example.com/v1/messages", headers={"authorization": f"Bearer {KEY}"})


def map_exception(exc: Exception, *, started: bool = False) -> ModelError:
    return model_error(exc, Endpoint("https://api.example.com", secret=KEY), model="claude-x", started=started)


def status_exception(status: int, message: str = "no", **headers: str) -> anthropic.APIStatusError:
    """Return the SDK's error for this status."""
    body = {"type": "error", "error": {"type": "some_error", "message": message}}
    response = httpx2.Response(status, headers=headers, json=body, request=REQUEST)
    return _error_classes.make_status_error("Error", body=body, response=response)


def subclasses(base: type[Any]) -> set[type[Any]]:
    return {base}.union(*(subclasses(cls) for cls in base.__subclasses__()))


def test_every_exception_of_the_sdk_has_a_rule() -> None:
    by_status = subclasses(anthropic.APIStatusError) - {anthropic.APIStatusError}
    class_names = {
        cls.__name__
        for cls in subclasses(anthropic.AnthropicError) - by_status
        if cls.__module__ == "anthropic"  # the public tree; helpers have their own
    }
    assert class_names - {"AnthropicError"} == SDK_EXCEPTIONS
    statuses = {status for status, _ in _error_classes.ERROR_CLASSES}
    assert statuses <= RETRYABLE_STATUSES | FINAL_STATUSES
    assert not RETRYABLE_STATUSES & FINAL_STATUSES
    declared_statuses = {getattr(cls, "status_code", None) for cls in by_status}
    assert {status for status in declared_statuses if isinstance(status, int)} <= statuses


def test_every_exception_of_the_http_client_becomes_a_model_error() -> None:
    for cls in subclasses(httpx2.HTTPError) | subclasses(httpx2.StreamError) | {httpx2.InvalidURL}:
        exc: Exception = Exception.__new__(cls, "broken")  # their constructors differ
        assert isinstance(map_exception(exc), ModelError), cls
        assert isinstance(map_exception(exc, started=True), ModelError), cls


def test_every_exception_class_of_the_http_client_is_mapped() -> None:
    public_classes = {cls for _, cls in inspect.getmembers(httpx2, inspect.isclass) if issubclass(cls, Exception)}
    mapped_classes = (
        subclasses(httpx2.HTTPError) | subclasses(httpx2.StreamError) | {httpx2.InvalidURL, httpx2.CookieConflict}
    )
    assert {cls for cls in public_classes if not issubclass(cls, Warning)} <= mapped_classes


@pytest.mark.parametrize("status", sorted(RETRYABLE_STATUSES | {520, 524}))
def test_a_transient_failure_is_retryable(status: int) -> None:
    error = map_exception(status_exception(status))
    assert error.retryable
    assert error.http_status == status
    assert error.kind == "some_error"
    assert not error.started


@pytest.mark.parametrize("status", sorted(FINAL_STATUSES))
def test_a_final_refusal_is_not_retried(status: int) -> None:
    assert not map_exception(status_exception(status, **{"retry-after": "3"})).retryable


def test_too_many_requests_is_retried_after_the_services_time() -> None:
    assert map_exception(status_exception(429)).retryable
    assert map_exception(status_exception(429, **{"retry-after": "7"})).retry_after == 7


@pytest.mark.parametrize(
    ("status", "says"),
    [(401, "ANTHROPIC_API_KEY"), (403, "ANTHROPIC_API_KEY"), (404, "ANTHROPIC_BASE_URL"), (413, "too large")],
)
def test_the_operator_reads_the_possible_causes(status: int, says: str) -> None:
    assert says in str(map_exception(status_exception(status)))


def test_an_unreachable_endpoint_is_named_with_its_setting() -> None:
    for exc in (anthropic.APIConnectionError(request=REQUEST), anthropic.APITimeoutError(request=REQUEST)):
        error = map_exception(exc)
        assert error.retryable
        assert "https://api.example.com" in str(error)
        assert "ANTHROPIC_BASE_URL" in str(error)


@pytest.mark.parametrize("status", [400, 401, 403, 404, 429, 500, 529])
def test_no_message_contains_the_key_even_if_the_service_repeats_it(status: int) -> None:
    assert KEY not in repr(map_exception(status_exception(status, f"bad key {KEY}")))


def test_a_connection_lost_in_mid_answer_causes_a_reset() -> None:
    for exc in (httpx2.ReadError("reset"), httpx2.RemoteProtocolError("closed"), httpx2.DecodingError("gzip")):
        error = map_exception(exc, started=True)
        assert error.started
        assert error.retryable


def test_our_own_exception_is_not_reported_as_the_services() -> None:
    with pytest.raises(ZeroDivisionError):
        map_exception(ZeroDivisionError())


@pytest.mark.parametrize("kind", ["overloaded_error", "api_error", "rate_limit_error", "timeout_error", ""])
def test_a_transient_error_inside_a_stream_is_retried(kind: str) -> None:
    error = stream_error(kind, "sorry")
    assert error.retryable
    assert error.started


def test_a_permanent_error_inside_a_stream_is_not_retried() -> None:
    assert not stream_error("invalid_request_error", "no").retryable


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, None),
        ({"retry-after": "12"}, 12),
        ({"retry-after": " 1.5 "}, 1.5),
        ({"retry-after": "-3"}, 0),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "nan"}, None),
        ({"retry-after": "inf"}, None),
        ({"retry-after-ms": "250"}, 0.25),
        ({"retry-after-ms": "250", "retry-after": "9"}, 0.25),
        ({"retry-after-ms": "?", "retry-after": "9"}, 9),
        ({"retry-after": "Wed, 21 Oct 2015 07:28:00 GMT"}, 0),
    ],
)
def test_retry_after_is_read_as_seconds(headers: dict[str, str], seconds: float | None) -> None:
    assert parse_retry_after(httpx2.Headers(headers)) == seconds


def test_retry_after_can_be_a_date() -> None:
    in_an_hour = datetime.now(UTC) + timedelta(hours=1)
    for value in (format_datetime(in_an_hour, usegmt=True), format_datetime(in_an_hour.replace(tzinfo=None))):
        seconds = parse_retry_after({"retry-after": value})
        assert seconds is not None
        assert 3500 < seconds <= 3600


@given(st.text(st.characters(codec="latin-1")))
@example("Mon, 01 Jan 99999999999 00:00:00 GMT")
@example("Mon, 01 Jan 2026 00:00:00 +9999999999999999999")
def test_any_retry_after_is_survived(value: str) -> None:
    seconds = parse_retry_after({"retry-after": value, "retry-after-ms": value})
    assert seconds is None or seconds >= 0


def openai_exception(status: int, code: str | None = None) -> openai.APIStatusError:
    body = {"error": {"message": f"no {KEY}", "type": "some_error", "code": code}}
    response = httpx2.Response(status, json=body, request=REQUEST)
    return openai.AsyncOpenAI(api_key="k")._make_status_error("Error", body=body, response=response)


def test_every_exception_of_the_other_sdk_has_a_rule() -> None:
    class_names = {
        cls.__name__
        for cls in subclasses(openai.OpenAIError) - subclasses(openai.APIStatusError)
        if cls.__name__[0] != "_"
        and cls.__module__ in ("openai", "openai._exceptions")  # the public tree; helpers have their own
    }
    class_names = {name for name in class_names if not name.startswith("_")}
    assert class_names - {"OpenAIError"} | {"APIStatusError", "OAuthError"} == openai_errors.SDK_EXCEPTIONS
    by_status = {cls.__name__ for cls in subclasses(openai.APIStatusError)} - {"APIStatusError", "OAuthError"}
    classes = {type(openai_exception(status)).__name__: status for status in range(400, 600)}
    assert by_status == classes.keys() - {"APIStatusError"}
    assert {status for status in classes.values() if status < 500} - {499} <= RETRYABLE_STATUSES | FINAL_STATUSES
    for cls in subclasses(openai.OpenAIError) - subclasses(openai.APIStatusError):
        exc: Exception = Exception.__new__(cls, "broken")  # their constructors differ
        error = openai_errors.model_error(exc, Endpoint("https://api.example.com"), model="m")
        assert isinstance(error, ModelError), cls


@pytest.mark.parametrize(("status", "code", "retryable"), [(429, None, True), (429, "insufficient_quota", False)])
def test_the_other_sdks_failures_are_mapped_the_same(status: int, code: str | None, retryable: bool) -> None:
    endpoint = Endpoint("https://api.example.com", secret=KEY)
    error = openai_errors.model_error(openai_exception(status, code), endpoint, model="m")
    assert (error.http_status, error.retryable, error.kind) == (status, retryable, code or "some_error")
    assert KEY not in repr(error)
