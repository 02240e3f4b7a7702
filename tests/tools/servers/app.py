"""An MCP server over stdio with an app (SEP-1865): tool ``chart`` names a page, and ``refresh`` is for the page alone.

``report`` is for models alone, ``slow`` never ends until it is cancelled, and ``big`` answers with too much. Plain
JSON-RPC without a library. The page tries what an app must not reach, and shows what came of it.
"""

import json
import sys
from typing import Any

URI = "ui://charts/page"
PAGE = """<!doctype html>
<html><head><meta charset="utf-8"></head><body>
<p id="input"></p><p id="result"></p><p id="reached"></p><p id="tools"></p><p id="data"></p><p id="refused"></p>
<p id="theme"></p>
<p id="said"></p>
<button id="message">Message</button><button id="link">Link</button><button id="script">Script</button>
<script>
let last = 0;
const waiting = new Map();
const ask = (method, params) => new Promise((done, fail) => {
  waiting.set(++last, [done, fail]);
  parent.postMessage({ jsonrpc: "2.0", id: last, method, params }, "*");
});
const note = (method, params) => parent.postMessage({ jsonrpc: "2.0", method, params }, "*");
const show = (id, text) => { document.getElementById(id).textContent = text; };
addEventListener("message", ({ source, data }) => {
  if (source !== parent) return;
  if (data.method === "ui/notifications/host-context-changed") show("theme", data.params.theme);
  if (data.method === "ui/resource-teardown") parent.postMessage({ jsonrpc: "2.0", id: data.id, result: {} }, "*");
  if (data.method === "ui/notifications/tool-input") show("input", data.params.arguments.title);
  if (data.method === "ui/notifications/tool-result") show("result", JSON.stringify(data.params));
  const [done, fail] = waiting.get(data.id) ?? [];
  if (data.result && done) done(data.result);
  if (data.error && fail) fail(new Error(data.error.message));
});
const blocked = [];
const attempt = async (name, act) => {
  try { await act(); blocked.push(name + " works"); } catch { blocked.push(name); }
};
(async () => {
  const about = { appInfo: { name: "chart", version: "1" }, appCapabilities: {} };
  const { hostContext } = await ask("ui/initialize", { protocolVersion: "2026-01-26", ...about });
  note("ui/notifications/initialized", {});
  note("ui/notifications/size-changed", { width: 300, height: 333 });
  await attempt("parent", () => parent.document.title);
  await attempt("storage", () => localStorage.getItem("a"));
  await attempt("network", () => fetch(location.href));
  show("reached", blocked.join(" ") + " " + hostContext.displayMode);
  ask("resources/read", { uri: "data://points" }).then(({ contents }) => show("data", contents[0].text));
  ask("tools/call", { name: "report", arguments: {} }).catch((error) => show("refused", error.message));
  const call = ask("tools/call", { name: "refresh", arguments: { title: "Rest" } });
  await call.then(({ content }) => show("tools", content[0].text), (error) => show("tools", error.message));
})();
const onClick = (id, method, params) => {
  document.getElementById(id).onclick = () =>
    ask(method, params).then(() => show("said", "agreed"), (error) => show("said", error.message));
};
const text = { type: "text", text: "Show the <b>next</b> quarter" };
onClick("message", "ui/message", { role: "user", content: [text] });
onClick("link", "ui/open-link", { url: "https://example.com/report" });
onClick("script", "ui/open-link", { url: "javascript:alert(1)" });
</script></body></html>
"""
SCHEMA = {"type": "object", "properties": {"title": {"type": "string"}}}
TOOLS = [
    {"name": "chart", "description": "Draws a chart.", "inputSchema": SCHEMA, "_meta": {"ui": {"resourceUri": URI}}},
    {
        "name": "refresh",
        "description": "Refreshes the page.",
        "inputSchema": SCHEMA,
        "_meta": {"ui": {"resourceUri": URI, "visibility": ["app"]}},
    },
    {
        "name": "report",
        "description": "Is for models.",
        "inputSchema": SCHEMA,
        "_meta": {"ui": {"resourceUri": URI, "visibility": ["model"]}},
    },
    {"name": "slow", "description": "Ends when it is cancelled.", "inputSchema": SCHEMA},
    {"name": "big", "description": "Answers with too much.", "inputSchema": SCHEMA},
    {"name": "cancelled", "description": "Counts cancelled calls.", "inputSchema": SCHEMA},
    {"name": "plain", "description": "Has no app.", "inputSchema": SCHEMA},
]
cancelled = 0


def answer(method: str, params: dict[str, Any]) -> Any:
    """Return the result of a request, or None for a method that the server does not have."""
    match method:
        case "initialize":
            shows_apps = "io.modelcontextprotocol/ui" in (params.get("capabilities", {}).get("extensions") or {})
            server_info = {"name": "charts", "version": "1", "title": f"apps: {shows_apps}"}
            capabilities: dict[str, Any] = {"tools": {}, "resources": {}}
            return {
                "protocolVersion": params["protocolVersion"],
                "serverInfo": server_info,
                "capabilities": capabilities,
            }
        case "tools/list":
            return {"tools": TOOLS}
        case "tools/call":
            text = f"Chart of {params['arguments'].get('title')}"
            if params["name"] == "big":
                text = "x" * 4_100_000
            if params["name"] == "cancelled":
                text = str(cancelled)
            content = {"content": [{"type": "text", "text": text}], "structuredContent": {"points": [1, 2]}}
            return {**content, "_meta": {"unit": "EUR"}}
        case "resources/read" if params["uri"] == "data://points":
            return {"contents": [{"uri": params["uri"], "mimeType": "text/csv", "text": "a,b"}]}
        case "resources/read":
            page = {"uri": params["uri"], "mimeType": "text/html;profile=mcp-app", "text": PAGE}
            return {"contents": [page]}
        case "ping":
            return {}
    return None


def main() -> None:
    """Answer one request a line."""
    for line in sys.stdin:
        request = json.loads(line)
        if request["method"] == "notifications/cancelled":
            globals()["cancelled"] += 1
        if "id" not in request or request.get("params", {}).get("name") == "slow":
            continue
        result = answer(request["method"], request.get("params") or {})
        body = {"result": result} if result is not None else {"error": {"code": -32601, "message": "unknown method"}}
        sys.stdout.write(json.dumps({"jsonrpc": "2.0", "id": request["id"], **body}) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
