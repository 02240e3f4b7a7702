"""An MCP server that stores texts in its home, and writes its process id to ``KEEPING_STARTS``."""

import os
from pathlib import Path

from mcp.server import MCPServer
from mcp_types import ToolAnnotations

READ_ONLY = ToolAnnotations(read_only_hint=True)
"""Annotations of its tool, so that a single user's server runs it without approval."""
server = MCPServer("keeping")
notes = Path(os.environ["HOME"], "notes")


@server.tool(annotations=READ_ONLY)
def keep(text: str) -> str:
    """Keep a text and return all that were kept."""
    with notes.open("a") as file:
        file.write(f"{text}\n")
    return " ".join(notes.read_text().split())


def note_start(starts: Path) -> None:
    """Record this process, and the earlier ones that are still alive."""
    before = starts.read_text().split("\n") if starts.exists() else []
    alive = [line.split()[0] for line in before if line and Path("/proc", line.split()[0]).exists()]
    with starts.open("a") as file:
        file.write(f"{os.getpid()} beside {len(alive)}\n")


if __name__ == "__main__":
    if given := os.environ.get("KEEPING_STARTS"):
        note_start(Path(given))
    server.run("stdio")
