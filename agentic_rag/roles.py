"""A domain's roles: what there is, what a model would get, and what is wrong with the files.

Thin: finding, rendering and checking are `mcp_servers.promptx.roles`'; this maps a domain to its library and
that package's errors to ours. Knows no session.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import anyio.to_thread

from agentic_rag.errors import InvalidInput, NotFound
from agentic_rag.store import domains
from agentic_rag.store.database import Database
from mcp_servers.promptx.errors import BadRoleId, BrokenRole, UnknownRole
from mcp_servers.promptx.lint import Finding
from mcp_servers.promptx.roles import RoleInfo, RoleLibrary


@dataclass(frozen=True, slots=True)
class RoleView:
    """One role as a model would get it (None: its file is broken) and what a check of its files found."""

    id: str
    text: str | None
    hash: str | None
    findings: tuple[Finding, ...]


class Roles:
    """The roles of all domains. ``builtin`` is the folder of the built-in ones."""

    def __init__(self, database: Database, builtin: Path) -> None:
        self._db = database
        self._builtin = builtin

    async def list_of(self, domain_id: str) -> list[RoleInfo]:
        """Return the domain's roles by id.

        Raises:
            NotFound: there is no such domain.
        """
        library = await self._library(domain_id)
        return await anyio.to_thread.run_sync(library.list)

    async def get(self, domain_id: str, role: str) -> RoleView:
        """Render and check one role from the files as they are now.

        Raises:
            NotFound: there is no such domain or role.
        """
        library = await self._library(domain_id)
        return await anyio.to_thread.run_sync(_view, library, role)

    async def check(self, domain_id: str) -> list[Finding]:
        """Check all role files that the domain sees; by file and line.

        Raises:
            NotFound: there is no such domain.
        """
        library = await self._library(domain_id)
        return await anyio.to_thread.run_sync(library.check)

    async def hash(self, domain_id: str, role: str) -> str | None:
        """Return the hash an activation would report now; None when the domain or the role is gone or broken."""
        try:
            library = await self._library(domain_id)
            return await anyio.to_thread.run_sync(library.hash, role)
        except (NotFound, BadRoleId):
            return None

    def check_ids(self, workspace: Path, wanted: Sequence[tuple[str, str]]) -> None:
        """Check that each (settings path, role id) names a role of the workspace. Blocking.

        Raises:
            InvalidInput: names the first that does not, and the roles there are.
        """
        known = RoleLibrary(workspace, self._builtin).ids()
        for path, role in wanted:
            if role not in known:
                raise InvalidInput(path, f"there is no role {role!r}. Roles: {', '.join(known) or 'none'}.")

    async def _library(self, domain_id: str) -> RoleLibrary:
        record = await self._db.read(lambda conn: domains.get(conn, domain_id))
        if record is None:
            raise NotFound("domain", domain_id)
        return RoleLibrary(Path(record.workspace), self._builtin)


def _view(library: RoleLibrary, role: str) -> RoleView:
    try:
        findings = tuple(library.check(role))
    except (BadRoleId, UnknownRole) as exc:
        raise NotFound("role", role) from exc
    try:
        activation = library.activate(role)
    except BrokenRole:
        return RoleView(role, None, None, findings)
    return RoleView(role, activation.text, activation.hash, findings)
