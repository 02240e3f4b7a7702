"""Model profiles: the parameters, features and limits of each model.

A profile combines a built-in table, the answer of ``GET /v1/models/{id}`` and the operator's file (`profile_file`).
This module also decides which of a domain's settings a model refuses. Pure: the adapters ask the services. A model
outside the table whose name is not a Claude name counts as a compatible endpoint's model. Its requests then hold
nothing that only Claude supports.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, Final, Literal

from agentic_rag.base.json_form import Json

Effort = Literal["low", "medium", "high", "xhigh", "max"]
EFFORTS: Final[tuple[Effort, ...]] = ("low", "medium", "high", "xhigh", "max")

THINKING_ROOM: Final = {"low": 4_096, "medium": 16_384, "high": 32_768, "xhigh": 65_536, "max": 98_304}
"""Tokens for thinking, in addition to those of the answer, by effort."""

SHORT_WINDOW: Final = 32_000
"""Context windows with fewer tokens than this leave less room for results, roles and tools."""

MOST_KNOWN: Final = 1_024
"""Cached profiles: a turn looks up its model's profile a dozen times."""

Display = Literal["summarized", "omitted"]
"""Whether the service sends the text of thinking: ``thinking.display`` of the Messages API."""

ProviderKind = Literal["anthropic", "openai", "bedrock", "vertex"]
"""A provider's protocol: the Messages API, chat completions, or the Messages API as Bedrock or Vertex offer it."""
NO_PROVIDERS: Final[Mapping[str, ProviderKind]] = {}
_ENVIRONMENT: Final[Mapping[str, ProviderKind]] = {"openai": "openai"}
"""Providers that the environment's variables set up without the operator's file."""

_ANY_CLAUDE: Final = re.compile(r"claude-(?:fable|mythos|opus|sonnet|haiku)-\d+(?:[-.]\d{1,2}(?!\d))?")
"""A Claude name inside another name: ``us.anthropic.claude-sonnet-5-5-v1:0``, ``claude-haiku-4-5@20251001`` or
``anthropic/claude-opus-5.5``."""
_REASONING: Final = re.compile(r"(?:\A|/)(?:gpt-5|o\d)", re.IGNORECASE)
"""OpenAI's reasoning models: they accept an effort and no temperature."""
_REPLAYING: Final = re.compile(r"deepseek|kimi|glm-|minimax", re.IGNORECASE)
"""Model families that need their reasoning sent back while they call tools."""
_CLAUDE: Final = re.compile(r"claude-(?:fable|mythos|opus|sonnet|haiku)-")
_DATE: Final = re.compile(r"-\d{8}\Z")
_DAY: Final = re.compile(r"\d{4}-\d\d-\d\dT")


@dataclass(frozen=True, slots=True)
class ModelProfile:
    """The parameters, features and limits of one model. Lengths are tokens; None means unknown.

    ``thinking``: the accepted values of ``thinking.type``.
    ``thinks``: the model thinks if the request has no ``thinking`` parameter.
    ``display``: the requested ``thinking.display``.
    ``bound``: the service checks that nothing before a thinking block has changed.
    ``system_messages``: the conversation may contain instructions.
    ``cites``: the model can cite search results natively.
    ``caching``: the service accepts ``cache_control``; with ``hour_cache`` also for one hour.
    ``headers``: added to each request, overriding the provider's headers. Names are in lower case.
    ``completion_tokens``: chat completions name the limit ``max_completion_tokens``.
    ``retires``: the day on which the service retires the model (ISO 8601), if it differs from the table in
    `agentic_rag.models.retirement`; ``successor``: a model to use instead.
    ``diagnoses``: the service says why its prompt cache missed (``diagnostics``). ``structured``: the service accepts a
    JSON schema for an answer (``output_config.format``). Both are sent only to a service that reports its models'
    capabilities, because gateways refuse unknown parameters.
    ``replays_reasoning``: in chat completions, the model needs its reasoning back with the results of its calls.
    """

    name: str
    thinking: frozenset[str] = frozenset()
    thinks: bool = False
    display: Display = "summarized"
    efforts: tuple[str, ...] = ()
    sampling: bool = True
    bound: bool = False
    system_messages: bool = False
    deferred_tools: bool = False
    cites: bool = True
    images: bool = True
    caching: bool = True
    hour_cache: bool = False
    diagnoses: bool = False
    structured: bool = False
    completion_tokens: bool = False
    replays_reasoning: bool = False
    output_limit: int | None = None
    context_window: int | None = None
    cache_minimum: int = 1_024
    retires: str | None = None
    successor: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)

    def room(self, effort: str | None) -> int:
        """Return how many tokens thinking may use in addition to the answer's."""
        return THINKING_ROOM[effort or "high"]


