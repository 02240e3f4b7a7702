"""The files of an import, brought from its folder into a workspace: each by a rename, and again after a kill.

Owns the order and where each lies. What is in the folder is what is missing in the workspace: a file that was brought
is gone from it. What somebody changed since the import was decided stays as it is. Below a workspace everything is
opened through `mcp_servers.beneath`. Everything here blocks.
"""

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import orjson

from agentic_rag import failpoints
from agentic_rag.access.keys import Access
from agentic_rag.bundle_errors import BundleDamaged
from agentic_rag.bundles.contents import PLACES
from agentic_rag.bundles.form import DOCUMENTS, MEMORIES
from agentic_rag.bundles.memory_files import Remembered, bring, check_room, memory_from_bytes
from agentic_rag.directory.settings import DomainSettings
from agentic_rag.domains.workspaces import make_workspace
from agentic_rag.errors import QuotaExceeded, StorageFull, WorkspaceRefused
from agentic_rag.tools.entries.reading import Note
from mcp_servers.beneath import Folder, Refused
from mcp_servers.promptx.memory import Shelf, memory_folder

EXPECTED = "expected.json"


@dataclass(frozen=True, slots=True)
class Owner:
    """Whose the memories of a bundle become, and how many a role may have. ``shelf``: where they are."""

    scope: str
    user: str
    limit: int
    shelf: Shelf

    def folder(self, workspace: Path, role: str) -> Folder:
        """Return what names the memory of a role in a workspace."""
        return memory_folder(workspace, self.scope, self.user, role)


@dataclass(frozen=True, slots=True)
class Owners:
    """Whose the memories of bundles become. ``limit``: of one role; ``shelf``: where memories are."""

    access: Access
    limit: int
    shelf: Shelf

    def of(self, user_id: str, settings: DomainSettings) -> Owner:
        """Return whose they become in a domain of these settings, when a user imports them."""
        return Owner(
            settings.memory_scope or ("domain" if self.access.alone else "user"), user_id, self.limit, self.shelf
        )


def build(files: Path, workspace: Path) -> None:
    """Make the workspace of a new domain of a bundle's members, in a folder of ours.

    Raises:
        StorageFull: nothing that a domain has was touched.
    """
    try:
        workspace.mkdir(mode=0o700, parents=True)
        for folder, place in PLACES.items():
            if (files / folder).is_dir():
                (workspace / place).parent.mkdir(parents=True, exist_ok=True)
                (files / folder).rename(workspace / place)
        make_workspace(workspace)
    except OSError as exc:
        raise StorageFull(exc.strerror or "unknown reason") from exc


def check_places(workspace: Path, paths: Iterable[str]) -> None:
    """Make the folders that files are brought into, so that what stands in their way is told before anything changes.

    Raises:
        WorkspaceRefused: something else stands where a folder or a file should be.
        StorageFull: they cannot be made.
    """
    for path in paths:
        folder, _, name = path.partition("/")
        place = PLACES.get(f"{folder}/")
        if place is None:
            continue
        around = Folder(workspace).at(place).at(name.rpartition("/")[0])
        try:
            around.make()
            around.check(name.rpartition("/")[2])
        except Refused as exc:
            raise WorkspaceRefused(path, exc.strerror or exc.why) from exc
        except OSError as exc:
            raise StorageFull(exc.strerror or "unknown reason") from exc


def keep_expected(folder: Path, expected: Mapping[str, str]) -> None:
    """Note in an import's folder what stood where its files go. ``expected``: SHA-256, empty where nothing was.

    Raises:
        StorageFull: the disk refuses.
    """
    with _tell_errors():
        Folder(folder).write(EXPECTED, [orjson.dumps(dict(expected))])


def read_expected(folder: Path) -> dict[str, str]:
    """Return what `keep_expected` noted; empty where nothing did.

    Raises:
        StorageFull: it cannot be read now.
    """
    with _tell_errors():
        try:
            found: dict[str, str] = orjson.loads((folder / EXPECTED).read_bytes())
        except (FileNotFoundError, orjson.JSONDecodeError):
            return {}
        return found


