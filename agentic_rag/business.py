"""The business layer as one value, for the edges that answer with it.

Owns nothing; made by the composition root.
"""

from dataclasses import dataclass

from agentic_rag.conversations.conversations import Conversations
from agentic_rag.directory.directory import Directory
from agentic_rag.documents.documents import Documents
from agentic_rag.domains.definitions import Definitions
from agentic_rag.domains.domains import Domains
from agentic_rag.domains.servers import Servers
from agentic_rag.domains.vault import Vault
from agentic_rag.operations.deletion import Deletion
from agentic_rag.operations.health import Health
from agentic_rag.operations.usage import UsageReports
from agentic_rag.roles.birth import Births
from agentic_rag.roles.memories import Memories
from agentic_rag.roles.roles import Roles
from agentic_rag.runtime.runtime import Runtime


@dataclass(frozen=True, slots=True)
class Business:
    """What routes, sockets and commands work with."""

    directory: Directory
    domains: Domains
    definitions: Definitions
    roles: Roles
    births: Births
    memories: Memories
    documents: Documents
    conversations: Conversations
    deletion: Deletion
    runtime: Runtime
    vault: Vault
    servers: Servers
    health: Health
    usage: UsageReports
