"""The contents of a domain's bundle: its members in order, measured before the first byte is sent.

This module selects the files of a workspace and their names in the bundle. All files of a workspace are read through
`mcp_servers.safe_files`. All functions here block.
"""

import errno
import io
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import BinaryIO

from agentic_rag.archive.files import CHUNK, HashingReader, LeftOut
from agentic_rag.archive.zips import ZipMember, measure_zip, write_zip
from agentic_rag.base.json_form import Json
from agentic_rag.base.redaction import Redaction
from agentic_rag.bundles.entries import alias_values, needed_secrets
from agentic_rag.bundles.form import (
    CASES,
    DOCUMENTS,
    DOMAIN,
    LINES,
    MANIFEST,
    MAX_TEXT,
    MEMORIES,
    NOTIFICATIONS,
    PROMPT,
    ROLES,
    SERVERS,
    SKILLS,
    BundleFile,
    BundleManifest,
    NeededSecret,
    limit_of,
    portable_names,
    pretty,
    problem_of,
)
from agentic_rag.directory.cases import CaseForm, write_cases
from agentic_rag.directory.document_labels import LabelRules, distinct
from agentic_rag.directory.settings import DomainSettings
from agentic_rag.domains.components import counts
from agentic_rag.store.documents import DocumentRecord
from agentic_rag.store.domains import DomainRecord
from mcp_servers.promptx.dpml import KINDS
from mcp_servers.promptx.rolefiles import RESOURCE_FOLDER
from mcp_servers.promptx.skills import SKILLS_FOLDER
from mcp_servers.safe_files import Folder, is_text

PLACES = {PROMPT: "prompt", ROLES: RESOURCE_FOLDER, SKILLS: SKILLS_FOLDER, DOCUMENTS: "documents"}
"""The workspace folder for each folder of a bundle."""

Opener = Callable[[], BinaryIO]


class ContentChanged(Exception):
    """A file has changed since it was measured."""


@dataclass(frozen=True, slots=True)
class Contents:
    """A domain as the bytes of a bundle; ``size`` is their number."""

    members: tuple[ZipMember, ...]
    size: int
    manifest: BundleManifest
    left_out: tuple[LeftOut, ...]

    def pieces(self) -> Iterator[bytes]:
        """Yield the bytes in pieces.

        Raises:
            ContentChanged: a file has changed. The bytes yielded so far are not a valid bundle.
        """
        return write_zip(self.members)


def _read_again(measured: BundleFile, opener: Opener) -> Iterator[bytes]:
    """Yield the bytes of a measured file.

    Raises:
        ContentChanged: they differ from the measured ones.
    """
    try:
        with opener() as file:
            content = HashingReader(file)
            while (data := content.read(CHUNK)) and content.size <= measured.size:
                yield data
    except OSError as exc:
        raise ContentChanged(measured.path) from exc
    if (content.size, content.sha256) != (measured.size, measured.sha256):
        raise ContentChanged(measured.path)


def collect(
    record: DomainRecord,
    documents: Sequence[DocumentRecord],
    memories: Mapping[str, bytes] | None,
    redaction: Redaction,
    cases: Sequence[CaseForm] = (),
    notifications: Json | None = None,
    lines: Json | None = None,
) -> Contents:
    """Return a domain's contents.

    ``documents``: its documents; ``memories``: JSON by role; ``cases``: its evaluation cases; ``notifications``: its
    endpoints, schedules and sources (`domains.notification_records`), None without any; ``lines``: the context lines of
    its documents, None without any.

    ``redaction`` removes the domain's secrets, which people may have written into a setting or a text.
    """
    settings = DomainSettings.model_validate(record.settings)
    entries = alias_values(settings.mcp_servers, settings.variables)
    exported_settings = {key: value for key, value in record.settings.items() if key != "mcpServers"}
    about = {"name": record.name, "description": record.description, "settings": exported_settings}
    servers = {"mcpServers": {name: entry.to_json() for name, entry in entries.items()}}
    openers: dict[str, Opener] = {
        DOMAIN: _of_bytes(pretty(redaction.json(about))),
        SERVERS: _of_bytes(pretty(redaction.json(servers))),
    }
    if cases:
        openers[CASES] = _of_bytes(pretty(redaction.json(write_cases(cases))))
    if notifications is not None:
        openers[NOTIFICATIONS] = _of_bytes(pretty(redaction.json(notifications)))
    if lines:
        openers[LINES] = _of_bytes(pretty(redaction.json(lines)))
    texts = texts_of(record.workspace)
    remembered = {f"{role}.json": data for role, data in (memories or {}).items()}
    called = portable_names(memories_of(texts[ROLES]).union(remembered))
    openers |= {MEMORIES + called[path]: _of_bytes(data) for path, data in remembered.items()}
    left_out: list[LeftOut] = []
    facts: dict[str, Json] = {}
    by_path = {document.path: document for document in documents}
    rules = LabelRules.of_settings(record.settings)
    for folder, names in (*texts.items(), (DOCUMENTS, list(by_path))):
        place = Folder(Path(record.workspace)).at(PLACES[folder])
        for path, name in portable_names(names).items():
            whole = folder == DOCUMENTS  # documents are exported unchanged, byte by byte
            openers[folder + name] = partial(place.open, path) if whole else partial(_open_text, place, path, redaction)
            if whole:
                facts[folder + name] = _facts_of(by_path[path], name, rules)
    return _count(openers, facts, needed_secrets(entries.values(), settings.variables), left_out)


