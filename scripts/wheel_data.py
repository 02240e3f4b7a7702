"""Puts the data that lies at the top of a checkout into a wheel, inside the packages; a build hook of hatchling.

An editable install reads the checkout itself, and gets no copies that would grow old.
"""

from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

PLACES = {"roles": "mcp_servers/promptx/builtin_roles", "workspaces": "agentic_rag/workspaces"}


class WheelData(BuildHookInterface):  # type: ignore[type-arg]
    """Adds `PLACES` to a wheel that is to be installed as it is."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version == "standard":
            build_data["force_include"].update(PLACES)
