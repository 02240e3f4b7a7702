// The report of an import: the changes that it would make, or has made.

import { h } from "../dom.js";
import { t } from "../i18n.js";
import { icon } from "../icons.js";
import { badge, notice } from "../ui.js";
import { differenceView } from "./differences.js";

const ACTION_KINDS = { add: "ok", change: "wait", remove: "bad" };
const SECRET_KINDS = { set: "ok", missing: "wait", confirm: "bad" };

/** Return the view of a report: first the points that need attention, then each difference. `onleave()`: called when
 * the user follows a link. */
export function reportView(report, { onleave } = {}) {
  return [secretsView(report, onleave), withheldView(report), findingsView(report), differencesView(report)];
}

function part(title, ...content) {
  return h("section", { class: "stack-small", "aria-label": title }, h("h3", {}, title), content);
}

function secretsView({ dryRun, domainId, secrets }, onleave) {
  if (!secrets.length) return null;
  const line = ({ name, server, state }) =>
    h(
      "li",
      { class: "rows-item" },
      h("div", { class: "grow" }, h("code", { class: "wrap" }, name), h("span", { class: "small soft wrap" }, server)),
      badge(t(`bundles.secret.${state}`), SECRET_KINDS[state]),
    );
  const missing = !dryRun && secrets.some((secret) => secret.state === "missing");
  const set =
    missing &&
    h(
      "a",
      { class: "button", href: `#/domains/${encodeURIComponent(domainId)}/servers`, onclick: () => onleave?.() },
      t("bundles.setSecrets"),
    );
  return part(
    t("bundles.secrets"),
    h("ul", { class: "rows" }, secrets.map(line)),
    set && h("div", { class: "row" }, set),
  );
}

function withheldView({ withheld }) {
  if (!withheld.length) return null;
  const line = ({ server, reason }) =>
    h("li", { class: "wrap", dir: "auto" }, h("span", { class: "strong" }, server), ": ", reason);
  return part(
    t("bundles.withheld"),
    notice("warn", h("p", {}, t("bundles.withheldText")), h("ul", {}, withheld.map(line))),
  );
}

function findingsView({ findings }) {
  if (!findings.length) return null;
  return part(
    t("bundles.findings"),
    h(
      "ul",
      { class: "list" },
      findings.map(({ path, text }) =>
        h("li", { class: "wrap", dir: "auto" }, path && h("code", { class: "wrap" }, path), path && " ", text),
      ),
    ),
  );
}

function differencesView({ dryRun, differences, more: moreCount }) {
  const title = t(dryRun ? "bundles.differences" : "bundles.differencesDone");
  if (!differences.length)
    return part(title, h("p", { class: "soft" }, t(dryRun ? "bundles.noDifferences" : "bundles.nothingChanged")));
  return part(
    title,
    h("ul", { class: "rows" }, differences.map(differenceLine)),
    moreCount > 0 && h("p", { class: "soft" }, t("bundles.more", { count: moreCount })),
  );
}

function differenceLine({ kind, subject, action, before, after, lines }) {
  const head = [
    h(
      "span",
      { class: "grow wrap", dir: "auto" },
      h("span", { class: "soft" }, `${t(`bundles.kind.${kind}`)} `),
      subject,
    ),
    badge(t(`bundles.action.${action}`), ACTION_KINDS[action]),
  ];
  const hasDetails = lines || before !== undefined || after !== undefined;
  if (!hasDetails) return h("li", { class: "rows-item" }, head);
  return h(
    "li",
    {},
    h(
      "details",
      {},
      h("summary", { class: "rows-item" }, head, icon("down", 16)),
      differenceView({ changes: [{ path: subject, before, after }], lines }),
    ),
  );
}
