"""The message to a model whose arguments do not fit: all problems together, with the form to send."""

from typing import Any

import pytest

from agentic_rag.runtime.core.arguments import find_problem, fit_arguments

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "query": {"type": "string", "minLength": 2, "maxLength": 5},
        "top_k": {"type": "integer", "minimum": 1, "maximum": 50},
        "mode": {"enum": ["near", "far"]},
        "words": {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]},
        "rows": {
            "type": "array",
            "minItems": 1,
            "items": {
                "type": "object",
                "required": ["content", "strength"],
                "properties": {"strength": {"type": "number"}},
            },
        },
    },
    "required": ["query", "mode"],
    "additionalProperties": False,
}


@pytest.mark.parametrize("user", [True, False])
@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({}, ["query is missing: it must be text", 'mode is missing: it must be one of ["near", "far"]']),
        (
            {"query": 7, "mode": "up", "top_k": "many"},
            [
                "query must be text, not a whole number",
                "top_k must be a whole number, not text",
                'mode must be one of ["near", "far"]',
            ],
        ),
        (
            {"query": "x", "mode": "far", "top_k": 99, "rows": []},
            ["query must have at least 2 characters", "top_k must be at most 50", "rows must have at least 1 items"],
        ),
        (
            {"query": "xy", "mode": "far", "rows": [{"strength": "much"}]},
            ["rows[0].content is missing", "rows[0].strength must be a number, not text"],
        ),
        ({"query": "xy", "mode": "far", "words": 3}, ["words must be text or a list"]),
        ({"query": "xy", "mode": "far", "words": ["a", 3]}, ["words[1] must be text, not a whole number"]),
        (
            {"query": "xy", "mode": "far", "limit": 3},
            ["limit is not known, leave it out (known: query, top_k, mode, words, rows)"],
        ),
    ],
)
def test_all_problems_are_reported_at_once_with_their_remedies(
    arguments: dict[str, Any], expected: list[str], user: bool
) -> None:
    problem = find_problem(SCHEMA, arguments, user=user)
    assert problem is not None
    assert sorted(problem.split("; ")) == sorted(expected)


def test_problems_do_not_repeat_the_sent_values_and_are_bounded() -> None:
    schema = {"type": "object", "properties": {"rows": {"type": "array", "items": {"type": "integer"}}}}
    problem = find_problem(schema, {"rows": ["secret words"] * 1_000}, user=True)
    assert problem is not None
    assert "secret" not in problem
    assert len(problem.split("; ")) == 20


@pytest.mark.parametrize(
    "schema", [{"type": 7}, {"properties": {"a": {"type": ["nothing"]}}}, {"anyOf": "x"}, {"not": {}}]
)
def test_a_schema_of_any_form_is_read(schema: dict[str, Any]) -> None:
    find_problem(schema, {"a": 1}, user=True)


def test_a_null_for_an_optional_argument_of_a_foreign_tool_is_left_out() -> None:
    arguments = {"query": "abc", "mode": "far", "top_k": None}
    assert fit_arguments(SCHEMA, arguments, user=True) == ({"query": "abc", "mode": "far"}, None)
    nullable = {"type": "object", "properties": {"top_k": {"type": ["integer", "null"]}}}
    assert fit_arguments(nullable, {"top_k": None}, user=True) == ({"top_k": None}, None)
    for bad_arguments in ({**arguments, "query": None}, {**arguments, "mode": "up"}):
        fitted_arguments, problem = fit_arguments(SCHEMA, bad_arguments, user=True)
        assert fitted_arguments == bad_arguments
        assert problem == find_problem(SCHEMA, bad_arguments, user=True)
    assert fit_arguments({**SCHEMA, "required": 7}, arguments, user=True)[0] == arguments


TREE: dict[str, Any] = {
    "type": "object",
    "properties": {"root": {"$ref": "#/definitions/node"}, "price": {"minimum": 0, "exclusiveMinimum": True}},
    "definitions": {
        "node": {
            "type": "object",
            "properties": {
                "name": {"type": "string", "required": True},
                "children": {"type": "array", "items": {"$ref": "#/definitions/node"}},
            },
        }
    },
}


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({"root": {"name": "a", "children": [{"name": "b"}]}, "price": 1}, None),
        ({"root": {"name": "a", "children": [{"name": 3}]}}, "root.children[0].name must be text, not a whole number"),
        ({"root": {"name": "a", "children": [{}]}}, "root.children[0].name is missing"),
        ({"price": 0}, "price must be more than 0"),
    ],
)
def test_references_and_terms_of_older_drafts_are_checked_too(arguments: dict[str, Any], problem: str | None) -> None:
    reported = find_problem(TREE, arguments, user=True)
    assert (reported or "").startswith(problem or ""), reported
    assert (reported is None) == (problem is None)


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object", "properties": {"a": {"pattern": "^(a+)+$"}}},
        {"$ref": "#"},
        {"type": "object", "properties": {"a": {"$ref": "#/definitions/None"}}},
        {"type": "object", "properties": {"a": {"$ref": "https://example.com/x"}}, "$defs": 3},
        {
            "type": "object",
            "properties": {"a": {"$ref": "#/definitions/x"}},
            "definitions": {"x": {"$ref": "#/definitions/x"}},
        },
        {"properties": {"a": {"allOf": [{"$ref": "#/properties/a"}, {"$ref": "#/properties/a"}]}}},
    ],
)
def test_a_broken_or_very_slow_schema_refuses_no_call(schema: dict[str, Any]) -> None:
    assert find_problem(schema, {"a": "a" * 40 + "!"}, user=True) is None


def test_a_problem_names_the_argument_by_its_shown_name() -> None:
    schema = {"type": "object", "properties": {"full name": {"type": "string"}}, "required": ["full name"]}
    names = {"full name": "full_name"}
    assert find_problem(schema, {}, user=True, names=names) == "full_name is missing: it must be text"
    assert (
        find_problem(schema, {"full name": 3}, user=True, names=names) == "full_name must be text, not a whole number"
    )


EVENT = {
    "oneOf": [
        {"type": "object", "required": ["kind", "at"], "properties": {"kind": {"const": "once"}}},
        {"type": "object", "required": ["kind", "every"], "properties": {"kind": {"const": "daily"}}},
        {"type": "string"},
    ]
}


def test_a_union_of_objects_names_the_problems_of_each_form() -> None:
    text = find_problem(EVENT, {"kind": "once"}, user=True)
    assert text == 'either (at is missing) or (every is missing, kind must be "daily")'
    assert find_problem(EVENT, {"kind": "once", "at": "9"}, user=True) is None


def test_alternatives_of_a_server_may_overlap() -> None:
    schema = {"properties": {"n": {"oneOf": [{"type": "integer"}, {"type": "number"}]}}}
    assert find_problem(schema, {"n": 5}, user=True) is None
    assert find_problem(schema, {"n": "5"}, user=True) == "n must be a whole number or a number"
