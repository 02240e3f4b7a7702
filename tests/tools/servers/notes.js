// An MCP server in one file without packages: one tool, `greet`, and what it sees of files beside itself.
const fs = require("fs");
const path = require("path");

const answer = (id, result) => process.stdout.write(JSON.stringify({ jsonrpc: "2.0", id, result }) + "\n");
const tool = { name: "greet", description: "Greets.", annotations: { readOnlyHint: true }, inputSchema: { type: "object", properties: { name: { type: "string" } } } };

function call(params) {
  const beside = fs.readdirSync(path.dirname(fs.realpathSync(__filename))).sort().join(" ");
  const given = process.argv.slice(2).join(" ");
  return `Hello ${params.arguments.name}! args: ${given} beside: ${beside} key: ${process.env.NOTES_KEY || "none"}`;
}

let pending = "";
process.stdin.on("data", (piece) => {
  pending += piece;
  const lines = pending.split("\n");
  pending = lines.pop();
  for (const line of lines.filter(Boolean)) {
    const { id, method, params } = JSON.parse(line);
    if (method === "initialize") {
      const version = params.protocolVersion;
      answer(id, { protocolVersion: version, capabilities: { tools: {} }, serverInfo: { name: "notes", version: "1" } });
    } else if (method === "tools/list") {
      answer(id, { tools: [tool] });
    } else if (method === "tools/call") {
      answer(id, { content: [{ type: "text", text: call(params) }] });
    } else if (id !== undefined) {
      process.stdout.write(JSON.stringify({ jsonrpc: "2.0", id, error: { code: -32601, message: "no" } }) + "\n");
    }
  }
});
