"""The tools in this process that a model's service refused, or whose schemas cannot be adapted for it.

No request to that model contains such a tool until its server lists another definition. Knows no request and no turn.
"""

from collections.abc import Collection

from agentic_rag.base.messages import ToolSpec
from agentic_rag.runtime.core.model_tools import spec_key
from agentic_rag.tools.base import ToolInfo
from agentic_rag.tools.server_answers import DroppedTool

MOST_OF_DOMAIN = 1_024
"""Most refused specs remembered per domain. The oldest is dropped."""


class _DomainRefusals:
    """The refused tools of one domain."""

    def __init__(self) -> None:
        self.specs: dict[tuple[str, str], None] = {}
        """Model and key of each spec.

        Specs of earlier definitions stay, because a session's prompt may contain them.
        """
        self.reasons: dict[tuple[str, str, str], str] = {}
        """By server, name at the server, and model. For the definition that the server lists now."""


class RefusedTools:
    """The refused tools of all domains."""

    def __init__(self) -> None:
        self._domains: dict[str, _DomainRefusals] = {}

    def add(self, domain: str, model: str, tool: ToolInfo, spec: ToolSpec, reason: str) -> bool:
        """Record a tool that a model's service refuses. Return whether the refusal is new."""
        refusals = self._domains.setdefault(domain, _DomainRefusals())
        key = model, spec_key(spec)
        news = key not in refusals.specs
        refusals.specs[key] = None
        refusals.reasons[tool.server, tool.remote_name, model] = reason
        for entries in (refusals.specs, refusals.reasons):
            if len(entries) > MOST_OF_DOMAIN:
                del entries[next(iter(entries))]  # type: ignore[arg-type]
        return news

    def keys(self, domain: str, model: str) -> Collection[str]:
        """Return the keys of the specs that a model's service refuses; see `spec_key`."""
        refusals = self._domains.get(domain)
        return {key for refused_model, key in refusals.specs if refused_model == model} if refusals is not None else ()

    def settle(self, domain: str, model: str, tool: ToolInfo) -> None:
        """Drop the reason of a tool that a model sees again, because its server lists another definition."""
        refusals = self._domains.get(domain)
        if refusals is not None:
            refusals.reasons.pop((tool.server, tool.remote_name, model), None)

    def of_server(self, domain: str, server: str) -> tuple[DroppedTool, ...]:
        """Return the tools of a server that models do not see, each with its reason."""
        refusals = self._domains.get(domain)
        reasons = refusals.reasons if refusals is not None else {}
        dropped = (DroppedTool(tool, reason) for (of, tool, _), reason in reasons.items() if of == server)
        return tuple(dict.fromkeys(dropped))
