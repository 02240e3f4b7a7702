// The roles of a domain: those there are with what is wrong with them, and one that is written.

import { api } from "../api.js";
import { h, replace } from "../dom.js";
import { inWords, loadSentences } from "../errors/text.js";
import { t } from "../i18n.js";
import { badge, button, emptyState, field, input, isDoomed, loadInto, openDialog } from "../ui.js";
import { addressOfRole, draftOf, showRole } from "./editor.js";

await loadSentences();

const ID = /^[\p{L}\p{N}_][\p{L}\p{N}_.-]{0,63}$/u;

export async function show(panel, { domain, rest, app, place }) {
  const base = `/api/domains/${encodeURIComponent(domain.id)}`;
  let leaveRole = null;
  let turn = 0;

  async function draw(parts) {
    const own = ++turn;
    leaveRole?.();
    leaveRole = null;
    if (!parts?.[0]) return await drawList();
    const leave = await showRole(panel, { domain, role: parts[0], app, place });
    if (own === turn) leaveRole = leave;
    else leave(); // the reader went on meanwhile
    return undefined;
  }

  async function drawList() {
    const load = () => Promise.all([api("GET", `${base}/roles`), api("GET", `${base}/role-findings`)]);
    await loadInto(panel, load, ([roles, findings]) => {
      const found = findings.items.filter((each) => each.severity !== "info");
      const listed = roles.items.filter(({ id }) => !isDoomed(addressOfRole(domain.id, id)));
      return h(
        "div",
        { class: "stack" },
        h("div", { class: "row row-apart" }, h("p", { class: "soft grow" }, t("roles.text")), h("div", { class: "row" }, button(t("roles.withNuwa"), { onclick: () => askNuwa() }), button(t("roles.create"), { kind: "primary", icon: "add", onclick: create }))),
        listed.length ? h("ul", { class: "rows", "aria-label": t("roles.list") }, listed.map(row)) : emptyState(t("roles.none"), t("roles.noneText"), { icon: "person" }),
        found.length > 0 && findingsView(found),
      );
    });
  }

  function row(each) {
    const primary = (domain.settings.primaryRoleId ?? "assistant") === each.id;
    const sub = domain.settings.subRoleIds?.includes(each.id);
    return h(
      "li",
      { class: "rows-item" },
      h("div", { class: "grow" }, h("a", { class: "row-name", dir: "auto", href: place.href(each.id) }, each.id), h("p", { class: "small soft clip", dir: "auto" }, each.title)),
      h(
        "div",
        { class: "rows-end" },
        draftOf(domain.id, each.id).read() && badge(t("roles.draft"), "wait"),
        primary && badge(t("roles.primary"), "ok"),
        sub && badge(t("roles.sub")),
        each.findings > 0 && badge(t("roles.findings", { count: each.findings }), "bad"),
        badge(t(`roles.source.${each.source}`)),
      ),
    );
  }

  function findingsView(found) {
    const line = (each) => h("li", { class: "finding" }, badge(t(`domain.severity.${each.severity}`), each.severity === "error" ? "bad" : "wait"), h("div", { class: "grow wrap" }, h("p", { dir: "auto" }, inWords(each.message)), h("p", { class: "small faint mono wrap", dir: "ltr" }, `${each.file}:${each.line}:${each.column}`), each.hint && h("p", { class: "small soft", dir: "auto" }, inWords(each.hint))));
    return h("section", { class: "stack-small", "aria-label": t("roles.allFindings") }, h("h2", {}, t("roles.allFindings")), h("ul", { class: "rows" }, found.map(line)));
  }

  async function create() {
    const id = field(t("roles.id"), input({ placeholder: "leave-adviser", dir: "auto" }), { hint: t("roles.idHint") });
    const make = (close) => (ID.test(id.control.value.trim()) ? close(id.control.value.trim()) : id.refuse(t("roles.idBad")));
    const actions = (close) => [button(t("shell.cancel"), { onclick: () => close() }), button(t("roles.begin"), { kind: "primary", onclick: () => make(close) })];
    const dialog = openDialog(t("roles.create"), { build: (close) => h("form", { onsubmit: (event) => (event.preventDefault(), make(close)) }, id), actions });
    const wanted = await dialog.closed;
    if (wanted) app.navigate(place.href(wanted));
  }

  /** How a role is written in a conversation; that is done where nuwa is the primary role or a sub-role. */
  function askNuwa() {
    const has = domain.settings.primaryRoleId === "nuwa" || domain.settings.subRoleIds?.includes("nuwa");
    if (has) return app.navigate(`#/chat/${encodeURIComponent(domain.id)}`);
    const actions = (close) => [
      button(t("shell.cancel"), { onclick: () => close() }),
      app.can(domain.id, "admin") && h("a", { class: "button button-primary", href: `#/domains/${encodeURIComponent(domain.id)}/settings`, onclick: () => close() }, t("roles.toSettings")),
    ];
    return openDialog(t("roles.withNuwa"), { build: () => h("p", {}, t("roles.nuwaText")), actions });
  }

  replace(panel);
  await draw(rest);
  const leave = () => {
    turn += 1;
    leaveRole?.();
  };
  return { update: draw, leave };
}
