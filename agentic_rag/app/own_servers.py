"""Create the project's own MCP servers, which run in this process.

Importing this module takes 0.5 s (`mcp`), so the composition root imports it in a thread after the server listens.
"""

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar, TypeVarTuple, Unpack

from mcp.server import MCPServer

from agentic_rag.access.document_views import DocumentReader
from agentic_rag.base.errors import WorkspaceUnavailable
from agentic_rag.base.json_form import Json
from agentic_rag.base.threads import DomainThreads
from agentic_rag.directory.collection import domain_of
from agentic_rag.documents.attachments import Attachments
from agentic_rag.documents.search import DomainSearch
from agentic_rag.tools.system import DELEGATION, PROMPTX, RETRIEVER
from mcp_servers.delegate.server import ChildRunner
from mcp_servers.delegate.server import create_server as create_delegate
from mcp_servers.promptx.errors import WorkspaceBusy
from mcp_servers.promptx.memory import MemoryCache
from mcp_servers.promptx.server import PromptXConfig
from mcp_servers.promptx.server import create_server as create_promptx
from mcp_servers.retriever.server import create_server as create_retriever

T = TypeVar("T")
Args = TypeVarTuple("Args")


def make_own_servers(
    knowledge: DomainSearch,
    attachments: Attachments,
    roles: Path,
    children: ChildRunner,
    max_memories: int,
    threads: DomainThreads,
    memories: MemoryCache,
) -> dict[str, MCPServer]:
    """Return our own servers by name.

    ``roles`` is the folder of the built-in roles. ``max_memories`` limits one role's memories of one user.
    """

    async def hidden_turns(bound: Json) -> frozenset[str]:
        domain_id = domain_of(str(bound.get("collection")))
        return await knowledge.views.hidden_turns(DocumentReader.of_call(bound), domain_id)

    return {
        DELEGATION: create_delegate(children),
        PROMPTX: create_promptx(
            PromptXConfig(builtin_roles=roles, bound_by_meta=True, max_memories=max_memories),
            _WorkspaceThreads(threads),
            memories,
            hidden_turns,
        ),
        RETRIEVER: create_retriever(
            knowledge, knowledge, bound_by_meta=True, visible=knowledge.visible, attached=attachments.of_call
        ),
    }


class _WorkspaceThreads:
    """Adapts the domains' threads for our roles and memories. Implements `mcp_servers.promptx.server.Threads`."""

    def __init__(self, threads: DomainThreads) -> None:
        self._threads = threads

    async def run(self, owner: str, work: Callable[[Unpack[Args]], T], *args: *Args) -> T:
        """See `Threads.run`."""
        try:
            return await self._threads.run(owner, work, *args)
        except WorkspaceUnavailable as exc:
            raise WorkspaceBusy(exc.reason) from exc
