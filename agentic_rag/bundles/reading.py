"""What a bundle says of a domain: its name, settings and servers, read from a stranger's files.

Owns what of a settings document depends on the server that it stands on, and is left out where it does not fit.
"""

import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from agentic_rag.bundle_errors import BundleDamaged, BundleRefused
from agentic_rag.bundles.form import DOMAIN, SERVERS, read_object
from agentic_rag.errors import InvalidInput
from agentic_rag.json_form import Json
from agentic_rag.tools.entries.entry import McpEntry, SealedValue
from agentic_rag.tools.entries.reading import Note, read_entries

LOCAL_KEYS = frozenset(
    {"model", "fallbackModel", "temperature", "effort", "thinking", "primaryRoleId", "subRoleIds", "reranker"}
)
"""Settings that name what another server may not have: a model, a role."""


@dataclass(frozen=True, slots=True)
class Described:
    """A domain as a bundle describes it. ``settings``: without ``mcpServers``, which are ``entries``."""

    name: str
    description: str
    settings: Json
    entries: Mapping[str, McpEntry]

    @property
    def documents(self) -> Json:
        """The entries as they are saved."""
        return {name: entry.to_json() for name, entry in self.entries.items()}


def read_described(files: Path) -> Described:
    """Return what an unpacked bundle says. Blocks.

    Raises:
        BundleDamaged, BundleRefused, InvalidInput, ServerReserved: it does not fit; says where.
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
    return Described(name, description, settings, entries)


def _read(files: Path, name: str) -> Json:
    try:
        data = (files / name).read_bytes()
    except FileNotFoundError as exc:
        raise BundleDamaged(f"it has no {name}") from exc
    return read_object(name, data)


async def fit_settings(settings: Json, attempt: Callable[[Json], Awaitable[object]]) -> tuple[object, list[Note]]:
    """Return what an attempt gives of settings without those that this server does not take, and a note of each.

    Raises:
        InvalidInput: something does not fit that depends on no server.
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
            settings = {name: each for name, each in settings.items() if name != key}
