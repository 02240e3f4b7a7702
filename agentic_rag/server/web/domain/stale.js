// The list of documents that need a review. Documents that answers cite most often come first.

import { api } from "../api.js";
import { h } from "../dom.js";
import { formatDate, formatNumber, t } from "../i18n.js";
import { badge, emptyState, loadInto, openDialog } from "../ui.js";

/** Open the list in a dialog.
 *
 * - `find(id)`: returns the document with an id.
 * - `open(document)`: shows a document. */
export function openStale(domainId, find, open) {
  const list = h("div", {});
  const dialog = openDialog(t("documents.stale"), {
    side: true,
    build: () => [h("p", { class: "soft" }, t("documents.staleHint")), list],
  });
  const load = () => api("GET", `/api/domains/${encodeURIComponent(domainId)}/stale-documents`);
  loadInto(list, load, ({ items }) =>
    items.length
      ? h(
          "ol",
          { class: "rows" },
          items.map((entry) => row(entry, find, open)),
        )
      : emptyState(t("documents.noStale"), "", { icon: "page" }),
  );
  return dialog;
}

function row(entry, find, open) {
  const document = find(entry.documentId);
  const facts = [
    t("documents.citedTimes", { count: entry.citations }),
    t("documents.datedOn", { date: formatDate(entry.date, { time: false }) }),
    entry.reviewBy && t("documents.reviewDue", { date: formatDate(entry.reviewBy, { time: false }) }),
    entry.newerName && t("documents.newerVersion", { name: entry.newerName }),
  ].filter(Boolean);
  const name = h(
    "button",
    { type: "button", class: "row-name", dir: "auto", disabled: !document, onclick: () => open(document) },
    entry.documentName,
  );
  return h(
    "li",
    { class: "rows-item" },
    h(
      "div",
      { class: "grow" },
      name,
      h(
        "div",
        { class: "faint small fact-line" },
        facts.map((fact) => h("span", {}, fact)),
      ),
    ),
    h(
      "div",
      { class: "rows-end" },
      badge(t(`documents.reason.${entry.reason}`), "wait"),
      h("span", { class: "visually-hidden" }, formatNumber(entry.citations)),
    ),
  );
}
