"""An MCP server over stdio whose only tool returns the trace of its call. It uses no library, to start fast."""

import json
import sys

TOOL = {
    "name": "show_trace",
    "description": "Show the trace.",
    "inputSchema": {"type": "object", "properties": {}},
    "annotations": {"readOnlyHint": True},
}

for line in sys.stdin:
    request = json.loads(line)
    method, params = request.get("method"), request.get("params", {})
    if "id" not in request:
        continue
    answer: dict[str, object]
    if method == "initialize":
        info = {"name": "meta", "version": "1"}
        answer = {"protocolVersion": params["protocolVersion"], "capabilities": {"tools": {}}, "serverInfo": info}
    elif method == "tools/list":
        answer = {"tools": [TOOL]}
    elif method == "tools/call":
        trace = params.get("_meta", {}).get("traceparent", "none")
        answer = {"content": [{"type": "text", "text": f"called with {trace}"}]}
    else:
        error = {"code": -32601, "message": f"no {method}"}
        print(json.dumps({"jsonrpc": "2.0", "id": request["id"], "error": error}), flush=True)  # noqa: T201
        continue
    print(json.dumps({"jsonrpc": "2.0", "id": request["id"], "result": answer}), flush=True)  # noqa: T201
