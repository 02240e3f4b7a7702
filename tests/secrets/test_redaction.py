"""Secret values are removed from strings by value, and nothing else is."""

import base64
import html
import io
import json
import logging
from collections.abc import Callable
from itertools import product
from urllib.parse import quote, quote_plus

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentic_rag.base.json_form import to_text
from agentic_rag.base.redaction import KEPT_VALUES, Pieces, Redaction, redacted_logs

pytestmark = pytest.mark.attack(kind="secrets")

VALUE = 'pa"ss\\wörd/+12345'


def make_redaction(*values: str) -> Redaction:
    redact = Redaction()
    for value in values:
        redact.add("TOKEN", value)
    return redact


def test_a_secret_is_found_in_its_written_forms() -> None:
    redact = make_redaction(VALUE)
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


def lower_percent(text: str) -> str:
    head, *rest = text.split("%")
    return "%".join([head, *(part[:2].lower() + part[2:] for part in rest)])


ENCODINGS: dict[str, Callable[[str], str]] = {
    "JSON in JSON": lambda value: json.dumps({"a": json.dumps({"b": value})}),
    "JSON in JSON, as it is": lambda value: json.dumps(json.dumps(value, ensure_ascii=False), ensure_ascii=False),
    "JSON of PHP": lambda value: json.dumps(value).replace("/", "\\/"),
    "a URL": lambda value: quote(value, safe=""),
    "a URL in lower case": lambda value: lower_percent(quote(value, safe="")),
    "a path": lambda value: quote(value),
    "a form": lambda value: quote_plus(value),
    "encodeURIComponent": lambda value: quote(value, safe="!'()*"),
    "hex": lambda value: value.encode().hex(),
    "HEX": lambda value: value.encode().hex().upper(),
    "hex with spaces": lambda value: value.encode().hex(" "),
    "HEX with spaces": lambda value: value.encode().hex(" ").upper(),
    "hex with colons": lambda value: value.encode().hex(":"),
    "hex with hyphens": lambda value: value.encode().hex("-"),
    "HTML": lambda value: html.escape(value, quote=False),
    "an attribute in HTML": html.escape,
    "an attribute in HTML, as others write it": lambda value: html.escape(value).replace("&#x27;", "&#39;"),
    "HTML in JSON": lambda value: json.dumps(html.escape(value)),
}


def in_base64(before: bytes, after: bytes, url: bool) -> Callable[[str], str]:
    encode = base64.urlsafe_b64encode if url else base64.b64encode
    return lambda value: encode(before + value.encode() + after).decode()


BEFORE, AFTER = (b"", b"u", b"u:", b"usr", b"\xff\xfe"), (b"", b"x", b"yz", b"\xff\xff\xff")
ENCODINGS |= {f"base64 in {place}": in_base64(*place) for place in product(BEFORE, AFTER, (False, True))}


@pytest.mark.parametrize(
    "value", [VALUE, "sk-0123456789abcdef", "ключ-к-двери?>~", "+/+/+/+/+//", 'it\'s<a>&"b"-12345']
)
def test_a_secret_is_found_in_every_usual_encoding_even_in_pieces(value: str) -> None:
    redact = make_redaction(value)
    for encoding, encode in ENCODINGS.items():
        text = f"so: {encode(value)}."
        assert "[secret TOKEN]" in redact(text), encoding
        pieces = Pieces(redact)
        assert "".join(map(pieces.take, text)) + pieces.end() == redact(text), encoding


SPECIAL = "a]^-\\\n"
"""Characters with a special meaning in brackets of a regular expression."""


@given(
    values=st.lists(
        st.text("ab", min_size=8, max_size=12) | st.text(SPECIAL, min_size=8, max_size=12), min_size=1, max_size=4
    ),
    text=st.text("abc", max_size=60) | st.text(SPECIAL, max_size=60),
    cuts=st.lists(st.integers(1, 9), max_size=12),
)
def test_only_possible_starts_of_a_secret_are_held_back(values: list[str], text: str, cuts: list[int]) -> None:
    redact = make_redaction(*values)
    pieces, rest, redacted = Pieces(redact), text, ""
    for cut in [*cuts, len(text) + 1]:
        piece, rest = rest[:cut], rest[cut:]
        redacted += pieces.take(piece)
        held_back = pieces._held
        assert not held_back or any(form.startswith(held_back) and form != held_back for form in _forms_of(redact))
    assert redacted + pieces.end() == redact(text) == _slowly(text, _forms_of(redact))


def _forms_of(redact: Redaction) -> set[str]:
    return {form.decode() for _, forms in redact._values.values() for form in forms}


