// The differences between two texts, line by line.

import { h } from "../dom.js";
import { t } from "../i18n.js";

const MOST_CELLS = 4_000_000;

/** Return the lines of both texts in order: `{kind: "same" | "less" | "more", text}`. */
function diffLines(before, after) {
  const a = before.split("\n");
  const b = after.split("\n");
  let head = 0;
  while (head < a.length && head < b.length && a[head] === b[head]) head += 1;
  let tail = 0;
  while (tail < a.length - head && tail < b.length - head && a[a.length - 1 - tail] === b[b.length - 1 - tail])
    tail += 1;
  const same = (text) => ({ kind: "same", text });
  const middle = diffMiddle(a.slice(head, a.length - tail), b.slice(head, b.length - tail));
  return [...a.slice(0, head).map(same), ...middle, ...a.slice(a.length - tail).map(same)];
}

function diffMiddle(a, b) {
  const less = (text) => ({ kind: "less", text });
  const skipped = (text) => ({ kind: "more", text });
  if (a.length * b.length > MOST_CELLS) return [...a.map(less), ...b.map(skipped)];
  const width = b.length + 1;
  const lengths = new Uint32Array((a.length + 1) * width);
  for (let i = a.length - 1; i >= 0; i -= 1) {
    for (let j = b.length - 1; j >= 0; j -= 1) {
      lengths[i * width + j] =
        a[i] === b[j]
          ? lengths[(i + 1) * width + j + 1] + 1
          : Math.max(lengths[(i + 1) * width + j], lengths[i * width + j + 1]);
    }
  }
  const lines = [];
  let [i, j] = [0, 0];
  while (i < a.length || j < b.length) {
    if (i < a.length && j < b.length && a[i] === b[j]) {
      lines.push({ kind: "same", text: a[i] });
      i += 1;
      j += 1;
    } else if (j >= b.length || (i < a.length && lengths[(i + 1) * width + j] >= lengths[i * width + j + 1]))
      lines.push(less(a[i++]));
    else lines.push(skipped(b[j++]));
  }
  return lines;
}

const SIGNS = { same: " ", less: "−", more: "+" };

/** Return an element that shows the differences between two texts. Long runs without a change are cut.
 *
 * - `before`: the old text; null if all of `after` is new.
 * - `around`: how many unchanged lines to show around a change. */
export function diffView(before, after, { around = 3 } = {}) {
  const lines = before === null ? after.split("\n").map((text) => ({ kind: "more", text })) : diffLines(before, after);
  const near = lines.map((_, at) =>
    lines.slice(Math.max(0, at - around), at + around + 1).some((line) => line.kind !== "same"),
  );
  const shown = [];
  lines.forEach((line, at) => {
    if (near[at]) shown.push(lineView(line));
    else if (at === 0 || near[at - 1]) shown.push(h("div", { class: "diff-cut" }, "⋯"));
  });
  if (!near.includes(true)) return h("p", { class: "soft" }, t("domain.noDifference"));
  return h("div", { class: "diff mono", tabindex: 0, role: "group", "aria-label": t("domain.difference") }, shown);
}

const KIND_OF = { " ": "same", "-": "less", "+": "more" };

/** Return an element that shows a unified diff from the server. A line without a sign is a note of the server, for
 * example that the rest was left out. */
export function unifiedView(text) {
  const shown = text.split("\n").map((line) => {
    const kind = KIND_OF[line[0]];
    if (kind) return lineView({ kind, text: line.slice(1) });
    return h("div", { class: "diff-cut" }, line.startsWith("@@") ? "⋯" : line);
  });
  return h("div", { class: "diff mono", tabindex: 0, role: "group", "aria-label": t("domain.difference") }, shown);
}

function lineView({ kind, text }) {
  const line = h("span", { class: "diff-text" }, text || " ");
  const content = kind === "same" ? line : h(kind === "less" ? "del" : "ins", {}, line);
  return h(
    "div",
    { class: `diff-line diff-${kind}` },
    h("span", { class: "diff-sign", "aria-hidden": "true" }, SIGNS[kind]),
    content,
  );
}
