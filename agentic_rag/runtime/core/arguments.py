"""Validation of a call's arguments against the input schema of its tool. Pure.

Owns which keywords of a user server's schema are checked, and how much work a check may take. A schema that is broken
or too expensive to check refuses nothing, because the tool's server validates the arguments again. Knows no policy and
no call.

Also owns the message that tells the model how to correct the arguments. It contains neither the values that the model
sent, which may be long, nor the text of the library that found the problem.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from contextvars import ContextVar
from functools import cache
from itertools import islice
from typing import Any, Protocol
from urllib.parse import unquote

from agentic_rag.base.json_form import Json

PROBLEM_CHARS = 2_000
"""Most characters of the error message that the model reads."""
MAX_PROBLEMS = 20
SHOWN_CHARS = 200
"""Most characters of a schema's own value, or of an argument's path, that a message quotes."""
SHOWN_NAMES = 20
MAX_FORMS = 4
"""Most alternatives of a union that the message describes."""

STEPS = 10_000
"""Work limit for one check against a user server's schema, about a tenth of a second.

A step is a keyword applied to a value, or an item of the keyword's list, or `STEP_CHARS` characters of the value, which
an error message of the validator would repeat.
"""

STEP_CHARS = 1_024

NO_NAMES: Mapping[str, str] = {}

KEPT_SCHEMAS = 512
"""Validators in the cache for user servers' schemas, which are the same objects from turn to turn."""

_TYPES = frozenset({"string", "number", "integer", "boolean", "null", "array", "object"})
_ONE = frozenset({"items", "additionalProperties", "propertyNames", "contains", "not", "if", "then", "else"})
_LIST = frozenset({"prefixItems", "anyOf", "allOf", "oneOf"})
_NAMED = frozenset({"properties", "dependentSchemas", "$defs", "definitions"})


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_names(value: object) -> bool:
    return isinstance(value, list | tuple) and all(isinstance(item, str) for item in value)


