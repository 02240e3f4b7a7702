"""Foreign schemas in the form that a service accepts: no refusal, no good tool lost, and reversible names."""

import copy
import json
import random
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from jsonschema.exceptions import SchemaError

from agentic_rag.base.messages import ToolSpec
from agentic_rag.models.tool_rules import MESSAGES, OPENAI, STRICT_CHAT
from agentic_rag.runtime.core.model_tools import sendable_specs
from agentic_rag.testing.chat_problems import ChatRules, chat_problems
from agentic_rag.testing.problems import problems
from agentic_rag.testing.schema_problems import find_draft_problem
from agentic_rag.tools.schema_compat import (
    AdaptedSchema,
    RefusedSchema,
    SchemaFamily,
    adapt,
    find_top_problem,
    restore_names,
)

FAMILIES = (MESSAGES, OPENAI, STRICT_CHAT)
ALL_REFUSALS = frozenset({"$ref", "format", "recursion"})


def refusals(schema: Any, family: SchemaFamily) -> list[str]:
    """Return the answer of the family's fake to a request with a tool of this schema."""
    if family is MESSAGES:
        tool = {"name": "t", "description": "x", "input_schema": schema}
        return problems(
            {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "x"}], "tools": [tool]}
        )
    function = {"name": "t", "description": "x", "parameters": schema}
    rules = ChatRules(schema_refuses=ALL_REFUSALS if family is STRICT_CHAT else frozenset())
    request = {"model": "m", "messages": [{"role": "user", "content": "x"}]}
    return chat_problems({**request, "tools": [{"type": "function", "function": function}]}, rules)


def adapt_usable(schema: Any, family: SchemaFamily = MESSAGES) -> AdaptedSchema:
    adaptation = adapt(schema, family)
    assert isinstance(adaptation, AdaptedSchema), adaptation
    assert refusals(adaptation.schema, family) == []
    return adaptation


# --- generated schemas ------------------------------------------------------------------------------------------------

KEYS = [
    "a",
    "user_name",
    "x.y",
    "user name",
    "user[name]",
    "城市",
    "城",
    "é",
    "",
    "$ref",
    "a/b",
    "a~b",
    "__proto__",
    "k" * 80,
    "%",
    "user+name",
]
SCALARS: list[Any] = [None, 5, -1.5, "string", True, False, [], {}, "any", [1], float("nan"), 10**400]
KINDS: list[Any] = [
    "string",
    "number",
    "integer",
    "boolean",
    "null",
    "array",
    "object",
    "any",
    "String",
    "file",
    ["string", "null"],
    ["string", "string"],
    [],
    7,
    None,
]
REFERENCES = [
    "#",
    "#/definitions/D",
    "#/$defs/D",
    "#/properties/a",
    "#/definitions/None",
    "#D",
    "other.json",
    "https://example.com/s",
    "#/definitions/E",
    "",
    "#/%24defs/D",
    7,
]
PATTERNS = ["^a+$", "(", "(?P<x>a)", "\\p{L}+", "[", "a{3,1}", "(a+)+$", "\\A", "x" * 5_000, 3]


KEYWORDS: dict[str, list[Any]] = {
    "exclusiveMinimum": [True, False, 0, "0"],
    "exclusiveMaximum": [True, 5, None],
    "minimum": [0, "0", 1.5, True],
    "maximum": [9, None],
    "enum": [["a", "b"], [], "a", [None], list(range(300)), [{"properties": {"a b": 1}}]],
    "const": [1, None, {"a b": 1}],
    "default": [None, {"a b": 2}, float("inf")],
    "format": ["email", 3, "uint64"],
    "pattern": PATTERNS,
    "minLength": [-1, 0, 2.5, "3"],
    "multipleOf": [0, 0.01, "1"],
    "uniqueItems": ["true", True],
    "title": ["T", 3],
    "description": ["words", None, ["x"]],
    "examples": [["a"], "a"],
    "nullable": [True, "yes"],
    "$schema": ["http://json-schema.org/draft-04/schema#", 4],
    "$id": ["https://example.com/x", "#D"],
    "$anchor": ["D", "!!"],
    "$dynamicRef": ["#node"],
    "x-order": [1, {"properties": {"a b": {}}}],
    "dependentRequired": [{"a": ["b"]}, 3],
}


