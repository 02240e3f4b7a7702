"""A server with given raw answers: ``TOOLS`` and ``RESULT`` of the environment, as JSON, not checked by any library.

``TOOLS`` is the list of tools, or an object with the whole results of ``tools/list`` by cursor.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any


def send(message: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


tools = json.loads(os.environ.get("TOOLS", "[]"))
if path := os.environ.get("RESULT_FILE"):
    os.environ["RESULT"] = Path(path).read_text()
result = json.loads(os.environ.get("RESULT", '{"content": [{"type": "text", "text": "ok"}]}'))

for line in sys.stdin:
    message = json.loads(line)
    ident, method, params = message.get("id"), message.get("method"), message.get("params") or {}
    if method == "initialize":
        about = {"capabilities": {"tools": {}}, "serverInfo": {"name": "case", "version": "1"}}
        send({"jsonrpc": "2.0", "id": ident, "result": {"protocolVersion": params["protocolVersion"], **about}})
    elif method == "tools/list":
        page = tools[params.get("cursor", "")] if isinstance(tools, dict) else {"tools": tools}
        send({"jsonrpc": "2.0", "id": ident, "result": page})
    elif method == "tools/call":
        # besides the result, the received arguments, so that a test can check them
        echo = {"type": "text", "text": "got " + json.dumps(params.get("arguments"), ensure_ascii=False)}
        shown = result if result != "echo" else {"content": [echo]}
        send({"jsonrpc": "2.0", "id": ident, "result": shown})
    elif ident is not None:
        send({"jsonrpc": "2.0", "id": ident, "error": {"code": -32601, "message": "no"}})
