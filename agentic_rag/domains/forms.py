"""Values that come from outside: camelCase or snake_case in, camelCase out, unknown keys refused.

Owns the base model of everything a client or an admin sends, and the one place where pydantic's errors become
ours. Knows no record and no route.
"""

from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic.alias_generators import to_camel

from agentic_rag.errors import InvalidInput

FormT = TypeVar("FormT", bound=BaseModel)


class Form(BaseModel):
    """Base of request and settings models."""

    # Built when first used: all of them together would cost every start a tenth of a second.
    model_config = ConfigDict(
        alias_generator=to_camel, populate_by_name=True, extra="forbid", frozen=True, defer_build=True
    )


def read_form(model: type[FormT], value: object, path: str = "") -> FormT:
    """Validate ``value``; ``path`` is what its own place is called in messages (empty: the body itself).

    Raises:
        InvalidInput: names the first field that does not fit and says what would.
    """
    try:
        return model.model_validate(value)
    except ValidationError as exc:
        first = exc.errors(include_url=False, include_context=False)[0]
        place = ".".join([path, *(str(part) for part in first["loc"])]).strip(".") or "body"
        raise InvalidInput(place, _problem(first["type"], first["msg"])) from exc


def _problem(kind: str, message: str) -> str:
    if kind == "extra_forbidden":
        return "this key is not known."
    if kind == "missing":
        return "this key is required."
    message = message.removeprefix("Value error, ")
    return message if message.endswith(".") else f"{message}."


def wire(form: BaseModel) -> dict[str, Any]:
    """Return the camelCase JSON form."""
    return form.model_dump(mode="json", by_alias=True)
