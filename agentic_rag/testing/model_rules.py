"""The rules of each model, as the Messages API enforces them and as ``GET /v1/models/{id}`` reports them.

Owns the table of models and the rules about parameters that differ among them, with the service's texts. Pure; knows no
content of a conversation and no HTTP.
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any, Final

from agentic_rag.base.json_form import Json

THINKING_TYPES: Final = ("adaptive", "between_tools", "disabled", "enabled")
EFFORTS: Final = ("low", "medium", "high", "xhigh", "max")
SAMPLING: Final = ("temperature", "top_p", "top_k")
BINDING_BETA: Final = "thinking-binding-controls-2026-08-01"
INTERLEAVED_BETA: Final = "interleaved-thinking-2025-05-14"
MIN_BUDGET: Final = 1024


@dataclass(frozen=True, slots=True)
class ModelRules:
    """The rules of one model. ``thinking``: the types it accepts; ``thinks``: whether it thinks by default.

    ``bound``: it checks that nothing before a thinking block has changed. ``reads``: models whose thinking it can use
    in addition to its own; other thinking is dropped silently. Lengths are tokens.
    """

    id: str
    thinking: frozenset[str] = frozenset({"adaptive"})
    thinks: bool = True
    summarized: bool = False
    """Whether thinking is shown when ``display`` is not given."""
    efforts: tuple[str, ...] = EFFORTS
    sampling: bool = False
    forced_tools: bool = False
    prefill: bool = False
    system_messages: bool = True
    deferred_tools: bool = True
    bound: bool = True
    reads: frozenset[str] = frozenset()
    output_limit: int = 128_000
    context_window: int = 1_000_000
    cache_minimum: int = 512
    images: bool = True

    def to_json(self) -> Json:
        """Return the answer of ``GET /v1/models/{id}``."""
        return {
            "type": "model",
            "id": self.id,
            "display_name": self.id.replace("-", " ").title(),
            "created_at": "2026-09-01T00:00:00Z",
            "lifecycle": "active",
            "line": self.id.split("-")[1],
            "deprecated_at": None,
            "retires_at": None,
            "max_input_tokens": self.context_window,
            "max_tokens": self.output_limit,
            "capabilities": {
                "batch": _supports(True),
                "citations": _supports(True),
                "code_execution": _supports(True),
                "context_management": _supports(True),
                "effort": _supports(bool(self.efforts))
                | {effort: _supports(effort in self.efforts) for effort in EFFORTS},
                "image_input": _supports(self.images),
                "pdf_input": _supports(self.images),
                "server_tools": _supports(True) | {"code_execution": _supports(True), "web_search": _supports(True)},
                "structured_outputs": _supports(True),
                "thinking": _supports(bool(self.thinking - {"disabled"}))
                | {"types": {kind: _supports(kind in self.thinking) for kind in THINKING_TYPES}},
            },
        }


def _supports(value: bool) -> Json:
    return {"supported": value}


_OLD: Final = frozenset({"enabled", "disabled"})

_TABLE: Final = (
    ModelRules("claude-fable-5-2"),
    ModelRules("claude-fable-5-1"),
    ModelRules("claude-opus-5-5", reads=frozenset({"claude-opus-5"})),
    ModelRules("claude-sonnet-5-5", frozenset({"adaptive", "between_tools"})),
    ModelRules("claude-haiku-5-5", frozenset({"adaptive", "disabled"}), forced_tools=True),
    ModelRules("claude-opus-5", frozenset({"adaptive", "disabled"}), forced_tools=True, bound=False),
    ModelRules(
        "claude-sonnet-5",
        frozenset({"adaptive", "disabled"}),
        forced_tools=True,
        bound=False,
        system_messages=False,
        cache_minimum=1024,
    ),
    ModelRules(
        "claude-opus-4-8",
        frozenset({"adaptive", "disabled"}),
        thinks=False,
        forced_tools=True,
        bound=False,
        cache_minimum=1024,
    ),
    ModelRules(
        "claude-sonnet-4-6",
        _OLD | {"adaptive"},
        thinks=False,
        summarized=True,
        efforts=("low", "medium", "high", "max"),
        sampling=True,
        forced_tools=True,
        system_messages=False,
        bound=False,
        output_limit=64_000,
        cache_minimum=1024,
    ),
    ModelRules(
        "claude-haiku-4-5",
        _OLD,
        thinks=False,
        summarized=True,
        efforts=(),
        sampling=True,
        forced_tools=True,
        prefill=True,
        system_messages=False,
        deferred_tools=False,
        bound=False,
        output_limit=64_000,
        context_window=200_000,
        cache_minimum=4096,
    ),
)
RULES: Final = {rules.id: rules for rules in _TABLE}


def rules_of(model: Any) -> ModelRules | None:
    """Return the rules of a model, None for one that is not in the table; dated names get their model's rules."""
    if not isinstance(model, str):
        return None
    name, _, date = model.rpartition("-")
    return RULES.get(model) or (RULES.get(name) if len(date) == 8 and date.isdigit() else None)


