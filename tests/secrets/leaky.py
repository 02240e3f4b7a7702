"""An MCP server over stdio that leaks its secrets everywhere: description, stderr, results, errors, progress.

It uses the standard library only. The MCP library takes 0.7 s of CPU to import, and a dozen tests start this server.
"""

import json
import os
import sys
from typing import Any

TOKEN = os.environ.get("TOKEN", "")
READ_ONLY = {"readOnlyHint": True}
TOOLS: list[dict[str, Any]] = [
    {"name": "leak", "description": f"Use {TOKEN} well.", "inputSchema": {"type": "object"}, "annotations": READ_ONLY},
    {"name": "fail", "inputSchema": {"type": "object"}, "annotations": READ_ONLY},
    {
        "name": "take",
        "inputSchema": {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]},
        "annotations": READ_ONLY,
    },
]


def send(**message: Any) -> None:
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
    sys.stdout.flush()


def call(name: str, params: dict[str, Any]) -> dict[str, Any]:
    """Return the result of a tool call."""
    if name == "fail":
        return {"content": [{"type": "text", "text": f"cannot use {TOKEN}"}], "isError": True}
    if name == "take":
        return {"content": [{"type": "text", "text": f"took {len(params['arguments']['text'])}"}]}
    token = params.get("_meta", {}).get("progressToken")
    if token is not None:
        progress = {"progressToken": token, "progress": 1, "total": 2, "message": f"half of {TOKEN}"}
        send(method="notifications/progress", params=progress)
    leaked = {"token": TOKEN, TOKEN: "its name", "line": " ".join(sys.argv), "mode": os.environ.get("MODE", "")}
    return {"content": [{"type": "text", "text": json.dumps(leaked)}], "structuredContent": leaked}


def answer(message: dict[str, Any]) -> None:
    """Answer a request; ignore a notification."""
    result: dict[str, Any]
    match message.get("method"):
        case "initialize":
            info = {"name": "leaky", "version": "1"}
            result = {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": info}
        case "tools/list":
            result = {"tools": TOOLS}
        case "tools/call":
            result = call(message["params"]["name"], message["params"])
        case "ping":
            result = {}
        case _:
            if "id" in message:
                send(id=message["id"], error={"code": -32601, "message": "unknown"})
            return
    send(id=message["id"], result=result)


def main() -> None:
    print(f"started with {TOKEN}", file=sys.stderr, flush=True)  # noqa: T201
    if os.environ.get("DIE"):
        sys.exit(f"dying with {TOKEN}")
    for line in sys.stdin:
        answer(json.loads(line))


if __name__ == "__main__":
    main()
