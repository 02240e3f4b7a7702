"""Input from outside: accepts camelCase or snake_case, returns camelCase, refuses unknown keys.

Owns the base model of everything a client or an admin sends, and the one conversion of pydantic's errors to ours. Knows
no record and no route.
"""

import re
from calendar import monthrange
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, TypeVar

from pydantic import (
    AfterValidator,
    AliasChoices,
    BaseModel,
    ConfigDict,
    GetCoreSchemaHandler,
    ValidationError,
)
from pydantic.alias_generators import to_camel
from pydantic_core import CoreSchema, ErrorDetails

from agentic_rag.base.errors import MAX_PROBLEMS, InvalidInput
from agentic_rag.base.json_form import Json, to_text

FormT = TypeVar("FormT", bound=BaseModel)

NO_NUL = "a NUL character is not possible."

_MISLEADING = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")
"""Control characters, line separators, and characters that change the direction of the text around them."""


_ROWS = ("list", "tuple", "set", "frozenset")


class ValidatedForm(BaseModel):
    """Base of validated models: the validation of a list stops at its first invalid item.

    Half a million problems of one list would take seconds of the event loop.
    """

    # Built when first used: all of them together would cost every start a tenth of a second.
    model_config = ConfigDict(defer_build=True)

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        schema = handler(source)
        _stop_at_first(schema)
        return schema


def _stop_at_first(schema: Any) -> None:
    if isinstance(schema, dict):
        if schema.get("type") in _ROWS:  # a field may have this name, too
            schema["fail_fast"] = True
        for part in schema.values():
            _stop_at_first(part)
    elif isinstance(schema, list | tuple):
        for part in schema:
            _stop_at_first(part)


class Form(ValidatedForm):
    """Base of request and settings models.

    ``cleaned``: fields whose reader removes NUL characters itself. In all other fields a NUL character is refused.
    """

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, extra="forbid", frozen=True)
    cleaned: ClassVar[frozenset[str]] = frozenset()


def require_shape(pattern: str, words: str) -> AfterValidator:
    """Return a validator for texts that match a regular expression; ``words`` describe the form to users."""
    shape = re.compile(pattern)

    def check(text: str) -> str:
        if shape.fullmatch(text) is None:
            raise ValueError(words)
        return text

    return AfterValidator(check)


_DATE = re.compile(r"(\d{4})-(\d{2})-(\d{2})", re.ASCII)


def _check_date(text: str) -> str:
    match = _DATE.fullmatch(text)
    year, month, day = map(int, match.groups()) if match else (0, 0, 0)
    if not (year and 1 <= month <= 12 and 1 <= day <= monthrange(year, month)[1]):
        raise ValueError("a date is expected: YYYY-MM-DD")
    return text


IsoDate = Annotated[str, AfterValidator(_check_date)]
"""A date as `YYYY-MM-DD`."""


MAX_LEVELS = 64
"""Maximum nesting of objects and lists in any client input."""
MAX_VALUES = 20_000
"""Maximum number of list items and object members in client input: the event loop checks each of them."""


@dataclass(frozen=True, slots=True)
class JsonLimits:
    """Limits for a client's own JSON object, which is stored and shown unchanged."""

    levels: int = 16
    keys: int = 256
    size: int = 16 * 1024

    def check(self, value: Json | None) -> Json | None:
        """Return the value.

        Raises:
            ValueError: The value is nested too deep, has too many keys, or is too large as text.
        """
        if value is None:
            return None
        if nests_deeper(value, self.levels):
            raise ValueError(f"more than {self.levels} levels of objects and lists inside each other.")
        if count_keys(value) > self.keys:
            raise ValueError(f"more than {self.keys} keys.")
        if len(to_text(value).encode()) > self.size:
            raise ValueError(f"larger than {self.size // 1024} KiB ({self.size} bytes) as JSON.")
        return value


OwnJson = Annotated[Json | None, AfterValidator(JsonLimits().check)]
"""The type of a field that stores a client's own JSON object."""

AnswerJson = Annotated[Json | None, AfterValidator(JsonLimits(keys=2_000, size=128 * 1024).check)]
"""The type of a person's answer: a call's arguments, or the fields of a form."""