def _claude(name: str, thinking: str, *, minimum: int = 512) -> ModelProfile:
    """Return the profile of a newer model: these share almost all fields."""
    return ModelProfile(
        name,
        frozenset(thinking.split()),
        thinks=True,
        efforts=EFFORTS,
        sampling=False,
        bound=True,
        system_messages=True,
        deferred_tools=True,
        output_limit=128_000,
        context_window=1_000_000,
        cache_minimum=minimum,
        hour_cache=True,
    )


_SONNET: Final = _claude("claude-sonnet-5-5", "adaptive between_tools")
_TABLE: Final = (
    _claude("claude-fable-5-2", "adaptive"),
    _claude("claude-fable-5-1", "adaptive"),
    _claude("claude-opus-5-5", "adaptive"),
    _SONNET,
    _claude("claude-haiku-5-5", "adaptive disabled"),
    replace(_claude("claude-opus-5", "adaptive disabled"), bound=False),
    replace(
        _claude("claude-sonnet-5", "adaptive disabled", minimum=1_024),
        bound=False,
        system_messages=False,
    ),
    replace(
        _claude("claude-opus-4-8", "adaptive disabled", minimum=1_024),
        bound=False,
        thinks=False,
    ),
    replace(
        _claude("claude-opus-4-7", "adaptive disabled", minimum=2_048),
        bound=False,
        thinks=False,
        system_messages=False,
    ),
    *(
        ModelProfile(
            name,
            frozenset({"enabled", "disabled"}),
            output_limit=64_000,
            context_window=200_000,
            cache_minimum=minimum,
            hour_cache=True,
        )
        for name, minimum in (
            ("claude-opus-4-5", 4_096),
            ("claude-sonnet-4-5", 1_024),
            ("claude-haiku-4-5", 4_096),
        )
    ),
    ModelProfile(
        "claude-opus-4-6",
        frozenset({"adaptive", "enabled", "disabled"}),
        efforts=("low", "medium", "high", "max"),
        deferred_tools=True,
        output_limit=128_000,
        context_window=1_000_000,
        cache_minimum=4_096,
        hour_cache=True,
    ),
    ModelProfile(
        "claude-sonnet-4-6",
        frozenset({"adaptive", "enabled", "disabled"}),
        efforts=("low", "medium", "high", "max"),
        deferred_tools=True,
        output_limit=64_000,
        context_window=1_000_000,
        hour_cache=True,
    ),
)
ProfileChanges = Mapping[str, Any]
"""Fields of a `ModelProfile` to replace, by name."""

_operator: dict[str, ProfileChanges] = {}
"""The operator's profile changes by model name, with or without ``provider:``. One set per process."""
_providers: dict[str, ProviderKind] = {**_ENVIRONMENT}
"""The operator's providers and their protocols. One set per process."""


def use_operator_profiles(
    changes: Mapping[str, ProfileChanges], providers: Mapping[str, ProviderKind] = NO_PROVIDERS
) -> None:
    """Set the profile changes that override the table and the service's answers, and discard those of earlier calls.

    ``providers``: the protocol of each of the operator's providers, by name.
    """
    _operator.clear()
    _operator.update(changes)
    _providers.clear()
    _providers.update({**_ENVIRONMENT, **providers})
    profile_of.cache_clear()


def as_operator_says(profile: ModelProfile, model: str = "") -> ModelProfile:
    """Return the profile with the operator's changes. ``model``: the name with its provider."""
    bare = model.partition(":")[2]
    # The most exact name first: changes for one provider's model precede those for the model of any provider.
    for name in (model, bare, profile.name, _DATE.sub("", profile.name)):
        if changes := _operator.get(name):
            return replace(profile, **changes)
    return profile


PROFILES: Final = {profile.name: profile for profile in _TABLE}


@lru_cache(MOST_KNOWN)
def profile_of(model: str) -> ModelProfile:
    """Return the profile of a model from the table and the operator's files, without asking the service.

    ``provider:`` before the name selects the protocol if the operator configured that provider. A Claude model outside
    the table gets the profile of the newest models. These refuse the most parameters, so that its requests hold none
    that the service could refuse.
    """
    kind, bare = kind_of(model)
    profile = _profile(model.removeprefix("anthropic:")) if kind is None else _profile_at(kind, bare)
    return as_operator_says(profile, model) if _operator else profile