def parameter_problems(request: Json, rules: ModelRules, betas: Collection[str] = ()) -> Iterator[str]:
    """Yield the problems of the request's parameters for this model."""
    for name in SAMPLING:
        if name in request and not rules.sampling:
            yield f"`{name}` is deprecated for this model."
    limit = request.get("max_tokens")
    if isinstance(limit, int) and limit > rules.output_limit:
        yield (
            f"max_tokens: {limit} > {rules.output_limit}, which is the maximum allowed number of output tokens "
            f"for {rules.id}"
        )
    yield from _thinking(request, rules, betas)
    yield from _effort(request, rules)
    choice = request.get("tool_choice")
    if isinstance(choice, dict) and choice.get("type") in ("any", "tool") and not rules.forced_tools:
        yield 'tool_choice: type "tool" and "any" are not supported for this model'


def _thinking(request: Json, rules: ModelRules, betas: Collection[str]) -> Iterator[str]:
    config = request.get("thinking")
    if not isinstance(config, dict) or config.get("type") not in THINKING_TYPES:
        return
    kind = config["type"]
    if kind not in rules.thinking:
        yield (
            f'"thinking.type.{kind}" is not supported for this model. Use "thinking.type.adaptive" and '
            f'"output_config.effort" to control thinking behavior.'
        )
        return
    if config.get("block_binding") is not None and BINDING_BETA not in betas:
        yield f"thinking.{kind}.block_binding: Extra inputs are not permitted"
    if kind == "enabled":
        budget, limit = config.get("budget_tokens"), request.get("max_tokens")
        if not isinstance(budget, int) or budget < MIN_BUDGET:
            yield "thinking.enabled.budget_tokens: Input should be greater than or equal to 1024"
        elif isinstance(limit, int) and budget >= limit and INTERLEAVED_BETA not in betas:
            yield "`max_tokens` must be greater than `thinking.budget_tokens`."
    if kind in ("adaptive", "enabled") and rules.sampling and request.get("temperature", 1) != 1:
        yield "`temperature` may only be set to 1 when thinking is enabled."


def _effort(request: Json, rules: ModelRules) -> Iterator[str]:
    config = request.get("output_config")
    effort = config.get("effort") if isinstance(config, dict) else None
    if effort is None:
        return
    if not rules.efforts:
        yield "This model does not support the effort parameter."
    elif effort not in rules.efforts:
        yield f"output_config.effort: {effort!r} is not supported for this model"
    off = (request.get("thinking") or {}).get("type") in ("disabled", "between_tools")
    if off and effort in ("xhigh", "max"):
        yield f"output_config.effort: {effort!r} is not supported while thinking is turned off"


def thinks(request: Json, rules: ModelRules) -> bool:
    """Whether the model thinks before it answers this request."""
    config = request.get("thinking")
    return rules.thinks if config is None else config.get("type") in ("adaptive", "enabled")
