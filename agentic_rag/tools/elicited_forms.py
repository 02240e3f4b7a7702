"""Forms by which MCP servers ask people for values: the part of a schema that is shown, and the check of answers. Pure.

Owns the flat schema of the protocol (texts, numbers, yes or no, one or several of a list), its bounds, and the checks
of an answer. A schema with parts that cannot be shown and checked here is refused as a whole: no form is shown in part.
Knows no wait and no server.
"""

import calendar
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

from agentic_rag.base.errors import InvalidInput
from agentic_rag.base.json_form import Json, is_finite_number
from agentic_rag.tools.listing import clean

FORM_BYTES = 32 * 1024
FIELDS = 32
OPTIONS = 256
"""Maximum number of options of one field."""
NAME_CHARS = 128
LABEL_CHARS = 2_000
"""Maximum length of a title or a description."""
TEXT_CHARS = 10_000
"""Maximum length of an answered text, unless the form sets a lower one."""

_ABOUT_FORM = frozenset({"$schema", "$id", "$comment", "type", "title", "description", "additionalProperties"})
_ABOUT_FIELD = frozenset({"type", "title", "description", "default"})
_NO_RULES = frozenset({"examples", "$comment", "deprecated", "readOnly", "writeOnly"})
"""Keywords that do not restrict an answer."""

_EMAIL = re.compile(r"[^@\s\x00-\x1f]{1,64}@[^@\s\x00-\x1f.]+(?:\.[^@\s\x00-\x1f.]+)*")
_DATE = re.compile(r"([0-9]{4})-([0-9]{2})-([0-9]{2})")
_TIME = re.compile(r"([0-9]{2}):([0-9]{2}):([0-9]{2})(?:\.[0-9]{1,9})?(?:[Zz]|[+-][0-9]{2}:[0-9]{2})")


@dataclass(frozen=True, slots=True)
class UnfitForm:
    """A schema that is not shown: not flat, too large, or not checkable. ``why`` ends a sentence."""

    why: str


class _Unfit(Exception):
    """Raised inside `read_schema` for a schema that is not shown."""


def read_schema(schema: object) -> Json | UnfitForm:
    """Return a form as shown and stored: cleaned, with each choice as ``oneOf`` (or ``items.anyOf``) with titles."""
    try:
        return _read_form(schema)
    except _Unfit as exc:
        return UnfitForm(str(exc))


def _read_form(schema: object) -> Json:
    if not isinstance(schema, dict) or schema.get("type") != "object":
        raise _Unfit("it is no object with fields")
    if len(json.dumps(schema, default=str)) > FORM_BYTES:
        raise _Unfit(f"it is larger than {FORM_BYTES} bytes")
    _refuse_unknown(schema, _ABOUT_FORM | {"properties", "required"}, "the form")
    properties = schema.get("properties", {})
    if not isinstance(properties, dict) or len(properties) > FIELDS:
        raise _Unfit(f"it has no list of fields, or more than {FIELDS}")
    required = schema.get("required") or []
    if not isinstance(required, list) or not all(isinstance(name, str) and name in properties for name in required):
        raise _Unfit("it requires a field that it does not have")
    fields = {_name(name): _read_field(name, field) for name, field in properties.items()}
    return {"type": "object", "properties": fields, "required": list(dict.fromkeys(required))}


def fill_form(schema: Json, content: Json) -> Json:
    """Return a checked answer to a form of `read_schema`, with the defaults of missing fields.

    A null stands for a field that is left empty, without its default.

    Raises:
        InvalidInput: Names the field that does not fit and describes a valid value.
    """
    properties: Json = schema.get("properties") or {}
    for name in content:
        if name not in properties:
            raise InvalidInput(f"content.{name[:80]}", f"not known here; known: {', '.join(properties) or 'nothing'}.")
    answer: Json = {}
    for name, field in properties.items():
        value = content[name] if name in content else field.get("default")
        if value is None:
            if name in (schema.get("required") or ()):
                raise InvalidInput(f"content.{name}", "this field is needed.")
            continue
        problem = _problem(field, value)
        if problem:
            raise InvalidInput(f"content.{name}", problem)
        answer[name] = int(value) if field["type"] == "integer" else value
    return answer