def kind_of(model: str) -> tuple[ProviderKind | None, str]:
    """Return the protocol of a model's provider and the model's name there.

    The protocol is None if the name has no ``provider:`` that the operator or the environment configured.
    """
    provider, _, bare = model.partition(":")
    return _providers.get(provider), bare


def _profile(name: str) -> ModelProfile:
    profile = PROFILES.get(name) or PROFILES.get(_DATE.sub("", name))
    if profile is None:
        profile = replace(_SONNET, name=name) if is_claude(name) else ModelProfile(name)
    return profile


def _profile_at(kind: ProviderKind, name: str) -> ModelProfile:
    """Return the profile of a model by its name and its provider's protocol."""
    if kind == "openai":
        reasons = _REASONING.search(name) is not None
        return ModelProfile(
            name,
            thinks=reasons,
            efforts=("low", "medium", "high") if reasons else (),
            sampling=not reasons,
            cites=False,
            caching=False,
            completion_tokens=reasons,
            replays_reasoning=_REPLAYING.search(name) is not None,
        )
    claude = _ANY_CLAUDE.search(name)
    if claude is None:
        return ModelProfile(name, cites=False, caching=False)
    profile = _profile(claude[0].replace(".", "-"))
    return profile if kind == "anthropic" else replace(profile, hour_cache=False)


def most_output(max_tokens: int, profile: ModelProfile) -> int:
    """Return the maximum of ``max_tokens`` for a request to a model.

    The answer may take half of the model's context window, or a quarter of a short one (`SHORT_WINDOW`), because the
    prompt and the tools need the same space there. An unknown window sets no limit.
    """
    most = profile.output_limit or max_tokens + profile.room("max")
    window = profile.context_window
    return min(most, window // (4 if window < SHORT_WINDOW else 2)) if window else most


def is_claude(name: str) -> bool:
    """Whether a name is one of Anthropic's own model names, so that its service can describe the model."""
    return _CLAUDE.match(name) is not None


def with_capabilities(profile: ModelProfile, info: Json, model: str = "") -> ModelProfile:
    """Return the profile with the fields that ``GET /v1/models/{id}`` reports; the others keep their values.

    The operator's files override the profile and the service's answer. ``model``: the name with its provider.
    """
    capabilities = info.get("capabilities") or {}
    types = _names_of((capabilities.get("thinking") or {}).get("types"))
    efforts = _names_of(capabilities.get("effort"))
    reported = replace(
        profile,
        thinking=profile.thinking if types is None else types,
        # In our order, from the weakest to the strongest: the answer is an object without one.
        efforts=profile.efforts if efforts is None else tuple(effort for effort in EFFORTS if effort in efforts),
        images=_is_supported(capabilities.get("image_input"), profile.images),
        cites=_is_supported(capabilities.get("citations"), profile.cites),
        # A service that reports capabilities is Anthropic's own, and no gateway that would refuse the parameter.
        diagnoses=bool(capabilities) or profile.diagnoses,
        structured=_is_supported(capabilities.get("structured_outputs"), profile.structured),
        output_limit=info.get("max_tokens") or profile.output_limit,
        context_window=info.get("max_input_tokens") or profile.context_window,
        retires=_day_of(info.get("retires_at")) or profile.retires,
    )
    return as_operator_says(reported, model)


def _day_of(moment: object) -> str | None:
    """Return the day of an RFC 3339 time, or None if it is none."""
    return moment[:10] if isinstance(moment, str) and _DAY.match(moment) else None


def _names_of(group: Json | None) -> frozenset[str] | None:
    if not isinstance(group, dict):
        return None
    return frozenset(name for name, support in group.items() if isinstance(support, dict) and support.get("supported"))


def _is_supported(value: object, default: bool) -> bool:
    return bool(value.get("supported", default)) if isinstance(value, dict) else default


def refusal_of(model: str, *, effort: str | None) -> tuple[str, str] | None:
    """Return the setting that a model refuses and the reason, or None if the model accepts all.

    A temperature is never refused: the adapters omit the parameter for models that do not accept one.
    """
    profile = profile_of(model)
    if effort is not None and effort not in profile.efforts:
        allowed = ", ".join(profile.efforts)
        offer = f"it has {allowed}" if allowed else "it has no effort setting; leave it out"
        return "effort", f"{profile.name} does not take the effort {effort!r}: {offer}."
    return None
