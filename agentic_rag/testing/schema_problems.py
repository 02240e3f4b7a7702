"""The services' checks of a tool's input schema, with their own texts.

Owns these rules for the stand-ins of the Messages API and of chat completions. Pure. It shares no code with
`agentic_rag.tools.schema_compat`, which has to satisfy it.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final
from urllib.parse import unquote

from agentic_rag.base.json_form import Json

COMBINATORS: Final = ("oneOf", "allOf", "anyOf")
_KEY: Final = re.compile(r"[a-zA-Z0-9_.-]{1,64}")
_ONE: Final = (
    *("items", "additionalProperties", "propertyNames", "contains", "not", "if", "then", "else"),
    *("unevaluatedItems", "unevaluatedProperties", "contentSchema"),
)
_LIST: Final = ("prefixItems", "anyOf", "allOf", "oneOf")
_NAMED: Final = ("properties", "patternProperties", "dependentSchemas", "$defs", "definitions")
MAX_CHAT_DEPTH: Final = 100
"""Maximum number of levels of schemas that a chat-completions service reads."""


def messages_schema_problems(path: str, schema: Any) -> Iterator[str]:
    """Yield the Messages API's problems with ``tools.N.custom.input_schema``; ``path`` is ``tools.N``."""
    where = f"{path}.custom.input_schema"
    if not isinstance(schema, dict):
        yield f"{path}.input_schema: Input should be a valid dictionary"
        return
    if schema.get("type") != "object":
        yield f"{path}.input_schema.type: Input should be 'object'"
        return
    if any(name in schema for name in COMBINATORS):
        yield f"{where}: input_schema does not support oneOf, allOf, or anyOf at the top level"
    problem = find_draft_problem(schema)
    if problem:
        yield (
            f"{where}: JSON schema is invalid. It must match JSON Schema draft 2020-12 "
            f"(https://json-schema.org/draft/2020-12). Learn more about tool use. ({problem})"
        )
        return
    for place, inner in _subschemas(schema, ()):
        for key in inner.get("properties", ()):
            if not _KEY.fullmatch(key):
                at = ".".join((where, *place, "properties"))
                yield f"{at}: Property keys should match pattern '^[a-zA-Z0-9_.-]{{1,64}}$'"


def chat_schema_problems(place: int, name: Any, schema: Any, refuses: frozenset[str]) -> Iterator[str]:
    """Yield a chat-completions service's problems with ``tools[place].function.parameters``.

    ``refuses``: the subset of ``$ref``, ``format``, ``recursion`` and ``unions`` (``anyOf`` or a list of types) that
    the service does not accept.
    """
    where = f"Invalid schema for function {name!r}"
    if not isinstance(schema, dict) or schema.get("type") != "object":
        kind = schema.get("type") if isinstance(schema, dict) else schema
        yield f"{where}: schema must be a JSON Schema of 'type: \"object\"', got 'type: {kind!r}'."
        return
    if any(key in schema for key in (*COMBINATORS, "enum", "not")):
        yield f"{where}: schema must not have 'oneOf'/'anyOf'/'allOf'/'enum'/'not' at the top level."
    problem = find_draft_problem(schema)
    if problem:
        yield f"{where}: {problem} (tools[{place}].function.parameters)"
        return
    deepest = 0
    for path, inner in _subschemas(schema, ()):
        context = f"In context={path!r}"
        deepest = max(deepest, len(path))
        for key in inner.get("properties", ()):
            if not _KEY.fullmatch(key):
                yield f"{where}: {context}, property keys should match pattern '^[a-zA-Z0-9_.-]{{1,64}}$'"
        kinds = inner.get("type")
        if (kinds == "array" or (isinstance(kinds, list) and "array" in kinds)) and "items" not in inner:
            yield f"{where}: {context}, array schema missing items."
        for keyword in ("$ref", "format"):
            if keyword in refuses and keyword in inner:
                yield f"{where}: {context}, '{keyword}' is not permitted."
    if deepest > MAX_CHAT_DEPTH:
        yield f"{where}: the schema is nested too deeply."
    if "recursion" in refuses and _is_recursive(schema):
        yield f"{where}: recursive schemas are not permitted."


