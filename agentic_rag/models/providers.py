"""Model providers: the services behind the model that ``AGENTIC_RAG_MODEL`` names.

Owns the table of providers and the choice among them. ``AGENTIC_RAG_MODEL`` is a model's name or ``provider:name``.
A provider is defined in this module, in the operator's file (`provider_file`), or by an installed distribution with
an entry point of the group ``agentic_rag.model_providers``::

    [project.entry-points."agentic_rag.model_providers"]
    acme = "acme_models:make_model"

The environment's keys add the providers ``anthropic`` and ``openai``. Domains choose among all providers. A prefix
that is not a provider belongs to the name (``qwen3:8b``). Without a prefix, the provider is ``anthropic`` if a key or
the operator's file configures one, else ``extractive``. Knows no turn and no domain.
"""

import logging
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from importlib.metadata import EntryPoint, entry_points
from typing import Final, Protocol
from urllib.parse import unquote, urlsplit

from pydantic import SecretStr

from agentic_rag.base.settings import Settings
from agentic_rag.base.startup_errors import BadConfiguration
from agentic_rag.models.anthropic.clouds import BedrockModel, CloudModel
from agentic_rag.models.anthropic.model import AnthropicModel, CitationMode
from agentic_rag.models.base import Model
from agentic_rag.models.extractive import ExtractiveModel
from agentic_rag.models.names import ModelNames
from agentic_rag.models.openai.model import OpenAIModel
from agentic_rag.models.pool import ModelPool
from agentic_rag.models.profile_file import read_profiles
from agentic_rag.models.profiles import use_operator_profiles
from agentic_rag.models.provider_file import NONE as NO_PROVIDERS
from agentic_rag.models.provider_file import Provider, Providers

log = logging.getLogger(__name__)

GROUP: Final = "agentic_rag.model_providers"
SETTING: Final = "AGENTIC_RAG_MODEL"
LONG_KEY: Final = 20
"""Characters from which a value counts as a secret even without a digit."""
_SECRET: Final = re.compile(r"key|token|secret|auth|cookie|password|credential", re.IGNORECASE)
"""Matches the names of headers whose values are secret."""


class ModelProvider(Protocol):
    """A callable, declared as an entry point of the group, that makes a `Model` once per process.

    ``name`` is the part after ``provider:`` in the setting, possibly empty. The callable must not connect to anything:
    the first call of `Model.stream` connects. A provider reads its own environment variables.

    Raises:
        BadConfiguration: a setting is missing or wrong. The process ends with this text.
    """

    def __call__(self, settings: Settings, name: str) -> Model: ...


@dataclass(frozen=True, slots=True)
class ChosenModel:
    """The server's model, with the model name and provider for domains that choose none.

    ``fallbacks``: by provider, the models to use in place of its models, for domains that choose no fallback.
    """

    model: Model
    name: str
    provider: str = ""
    fallbacks: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @property
    def names(self) -> ModelNames:
        """The rules for model names: the known providers and the stored form."""
        if isinstance(self.model, ModelPool):
            return self.model.names
        return ModelNames(self.provider, {self.provider}, plain=self.provider)

    async def refusal(self, name: str) -> str | None:
        """Return why domains cannot use this model name, or None if they can or the service does not say.

        ``name``: ``provider:name``, or a name of the default provider's.
        """
        if isinstance(self.model, ExtractiveModel):
            return None  # there is no language model yet: the name is for the day there is
        provider, colon, _ = name.partition(":")
        if colon and provider not in self.names.providers and provider in {*OWN, *_find_declared()}:
            names = ", ".join(sorted(self.names.providers))
            return f"this server has no provider {provider!r}; its models are those of {names}."
        if isinstance(self.model, ModelPool):
            return await self.model.refusal(name)
        bare = name.removeprefix(f"{self.provider}:")
        if isinstance(self.model, AnthropicModel) and await self.model.knows(bare) is False:
            return f"the service does not know the model {bare!r}."
        return None


