"""Comparison of a bundle with the domain that it is imported over: new files, existing files, and files to remove.

Files that an export renamed get their own names first. This module also computes the change that turns the domain's
settings into the bundle's. Blocks: files are hashed and renamed.
"""

import hashlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from agentic_rag.base.errors import disk_errors
from agentic_rag.base.json_form import Json
from agentic_rag.base.redaction import Redaction
from agentic_rag.bundles.contents import PLACES, hash_texts, memories_of, read_text, redact_bytes, texts_of
from agentic_rag.bundles.entries import alias_values, keep_values
from agentic_rag.bundles.form import DOCUMENTS, MEMORIES, ROLES, BundleFile, portable_names
from agentic_rag.bundles.reading import DescribedDomain
from agentic_rag.bundles.receiving import Received
from agentic_rag.bundles.report import KIND_OF, MAX_TEXTS, Difference, compare_text
from agentic_rag.directory.settings import MAP_KEYS, DomainSettings
from agentic_rag.documents.intake import MISSING
from agentic_rag.store.documents import DocumentRecord
from agentic_rag.store.domains import DomainRecord
from agentic_rag.tools.entries.entry import McpEntry
from mcp_servers.safe_files import Folder, is_text


def own_names(members: Collection[str], own_paths: Iterable[str]) -> dict[str, str]:
    """Map the members of one folder that represent a file of another name to that name. Pure.

    If a file has exactly the name of a member, the member represents that file, and not one that an export would rename
    to this name.
    """
    there = [path for path in own_paths if is_text(path)]
    own = {portable: name for name, portable in portable_names(there).items() if portable != name}
    exact = set(there).intersection(members)
    return {
        member: own[member]
        for member in members
        if member in own and member not in exact and own[member] not in members
    }


def give_own_names(received: Received, workspace: str, documents: Iterable[str]) -> Received:
    """Return a received bundle whose files have their names in the workspace. ``documents``: the domain's paths.

    Raises:
        StorageFull: the disk is full.
    """
    names: dict[str, str] = {}
    texts = texts_of(workspace)
    for folder, own_paths in {**texts, MEMORIES: memories_of(texts[ROLES]), DOCUMENTS: documents}.items():
        members = {file.path.removeprefix(folder) for file in received.manifest.files if file.path.startswith(folder)}
        names |= {folder + member: folder + own for member, own in own_names(members, own_paths).items()}
    with disk_errors():
        for member, own in names.items():
            (received.files / own).parent.mkdir(parents=True, exist_ok=True)
            (received.files / member).rename(received.files / own)
    files = tuple(replace(file, path=names.get(file.path, file.path)) for file in received.manifest.files)
    return replace(received, manifest=replace(received.manifest, files=files))


@dataclass(frozen=True, slots=True)
class Overlay:
    """The effect of a bundle on a domain's files.

    ``same``: members that the domain already has. ``removed``: the domain's files to be removed. ``documents``: the
    domain's documents. ``expected``: SHA-256 of the files that the bundle replaces or removes, empty for paths without
    a file. All keys are the bundle's folder plus the path in the workspace.
    """

    differences: tuple[Difference, ...]
    same: frozenset[str]
    removed: tuple[str, ...]
    documents: Mapping[str, DocumentRecord]
    expected: Mapping[str, str]


def overlay_of(
    record: DomainRecord,
    listed: Sequence[DocumentRecord],
    received: Received,
    redaction: Redaction,
    *,
    remove_others: bool,
) -> Overlay:
    """Compare a bundle's files with a domain's.

    ``listed``: the domain's documents. ``received``: already renamed by `give_own_names`. ``redaction``: as for
    an export. A text that differs only by this redaction counts as unchanged.
    """
    texts = _Texts(record.workspace, received.files, hash_texts(record.workspace), redaction)
    by_path = {f"{DOCUMENTS}{document.path}": document for document in listed}
    here = {document.sha256 for document in listed if document.error_code != MISSING}
    differences: list[Difference] = []
    same: set[str] = set()
    members = [file for file in received.manifest.files if "/" in file.path]
    for file in members:
        if file.path.startswith(MEMORIES):
            differences.append(Difference("memory", _subject(file.path), "add", after={"size": file.size}))
            continue
        of_document = file.path.startswith(DOCUMENTS)
        difference = _compare_document(file, by_path.get(file.path), here) if of_document else texts.compare(file)
        if difference is None:
            same.add(file.path)
        else:
            differences.append(difference)
    bundle_paths = {file.path for file in members}
    bundled_hashes = {file.sha256 for file in members if file.path.startswith(DOCUMENTS)}
    removed: list[str] = []
    for path in sorted((texts.known.keys() | by_path.keys()) - bundle_paths):
        kind, subject = KIND_OF[_folder(path)], _subject(path)
        # the bundle has the same bytes under another name
        goes = remove_others and not (path in by_path and by_path[path].sha256 in bundled_hashes)
        differences.append(Difference(kind, subject, "remove" if goes else "keep"))
        removed += [path] if goes else []
    hashes = {path: document.sha256 for path, document in by_path.items() if document.error_code != MISSING} | dict(
        texts.known
    )
    touched = [file.path for file in members if file.path not in same and not file.path.startswith(MEMORIES)]
    expected = _find_expected(Path(record.workspace), [*touched, *removed], hashes)
    return Overlay(tuple(differences), frozenset(same), tuple(removed), by_path, expected)


