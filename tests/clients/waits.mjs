// Waits with @ag-ui/client and the AI SDK. Argument 3: a file of {runs, whole, streams}: recorded AG-UI runs of one turn
// that waits, the same turn without a wait that is open, and recorded UI message streams of one message.
import { readFileSync } from "node:fs";
import { AbstractAgent, HttpAgent } from "@ag-ui/client";
import {
  AbstractChat,
  DefaultChatTransport,
  lastAssistantMessageIsCompleteWithApprovalResponses,
  readUIMessageStream,
  uiMessageChunkSchema,
} from "ai";
import { asSchema } from "@ai-sdk/provider-utils";
import { from } from "rxjs";

const [address, domain, recorded] = process.argv.slice(2);
const say = (value) => console.log(JSON.stringify(value));
const warnings = [];
console.warn = (...words) => warnings.push(words.join(" "));
console.error = () => {};
const { runs, whole, streams } = JSON.parse(readFileSync(recorded, "utf8"));
const question = (content, id = `u-${content}`) => ({ id, role: "user", content });

class Recorded extends AbstractAgent {
  constructor(told) {
    super({ initialMessages: [{ id: "m", role: "user", content: "Hi" }] });
    this.told = [...told];
  }
  run() {
    return from(this.told.shift());
  }
}

async function run(agent, runId, resume) {
  const heard = { error: null, outcome: null, interrupts: null };
  const subscriber = {
    onRunFinishedEvent: ({ outcome, interrupts }) => void Object.assign(heard, { outcome, interrupts }),
  };
  try {
    await agent.runAgent({ runId, resume }, subscriber);
  } catch (error) {
    heard.error = error.message;
    heard.payload = error.payload;
  }
  return heard;
}

const agent = new Recorded(runs);
const outcomes = [];
for (let at = 0; at < runs.length; at++) {
  const resume = agent.pendingInterrupts.map(({ id }) => ({ interruptId: id, status: "cancelled" }));
  outcomes.push(await run(agent, `run-${at}`, resume.length ? resume : undefined));
}
const uncut = new Recorded([whole]);
say({ outcomes, messages: agent.messages, whole: [await run(uncut, "run-0"), uncut.messages], warnings });

const live = new HttpAgent({ url: `${address}/api/ag-ui/${domain}`, threadId: "w", initialMessages: [question("Hi")] });
const asked = await run(live, "w-1");
const [interrupt] = live.pendingInterrupts;
const edited = structuredClone(interrupt.metadata.arguments);
edited.engrams[0].content = "Ann likes coffee.";
const resume = [{ interruptId: interrupt.id, status: "resolved", payload: { arguments: edited } }];
say({ asked, answered: await run(live, "w-2", resume), messages: live.messages, warnings });

const schema = asSchema(uiMessageChunkSchema);
let message;
const states = [];
for (const chunks of streams) {
  for (const chunk of chunks) {
    const checked = await schema.validate(chunk);
    if (!checked.success) throw checked.error;
  }
  const stream = from(chunks);
  const readable = new ReadableStream({
    start(controller) {
      stream.forEach((chunk) => controller.enqueue(chunk)).then(() => controller.close());
    },
  });
  const onError = (error) => states.push(error.message);
  for await (const each of readUIMessageStream({ message, stream: readable, onError })) message = each;
  states.push(message.parts.filter((part) => part.type === "dynamic-tool").map((part) => part.state));
}
say({ states, message });

class State {
  status = "ready";
  error = undefined;
  messages = [];
  pushMessage = (message) => void (this.messages = [...this.messages, message]);
  popMessage = () => void (this.messages = this.messages.slice(0, -1));
  replaceMessage = (at, message) => void (this.messages = this.messages.with(at, message));
  snapshot = (value) => structuredClone(value);
}

class Chat extends AbstractChat {
  constructor(id) {
    const transport = new DefaultChatTransport({ api: `${address}/api/ui-message/${domain}` });
    super({ id, state: new State(), transport, sendAutomaticallyWhen: lastAssistantMessageIsCompleteWithApprovalResponses });
  }
  tool = () => this.lastMessage.parts.findLast((part) => part.type === "dynamic-tool");
}

async function until(condition) {
  const end = Date.now() + 20_000;
  while (!condition()) {
    if (Date.now() > end) throw new Error(`this never came: ${condition}`);
    await new Promise((resolve) => setImmediate(resolve));
  }
}

const chat = new Chat("waits");
await chat.sendMessage({ text: "Remember." });
const before = structuredClone(chat.lastMessage);
const { approval } = chat.tool();
const changed = structuredClone(chat.lastMessage);
changed.parts.find((part) => part.type === "dynamic-tool").input.engrams[0].content = "Ann likes coffee.";
chat.messages = [...chat.messages.slice(0, -1), changed];
await chat.addToolApprovalResponse({ id: approval.id, approved: true });
await until(() => chat.status !== "submitted" && chat.status !== "streaming" && chat.tool().output);
say({ before, after: chat.lastMessage, error: chat.error?.message });

await chat.sendMessage({ text: "Again." });
await chat.addToolApprovalResponse({ id: chat.tool().approval.id, approved: false, reason: "not that" });
await until(() => chat.status === "ready" && chat.lastMessage.parts.at(-1).text);
say({ declined: chat.lastMessage, count: chat.messages.length });
