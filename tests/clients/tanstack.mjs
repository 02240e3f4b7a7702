// TanStack AI's adapters, over SSE and WebSocket: a drop in mid-answer, a join, an abort, a refusal.
import { fetchServerSentEvents, webSocket } from "@tanstack/ai-client";

const [address, domain] = process.argv.slice(2);
const url = `${address}/api/ag-ui/${domain}`;
const say = (value) => console.log(JSON.stringify(value));
const reconnect = { delayMs: 1 };
const asked = (text) => [{ id: `u-${text}`, role: "user", parts: [{ type: "text", content: text }] }];
const goOn = () => fetch(`${address}/go-on`, { method: "POST" });

async function hear(chunks, each = () => {}) {
  const heard = [];
  for await (const chunk of chunks) {
    heard.push(chunk);
    await each(chunk);
    if (["RUN_FINISHED", "RUN_ERROR"].includes(chunk.type)) break;
  }
  const text = heard.filter((chunk) => chunk.type === "TEXT_MESSAGE_CONTENT").map((chunk) => chunk.delta).join("");
  const last = heard.at(-1);
  return { text, kinds: heard.map((chunk) => chunk.type), outcome: last.outcome?.type, code: last.code };
}

// SSE: the first answer is cut off after its first words.
let posts = 0;
async function dropping(target, init) {
  const answer = await fetch(target, init);
  posts += 1;
  if (posts > 1) {
    await goOn();
    return answer;
  }
  const reader = answer.body.getReader();
  const body = new ReadableStream({
    async pull(controller) {
      const { value } = await reader.read();
      controller.enqueue(value);
      if (new TextDecoder().decode(value).includes("TEXT_MESSAGE_CONTENT")) {
        await reader.cancel();
        controller.error(new Error("dropped"));
      }
    },
  }, { highWaterMark: 0 });
  return new Response(body, { status: answer.status, headers: answer.headers });
}
const sse = fetchServerSentEvents(url, { fetchClient: dropping, reconnect });
const context = { threadId: "t-1", runId: "run-sse" };
say({ ...(await hear(sse.connect(asked("Slowly"), {}, undefined, context))), posts });
say(await hear(fetchServerSentEvents(url).joinRun("run-sse")));

// WebSocket: the first socket is lost after its first words.
let sockets = 0;
class Dropping extends WebSocket {
  constructor(...given) {
    super(...given);
    sockets += 1;
    if (sockets === 2) this.addEventListener("open", () => void goOn());
    if (sockets === 1) this.addEventListener("message", ({ data }) => void (data.includes("TEXT_MESSAGE_CONTENT") && this.close()));
  }
}
const ws = webSocket(url.replace("http", "ws"), { WebSocketImpl: Dropping, reconnect });
const chunks = ws.subscribe();
await ws.send(asked("Slowly again"), {}, undefined, { threadId: "t-1", runId: "run-ws" });
say({ ...(await hear(chunks)), sockets });
say(await hear(ws.joinRun("run-ws")));

const stopping = new AbortController();
const stopped = ws.subscribe();
await ws.send(asked("Stop"), {}, stopping.signal, { threadId: "t-1", runId: "run-stop" });
say(await hear(stopped, (chunk) => chunk.type === "TEXT_MESSAGE_CONTENT" && stopping.abort()));

const unknown = [];
try {
  for await (const chunk of ws.joinRun("run-nobodys")) unknown.push(chunk.code);
} catch (error) {
  unknown.push(error.name, error.cause?.message);
}
say(unknown);
process.exit(0);