def remove_files(workspace: Path, removed: Iterable[str], expected: Mapping[str, str]) -> list[Note]:
    """Remove a workspace's files that are to go; documents' own files go with their records. Return what stays.

    Raises:
        WorkspaceRefused, StorageFull: the rest is removed by the next try.
    """
    root, notes = Folder(workspace), []
    with _tell_errors():
        for path in removed:
            folder, _, name = path.partition("/")
            if f"{folder}/" == DOCUMENTS:
                continue
            below = root.at(PLACES[f"{folder}/"])
            if _hash_of(below, name) not in ("", expected.get(path)) and path in expected:
                notes.append(Note(path, "it stays: it was changed meanwhile"))
                continue
            below.remove(name)
            if "/" in name:
                below.at(name.rpartition("/")[0]).remove_empty()
    return notes


def bring_files(files: Path, folders: Iterable[str], workspace: Path, expected: Mapping[str, str]) -> list[Note]:
    """Bring what is left in an import's folder into a workspace; return what was changed there since, and stays so.

    ``folders``: the bundle's, whose files are brought.

    Raises:
        WorkspaceRefused, StorageFull: the rest is brought by the next try.
    """
    root, notes = Folder(workspace), []
    with _tell_errors():
        for source in sorted(each for folder in folders for each in (files / folder).rglob("*") if each.is_file()):
            path = source.relative_to(files).as_posix()
            folder, _, name = path.partition("/")
            place = PLACES[f"{folder}/"]
            if path in expected and _hash_of(root.at(place), name) != expected[path]:
                notes.append(Note(path, "it was changed meanwhile, and is not the bundle's"))
                source.unlink()
                continue
            root.at(place).take_in(source, name, replace=True)
            failpoints.reached("bundle.file")
    return notes


def _hash_of(folder: Folder, name: str) -> str:
    """Return the SHA-256 of a file; empty when there is nothing, and no hash where something else stands."""
    if folder.status(name) is None:
        return ""
    return folder.hash(name)[1] if folder.is_file(name) else "-"


@contextmanager
def _tell_errors() -> Iterator[None]:
    """Raise what the disk says inside as the product's errors."""
    try:
        yield
    except Refused as exc:
        raise WorkspaceRefused(str(exc.filename), exc.strerror or exc.why) from exc
    except OSError as exc:
        raise StorageFull(exc.strerror or "unknown reason") from exc


def bring_memories(files: Path, workspace: Path, owner: Owner) -> None:
    """Add the memories of an import to a workspace that is no domain's yet, as PromptX's files: they are found there.

    Raises:
        StorageFull, QuotaExceeded, BundleDamaged: names what does not fit.
    """
    shelf = Shelf()
    try:
        for source in _memories(files):
            _bring_memory(source, workspace, owner, shelf)
    finally:
        shelf.close()


def check_memories(files: Path, workspace: Path, owner: Owner) -> None:
    """Refuse what `bring_memories` would; nothing is changed.

    Raises:
        StorageFull, QuotaExceeded, BundleDamaged: names what does not fit.
    """
    for source in _memories(files):
        check_room(owner.shelf, owner.folder(workspace, source.stem), _read_memory(source), owner.limit)


def bring_what_fits(files: Path, workspace: Path, owner: Owner) -> list[Note]:
    """Add the memories of an import that was checked; return what fits no more, since others remembered meanwhile.

    Raises:
        StorageFull: the rest is added by the next try.
    """
    notes = []
    for source in _memories(files):
        try:
            _bring_memory(source, workspace, owner, owner.shelf)
        except (QuotaExceeded, BundleDamaged) as exc:  # no later try would do better
            notes.append(Note(f"{MEMORIES}{source.name}", f"left out: {exc}"))
    return notes


def _memories(files: Path) -> list[Path]:
    return sorted((files / MEMORIES).glob("*.json"))


def _read_memory(source: Path) -> Remembered:
    return memory_from_bytes(f"{MEMORIES}{source.name}", source.read_bytes())


def _bring_memory(source: Path, workspace: Path, owner: Owner, shelf: Shelf) -> None:
    bring(shelf, owner.folder(workspace, source.stem), _read_memory(source), owner.limit)
    failpoints.reached("bundle.memory")


def move_in(folder: Path, target: Path) -> None:
    """Give a folder of an import its place, a new domain's workspace for one; that is on disk when this returns.

    Raises:
        StorageFull: the disk refuses.
    """
    with _tell_errors():
        target.parent.mkdir(parents=True, exist_ok=True)
        folder.rename(target)
        around = os.open(target.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(around)
        finally:
            os.close(around)
