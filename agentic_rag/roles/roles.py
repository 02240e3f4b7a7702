"""A domain's roles: list, render, check, change and remove them.

Maps a domain to its role library in `mcp_servers.promptx.roles`, and that package's errors to those of this server.
Decides which files belong to a role; `mcp_servers.promptx` finds, reads and writes them.
Knows no session. Callers have checked the user's rights.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from agentic_rag.access.auditing import audit, change
from agentic_rag.access.users import acting
from agentic_rag.base.errors import InvalidInput, NotFound
from agentic_rag.base.threads import DomainThreads
from agentic_rag.directory.directory import Directory
from agentic_rag.domains.file_history import ChangeNotice, FileHistory
from agentic_rag.domains.watched_workspaces import SnapshotCache, WatchedWorkspaces, WorkspaceSnapshot
from agentic_rag.store import domains
from agentic_rag.store.database import Database
from agentic_rag.store.history import HistoryKind
from mcp_servers.promptx.dpml import Kind, references, resolve
from mcp_servers.promptx.errors import BadRoleId, BrokenRole, RoleRefused, UnknownRole
from mcp_servers.promptx.ids import check_id
from mcp_servers.promptx.lint import Finding
from mcp_servers.promptx.nuwa import RoleFile, layout, template
from mcp_servers.promptx.rolefiles import RESOURCE_FOLDER, DiskFile, Origin, Reading, RoleFileIndex, collect
from mcp_servers.promptx.roles import RoleInfo, RoleLibrary
from mcp_servers.promptx.skills import SkillLibrary
from mcp_servers.safe_files import Folder


@dataclass(frozen=True, slots=True)
class RoleText:
    """One file. ``file`` is its path as findings name it; ``content`` is None if it is unreadable."""

    kind: Kind
    id: str
    source: Origin
    file: str
    content: str | None


@dataclass(frozen=True, slots=True)
class RoleView:
    """One role as a model would get it (``text`` is None if its file is broken), its files and findings.

    ``notes`` are the warnings of an activation: the last good version is used, or a reference is broken.
    """

    id: str
    text: str | None
    hash: str | None
    findings: tuple[Finding, ...]
    notes: tuple[str, ...] = ()
    files: tuple[RoleText, ...] = ()


class Roles:
    """The roles of all domains. ``builtin`` is the folder of the built-in ones.

    Each method that reads or writes files raises `WorkspaceUnavailable` if the workspace does not answer.
    """

    def __init__(
        self,
        database: Database,
        builtin: Path,
        threads: DomainThreads,
        history: FileHistory,
        watched: WatchedWorkspaces,
        directory: Directory,
    ) -> None:
        self._db = database
        self._directory = directory
        self._history = history
        self._builtin = builtin
        self._threads = threads
        self._watched = watched
        self._hashes: SnapshotCache[tuple[Path, str], str | None] = SnapshotCache(watched)
        """By workspace and role."""

    async def list_of(self, domain_id: str) -> list[RoleInfo]:
        """Return the domain's roles by id.

        Raises:
            NotFound: there is no such domain.
        """
        library = await self._library(domain_id)
        return await self._threads.read(str(library.workspace), library.list)

    async def get(self, domain_id: str, role: str) -> RoleView:
        """Render and check one role from its current files.

        Raises:
            NotFound: there is no such domain or role.
        """
        library = await self._library(domain_id)
        return await self._threads.read(str(library.workspace), self._view, library, role)

    async def draft(self, domain_id: str, role: str, files: Sequence[RoleFile] | None) -> RoleView:
        """Render and check a role with draft files, which are not written. None stands for the template of a new role.

        ``files`` of the result are the drafts, with the paths they would have.

        Raises:
            NotFound: there is no such domain.
            InvalidInput: an id is not valid, or the role has no role file in the draft or the workspace.
        """
        record = await self._db.read(lambda conn: domains.get(conn, domain_id))
        if record is None:
            raise NotFound("domain", domain_id)
        workspace = Path(record.workspace)

        def work() -> RoleView:
            drafts = tuple(template(role) if files is None else files)
            library = RoleLibrary(workspace, self._builtin, drafted=role, drafts=drafts)
            return _render(library, role, drafts_of(workspace, self._builtin, role, drafts))

        try:
            return await self._threads.read(str(workspace), work)
        except BadRoleId as exc:
            raise InvalidInput("role", str(exc)) from exc
        except UnknownRole as exc:
            raise InvalidInput("files", f"the role file {role}.role.md is missing.") from exc

    async def check(self, domain_id: str) -> list[Finding]:
        """Check all role files and skills that the domain sees. Returns findings by file and line.

        Raises:
            NotFound: there is no such domain.
        """
        library = await self._library(domain_id)
        return await self._threads.read(str(library.workspace), self._check, library)

    async def check_workspace(self, workspace: Path) -> list[Finding]:
        """Check the role files and skills of a workspace like `check`, even without a domain."""
        return await self._threads.read(str(workspace), self._check, RoleLibrary(workspace, self._builtin))

    async def hash(self, domain_id: str, role: str) -> str | None:
        """Return the hash that an activation would report now. None if the domain or role is missing or broken."""
        try:
            workspace = Path((await self._directory.get(domain_id)).workspace)
            if (cached := self._hashes.find((workspace, role))) is not None:
                return cached.found
            snapshot = await self._threads.read(str(workspace), self._hash, workspace, role)
        except (NotFound, BadRoleId):
            return None
        self._hashes.keep((workspace, role), snapshot)
        return snapshot.found

    def _hash(self, workspace: Path, role: str) -> WorkspaceSnapshot[str | None]:
        # Begin watching before the read: a change between the two would otherwise go unnoticed.
        return WorkspaceSnapshot(self._watched.begin(workspace), RoleLibrary(workspace, self._builtin).hash(role))

    async def write(
        self, domain_id: str, role: str, files: Sequence[RoleFile] | None, *, replace: bool = True
    ) -> tuple[str, ...]:
        """Write files of one role into the domain's workspace, as nuwa does. Returns their paths in it.

        All files are validated before the first is replaced. ``files`` of None stands for the template of a new role.
        If ``replace`` is False, an existing file is refused.

        Raises:
            NotFound: there is no such domain.
            InvalidInput: an id is not valid, lint finds an error, or the disk refuses. Nothing was changed.
        """
        library = await self._library(domain_id)

        def work() -> tuple[str, ...]:
            assert library.workspace is not None
            result = library.write(role, template(role) if files is None else files, replace)
            return tuple(path.relative_to(library.workspace).as_posix() for path in result.paths)

        async with self._history.changing(domain_id) as notice:
            try:
                paths = await self._threads.run(str(library.workspace), work)
            except BadRoleId as exc:
                raise InvalidInput("role", str(exc)) from exc
            except RoleRefused as exc:
                raise InvalidInput("files", "\n".join(exc.problems)) from exc
            await self._tell("role.write", domain_id, role, paths, notice)
        return paths

    async def delete(self, domain_id: str, role: str) -> tuple[str, ...]:
        """Remove a role's files from the domain's workspace (see `remove_role`). Returns their paths.

        Raises:
            NotFound: there is no such domain, or its workspace has no such role.
            InvalidInput: the files cannot be removed.
        """
        workspace = (await self._library(domain_id)).workspace
        assert workspace is not None
        async with self._history.changing(domain_id) as notice:
            try:
                paths = await self._threads.run(str(workspace), remove_role, workspace, self._builtin, role)
            except (BadRoleId, UnknownRole) as exc:
                raise NotFound("role", role) from exc
            except OSError as exc:
                raise InvalidInput("role", f"its files cannot be removed: {exc.strerror}.") from exc
            await self._tell("role.delete", domain_id, role, paths, notice)
        return paths

    async def put_back(self, domain_id: str, path: str, content: str | None) -> None:
        """Write one file of a role to its former path, or remove it (None), with the usual checks.

        Raises:
            NotFound: there is no such domain.
            InvalidInput: the path is not a role file's, lint finds an error, or the disk refuses. Nothing was changed.
        """
        library = await self._library(domain_id)
        async with self._history.changing(domain_id) as notice:
            try:
                role = await self._threads.run(str(library.workspace), library.put_back, path, content)
            except RoleRefused as exc:
                raise InvalidInput("content", "\n".join(exc.problems)) from exc
            action = "role.write" if content is not None else "role.delete"
            await self._tell(action, domain_id, role, [path], notice)

    async def _tell(self, action: str, domain_id: str, role: str, paths: Sequence[str], notice: ChangeNotice) -> None:
        """Audit a change right after it: files belong to no transaction and may be edited by hand at any time."""
        audit_entry = change(action, f"{domain_id}/{role}", files=list(paths))
        await self._db.write(lambda conn: audit(conn, audit_entry), durable=True)
        await notice(acting().user_id, [(HistoryKind.ROLE, path) for path in paths])

    def check_ids(self, workspace: Path, references: Sequence[tuple[str, str]]) -> None:
        """Check that each (settings path, role id) names a role of the workspace. Blocks.

        Raises:
            InvalidInput: names the first unknown role, and lists the roles.
        """
        role_ids = RoleLibrary(workspace, self._builtin).ids()
        for path, role in references:
            if role not in role_ids:
                raise InvalidInput(path, f"there is no role {role!r}. Roles: {', '.join(role_ids) or 'none'}.")

    def missing_role(self, workspace: Path, role: str) -> str:
        """Return a note for the admin if a role does not exist yet, otherwise an empty text. Blocks."""
        role_ids = RoleLibrary(workspace, self._builtin).ids()
        if role in role_ids:
            return ""
        return (
            f"there is no role {role!r} yet; write it before the first message. Roles: {', '.join(role_ids) or 'none'}."
        )

    async def _library(self, domain_id: str) -> RoleLibrary:
        record = await self._db.read(lambda conn: domains.get(conn, domain_id))
        if record is None:
            raise NotFound("domain", domain_id)
        return RoleLibrary(Path(record.workspace), self._builtin)

    def _check(self, library: RoleLibrary) -> list[Finding]:
        assert library.workspace is not None
        findings = [*library.check(), *SkillLibrary(library.workspace).findings()]
        return sorted(findings, key=lambda finding: (finding.file, finding.line, finding.column))

    def _view(self, library: RoleLibrary, role: str) -> RoleView:
        assert library.workspace is not None
        try:
            return _render(library, role, texts_of(library.workspace, self._builtin, role))
        except (BadRoleId, UnknownRole) as exc:
            raise NotFound("role", role) from exc


def _render(library: RoleLibrary, role: str, files: tuple[RoleText, ...]) -> RoleView:
    """Render and check a role. Raises `BadRoleId` and `UnknownRole`."""
    findings = tuple(library.check(role))
    try:
        active = library.activate(role)
    except BrokenRole:
        # The author still sees the files and the findings, which say how to mend the role.
        return RoleView(role, None, None, findings, (), files)
    return RoleView(role, active.text, active.hash, findings, active.notes, files)


def texts_of(workspace: Path, builtin: Path, role: str) -> tuple[RoleText, ...]:
    """Return the role's file, then the files it refers to, each once, as they are on disk now.

    Raises:
        BadRoleId: the id is not valid.
        UnknownRole: there is no such role.
    """
    reading = _read_files(workspace, builtin)
    own = _find_file(reading.index, role)
    files = dict.fromkeys([own, *_find_references(reading, own)])
    return tuple(RoleText(*file.key, file.source, file.shown, reading.raw(file)[0]) for file in files)


def drafts_of(workspace: Path, builtin: Path, role: str, drafts: Iterable[RoleFile]) -> tuple[RoleText, ...]:
    """Return drafts of a role's files with their paths in the workspace, the role's own first.

    Raises:
        BadRoleId: an id is not valid.
    """
    index = _read_files(workspace, builtin).index
    texts = []
    # False sorts first: the role file precedes its parts.
    for draft in sorted(drafts, key=lambda item: item.kind != "role"):
        current = index.find(draft.kind, check_id(draft.id, f"id of the {draft.kind} file"))
        in_workspace = current is not None and current.source == "workspace"
        path = current.shown if current and in_workspace else f"{RESOURCE_FOLDER}/{layout(check_id(role), draft)}"
        texts.append(RoleText(draft.kind, draft.id, "workspace", path, draft.content))
    return tuple(texts)


def remove_role(workspace: Path, builtin: Path, role: str) -> tuple[str, ...]:
    """Remove a role from a workspace. Returns the removed files, the role's own first.

    Also removes files in the role's own folder (PromptX's layout) that no other role refers to. From a folder with
    another name, only the role file is removed, because the other files may belong to others.

    Raises:
        BadRoleId: the id is not valid.
        UnknownRole: the workspace has no such role; a built-in one cannot be removed.
        OSError: the files cannot be removed. The role file goes first, so that no partial role stays in use.
    """
    reading = _read_files(workspace, builtin)
    index = reading.index
    own = _find_file(index, role)
    roles = [file for file in index.files if file.key == own.key and file.source == "workspace"]
    if not roles:
        raise UnknownRole(role, _roles_in(index, "workspace"))
    folders = [folder for file in roles if (folder := PurePosixPath(file.inner).parent).name == own.key[1]]
    # A file that another role refers to stays, even in the folder of the removed role.
    other_roles = [file for file in index.winners.values() if file.key[0] == "role" and file.key != own.key]
    used = {part for file in other_roles for part in _find_references(reading, file)}
    parts = [
        file
        for file in index.files
        if file.source == "workspace" and file.key[0] != "role" and file not in used and _below(file.inner, folders)
    ]
    removed = [*roles, *parts]
    for file in removed:
        file.root.remove(file.inner)
    parents = {parent for file in removed for parent in PurePosixPath(file.inner).parents if parent.name}
    for folder in sorted(parents, reverse=True):  # folders with new files of others stay
        roles[0].root.at(folder.as_posix()).remove_empty()
    return tuple(file.shown for file in removed)


def _below(inner: str, folders: Iterable[PurePosixPath]) -> bool:
    return any(PurePosixPath(inner).is_relative_to(folder) for folder in folders)


def _read_files(workspace: Path, builtin: Path) -> Reading:
    index = RoleFileIndex()
    collect(index, "builtin", Folder(builtin.absolute(), owned=False))
    collect(index, "workspace", Folder(workspace.absolute()).at(RESOURCE_FOLDER))
    return Reading(index)


def _find_file(index: RoleFileIndex, role: str) -> DiskFile:
    file = index.find("role", check_id(role))
    if file is None:
        raise UnknownRole(role, _roles_in(index, None))
    return file


def _roles_in(index: RoleFileIndex, source: Origin | None) -> list[str]:
    return sorted(
        key for (kind, key), file in index.winners.items() if kind == "role" and source in (None, file.source)
    )


def _find_references(reading: Reading, file: DiskFile) -> Iterator[DiskFile]:
    """Yield the files that a file refers to, one level deep, as rendering does."""
    for reference in references(reading.raw(file)[0] or ""):
        target = resolve(reference, reading.lookup)
        file_there = None if target is None else reading.index.find(target[0], target[1])
        if file_there is not None:
            yield file_there