class Generator:
    """Generates schemas as servers in practice have them, and worse ones."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance

    def pick(self, values: list[Any]) -> Any:
        return self.chance.choice(values)

    def often(self, probability: float = 0.3) -> bool:
        return self.chance.random() < probability

    def schema(self, depth: int) -> Any:  # noqa: C901 - one line a keyword
        if self.often(0.06):
            return self.pick(SCALARS)
        schema: dict[str, Any] = {}
        if self.often(0.8):
            schema["type"] = self.pick(KINDS)
        if depth > 0:
            if self.often(0.6):
                schema["properties"] = self.properties(depth) if self.often(0.95) else self.pick(SCALARS)
            for keyword in ("anyOf", "oneOf", "allOf"):
                if self.often(0.15):
                    schema[keyword] = (
                        [self.schema(depth - 1) for _ in range(self.chance.randrange(4))]
                        if self.often(0.9)
                        else self.pick(SCALARS)
                    )
            if self.often(0.2):
                schema["items"] = self.pick([self.schema(depth - 1), [self.schema(depth - 1), self.schema(depth - 1)]])
            for keyword in (
                "additionalProperties",
                "additionalItems",
                "not",
                "if",
                "then",
                "contains",
                "propertyNames",
                "unevaluatedProperties",
            ):
                if self.often(0.07):
                    schema[keyword] = self.schema(depth - 1)
            if self.often(0.07):
                schema["patternProperties"] = {str(self.pick(PATTERNS)): self.schema(depth - 1)}
            if self.often(0.07):
                schema[self.pick(["dependencies", "dependentSchemas", "dependentRequired"])] = {
                    self.pick(KEYS): self.pick([["a", "a"], self.schema(depth - 1)])
                }
            if self.often(0.1):
                schema[self.pick(["definitions", "$defs"])] = {
                    "D": self.schema(depth - 1),
                    "E": {"$ref": "#/definitions/E"},
                }
        if self.often(0.15):
            schema["$ref"] = self.pick(REFERENCES)
        if self.often(0.25):
            schema["required"] = self.pick([["a"], ["user name", "a"], ["a", "a"], True, False, None, "a", [1], []])
        for keyword, values in KEYWORDS.items():
            if self.often(0.08):
                schema[keyword] = self.pick(values)
        return schema

    def properties(self, depth: int) -> dict[str, Any]:
        count = 300 if self.often(0.004) else self.chance.randrange(6)
        names = [self.pick(KEYS) if count < 300 else f"field {number}" for number in range(count)]
        return {name: self.schema(depth - 1 if count < 300 else 0) for name in names}

    def top(self) -> Any:
        schema = self.schema(self.chance.choice([1, 2, 2, 3]))
        if isinstance(schema, dict) and self.often(0.8):
            schema["type"] = "object"
        return schema


@pytest.mark.parametrize("schemas", [400, pytest.param(2_000, marks=pytest.mark.nightly("five times as many schemas"))])
def test_adapted_schemas_are_accepted_and_no_usable_tool_is_lost(schemas: int) -> None:
    lost_tools = []
    for seed in range(schemas):
        schema = Generator(random.Random(seed)).top()
        original = copy.deepcopy(schema)
        for family in FAMILIES if seed % 10 == 0 else [FAMILIES[seed % 3]]:
            adaptation = adapt(schema, family)
            if isinstance(adaptation, RefusedSchema):
                if not find_top_problem(schema) and _is_json(schema):
                    lost_tools.append((seed, adaptation.reason))
                continue
            assert refusals(adaptation.schema, family) == [], (seed, family.name, schema)
            second_adaptation = adapt(adaptation.schema, family)
            assert isinstance(second_adaptation, AdaptedSchema)
            assert refusals(second_adaptation.schema, family) == [], (seed, family.name)
            assert (
                second_adaptation.schema.get("properties", {}).keys() == adaptation.schema.get("properties", {}).keys()
            )
        assert repr(schema) == repr(original), "the server's own schema was changed"
    assert lost_tools == []


def test_the_fakes_rules_match_the_drafts_metaschema() -> None:
    """Everything that the library's metaschema refuses, the fake refuses too."""
    for seed in range(40):
        schema = Generator(random.Random(seed)).top()
        if isinstance(schema, dict) and not _is_valid(schema):
            assert find_draft_problem(schema), schema
    for _, property_schema, _ in CONVERSIONS:
        schema = {"type": "object", "properties": {"p": property_schema}}
        if not _is_valid(schema):
            assert find_draft_problem(schema), schema


