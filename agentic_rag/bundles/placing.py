"""Moving the files of an import into a workspace, each by a rename, and repeatable after a crash.

The import's folder holds the files that the workspace still lacks: a moved file disappears from the folder. A file that
was changed after the import was accepted is kept. All files of a workspace are opened through `mcp_servers.safe_files`.
All functions here block.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import orjson

from agentic_rag.access.keys import Access
from agentic_rag.archive.files import move_durably
from agentic_rag.base import failpoints
from agentic_rag.base.bundle_errors import BundleDamaged
from agentic_rag.base.errors import QuotaExceeded, WorkspaceRefused, disk_errors
from agentic_rag.bundles.contents import PLACES
from agentic_rag.bundles.form import DOCUMENTS, MEMORIES
from agentic_rag.bundles.memory_files import MemoryContent, add_memory, check_room, memory_from_bytes
from agentic_rag.directory.settings import DomainSettings
from agentic_rag.domains.workspaces import make_workspace
from agentic_rag.tools.entries.reading import Note
from mcp_servers.promptx.memory import MemoryCache, memory_folder
from mcp_servers.safe_files import Folder, Refused

EXPECTED = "expected.json"


@dataclass(frozen=True, slots=True)
class BundleOwner:
    """The owner of a bundle's memories, and the limit of memories per role. ``cache`` provides the memories."""

    scope: str
    user: str
    limit: int
    cache: MemoryCache

    def folder(self, workspace: Path, role: str) -> Folder:
        """Return the folder that names the memory of a role in a workspace."""
        return memory_folder(workspace, self.scope, self.user, role)


@dataclass(frozen=True, slots=True)
class Owners:
    """Chooses the owner of imported memories. ``limit``: memories per role; ``cache`` provides the memories."""

    access: Access
    limit: int
    cache: MemoryCache

    def of(self, user_id: str, settings: DomainSettings) -> BundleOwner:
        """Return the owner of memories that a user imports into a domain with these settings."""
        return BundleOwner(
            settings.memory_scope or ("domain" if self.access.alone else "user"), user_id, self.limit, self.cache
        )


def build_workspace(files: Path, workspace: Path) -> None:
    """Create a new domain's workspace from a bundle's members, in a temporary folder.

    Raises:
        StorageFull: the disk is full; no existing domain was changed.
    """
    with disk_errors():
        workspace.mkdir(mode=0o700, parents=True)
        for folder, place in PLACES.items():
            if (files / folder).is_dir():
                (workspace / place).parent.mkdir(parents=True, exist_ok=True)
                (files / folder).rename(workspace / place)
        make_workspace(workspace)


def check_places(workspace: Path, paths: Iterable[str]) -> None:
    """Create the target folders, so that obstacles are found before anything changes.

    Raises:
        WorkspaceRefused: another kind of entry blocks the path of a folder or a file.
        StorageFull: the folders cannot be created.
    """
    for path in paths:
        folder, _, name = path.partition("/")
        place = PLACES.get(f"{folder}/")
        if place is None:
            continue
        around = Folder(workspace).at(place).at(name.rpartition("/")[0])
        with disk_errors():
            try:
                around.make()
                around.check(name.rpartition("/")[2])
            except Refused as exc:
                raise WorkspaceRefused(path, exc.strerror or exc.why) from exc


def write_expected(folder: Path, expected: Mapping[str, str]) -> None:
    """Store the expected checksums in an import's folder: SHA-256 of the replaced files, empty for free paths.

    Raises:
        StorageFull: the disk is full.
    """
    with _translate_errors():
        Folder(folder).write(EXPECTED, [orjson.dumps(dict(expected))])


def read_expected(folder: Path) -> dict[str, str]:
    """Return the checksums stored by `write_expected`; empty if there are none.

    Raises:
        StorageFull: the file cannot be read now.
    """
    with _translate_errors():
        try:
            checksums: dict[str, str] = orjson.loads((folder / EXPECTED).read_bytes())
        except (FileNotFoundError, orjson.JSONDecodeError):
            return {}
        return checksums


