"""The forms of servers: the supported ones, and the answers that fit them."""

from typing import Any

import pytest

from agentic_rag.base.errors import InvalidInput
from agentic_rag.base.json_form import Json
from agentic_rag.tools.elicited_forms import FIELDS, OPTIONS, UnfitForm, fill_form, read_schema

COLOURS = [{"const": "r", "title": "Red"}, {"const": "g", "title": "Green"}]
WHOLE = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "type": "object",
    "properties": {
        "name": {"type": "string", "title": "Name", "minLength": 2, "maxLength": 5, "default": "John"},
        "age": {"type": "integer", "minimum": 0, "maximum": 150, "default": 30},
        "score": {"type": "number", "default": 95.5},
        "ok": {"type": "boolean", "default": True},
        "plain": {"type": "string", "enum": ["r", "g"]},
        "named": {"type": "string", "enum": ["r", "g"], "enumNames": ["Red", "Green"], "default": "g"},
        "titled": {"type": "string", "oneOf": COLOURS},
        "some": {"type": "array", "items": {"type": "string", "enum": ["r", "g"]}, "minItems": 1, "maxItems": 2},
        "many": {"type": "array", "items": {"anyOf": COLOURS}, "default": ["r"]},
        "mail": {"type": "string", "format": "email"},
        "page": {"type": "string", "format": "uri"},
        "day": {"type": "string", "format": "date"},
        "at": {"type": "string", "format": "date-time"},
    },
    "required": ["name", "plain"],
}


def form(**fields: Any) -> Json:
    return {"type": "object", "properties": fields}


def read_form(schema: object = WHOLE) -> Json:
    form_shown = read_schema(schema)
    assert not isinstance(form_shown, UnfitForm), form_shown
    return form_shown


def test_choices_are_shown_in_one_notation_and_the_rest_as_it_came() -> None:
    form_shown = read_form()
    fields = form_shown["properties"]
    assert fields["plain"]["oneOf"] == [{"const": "r", "title": "r"}, {"const": "g", "title": "g"}]
    assert fields["named"]["oneOf"] == fields["titled"]["oneOf"] == fields["many"]["items"]["anyOf"] == COLOURS
    assert fields["name"] == WHOLE["properties"]["name"]  # type: ignore[index]
    assert form_shown["required"] == ["name", "plain"]
    assert read_form(form_shown) == form_shown


def test_defaults_are_filled_in_and_a_null_leaves_a_field_empty() -> None:
    form_shown = read_form()
    assert fill_form(form_shown, {"plain": "r"}) == {
        "name": "John", "age": 30, "score": 95.5, "ok": True, "plain": "r", "named": "g", "many": ["r"],
    }  # fmt: skip
    assert "age" not in fill_form(form_shown, {"plain": "r", "age": None})
    assert repr(fill_form(form_shown, {"plain": "r", "age": 31.0})["age"]) == "31"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("name", "J"), ("name", "Johann"), ("name", 7), ("age", -1), ("age", 151), ("age", 1.5), ("age", True),
        ("age", "7"), ("score", "7"), ("score", False), ("ok", 1), ("ok", "true"), ("plain", "b"), ("named", "Red"),
        ("titled", ["r"]), ("some", []), ("some", ["r", "r"]), ("some", "r"), ("many", ["b"]), ("many", [{}]),
        ("mail", "ann"), ("mail", "a b@c.d"), ("page", "sign.test"), ("page", "http://[::1"), ("day", "2026-02-29"),
        ("day", "22.11.2026"), ("at", "2026-11-22"), ("at", "2026-11-22T25:00:00Z"), ("name", None), ("other", "x"),
        ("score", 10**400),
    ],
)  # fmt: skip
def test_an_invalid_answer_names_its_field(field: str, value: object) -> None:
    with pytest.raises(InvalidInput) as refusal:
        fill_form(read_form(), {"plain": "r", field: value})
    assert refusal.value.path == f"content.{field}"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("mail", "ann@law.test"), ("page", "https://law.test/x"), ("page", "urn:isbn:1"), ("day", "2024-02-29"),
        ("at", "2026-11-22T09:30:00.5+01:00"), ("some", ["g", "r"]), ("score", 7), ("many", []),
    ],
)  # fmt: skip
def test_a_valid_answer_is_accepted(field: str, value: object) -> None:
    assert fill_form(read_form(), {"plain": "r", field: value})[field] == value


@pytest.mark.parametrize(
    "schema",
    [
        None, [], {}, {"type": "string"}, {"type": "object", "properties": []},
        form(a={"type": "object", "properties": {}}), form(a={"type": "null"}), form(a={"type": ["string", "null"]}),
        form(a={"$ref": "#/$defs/x"}), form(a="string"), form(a={"type": "array"}),
        form(a={"type": "array", "items": {"type": "string"}}), form(a={"type": "array", "items": {"type": "object"}}),
        form(a={"type": "string", "pattern": "(a+)+$"}), form(a={"type": "string", "format": "regex"}),
        form(a={"type": "string", "format": ["email"]}),
        form(a={"type": "string", "enum": []}), form(a={"type": "string", "enum": ["r", "r"]}),
        form(a={"type": "string", "enum": [1, 2]}), form(a={"type": "string", "enum": ["r"], "enumNames": ["R", "G"]}),
        form(a={"type": "string", "oneOf": [{"type": "object"}]}), form(a={"type": "string", "oneOf": "r"}),
        form(a={"type": "string", "enum": [str(n) for n in range(OPTIONS + 1)]}),
        form(a={"type": "string", "minLength": -1}), form(a={"type": "string", "maxLength": "9"}),
        form(a={"type": "integer", "minimum": "0"}), form(a={"type": "integer", "default": "x"}),
        form(a={"type": "string", "title": "x" * 2_001}), form(a={"type": "string", "title": {}}),
        form(**{f"f{n}": {"type": "string"} for n in range(FIELDS + 1)}), form(**{"a\u200b": {"type": "string"}}),
        form(**{"": {"type": "boolean"}}), form(**{"x" * 129: {"type": "boolean"}}),
        {**form(a={"type": "string"}), "required": ["b"]}, {**form(a={"type": "string"}), "required": "a"},
        {**form(a={"type": "string"}), "required": [["a"]]}, form(a={"type": "integer", "default": float("inf")}),
        {**form(a={"type": "string"}), "allOf": [{}]}, {**form(), "patternProperties": {"(a+)+$": {}}},
        {**form(), "$comment": "x" * 33_000},
    ],
)  # fmt: skip
def test_a_schema_that_cannot_be_fully_shown_and_checked_is_refused(schema: object) -> None:
    unfit = read_schema(schema)
    assert isinstance(unfit, UnfitForm)
    assert unfit.why
