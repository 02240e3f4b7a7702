"""What happens outside the record when a domain changes or goes: a protocol.

Owns the names of these moments. The composition root passes one object that knows roles, models and MCP servers.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from agentic_rag.directory.settings import DomainSettings
from agentic_rag.tools.entries.reading import Note


class DomainLifecycle(Protocol):
    """What others do at the moments of a domain's life."""

    def changing(self, workspace: Path, before: DomainSettings | None, after: DomainSettings) -> Sequence[Note]:
        """Check settings that are about to be stored; return the warnings for their admin. Blocking.

        Only changed settings are checked: a deleted role file must not block other changes. ``before`` is None for a
        new domain, whose roles may be written later.

        Raises:
            InvalidInput: they name something that does not exist.
        """
        ...

    async def settings_changed(self, domain_id: str, before: DomainSettings, after: DomainSettings) -> None:
        """Follow settings that were stored."""
        ...

    async def leaving(self, domain_id: str) -> None:
        """End what still runs for a domain whose turns have ended, and remove what that kept outside the workspace."""
        ...
