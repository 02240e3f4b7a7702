"""The operator's file of model profiles, for models that the built-in table lacks or describes wrongly.

Owns the format, a TOML file with one table per model. The keys are the fields of `ModelProfile`::

    [models."qwen3:8b"]
    context_window = 32768
    output_limit = 8192
    sampling = true
    display = "omitted"
    headers = { anthropic-beta = "some-beta-2026-01-01" }

A missing field keeps the value of the service or of the table.
"""

import re
import tomllib
from dataclasses import fields
from datetime import date
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from agentic_rag.base.errors import InvalidInput
from agentic_rag.base.forms import Form, read_form
from agentic_rag.base.startup_errors import BadConfiguration
from agentic_rag.models.profiles import Display, Effort, ModelProfile, ProfileChanges

SETTING = "AGENTIC_RAG_MODEL_PROFILES"


def _check_day(text: str) -> str:
    try:
        return date.fromisoformat(text).isoformat()
    except ValueError as exc:
        raise ValueError("a day is expected: 2026-11-30") from exc


Day = Annotated[str, AfterValidator(_check_day)]
Tokens = Annotated[int, Field(gt=0)]

_HEADER_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_HEADER_VALUE = re.compile(r"(?! )[ -~]*(?<! )")
_OF_THE_ADAPTER = frozenset({"accept", "connection", "content-length", "content-type", "transfer-encoding"})


def check_headers(headers: dict[str, str]) -> dict[str, str]:
    """Return the headers with their names in lower case.

    Raises:
        ValueError: a header is not valid, is a duplicate, or is set by the adapter.
    """
    checked: dict[str, str] = {}
    for name, value in headers.items():
        lower = name.lower()
        if _HEADER_NAME.fullmatch(name) is None or _HEADER_VALUE.fullmatch(value) is None:
            raise ValueError(
                f"{name!r} is no header of printable ASCII characters, without spaces in its name or around its value"
            )
        if lower in _OF_THE_ADAPTER:
            raise ValueError(f"{name!r} cannot be given: each request has its own")
        if lower in checked:
            raise ValueError(f"{name!r} is listed twice (upper and lower case do not matter)")
        checked[lower] = value
    return checked


SentHeaders = Annotated[dict[str, str], AfterValidator(check_headers)]


class ProfileForm(Form):
    """The table of one model; see `ModelProfile`."""

    thinking: frozenset[Literal["adaptive", "between_tools", "enabled", "disabled"]] | None = None
    thinks: bool | None = None
    display: Display | None = None
    efforts: tuple[Effort, ...] | None = None
    sampling: bool | None = None
    bound: bool | None = None
    system_messages: bool | None = None
    deferred_tools: bool | None = None
    cites: bool | None = None
    images: bool | None = None
    caching: bool | None = None
    hour_cache: bool | None = None
    diagnoses: bool | None = None
    structured: bool | None = None
    completion_tokens: bool | None = None
    replays_reasoning: bool | None = None
    output_limit: Tokens | None = None
    context_window: Tokens | None = None
    cache_minimum: Tokens | None = None
    retires: Day | None = None
    successor: str | None = Field(None, min_length=1, max_length=200)
    headers: SentHeaders | None = None


class ProfilesFile(Form):
    """The content of the file of profiles."""

    models: dict[str, ProfileForm] = Field(default_factory=dict)


def read_profiles(path: Path) -> dict[str, ProfileChanges]:
    """Read the profile changes of each model, by name.

    Raises:
        BadConfiguration: the file cannot be read, or one of its keys is unknown or has an invalid value.
    """
    try:
        value = tomllib.loads(path.read_text("utf-8"))
        file = read_form(ProfilesFile, value)
    except (OSError, UnicodeDecodeError) as exc:
        raise BadConfiguration(SETTING, f"{path} cannot be read: {exc}") from exc
    except tomllib.TOMLDecodeError as exc:
        raise BadConfiguration(SETTING, f"{path} is no TOML: {exc}") from exc
    except InvalidInput as exc:
        raise BadConfiguration(SETTING, f"{path}: {exc}") from exc
    return {name: changes_of(form) for name, form in file.models.items()}


def changes_of(form: ProfileForm) -> ProfileChanges:
    """Return the values set in a model's table, by the field names of `ModelProfile`."""
    names = {field.name for field in fields(ModelProfile)}
    values = {name: getattr(form, name) for name in form.model_fields_set & names}
    return {name: value for name, value in values.items() if value is not None}