def nests_deeper(value: object, levels: int) -> bool:
    """Return whether a JSON value has more than this many objects and lists inside each other."""
    # Layer by layer instead of by recursion, which a deep value would exceed.
    layer = [value]
    for _ in range(levels + 1):
        layer = [item for item in layer if isinstance(item, Mapping | list)]
        if not layer:
            return False
        layer = [inner for item in layer for inner in _inner(item)]
    return True


def check_size(value: object, path: str, most: int = MAX_VALUES) -> None:
    """Refuse a JSON value that takes long to traverse, before any other code traverses it.

    Raises:
        InvalidInput: The value has more than `MAX_LEVELS` levels, or more than ``most`` items and members.
    """
    layer, count = [value], 0
    for _ in range(MAX_LEVELS + 1):
        inside: list[object] = []
        for item in layer:
            inner = _inner(item)
            count += len(inner)
            if count > most:
                raise InvalidInput(path, f"more than {most} items of lists and members of objects.")
            inside += inner
        if not any(isinstance(item, Mapping | list) for item in layer):
            return
        layer = inside
    raise InvalidInput(path, f"more than {MAX_LEVELS} levels of objects and lists inside each other.")


def count_keys(value: object) -> int:
    """Return how many keys a JSON value has in all its objects."""
    count, waiting = 0, [value]
    while waiting:
        item = waiting.pop()
        count += len(item) if isinstance(item, Mapping) else 0
        waiting += _inner(item)
    return count


def _inner(value: object) -> Sequence[object]:
    if isinstance(value, Mapping):
        return list(value.values())
    return value if isinstance(value, list) else ()


def read_form(model: type[FormT], value: object, path: str = "") -> FormT:
    """Validate ``value``; ``path`` is the value's own place in messages (empty: the body itself).

    Raises:
        InvalidInput: Names the first invalid field and describes a valid value; its details list all invalid fields.
    """
    form, problems = check_form(model, value, path)
    if form is None:
        raise problems[0].among(problems) if len(problems) > 1 else problems[0]
    return form


def check_form(model: type[FormT], value: object, path: str = "") -> tuple[FormT | None, list[InvalidInput]]:
    """Return the validated form, or None and all invalid fields. See `read_form`."""
    cleaned: frozenset[str] = getattr(model, "cleaned", frozenset())
    for place in _nul_places(value, path, cleaned):  # the first one is enough
        return None, [InvalidInput(place or "body", NO_NUL)]
    forbids = model.model_config.get("extra") == "forbid"
    unknown = unknown_keys(model, value) if forbids else []
    problems = [unknown_key(f"{path}.{key}".strip(".")) for key in unknown[:MAX_PROBLEMS]]
    if unknown and isinstance(value, Mapping):
        left_out = set(unknown)  # pydantic would report them again, in its own words
        value = {key: item for key, item in value.items() if key not in left_out}
    try:
        form = model.model_validate(value)
    except ValidationError as exc:
        problems += invalid_inputs(exc, path)
        return None, problems[:MAX_PROBLEMS]
    return (None if problems else form), problems


def unknown_keys(model: type[BaseModel], value: object) -> list[str]:
    """Return the keys of an object that no field of the model reads."""
    if not isinstance(value, Mapping):
        return []
    names: set[object] = set()
    for name, info in model.model_fields.items():
        names |= {name, info.alias}
        if isinstance(info.validation_alias, AliasChoices):
            names.update(info.validation_alias.choices)
    return [key for key in value if key not in names]


def unknown_key(path: str) -> InvalidInput:
    """Return the refusal of a key that no field reads."""
    return InvalidInput(path, _problem("extra_forbidden", ""))


def invalid_input(error: ValidationError, path: str = "") -> InvalidInput:
    """Return the refusal that names the first invalid field and describes a valid value."""
    return _refusal_of(error.errors(include_url=False, include_context=False), path)


def invalid_inputs(error: ValidationError, path: str = "") -> list[InvalidInput]:
    """Return a refusal for each invalid field; of a map, for each of its members."""
    by_field: dict[tuple[object, ...], list[ErrorDetails]] = {}
    for detail in error.errors(include_url=False, include_context=False):
        place = detail["loc"]
        # The second part is an index, a member's key, or the type that pydantic tried: "str", "list[Item]".
        of_member = len(place) > 1 and isinstance(place[1], str) and _TRIED.match(place[1]) is None
        by_field.setdefault(place[:2] if of_member else place[:1], []).append(detail)
    return [_refusal_of(errors, path) for errors in by_field.values()]


