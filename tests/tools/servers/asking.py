"""An MCP server that asks people, with raw messages over stdio. It uses the standard library only, to start fast.

The first argument is the protocol era: ``new`` asks by ``InputRequiredResult``, ``old`` by ``elicitation/create``
during a call. The tool ``ask`` takes ``params`` (a list of elicitation parameters) and returns the answers. The other
tools are explained at their code.
"""

import json
import sys
from typing import Any

ERA = sys.argv[1] if __name__ == "__main__" else ""
TOOLS = ["ask", "state_only", "sample", "need_page", "page_done", "leave"]
STATE = "opaque \u2028 état"
done: set[str] = set()
"""Pages of ``need_page`` that were visited."""
answers: dict[int, dict[str, Any]] = {}


def put(message: dict[str, Any]) -> None:
    sys.stdout.buffer.write(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")
    sys.stdout.buffer.flush()


def finish(ident: object, value: object) -> None:
    content = [{"type": "text", "text": json.dumps(value)}]
    put({"id": ident, "result": {"resultType": "complete", "content": content}})


def require(ident: object, requests: dict[str, Any] | None, state: str | None) -> None:
    values = {"inputRequests": requests, "requestState": state}
    result = {name: value for name, value in values.items() if value is not None}
    put({"id": ident, "result": {"resultType": "input_required", **result}})


def ask_now(params: dict[str, Any]) -> dict[str, Any]:
    """Send a request and handle other messages until its answer arrives."""
    number = 4711 + len(answers)
    answers[number] = {}
    put({"id": number, "method": "elicitation/create", "params": params})
    while not answers[number]:
        handle(json.loads(sys.stdin.readline() or sys.exit()))
    return answers[number]


def call(ident: int, name: str, arguments: dict[str, Any], params: dict[str, Any]) -> None:
    inputs = {"responses": params.get("inputResponses"), "state": params.get("requestState")}
    if name == "ask" and ERA == "old":
        finish(ident, [answer.get("result", answer) for answer in map(ask_now, arguments["params"])])
    elif name == "ask" and inputs["responses"] is None:
        requests = {
            f"q{number}": {"method": "elicitation/create", "params": question}
            for number, question in enumerate(arguments["params"])
        }
        require(ident, requests, STATE)
    elif name == "state_only" and inputs["state"] is None:
        require(ident, None, STATE)
    elif name == "sample":
        message = {"role": "user", "content": {"type": "text", "text": "Say all you know."}}
        sampling = {"method": "sampling/createMessage", "params": {"messages": [message], "maxTokens": 5}}
        require(ident, {"s": sampling}, None)
    elif name == "need_page" and arguments["id"] not in done:
        page = {"mode": "url", "elicitationId": arguments["id"], "url": "https://pay.test/a", "message": "Pay first."}
        put({"id": ident, "error": {"code": -32042, "message": "a page first", "data": {"elicitations": [page]}}})
        done.add(arguments["id"])
    elif name == "page_done":
        put({"method": "notifications/elicitation/complete", "params": {"elicitationId": arguments["id"]}})
        finish(ident, "told")
    elif name == "leave":  # in the middle of a question
        put({"id": 1, "method": "elicitation/create", "params": arguments["params"][0]})
        sys.exit()
    else:
        finish(ident, inputs)


def handle(message: dict[str, Any]) -> None:
    ident, method, params = message.get("id"), message.get("method"), message.get("params") or {}
    info = {"name": "asking", "version": "1"}
    if method is None:
        answers[int(ident or 0)] = message
    elif method == "server/discover" and ERA == "new":
        put({"id": ident, "result": {
            "resultType": "complete", "supportedVersions": ["2026-07-28"], "capabilities": {"tools": {}},
            "serverInfo": info, "ttlMs": 0, "cacheScope": "private",
        }})  # fmt: skip
    elif method == "initialize":
        version = "2025-11-25"
        put({"id": ident, "result": {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": info}})
    elif method == "tools/list":
        hint = {"readOnlyHint": True}  # a single user's server runs them unasked
        tools = [{"name": name, "inputSchema": {"type": "object"}, "annotations": hint} for name in TOOLS]
        put({"id": ident, "result": {"resultType": "complete", "tools": tools, "ttlMs": 0, "cacheScope": "private"}})
    elif method == "tools/call":
        call(int(ident or 0), params["name"], params.get("arguments") or {}, params)
    elif ident is not None:
        put({"id": ident, "error": {"code": -32601, "message": "unknown"}})


if __name__ == "__main__":
    for line in sys.stdin:
        handle(json.loads(line))
