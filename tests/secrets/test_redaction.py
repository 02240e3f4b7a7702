"""Secret values are taken out of strings by value, and of nothing else."""

import base64
import io
import json
import logging
from urllib.parse import quote

import pytest

from agentic_rag.redaction import Redaction, redacted_logs

pytestmark = pytest.mark.attack(kind="secrets")

VALUE = 'pa"ss\\wörd/+12345'


def known(*values: str) -> Redaction:
    redact = Redaction()
    for value in values:
        redact.add("TOKEN", value)
    return redact


def test_a_value_is_found_in_the_forms_in_which_it_is_written() -> None:
    redact = known(VALUE)
    for text in (
        VALUE,
        json.dumps({"a": VALUE}),
        json.dumps({"a": VALUE}, ensure_ascii=False),
        repr([VALUE]),
        f"https://x/?q={quote(VALUE, safe='')}",
        f"Basic {base64.b64encode(VALUE.encode()).decode()}",
    ):
        assert "[secret TOKEN]" in redact(text)
        assert VALUE not in redact(text)


def test_the_token_after_bearer_is_a_secret_of_its_own() -> None:
    assert known("Bearer abcdefgh1")("x abcdefgh1 y") == "x [secret TOKEN] y"


def test_of_overlapping_values_the_longer_one_goes_whole() -> None:
    assert known("abcdefgh", "abcdefghijkl")("abcdefghijkl abcdefgh") == "[secret TOKEN] [secret TOKEN]"


def test_a_short_value_is_not_looked_for() -> None:
    assert known("1234567")("1234567") == "1234567"


def test_only_strings_are_changed() -> None:
    redact = known("12345678", '"a": [1')
    value = {"size": 12345678, "list": [1, 12345678.0, None, True], "12345678": "x12345678y"}
    changed = redact.json(value)
    assert changed == {"size": 12345678, "list": [1, 12345678.0, None, True], "12345678": "x[secret TOKEN]y"}
    assert redact.found_in({"a": [{"b": "..12345678"}]})
    assert not redact.found_in({"a": 12345678})


def test_without_secrets_a_value_is_handed_back_as_it_is() -> None:
    value = {"a": ["b"]}
    assert Redaction().json(value) is value


def test_logs_of_every_logger_are_redacted_with_arguments_and_tracebacks() -> None:
    written = io.StringIO()
    handler = logging.StreamHandler(written)
    root = logging.getLogger()
    root.addHandler(handler)
    try:
        with redacted_logs(known("planted-value-1")):
            logging.getLogger("a.b.c").warning("told %s and %r", "planted-value-1", {"k": "planted-value-1"})
            try:
                raise ValueError("planted-value-1")
            except ValueError:
                logging.getLogger("other").exception("failed", stack_info=True)
    finally:
        root.removeHandler(handler)
    assert "planted-value-1" not in written.getvalue()
    assert written.getvalue().count("[secret TOKEN]") >= 3
    assert "Traceback" in written.getvalue()
