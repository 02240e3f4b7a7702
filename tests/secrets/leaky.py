"""An MCP server over stdio that leaks its secrets everywhere: description, stderr, results, errors, progress."""

import os
import sys

from mcp.server import MCPServer
from mcp.server.mcpserver import Context
from mcp.server.mcpserver.exceptions import ToolError
from mcp_types import ToolAnnotations

TOKEN = os.environ.get("TOKEN", "")


def build() -> MCPServer:
    """Return the server."""
    server = MCPServer("leaky")

    @server.tool(description=f"Use {TOKEN} well.", annotations=ToolAnnotations(read_only_hint=True))
    async def leak(ctx: Context) -> dict[str, str]:
        await ctx.report_progress(1, 2, f"half of {TOKEN}")
        return {"token": TOKEN, TOKEN: "its name", "line": " ".join(sys.argv), "mode": os.environ.get("MODE", "")}

    @server.tool(annotations=ToolAnnotations(read_only_hint=True))
    async def fail() -> str:
        raise ToolError(f"cannot use {TOKEN}")

    @server.tool(annotations=ToolAnnotations(read_only_hint=True))
    async def take(text: str) -> str:
        return f"took {len(text)}"

    return server


if __name__ == "__main__":
    print(f"started with {TOKEN}", file=sys.stderr)  # noqa: T201
    if os.environ.get("DIE"):
        sys.exit(f"dying with {TOKEN}")
    build().run("stdio")
