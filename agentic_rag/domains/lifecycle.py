"""Protocol for components that react when a domain changes or is deleted.

The composition root passes one object that knows roles, models and MCP servers.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from agentic_rag.directory.settings import DomainSettings
from agentic_rag.tools.entries.reading import Note


class DomainLifecycle(Protocol):
    """Reactions to changes of a domain."""

    def changing(self, workspace: Path, before: DomainSettings | None, after: DomainSettings) -> Sequence[Note]:
        """Check settings that are about to be stored; return the warnings for their admin. Blocking.

        Only changed settings are checked: a deleted role file must not block other changes. ``before`` is None for a
        new domain, whose roles may be written later.

        Raises:
            InvalidInput: a setting names something that does not exist.
        """
        ...

    async def settings_changed(self, domain_id: str, before: DomainSettings, after: DomainSettings) -> None:
        """Apply settings that were stored."""
        ...

    async def leaving(self, domain_id: str) -> None:
        """Stop everything that still runs for a domain without turns, and remove its data outside the workspace."""
        ...
