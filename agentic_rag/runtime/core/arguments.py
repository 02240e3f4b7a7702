"""Whether a call's arguments fit the schema of its tool. Pure.

Owns what of a stranger's schema is checked, and how much work that may be. A schema that is broken, or that would cost
more, refuses nothing: its server checks again. Knows no policy and no call.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from contextvars import ContextVar
from functools import cache
from itertools import islice
from typing import Any
from urllib.parse import unquote

from agentic_rag.json_form import Json
from agentic_rag.runtime.core.argument_words import describe_problem

PROBLEM_CHARS = 2_000
"""How much of what is wrong the model reads."""
MAX_PROBLEMS = 20

STEPS = 10_000
"""How much work one check of a stranger's schema may be: a step is a keyword that meets a value, or an item of its
list, or `STEP_CHARS` characters of the value, which a message would repeat. About a tenth of a second."""

STEP_CHARS = 1_024

NO_NAMES: Mapping[str, str] = {}

KEPT_SCHEMAS = 512
"""Of so many schemas of strangers it is remembered what is checked; they are the same objects from turn to turn."""

_TYPES = frozenset({"string", "number", "integer", "boolean", "null", "array", "object"})
_ONE = frozenset({"items", "additionalProperties", "propertyNames", "contains", "not", "if", "then", "else"})
_LIST = frozenset({"prefixItems", "anyOf", "allOf", "oneOf"})
_NAMED = frozenset({"properties", "dependentSchemas", "$defs", "definitions"})


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_names(value: object) -> bool:
    return isinstance(value, list | tuple) and all(isinstance(each, str) for each in value)


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
"""Keywords whose values are data, with the form they must have. With those that hold schemas they are all that is
checked of a stranger's schema: a regular expression can take for ever. References are followed inside the document
alone; each one counts as a step."""


class _TooMuch(Exception):
    """A check came to more than `STEPS`."""


class _Meter:
    """What one check has cost so far. ``sizes``: characters of each list and mapping in the arguments, by identity."""

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

    def spend(self, wanted: Any, value: Any) -> None:
        """Count one keyword that meets one value of the arguments."""
        size = len(value) if isinstance(value, str) else self._sizes.get(id(value), 8)
        items = len(wanted) if isinstance(wanted, Mapping | list | tuple) else 0
        self._left -= 1 + items + size // STEP_CHARS
        if self._left < 0:
            raise _TooMuch


_meter: ContextVar[_Meter] = ContextVar("meter")


def find_problem(schema: Any, arguments: Json, *, user: bool, names: Mapping[str, str] = NO_NAMES) -> str | None:
    """Return everything that is wrong with the arguments, in words that say what to send, or None.

    ``user``: the schema is a stranger's: it costs no more than `STEPS`. No reference of any schema is fetched. Of ours,
    an argument that may be left out may be null, which means the same; see `without_nulls`.
    ``names``: arguments that the model was shown under another name: own → shown; the words have the shown one.
    """
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
    """Return a call's arguments as they are sent, and everything that is wrong with them; see `find_problem`.

    Models write null for what they leave out; a stranger's tool that takes no null there is called without it.
    """
    problem = find_problem(schema, arguments, user=user, names=names)
    if problem is None or not user or not (isinstance(schema, Mapping) and _is_names(schema.get("required", ()))):
        return arguments, problem
    fewer = without_nulls(schema, arguments)
    if len(fewer) < len(arguments) and find_problem(schema, fewer, user=user) is None:
        return fewer, None
    return arguments, problem


def without_nulls(schema: Any, arguments: Json) -> Json:
    """Return the arguments without those that are null and may be left out."""
    return {name: value for name, value in arguments.items() if value is not None or name in schema.get("required", ())}


def _problems(checker: Any, arguments: Json, names: Mapping[str, str]) -> str | None:
    given = dict(arguments)
    _meter.set(_Meter(given))
    found: dict[str, None] = {}
    with suppress(_TooMuch):  # what was found by then is wrong all the same
        for error in islice(checker.iter_errors(given), MAX_PROBLEMS):
            found.update(dict.fromkeys(describe_problem(error, names)))
    return "; ".join(found)[:PROBLEM_CHARS] or None


_CHECKERS: dict[int, tuple[Any, Any]] = {}
"""Schemas of strangers, by identity, with what checks them."""


def _checker(schema: Any) -> Any:
    known = _CHECKERS.get(id(schema))
    if known is not None and known[0] is schema:
        return known[1]
    from referencing import Registry

    made = _bounded_validator()(_with_known_references(_harmless(schema)), registry=Registry())
    if len(_CHECKERS) >= KEPT_SCHEMAS:
        _CHECKERS.clear()
    _CHECKERS[id(schema)] = schema, made
    return made


def _own_checker(schema: Any) -> Any:
    from jsonschema.validators import Draft202012Validator
    from referencing import Registry

    return Draft202012Validator(schema, registry=Registry())


@cache
def _bounded_validator() -> Any:
    """Return the validator of strangers' schemas. Made late: importing it takes a tenth of a second."""
    from jsonschema.exceptions import ValidationError
    from jsonschema.validators import Draft202012Validator, extend

    def unique(validator: Any, wanted: bool, value: Any, schema: Any) -> Iterator[ValidationError]:
        if wanted and isinstance(value, list):
            seen = {json.dumps(item, sort_keys=True) for item in value}  # the library compares each with each
            if len(seen) < len(value):
                yield ValidationError("the array has non-unique elements")

    def count(check: Any) -> Any:
        def spend_first(validator: Any, wanted: Any, value: Any, schema: Any) -> Iterator[ValidationError]:
            _meter.get().spend(wanted, value)
            yield from check(validator, wanted, value, schema) or ()

        return spend_first

    checks = dict(Draft202012Validator.VALIDATORS) | {"uniqueItems": unique}
    return extend(Draft202012Validator, {name: count(check) for name, check in checks.items()})