def find_draft_problem(schema: Json) -> str:
    """Return why a schema does not match draft 2020-12, or which of its references is broken.

    These are the rules of the draft's own metaschema, written out: its library takes 30 ms for a schema of a few lines.
    """
    stack: list[tuple[tuple[str, ...], Any]] = [((), schema)]
    while stack:
        path, current = stack.pop()
        where = ".".join(path) or "schema"
        if isinstance(current, bool):
            continue
        if not isinstance(current, dict):
            return f"{where}: {current!r:.60} is not of type 'object', 'boolean'"
        for keyword, value in current.items():
            check = _FORMS.get(keyword)
            if check is not None and not check(value):
                return f"{where}.{keyword}: {value!r:.60} is not valid under the draft"
        reference = current.get("$ref")
        if reference is not None and resolve(schema, reference) is None:
            return f"{where}: unresolvable $ref {reference!r}"
        stack += [((*path, name), current[name]) for name in _ONE if name in current]
        for name in _LIST:
            stack += [((*path, name, str(n)), inner) for n, inner in enumerate(current.get(name) or ())]
        for name in _NAMED:
            stack += [((*path, name, key), inner) for key, inner in (current.get(name) or {}).items()]
    return ""


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_flag(value: Any) -> bool:
    return isinstance(value, bool)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_count(value: Any) -> bool:
    return _is_number(value) and value >= 0 and value == int(value)


def _is_regex(value: Any) -> bool:
    try:
        return isinstance(value, str) and bool(re.compile(value))
    except (re.error, RecursionError, OverflowError):
        return False


def _are_names(value: Any) -> bool:
    return isinstance(value, list) and all(map(_is_text, value)) and len(set(value)) == len(value)


_TYPES: Final = ("array", "boolean", "integer", "null", "number", "object", "string")


def _is_type(value: Any) -> bool:
    return (
        value in _TYPES
        if isinstance(value, str)
        else _are_names(value) and bool(value) and set(_TYPES).issuperset(value)
    )


_FORMS: Final[Mapping[str, Callable[[Any], bool]]] = {
    "type": _is_type,
    "required": _are_names,
    "enum": lambda value: isinstance(value, list),
    "examples": lambda value: isinstance(value, list),
    "pattern": _is_regex,
    "multipleOf": lambda value: _is_number(value) and value > 0,
    "$anchor": lambda value: _is_text(value) and re.fullmatch(r"[A-Za-z_][-A-Za-z0-9._]*", value) is not None,
    "$id": lambda value: _is_text(value) and "#" not in value.rstrip("#"),
    "dependentRequired": lambda value: isinstance(value, dict) and all(map(_are_names, value.values())),
    "patternProperties": lambda value: isinstance(value, dict) and all(map(_is_regex, value)),
    **dict.fromkeys(("properties", "dependentSchemas", "$defs", "definitions"), lambda value: isinstance(value, dict)),
    **dict.fromkeys(_LIST, lambda value: isinstance(value, list) and bool(value)),
    **dict.fromkeys(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"), _is_number),
    **dict.fromkeys(("minLength", "maxLength", "minItems", "maxItems", "minContains", "maxContains"), _is_count),
    **dict.fromkeys(("minProperties", "maxProperties"), _is_count),
    **dict.fromkeys(("uniqueItems", "deprecated", "readOnly", "writeOnly"), _is_flag),
    **dict.fromkeys(("title", "description", "format", "$ref", "$schema", "$comment", "$dynamicRef"), _is_text),
    **dict.fromkeys(("contentEncoding", "contentMediaType"), _is_text),
}
"""Keywords and the form that the draft's metaschema gives their values."""


def resolve(root: Json, reference: object) -> Any:
    """Return the target of a local reference, or None if there is none."""
    if not isinstance(reference, str) or not reference.startswith("#"):
        return None
    value: Any = root
    for step in unquote(reference[1:]).split("/")[1:]:
        step = step.replace("~1", "/").replace("~0", "~")
        if isinstance(value, list) and step.isdigit() and int(step) < len(value):
            value = value[int(step)]
        elif isinstance(value, dict) and step in value:
            value = value[step]
        else:
            return None
    return value if reference == "#" or reference.startswith("#/") else None


def _subschemas(schema: Any, place: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Json]]:
    if not isinstance(schema, dict):
        return
    stack: list[tuple[tuple[str, ...], Json]] = [(place, schema)]
    while stack:
        path, current = stack.pop()
        yield path, current
        inside: list[tuple[tuple[str, ...], Any]] = [((*path, name), current.get(name)) for name in _ONE]
        for name in _LIST:
            inside += [((*path, name, str(n)), inner) for n, inner in enumerate(current.get(name) or ())]
        for name in _NAMED:
            inside += [((*path, name, key), inner) for key, inner in (current.get(name) or {}).items()]
        stack += [(where, inner) for where, inner in inside if isinstance(inner, dict)]


def _is_recursive(schema: Json) -> bool:
    def visit(current: Any, above: tuple[str, ...]) -> bool:
        for _, inner in _subschemas(current, ()):
            reference = inner.get("$ref")
            if isinstance(reference, str):
                if reference in above or reference == "#":
                    return True
                if visit(resolve(schema, reference), (*above, reference)):
                    return True
        return False

    own = {key: value for key, value in schema.items() if key not in ("$defs", "definitions")}
    return visit(own, ())
