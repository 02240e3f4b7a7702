"""A well-behaved MCP server over stdio or streamable HTTP; its tools do what tests wait for.

Run as a script over stdio.
"""

import os
import subprocess
import sys

import anyio
from mcp.server import MCPServer
from mcp.server.mcpserver import Context
from mcp.server.mcpserver.exceptions import ToolError
from mcp_types import ToolAnnotations

READ_ONLY = ToolAnnotations(read_only_hint=True)
"""Annotations of its tools, so that a single user's server runs them without approval."""


def build() -> MCPServer:
    """Return the server. Its ``slow`` tool writes its progress to a given file."""
    server = MCPServer("plain")

    @server.tool(annotations=READ_ONLY)
    async def echo(text: str) -> str:
        """Return the text."""
        return text

    @server.tool(annotations=READ_ONLY)
    async def fail(text: str) -> str:
        """Fail with the text."""
        raise ToolError(text)

    @server.tool(annotations=READ_ONLY)
    async def slow(journal: str) -> str:
        """Report its start and end in a file, and never return by itself."""
        await _note(journal, "started")
        try:
            await anyio.sleep_forever()
        finally:
            with anyio.CancelScope(shield=True):
                await _note(journal, "cancelled")
        return ""

    @server.tool(annotations=READ_ONLY)
    async def count(upto: int, pause: float, ctx: Context) -> str:
        """Report progress up to a number."""
        for step in range(1, upto + 1):
            await anyio.sleep(pause)
            await ctx.report_progress(step, upto, f"step {step}")
        return "counted"

    @server.tool(annotations=READ_ONLY)
    async def meta(ctx: Context) -> list[str]:
        """Return the keys of the call's meta."""
        return sorted(ctx.request_context.meta or {})

    @server.tool(annotations=READ_ONLY)
    async def environment() -> dict[str, str]:
        """Return the environment, and where the process runs."""
        return {**os.environ, "(cwd)": os.getcwd(), "(pid)": str(os.getpid()), "(sid)": str(os.getsid(0))}

    @server.tool(annotations=READ_ONLY)
    async def crash() -> str:
        """End the process in the middle of the call."""
        os._exit(7)

    @server.tool(annotations=READ_ONLY)
    async def breed(detach: bool) -> str:
        """Start a grandchild that outlives its parent if nobody kills it; returns its process id."""
        child = subprocess.Popen(["/bin/sleep", "600"], start_new_session=detach, stdin=subprocess.DEVNULL)  # noqa: ASYNC220 - short
        return str(child.pid)

    @server.tool(annotations=READ_ONLY)
    async def grow(ctx: Context) -> str:
        """Add a tool and say so."""

        async def grown() -> str:
            return "grown"

        server.add_tool(grown)
        await ctx.notify_tools_changed()
        return "ok"

    return server


async def _note(journal: str, line: str) -> None:
    async with await anyio.open_file(journal, "a") as file:
        await file.write(f"{line}\n")


if __name__ == "__main__":
    print("hello from stderr", file=sys.stderr)  # noqa: T201
    build().run("stdio")