def make_anthropic(settings: Settings, name: str) -> Model:
    """Make the model of Anthropic, or of the endpoint at ``ANTHROPIC_BASE_URL``; see `ModelProvider`."""
    return AnthropicModel(_text(settings.anthropic_api_key), settings.anthropic_base_url, citations=settings.citations)


def make_openai(settings: Settings, name: str) -> Model:
    """Make the model of OpenAI, or of the endpoint at ``OPENAI_BASE_URL``; see `ModelProvider`."""
    return OpenAIModel(_text(settings.openai_api_key), settings.openai_base_url)


def make_extractive(settings: Settings, name: str) -> Model:
    """Make the extractive model; see `ModelProvider`."""
    return ExtractiveModel()


OWN: Final[Mapping[str, ModelProvider]] = {
    "anthropic": make_anthropic,
    "openai": make_openai,
    "extractive": make_extractive,
}
"""Built-in providers. A distribution cannot replace them."""


def make_provided(provider: Provider) -> Model:
    """Make the model of a provider of the operator's file.

    Raises:
        BadConfiguration: the provider's key or URL cannot be used.
    """
    if provider.kind == "openai":
        key, url = provider.key, provider.base_url
        return OpenAIModel(key, url, headers=provider.headers, provider=provider.name, in_file=True)
    if provider.kind == "anthropic":
        marks: CitationMode = "marks" if provider.marks else "native"
        return AnthropicModel(
            provider.key, provider.base_url, citations=marks, headers=provider.headers, provider=provider.name
        )
    return BedrockModel(provider) if provider.kind == "bedrock" else CloudModel(provider)


def choose_model(settings: Settings, operator_file: Providers = NO_PROVIDERS) -> ChosenModel:
    """Return the model of the settings and the operator's file. Several providers are combined into one `ModelPool`.

    Raises:
        BadConfiguration: a provider cannot be loaded or makes no model, one of its settings is wrong, or no setting
            names the model for domains that choose none.
    """
    model_name = operator_file.default or settings.model
    provider, colon, name = model_name.partition(":")
    configured_names = {*OWN, *operator_file.providers}
    declared = _find_declared() if colon and provider not in configured_names else {}
    # Names of models may contain a colon too (``qwen3:8b``): only a known provider's name counts as one.
    if not colon or provider not in {*configured_names, *declared}:
        provider = (
            "anthropic" if _text(settings.anthropic_api_key) or "anthropic" in operator_file.providers else "extractive"
        )
        name = model_name
        if provider == "extractive":
            _report_unused(settings)
    models = {configured.name: make_provided(configured) for configured in operator_file.providers.values()}
    if provider == "extractive" and operator_file.providers and not colon:
        names = " or ".join(f"{name}:NAME" for name in operator_file.providers)
        raise BadConfiguration(SETTING, f"must name a model with its provider: {names}")
    if provider not in models:
        own = OWN.get(provider)
        models[provider] = own(settings, name) if own else _make(declared[provider], settings, name)
    # Without the operator's file, the extractive model or a distribution's provider stays the only one.
    if not operator_file.providers and provider not in ("openai", "anthropic"):
        return ChosenModel(models[provider], name, provider)
    for own_name, set_up in (("anthropic", settings.anthropic_api_key), ("openai", settings.openai_api_key)):
        if own_name not in models and _text(set_up):
            models[own_name] = OWN[own_name](settings, "")
    # With Anthropic alone, no name of a model needs a provider before it.
    if set(models) == {"anthropic"} and not operator_file.providers:
        return ChosenModel(models[provider], name, provider)
    names_of = ModelNames(provider, frozenset(models))
    if not name:
        raise BadConfiguration(SETTING, f"names no model of {provider!r}; write {provider}:NAME")
    offered = {
        configured.name: configured.models for configured in operator_file.providers.values() if configured.models
    }
    fallbacks = {
        configured.name: configured.fallback for configured in operator_file.providers.values() if configured.fallback
    }
    stored_name = names_of.keep(f"{provider}:{name}")
    return ChosenModel(ModelPool(models, names_of, offered), stored_name, provider, fallbacks)