def _find_expected(workspace: Path, paths: Sequence[str], hashes: Mapping[str, str]) -> dict[str, str]:
    """Return the current checksums of paths, empty for free paths.

    Occupied paths without a known checksum are left out.
    """
    checksums = {path: hashes[path] for path in paths if path in hashes}
    for path in paths:
        with suppress(OSError):  # a blocked path is reported when the files are moved into place
            if Folder(workspace).at(PLACES[_folder(path)]).status(_subject(path)) is None:
                checksums[path] = ""
    return checksums


def _compare_document(file: BundleFile, before: DocumentRecord | None, here: Collection[str]) -> Difference | None:
    """Return the difference of a document, or None if the domain has the same bytes.

    The same bytes under another name count, unless another document has this name. ``here``: checksums of the documents
    whose files exist.
    """
    if file.sha256 in here and (before is None or before.sha256 == file.sha256):
        return None
    after = {"size": file.size, "sha256": file.sha256}
    if before is None or before.error_code == MISSING:
        return Difference("document", _subject(file.path), "add", after=after)
    return Difference("document", _subject(file.path), "change", {"size": before.size, "sha256": before.sha256}, after)


@dataclass(slots=True)
class _Texts:
    """Compares the texts of a workspace with those of a bundle."""

    workspace: str
    files: Path
    known: Mapping[str, str]
    redaction: Redaction
    shown: int = 0

    def compare(self, file: BundleFile) -> Difference | None:
        before = self.known.get(file.path)
        if before == file.sha256:
            return None
        folder = _folder(file.path)
        old = None if before is None else read_text(self.workspace, folder, _subject(file.path))
        if old is not None and hashlib.sha256(redact_bytes(old, self.redaction)).hexdigest() == file.sha256:
            return None
        kind = KIND_OF[folder]
        self.shown += 1
        if self.shown > MAX_TEXTS:
            return Difference(kind, _subject(file.path), "add" if before is None else "change")
        after = (self.files / file.path).read_bytes().decode(errors="replace")
        old_text = None if old is None else old.decode(errors="replace")
        return compare_text(kind, _subject(file.path), old_text, after)


def _folder(path: str) -> str:
    return f"{path.partition('/')[0]}/"


def _subject(path: str) -> str:
    return path.partition("/")[2]


def change_of(
    before: DomainSettings, described: DescribedDomain, settings: Json, redaction: Redaction, *, remove_others: bool
) -> Json:
    """Return the change that turns a domain's settings into a bundle's; maps are changed name by name.

    ``settings``: the bundle's settings that this server accepts; the domain's other settings stay. A changed entry
    keeps the sealed values of the entry that it replaces, where it refers to them.
    """
    stored_form = before.to_json()
    exported = redaction.json(stored_form)
    change: Json = {
        key: _as_stored(value, stored_form[key], exported[key]) if key in stored_form else value
        for key, value in settings.items()
    }
    aliased = alias_values(before.mcp_servers, before.variables)
    entries: dict[str, Json | None] = {
        name: _keep(entry, before, aliased)
        for name, entry in described.entries.items()
        if not _is_same(entry, aliased.get(name), redaction)
    }
    if remove_others:
        entries |= dict.fromkeys(before.mcp_servers.keys() - described.entries.keys())
        change |= dict.fromkeys(stored_form.keys() - described.settings.keys() - {"mcpServers"})
        for key in MAP_KEYS - {"mcpServers"}:
            map_change = change.get(key)
            if isinstance(map_change, Mapping):
                change[key] = {**dict.fromkeys(stored_form.get(key, {})), **map_change}
    return {**change, "mcpServers": entries} if entries else change


def _as_stored(value: Any, stored_value: Any, exported: Any) -> Any:
    """Return a value with the parts restored that an export redacts. ``exported``: the stored value as exported."""
    if value == exported:
        return stored_value
    if isinstance(value, Mapping) and isinstance(stored_value, Mapping):
        return {
            key: _as_stored(member, stored_value[key], exported[key]) if key in stored_value else member
            for key, member in value.items()
        }
    return value


def _is_same(entry: McpEntry, before: McpEntry | None, redaction: Redaction) -> bool:
    return entry == before or (before is not None and entry.to_json() == redaction.json(before.to_json()))


def _keep(entry: McpEntry, before: DomainSettings, aliased: Mapping[str, McpEntry]) -> Json:
    old = before.mcp_servers.get(entry.name)
    return (entry if old is None else keep_values(entry, old, aliased[entry.name])).to_json()
