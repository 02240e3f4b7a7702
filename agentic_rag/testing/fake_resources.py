"""An MCP server over stdio whose resources and tools are those of a JSON file, which a test may change at any time.

    python -I -S fake_resources.py STATE.json LOG

It uses the standard library only, to start fast. The log gets a line for each request: its method, and the resource or
the item. Members of the state:

- ``resources``: a list of ``{"uri", "name", "mimeType", "text" or "blob", "lastModified", "etag"}``; other members are
  sent unchanged.
- ``page``: resources of one page (default 100). ``cursor``: the cursor of every page, so that the list never ends.
- ``dies``: the method, or method and uri, at which the process exits. ``hangs``: the same, without an answer.
- ``fails``: uris that are answered with an error.
- ``raw``: the whole answer to ``resources/list``.
- ``tools``: the answers to ``tools/call`` by name of the tool. The tool ``read`` returns the text of the resource whose
  uri is its argument ``id``.
"""

import json
import os
import sys
from typing import Any

STATE, LOG = (*sys.argv[1:3], "", "")[:2]
Json = dict[str, Any]
SENT = ("uri", "name", "title", "mimeType", "annotations", "_meta")


def state() -> Json:
    """Return the present content of the file."""
    with open(STATE, encoding="utf-8") as file:
        content: Json = json.load(file)
    return content


def note(line: str) -> None:
    """Append a line to the log."""
    with open(LOG, "a", encoding="utf-8") as file:
        file.write(line + "\n")


def put(message: Json) -> None:
    """Send a message."""
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
    sys.stdout.flush()


def describe(resource: Any) -> Any:
    """Return a resource as a list has it."""
    if not isinstance(resource, dict):
        return resource
    shown = {name: resource[name] for name in SENT if name in resource}
    if "lastModified" in resource:
        shown["annotations"] = {"lastModified": resource["lastModified"]}
    if "etag" in resource:
        shown["_meta"] = {"etag": resource["etag"]}
    return shown


def list_resources(now: Json, cursor: str) -> Json:
    """Return one page of the resources."""
    if "raw" in now:
        return dict(now["raw"])
    size, start = now.get("page", 100), 0 if "cursor" in now else int(cursor or 0)
    resources = now.get("resources", [])
    answer: Json = {"resources": [describe(resource) for resource in resources[start : start + size]]}
    if "cursor" in now:
        answer["nextCursor"] = now["cursor"]
    elif start + size < len(resources):
        answer["nextCursor"] = str(start + size)
    return answer


def read(now: Json, uri: str) -> Json | None:
    """Return the content of a resource, or None if there is none."""
    matching = [
        resource for resource in now.get("resources", []) if isinstance(resource, dict) and resource.get("uri") == uri
    ]
    if not matching or uri in now.get("fails", ()):
        return None
    parts = {name: matching[-1][name] for name in ("mimeType", "text", "blob") if name in matching[-1]}
    return {"contents": [{"uri": uri, **parts}]}


def call(now: Json, name: str, arguments: Json) -> Json:
    """Return the result of a tool."""
    if name == "read":
        content = read(now, str(arguments.get("id")))
        if content is None:
            return {"content": [{"type": "text", "text": "there is no such item"}], "isError": True}
        return {"content": [{"type": "text", "text": content["contents"][0].get("text", "")}]}
    result: Json = now["tools"][name]
    return result


def answer(message: Json) -> None:
    """Answer a request."""
    method, ident, params = message.get("method", ""), message.get("id"), message.get("params") or {}
    if ident is None:
        return
    now = state()
    place = f"{method} {params.get('uri') or params.get('name') or params.get('cursor') or ''}".strip()
    note(place)
    if now.get("dies") in (method, place):
        os._exit(1)
    if now.get("hangs") in (method, place):
        return
    result: Json | None
    if method == "initialize":
        capabilities: Json = {"resources": {}, "tools": {}}
        server = {"name": "fake-resources", "version": "1"}
        result = {"protocolVersion": "2025-06-18", "capabilities": capabilities, "serverInfo": server}
    elif method == "tools/list":
        tools = [*now.get("tools", {}), "read"]
        result = {"tools": [{"name": name, "inputSchema": {"type": "object"}} for name in tools]}
    elif method == "resources/list":
        result = list_resources(now, params.get("cursor") or "")
    elif method == "resources/read":
        result = read(now, params.get("uri", ""))
    elif method == "tools/call":
        result = call(now, params["name"], params.get("arguments") or {})
    else:
        result = {} if method == "ping" else None
    if result is None:
        code = -32002 if method == "resources/read" else -32601
        put({"id": ident, "error": {"code": code, "message": "not found"}})
    else:
        put({"id": ident, "result": result})


if __name__ == "__main__":
    for line in sys.stdin:
        if line.strip():
            answer(json.loads(line))
