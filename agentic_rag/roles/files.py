"""Read the files of one role for display, and remove a role from a workspace.

Decides which files belong to a role. `mcp_servers.promptx` finds, reads and writes files. Blocks.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from mcp_servers.promptx.dpml import Kind, references, resolve
from mcp_servers.promptx.errors import UnknownRole
from mcp_servers.promptx.ids import check_id
from mcp_servers.promptx.nuwa import RoleFile, layout
from mcp_servers.promptx.rolefiles import RESOURCE_FOLDER, DiskFile, Origin, Reading, RoleFileIndex, collect
from mcp_servers.safe_files import Folder


@dataclass(frozen=True, slots=True)
class RoleText:
    """One file. ``file`` is its path as findings name it; ``content`` is None if it is unreadable."""

    kind: Kind
    id: str
    source: Origin
    file: str
    content: str | None


def texts_of(workspace: Path, builtin: Path, role: str) -> tuple[RoleText, ...]:
    """Return the role's file, then the files it refers to, each once, as they are on disk now.

    Raises:
        BadRoleId: the id is not valid.
        UnknownRole: there is no such role.
    """
    reading = _read(workspace, builtin)
    own = _find(reading.index, role)
    files = dict.fromkeys([own, *_find_references(reading, own)])
    return tuple(RoleText(*file.key, file.source, file.shown, reading.raw(file)[0]) for file in files)


def drafts_of(workspace: Path, builtin: Path, role: str, drafts: Iterable[RoleFile]) -> tuple[RoleText, ...]:
    """Return drafts of a role's files with their paths in the workspace, the role's own first.

    Raises:
        BadRoleId: an id is not valid.
    """
    index = _read(workspace, builtin).index
    texts = []
    # False sorts first: the role file precedes its parts.
    for draft in sorted(drafts, key=lambda item: item.kind != "role"):
        current = index.find(draft.kind, check_id(draft.id, f"id of the {draft.kind} file"))
        in_workspace = current is not None and current.source == "workspace"
        path = current.shown if current and in_workspace else f"{RESOURCE_FOLDER}/{layout(check_id(role), draft)}"
        texts.append(RoleText(draft.kind, draft.id, "workspace", path, draft.content))
    return tuple(texts)


def remove(workspace: Path, builtin: Path, role: str) -> tuple[str, ...]:
    """Remove a role from a workspace. Returns the removed files, the role's own first.

    Also removes files in the role's own folder (PromptX's layout) that no other role refers to. From a folder with
    another name, only the role file is removed, because the other files may belong to others.

    Raises:
        BadRoleId: the id is not valid.
        UnknownRole: the workspace has no such role; a built-in one cannot be removed.
        OSError: the files cannot be removed. The role file goes first, so that no partial role stays in use.
    """
    reading = _read(workspace, builtin)
    index = reading.index
    own = _find(index, role)
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


def _read(workspace: Path, builtin: Path) -> Reading:
    index = RoleFileIndex()
    collect(index, "builtin", Folder(builtin.absolute(), owned=False))
    collect(index, "workspace", Folder(workspace.absolute()).at(RESOURCE_FOLDER))
    return Reading(index)


def _find(index: RoleFileIndex, role: str) -> DiskFile:
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