def _facts_of(document: DocumentRecord, name: str, rules: LabelRules) -> Json:
    """Return the labels and dates of a document for the manifest.

    ``name`` is its path in the bundle. Labels of folder rules are included if the rules do not give them to that path.
    """
    missing = rules.labels_of(document.path) - rules.labels_of(name)
    return {
        "labels": distinct({*document.labels, *missing}) or None,
        "date": document.own_date,
        "review": document.review_by,
    }


def _of_bytes(data: bytes) -> Opener:
    return lambda: io.BytesIO(data)


def _open_text(place: Folder, path: str, redaction: Redaction) -> BinaryIO:
    return io.BytesIO(redact_bytes(place.read(path, MAX_TEXT), redaction))


def redact_bytes(data: bytes, redaction: Redaction) -> bytes:
    """Return a text's bytes without secrets, even if they are not valid UTF-8."""
    return redaction(data.decode("utf-8", "surrogateescape")).encode("utf-8", "surrogateescape")


def texts_of(workspace: str) -> dict[str, list[str]]:
    """Return the names of files by the bundle's folders: prompt components, role files, and skill files."""
    root = Folder(Path(workspace))
    prompt = [entry.path for entry in root.at("prompt").entries() if entry.kind == "file" and counts(entry.name)]
    roles = [
        entry.path
        for entry in root.at(RESOURCE_FOLDER).walk()
        if entry.kind == "file" and any(entry.name.endswith(f".{kind}.md") for kind in KINDS)
    ]
    skills = [
        entry.path for entry in root.at(SKILLS_FOLDER).walk(hidden=False) if entry.kind == "file" and "/" in entry.path
    ]
    return {PROMPT: prompt, ROLES: roles, SKILLS: skills}


def memories_of(roles: Iterable[str]) -> set[str]:
    """Return the file names of role memories for the paths of role files: a memory is named after its role."""
    names = (path.rpartition("/")[2] for path in roles)
    return {f"{name.removesuffix('.role.md')}.json" for name in names if name.endswith(".role.md")}


def _count(
    openers: Mapping[str, Opener],
    facts: Mapping[str, Json],
    secrets: tuple[NeededSecret, ...],
    left_out: list[LeftOut],
) -> Contents:
    files: list[BundleFile] = []
    for path in sorted(openers):
        try:
            with openers[path]() as file:
                size, sha256 = _measure(file, limit_of(path))
        except OSError as exc:
            left_out.append(LeftOut(path, exc.strerror or "it cannot be read"))
            continue
        if (problem := problem_of(path)) is not None:
            left_out.append(LeftOut(path, f"its name {problem}"))
            continue
        files.append(BundleFile(path, size, sha256, **facts.get(path, {})))
    manifest = BundleManifest(secrets, tuple(files))
    data = manifest.to_bytes()
    members = (
        ZipMember(MANIFEST, len(data), lambda: [data]),
        *(ZipMember(file.path, file.size, partial(_read_again, file, openers[file.path])) for file in files),
    )
    return Contents(members, measure_zip(members), manifest, tuple(left_out))


def _measure(file: BinaryIO, limit: int | None) -> tuple[int, str]:
    """Return the size and the SHA-256 of an open file."""
    content = HashingReader(file)
    while content.read(CHUNK):
        if limit is not None and content.size > limit:
            raise OSError(errno.EFBIG, f"it has more than {limit} bytes")
    return content.size, content.sha256


def hash_texts(workspace: str) -> dict[str, str]:
    """Return the SHA-256 of a workspace's texts, by the bundle's folder plus their own path.

    Files that cannot be read, or whose name is not valid text, are left out.
    """
    hashes: dict[str, str] = {}
    for folder, names in texts_of(workspace).items():
        place = Folder(Path(workspace)).at(PLACES[folder])
        for path in filter(is_text, names):
            with suppress(OSError):
                hashes[folder + path] = place.hash(path)[1]
    return hashes


def read_text(workspace: str, folder: str, inner: str) -> bytes:
    """Return a text of a workspace; empty if the file cannot be read."""
    try:
        return Folder(Path(workspace)).at(PLACES[folder]).read(inner, MAX_TEXT)
    except OSError:
        return b""