def _harmless(schema: Any) -> Any:
    """Return what of a stranger's schema is checked; what is no schema allows everything."""
    if not isinstance(schema, Mapping):
        return schema if isinstance(schema, bool) else True
    kept: dict[str, Any] = {}
    for name, value in schema.items():
        if name in _ONE:
            kept[name] = _harmless(value)
        elif name in _LIST and isinstance(value, list | tuple) and value:
            kept[name] = [_harmless(each) for each in value]
        elif name in _NAMED and isinstance(value, Mapping):
            kept[name] = {key: _harmless(each) for key, each in value.items()}
        elif name in _PLAIN and _PLAIN[name](value):
            kept[name] = value
    if isinstance(schema.get("$ref"), str) and schema["$ref"].startswith("#"):
        kept["$ref"] = schema["$ref"]
    _read_older_drafts(kept, schema)
    if "patternProperties" in schema:  # which names are additional, only the patterns say
        kept.pop("additionalProperties", None)
    return kept


def _read_older_drafts(kept: Json, schema: Mapping[Any, Any]) -> None:
    """Add what a schema says in the words of older drafts and of OpenAPI."""
    for bound, exclusive in (("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")):
        if schema.get(exclusive) is True and bound in kept:
            kept[exclusive] = kept.pop(bound)
    if isinstance(schema.get("items"), list):
        kept.pop("items", None)
        if schema["items"]:
            kept["prefixItems"] = [_harmless(each) for each in schema["items"]]
    if schema.get("nullable") is True and isinstance(kept.get("type"), str):
        kept["type"] = [kept["type"], "null"]
    properties = schema.get("properties")
    named = properties.items() if isinstance(properties, Mapping) else ()
    needed = [name for name, inner in named if isinstance(inner, Mapping) and inner.get("required") is True]
    if needed:
        kept["required"] = list(dict.fromkeys([*kept.get("required", ()), *needed]))


def _with_known_references(root: Any) -> Any:
    """Take out of a document the references that lead nowhere: they allow everything. The document is changed."""
    level = [root]
    while level:
        inner: list[Any] = []
        for each in level:
            if isinstance(each, dict):
                if isinstance(each.get("$ref"), str) and not _leads_somewhere(root, each["$ref"]):
                    del each["$ref"]
                inner += each.values()
            elif isinstance(each, list):
                inner += each
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
