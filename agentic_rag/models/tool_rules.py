"""What each family of model services takes in the tools of a request.

Owns the table of families, which family a model belongs to, and which tools a service names when it refuses a request
for them. Pure. How a schema is made to fit is `agentic_rag.tools.schema_compat`'s.
"""

import re
from collections.abc import Sequence
from typing import Final

from agentic_rag.base.errors import ModelError
from agentic_rag.base.messages import ToolSpec
from agentic_rag.models.profiles import kind_of
from agentic_rag.tools.schema_compat import SchemaFamily

MESSAGES: Final = SchemaFamily("messages")
"""The Messages API: of Anthropic, of the clouds, and of compatible endpoints."""
OPENAI: Final = SchemaFamily("openai", tuples=False, max_tools=128)
"""Chat completions of OpenAI's own models."""
STRICT_CHAT: Final = SchemaFamily("chat", references=False, recursion=False, formats=False, tuples=False, max_tools=128)
"""Chat completions of any other model: what one of them refuses is sent to none."""

_CHAT_FAMILIES: Final = ((re.compile(r"(?:\A|/)(?:gpt-|chatgpt-|o\d)", re.IGNORECASE), OPENAI),)
"""By a model's name at a provider that speaks chat completions; the first that fits counts, else `STRICT_CHAT`."""

_PLACE: Final = re.compile(r"\btools(?:\.|\[)(\d{1,4})\b")
"""``tools.14.custom.input_schema: …`` of the Messages API, ``tools[14].function.parameters`` of chat completions."""
_FUNCTION: Final = re.compile(
    r"""(?:function|tool)\s*(?:name\s*)?(?:=|:)?\s*['"`]([a-zA-Z0-9_.-]{1,64})['"`]""", re.IGNORECASE
)
"""``Invalid schema for function 'search': …``"""
_REFUSALS: Final = frozenset({400, 422})


def family_of(model: str) -> SchemaFamily:
    """Return the family of the service that a model belongs to."""
    kind, name = kind_of(model)
    if kind != "openai":
        return MESSAGES
    return next((family for pattern, family in _CHAT_FAMILIES if pattern.search(name)), STRICT_CHAT)


def named_tools(error: ModelError, tools: Sequence[ToolSpec]) -> tuple[str, ...]:
    """Return the names of the tools for which a service refused a request, in the order of the request.

    ``tools``: those of the request, as it was sent. Empty where the service names none of them.
    """
    if error.http_status not in _REFUSALS or error.started:
        return ()
    text = str(error)
    names = {tools[int(place)]["name"] for place in _PLACE.findall(text) if int(place) < len(tools)}
    known = {tool["name"] for tool in tools}
    names |= known.intersection(_FUNCTION.findall(text))
    return tuple(tool["name"] for tool in tools if tool["name"] in names)
