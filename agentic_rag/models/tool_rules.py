"""The tool schemas that each family of model services accepts.

Owns the table of families, the family of each model, and the detection of the tools that a service's refusal names.
Pure. `agentic_rag.tools.schema_compat` converts schemas for a family.
"""

import re
from collections.abc import Sequence
from typing import Final

from agentic_rag.base.errors import ModelError
from agentic_rag.base.messages import ToolSpec
from agentic_rag.models.profiles import kind_of
from agentic_rag.tools.schema_compat import SchemaFamily

MESSAGES: Final = SchemaFamily("messages")
"""The Messages API, at Anthropic, at the clouds, and at compatible endpoints."""
OPENAI: Final = SchemaFamily("openai", tuples=False, bare_objects=False, max_tools=128, max_description=1024)
"""Chat completions of OpenAI's own models."""
STRICT_CHAT: Final = SchemaFamily(
    "chat",
    references=False,
    recursion=False,
    formats=False,
    tuples=False,
    bare_objects=False,
    max_tools=128,
    max_description=1024,
)
"""Chat completions of other models. A feature that one of them refuses is used for none of them."""

_CHAT_FAMILIES: Final = ((re.compile(r"(?:\A|/)(?:gpt-|chatgpt-|o\d)", re.IGNORECASE), OPENAI),)
"""Families by model name at providers of chat completions. The first match applies, else `STRICT_CHAT`."""

_PLACE: Final = re.compile(r"\btools(?:\.|\[)(\d{1,4})\b")
"""``tools.14.custom.input_schema: …`` of the Messages API, ``tools[14].function.parameters`` of chat completions."""
_DECLARATION: Final = re.compile(r"\bfunction_declarations\[(\d{1,4})\]")
"""``tools[0].function_declarations[3].parameters`` of Gemini, which puts all functions into one tool."""
_FUNCTION: Final = re.compile(
    r"""(?:function|tool)\s*(?:name\s*)?(?:=|:)?\s*['"`]([a-zA-Z0-9_.-]{1,64})['"`]""", re.IGNORECASE
)
"""``Invalid schema for function 'search': …``"""
_REFUSALS: Final = frozenset({400, 422})


def family_of(model: str) -> SchemaFamily:
    """Return the family of a model's service."""
    kind, name = kind_of(model)
    if kind != "openai":
        return MESSAGES
    return next((family for pattern, family in _CHAT_FAMILIES if pattern.search(name)), STRICT_CHAT)


def named_tools(error: ModelError, tools: Sequence[ToolSpec]) -> tuple[str, ...]:
    """Return the tools that a service's refusal names, in the order of the request.

    ``tools``: the tools of the request as it was sent. Returns an empty tuple if the refusal names none of them.
    """
    if error.http_status not in _REFUSALS or error.started:
        return ()
    text = str(error)
    places = _DECLARATION.findall(text) or _PLACE.findall(text)
    names = {tools[int(place)]["name"] for place in places if int(place) < len(tools)}
    sent_names = {tool["name"] for tool in tools}
    names |= sent_names.intersection(_FUNCTION.findall(text))
    return tuple(tool["name"] for tool in tools if tool["name"] in names)
