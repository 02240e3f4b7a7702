"""Model providers: who serves the model that ``AGENTIC_RAG_MODEL`` names.

Owns the table of providers and the choice among them. ``AGENTIC_RAG_MODEL`` is a model's name, or ``provider:name``
with one of the providers: those in this module, and any that an installed distribution declares as an entry point of
the group ``agentic_rag.model_providers``::

    [project.entry-points."agentic_rag.model_providers"]
    acme = "acme_models:make_model"

A prefix that is no provider belongs to the name (``qwen3:8b``). Without a provider it is ``anthropic`` when a key is
configured, else ``extractive``. Knows no turn and no domain.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from typing import Final, Protocol

from agentic_rag.errors import BadConfiguration
from agentic_rag.models.anthropic.model import AnthropicModel
from agentic_rag.models.base import Model
from agentic_rag.models.extractive import ExtractiveModel
from agentic_rag.settings import Settings

GROUP: Final = "agentic_rag.model_providers"
SETTING: Final = "AGENTIC_RAG_MODEL"


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
    """A model, and the name by which requests ask for it."""

    model: Model
    name: str
    provider: str = ""

    async def refusal(self, name: str) -> str | None:
        """Return why no domain can name this model, None when one can, or when nobody knows.

        ``name``: ``provider:name``, or a name of this provider's.
        """
        if isinstance(self.model, ExtractiveModel):
            return None  # there is no language model yet: the name is for the day there is
        provider, colon, _ = name.partition(":")
        if colon and provider != self.provider and provider in {*OWN, *_find_declared()}:
            return f"this server has no provider {provider!r}; its models are those of {self.provider!r}."
        bare = name.removeprefix(f"{self.provider}:")
        if isinstance(self.model, AnthropicModel) and await self.model.knows(bare) is False:
            return f"the service does not know the model {bare!r}."
        return None


def make_anthropic(settings: Settings, name: str) -> Model:
    """Return the Messages API's model; see `ModelProvider`."""
    key = settings.anthropic_api_key
    text = key.get_secret_value() if key else ""
    return AnthropicModel(text, settings.anthropic_base_url, citations=settings.citations)


def make_extractive(settings: Settings, name: str) -> Model:
    """Return the model that quotes; see `ModelProvider`."""
    return ExtractiveModel()


OWN: Final[Mapping[str, ModelProvider]] = {"anthropic": make_anthropic, "extractive": make_extractive}
"""Providers that no distribution can replace."""


def choose_model(settings: Settings) -> ChosenModel:
    """Return the model that the settings stand for.

    Raises:
        BadConfiguration: the provider cannot be loaded or makes no model, or a setting of it is wrong.
    """
    declared = _find_declared()
    provider, colon, name = settings.model.partition(":")
    if not colon or provider not in {**declared, **OWN}:
        key = settings.anthropic_api_key
        provider = "anthropic" if key and key.get_secret_value().strip() else "extractive"
        name = settings.model
    own = OWN.get(provider)
    model = own(settings, name) if own else _make(declared[provider], settings, name)
    return ChosenModel(model, name, provider)


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
