"""Adaptation of a turn's tools to the rules of one model's service. Pure.

Owns which tools a model can be shown, the specs of a request, and the mapping of a call's arguments back to the
server's names. `agentic_rag.models.tool_rules` owns the rules of the services.
"""

import hashlib
import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agentic_rag.base.json_form import Json
from agentic_rag.base.messages import Message, ToolSpec, text_block
from agentic_rag.models.tool_rules import family_of
from agentic_rag.tools.base import ToolInfo
from agentic_rag.tools.schema_compat import AdaptedSchema, RefusedSchema, SchemaFamily, adapt, restore_names

KEPT_SCHEMAS = 4_096
"""Adapted schemas in the cache. The schemas are the same objects from turn to turn."""
GONE_REFERENCE = "[a tool that is not available any more]"

CUT_MARK = " [cut]"
"""Ends a description that was longer than a service accepts."""

_adapted: dict[tuple[int, str], tuple[object, AdaptedSchema | RefusedSchema]] = {}
"""Cache by a schema's identity and the family.

The value holds the schema, so that Python does not reuse its identity.
"""


def adapt_for(model: str, schema: Any) -> AdaptedSchema | RefusedSchema:
    """Return a tool's input schema as a model's service accepts it, or the refusal with its reason."""
    return _adapt_to(family_of(model), schema)


def _adapt_to(family: SchemaFamily, schema: Any) -> AdaptedSchema | RefusedSchema:
    key = id(schema), family.name
    cached = _adapted.get(key)
    if cached is not None and cached[0] is schema:
        return cached[1]
    adapted = adapt(schema, family)
    if len(_adapted) >= KEPT_SCHEMAS:
        _adapted.clear()
    _adapted[key] = schema, adapted
    return adapted


def shown_schema(model: str, tool: ToolInfo) -> Json:
    """Return the input schema of a tool as a model sees it."""
    adapted = adapt_for(model, tool.input_schema)
    return {"type": "object"} if isinstance(adapted, RefusedSchema) else adapted.schema


def notes_on(model: str, tool: ToolInfo) -> str:
    """Return notes on a tool's arguments for the model that the adapted schema cannot express."""
    adapted = adapt_for(model, tool.input_schema)
    return "" if isinstance(adapted, RefusedSchema) else "\n".join(adapted.notes)


def own_arguments(tool: ToolInfo, arguments: Json) -> Json:
    """Return a model's arguments under the names that the tool's server uses."""
    names = argument_names(tool)
    restored: Json = restore_names(arguments, tool.input_schema, names) if names else arguments
    return restored


def argument_names(tool: ToolInfo) -> Mapping[str, str]:
    """Return the arguments that a model sees under another name, as shown name → the server's name.

    The names are the same for every model.
    """
    adapted = adapt_for("", tool.input_schema)
    return {} if isinstance(adapted, RefusedSchema) else adapted.argument_map


@dataclass(frozen=True, slots=True)
class UsableTools:
    """The tools that a model can be shown, and the refused tools with their reasons."""

    tools: tuple[ToolInfo, ...]
    refused: tuple[tuple[ToolInfo, str], ...]


def usable_tools(model: str, tools: Iterable[ToolInfo]) -> UsableTools:
    """Separate the tools whose schema can be adapted to a model's service from the others."""
    usable: list[ToolInfo] = []
    refused: list[tuple[ToolInfo, str]] = []
    family = family_of(model)
    for tool in tools:
        adapted = _adapt_to(family, tool.input_schema)
        if isinstance(adapted, RefusedSchema):
            refused.append((tool, adapted.reason))
        else:
            usable.append(tool)
    return UsableTools(tuple(usable), tuple(refused))


def spec_key(spec: ToolSpec) -> str:
    """Return the SHA-256 of a tool's definition in a request."""
    fields = [spec["name"], spec["description"], spec["input_schema"]]
    return hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()


def sent_key(model: str, spec: ToolSpec) -> str:
    """Return the key of a tool's definition as a model's service gets it; see `spec_key`."""
    return spec_key(_fit_spec(family_of(model), spec, ()) or spec)


def sendable_specs(
    model: str, specs: Sequence[ToolSpec], current: Mapping[str, ToolSpec], refused: Collection[str] = ()
) -> tuple[ToolSpec, ...]:
    """Return the specs of a request as a model's service accepts them.

    A session keeps the specs of its first requests. They may have been written for another model, or the service may
    have refused them since. Then the tool's current spec is sent instead.

    Args:
        model: the model of the request.
        specs: the session's specs.
        current: specs of the tools that can be called now, by name.
        refused: keys of the specs that the model's service refused (`spec_key`).
    """
    sent: list[ToolSpec] = []
    family = family_of(model)
    for spec in specs:
        fitting = _fit_spec(family, spec, refused) or _fit_spec(family, current.get(spec["name"]), refused)
        if fitting is not None:
            deferred = spec.get("defer_loading") and not fitting.get("defer_loading")
            sent.append(ToolSpec(**{**fitting, "defer_loading": True}) if deferred else fitting)
    most = family.max_tools
    if most is not None and len(sent) > most:
        callable_now = [spec for spec in sent if spec["name"] in current][:most]
        sent_names = {spec["name"] for spec in callable_now}
        sent_names |= {
            spec["name"] for spec in [spec for spec in sent if spec["name"] not in sent_names][: most - len(sent_names)]
        }
        sent = [spec for spec in sent if spec["name"] in sent_names]
    return tuple(sent)


def _fit_spec(family: SchemaFamily, spec: ToolSpec | None, refused: Collection[str]) -> ToolSpec | None:
    if spec is None:
        return None
    adapted = _adapt_to(family, spec["input_schema"])
    if isinstance(adapted, RefusedSchema):
        return None
    description = _fit_description(spec["description"], family.max_description)
    if adapted.schema is spec["input_schema"] and description == spec["description"]:
        fitting = spec
    else:
        fitting = ToolSpec(**{**spec, "description": description, "input_schema": adapted.schema})
    return None if refused and spec_key(fitting) in refused else fitting


def _fit_description(description: str, most: int | None) -> str:
    if most is None or len(description) <= most:
        return description
    return description[: most - len(CUT_MARK)] + CUT_MARK


def without_references(messages: Sequence[Message], names: Collection[str]) -> tuple[Message, ...]:
    """Return messages without references to tools outside ``names``, because a service refuses such a reference."""
    return tuple(_without_references(message, names) for message in messages)


def _without_references(message: Message, names: Collection[str]) -> Message:
    def refers(part: Any) -> bool:
        return isinstance(part, dict) and part.get("type") == "tool_reference" and part.get("tool_name") not in names

    if message["role"] != "user":
        return message
    content = []
    for block in message["content"]:
        inner = block.get("content") if block["type"] == "tool_result" else None
        if isinstance(inner, list) and any(map(refers, inner)):
            remaining_parts = [part for part in inner if not refers(part)]
            block = {**block, "content": remaining_parts or [text_block(GONE_REFERENCE)]}
        content.append(block)
    same = all(new is old for new, old in zip(content, message["content"], strict=True))
    return message if same else {"role": message["role"], "content": content}