def _name(name: object) -> str:
    if not isinstance(name, str) or not name or len(name) > NAME_CHARS or clean(name) != name:
        raise _Unfit("a field name is empty, too long, or contains invisible characters")
    return name


def _refuse_unknown(schema: Json, allowed: frozenset[str], where: str) -> None:
    for keyword in schema:
        if keyword not in allowed and keyword not in _NO_RULES and not str(keyword).startswith("x-"):
            raise _Unfit(f"{where} has {clean(str(keyword)[:40])!r}, which is not of a flat form")


def _label(value: object) -> str:
    if not isinstance(value, str) or len(value) > LABEL_CHARS:
        raise _Unfit(f"a title or description is no text, or longer than {LABEL_CHARS} characters")
    return clean(value)


def _read_field(name: str, field: object) -> Json:
    if not isinstance(field, dict) or not isinstance(field.get("type"), str) or field["type"] not in _READERS:
        raise _Unfit(f"the field {clean(str(name)[:40])!r} is no text, number, yes or no, or choice")
    cleaned: Json = {"type": field["type"]}
    cleaned |= {word: _label(field[word]) for word in ("title", "description") if field.get(word) is not None}
    cleaned |= _READERS[field["type"]](name, field)
    if field.get("default") is not None:
        problem = _problem(cleaned, field["default"])
        if problem:
            raise _Unfit(f"the default of the field {name!r} does not fit: {problem}")
        cleaned["default"] = field["default"]
    return cleaned


def _read_text(name: str, field: Json) -> Json:
    if "enum" in field or "oneOf" in field:
        _refuse_unknown(field, _ABOUT_FIELD | {"enum", "enumNames", "oneOf"}, f"the field {name!r}")
        return {"oneOf": _read_options(field, "oneOf")}
    _refuse_unknown(field, _ABOUT_FIELD | {"minLength", "maxLength", "format"}, f"the field {name!r}")
    form = field.get("format")
    if form is not None and not (isinstance(form, str) and form in _FORMATS):
        raise _Unfit(f"the field {name!r} has the format {str(form)[:40]!r}, which is not known")
    return {**_limits(field, ("minLength", "maxLength"), whole=True), **_pick(field, ("format",))}


def _read_number(name: str, field: Json) -> Json:
    _refuse_unknown(field, _ABOUT_FIELD | {"minimum", "maximum"}, f"the field {name!r}")
    return _limits(field, ("minimum", "maximum"))


def _read_switch(name: str, field: Json) -> Json:
    _refuse_unknown(field, _ABOUT_FIELD, f"the field {name!r}")
    return {}


def _read_choices(name: str, field: Json) -> Json:
    _refuse_unknown(field, _ABOUT_FIELD | {"items", "minItems", "maxItems", "uniqueItems"}, f"the field {name!r}")
    items = field.get("items")
    if not isinstance(items, dict):
        raise _Unfit(f"the field {name!r} is a list of anything")
    _refuse_unknown(items, frozenset({"type", "enum", "enumNames", "anyOf", "oneOf"}), f"the field {name!r}")
    notation = "anyOf" if "anyOf" in items else "oneOf"
    limits = _limits(field, ("minItems", "maxItems"), whole=True)
    return {"items": {"anyOf": _read_options(items, notation)}, **limits}


def _read_options(field: Json, notation: str) -> list[Json]:
    """Return the options of a choice, in any of the allowed notations."""
    if "enum" in field:
        values = field["enum"]
        titles = field.get("enumNames") or values
        paired = isinstance(values, list) and isinstance(titles, list) and len(titles) == len(values)
        pairs = list(zip(values, titles, strict=True)) if paired else []
    else:
        options = field.get(notation)
        titled = options if isinstance(options, list) and all(isinstance(option, dict) for option in options) else []
        pairs = [(option.get("const"), option.get("title", option.get("const"))) for option in titled]
    if not pairs or len(pairs) > OPTIONS or len({str(value) for value, _ in pairs}) < len(pairs):
        raise _Unfit(f"a choice has no options, more than {OPTIONS}, or the same twice")
    return [{"const": _option(value), "title": _label(title)} for value, title in pairs]


