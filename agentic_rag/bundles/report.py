"""What an import changes, or would change: as its admin reads it before and after.

Owns the comparison of a bundle with the domain that it comes over, kind by kind. Pure.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from agentic_rag.bundles.entries import alias_values
from agentic_rag.bundles.form import DOCUMENTS, MEMORIES, PROMPT, ROLES, SKILLS
from agentic_rag.comparison import compare_json, compare_lines
from agentic_rag.directory.settings import DomainSettings
from agentic_rag.json_form import Absent, Json
from agentic_rag.store.domains import DomainRecord
from agentic_rag.tools.entries.reading import Note

MAX_DIFFERENCES = 1_000
MAX_TEXTS = 200
"""Texts whose lines are compared in one report."""

Action = Literal["add", "change", "remove", "keep"]
Kind = Literal["setting", "server", "prompt", "role", "skill", "document", "memory"]
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
    """One thing that an import adds, changes or removes; ``keep``: the domain has it and the bundle has not.

    ``lines``: a unified difference of texts.
    """

    kind: Kind
    subject: str
    action: Action
    before: Absent[Any] = None
    after: Absent[Any] = None
    lines: Absent[str] = None


@dataclass(frozen=True, slots=True)
class AskedSecret:
    """A secret that a server refers to: it is set in the domain, has to be set, or is the domain's and would go to a
    server that is new or changed (`confirm`).
    """

    name: str
    server: str
    state: SecretState


@dataclass(frozen=True, slots=True)
class WithheldServer:
    """A server that nothing allows here: it comes switched off. ``request``: where an admin asks for its line."""

    server: str
    reason: str
    allow: str
    request: str


@dataclass(frozen=True, slots=True)
class ImportReport:
    """What became of a bundle, or would. ``domain_id`` is None where nothing was made."""

    dry_run: bool
    domain_id: str | None
    name: str
    differences: tuple[Difference, ...]
    more: int
    findings: tuple[Note, ...]
    secrets: tuple[AskedSecret, ...]
    withheld: tuple[WithheldServer, ...]


def cut(differences: Sequence[Difference]) -> tuple[tuple[Difference, ...], int]:
    """Return as many as are shown, and how many there are beside them."""
    return tuple(differences[:MAX_DIFFERENCES]), max(0, len(differences) - MAX_DIFFERENCES)


def compare_records(before: DomainRecord | None, after: DomainRecord) -> list[Difference]:
    """Return how settings and servers differ; no value of a secret is in them."""
    old = {} if before is None else _plain(before)
    found = [
        Difference("setting", each.path, _action(each.before, each.after), each.before, each.after)
        for each in compare_json(old, _plain(after))
    ]
    old_servers = {} if before is None else _servers(before)
    new_servers = _servers(after)
    for name in sorted(old_servers.keys() | new_servers.keys()):
        one, other = old_servers.get(name), new_servers.get(name)
        if one != other:
            found.append(Difference("server", name, _action(one, other), one, other))
    return found


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
    """Return how a text differs; None: there is none."""
    lines = compare_lines(before or "", after or "")
    return Difference(kind, subject, _action(before, after), lines=lines)
