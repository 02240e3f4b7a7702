"""An MCP server whose calls run as tasks (SEP-2663), with raw messages over stdio. It uses the standard library only.

Tasks are files in its home, so they outlive its process. It follows the specification to the letter: no task for a
client that did not declare the extension on its request, and no method of tasks without a known id. `CALLS` explains
the tools.
"""

import json
import os
import sys
import uuid
from pathlib import Path
from typing import Any

EXTENSION = "io.modelcontextprotocol/tasks"
CAPABILITIES = "io.modelcontextprotocol/clientCapabilities"
CALLS = {
    "build": "done after `polls` questions about the task",
    "outlast": "done once another process of this server is asked",
    "lose": "the same, and the first process ends at the first question",
    "form": "asks for a name, and then for a colour",
    "break": "fails with an error of the protocol",
    "never": "works until it is cancelled",
    "nameless": "a task without an id",
    "report": "answers directly: which tools were called, and which tasks were cancelled",
}
NAME = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
HOME = Path(os.environ.get("HOME", "."))


def put(message: dict[str, Any]) -> None:
    sys.stdout.buffer.write(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")
    sys.stdout.buffer.flush()


def refuse(ident: object, code: int, message: str) -> None:
    put({"id": ident, "error": {"code": code, "message": message}})


def complete(ident: object, **result: Any) -> None:
    put({"id": ident, "result": {"resultType": "complete", **result}})


def text(value: object) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": json.dumps(value)}]}


def note(name: str, line: str) -> None:
    with (HOME / name).open("a") as file:
        file.write(f"{line}\n")


def lines(name: str) -> list[str]:
    return (HOME / name).read_text().split() if (HOME / name).exists() else []


def save(task: dict[str, Any]) -> None:
    (HOME / f"{task['id']}.json").write_text(json.dumps(task))


def describe(task: dict[str, Any]) -> dict[str, Any]:
    """Return the state of a task as `tasks/get` reports it."""
    state = {
        "taskId": task["id"],
        "status": "working",
        "statusMessage": f"step {task['polls']}",
        "createdAt": "2026-11-26T08:00:00Z",
        "lastUpdatedAt": "2026-11-26T08:00:00Z",
        "ttlMs": None,
        "pollIntervalMs": 20,
    }
    tool, answers = task["tool"], task["answers"]
    if task["cancelled"]:
        return {**state, "status": "cancelled", "statusMessage": "as you wish"}
    if tool == "break":
        return {**state, "status": "failed", "error": {"code": -32603, "message": "the belt broke"}}
    if tool == "form" and len(answers) < 2:
        field = ["name", "colour"][len(answers)]
        form = {"mode": "form", "message": f"Which {field}?", "requestedSchema": NAME}
        return {
            **state,
            "status": "input_required",
            "inputRequests": {field: {"method": "elicitation/create", "params": form}},
        }
    is_other_process = task["pid"] != os.getpid()
    if (
        tool == "form"
        or (tool in ("outlast", "lose") and is_other_process)
        or (tool == "build" and task["polls"] >= task["most"])
    ):
        return {**state, "status": "completed", "result": text({"built by": lines("calls"), "answers": answers})}
    return state


def call(ident: object, params: dict[str, Any]) -> None:
    name, arguments = params["name"], params.get("arguments") or {}
    if name == "report":
        complete(ident, **text({"calls": lines("calls"), "cancelled": lines("cancelled")}))
        return
    declared = ((params.get("_meta") or {}).get(CAPABILITIES) or {}).get("extensions") or {}
    if EXTENSION not in declared:
        refuse(ident, -32021, "Missing required client capability")
        return
    note("calls", name)
    task = {
        "id": uuid.uuid4().hex,
        "tool": name,
        "pid": os.getpid(),
        "polls": 0,
        "most": arguments.get("polls", 0),
        "answers": {},
        "cancelled": False,
    }
    save(task)
    state = describe({**task, "tool": "never"})
    put({"id": ident, "result": {**state, "resultType": "task", **({"taskId": ""} if name == "nameless" else {})}})


def of_task(ident: object, method: str, params: dict[str, Any]) -> None:
    path = HOME / f"{params.get('taskId')}.json"
    if not path.exists():
        refuse(ident, -32602, "there is no such task")
        return
    task = json.loads(path.read_text())
    if method == "tasks/cancel":
        task["cancelled"] = True
        note("cancelled", task["tool"])
    elif method == "tasks/update":
        task["answers"] |= params["inputResponses"]
    else:
        task["polls"] += 1
    save(task)
    if method == "tasks/get" and task["tool"] == "lose" and task["pid"] == os.getpid():
        sys.exit()
    complete(ident, **(describe(task) if method == "tasks/get" else {}))


def handle(message: dict[str, Any]) -> None:
    ident, method, params = message.get("id"), message.get("method"), message.get("params") or {}
    cache_fields = {"ttlMs": 0, "cacheScope": "private"}
    if method == "server/discover":
        info = {"name": "tasks", "version": "1"}
        capabilities: dict[str, Any] = {"tools": {}, "extensions": {EXTENSION: {}}}
        complete(ident, supportedVersions=["2026-07-28"], capabilities=capabilities, serverInfo=info, **cache_fields)
    elif method == "tools/list":
        hint = {"readOnlyHint": True}  # a single user's server runs them unasked
        if len(sys.argv) > 1 and sys.argv[1] == "effects":
            hint = {"readOnlyHint": False}
        tools = [{"name": name, "inputSchema": {"type": "object"}, "annotations": hint} for name in CALLS]
        complete(ident, tools=tools, **cache_fields)
    elif method == "tools/call":
        call(ident, params)
    elif method in ("tasks/get", "tasks/update", "tasks/cancel"):
        of_task(ident, method, params)
    elif ident is not None:
        refuse(ident, -32601, "unknown")


if __name__ == "__main__":
    for line in sys.stdin:
        handle(json.loads(line))