def _option(value: object) -> str:
    if not isinstance(value, str) or len(value) > LABEL_CHARS:
        raise _Unfit("an option is no text, or too long")
    return value


def _limits(field: Json, names: Sequence[str], *, whole: bool = False) -> Json:
    for name in names:
        value = field.get(name)
        fits = isinstance(value, int if whole else int | float) and not isinstance(value, bool)
        if value is not None and not (fits and (not whole or value >= 0)):
            raise _Unfit(f"{name} is no {'count' if whole else 'number'}")
    return _pick(field, names)


def _pick(field: Json, names: Sequence[str]) -> Json:
    return {name: field[name] for name in names if field.get(name) is not None}


_READERS: Mapping[str, Callable[[str, Json], Json]] = {
    "string": _read_text,
    "number": _read_number,
    "integer": _read_number,
    "boolean": _read_switch,
    "array": _read_choices,
}


# -- answers ----------------------------------------------------------------------------------------------------------


def _problem(field: Json, value: object) -> str:
    """Return the requirement that an answer to a field fails, empty if the answer fits."""
    match field["type"]:
        case "boolean":
            return "" if isinstance(value, bool) else "true or false is needed."
        case "string":
            return _problem_of_text(field, value)
        case "array":
            return _problem_of_choices(field, value)
    return _problem_of_number(field, value)


def _problem_of_text(field: Json, value: object) -> str:
    if "oneOf" in field:
        return "" if value in _values(field["oneOf"]) else f"one of these is needed: {_list_values(field['oneOf'])}."
    least, most = field.get("minLength", 0), min(field.get("maxLength", TEXT_CHARS), TEXT_CHARS)
    if not isinstance(value, str) or not least <= len(value) <= most:
        return f"a text of {least} to {most} characters is needed."
    form = field.get("format")
    return "" if form is None or _FORMATS[form][0](value) else f"{_FORMATS[form][1]} is needed."


def _problem_of_number(field: Json, value: object) -> str:
    whole = field["type"] == "integer"
    if not is_finite_number(value) or (whole and value != int(value)):
        return "a whole number is needed." if whole else "a number is needed."
    least, most = field.get("minimum"), field.get("maximum")
    if least is not None and value < least:
        return f"a number of at least {least} is needed."
    return f"a number of at most {most} is needed." if most is not None and value > most else ""


def _problem_of_choices(field: Json, value: object) -> str:
    options = field["items"]["anyOf"]
    least, most = field.get("minItems", 0), field.get("maxItems", len(options))
    if not isinstance(value, list) or any(item not in _values(options) for item in value):
        return f"a list of these is needed: {_list_values(options)}."
    if len(set(value)) < len(value) or not least <= len(value) <= most:
        return f"{least} to {most} different ones are needed."
    return ""


def _values(options: Sequence[Json]) -> list[str]:
    return [option["const"] for option in options]


def _list_values(options: Sequence[Json]) -> str:
    return ", ".join(_values(options))[:LABEL_CHARS]


def _is_address(value: str) -> bool:
    try:
        parts = urlsplit(value)
    except ValueError:
        return False
    return bool(parts.scheme and (parts.netloc or parts.path)) and clean(value) == value and " " not in value


def _is_date(value: str) -> bool:
    match = _DATE.fullmatch(value)
    if match is None:
        return False
    year, month, day = map(int, match.groups())
    return year >= 1 and 1 <= month <= 12 and 1 <= day <= calendar.monthrange(year, month)[1]


def _is_moment(value: str) -> bool:
    match = _TIME.fullmatch(value[11:])
    if value[10:11] not in ("T", "t", " ") or not _is_date(value[:10]) or match is None:
        return False
    hour, minute, second = map(int, match.groups())
    return hour <= 23 and minute <= 59 and second <= 60


_FORMATS: Mapping[str, tuple[Callable[[str], object], str]] = {
    "email": (_EMAIL.fullmatch, "an e-mail address"),
    "uri": (_is_address, "a whole address with its scheme"),
    "date": (_is_date, "a date such as 2026-11-22"),
    "date-time": (_is_moment, "a date and time such as 2026-11-22T09:30:00Z"),
}
