"""The business layer as one value, for the edges that answer with it.

Owns nothing; made by the composition root.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from agentic_rag.conversations import Conversations
from agentic_rag.documents import Documents
from agentic_rag.domains import Domains
from agentic_rag.memories import Memories
from agentic_rag.roles import Roles
from agentic_rag.runtime.runtime import Runtime
from agentic_rag.servers import Servers
from agentic_rag.vault import Vault


@dataclass(frozen=True, slots=True)
class Business:
    """``health`` returns the JSON-ready states of model, embedder, store, index and servers."""

    domains: Domains
    roles: Roles
    memories: Memories
    documents: Documents
    conversations: Conversations
    runtime: Runtime
    vault: Vault
    servers: Servers
    health: Callable[[], dict[str, Any]]
