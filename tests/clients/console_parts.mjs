// The pure parts of the console's pages: JSON with places, differences, networks. Reads JSON on stdin, prints results.
const { readJson, placeOf } = await import("../../agentic_rag/server/web/domain/json-source.js");
const { layOut } = await import("../../agentic_rag/server/web/roles/network-layout.js");

let text = "";
for await (const piece of process.stdin) text += piece;
const { texts, paths, recall } = JSON.parse(text);
const read = texts.map((each) => {
  const { value, error } = readJson(each);
  return { value: value === undefined ? null : value, error };
});
console.log(JSON.stringify(read));
const { places } = readJson(paths.text);
console.log(JSON.stringify(paths.asked.map((each) => placeOf(places, each))));
console.log(JSON.stringify(layOut(recall.activated, recall.edges, recall.center)));
