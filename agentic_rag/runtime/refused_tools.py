"""Tools that a model's service refused, or that no form of their schema makes fit for it, in this process.

Owns what is remembered of them: until the server lists the tool otherwise, no request to that model carries it. Knows
no request and no turn.
"""

from collections.abc import Collection
from dataclasses import dataclass

from agentic_rag.messages import ToolSpec
from agentic_rag.runtime.core.model_tools import spec_key
from agentic_rag.tools.base import ToolInfo
from agentic_rag.tools.server_answers import DroppedTool

MOST_OF_DOMAIN = 512
"""Refused tools that are remembered of one domain; the oldest one gives way."""


@dataclass(frozen=True, slots=True)
class _Refused:
    server: str
    tool: str
    """As its server calls it."""
    model: str
    reason: str


class RefusedTools:
    """The refused tools of all domains."""

    def __init__(self) -> None:
        self._known: dict[str, dict[tuple[str, str], _Refused]] = {}
        """By domain; then by model and the key of the spec."""

    def add(self, domain: str, model: str, tool: ToolInfo, spec: ToolSpec, reason: str) -> bool:
        """Remember that a model's service does not take a tool; return whether that is news."""
        known = self._known.setdefault(domain, {})
        key = model, spec_key(spec)
        news = key not in known
        stale = [
            each for each, refused in known.items() if each[0] == model and each[1] != key[1] and _is_of(refused, tool)
        ]
        for each in stale:  # the same tool in other words, which its server no longer lists
            del known[each]
        known[key] = _Refused(tool.server, tool.remote_name, model, reason)
        if len(known) > MOST_OF_DOMAIN:
            del known[next(iter(known))]
        return news

    def keys(self, domain: str, model: str) -> Collection[str]:
        """Return the keys of the specs that a model's service does not take; see `spec_key`."""
        known = self._known.get(domain)
        return {key for asked, key in known if asked == model} if known else ()

    def settle(self, domain: str, model: str, tool: ToolInfo) -> None:
        """Forget what was refused of a tool that a request to this model carries again, in other words."""
        known = self._known.get(domain, {})
        for key in [key for key, refused in known.items() if key[0] == model and _is_of(refused, tool)]:
            del known[key]

    def of_server(self, domain: str, server: str) -> tuple[DroppedTool, ...]:
        """Return the tools of a server that models are not shown, each with its reason."""
        refused = self._known.get(domain, {}).values()
        found = (DroppedTool(each.tool, each.reason) for each in refused if each.server == server)
        return tuple(dict.fromkeys(found))


def _is_of(refused: _Refused, tool: ToolInfo) -> bool:
    return refused.server == tool.server and refused.tool == tool.remote_name
