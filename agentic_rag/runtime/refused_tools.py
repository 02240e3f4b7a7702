"""Tools that a model's service refused, or that no form of their schema makes fit for it, in this process.

Owns what is remembered of them: until the server lists the tool otherwise, no request to that model carries it. Knows
no request and no turn.
"""

from collections.abc import Collection

from agentic_rag.messages import ToolSpec
from agentic_rag.runtime.core.model_tools import spec_key
from agentic_rag.tools.base import ToolInfo
from agentic_rag.tools.server_answers import DroppedTool

MOST_OF_DOMAIN = 1_024
"""Refused specs that are remembered of one domain; the oldest one gives way."""


class _OfDomain:
    """The refused tools of one domain."""

    def __init__(self) -> None:
        self.specs: dict[tuple[str, str], None] = {}
        """By model and the key of the spec. Those of earlier wordings stay: a session may have been told of them."""
        self.reasons: dict[tuple[str, str, str], str] = {}
        """By server, name at the server, and model: of the wording that the server lists now."""


class RefusedTools:
    """The refused tools of all domains."""

    def __init__(self) -> None:
        self._domains: dict[str, _OfDomain] = {}

    def add(self, domain: str, model: str, tool: ToolInfo, spec: ToolSpec, reason: str) -> bool:
        """Remember that a model's service does not take a tool; return whether that is news."""
        known = self._domains.setdefault(domain, _OfDomain())
        key = model, spec_key(spec)
        news = key not in known.specs
        known.specs[key] = None
        known.reasons[tool.server, tool.remote_name, model] = reason
        for kept in (known.specs, known.reasons):
            if len(kept) > MOST_OF_DOMAIN:
                del kept[next(iter(kept))]  # type: ignore[arg-type]
        return news

    def keys(self, domain: str, model: str) -> Collection[str]:
        """Return the keys of the specs that a model's service does not take; see `spec_key`."""
        known = self._domains.get(domain)
        return {key for asked, key in known.specs if asked == model} if known is not None else ()

    def settle(self, domain: str, model: str, tool: ToolInfo) -> None:
        """Take notice that a tool is shown to a model again, because its server lists it otherwise."""
        known = self._domains.get(domain)
        if known is not None:
            known.reasons.pop((tool.server, tool.remote_name, model), None)

    def of_server(self, domain: str, server: str) -> tuple[DroppedTool, ...]:
        """Return the tools of a server that models are not shown, each with its reason."""
        known = self._domains.get(domain)
        reasons = known.reasons if known is not None else {}
        found = (DroppedTool(tool, reason) for (of, tool, _), reason in reasons.items() if of == server)
        return tuple(dict.fromkeys(found))
