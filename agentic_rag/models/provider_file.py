"""The operator's file of model providers: whose models the domains may choose among.

Owns the format, a TOML file with one table a provider, and the reading of keys from the environment::

    default = "local:qwen3:8b"              # else AGENTIC_RAG_MODEL

    [providers.local]
    kind = "openai"                         # anthropic, openai, bedrock or vertex
    base_url = "http://127.0.0.1:11434/v1"
    models = ["qwen3:8b"]                   # absent: any
    fallback = ["router:qwen/qwen3"]        # asked where a domain names none
    [providers.local.profiles."qwen3:8b"]   # fields of `ModelProfile`
    context_window = 8000

    [providers.router]
    kind = "openai"
    base_url = "https://openrouter.ai/api/v1"
    key_env = "OPENROUTER_API_KEY"          # or key = "…"
    headers = { X-Title = "Desk" }
"""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, SecretStr, StringConstraints

from agentic_rag.base.errors import InvalidInput
from agentic_rag.base.forms import Form, read_form, require_shape
from agentic_rag.base.settings import environment_value
from agentic_rag.base.startup_errors import BadConfiguration
from agentic_rag.models.profile_file import ProfileForm, SentHeaders, changes_of
from agentic_rag.models.profiles import ProfileChanges, ProviderKind

SETTING = "AGENTIC_RAG_PROVIDERS"

Text = Annotated[str, StringConstraints(min_length=1, max_length=500)]
ProviderName = Annotated[
    str, require_shape(r"(?!extractive\Z)[a-z][a-z0-9_-]{0,31}", "a name has a-z, 0-9, _ and -, and begins with a-z")
]


class ProviderForm(Form):
    """One provider; see `Provider`."""

    kind: Literal["anthropic", "openai", "bedrock", "vertex"]
    base_url: Text | None = None
    key: SecretStr | None = None
    key_env: Text | None = None
    headers: SentHeaders = Field(default_factory=dict)
    citations: Literal["native", "marks"] | None = None
    models: tuple[Text, ...] = ()
    fallback: tuple[Text, ...] = ()
    region: Text | None = None
    project: Text | None = None
    account: Text | None = None
    profiles: dict[Text, ProfileForm] = Field(default_factory=dict)


class ProvidersFile(Form):
    """The whole file."""

    default: Text | None = None
    providers: dict[ProviderName, ProviderForm] = Field(min_length=1)


@dataclass(frozen=True, slots=True)
class Provider:
    """A provider of the operator's file.

    ``models``: the names that may be asked for; none: any. ``fallback``: what is asked in their place, with provider.
    ``region``, ``project``, ``account`` (a profile of the AWS configuration): a cloud's, else from its own variables.
    """

    name: str
    kind: ProviderKind
    base_url: str | None = None
    key: str = field(default="", repr=False)
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    marks: bool = False
    models: tuple[str, ...] = ()
    fallback: tuple[str, ...] = ()
    region: str | None = None
    project: str | None = None
    account: str | None = None
    profiles: Mapping[str, ProfileChanges] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Providers:
    """What the file says. ``default``: the model of domains that name none, with its provider; empty: not said."""

    providers: Mapping[str, Provider]
    default: str = ""

    @property
    def kinds(self) -> Mapping[str, ProviderKind]:
        """What each of them speaks."""
        return {name: each.kind for name, each in self.providers.items()}

    @property
    def profiles(self) -> Mapping[str, ProfileChanges]:
        """What the file says of models, by their names with providers."""
        return {
            f"{name}:{model}": changes
            for name, each in self.providers.items()
            for model, changes in each.profiles.items()
        }


NONE = Providers({})


def read_providers(path: Path | None) -> Providers:
    """Return what the file says; without one there are no such providers.

    Raises:
        BadConfiguration: it cannot be read, a key of it is not known or has no good value, or a variable is not set.
    """
    if path is None:
        return NONE
    try:
        found = read_form(ProvidersFile, tomllib.loads(path.read_text("utf-8")))
    except (OSError, UnicodeDecodeError) as exc:
        raise BadConfiguration(SETTING, f"{path} cannot be read: {exc}") from exc
    except tomllib.TOMLDecodeError as exc:
        raise BadConfiguration(SETTING, f"{path} is no TOML: {exc}") from exc
    except InvalidInput as exc:
        raise BadConfiguration(SETTING, f"{path}: {exc}") from exc
    providers = Providers({name: _provider(name, form) for name, form in found.providers.items()}, found.default or "")
    named = [(f"providers.{each.name}.fallback", each.fallback) for each in providers.providers.values()]
    for place, models in [*named, ("default", (providers.default,) if providers.default else ())]:
        _check_names(providers, f"{path}: {place}", models)
    return providers


def _check_names(providers: Providers, place: str, models: tuple[str, ...]) -> None:
    for model in models:
        provider, _, bare = model.partition(":")
        known = providers.providers.get(provider)
        if known is None and provider not in ("anthropic", "openai"):
            names = ", ".join(providers.providers)
            raise BadConfiguration(SETTING, f"{place}: {model!r} begins with no provider; there are {names}")
        if known is not None and known.models and bare not in known.models:
            raise BadConfiguration(SETTING, f"{place}: {provider} has no {bare!r}; it has {', '.join(known.models)}")


def _provider(name: str, form: ProviderForm) -> Provider:
    key = form.key.get_secret_value() if form.key else ""
    if form.key_env:
        key = environment_value(form.key_env)
        if not key:
            raise BadConfiguration(SETTING, f"providers.{name}.key_env: the variable {form.key_env} is not set")
    return Provider(
        name,
        form.kind,
        form.base_url,
        key,
        form.headers,
        form.citations == "marks",
        form.models,
        form.fallback,
        form.region,
        form.project,
        form.account,
        {model: changes_of(each) for model, each in form.profiles.items()},
    )