def _is_valid(schema: Any) -> bool:
    try:
        Draft202012Validator.check_schema(schema)
    except SchemaError:
        return False
    return True


def _is_json(schema: Any) -> bool:
    try:
        json.dumps(schema, allow_nan=False)
    except ValueError:
        return False
    return True


def nest_objects(levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(levels):
        schema = {"type": "object", "properties": {"in": schema}}
    return schema


def fan_out(levels: int) -> dict[str, Any]:
    """Return a short schema whose references expand to 2 ** levels parts."""
    definitions = {
        f"d{number}": {
            "type": "object",
            "properties": {
                "l": {"$ref": f"#/definitions/d{number + 1}"},
                "r": {"$ref": f"#/definitions/d{number + 1}"},
            },
        }
        for number in range(levels)
    }
    return {
        "type": "object",
        "properties": {"a": {"$ref": "#/definitions/d0"}},
        "definitions": {**definitions, f"d{levels}": {"type": "string"}},
    }


def chain(length: int) -> dict[str, Any]:
    definitions = {
        f"d{number}": {"type": "object", "properties": {"next": {"$ref": f"#/definitions/d{number + 1}"}}}
        for number in range(length)
    }
    return {"type": "object", "properties": {"a": {"$ref": "#/definitions/d0"}}, "definitions": definitions}


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
@pytest.mark.parametrize(
    "schema",
    [
        pytest.param(nest_objects(300), id="nested deeply"),
        pytest.param(nest_objects(20_000), id="nested very deeply"),
        pytest.param(fan_out(40), id="references that multiply"),
        pytest.param(chain(600), id="a chain of references"),
        pytest.param(
            {"type": "object", "properties": {f"p{n}": {"type": "string"} for n in range(300)}}, id="300 properties"
        ),
        pytest.param(
            {"type": "object", "properties": {f"城{n}": {"type": "string"} for n in range(300)}}, id="300 other names"
        ),
        pytest.param(
            {"type": "object", "properties": {"a": {"enum": [f"value {n}" for n in range(200_000)]}}}, id="a huge enum"
        ),
        pytest.param({"type": "object", "description": "x" * 2_000_000}, id="2 MB"),
        pytest.param({"type": "object", "anyOf": [{"required": [f"r{n}"]} for n in range(5_000)]}, id="5000 branches"),
        pytest.param({"type": "object", "allOf": [{"$ref": "#"}, {"$ref": "#/allOf/0"}]}, id="a union of itself"),
        pytest.param(
            {"type": "object", "properties": {f"p{n}": {"$ref": f"#{n}"} for n in range(2_000)}},
            id="2000 references to nowhere",
        ),
    ],
)
def test_an_extreme_schema_is_adapted_or_refused_with_a_reason(schema: dict[str, Any], family: SchemaFamily) -> None:
    adaptation = adapt(schema, family)
    if isinstance(adaptation, RefusedSchema):
        assert adaptation.reason.startswith("its input")
    else:
        assert refusals(adaptation.schema, family) == []


# --- converted schemas ------------------------------------------------------------------------------------------------


def test_a_plain_schema_stays_the_same_object() -> None:
    schema = {
        "type": "object",
        "properties": {"a": {"type": "string", "enum": ["x"]}, "b": {"type": "array", "items": {"type": "number"}}},
        "required": ["a"],
        "additionalProperties": False,
    }
    for family in FAMILIES:
        assert adapt_usable(schema, family).schema is schema


def test_branches_of_a_top_level_union_are_merged_and_described() -> None:
    schema = {
        "type": "object",
        "properties": {"a": {"type": "string"}, "b": {"type": "string"}},
        "anyOf": [{"required": ["a"]}, {"required": ["b"]}],
    }
    adaptation = adapt_usable(schema)
    assert adaptation.schema["properties"] == schema["properties"]
    assert not adaptation.schema.get("required")
    assert adaptation.schema["description"] == "The arguments must fit at least one of these forms: a; or b."
    assert adaptation.notes == (adaptation.schema["description"],)


def test_fields_required_by_all_branches_stay_required() -> None:
    circle = {"properties": {"kind": {"const": "circle"}, "r": {"type": "number"}}, "required": ["kind", "r"]}
    square = {"properties": {"kind": {"const": "square"}, "w": {"type": "number"}}, "required": ["kind", "w"]}
    schema = {"type": "object", "oneOf": [circle, {"$ref": "#/definitions/s"}], "definitions": {"s": square}}
    for family in FAMILIES:
        adaptation = adapt_usable(schema, family)
        assert set(adaptation.schema["properties"]) == {"kind", "r", "w"}
        assert adaptation.schema["required"] == ["kind"]
        assert adaptation.schema["properties"]["kind"] == {"anyOf": [{"const": "circle"}, {"const": "square"}]}
        assert 'kind = "circle", r; or kind = "square", w' in adaptation.schema["description"]


def test_a_schema_that_is_only_a_reference_is_inlined_at_the_top() -> None:
    arguments = {"type": "object", "properties": {"q": {"type": "string"}}, "required": ["q"]}
    adaptation = adapt_usable({"$ref": "#/definitions/Args", "definitions": {"Args": arguments}})
    assert adaptation.schema == arguments


CONVERSIONS: list[tuple[str, Any, Any]] = [
    ("draft 4", {"type": "number", "minimum": 0, "exclusiveMinimum": True}, {"type": "number", "exclusiveMinimum": 0}),
    (
        "draft 4, not exclusive",
        {"type": "number", "maximum": 9, "exclusiveMaximum": False},
        {"type": "number", "maximum": 9},
    ),
    ("an unknown type", {"type": "any", "description": "x"}, {"description": "x"}),
    ("a type in capitals", {"type": "STRING"}, {"type": "string"}),
    (
        "a list of items",
        {"type": "array", "items": [{"type": "string"}]},
        {"type": "array", "prefixItems": [{"type": "string"}]},
    ),
    ("OpenAPI's null", {"type": "string", "nullable": True}, {"type": ["string", "null"]}),
    ("a broken pattern", {"type": "string", "pattern": "("}, {"type": "string"}),
    ("a reference to nowhere", {"$ref": "https://example.com/x"}, {}),
    (
        "a bound beyond every float",
        {"type": "integer", "maximum": 10**400, "minimum": 1},
        {"type": "integer", "minimum": 1},
    ),
    ("no schema", None, {}),
    ("a type in place of a schema", "string", {"type": "string"}),
]


@pytest.mark.parametrize(
    ("name", "definition", "expected"), CONVERSIONS, ids=[conversion[0] for conversion in CONVERSIONS]
)
def test_an_odd_property_is_converted(name: str, definition: Any, expected: Any) -> None:
    adaptation = adapt_usable({"type": "object", "properties": {"p": definition, "good": {"type": "string"}}})
    assert adaptation.schema["properties"] == {"p": expected, "good": {"type": "string"}}


def test_a_property_that_marks_itself_as_required_is_required() -> None:
    adaptation = adapt_usable(
        {"type": "object", "properties": {"a": {"type": "string", "required": True}, "b": {"required": False}}}
    )
    assert adaptation.schema == {"type": "object", "properties": {"a": {"type": "string"}, "b": {}}, "required": ["a"]}


def test_references_are_kept_or_inlined_by_model_family() -> None:
    tree = {"type": "object", "properties": {"children": {"type": "array", "items": {"$ref": "#/definitions/tree"}}}}
    schema = {"type": "object", "properties": {"root": {"$ref": "#/definitions/tree"}}, "definitions": {"tree": tree}}
    with_references = adapt_usable(schema, MESSAGES).schema
    assert with_references["properties"]["root"] == {"$ref": "#/$defs/tree"}
    assert with_references["$defs"]["tree"]["properties"]["children"]["items"] == {"$ref": "#/$defs/tree"}
    inlined = adapt_usable(schema, STRICT_CHAT).schema
    assert inlined["properties"]["root"]["properties"]["children"] == {"type": "array", "items": {}}


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        (None, "its inputSchema is null"),
        (True, "its inputSchema is true, not an object"),
        ([], "its inputSchema is a list, not an object"),
        ({"type": "string"}, "its inputSchema describes a string, not an object"),
        ({"type": ["array", "null"]}, "its inputSchema describes no object"),
    ],
)
def test_a_schema_that_cannot_hold_arguments_is_refused_with_the_reason(schema: Any, reason: str) -> None:
    assert adapt(schema, MESSAGES) == RefusedSchema(reason)


