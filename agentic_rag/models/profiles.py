"""What each model takes and has, as one value a model: a small table, and what the service says of itself.

Owns the table, the reading of ``GET /v1/models/{id}``, what the operator's file (`profile_file`) changes, and what of a
domain's settings a model refuses. Pure: asking the service is the adapter's. What is not in the table and looks like no
Claude is taken for a compatible endpoint's: it gets nothing that only Claude knows.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

from agentic_rag.json_form import Json

Effort = Literal["low", "medium", "high", "xhigh", "max"]
EFFORTS: Final[tuple[Effort, ...]] = ("low", "medium", "high", "xhigh", "max")

THINKING_ROOM: Final = {"low": 4_096, "medium": 16_384, "high": 32_768, "xhigh": 65_536, "max": 98_304}
"""Tokens for thinking above those of the answer, by effort."""

_CLAUDE: Final = re.compile(r"claude-(?:fable|mythos|opus|sonnet|haiku)-")
_DATE: Final = re.compile(r"-\d{8}\Z")


@dataclass(frozen=True, slots=True)
class Prices:
    """US dollars for a million tokens."""

    input: float
    output: float
    cache_read: float
    write_5m: float
    write_1h: float


@dataclass(frozen=True, slots=True)
class ModelProfile:
    """One model. Lengths are tokens; None where nobody knows.

    ``thinking``: the ``thinking.type`` values it takes; ``thinks``: whether it thinks when nothing is said.
    ``bound``: it checks that nothing before a thinking block has changed. ``system_messages``: instructions may stand
    inside the conversation. ``cites``: search results can be cited natively.
    """

    name: str
    thinking: frozenset[str] = frozenset()
    thinks: bool = False
    efforts: tuple[str, ...] = ()
    sampling: bool = True
    bound: bool = False
    system_messages: bool = False
    deferred_tools: bool = False
    cites: bool = True
    images: bool = True
    output_limit: int | None = None
    context_window: int | None = None
    cache_minimum: int = 1_024
    prices: Prices | None = None

    def room(self, effort: str | None) -> int:
        """Return how many tokens thinking may have above the answer's."""
        return THINKING_ROOM[effort or "high"]


def _claude(name: str, thinking: str, prices: Prices, *, minimum: int = 512) -> ModelProfile:
    """Return the profile of one of the newer models, which have almost all in common."""
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
        prices=prices,
    )


_SONNET: Final = _claude("claude-sonnet-5-5", "adaptive between_tools", Prices(2, 10, 0.1, 2.5, 4))
_TABLE: Final = (
    _claude("claude-fable-5-2", "adaptive", Prices(10, 50, 1, 12.5, 20)),
    _claude("claude-fable-5-1", "adaptive", Prices(10, 50, 1, 12.5, 20)),
    _claude("claude-opus-5-5", "adaptive", Prices(4, 20, 0.4, 5, 8)),
    _SONNET,
    _claude("claude-haiku-5-5", "adaptive disabled", Prices(0.1, 0.5, 0.01, 0.125, 0.2)),
    replace(_claude("claude-opus-5", "adaptive disabled", Prices(5, 25, 0.5, 6.25, 10)), bound=False),
    replace(
        _claude("claude-sonnet-5", "adaptive disabled", Prices(2, 10, 0.2, 2.5, 4), minimum=1_024),
        bound=False,
        system_messages=False,
    ),
    replace(
        _claude("claude-opus-4-8", "adaptive disabled", Prices(5, 25, 0.5, 6.25, 10), minimum=1_024),
        bound=False,
        thinks=False,
    ),
    replace(
        _claude("claude-opus-4-7", "adaptive disabled", Prices(5, 25, 0.5, 6.25, 10), minimum=2_048),
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
            prices=prices,
        )
        for name, minimum, prices in (
            ("claude-opus-4-5", 4_096, Prices(5, 25, 0.5, 6.25, 10)),
            ("claude-sonnet-4-5", 1_024, Prices(3, 15, 0.3, 3.75, 6)),
            ("claude-haiku-4-5", 4_096, Prices(1, 5, 0.1, 1.25, 2)),
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
        prices=Prices(5, 25, 0.5, 6.25, 10),
    ),
    ModelProfile(
        "claude-sonnet-4-6",
        frozenset({"adaptive", "enabled", "disabled"}),
        efforts=("low", "medium", "high", "max"),
        deferred_tools=True,
        output_limit=64_000,
        context_window=1_000_000,
        prices=Prices(3, 15, 0.3, 3.75, 6),
    ),
)
ProfileChanges = Mapping[str, Any]
"""Fields of a `ModelProfile` with other values."""