def _report_unused(settings: Settings) -> None:
    """Warn if an OpenAI service is configured, but the name of the model does not choose it."""
    for variable, value in (
        ("OPENAI_API_KEY", _text(settings.openai_api_key)),
        ("OPENAI_BASE_URL", settings.openai_base_url),
    ):
        if value:
            log.warning(
                "%s is set, but AGENTIC_RAG_MODEL is %r, which is not a model of that service: set "
                "AGENTIC_RAG_MODEL=openai:NAME. Until then, answers only quote the documents.",
                variable,
                settings.model,
            )
            return


def use_profiles(settings: Settings, operator_file: Providers = NO_PROVIDERS) -> None:
    """Apply the model profiles of the operator's files to this process.

    Raises:
        BadConfiguration: the file of profiles cannot be read.
    """
    profiles = read_profiles(settings.model_profiles) if settings.model_profiles else {}
    use_operator_profiles({**profiles, **operator_file.profiles}, operator_file.kinds)


def configured_models(
    settings: Settings, choice: ChosenModel, operator_file: Providers = NO_PROVIDERS
) -> tuple[str, ...]:
    """Return the models that the operator configured, without duplicates.

    These are the default model, the models that providers offer, and the fallbacks.
    """
    named = [choice.name] if not isinstance(choice.model, ExtractiveModel) else []
    for provider in operator_file.providers.values():
        named += [*(f"{provider.name}:{model}" for model in provider.models), *provider.fallback]
    return tuple(dict.fromkeys(map(choice.names.keep, named)))


def secrets_of(settings: Settings, operator_file: Providers = NO_PROVIDERS) -> Mapping[str, str]:
    """Return the operator's secret values by their places: keys, passwords in URLs, and headers with a secret.

    Placeholder keys for local services, such as ``anything`` or ``not-needed``, are ordinary words and not included.
    """
    secrets = {name: value.get_secret_value() for name, value in settings if isinstance(value, SecretStr)}
    secrets |= {f"base_url of {name}": _password_in(url) for name, url in _addresses(settings, operator_file)}
    for provider in operator_file.providers.values():
        secrets[f"providers.{provider.name}.key"] = provider.key
        for headers in (provider.headers, *(profile.get("headers", {}) for profile in provider.profiles.values())):
            secrets |= {f"{provider.name}.{name}": value for name, value in headers.items() if _SECRET.search(name)}
    # A setting may list several values with commas between them; each is a secret.
    parts = {name: [part.strip() for part in value.split(",")] for name, value in secrets.items()}
    return {f"{name}.{n}": part for name, values in parts.items() for n, part in enumerate(values) if _is_secret(part)}


def _addresses(settings: Settings, operator_file: Providers) -> Iterator[tuple[str, str]]:
    own = (("anthropic", settings.anthropic_base_url), ("openai", settings.openai_base_url))
    for name, url in (*own, *((provider.name, provider.base_url) for provider in operator_file.providers.values())):
        if url:
            yield name, url


def _password_in(url: str) -> str:
    try:
        return unquote(urlsplit(url).password or "")
    except ValueError:
        return ""


def _is_secret(value: str) -> bool:
    return len(value) >= LONG_KEY or any(character.isdigit() for character in value)


def _text(secret: SecretStr | None) -> str:
    return secret.get_secret_value().strip() if secret else ""


def _find_declared() -> dict[str, EntryPoint]:
    return {point.name: point for point in entry_points(group=GROUP)}


def _make(point: EntryPoint, settings: Settings, name: str) -> Model:
    """Make the model of a distribution's provider. Every failure is reported with the provider's name."""
    place = f"the model provider {point.name!r} ({point.value})"
    try:
        model = point.load()(settings, name)
    except BadConfiguration:
        raise
    except Exception as exc:  # third-party code may raise anything
        raise BadConfiguration(SETTING, f"{place} failed: {type(exc).__name__}: {exc}") from exc
    if not all(hasattr(model, member) for member in ("name", "stream", "aclose")):
        raise BadConfiguration(SETTING, f"{place} made {type(model).__name__!r}, which is no model")
    checked: Model = model  # `load` returns an untyped object; the members were checked above
    return checked
