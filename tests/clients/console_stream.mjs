// The console's own module for turns: what it makes of events, in order, twice, cut off, and where blocks of text end.
//
// Reads one JSON value from stdin: {events, cut}; prints one line for each check.

import { readFileSync } from "node:fs";

import { emptyTurn, reduce, Stream, textOf } from "../../agentic_rag/server/web/stream.js";

const { turns } = JSON.parse(readFileSync(0, "utf8"));
const say = (value) => console.log(JSON.stringify(value));
const freeze = (value) => {
  if (value && typeof value === "object" && !Object.isFrozen(value)) {
    Object.freeze(value);
    Object.values(value).forEach(freeze);
  }
  return value;
};
const seen = (view) => ({ text: textOf(view), status: view.status, items: view.items, lanes: view.lanes, waits: view.waits, references: view.references, usage: view.usage, error: view.error, resumed: view.resumed });

// Pure: frozen views and events are enough; events that come twice change nothing.
for (const events of turns) {
  let once = freeze(emptyTurn());
  let twice = emptyTurn();
  for (const [at, event] of events.entries()) {
    once = freeze(reduce(once, freeze(event)));
    twice = reduce(twice, event);
    for (const earlier of events.slice(Math.max(0, at - 3), at + 1)) twice = reduce(twice, earlier);
  }
  if (JSON.stringify(seen(once)) !== JSON.stringify(seen(twice))) throw new Error("events that came twice were counted");
  say(seen(once));
}

// The connection: a socket that dies after each frame, and a server that keeps the log.
const [log] = turns;
const conversationId = log[0].conversationId;
const subscribed = [];
class Dying {
  constructor() {
    this.readyState = 0;
    queueMicrotask(() => ((this.readyState = 1), this.onopen()));
  }

  send(text) {
    const frame = JSON.parse(text);
    if (frame.type !== "subscribe") return;
    subscribed.push(frame.after ?? null);
    const next = log.filter((event) => event.seq > (frame.after ?? 0)).slice(0, 3);
    queueMicrotask(() => {
      for (const event of next) this.onmessage?.({ data: JSON.stringify(event) });
      this.onmessage?.({ data: JSON.stringify(next.at(-1) ?? { type: "pong" }) }); // and the last one again
      this.readyState = 3;
      this.onclose?.();
    });
  }

  close() {}
}
const heard = [];
const shortly = globalThis.setTimeout;
globalThis.setTimeout = (call, _, ...values) => shortly(call, 0, ...values); // it waits longer each time it is lost
await new Promise((resolve) => {
  const stream = new Stream({
    url: "ws://test",
    protocols: async () => ["agentic-rag.native"],
    Socket: Dying,
    onEvent(event) {
      heard.push(event.seq);
      if (event.seq === log.at(-1).seq) resolve(stream.close());
    },
  });
  stream.follow(conversationId);
});
say({ heard, subscribed });
