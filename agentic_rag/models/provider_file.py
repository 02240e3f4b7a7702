"""The operator's file of model providers, whose models domains may choose.

Owns the format, a TOML file with one table per provider, and the reading of keys from the environment::

    default = "local:qwen3:8b"              # overrides AGENTIC_RAG_MODEL

    [providers.local]
    kind = "openai"                         # anthropic, openai, bedrock or vertex
    base_url = "http://127.0.0.1:11434/v1"
    models = ["qwen3:8b"]                   # default: any model
    fallback = ["router:qwen/qwen3"]        # for domains that choose no fallback
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
    """The table of one provider; see `Provider`."""

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
    """The content of the file of providers."""

    default: Text | None = None
    providers: dict[ProviderName, ProviderForm] = Field(min_length=1)


@dataclass(frozen=True, slots=True)
class Provider:
    """A provider of the operator's file.

    ``models``: the allowed model names; empty allows any. ``fallback``: replacements for its models, as
    ``provider:name``. ``region``, ``project`` and ``account`` (a profile of the AWS configuration) configure a cloud;
    without them, the cloud's own environment variables apply.
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
    """The content of the operator's file.

    ``default``: the model for domains that choose none, as ``provider:name``; empty if the file names none.
    """

    providers: Mapping[str, Provider]
    default: str = ""

    @property
    def kinds(self) -> Mapping[str, ProviderKind]:
        """The protocol of each provider."""
        return {name: provider.kind for name, provider in self.providers.items()}

    @property
    def profiles(self) -> Mapping[str, ProfileChanges]:
        """The profile changes of all models, by ``provider:name``."""
        return {
            f"{name}:{model}": changes
            for name, provider in self.providers.items()
            for model, changes in provider.profiles.items()
        }


NONE = Providers({})


def read_providers(path: Path | None) -> Providers:
    """Read the file of providers. Without a path, returns `NONE`.

    Raises:
        BadConfiguration: the file cannot be read, one of its keys is unknown or has an invalid value, or an
            environment variable is not set.
    """
    if path is None:
        return NONE
    try:
        file = read_form(ProvidersFile, tomllib.loads(path.read_text("utf-8")))
    except (OSError, UnicodeDecodeError) as exc:
        raise BadConfiguration(SETTING, f"{path} cannot be read: {exc}") from exc
    except tomllib.TOMLDecodeError as exc:
        raise BadConfiguration(SETTING, f"{path} is no TOML: {exc}") from exc
    except InvalidInput as exc:
        raise BadConfiguration(SETTING, f"{path}: {exc}") from exc
    providers = Providers({name: _provider(name, form) for name, form in file.providers.items()}, file.default or "")
    named = [(f"providers.{provider.name}.fallback", provider.fallback) for provider in providers.providers.values()]
    for place, models in [*named, ("default", (providers.default,) if providers.default else ())]:
        _check_names(providers, f"{path}: {place}", models)
    return providers


def _check_names(providers: Providers, place: str, models: tuple[str, ...]) -> None:
    for model in models:
        provider, _, bare = model.partition(":")
        configured = providers.providers.get(provider)
        if configured is None and provider not in ("anthropic", "openai"):
            names = ", ".join(providers.providers)
            raise BadConfiguration(SETTING, f"{place}: {model!r} begins with no provider; there are {names}")
        if configured is not None and configured.models and bare not in configured.models:
            raise BadConfiguration(
                SETTING, f"{place}: {provider} has no {bare!r}; it has {', '.join(configured.models)}"
            )


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
        {model: changes_of(profile_form) for model, profile_form in form.profiles.items()},
    )
