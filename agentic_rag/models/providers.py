"""Model providers: who serves the model that ``AGENTIC_RAG_MODEL`` names.

Owns the table of providers and the choice among them. ``AGENTIC_RAG_MODEL`` is a model's name, or ``provider:name``
with one of the providers: those in this module, those of the operator's file (`provider_file`), and any that an
installed distribution declares as an entry point of the group ``agentic_rag.model_providers``::

    [project.entry-points."agentic_rag.model_providers"]
    acme = "acme_models:make_model"

The environment's keys make ``anthropic`` and ``openai`` providers; domains choose among all. A prefix that is no
provider belongs to the name (``qwen3:8b``). Without a provider it is ``anthropic`` when a key is configured, else
``extractive``. Knows no turn and no domain.
"""

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

GROUP: Final = "agentic_rag.model_providers"
SETTING: Final = "AGENTIC_RAG_MODEL"
LONG_KEY: Final = 20
"""Characters from which on a value without a digit is taken for a secret, too."""
_SECRET: Final = re.compile(r"key|token|secret|auth|cookie|password|credential", re.IGNORECASE)
"""In the name of a header whose value nobody may see."""


class ModelProvider(Protocol):
    """What an entry point of the group names: a callable that makes a `Model`, once for each process.

    ``name`` is what follows ``provider:`` in the setting, possibly empty. It must not connect to anything: the first
    call of `Model.stream` does. A provider reads variables of its own by itself.

    Raises:
        BadConfiguration: a setting is missing or wrong; the process ends with this text.
    """

    def __call__(self, settings: Settings, name: str) -> Model: ...


@dataclass(frozen=True, slots=True)
class ChosenModel:
    """A model, the name by which requests ask for it where a domain names none, and whose that name is.

    ``fallbacks``: by provider, what is asked in the place of its models where a domain names nothing else.
    """

    model: Model
    name: str
    provider: str = ""
    fallbacks: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @property
    def names(self) -> ModelNames:
        """Which names there are, and how they are kept."""
        if isinstance(self.model, ModelPool):
            return self.model.names
        return ModelNames(self.provider, {self.provider}, plain=self.provider)

    async def refusal(self, name: str) -> str | None:
        """Return why no domain can name this model, None when one can, or when nobody knows.

        ``name``: ``provider:name``, or a name of the default provider's.
        """
        if isinstance(self.model, ExtractiveModel):
            return None  # there is no language model yet: the name is for the day there is
        provider, colon, _ = name.partition(":")
        if colon and provider not in self.names.providers and provider in {*OWN, *_find_declared()}:
            known = ", ".join(sorted(self.names.providers))
            return f"this server has no provider {provider!r}; its models are those of {known}."
        if isinstance(self.model, ModelPool):
            return await self.model.refusal(name)
        bare = name.removeprefix(f"{self.provider}:")
        if isinstance(self.model, AnthropicModel) and await self.model.knows(bare) is False:
            return f"the service does not know the model {bare!r}."
        return None


def make_anthropic(settings: Settings, name: str) -> Model:
    """Return the Messages API's model; see `ModelProvider`."""
    return AnthropicModel(_text(settings.anthropic_api_key), settings.anthropic_base_url, citations=settings.citations)


def make_openai(settings: Settings, name: str) -> Model:
    """Return the model of OpenAI, or of the endpoint at ``OPENAI_BASE_URL``; see `ModelProvider`."""
    return OpenAIModel(_text(settings.openai_api_key), settings.openai_base_url)


def make_extractive(settings: Settings, name: str) -> Model:
    """Return the model that quotes; see `ModelProvider`."""
    return ExtractiveModel()


OWN: Final[Mapping[str, ModelProvider]] = {
    "anthropic": make_anthropic,
    "openai": make_openai,
    "extractive": make_extractive,
}
"""Providers that no distribution can replace."""


