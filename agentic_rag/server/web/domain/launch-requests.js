// What a domain asked the operator to allow, and what became of it.

import { api } from "../api.js";
import { h, replace } from "../dom.js";
import { inWords, loadSentences } from "../errors/text.js";
import { formatDate, t } from "../i18n.js";
import { badge, button } from "../ui.js";

await loadSentences();

const KINDS = { open: "wait", approved: "wait", installed: "ok", refused: "bad" };

export async function drawRequests(element, base) {
  const { items } = await api("GET", `${base}/launch-requests`);
  if (!items.length) return replace(element);
  return replace(
    element,
    h("section", { class: "stack-small", "aria-label": t("servers.requests") }, h("h2", {}, t("servers.requests")), h("ul", { class: "rows" }, items.map((each) => row(each, base, () => drawRequests(element, base))))),
  );
}

function row(each, base, again) {
  const withdraw = async () => {
    await api("DELETE", `${base}/launch-requests/${each.id}`);
    await again();
  };
  return h(
    "li",
    { class: "rows-item" },
    h("div", { class: "grow" }, h("span", { class: "strong wrap" }, each.server), h("p", { class: "mono small soft wrap", dir: "ltr" }, [each.command, ...each.args].join(" ")), each.reason && h("p", { class: "small wrap", dir: "auto" }, inWords(each.reason)), h("p", { class: "faint small" }, formatDate(each.requestedAt))),
    h("div", { class: "rows-end" }, badge(t(`servers.request.${each.state}`), KINDS[each.state] ?? ""), each.state === "open" && button(t("servers.withdraw"), { kind: "quiet", onclick: withdraw })),
  );
}
