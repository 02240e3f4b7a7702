"""Messages that tell a model how to correct an invalid tool argument. Pure.

Owns the wording for each JSON Schema rule. The messages contain neither the values that the model sent, which may be
long, nor the text of the library that found the problem.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

SHOWN_CHARS = 200
"""Most characters of a schema's own value, or of an argument's path, that a message quotes."""
SHOWN_NAMES = 20
NO_NAMES: Mapping[str, str] = {}

_KINDS: Mapping[str, str] = {
    "string": "text",
    "integer": "a whole number",
    "number": "a number",
    "boolean": "true or false",
    "array": "a list",
    "object": "an object",
    "null": "null",
}


class SchemaProblem(Protocol):
    """A validator's report that one rule is violated (a `jsonschema.ValidationError`)."""

    @property
    def absolute_path(self) -> Sequence[Any]: ...
    @property
    def validator(self) -> Any: ...
    @property
    def validator_value(self) -> Any: ...
    @property
    def instance(self) -> Any: ...
    @property
    def schema(self) -> Any: ...
    @property
    def context(self) -> Sequence["SchemaProblem"] | None: ...


def describe_problem(error: SchemaProblem, names: Mapping[str, str] = NO_NAMES) -> list[str]:
    """Return the sentences for one problem. Each names the argument and the value it must have.

    ``names``: arguments that the model saw under another name, as own name → shown name.
    """
    place = _place([names.get(step, step) if isinstance(step, str) else step for step in error.absolute_path])
    if error.validator == "required":
        missing = [name for name in error.validator_value if name not in error.instance]
        return [
            f"{_inside(place, names.get(name, name))} is missing{_describe_missing(error.schema, name)}"
            for name in missing
        ]
    if error.validator == "additionalProperties" and isinstance(error.schema, Mapping):
        allowed_names = list(error.schema.get("properties", ()))
        extra = [name for name in error.instance if name not in allowed_names][:SHOWN_NAMES]
        listed = ", ".join(names.get(name, name) for name in allowed_names[:SHOWN_NAMES]) or "none"
        return [f"{_inside(place, name)} is not known, leave it out (known: {listed})" for name in extra]
    if error.validator in ("anyOf", "oneOf") and error.context:
        inner = _of_same_kind(error)
        if inner:
            return [sentence for problem in inner for sentence in describe_problem(problem, names)]
    return [f"{place or 'the arguments'} {_rule(error)}"]


def _place(path: Sequence[Any]) -> str:
    text = ""
    for step in path:
        text += f"[{step}]" if isinstance(step, int) else f".{step}" if text else str(step)
    return text[:SHOWN_CHARS]


def _inside(place: str, name: str) -> str:
    return f"{place}.{name}"[:SHOWN_CHARS] if place else name[:SHOWN_CHARS]


def _describe_missing(schema: Any, name: str) -> str:
    """Return the required type of a missing argument, or an empty string if its schema gives none."""
    own = (schema.get("properties") or {}).get(name) if isinstance(schema, Mapping) else None
    kinds = _kinds_of(own)
    return f": it must be {kinds}" if kinds else ""


def _kinds_of(schema: Any) -> str:
    if not isinstance(schema, Mapping):
        return ""
    if "enum" in schema:
        return f"one of {_quote(schema['enum'])}"
    kinds = schema.get("type")
    names = [kinds] if isinstance(kinds, str) else kinds if isinstance(kinds, list | tuple) else ()
    return " or ".join(_KINDS.get(str(name), str(name)) for name in names)


def _kind_of(value: object) -> str:
    kinds: tuple[tuple[type | tuple[type, ...], str], ...] = (
        (bool, "boolean"),
        (str, "string"),
        (int, "integer"),
        (float, "number"),
        (Mapping, "object"),
        ((list, tuple), "array"),
    )
    return next((name for types, name in kinds if isinstance(value, types)), "null")


def _of_same_kind(error: SchemaProblem) -> list[SchemaProblem]:
    """Return the problems of the only alternative whose type is that of the sent value, else an empty list."""
    kind = _kind_of(error.instance)
    fitting = [
        place
        for place, alternative in enumerate(error.validator_value)
        if isinstance(alternative, Mapping) and alternative.get("type") == kind
    ]
    if len(fitting) != 1:
        return []
    return [problem for problem in error.context or () if getattr(problem, "schema_path", (None,))[0] == fitting[0]]


def _quote(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)[:SHOWN_CHARS]


def _alternatives(error: SchemaProblem) -> str:
    kinds = dict.fromkeys(filter(None, map(_kinds_of, error.validator_value)))
    return f"must be {' or '.join(kinds)}" if kinds else "fits none of the forms in the schema"


_RULES: Mapping[str, Callable[[Any], str]] = {
    "const": lambda value: f"must be {_quote(value)}",
    "enum": lambda value: f"must be one of {_quote(value)}",
    "minimum": lambda value: f"must be at least {value}",
    "maximum": lambda value: f"must be at most {value}",
    "exclusiveMinimum": lambda value: f"must be more than {value}",
    "exclusiveMaximum": lambda value: f"must be less than {value}",
    "multipleOf": lambda value: f"must be a multiple of {value}",
    "minLength": lambda value: f"must have at least {value} characters",
    "maxLength": lambda value: f"must have at most {value} characters",
    "minItems": lambda value: f"must have at least {value} items",
    "maxItems": lambda value: f"must have at most {value} items",
    "minProperties": lambda value: f"must have at least {value} members",
    "maxProperties": lambda value: f"must have at most {value} members",
    "uniqueItems": lambda value: "must not hold an item twice",
    "dependentRequired": lambda value: f"needs more members: {_quote(value)}",
    "pattern": lambda value: f"must match {_quote(value)}",
    "format": lambda value: f"must be a {value}",
}


def _rule(error: SchemaProblem) -> str:
    if error.validator == "type":
        sent = _KINDS[_kind_of(error.instance)]
        return f"must be {_kinds_of({'type': error.validator_value})}, not {sent}"
    if error.validator in ("anyOf", "oneOf"):
        return _alternatives(error)
    rule = _RULES.get(error.validator)
    if rule is not None:
        return rule(error.validator_value)
    return f"must fit {_quote({str(error.validator): error.validator_value})}"
