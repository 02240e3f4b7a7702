"""MCP entries in a bundle: complete, but without any secret value. Pure.

This module chooses the names that replace sealed values, and finds entries that would gain access to a domain's
secrets. A value sealed under the entry's own name becomes a reference, ``${SERVER_NAME}``, as an admin would write it.
"""

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from agentic_rag.base.json_form import Json
from agentic_rag.bundles.form import NeededSecret
from agentic_rag.directory.settings import DomainSettings
from agentic_rag.tools.entries.entry import HttpTarget, McpEntry, SealedValue, Template, Value

MAX_ALIAS = 56


def alias_values(entries: Mapping[str, McpEntry], variables: Collection[str]) -> dict[str, McpEntry]:
    """Return entries in which a reference replaces each sealed value."""
    used_names = {name for entry in entries.values() for name in entry.placeholder_names} | set(variables)
    aliased: dict[str, McpEntry] = {}
    for name in sorted(entries):
        values: dict[tuple[str, str], Value] = {}
        for place, key, value in entries[name].values:
            values[place, key] = value
            if isinstance(value, SealedValue):
                alias = _free_name(f"{name}_{key}", used_names)
                used_names.add(alias)
                values[place, key] = Template(f"${{{alias}}}")
        aliased[name] = entries[name].with_values(values)
    return aliased


def _free_name(base: str, used_names: Collection[str]) -> str:
    plain = re.sub(r"[^A-Z0-9_]", "_", base.upper())[:MAX_ALIAS]
    plain = plain if not plain[:1].isdigit() else f"_{plain}"
    name, number = plain, 2
    while name in used_names:
        name, number = f"{plain}_{number}", number + 1
    return name


def needed_secrets(entries: Iterable[McpEntry], variables: Collection[str]) -> tuple[NeededSecret, ...]:
    """Return the secrets that entries refer to, by server and name; variables are not secrets."""
    needed = {(entry.name, name) for entry in entries for name in entry.placeholder_names if name not in variables}
    return tuple(NeededSecret(name, server) for server, name in sorted(needed))


def keep_values(entry: McpEntry, before: McpEntry, aliased: McpEntry) -> McpEntry:
    """Return a bundle's entry with the sealed values of the entry that it replaces, where it refers to them.

    ``aliased`` is the replaced entry as a bundle would hold it.
    """
    old = {(place, name): value for place, name, value in before.values}
    new_values = {(place, name): value for place, name, value in aliased.values}
    values = {
        (place, name): old[place, name]
        if isinstance(old.get((place, name)), SealedValue) and new_values[place, name] == value
        else value
        for place, name, value in entry.values
    }
    return entry.with_values(values)


@dataclass(frozen=True, slots=True)
class GainedSecrets:
    """A server that would gain secrets, or would send its existing secrets to another target."""

    server: str
    target: str
    secrets: tuple[str, ...]

    def to_json(self) -> Json:
        """Return the JSON form for clients."""
        return {"server": self.server, "target": self.target, "secrets": list(self.secrets)}


def new_bindings(before: DomainSettings, after: DomainSettings, secrets: Collection[str]) -> list[GainedSecrets]:
    """Return the new or changed servers that use ``secrets`` (names of a domain's secrets), by name.

    Entries are compared with the variables in them resolved: an address that contains a variable changes with the
    variable.
    """
    bindings = []
    for name, entry in sorted(after.mcp_servers.items()):
        used_secrets = sorted((entry.placeholder_names | entry.sealed_names) & set(secrets))
        old = before.mcp_servers.get(name)
        if not used_secrets or (old is not None and _meaning(old, before) == _meaning(entry, after)):
            continue
        bindings.append(GainedSecrets(name, target_of(entry, after), tuple(used_secrets)))
    return bindings


def _meaning(entry: McpEntry, settings: DomainSettings) -> Json:
    return {**entry.with_variables(settings.variables).to_json(), "enabled": True}


def target_of(entry: McpEntry, settings: DomainSettings) -> str:
    """Return the target of an entry as text for its admin."""
    if isinstance(entry.target, HttpTarget):
        text = entry.target.url
    else:
        text = " ".join([entry.target.command, *entry.target.args])
    for name, value in settings.variables.items():
        text = text.replace(f"${{{name}}}", value)
    return text[:500]