def _slowly(text: str, forms: set[str]) -> str:
    """The definition: from the left, at each place the longest value that begins there."""
    result, position = "", 0
    while position < len(text):
        longest = max((form for form in forms if text.startswith(form, position)), key=len, default="")
        result += "[secret TOKEN]" if longest else text[position]
        position += len(longest) or 1
    return result


def test_with_too_many_secrets_the_latest_are_redacted() -> None:
    redact = make_redaction("the-first-value")
    for number in range(KEPT_VALUES + 10):
        redact.add("TOKEN", f"another-value-{number:06}")
        redact.add("TOKEN", "the-first-value")
    assert redact("the-first-value another-value-000809") == "[secret TOKEN] [secret TOKEN]"
    assert redact("another-value-000000") == "another-value-000000"


def test_lone_surrogates_are_handled() -> None:
    assert make_redaction("12345678")("\ud800 12345678 \udfff") == "\ud800 [secret TOKEN] \udfff"


@given(st.binary(max_size=40), st.binary(max_size=40), st.sampled_from((VALUE, "\x01\x02 binary", "\U0010ffff" * 8)))
def test_a_value_is_cut_out_of_any_bytes(before: bytes, after: bytes, value: str) -> None:
    assert make_redaction(value).redact_bytes(before + value.encode() + after) == before + b"[secret TOKEN]" + after


def test_bytes_without_a_value_stay_as_they_are() -> None:
    every_pair = bytes(byte for pair in product(range(256), repeat=2) for byte in pair)
    assert make_redaction(VALUE).redact_bytes(every_pair + VALUE[:4].encode()) == every_pair + VALUE[:4].encode()
    assert Redaction().redact_bytes(every_pair) == every_pair


def test_the_token_after_bearer_is_redacted_alone_too() -> None:
    assert make_redaction("Bearer abcdefgh1")("x abcdefgh1 y") == "x [secret TOKEN] y"


def test_the_longer_of_overlapping_secrets_is_redacted_completely() -> None:
    assert make_redaction("abcdefgh", "abcdefghijkl")("abcdefghijkl abcdefgh") == "[secret TOKEN] [secret TOKEN]"


def test_a_short_value_is_not_redacted() -> None:
    assert make_redaction("1234567")("1234567") == "1234567"


def test_only_strings_are_changed() -> None:
    redact = make_redaction("12345678", '"a": [1')
    value = {"size": 12345678, "list": [1, 12345678.0, None, True], "12345678": "x12345678y"}
    redacted = redact.json(value)
    assert redacted == {"size": 12345678, "list": [1, 12345678.0, None, True], "12345678": "x[secret TOKEN]y"}
    assert redact.found_in({"a": [{"b": "..12345678"}]})
    assert not redact.found_in({"a": 12345678})


@given(
    value=st.sampled_from((VALUE, "plain-secret", "käse/und+brot", "<tag> & 'quote'")),
    encoding=st.sampled_from(("as it is", *ENCODINGS)),
    before=st.text(max_size=3),
    after=st.text(max_size=3),
    escaped=st.integers(0, 2),
    number=st.integers() | st.floats(allow_nan=False),
)
def test_json_considered_free_of_secrets_contains_none_in_any_form(
    value: str, encoding: str, before: str, after: str, escaped: int, number: float
) -> None:
    redact = make_redaction(value)
    text = before + (ENCODINGS[encoding](value) if encoding in ENCODINGS else value) + after
    for _ in range(escaped):
        text = json.dumps(text)
    document = {"a": [number, {"b": text, "c": None}]}
    assert redact.is_clear_json(to_text(document).encode()) <= (redact.json(document) == document)


def test_json_without_a_secret_is_recognised() -> None:
    assert make_redaction("plain-secret").is_clear_json(b'{"a":["plain","secret",12345678]}')
    assert make_redaction().is_clear_json(b'{"a":"\\n"}')


def test_without_secrets_a_value_is_returned_unchanged() -> None:
    value = {"a": ["b"]}
    assert Redaction().json(value) is value


def test_logs_of_every_logger_are_redacted_with_arguments_and_tracebacks() -> None:
    log = io.StringIO()
    handler = logging.StreamHandler(log)
    root = logging.getLogger()
    root.addHandler(handler)
    try:
        with redacted_logs(make_redaction("planted-value-1")):
            logging.getLogger("a.b.c").warning("told %s and %r", "planted-value-1", {"k": "planted-value-1"})
            try:
                raise ValueError("planted-value-1")
            except ValueError:
                logging.getLogger("other").exception("failed", stack_info=True)
    finally:
        root.removeHandler(handler)
    assert "planted-value-1" not in log.getvalue()
    assert log.getvalue().count("[secret TOKEN]") >= 3
    assert "Traceback" in log.getvalue()