_PLAIN: Mapping[str, Callable[[Any], bool]] = {
    "type": lambda value: (
        value in _TYPES if isinstance(value, str) else _is_names(value) and bool(value) and _TYPES.issuperset(value)
    ),
    "enum": lambda value: isinstance(value, list | tuple),
    "const": lambda value: True,
    "required": _is_names,
    "dependentRequired": lambda value: isinstance(value, Mapping) and all(map(_is_names, value.values())),
    "uniqueItems": lambda value: isinstance(value, bool),
    "multipleOf": lambda value: _is_number(value) and value > 0,
    **dict.fromkeys(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"), _is_number),
    **dict.fromkeys(("minLength", "maxLength", "minItems", "maxItems", "minContains", "maxContains"), _is_count),
    **dict.fromkeys(("minProperties", "maxProperties"), _is_count),
}
"""Keywords whose values are plain data, with a check of the value's form.

These and the keywords that contain schemas are the only ones checked in a user server's schema: a regular expression
can run for ever. References are followed only inside the document, and each counts as a step.
"""


class _TooMuch(Exception):
    """A check took more than `STEPS` steps."""


class _Meter:
    """The remaining steps of one check.

    ``_sizes``: characters of each list and mapping in the arguments, by identity.
    """

    def __init__(self, arguments: Json) -> None:
        self._left = STEPS
        self._sizes: dict[int, int] = {}
        self._measure(arguments)

    def _measure(self, value: Any) -> int:
        if isinstance(value, Mapping):
            size = 2 + sum(len(key) + self._measure(item) for key, item in value.items())
        elif isinstance(value, list | tuple):
            size = 2 + sum(map(self._measure, value))
        else:
            return len(value) if isinstance(value, str) else 8
        self._sizes[id(value)] = size
        return size

    def spend(self, keyword_value: Any, value: Any) -> None:
        """Count one keyword applied to one value of the arguments.

        Raises:
            _TooMuch: the check took more than `STEPS` steps.
        """
        size = len(value) if isinstance(value, str) else self._sizes.get(id(value), 8)
        items = len(keyword_value) if isinstance(keyword_value, Mapping | list | tuple) else 0
        self._left -= 1 + items + size // STEP_CHARS
        if self._left < 0:
            raise _TooMuch


_meter: ContextVar[_Meter] = ContextVar("meter")


def find_problem(schema: Any, arguments: Json, *, user: bool, names: Mapping[str, str] = NO_NAMES) -> str | None:
    """Return a message with every problem of the arguments and how to correct them, or None if they are valid.

    No reference of any schema is fetched. For one of our own schemas, null means the same as a missing optional
    argument; see `without_nulls`.

    ``user``: the schema comes from a user's server, so its check is limited to `STEPS`. ``names``: arguments that the
    model saw under another name, as own name → shown name. The message has the shown name.
    """
    # jsonschema is imported on first use: it takes a tenth of a second (`agentic_rag.app.application`)
    from jsonschema.exceptions import SchemaError
    from referencing.exceptions import Unresolvable

    try:
        if user:
            return _problems(_checker(schema), arguments, names)
        return _problems(_own_checker(schema), without_nulls(schema, arguments), names)
    except (SchemaError, Unresolvable, RecursionError, ArithmeticError):
        return None


def fit_arguments(
    schema: Any, arguments: Json, *, user: bool, names: Mapping[str, str] = NO_NAMES
) -> tuple[Json, str | None]:
    """Return a call's arguments as they are sent, and a message with every problem; see `find_problem`.

    Models write null for an argument they leave out. If a user server's tool does not accept null there, the argument
    is not sent.
    """
    problem = find_problem(schema, arguments, user=user, names=names)
    if problem is None or not user or not (isinstance(schema, Mapping) and _is_names(schema.get("required", ()))):
        return arguments, problem
    fewer = without_nulls(schema, arguments)
    if len(fewer) < len(arguments) and find_problem(schema, fewer, user=user) is None:
        return fewer, None
    return arguments, problem


def without_nulls(schema: Any, arguments: Json) -> Json:
    """Return the arguments without optional ones that are null."""
    return {name: value for name, value in arguments.items() if value is not None or name in schema.get("required", ())}


def _problems(checker: Any, arguments: Json, names: Mapping[str, str]) -> str | None:
    values = dict(arguments)
    _meter.set(_Meter(values))
    sentences: dict[str, None] = {}
    with suppress(_TooMuch):  # the problems found before the limit are real
        for error in islice(checker.iter_errors(values), MAX_PROBLEMS):
            sentences.update(dict.fromkeys(describe_problem(error, names)))
    return "; ".join(sentences)[:PROBLEM_CHARS] or None


_CHECKERS: dict[int, tuple[Any, Any]] = {}
"""Cache of validators for user servers' schemas: identity of the schema → schema and validator."""


def _checker(schema: Any) -> Any:
    cached = _CHECKERS.get(id(schema))
    if cached is not None and cached[0] is schema:
        return cached[1]
    from referencing import Registry

    checker = _bounded_validator()(_with_known_references(_harmless(schema)), registry=Registry())
    if len(_CHECKERS) >= KEPT_SCHEMAS:
        _CHECKERS.clear()
    _CHECKERS[id(schema)] = schema, checker
    return checker


def _own_checker(schema: Any) -> Any:
    from jsonschema.validators import Draft202012Validator
    from referencing import Registry

    return Draft202012Validator(schema, registry=Registry())


@cache
def _bounded_validator() -> Any:
    """Return the validator class for user servers' schemas.

    The class is built on first use, because importing `jsonschema` takes a tenth of a second.
    """
    from jsonschema.exceptions import ValidationError
    from jsonschema.validators import Draft202012Validator, extend

    def unique(validator: Any, enabled: bool, value: Any, schema: Any) -> Iterator[ValidationError]:
        if enabled and isinstance(value, list):
            distinct = {json.dumps(item, sort_keys=True) for item in value}  # the library compares every pair of items
            if len(distinct) < len(value):
                yield ValidationError("the array has non-unique elements")

    def count(check: Any) -> Any:
        def spend_first(validator: Any, keyword_value: Any, value: Any, schema: Any) -> Iterator[ValidationError]:
            _meter.get().spend(keyword_value, value)
            yield from check(validator, keyword_value, value, schema) or ()

        return spend_first

    # Many servers write `oneOf` for alternatives that overlap, such as an integer and a number.
    either = Draft202012Validator.VALIDATORS["anyOf"]
    checks = dict(Draft202012Validator.VALIDATORS) | {"uniqueItems": unique, "oneOf": either}
    return extend(Draft202012Validator, {name: count(check) for name, check in checks.items()})


def _harmless(schema: Any) -> Any:
    """Return the part of a user server's schema that is checked. A value that is no schema allows everything."""
    if not isinstance(schema, Mapping):
        return schema if isinstance(schema, bool) else True
    cleaned: dict[str, Any] = {}
    for name, value in schema.items():
        if name in _ONE:
            cleaned[name] = _harmless(value)
        elif name in _LIST and isinstance(value, list | tuple) and value:
            cleaned[name] = [_harmless(item) for item in value]
        elif name in _NAMED and isinstance(value, Mapping):
            cleaned[name] = {key: _harmless(item) for key, item in value.items()}
        elif name in _PLAIN and _PLAIN[name](value):
            cleaned[name] = value
    if isinstance(schema.get("$ref"), str) and schema["$ref"].startswith("#"):
        cleaned["$ref"] = schema["$ref"]
    _read_older_drafts(cleaned, schema)
    if "patternProperties" in schema:  # only the patterns say which names are additional
        cleaned.pop("additionalProperties", None)
    return cleaned


def _read_older_drafts(cleaned: Json, schema: Mapping[Any, Any]) -> None:
    """Translate keywords of older JSON Schema drafts and of OpenAPI into ``cleaned``."""
    for bound, exclusive in (("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")):
        if schema.get(exclusive) is True and bound in cleaned:
            cleaned[exclusive] = cleaned.pop(bound)
    if isinstance(schema.get("items"), list):
        cleaned.pop("items", None)
        if schema["items"]:
            cleaned["prefixItems"] = [_harmless(item) for item in schema["items"]]
    if schema.get("nullable") is True and isinstance(cleaned.get("type"), str):
        cleaned["type"] = [cleaned["type"], "null"]
    properties = schema.get("properties")
    pairs = properties.items() if isinstance(properties, Mapping) else ()
    needed = [name for name, inner in pairs if isinstance(inner, Mapping) and inner.get("required") is True]
    if needed:
        cleaned["required"] = list(dict.fromkeys([*cleaned.get("required", ()), *needed]))


def _with_known_references(root: Any) -> Any:
    """Delete the references of a document that do not resolve, so that they allow everything. Changes the document."""
    level = [root]
    while level:
        inner: list[Any] = []
        for node in level:
            if isinstance(node, dict):
                if isinstance(node.get("$ref"), str) and not _leads_somewhere(root, node["$ref"]):
                    del node["$ref"]
                inner += node.values()
            elif isinstance(node, list):
                inner += node
        level = inner
    return root


def _leads_somewhere(root: Any, reference: str) -> bool:
    if reference != "#" and not reference.startswith("#/"):
        return False
    value = root
    for step in reference[2:].split("/") if len(reference) > 1 else ():
        step = unquote(step).replace("~1", "/").replace("~0", "~")
        if isinstance(value, Mapping) and step in value:
            value = value[step]
        elif isinstance(value, list) and step.isdecimal() and int(step[:9]) < len(value):
            value = value[int(step[:9])]
        else:
            return False
    return isinstance(value, Mapping | bool)


# The message to the model


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
    def schema_path(self) -> Sequence[Any]: ...
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
        forms = [
            dict.fromkeys(sentence for problem in form for sentence in describe_problem(problem, names))
            for form in _forms_of_same_kind(error)[:MAX_FORMS]
        ]
        if len(forms) == 1:
            return list(forms[0])
        if forms:
            return ["either " + " or ".join(dict.fromkeys(f"({', '.join(form)})" for form in forms))]
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
        # First, since a truth value is an `int` in Python, too.
        (bool, "boolean"),
        (str, "string"),
        (int, "integer"),
        (float, "number"),
        (Mapping, "object"),
        ((list, tuple), "array"),
    )
    return next((name for types, name in kinds if isinstance(value, types)), "null")


def _forms_of_same_kind(error: SchemaProblem) -> list[list[SchemaProblem]]:
    """Return the problems of each alternative that does not refuse the sent value because of its type."""
    forms: dict[Any, list[SchemaProblem]] = {}
    for problem in error.context or ():
        forms.setdefault(problem.schema_path[0], []).append(problem)
    depth = len(error.absolute_path)
    return [
        form
        for form in forms.values()
        if not any(problem.validator == "type" and len(problem.absolute_path) == depth for problem in form)
    ]


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
