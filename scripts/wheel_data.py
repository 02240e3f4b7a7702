"""A build hook of hatchling that copies data from the top of the checkout into the packages of a wheel.

An editable install reads the checkout itself, so that there are no outdated copies.
"""

from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

PLACES = {"roles": "mcp_servers/promptx/builtin_roles", "workspaces": "agentic_rag/workspaces"}


class WheelData(BuildHookInterface):  # type: ignore[type-arg]
    """Adds `PLACES` to a regular wheel, but not to an editable one."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version == "standard":
            build_data["force_include"].update(PLACES)
