"""The project's own MCP servers, and from a definition to the tools of a turn.

Owns which servers run in this process and how an entry becomes a launch spec. Importing this module costs half a
second (`mcp`): the composition root does so in a thread, after the server listens.
"""

from pathlib import Path

from agentic_rag.runtime.definition import Definition
from agentic_rag.tools.hub import Hub
from agentic_rag.tools.launch import LaunchPolicy, ServerSpec
from agentic_rag.tools.toolset import ServerToolset, open_toolset
from mcp_servers.promptx.server import PromptXConfig
from mcp_servers.promptx.server import create_server as create_promptx
from mcp_servers.retriever.retrieval import Retriever
from mcp_servers.retriever.server import create_server as create_retriever


def make_hub(retriever: Retriever, roles: Path, policy: LaunchPolicy) -> Hub:
    """Build our servers once and return the pool that will connect to them. ``roles``: the built-in roles."""
    builtin = {
        "promptx": create_promptx(PromptXConfig(builtin_roles=roles, bound_by_meta=True)),
        "retriever": create_retriever(retriever, bound_by_meta=True),
    }
    policy.sweep()
    return Hub(builtin, policy)


async def open_tools(hub: Hub, definition: Definition) -> ServerToolset:
    """Start what a definition names and return the tools of a turn."""
    specs = [
        ServerSpec(
            name=entry.name,
            origin=entry.origin,
            kind=entry.kind,
            config=entry.config,
            tools=entry.tools,
            domain=definition.domain_id,
            workspace=str(definition.bound["workspace"]),
            user=str(definition.bound["user"]),
        )
        for entry in definition.servers
    ]
    return await open_toolset(hub, specs)
