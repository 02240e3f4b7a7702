"""REST routes for the launch catalogue: list the commands that may run, and revoke an allowed one.

This module defines the answers. ``tools.launch`` decides the rules.
"""

import shlex
from collections.abc import Mapping, Sequence

import anyio.to_thread

from agentic_rag.access.auditing import AuditLog, change
from agentic_rag.base.errors import NotFound
from agentic_rag.server.replies import Items, answer
from agentic_rag.server.routing import route
from agentic_rag.tools.launch.allowed import LaunchCatalogue, PermissionSource
from agentic_rag.tools.launch.catalogue import CatalogueEntry, Package, SlotKind, template

CATALOGUE = "/api/launch-catalogue"


@answer(kw_only=True)
class CatalogueLine:
    """A command that any domain may start.

    ``origin``: ``builtin``, ``operator`` (from the operator's file), or ``allowed`` (DELETE revokes it). ``arguments``
    is the template in readable form. ``env`` lists variables that may be set, ``fixed`` those that the entry sets.
    ``folders`` are additional folders that the command may read. ``files`` maps paths of the program and of the files
    on its command line to their SHA-256.
    """

    id: str
    origin: PermissionSource
    command: str
    arguments: str
    integrity: str
    env: Mapping[str, SlotKind]
    fixed: Mapping[str, str]
    network: bool
    write: bool
    folders: Sequence[str]
    read_only: Sequence[str]
    files: Mapping[str, str]


class CatalogueRoutes:
    """The launch catalogue."""

    def __init__(self, catalogue: LaunchCatalogue, audit: AuditLog) -> None:
        self._catalogue = catalogue
        self._audit = audit

    @route("GET", CATALOGUE)
    async def list_all(self) -> Items[CatalogueLine]:
        """List the commands that may run, the operator's own first."""
        by_origin = await anyio.to_thread.run_sync(self._catalogue.by_origin)
        return Items([_show(entry, origin) for origin, entries in by_origin.items() for entry in entries])

    @route("DELETE", f"{CATALOGUE}/{{entry}}", errors=[NotFound])
    async def revoke(self, entry: str) -> None:
        """Revoke an allowed command, effective from the next start of a server."""
        if not await anyio.to_thread.run_sync(self._catalogue.revoke, entry):
            raise NotFound("catalogue_entry", entry)
        await self._audit.note(change("mcp.revoke", entry))


def _show(entry: CatalogueEntry, origin: PermissionSource) -> CatalogueLine:
    return CatalogueLine(
        id=entry.id,
        origin=origin,
        command=shlex.join(entry.runs.line),
        arguments=template(entry),
        integrity=entry.runs.integrity if isinstance(entry.runs, Package) else "",
        env=entry.env,
        fixed=entry.fixed,
        network=entry.network,
        write=entry.write,
        folders=entry.folders,
        read_only=sorted(entry.read_only),
        files={} if isinstance(entry.runs, Package) else entry.runs.files,
    )