# --- names ------------------------------------------------------------------------------------------------------------

BOOKING = {
    "type": "object",
    "properties": {
        "出发 城市": {"type": "string"},
        "passengers[]": {"type": "array", "items": {"$ref": "#/definitions/person"}},
        "by day": {
            "type": "object",
            "additionalProperties": {"type": "object", "properties": {"max price": {"type": "number"}}},
        },
        "pair": {"type": "array", "items": [{"properties": {"x y": {}}}, {"type": "string"}]},
        "max_price": {"type": "number"},
    },
    "required": ["出发 城市"],
    "definitions": {
        "person": {
            "type": "object",
            "properties": {
                "full name": {"type": "string"},
                "friends": {"type": "array", "items": {"$ref": "#/definitions/person"}},
            },
            "required": ["full name"],
        }
    },
}


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_renamed_argument_names_are_restored_at_any_depth(family: SchemaFamily) -> None:
    adaptation = adapt_usable(BOOKING, family)
    names = {original: renamed for renamed, original in adaptation.argument_map.items()}
    assert names["出发 城市"].isascii()
    assert "max_price" not in adaptation.argument_map, "a name that is taken is not another's"
    arguments = {
        names["出发 城市"]: "Bern",
        names["passengers[]"]: [{names["full name"]: "A", "friends": [{names["full name"]: "B"}]}],
        names["by day"]: {names["full name"]: {names["max price"]: 3}},
        "pair": [{names["x y"]: {names["x y"]: 1}}, "z"],
        "max_price": 4,
        "unknown": {names["full name"]: 1},
    }
    assert restore_names(arguments, BOOKING, adaptation.argument_map) == {
        "出发 城市": "Bern",
        "passengers[]": [{"full name": "A", "friends": [{"full name": "B"}]}],
        "by day": {names["full name"]: {"max price": 3}},
        "pair": [{"x y": {names["x y"]: 1}}, "z"],
        "max_price": 4,
        "unknown": {names["full name"]: 1},
    }


