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


def own_names(members: Collection[str], known: Iterable[str]) -> dict[str, str]:
    """Map the members of one folder that represent a file of another name to that name. Pure.

    If a file has exactly the name of a member, the member represents that file, and not one that an export would rename
    to this name.
    """
    there = [each for each in known if is_text(each)]
    own = {portable: name for name, portable in portable_names(there).items() if portable != name}
    exact = set(there).intersection(members)
    return {each: own[each] for each in members if each in own and each not in exact and own[each] not in members}


def give_own_names(received: Received, workspace: str, documents: Iterable[str]) -> Received:
    """Return a received bundle whose files have their names in the workspace. ``documents``: the domain's paths.

    Raises:
        StorageFull: the disk is full.
    """
    names: dict[str, str] = {}
    texts = texts_of(workspace)
    for folder, known in {**texts, MEMORIES: memories_of(texts[ROLES]), DOCUMENTS: documents}.items():
        members = {each.path.removeprefix(folder) for each in received.manifest.files if each.path.startswith(folder)}
        names |= {folder + member: folder + own for member, own in own_names(members, known).items()}
    with disk_errors():
        for member, own in names.items():
            (received.files / own).parent.mkdir(parents=True, exist_ok=True)
            (received.files / member).rename(received.files / own)
    files = tuple(replace(each, path=names.get(each.path, each.path)) for each in received.manifest.files)
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
    known = {f"{DOCUMENTS}{each.path}": each for each in listed}
    here = {each.sha256 for each in listed if each.error_code != MISSING}
    found: list[Difference] = []
    same: set[str] = set()
    members = [each for each in received.manifest.files if "/" in each.path]
    for each in members:
        if each.path.startswith(MEMORIES):
            found.append(Difference("memory", _subject(each.path), "add", after={"size": each.size}))
            continue
        of_document = each.path.startswith(DOCUMENTS)
        difference = _compare_document(each, known.get(each.path), here) if of_document else texts.compare(each)
        if difference is None:
            same.add(each.path)
        else:
            found.append(difference)
    theirs = {each.path for each in members}
    brought = {each.sha256 for each in members if each.path.startswith(DOCUMENTS)}
    removed: list[str] = []
    for path in sorted((texts.known.keys() | known.keys()) - theirs):
        kind, subject = KIND_OF[_folder(path)], _subject(path)
        # the bundle has the same bytes under another name
        goes = remove_others and not (path in known and known[path].sha256 in brought)
        found.append(Difference(kind, subject, "remove" if goes else "keep"))
        removed += [path] if goes else []
    hashes = {path: each.sha256 for path, each in known.items() if each.error_code != MISSING} | dict(texts.known)
    touched = [each.path for each in members if each.path not in same and not each.path.startswith(MEMORIES)]
    expected = _find_expected(Path(record.workspace), [*touched, *removed], hashes)
    return Overlay(tuple(found), frozenset(same), tuple(removed), known, expected)


def _find_expected(workspace: Path, paths: Sequence[str], hashes: Mapping[str, str]) -> dict[str, str]:
    """Return the current checksums of paths, empty for free paths.

    Occupied paths without a known checksum are left out.
    """
    found = {path: hashes[path] for path in paths if path in hashes}
    for path in paths:
        with suppress(OSError):  # a blocked path is reported when the files are moved into place
            if Folder(workspace).at(PLACES[_folder(path)]).status(_subject(path)) is None:
                found[path] = ""
    return found


def _compare_document(each: BundleFile, before: DocumentRecord | None, here: Collection[str]) -> Difference | None:
    """Return the difference of a document, or None if the domain has the same bytes.

    The same bytes under another name count, unless another document has this name. ``here``: checksums of the documents
    whose files exist.
    """
    if each.sha256 in here and (before is None or before.sha256 == each.sha256):
        return None
    after = {"size": each.size, "sha256": each.sha256}
    if before is None or before.error_code == MISSING:
        return Difference("document", _subject(each.path), "add", after=after)
    return Difference("document", _subject(each.path), "change", {"size": before.size, "sha256": before.sha256}, after)


@dataclass(slots=True)
class _Texts:
    """Compares the texts of a workspace with those of a bundle."""

    workspace: str
    files: Path
    known: Mapping[str, str]
    redaction: Redaction
    shown: int = 0

    def compare(self, each: BundleFile) -> Difference | None:
        before = self.known.get(each.path)
        if before == each.sha256:
            return None
        folder = _folder(each.path)
        old = None if before is None else read_text(self.workspace, folder, _subject(each.path))
        if old is not None and hashlib.sha256(redact_bytes(old, self.redaction)).hexdigest() == each.sha256:
            return None
        kind = KIND_OF[folder]
        self.shown += 1
        if self.shown > MAX_TEXTS:
            return Difference(kind, _subject(each.path), "add" if before is None else "change")
        after = (self.files / each.path).read_bytes().decode(errors="replace")
        shown = None if old is None else old.decode(errors="replace")
        return compare_text(kind, _subject(each.path), shown, after)


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
    stored = before.to_json()
    shown = redaction.json(stored)
    change: Json = {
        key: _as_stored(value, stored[key], shown[key]) if key in stored else value for key, value in settings.items()
    }
    aliased = alias_values(before.mcp_servers, before.variables)
    entries: dict[str, Json | None] = {
        name: _keep(entry, before, aliased)
        for name, entry in described.entries.items()
        if not _is_same(entry, aliased.get(name), redaction)
    }
    if remove_others:
        entries |= dict.fromkeys(before.mcp_servers.keys() - described.entries.keys())
        change |= dict.fromkeys(stored.keys() - described.settings.keys() - {"mcpServers"})
        for key in MAP_KEYS - {"mcpServers"}:
            given = change.get(key)
            if isinstance(given, Mapping):
                change[key] = {**dict.fromkeys(stored.get(key, {})), **given}
    return {**change, "mcpServers": entries} if entries else change


def _as_stored(value: Any, stored: Any, shown: Any) -> Any:
    """Return a value with the parts restored that an export redacts. ``shown``: the stored value as exported."""
    if value == shown:
        return stored
    if isinstance(value, Mapping) and isinstance(stored, Mapping):
        return {
            key: _as_stored(each, stored[key], shown[key]) if key in stored else each for key, each in value.items()
        }
    return value


def _is_same(entry: McpEntry, before: McpEntry | None, redaction: Redaction) -> bool:
    return entry == before or (before is not None and entry.to_json() == redaction.json(before.to_json()))


def _keep(entry: McpEntry, before: DomainSettings, aliased: Mapping[str, McpEntry]) -> Json:
    old = before.mcp_servers.get(entry.name)
    return (entry if old is None else keep_values(entry, old, aliased[entry.name])).to_json()
