"""A domain's merged servers: as GET shows them and as a turn gets them.

Owns the merge order (system, built-in, user: a lower one never replaces a higher one).
Pure: knows no database and no MCP client.
"""

from collections.abc import Mapping
from typing import Any

from agentic_rag.directory.collection import CollectionFacts, collection_of
from agentic_rag.directory.server_settings import shown_entry
from agentic_rag.directory.settings import DomainSettings
from agentic_rag.runtime.core.definition import ServerEntry
from agentic_rag.store.domains import DomainRecord
from agentic_rag.tools.launch.policy import ServerSpec

PROMPTX_TOOLS = ("promptx_action", "promptx_recall", "promptx_remember", "promptx_discover")
AUTHOR_TOOLS = ("role_write", "role_check")
"""Only in a domain with the role that uses them, for a user who is its admin: a role steers everyone."""
AUTHOR_ROLE = "nuwa"


def our_entries(record: DomainRecord, settings: DomainSettings) -> dict[str, dict[str, Any]]:
    """Return our own servers as GET shows them when they are there; one sent back unchanged means nothing."""
    retriever = {
        "DOMAIN_ID": record.id,
        "QDRANT_COLLECTION": collection_of(record.id),
        "RETRIEVAL_TOP_K": str(settings.retrieval_top_k),
        "RETRIEVAL_THRESHOLD": f"{settings.retrieval_threshold:g}",
    }
    ours: tuple[tuple[str, str, dict[str, Any]], ...] = (
        ("promptx", "system", {"env": {"PROMPTX_PROJECT_DIR": record.workspace}}),
        ("delegate", "system", {}),
        ("retriever", "builtin", {"env": retriever}),
    )
    return {
        name: {"type": "memory", **entry, "enabled": True, "origin": origin, "readOnly": True}
        for name, origin, entry in ours
    }


def server_map(
    record: DomainRecord, settings: DomainSettings, facts: CollectionFacts, masks: Mapping[str, Mapping[str, Any]]
) -> dict[str, dict[str, Any]]:
    """Return the merged servers as GET shows them: system, then built-in, then the user's. ``masks``: of secrets."""
    there = {"promptx": True, "delegate": bool(settings.sub_role_ids), "retriever": bool(facts.count)}
    shown = {name: entry for name, entry in our_entries(record, settings).items() if there[name]}
    for name, user_entry in settings.mcp_servers.items():
        shown.setdefault(name, {**shown_entry(name, user_entry, masks), "origin": "user", "readOnly": False})
    return shown


def enabled(settings: DomainSettings) -> dict[str, str]:
    """Return the user's enabled servers, each with the hash of what the admin wrote."""
    return {
        name: ServerSpec(name, "user", entry.type, entry.config).entry_hash()
        for name, entry in settings.mcp_servers.items()
        if entry.enabled
    }


def entries(settings: DomainSettings, facts: CollectionFacts, *, author: bool) -> tuple[ServerEntry, ...]:
    """Return the servers of a turn; disabled ones are left out. ``author``: the user may write this domain's roles."""
    writes_roles = author and AUTHOR_ROLE in (settings.primary_role_id, *settings.sub_role_ids)
    servers = [ServerEntry("promptx", "system", "memory", tools=PROMPTX_TOOLS + (AUTHOR_TOOLS if writes_roles else ()))]
    if settings.sub_role_ids:
        servers.append(ServerEntry("delegate", "system", "memory"))
    if facts.count:
        servers.append(ServerEntry("retriever", "builtin", "memory"))
    for name, entry in settings.mcp_servers.items():
        if entry.enabled:
            config = entry.config
            if entry.wanted or entry.sealed(name):  # the image has what the turn began with; secrets are in the vault
                config["variables"] = dict(settings.variables)
            include = entry.tools.include if entry.tools else ()
            servers.append(ServerEntry(name, "user", entry.type, config, include or None))
    return tuple(servers)
