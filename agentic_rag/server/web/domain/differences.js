// Views of the differences that the server reports (of values by path and of texts by line), and links to a history.

import { h } from "../dom.js";
import { t } from "../i18n.js";
import { table } from "../ui.js";
import { unifiedView } from "./lines-diff.js";

const LONG = 200;

/** Return the address of the history of one item. `subject`: the name of the item in the API. */
export const historyOf = (domainId, kind, subject) =>
  ["#/domains", ...[domainId, "history", kind, subject].map(encodeURIComponent)].join("/");

/** Return the view of a difference.
 *
 * - `changes`: a list of `{path, before, after}`.
 * - `lines`: a unified diff of texts. */
export function differenceView({ changes = [], lines }) {
  if (lines) return unifiedView(lines);
  if (!changes.length) return h("p", { class: "soft" }, t("domain.noDifference"));
  const columns = [
    { label: t("domain.changeAt"), cell: ({ path }) => h("span", { class: "mono wrap" }, path || "—") },
    { label: t("domain.before"), cell: ({ path, before }) => valueView(before, `${t("domain.before")}: ${path}`) },
    { label: t("domain.after"), cell: ({ path, after }) => valueView(after, `${t("domain.after")}: ${path}`) },
  ];
  return table(t("domain.difference"), columns, changes);
}

/** Return the view of a value. A long value scrolls in its cell and can be focused, so that the keyboard scrolls it. */
function valueView(value, label) {
  if (value === null || value === undefined) return h("span", { class: "faint" }, "—");
  const text = typeof value === "string" && value ? value : JSON.stringify(value, null, 2);
  const long = text.length > LONG && { tabindex: 0, role: "group", "aria-label": label };
  return h("div", { class: `value-text mono small ${long ? "value-long" : ""}`, dir: "auto", ...long }, text);
}
