// A document as it is searched: its passages in order, with their places.

import { api } from "../api.js";
import { h } from "../dom.js";
import { errorText } from "../errors/text.js";
import { formatBytes, formatDate, t } from "../i18n.js";
import { button, loadInto, openDialog } from "../ui.js";

const AT_ONCE = 50;

/** Open a document beside the page. `chunkId`: the passage that is marked. */
export function openDocument(domainId, item, { chunkId } = {}) {
  const base = `/api/domains/${encodeURIComponent(domainId)}/documents/${item.id}`;
  const passages = h("div", { class: "stack" });
  const list = h("div", {}, passages);
  const facts = h("dl", { class: "facts-list" });
  const fact = (label, value) => value && facts.append(h("dt", {}, label), h("dd", { class: "wrap", dir: "auto" }, value));
  fact(t("documents.size"), item.size !== undefined && formatBytes(item.size));
  fact(t("documents.added"), formatDate(item.createdAt));
  fact(t("documents.dated"), item.progress?.date && formatDate(item.progress.date, { time: false }));
  fact(t("documents.languages"), item.progress?.languages?.join(", "));
  fact(t("documents.notes"), item.progress?.notes?.join(" · "));
  fact(t("documents.outline"), item.progress?.outline?.slice(0, 12).join(" · "));
  const build = () => [
    facts,
    h("div", { class: "row" }, h("a", { class: "button", href: `${base}/file`, download: item.name }, t("documents.download"))),
    list,
  ];
  const dialog = openDialog(item.name, { build, side: true });
  let offset = 0;
  const next = async () => {
    const { items, hasMore } = await api("GET", `${base}/chunks`, { query: { offset, limit: AT_ONCE } });
    offset += items.length;
    passages.append(...items.map((chunk) => passage(chunk, chunk.chunkId === chunkId)));
    list.querySelector(".chunks-more")?.remove();
    if (hasMore) list.append(h("div", { class: "chunks-more" }, button(t("documents.morePassages"), { onclick: next })));
    const marked = passages.querySelector(".chunk-marked");
    if (chunkId && !marked && hasMore && offset < 2000) return await next();
    marked?.scrollIntoView({ block: "center" });
    return undefined;
  };
  if (item.status === "failed") list.append(h("p", { class: "bad" }, errorText(item.error ?? {})));
  else {
    loadInto(passages, next, () => {
      const found = [...passages.querySelectorAll(".chunk")];
      return found.length ? found : h("p", { class: "soft" }, t("documents.noPassages"));
    });
  }
  return dialog;
}

/** A passage with its place; `marked`: it is the one that was asked for. */
export function passage(chunk, marked = false) {
  const place = [chunk.page && t("documents.page", { page: chunk.page }), chunk.cells, ...chunk.headingPath].filter(Boolean);
  return h(
    "article",
    { class: marked ? "chunk chunk-marked" : "chunk" },
    h("header", { class: "small faint wrap", dir: "auto" }, h("span", { class: "mono" }, `#${chunk.ordinal + 1}`), place.length > 0 && ` ${place.join(" › ")}`),
    h("p", { class: "plain", dir: "auto" }, chunk.text),
  );
}