def make_provided(provider: Provider) -> Model:
    """Return the model of a provider of the operator's file.

    Raises:
        BadConfiguration: its key or its URL cannot be used.
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


def choose_model(settings: Settings, given: Providers = NO_PROVIDERS) -> ChosenModel:
    """Return the model that the settings and the operator's file stand for: of several providers, all as one.

    Raises:
        BadConfiguration: a provider cannot be loaded or makes no model, a setting of it is wrong, or nothing says which
            model answers where a domain names none.
    """
    declared = _find_declared()
    wanted = given.default or settings.model
    provider, colon, name = wanted.partition(":")
    if not colon or provider not in {**declared, **OWN, **given.providers}:
        provider = "anthropic" if _text(settings.anthropic_api_key) or "anthropic" in given.providers else "extractive"
        name = wanted
    models = {each.name: make_provided(each) for each in given.providers.values()}
    if provider == "extractive" and given.providers and not colon:
        names = " or ".join(f"{name}:NAME" for name in given.providers)
        raise BadConfiguration(SETTING, f"must name a model with its provider: {names}")
    if provider not in models:
        own = OWN.get(provider)
        models[provider] = own(settings, name) if own else _make(declared[provider], settings, name)
    if not given.providers and provider not in ("openai", "anthropic"):
        return ChosenModel(models[provider], name, provider)
    for other, set_up in (("anthropic", settings.anthropic_api_key), ("openai", settings.openai_api_key)):
        if other not in models and _text(set_up):
            models[other] = OWN[other](settings, "")
    if set(models) == {"anthropic"} and not given.providers:
        return ChosenModel(models[provider], name, provider)
    names_of = ModelNames(provider, frozenset(models))
    if not name:
        raise BadConfiguration(SETTING, f"names no model of {provider!r}; write {provider}:NAME")
    offered = {each.name: each.models for each in given.providers.values() if each.models}
    fallbacks = {each.name: each.fallback for each in given.providers.values() if each.fallback}
    kept = names_of.keep(f"{provider}:{name}")
    return ChosenModel(ModelPool(models, names_of, offered), kept, provider, fallbacks)


def use_profiles(settings: Settings, given: Providers = NO_PROVIDERS) -> None:
    """Let what the operator's files say of models count in this process.

    Raises:
        BadConfiguration: the file of profiles cannot be read.
    """
    profiles = read_profiles(settings.model_profiles) if settings.model_profiles else {}
    use_operator_profiles({**profiles, **given.profiles}, given.kinds)


def configured_models(settings: Settings, choice: ChosenModel, given: Providers = NO_PROVIDERS) -> tuple[str, ...]:
    """Return the models that the operator names, each once: the one of domains that name none, what providers offer,
    and what is asked in their place."""
    named = [choice.name] if not isinstance(choice.model, ExtractiveModel) else []
    for each in given.providers.values():
        named += [*(f"{each.name}:{model}" for model in each.models), *each.fallback]
    return tuple(dict.fromkeys(map(choice.names.keep, named)))


def secrets_of(settings: Settings, given: Providers = NO_PROVIDERS) -> Mapping[str, str]:
    """Return the operator's secret values by where they stand: keys, words in addresses, and headers that name one.

    What local services are given for a key, ``anything`` or ``not-needed``, is a word like others and not among them.
    """
    found = {name: value.get_secret_value() for name, value in settings if isinstance(value, SecretStr)}
    found |= {f"base_url of {name}": _password_in(url) for name, url in _addresses(settings, given)}
    for each in given.providers.values():
        found[f"providers.{each.name}.key"] = each.key
        for headers in (each.headers, *(profile.get("headers", {}) for profile in each.profiles.values())):
            found |= {f"{each.name}.{name}": value for name, value in headers.items() if _SECRET.search(name)}
    parts = {name: [part.strip() for part in value.split(",")] for name, value in found.items()}
    return {f"{name}.{n}": part for name, values in parts.items() for n, part in enumerate(values) if _is_secret(part)}


def _addresses(settings: Settings, given: Providers) -> Iterator[tuple[str, str]]:
    own = (("anthropic", settings.anthropic_base_url), ("openai", settings.openai_base_url))
    for name, url in (*own, *((each.name, each.base_url) for each in given.providers.values())):
        if url:
            yield name, url


def _password_in(url: str) -> str:
    try:
        return unquote(urlsplit(url).password or "")
    except ValueError:
        return ""


def _is_secret(value: str) -> bool:
    return len(value) >= LONG_KEY or any(each.isdigit() for each in value)


def _text(secret: SecretStr | None) -> str:
    return secret.get_secret_value().strip() if secret else ""


def _find_declared() -> dict[str, EntryPoint]:
    return {point.name: point for point in entry_points(group=GROUP)}


def _make(point: EntryPoint, settings: Settings, name: str) -> Model:
    """Make the model of a distribution; whatever is wrong with it is told by the provider's name."""
    place = f"the model provider {point.name!r} ({point.value})"
    try:
        model = point.load()(settings, name)
    except BadConfiguration:
        raise
    except Exception as exc:  # the code is not ours
        raise BadConfiguration(SETTING, f"{place} failed: {type(exc).__name__}: {exc}") from exc
    if not all(hasattr(model, member) for member in ("name", "stream", "aclose")):
        raise BadConfiguration(SETTING, f"{place} made {type(model).__name__!r}, which is no model")
    made: Model = model
    return made