_operator: dict[str, ProfileChanges] = {}
"""What the operator's file says of models, by name: one file a process."""


def use_operator_profiles(changes: Mapping[str, ProfileChanges]) -> None:
    """Let these count more than the table and what the service says; those of an earlier call no longer do."""
    _operator.clear()
    _operator.update(changes)


def as_operator_says(profile: ModelProfile) -> ModelProfile:
    """Return the profile with what the operator's file says of it."""
    changes = _operator.get(profile.name) or _operator.get(_DATE.sub("", profile.name))
    return replace(profile, **changes) if changes else profile


PROFILES: Final = {profile.name: profile for profile in _TABLE}


def profile_of(model: str) -> ModelProfile:
    """Return what is known of a model before its service was asked; ``provider:`` before the name means nothing here.

    A Claude that is not in the table is taken for one of the newest: they refuse most, so that nothing is sent that
    could be refused.
    """
    name = model.removeprefix("anthropic:")
    known = PROFILES.get(name) or PROFILES.get(_DATE.sub("", name))
    if known is None:
        known = replace(_SONNET, name=name, prices=None) if is_claude(name) else ModelProfile(name)
    return as_operator_says(known) if _operator else known


def is_claude(name: str) -> bool:
    """Whether a name is one of Anthropic's own, whose service can be asked about it."""
    return _CLAUDE.match(name) is not None


def with_capabilities(profile: ModelProfile, info: Json) -> ModelProfile:
    """Return the profile with what ``GET /v1/models/{id}`` says; what it does not say stays.

    The operator's file counts more than both: whoever writes a line means it.
    """
    capabilities = info.get("capabilities") or {}
    types = _names_of((capabilities.get("thinking") or {}).get("types"))
    efforts = _names_of(capabilities.get("effort"))
    told = replace(
        profile,
        thinking=profile.thinking if types is None else types,
        efforts=profile.efforts if efforts is None else tuple(each for each in EFFORTS if each in efforts),
        images=_is_supported(capabilities.get("image_input"), profile.images),
        cites=_is_supported(capabilities.get("citations"), profile.cites),
        output_limit=info.get("max_tokens") or profile.output_limit,
        context_window=info.get("max_input_tokens") or profile.context_window,
    )
    return as_operator_says(told)


def _names_of(group: Json | None) -> frozenset[str] | None:
    if not isinstance(group, dict):
        return None
    return frozenset(name for name, each in group.items() if isinstance(each, dict) and each.get("supported"))


def _is_supported(value: object, known: bool) -> bool:
    return bool(value.get("supported", known)) if isinstance(value, dict) else known


def refusal_of(model: str, *, temperature: float | None, effort: str | None) -> tuple[str, str] | None:
    """Return which setting a model refuses and why, None when it takes them."""
    profile = profile_of(model)
    if temperature is not None and not profile.sampling:
        return "temperature", f"{profile.name} takes no temperature; leave it out, or choose a model that has one."
    if effort is not None and effort not in profile.efforts:
        allowed = ", ".join(profile.efforts)
        offer = f"it has {allowed}" if allowed else "it has no effort setting; leave it out"
        return "effort", f"{profile.name} does not take the effort {effort!r}: {offer}."
    return None