def remove_files(workspace: Path, removed: Iterable[str], expected: Mapping[str, str]) -> list[Note]:
    """Remove the files to be removed from a workspace, except documents, and return notes about files that stay.

    Documents' files are removed with their records.

    Raises:
        WorkspaceRefused, StorageFull: a retry removes the remaining files.
    """
    root, notes = Folder(workspace), []
    with _translate_errors():
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


def place_files(files: Path, folders: Iterable[str], workspace: Path, expected: Mapping[str, str]) -> list[Note]:
    """Move the remaining files of an import's folder into a workspace; return notes about changed files that stay.

    ``folders``: the bundle's folders whose files are moved.

    Raises:
        WorkspaceRefused, StorageFull: a retry moves the remaining files.
    """
    root, notes = Folder(workspace), []
    with _translate_errors():
        for source in sorted(path for folder in folders for path in (files / folder).rglob("*") if path.is_file()):
            path = source.relative_to(files).as_posix()
            folder, _, name = path.partition("/")
            place = PLACES[f"{folder}/"]
            if path in expected and _hash_of(root.at(place), name) != expected[path]:
                notes.append(Note(path, "it was changed meanwhile, and is not the bundle's"))
                source.unlink()  # so that a retry neither moves it nor reports it again
                continue
            root.at(place).take_in(source, name, replace=True)
            failpoints.reached("bundle.file")
    return notes


def _hash_of(folder: Folder, name: str) -> str:
    """Return the SHA-256 of a file; empty if the path is free, and "-" if it is not a regular file."""
    if folder.status(name) is None:
        return ""
    return folder.hash(name)[1] if folder.is_file(name) else "-"


@contextmanager
def _translate_errors() -> Iterator[None]:
    """Translate file system exceptions raised inside into the product's errors."""
    with disk_errors():
        try:
            yield
        except Refused as exc:
            raise WorkspaceRefused(str(exc.filename), exc.strerror or exc.why) from exc


def import_memories(files: Path, workspace: Path, owner: BundleOwner) -> None:
    """Add an import's memories to the workspace of a new domain, as PromptX's files, which are read from there later.

    Raises:
        StorageFull, QuotaExceeded, BundleDamaged: a memory does not fit; the error names it.
    """
    cache = MemoryCache()
    try:
        for source in _list_memory_files(files):
            _import_memory(source, workspace, owner, cache)
    finally:
        cache.close()


def check_memories(files: Path, workspace: Path, owner: BundleOwner) -> None:
    """Check whether `import_memories` would fail, without changing anything.

    Raises:
        StorageFull, QuotaExceeded, BundleDamaged: a memory does not fit; the error names it.
    """
    for source in _list_memory_files(files):
        check_room(owner.cache, owner.folder(workspace, source.stem), _read_memory(source), owner.limit)


def import_fitting_memories(files: Path, workspace: Path, owner: BundleOwner) -> list[Note]:
    """Add the memories of a checked import; return notes about those that no longer fit, because memories were added.

    Raises:
        StorageFull: a retry adds the remaining memories.
    """
    notes = []
    for source in _list_memory_files(files):
        try:
            _import_memory(source, workspace, owner, owner.cache)
        except (QuotaExceeded, BundleDamaged) as exc:  # a retry would fail as well
            notes.append(Note(f"{MEMORIES}{source.name}", f"left out: {exc}"))
    return notes


def _list_memory_files(files: Path) -> list[Path]:
    return sorted((files / MEMORIES).glob("*.json"))


def _read_memory(source: Path) -> MemoryContent:
    return memory_from_bytes(f"{MEMORIES}{source.name}", source.read_bytes())


def _import_memory(source: Path, workspace: Path, owner: BundleOwner, cache: MemoryCache) -> None:
    add_memory(cache, owner.folder(workspace, source.stem), _read_memory(source), owner.limit)
    failpoints.reached("bundle.memory")


def move_folder(folder: Path, target: Path) -> None:
    """Move a folder of an import into place, for example a new domain's workspace, durably.

    Raises:
        StorageFull: the disk is full.
    """
    with _translate_errors():
        target.parent.mkdir(parents=True, exist_ok=True)
        move_durably(folder, target)
