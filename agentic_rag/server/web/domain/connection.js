// The view of a connection to an MCP server: its state, its tools, and the end of its log.

import { h } from "../dom.js";
import { t } from "../i18n.js";
import { badge, notice, select } from "../ui.js";

const STATES = {
  ready: "ok",
  degraded: "wait",
  starting: "wait",
  installing: "wait",
  needs_auth: "wait",
  failed: "bad",
};

export const stateBadge = (state) => badge(t(`servers.state.${state}`), STATES[state] ?? "");

const RULES = { allow: "allow", ask: "ask", "ask-admin": "askAdmin", deny: "deny" };

/** Return a rule in words. If it is empty, the other rules of the domain decide. */
export const ruleName = (rule) => t(`servers.rule.${RULES[rule] ?? "none"}`);

/** Return the control that sets the rule for calls of a tool. `rules`: `{of(tool), set(tool, rule)}`. */
function ruleOf(tool, rules) {
  const options = [["", ruleName("")], ...Object.keys(RULES).map((rule) => [rule, ruleName(rule)])];
  const control = select(options, {
    value: rules.of(tool),
    "aria-label": t("servers.rule", { tool: tool.title || tool.name }),
    onchange: () => rules.set(tool, control.value),
  });
  return control;
}

/** Return the view of a connection. With `rules`, the user can set the rule of each tool. */
export function connectionView({ state, reason, protocol, tools, log, droppedTools = [] }, rules = null) {
  return [
    h("p", { class: "row" }, stateBadge(state), protocol && h("span", { class: "faint small mono" }, protocol)),
    reason && notice(state === "failed" ? "bad" : "info", reason),
    h("h3", {}, t("servers.tools", { count: tools.length })),
    tools.length === 0 && h("p", { class: "soft" }, t("servers.noTools")),
    droppedTools.map((tool) => h("p", { class: "small bad wrap", dir: "auto" }, `${tool.name}: ${tool.reason}`)),
    tools.map((tool) =>
      h(
        "details",
        { class: "tool" },
        h(
          "summary",
          {},
          tool.title && [h("span", { class: "strong wrap", dir: "auto" }, tool.title), " "],
          h("span", { class: "mono strong wrap" }, tool.name),
          " ",
          h("span", { class: "small soft", dir: "auto" }, tool.description.split("\n")[0]),
        ),
        rules && tool.calledAs && h("div", { class: "row" }, ruleOf(tool, rules)),
        h("p", { class: "plain small", dir: "auto" }, tool.description),
        h("pre", { class: "code-block mono", tabindex: 0 }, JSON.stringify(tool.inputSchema, null, 2)),
      ),
    ),
    h("h3", {}, t("servers.log")),
    log.length
      ? h("pre", { class: "code-block mono", tabindex: 0, dir: "ltr" }, log.join("\n"))
      : h("p", { class: "soft" }, t("servers.noLog")),
  ];
}
