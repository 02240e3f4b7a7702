// Text while it streams. Complete blocks are shown as the server's HTML, and the block that is being written as plain
// text.

import { api } from "../api.js";
import { h } from "../dom.js";
import { showHtml } from "../trusted.js";
import { enrich } from "./rich.js";

const FENCE = /^ {0,3}(`{3,}|~{3,})/;
const LIST_OR_INDENTED = /^(?:\s{2,}|\t| {0,3}(?:[-*+]|\d{1,9}[.)])\s| {0,3}>| {0,3}\|)/;

const NEW_BLOCK = /^[^\s\d\-*+>|]/;

/** Return the end offsets of the blocks of a Markdown text that no later text can change, from an offset on. The
 * function is pure. A block ends at an empty line outside of a fence, unless its list, quote or table continues after
 * that line. */
export function closedBlocks(text, from = 0) {
  const ends = [];
  let at = from;
  let fence = null;
  let empty = -1; // the offset after the empty line that followed the block
  let began = false;
  let isOpen = false; // later lines may continue the block
  while (at < text.length) {
    const end = text.indexOf("\n", at);
    if (end < 0) {
      // Only the beginning of an incomplete line is known. If it cannot continue a list, quote or table, the block
      // before it ends here.
      if (!fence && empty >= 0 && NEW_BLOCK.test(text.slice(at))) ends.push(at);
      break;
    }
    const line = text.slice(at, end);
    const marks = FENCE.exec(line);
    if (fence) {
      if (marks && marks[1][0] === fence[0] && marks[1].length >= fence.length && !line.slice(marks[0].length).trim())
        fence = null;
    } else if (!line.trim()) {
      if (began && empty < 0) empty = end + 1;
    } else {
      if (empty >= 0 && !(isOpen && LIST_OR_INDENTED.test(line))) {
        ends.push(at);
        isOpen = false;
      }
      if (empty < 0 || ends.at(-1) === at) isOpen ||= LIST_OR_INDENTED.test(line);
      empty = -1;
      began = true;
      if (marks) fence = marks[1];
    }
    at = end + 1;
  }
  return ends;
}

const waiting = [];
let running = false;
const MOST = 30;
const MOST_CHARACTERS = 100_000;

function render(text, citations) {
  return new Promise((resolve, reject) => {
    waiting.push({ text, citations, resolve, reject });
    if (!running) run();
  });
}

async function run() {
  running = true;
  // Wait briefly, so that blocks that end at the same moment share one request.
  await new Promise((resolve) => setTimeout(resolve, 20));
  while (waiting.length) {
    let characters = 0;
    const over = waiting.findIndex(
      ({ text }, at) => at > 0 && (characters += text.length) + waiting[0].text.length > MOST_CHARACTERS,
    );
    const batch = waiting.splice(0, Math.min(MOST, over < 0 ? MOST : over));
    try {
      const texts = batch.map(({ text, citations }) => ({ text, citations }));
      const { items } = await api("POST", "/api/render", { body: { texts } });
      batch.forEach(({ resolve }, at) => resolve(items[at].html));
    } catch (error) {
      for (const { reject } of batch) reject(error);
    }
  }
  running = false;
}

const points = (text) => {
  let count = 0;
  for (const _ of text) count += 1;
  return count;
};

/** The element of a streamed text. `update(text, citations, isEnd)` draws it; `citations` are those of the reducer. */
export class GrowingText {
  constructor() {
    this.element = h("div", { class: "prose" });
    this.open = document.createTextNode("");
    this.tail = h("div", { class: "prose-part plain", dir: "auto" }, this.open);
    this.element.append(this.tail);
    this.closed = []; // {text, from, to, element, asked}; `from` and `to` count code points
    this.at = 0;
    this.atPoints = 0;
    this.text = "";
  }

  update(text, citations, isEnd) {
    if (!text.startsWith(this.text.slice(0, this.at))) this.#restart();
    this.text = text;
    const ends = closedBlocks(text, this.at);
    if (isEnd && (ends.at(-1) ?? this.at) < text.length) ends.push(text.length);
    for (const end of ends) this.#close(end);
    for (const block of this.closed) this.#mark(block, citations);
    const rest = text.slice(this.at);
    if (this.open.data !== rest) this.open.data = rest;
    this.tail.hidden = !rest.trim();
  }

  #restart() {
    for (const { element } of this.closed) element.remove();
    this.closed = [];
    this.at = this.atPoints = 0;
  }

  #close(end) {
    const text = this.text.slice(this.at, end);
    const element = h("div", { class: "prose-part plain", dir: "auto" }, text.trim());
    this.tail.before(element);
    const to = this.atPoints + points(text);
    this.closed.push({ text, from: this.atPoints, to, element, asked: null });
    this.at = end;
    this.atPoints = to;
  }

  #mark(part, citations) {
    const inside = citations
      .filter(({ to }) => to > part.from && to <= part.to)
      .map(({ number, to, documentId, documentName, chunkId }) => ({
        end: to - part.from,
        number,
        documentId,
        documentName,
        chunkId,
      }));
    const wanted = inside.map(({ end, number }) => `${end}:${number}`).join();
    if (part.asked === wanted) return;
    part.asked = wanted;
    render(part.text, inside).then(
      (html) => {
        if (part.asked !== wanted || !part.element.isConnected) return;
        part.element.classList.remove("plain");
        part.element.removeAttribute("dir"); // each block of the HTML has its own
        enrich(showHtml(part.element, html));
      },
      () => {}, // it stays plain text; the stored message will have the HTML
    );
  }
}
