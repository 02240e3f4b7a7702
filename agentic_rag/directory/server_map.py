"""The merged MCP servers of a domain, in the form of a GET and in the form of a turn.

Owns the merge order: system, built-in, user. A later group never replaces an entry of an earlier one.
Pure: knows no database and no MCP client.
"""

from collections.abc import Mapping

from agentic_rag.base.json_form import Json
from agentic_rag.directory.collection import CollectionFacts, collection_of
from agentic_rag.directory.settings import DomainSettings
from agentic_rag.store.domains import DomainRecord
from agentic_rag.tools.base import SystemServer
from agentic_rag.tools.entries.entry import McpEntry
from agentic_rag.tools.system import DELEGATION, PROMPTX, RETRIEVER, promptx_tools

AUTHOR_ROLE = "nuwa"
"""The role that enables the tools for writing roles.

Only an admin of a domain with this role gets the tools, because a role affects every user.
"""


def own_documents(record: DomainRecord, settings: DomainSettings) -> Json:
    """Return all system and built-in servers in the form of a GET.

    A client that sends such an entry back unchanged changes nothing.
    """
    retriever = {
        "DOMAIN_ID": record.id,
        "QDRANT_COLLECTION": collection_of(record.id),
        "RETRIEVAL_TOP_K": str(settings.retrieval_top_k),
        "RETRIEVAL_THRESHOLD": f"{settings.retrieval_threshold:g}",
    }
    own: tuple[tuple[str, str, Json], ...] = (
        (PROMPTX, "system", {"env": {"PROMPTX_PROJECT_DIR": record.workspace}}),
        (DELEGATION, "system", {}),
        (RETRIEVER, "builtin", {"env": retriever}),
    )
    return {
        name: {"type": "memory", **document, "enabled": True, "origin": origin, "readOnly": True}
        for name, origin, document in own
    }


def server_map(
    record: DomainRecord, settings: DomainSettings, facts: CollectionFacts, masks: Mapping[str, Json]
) -> Json:
    """Return the merged servers in the form of a GET: system, built-in, then user.

    The retriever is included if the domain has searchable documents. ``masks``: the visible form of sealed values, by
    `sealed_name`.
    """
    own = own_documents(record, settings)
    servers = [
        server.name for server in system_servers(settings, author=False) if server.name != RETRIEVER or facts.count
    ]
    documents: Json = {name: own[name] for name in servers}
    for name, entry in settings.mcp_servers.items():
        documents.setdefault(name, {**entry.to_json(masks), "origin": "user", "readOnly": False})
    return documents


def enabled_hashes(settings: DomainSettings) -> dict[str, str]:
    """Return the names of the user's enabled servers, each with the hash of its entry."""
    return {name: entry.hash() for name, entry in settings.mcp_servers.items() if entry.enabled}


def system_servers(settings: DomainSettings, *, author: bool, skills: bool = False) -> tuple[SystemServer, ...]:
    """Return the system and built-in servers of a turn.

    The retriever is always included, because a session keeps its list of tools. The search itself reports missing
    documents. ``author``: the user may write this domain's roles. ``skills``: the domain has skills.
    """
    writes_roles = author and AUTHOR_ROLE in (settings.primary_role_id, *settings.sub_role_ids)
    servers = [SystemServer(PROMPTX, "system", promptx_tools(author=writes_roles, skills=skills))]
    if settings.sub_role_ids:
        servers.append(SystemServer(DELEGATION, "system"))
    return (*servers, SystemServer(RETRIEVER, "builtin"))


def turn_entries(settings: DomainSettings) -> tuple[McpEntry, ...]:
    """Return the user's enabled entries with the current variables, as the snapshot of a turn that begins now."""
    return tuple(entry.with_variables(settings.variables) for entry in settings.mcp_servers.values() if entry.enabled)
