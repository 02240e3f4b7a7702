// The dialog of a document: its facts, and its passages in order, as the search finds them.

import { api } from "../api.js";
import { h } from "../dom.js";
import { errorText } from "../errors/text.js";
import { formatBytes, formatDate, t } from "../i18n.js";
import { addressOf, badge, button, field, input, loadInto, openDialog, toast } from "../ui.js";
import { labelsIn } from "./settings-fields.js";

const AT_ONCE = 50;

/** Open a document in a dialog beside the page.
 *
 * - `chunkId`: the passage to highlight.
 * - `onchange(item)`: called when the user has changed labels or dates. Without it, the dialog only shows them. */
export function openDocument(domainId, item, { chunkId, onchange } = {}) {
  const base = `/api/domains/${encodeURIComponent(domainId)}/documents/${item.id}`;
  const passages = h("div", { class: "stack" });
  const list = h("div", {}, passages);
  const facts = h("dl", { class: "facts-list" });
  const fact = (label, value) =>
    value && facts.append(h("dt", {}, label), h("dd", { class: "wrap", dir: "auto" }, value));
  fact(t("documents.size"), item.size !== undefined && formatBytes(item.size));
  fact(t("documents.added"), formatDate(item.createdAt));
  fact(t("documents.dated"), item.date && formatDate(item.date, { time: false }));
  fact(t("documents.reviewBy"), !onchange && item.reviewBy && formatDate(item.reviewBy, { time: false }));
  fact(t("documents.sourceUri"), item.sourceUri && addressOf(item.sourceUri));
  fact(t("documents.folderLabels"), item.folderLabels?.join(", "));
  fact(t("documents.languages"), item.progress?.languages?.join(", "));
  fact(t("documents.notes"), item.progress?.notes?.join(" · "));
  fact(t("documents.outline"), item.progress?.outline?.slice(0, 12).join(" · "));
  const build = () => [
    facts,
    h(
      "div",
      { class: "row" },
      h("a", { class: "button", href: `${base}/file`, download: item.name }, t("documents.download")),
    ),
    onchange && factsForm(base, item, onchange),
    list,
  ];
  const dialog = openDialog(item.name, { build, side: true });
  let offset = 0;
  const next = async () => {
    const { items, hasMore } = await api("GET", `${base}/chunks`, { query: { offset, limit: AT_ONCE } });
    offset += items.length;
    passages.append(...items.map((chunk) => passage(chunk, chunk.chunkId === chunkId)));
    list.querySelector(".chunks-more")?.remove();
    if (hasMore)
      list.append(h("div", { class: "chunks-more" }, button(t("documents.morePassages"), { onclick: next })));
    const marked = passages.querySelector(".chunk-marked");
    if (chunkId && !marked && hasMore && offset < 2000) return await next();
    marked?.scrollIntoView({ block: "center" });
    return undefined;
  };
  if (item.status === "failed") list.append(h("p", { class: "bad" }, errorText(item.error ?? {})));
  else {
    loadInto(passages, next, () => {
      const shown = [...passages.querySelectorAll(".chunk")];
      return shown.length ? shown : h("p", { class: "soft" }, t("documents.noPassages"));
    });
  }
  return dialog;
}

/** Return the form for the labels and dates of a document. */
function factsForm(base, item, onchange) {
  const labels = field(
    t("documents.labels"),
    input({ value: item.labels?.join(", ") ?? "", dir: "auto", name: "labels" }),
    { hint: t("documents.labelsHint") },
  );
  const date = field(t("documents.dated"), input({ type: "date", value: item.date ?? "", name: "date" }), {
    hint: t("documents.datedHint"),
  });
  const review = field(t("documents.reviewBy"), input({ type: "date", value: item.reviewBy ?? "", name: "reviewBy" }));
  const save = async () => {
    const body = { labels: labelsIn(labels.control.value), reviewBy: review.control.value || null };
    if (date.control.value !== (item.date ?? "")) body.date = date.control.value || null;
    try {
      const changed = await api("PATCH", base, { body });
      labels.setError("");
      toast(t("documents.factsSaved"));
      onchange(changed);
    } catch (error) {
      labels.setError(error.message);
    }
  };
  return h(
    "form",
    { class: "stack-small", onsubmit: (event) => (event.preventDefault(), save()) },
    labels,
    date,
    review,
    h("div", { class: "row" }, button(t("documents.saveFacts"), { type: "submit" })),
  );
}

/** Return badges for the labels of a document: its own labels and those of folder rules. */
export const labelBadges = (item) =>
  [...new Set([...(item.labels ?? []), ...(item.folderLabels ?? [])])].map((label) => badge(label));

/** Return the view of a passage with its place. `marked`: whether to highlight it. */
export function passage(chunk, marked = false) {
  const place = [chunk.page && t("documents.page", { page: chunk.page }), chunk.cells, ...chunk.headingPath].filter(
    Boolean,
  );
  return h(
    "article",
    { class: marked ? "chunk chunk-marked" : "chunk" },
    h(
      "header",
      { class: "small faint wrap", dir: "auto" },
      h("span", { class: "mono" }, `#${chunk.ordinal + 1}`),
      place.length > 0 && ` ${place.join(" › ")}`,
    ),
    h("p", { class: "plain", dir: "auto" }, chunk.text),
  );
}
