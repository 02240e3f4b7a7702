"""An MCP server that stores texts in its home, and writes its process id to ``KEEPING_STARTS``.

It uses the standard library only, to start fast.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

TOOL = {
    "name": "keep",
    "description": "Keep a text and return all that were kept.",
    "inputSchema": {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]},
    "annotations": {"readOnlyHint": True},  # a single user's server runs it without approval
}


def keep(text: str) -> str:
    """Keep a text and return all that were kept."""
    notes = Path(os.environ["HOME"], "notes")
    with notes.open("a") as file:
        file.write(f"{text}\n")
    return " ".join(notes.read_text().split())


def note_start(starts: Path) -> None:
    """Record this process, and the earlier ones that are still alive."""
    before = starts.read_text().split("\n") if starts.exists() else []
    alive = [line.split()[0] for line in before if line and Path("/proc", line.split()[0]).exists()]
    with starts.open("a") as file:
        file.write(f"{os.getpid()} beside {len(alive)}\n")


def answer(message: dict[str, Any]) -> dict[str, Any]:
    """Return the result or the error of a request."""
    match message["method"]:
        case "initialize":
            info = {"name": "keeping", "version": "1"}
            return {"result": {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": info}}
        case "tools/list":
            return {"result": {"tools": [TOOL]}}
        case "tools/call":
            text = keep(message["params"]["arguments"]["text"])
            return {"result": {"content": [{"type": "text", "text": text}]}}
        case _:
            return {"error": {"code": -32601, "message": "unknown"}}


def main() -> None:
    """Answer requests until the input ends."""
    if starts_path := os.environ.get("KEEPING_STARTS"):
        note_start(Path(starts_path))
    for line in sys.stdin:
        message = json.loads(line)
        if "id" in message:
            reply = {"jsonrpc": "2.0", "id": message["id"], **answer(message)}
            sys.stdout.write(f"{json.dumps(reply)}\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
