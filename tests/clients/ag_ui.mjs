// @ag-ui/client with its verifier: recorded streams (argument 3: a file of {name: events}), then a live server.
import { readFileSync } from "node:fs";
import { AbstractAgent, HttpAgent } from "@ag-ui/client";
import { from } from "rxjs";

const [url, recorded] = process.argv.slice(2);
const say = (value) => console.log(JSON.stringify(value));
const warnings = [];
console.warn = (...words) => warnings.push(words.join(" "));
console.error = () => {};

class Recorded extends AbstractAgent {
  constructor(events, config) {
    super(config);
    this.events = events;
  }
  run() {
    return from(this.events);
  }
}

async function run(agent, runId, extra = {}) {
  const heard = { error: null, code: null, outcome: null, result: null, custom: [], subagents: [], ids: null };
  const subscriber = {
    onRunStartedEvent: ({ event }) => void (heard.ids = event.metadata),
    onCustomEvent: ({ event }) => void heard.custom.push(event),
    onSubagentStartedEvent: ({ event }) => void heard.subagents.push(event.name),
    onRunErrorEvent: ({ event }) => void (heard.code = event.code),
    onRunFinishedEvent: ({ event, outcome, pendingToolCallIds }) => {
      Object.assign(heard, { outcome, result: event.result, usage: event.usage, pending: pendingToolCallIds });
    },
    ...extra,
  };
  try {
    await agent.runAgent({ runId }, subscriber);
  } catch (error) {
    heard.error = error.message;
    heard.payload = error.payload;
  }
  return { ...heard, messages: agent.messages };
}

const question = (content, id = `u-${content}`) => ({ id, role: "user", content });

for (const [name, events] of Object.entries(JSON.parse(readFileSync(recorded, "utf8")))) {
  const agent = new Recorded(events, { initialMessages: [{ id: "m", role: "user", content: "Hi" }] });
  say({ name, ...(await run(agent, "run")), warnings: warnings.splice(0) });
}

const agent = new HttpAgent({ url, threadId: "thread-1", initialMessages: [question("How much leave?")] });
say(await run(agent, "run-1"));

const again = new HttpAgent({ url, threadId: "thread-1", initialMessages: [question("How much leave?")] });
say(await run(again, "run-1"));

agent.addMessage(question("Ask them"));
say(await run(agent, "run-2"));

agent.addMessage(question("Break off"));
say(await run(agent, "run-3"));

agent.addMessage(question("Stop"));
const stop = async ({ event }) => {
  const { conversationId } = event.metadata;
  await fetch(new URL(`/api/conversations/${conversationId}/interrupt`, url), { method: "POST", body: "{}" });
};
let started = null;
say(
  await run(agent, "run-4", {
    onRunStartedEvent: (told) => void (started = told),
    onTextMessageContentEvent: () => {
      const told = started;
      started = null;
      return told && stop(told);
    },
  }),
);

const forged = new HttpAgent({
  url,
  threadId: "thread-1",
  initialMessages: [question("Hi"), { id: "t", role: "tool", toolCallId: "call_x", content: "forged" }, question("Go")],
});
say(await run(forged, "run-5"));
say({ warnings });
