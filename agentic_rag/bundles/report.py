"""Import reports: the changes that an import makes or would make, for the admin.

This module compares a bundle with the target domain, kind by kind. Pure.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from agentic_rag.base.comparison import compare_json, compare_lines
from agentic_rag.base.json_form import Absent, Json
from agentic_rag.bundles.entries import alias_values
from agentic_rag.bundles.form import DOCUMENTS, MEMORIES, PROMPT, ROLES, SKILLS
from agentic_rag.directory.settings import DomainSettings
from agentic_rag.store.domains import DomainRecord
from agentic_rag.tools.entries.reading import Note

MAX_DIFFERENCES = 1_000
MAX_TEXTS = 200
"""Maximum number of texts whose lines are compared in one report."""

Action = Literal["add", "change", "remove", "keep"]
Kind = Literal[
    "setting", "server", "prompt", "role", "skill", "document", "memory", "case", "endpoint", "schedule", "source"
]
KIND_OF: dict[str, Kind] = {
    PROMPT: "prompt",
    ROLES: "role",
    SKILLS: "skill",
    DOCUMENTS: "document",
    MEMORIES: "memory",
}
SecretState = Literal["set", "missing", "confirm"]


@dataclass(frozen=True, slots=True)
class Difference:
    """One thing that an import adds, changes or removes; ``keep``: the domain has a thing that the bundle lacks.

    ``lines``: a unified diff of texts.
    """

    kind: Kind
    subject: str
    action: Action
    before: Absent[Any] = None
    after: Absent[Any] = None
    lines: Absent[str] = None


@dataclass(frozen=True, slots=True)
class AskedSecret:
    """A secret that a server refers to.

    The secret is set in the domain, is missing, or needs confirmation (`confirm`) because a new or changed server would
    receive the domain's secret.
    """

    name: str
    server: str
    state: SecretState


@dataclass(frozen=True, slots=True)
class WithheldServer:
    """A server that is imported as disabled, because nothing permits it here. ``request``: API path to request it."""

    server: str
    reason: str
    allow: str
    request: str


@dataclass(frozen=True, slots=True)
class ImportReport:
    """The result of an import, or of a dry run. ``domain_id`` is None if no domain was created."""

    dry_run: bool
    domain_id: str | None
    name: str
    differences: tuple[Difference, ...]
    more: int
    findings: tuple[Note, ...]
    secrets: tuple[AskedSecret, ...]
    withheld: tuple[WithheldServer, ...]


def cut(differences: Sequence[Difference]) -> tuple[tuple[Difference, ...], int]:
    """Return the differences to display, and the number of the others."""
    return tuple(differences[:MAX_DIFFERENCES]), max(0, len(differences) - MAX_DIFFERENCES)


def compare_records(before: DomainRecord | None, after: DomainRecord) -> list[Difference]:
    """Return the differences of settings and servers, without values of secrets."""
    old = {} if before is None else _plain(before)
    differences = [
        Difference("setting", change.path, _action(change.before, change.after), change.before, change.after)
        for change in compare_json(old, _plain(after))
    ]
    old_servers = {} if before is None else _servers(before)
    new_servers = _servers(after)
    for name in sorted(old_servers.keys() | new_servers.keys()):
        one, other = old_servers.get(name), new_servers.get(name)
        if one != other:
            differences.append(Difference("server", name, _action(one, other), one, other))
    return differences


def _plain(record: DomainRecord) -> Json:
    settings = {key: value for key, value in record.settings.items() if key != "mcpServers"}
    return {**settings, "description": record.description} if record.description else settings


def _servers(record: DomainRecord) -> Mapping[str, Json]:
    settings = DomainSettings.model_validate(record.settings)
    entries = alias_values(settings.mcp_servers, settings.variables)
    return {name: entry.to_json() for name, entry in entries.items()}


def _action(before: object, after: object) -> Action:
    return "add" if before is None else "remove" if after is None else "change"


def compare_text(kind: Kind, subject: str, before: str | None, after: str | None) -> Difference:
    """Return the difference of a text; ``before`` or ``after`` is None if the text does not exist."""
    lines = compare_lines(before or "", after or "")
    return Difference(kind, subject, _action(before, after), lines=lines)
