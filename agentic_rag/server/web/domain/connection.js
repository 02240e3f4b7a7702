// A connection to an MCP server: its state, what it lists, and the end of its log.

import { h } from "../dom.js";
import { t } from "../i18n.js";
import { badge, notice } from "../ui.js";

const STATES = { ready: "ok", degraded: "wait", starting: "wait", installing: "wait", needs_auth: "wait", failed: "bad" };

export const stateBadge = (state) => badge(t(`servers.state.${state}`), STATES[state] ?? "");

/** What a server lists, and the end of its log. */
export function connectionView({ state, reason, protocol, tools, log }) {
  return [
    h("p", { class: "row" }, stateBadge(state), protocol && h("span", { class: "faint small mono" }, protocol)),
    reason && notice(state === "failed" ? "bad" : "info", reason),
    h("h3", {}, t("servers.tools", { count: tools.length })),
    tools.length === 0 && h("p", { class: "soft" }, t("servers.noTools")),
    tools.map((tool) => h("details", { class: "tool" }, h("summary", {}, h("span", { class: "mono strong wrap" }, tool.name), " ", h("span", { class: "small soft", dir: "auto" }, tool.description.split("\n")[0])), h("p", { class: "plain small", dir: "auto" }, tool.description), h("pre", { class: "code-block mono", tabindex: 0 }, JSON.stringify(tool.inputSchema, null, 2)))),
    h("h3", {}, t("servers.log")),
    log.length ? h("pre", { class: "code-block mono", tabindex: 0, dir: "ltr" }, log.join("\n")) : h("p", { class: "soft" }, t("servers.noLog")),
  ];
}
