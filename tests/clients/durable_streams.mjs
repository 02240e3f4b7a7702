// The Durable Streams client, as published: `catch-up`, `drop` after some events, `resume` and tail to the end.
import { stream } from "@durable-streams/client";

const [mode, url, offset, live] = process.argv.slice(2);
const options = { url, offset, live: live === "false" ? false : live, json: true };

if (mode === "catch-up") {
  const response = await stream(options);
  const items = await response.json();
  console.log(JSON.stringify({ items, offset: response.offset, closed: response.streamClosed }));
} else {
  const response = await stream(options);
  const items = [];
  for await (const item of response.jsonStream()) {
    items.push(item);
    if (mode === "drop") break;
  }
  console.log(JSON.stringify({ items, offset: response.offset }));
}
process.exit(0);
