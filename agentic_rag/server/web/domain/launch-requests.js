// The launch requests of a domain: the command lines that it asked the operator to allow, and the state of each
// request.

import { api } from "../api.js";
import { h } from "../dom.js";
import { inWords, loadSentences } from "../errors/text.js";
import { formatDate, t } from "../i18n.js";
import { badge, button } from "../ui.js";

await loadSentences();

const KINDS = { open: "wait", approved: "wait", installed: "ok", refused: "bad" };

/** Return the list of a domain's requests. `onchange()`: loads the list again. */
export function requestsView(requests, base, onchange) {
  const rows = requests.map((request) => row(request, base, onchange));
  return h(
    "section",
    { class: "stack-small", "aria-label": t("servers.requests") },
    h("h2", {}, t("servers.requests")),
    h("ul", { class: "rows" }, rows),
  );
}

function row(request, base, onchange) {
  const withdraw = async () => {
    await api("DELETE", `${base}/launch-requests/${request.id}`);
    await onchange();
  };
  return h(
    "li",
    { class: "rows-item" },
    h(
      "div",
      { class: "grow" },
      h("span", { class: "strong wrap" }, request.server),
      h("p", { class: "mono small soft wrap", dir: "ltr" }, [request.command, ...request.args].join(" ")),
      request.reason && h("p", { class: "small wrap", dir: "auto" }, inWords(request.reason)),
      h("p", { class: "faint small" }, formatDate(request.requestedAt)),
    ),
    h(
      "div",
      { class: "rows-end" },
      badge(t(`servers.request.${request.state}`), KINDS[request.state] ?? ""),
      request.state === "open" && button(t("servers.withdraw"), { kind: "quiet", onclick: withdraw }),
    ),
  );
}