def test_names_that_fold_to_the_same_name_stay_different() -> None:
    names = ["a b", "a/b", "a_b", "a~b", "a+b", "城", "誠"]
    adaptation = adapt_usable({"type": "object", "properties": {name: {"type": "string"} for name in names}})
    renamed = list(adaptation.schema["properties"])
    assert len(set(renamed)) == len(names)
    arguments = dict(zip(renamed, range(len(names)), strict=True))
    assert restore_names(arguments, {"properties": {name: {} for name in names}}, adaptation.argument_map) == dict(
        zip(names, range(len(names)), strict=True)
    )


def test_restored_arguments_fit_the_original_schema() -> None:
    original = {key: value for key, value in BOOKING.items() if key != "x"}
    original["properties"] = {**BOOKING["properties"], "pair": {"type": "array"}}  # type: ignore[dict-item]
    adaptation = adapt_usable(original)
    names = {original_name: renamed for renamed, original_name in adaptation.argument_map.items()}
    arguments = {names["出发 城市"]: "Bern", names["passengers[]"]: [{names["full name"]: "A"}]}
    assert Draft202012Validator(adaptation.schema).is_valid(arguments)
    assert Draft202012Validator(original).is_valid(restore_names(arguments, original, adaptation.argument_map))


def test_an_object_without_properties_gets_none_where_a_service_refuses_it() -> None:
    bare = {"type": "object"}
    adapted = adapt(bare, OPENAI)
    assert isinstance(adapted, AdaptedSchema)
    assert adapted.schema == {"type": "object", "properties": {}}
    unchanged = adapt(bare, MESSAGES)
    assert isinstance(unchanged, AdaptedSchema)
    assert unchanged.schema is bare


def test_a_description_is_cut_to_the_services_limit() -> None:
    spec = ToolSpec(name="look", description="d" * 2_000, input_schema={"type": "object", "properties": {}})
    (cut,) = sendable_specs("openai:gpt-5-mini", [spec], {})
    assert (len(cut["description"]), cut["description"][-5:]) == (1024, "[cut]")
    assert sendable_specs("claude-sonnet-5-5", [spec], {}) == (spec,)
