// The EventSource package, as published: follows a turn to its end, over as many connections as it takes.
import { EventSource } from "eventsource";

const [url, kinds, ends] = process.argv.slice(2);
const source = new EventSource(url);
const awake = setInterval(() => {}, 1_000); // the package lets node exit while it waits to connect again
let opened = 0;
source.addEventListener("open", () => opened++);
await new Promise((resolve) => {
  for (const kind of kinds.split(",")) {
    source.addEventListener(kind, ({ data, lastEventId }) => {
      if (data === undefined) return; // its own "error", of a connection
      console.log(JSON.stringify({ id: lastEventId, event: JSON.parse(data) }));
      if (ends.split(",").includes(kind)) resolve();
    });
  }
});
source.close();
console.log(JSON.stringify({ opened }));
clearInterval(awake);