_TRIED = re.compile(r"(?:str|int|float|bool|constrained-str)$|(?:list|tuple|dict|literal|function)[\[-]")


def _refusal_of(errors: Sequence[ErrorDetails], path: str) -> InvalidInput:
    # For a text or a list, pydantic reports both, and adds the type it tried to the place: "str", "list[Item]".
    fitting = (error for error in errors if error["loc"][-1:] != ("str",) or not isinstance(error["input"], list))
    first = next(fitting, errors[0])
    place = first["loc"]
    tried = {
        error["loc"][:at] for error in errors for at, part in enumerate(error["loc"]) if str(part).startswith("list[")
    }
    own_parts = (part for at, part in enumerate(place) if place[:at] not in tried)
    parts = [str(part) for part in own_parts if part != "[key]"]  # pydantic's word for the key before it
    return InvalidInput(".".join([path, *parts]).strip(".") or "body", _problem(first["type"], first["msg"]))


@dataclass(frozen=True, slots=True)
class _Place:
    """The place of a value below another place. Joined only when it is reported, since a key may be very long."""

    around: "_Place | None"
    name: str

    def __str__(self) -> str:
        names: list[str] = []
        place: _Place | None = self
        while place is not None:
            names.append(place.name)
            place = place.around
        return ".".join(reversed(names)).lstrip(".")


def _nul_places(value: object, path: str, cleaned: frozenset[str]) -> Iterator[str]:
    """Yield the places of NUL characters in a JSON value of any depth; PostgreSQL does not accept them."""
    if isinstance(value, Mapping) and cleaned:
        value = {key: item for key, item in value.items() if key not in cleaned}
    waiting: list[tuple[_Place, object]] = [(_Place(None, path), value)]
    while waiting:
        place, item = waiting.pop()
        if isinstance(item, str) and "\0" in item:
            yield str(place)
        elif isinstance(item, Mapping):
            yield from (str(_Place(place, key)).replace("\0", "\ufffd") for key in item if "\0" in key)
            waiting += [
                (_Place(place, key), member) for key, member in reversed(list(item.items())) if _may_hold_nul(member)
            ]
        elif isinstance(item, list | tuple):
            inner = [(_Place(place, str(at)), member) for at, member in enumerate(item) if _may_hold_nul(member)]
            waiting += reversed(inner)


def _may_hold_nul(value: object) -> bool:
    return "\0" in value if isinstance(value, str) else bool(value) and isinstance(value, list | tuple | Mapping)


_COLLECTION = re.compile(r"^\w+(?= should have )")


def _problem(kind: str, message: str) -> str:
    if kind == "extra_forbidden":
        return "this key is not known."
    if kind == "missing":
        return "this key is required."
    if kind == "string_pattern_mismatch":
        return "this does not have the form that is expected."
    message = message.removeprefix("Value error, ")
    if kind in ("too_short", "too_long"):  # pydantic names its own type: "Tuple", "Frozenset"
        message = _COLLECTION.sub("this", message.replace(" after validation", ""))
    return message if message.endswith(".") else f"{message}."


def to_json(form: BaseModel) -> dict[str, Any]:
    """Return the camelCase JSON form."""
    return form.model_dump(mode="json", by_alias=True)


def line(path: str, text: str, limit: int, *, required: bool, breaks: bool = False) -> str:
    """Return a text without the space around it. ``breaks``: it may have line ends and tabs.

    Raises:
        InvalidInput: The text has more than ``limit`` characters, is empty but required, or has misleading characters.
    """
    text = text.strip()
    if len(text) > limit:  # first, because the other checks read each character
        raise InvalidInput(path, f"{len(text)} characters; at most {limit} are possible.")
    if required and not is_visible(text):
        raise InvalidInput(path, "at least one visible character is needed.")
    if _MISLEADING.search(re.sub(r"[\t\r\n]", "", text) if breaks else text):
        raise InvalidInput(path, "control characters and those that change the direction of text are not possible.")
    return text


def one_line(text: str) -> str:
    """Return a text on one line, without misleading characters."""
    return " ".join(_MISLEADING.sub(" ", text).split())


def is_visible(text: str) -> bool:
    """Return whether a text has a visible character."""
    return any(char.isprintable() and not char.isspace() for char in text)
