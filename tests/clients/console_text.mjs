// Where the blocks of a growing Markdown text end: whatever follows, what was closed once stays.

import { readFileSync } from "node:fs";

const source = readFileSync(new URL("../../agentic_rag/server/web/chat/text.js", import.meta.url), "utf8");
const pure = source.slice(source.indexOf("const FENCE"), source.indexOf("const waiting"));
const { closedBlocks } = await import(`data:text/javascript,${encodeURIComponent(pure)}`);

for (const text of JSON.parse(readFileSync(0, "utf8"))) {
  const whole = closedBlocks(text);
  const grown = [];
  let at = 0;
  for (let end = 0; end <= text.length; end += 1) {
    for (const each of closedBlocks(text.slice(0, end), at)) {
      grown.push(each);
      at = each;
    }
  }
  let from = 0;
  const blocks = [...whole, text.length].map((to) => text.slice(from, (from = to)));
  console.log(JSON.stringify({ blocks, same: JSON.stringify(grown) === JSON.stringify(whole) }));
}
