"""Reading a domain's name, settings and servers from an untrusted bundle.

This module also leaves out settings that depend on the server and are not valid here.
"""

import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from agentic_rag.base.bundle_errors import BundleDamaged, BundleRefused
from agentic_rag.base.errors import InvalidInput
from agentic_rag.base.json_form import Json
from agentic_rag.bundles.form import CASES, DOMAIN, LINES, NOTIFICATIONS, SERVERS, read_object
from agentic_rag.directory.cases import CaseForm, read_cases
from agentic_rag.documents.line_writer import DIGEST, clean_line
from agentic_rag.domains.notification_records import BundledNotifications, read_notifications
from agentic_rag.tools.entries.entry import McpEntry, SealedValue
from agentic_rag.tools.entries.reading import Note, read_entries

LOCAL_KEYS = frozenset(
    {
        "model",
        "fallbackModel",
        "temperature",
        "effort",
        "thinking",
        "primaryRoleId",
        "subRoleIds",
        "reranker",
        "scans",
        "contextLines",
    }
)
"""Settings that name or need things which another server may lack: models, roles."""


@dataclass(frozen=True, slots=True)
class BundledLine:
    """The context line of a passage: the hash of its document's bytes, its digest, the model, and the line."""

    sha256: str
    digest: str
    model: str
    line: str


@dataclass(frozen=True, slots=True)
class DescribedDomain:
    """A domain as described by a bundle. ``settings`` excludes ``mcpServers``, which are in ``entries``."""

    name: str
    description: str
    settings: Json
    entries: Mapping[str, McpEntry]
    cases: tuple[CaseForm, ...] = ()
    """Evaluation cases; ``case_notes`` list those that are invalid and left out."""
    case_notes: tuple[Note, ...] = ()
    notifications: BundledNotifications = field(default_factory=BundledNotifications)
    lines: tuple["BundledLine", ...] = ()

    @property
    def documents(self) -> Json:
        """The entries in their stored form."""
        return {name: entry.to_json() for name, entry in self.entries.items()}


def read_described(files: Path) -> DescribedDomain:
    """Return the description of the domain in an unpacked bundle. Blocks.

    Raises:
        BundleDamaged, BundleRefused, InvalidInput, ServerReserved: a part is invalid; the error names the place.
    """
    about, servers = _read(files, DOMAIN), _read(files, SERVERS)
    match about:
        case {"name": str(name), "description": str(description), "settings": dict(settings), **rest} if not rest:
            pass
        case _:
            raise BundleDamaged(f"{DOMAIN}: name, description and settings are expected, and nothing else")
    if "mcpServers" in settings or "mcp_servers" in settings:
        raise BundleDamaged(f"{DOMAIN}: the servers stand in {SERVERS}")
    if set(servers) != {"mcpServers"} or not isinstance(servers["mcpServers"], dict):
        raise BundleDamaged(f"{SERVERS}: mcpServers is expected, and nothing else")
    entries = read_entries(servers, "settings.mcpServers").entries if servers["mcpServers"] else {}
    for entry in entries.values():
        if any(isinstance(value, SealedValue) for _, _, value in entry.values):
            raise BundleRefused(f"{SERVERS}: {entry.name} says that a value is set, and a bundle has none")
    cases, notes = _read_cases(files)
    notifications, lines = _read_notifications(files), _read_lines(files)
    return DescribedDomain(name, description, settings, entries, cases, notes, notifications, lines)


def _read_lines(files: Path) -> tuple[BundledLine, ...]:
    """Return the context lines of a bundle. A line is cleaned like that of a model; without text it is left out."""
    try:
        data = (files / LINES).read_bytes()
    except FileNotFoundError:
        return ()
    lines: list[BundledLine] = []
    for sha256, passages in read_object(LINES, data).items():
        for digest, written in passages.items() if isinstance(passages, dict) else (("", None),):
            match written:
                case {"model": str(model), "line": str(line), **rest} if not rest and DIGEST.fullmatch(digest):
                    lines.append(BundledLine(sha256, digest, model[:200], clean_line(line)))
                case _:
                    raise BundleDamaged(f"{LINES}: model and line are expected for each passage, and nothing else")
    return tuple(line for line in lines if line.line)


def _read_notifications(files: Path) -> BundledNotifications:
    try:
        data = (files / NOTIFICATIONS).read_bytes()
    except FileNotFoundError:
        return BundledNotifications()
    return read_notifications(read_object(NOTIFICATIONS, data), NOTIFICATIONS)


def _read_cases(files: Path) -> tuple[tuple[CaseForm, ...], tuple[Note, ...]]:
    try:
        data = (files / CASES).read_bytes()
    except FileNotFoundError:
        return (), ()
    parsed = read_cases(read_object(CASES, data), CASES)
    notes = tuple(Note(problem.path, f"the case is left out: {problem.problem}") for problem in parsed.problems)
    return parsed.cases, notes


def _read(files: Path, name: str) -> Json:
    try:
        data = (files / name).read_bytes()
    except FileNotFoundError as exc:
        raise BundleDamaged(f"it has no {name}") from exc
    return read_object(name, data)


async def fit_settings(settings: Json, attempt: Callable[[Json], Awaitable[object]]) -> tuple[object, list[Note]]:
    """Return the result of an attempt with the accepted settings, and a note for each rejected setting.

    Raises:
        InvalidInput: a setting that does not depend on the server is invalid.
    """
    notes: list[Note] = []
    while True:
        try:
            return await attempt(settings), notes
        except InvalidInput as exc:
            key = exc.path.removeprefix("settings.").split(".")[0]
            if not exc.path.startswith("settings.") or key not in LOCAL_KEYS or key not in settings:
                raise
            value = json.dumps(settings[key], ensure_ascii=False)[:200]
            notes.append(Note(f"settings.{key}", f"{value} is left out: {exc.problem}"))
            settings = {name: value for name, value in settings.items() if name != key}
