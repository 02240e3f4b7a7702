"""A domain's roles: what there is, what a model would get, what is wrong with the files, and changes to them.

Thin: finding, rendering, checking and writing are `mcp_servers.promptx.roles`'; this maps a domain to its library
and that package's errors to ours. Knows no session. Whoever calls has checked that the caller may.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from agentic_rag.access.auditing import audit, change
from agentic_rag.errors import InvalidInput, NotFound
from agentic_rag.roles.files import RoleText, remove, texts_of
from agentic_rag.store import domains
from agentic_rag.store.database import Database
from agentic_rag.threads import DomainThreads
from mcp_servers.promptx.errors import BadRoleId, BrokenRole, RoleRefused, UnknownRole
from mcp_servers.promptx.lint import Finding
from mcp_servers.promptx.nuwa import RoleFile, template
from mcp_servers.promptx.roles import RoleInfo, RoleLibrary


@dataclass(frozen=True, slots=True)
class RoleView:
    """One role as a model would get it (None: its file is broken), its files, and what a check of them found.

    ``notes`` are what an activation would say first: the last good version is used, a reference leads nowhere.
    """

    id: str
    text: str | None
    hash: str | None
    findings: tuple[Finding, ...]
    notes: tuple[str, ...] = ()
    files: tuple[RoleText, ...] = ()


class Roles:
    """The roles of all domains. ``builtin`` is the folder of the built-in ones.

    Each method that reads or writes files raises `WorkspaceUnavailable` when the workspace does not answer.
    """

    def __init__(self, database: Database, builtin: Path, threads: DomainThreads) -> None:
        self._db = database
        self._builtin = builtin
        self._threads = threads

    async def list_of(self, domain_id: str) -> list[RoleInfo]:
        """Return the domain's roles by id.

        Raises:
            NotFound: there is no such domain.
        """
        library = await self._library(domain_id)
        return await self._threads.read(str(library.workspace), library.list)

    async def get(self, domain_id: str, role: str) -> RoleView:
        """Render and check one role from the files as they are now.

        Raises:
            NotFound: there is no such domain or role.
        """
        library = await self._library(domain_id)
        return await self._threads.read(str(library.workspace), self._view, library, role)

    async def check(self, domain_id: str) -> list[Finding]:
        """Check all role files that the domain sees; by file and line.

        Raises:
            NotFound: there is no such domain.
        """
        library = await self._library(domain_id)
        return await self._threads.read(str(library.workspace), library.check)

    async def hash(self, domain_id: str, role: str) -> str | None:
        """Return the hash an activation would report now; None when the domain or the role is gone or broken."""
        try:
            library = await self._library(domain_id)
            return await self._threads.read(str(library.workspace), library.hash, role)
        except (NotFound, BadRoleId):
            return None

    async def write(
        self, domain_id: str, role: str, files: Sequence[RoleFile] | None, *, replace: bool = True
    ) -> tuple[str, ...]:
        """Write files of one role into the domain's workspace as nuwa does; return their paths in it.

        All are validated before the first is replaced. ``files`` None: the template of a new role. ``replace``
        False: a file that exists is a refusal.

        Raises:
            NotFound: there is no such domain.
            InvalidInput: an id is none, lint finds an error, or the disk refuses. Nothing was changed.
        """
        library = await self._library(domain_id)

        def work() -> tuple[str, ...]:
            assert library.workspace is not None
            written = library.write(role, template(role) if files is None else files, replace)
            return tuple(path.relative_to(library.workspace).as_posix() for path in written.paths)

        try:
            paths = await self._threads.run(str(library.workspace), work)
        except BadRoleId as exc:
            raise InvalidInput("role", str(exc)) from exc
        except RoleRefused as exc:
            raise InvalidInput("files", "\n".join(exc.problems)) from exc
        await self._tell("role.write", domain_id, role, paths)
        return paths

    async def delete(self, domain_id: str, role: str) -> tuple[str, ...]:
        """Remove a role's files from the domain's workspace (`files.remove` says which); return their paths.

        Raises:
            NotFound: there is no such domain, or its workspace has no such role.
            InvalidInput: the files cannot be removed.
        """
        workspace = (await self._library(domain_id)).workspace
        assert workspace is not None
        try:
            paths = await self._threads.run(str(workspace), remove, workspace, self._builtin, role)
        except (BadRoleId, UnknownRole) as exc:
            raise NotFound("role", role) from exc
        except OSError as exc:
            raise InvalidInput("role", f"its files cannot be removed: {exc.strerror}.") from exc
        await self._tell("role.delete", domain_id, role, paths)
        return paths

    async def _tell(self, action: str, domain_id: str, role: str, paths: Sequence[str]) -> None:
        """Tell a change right after it: files are in no transaction, and may be edited by hand at any time."""
        told = change(action, f"{domain_id}/{role}", files=list(paths))
        await self._db.write(lambda conn: audit(conn, told), durable=True)

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

    def _view(self, library: RoleLibrary, role: str) -> RoleView:
        assert library.workspace is not None
        try:
            findings = tuple(library.check(role))
            files = texts_of(library.workspace, self._builtin, role)
        except (BadRoleId, UnknownRole) as exc:
            raise NotFound("role", role) from exc
        try:
            active = library.activate(role)
        except UnknownRole as exc:  # removed meanwhile
            raise NotFound("role", role) from exc
        except BrokenRole:
            return RoleView(role, None, None, findings, (), files)
        return RoleView(role, active.text, active.hash, findings, active.notes, files)
