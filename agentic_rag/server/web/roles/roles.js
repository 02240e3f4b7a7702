// The roles of a domain: a list with the findings of each role, and the editor of a role.

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
    const ownTurn = ++turn;
    leaveRole?.();
    leaveRole = null;
    if (!parts?.[0]) return await drawList();
    const leave = await showRole(panel, { domain, role: parts[0], app, place });
    if (ownTurn === turn) leaveRole = leave;
    else leave(); // the user opened another view meanwhile
    return undefined;
  }

  async function drawList() {
    const load = () => Promise.all([api("GET", `${base}/roles`), api("GET", `${base}/role-findings`)]);
    await loadInto(panel, load, ([roles, findings]) => {
      const important = findings.items.filter((finding) => finding.severity !== "info");
      const listed = roles.items.filter(({ id }) => !isDoomed(addressOfRole(domain.id, id)));
      return h(
        "div",
        { class: "stack" },
        h(
          "div",
          { class: "row row-apart" },
          h("p", { class: "soft grow" }, t("roles.text")),
          h(
            "div",
            { class: "row" },
            button(t("roles.withNuwa"), { onclick: () => askNuwa() }),
            button(t("roles.create"), { kind: "primary", icon: "add", onclick: create }),
          ),
        ),
        listed.length
          ? h("ul", { class: "rows", "aria-label": t("roles.list") }, listed.map(row))
          : emptyState(t("roles.none"), t("roles.noneText"), { icon: "person" }),
        important.length > 0 && findingsView(important),
      );
    });
  }

  function row(role) {
    const primary = (domain.settings.primaryRoleId ?? "assistant") === role.id;
    const sub = domain.settings.subRoleIds?.includes(role.id);
    return h(
      "li",
      { class: "rows-item" },
      h(
        "div",
        { class: "grow" },
        h("a", { class: "row-name", dir: "auto", href: place.href(role.id) }, role.id),
        h("p", { class: "small soft clip", dir: "auto" }, role.title),
      ),
      h(
        "div",
        { class: "rows-end" },
        draftOf(domain.id, role.id).read() && badge(t("roles.draft"), "wait"),
        primary && badge(t("roles.primary"), "ok"),
        sub && badge(t("roles.sub")),
        role.findings > 0 && badge(t("roles.findings", { count: role.findings }), "bad"),
        badge(t(`roles.source.${role.source}`)),
      ),
    );
  }

  function findingsView(findings) {
    const line = (finding) =>
      h(
        "li",
        { class: "finding" },
        badge(t(`domain.severity.${finding.severity}`), finding.severity === "error" ? "bad" : "wait"),
        h(
          "div",
          { class: "grow wrap" },
          h("p", { dir: "auto" }, inWords(finding.message)),
          h("p", { class: "small faint mono wrap", dir: "ltr" }, `${finding.file}:${finding.line}:${finding.column}`),
          finding.hint && h("p", { class: "small soft", dir: "auto" }, inWords(finding.hint)),
        ),
      );
    return h(
      "section",
      { class: "stack-small", "aria-label": t("roles.allFindings") },
      h("h2", {}, t("roles.allFindings")),
      h("ul", { class: "rows" }, findings.map(line)),
    );
  }

  async function create() {
    const id = field(t("roles.id"), input({ placeholder: "leave-adviser", dir: "auto" }), { hint: t("roles.idHint") });
    const make = (close) =>
      ID.test(id.control.value.trim()) ? close(id.control.value.trim()) : id.refuse(t("roles.idBad"));
    const actions = (close) => [
      button(t("shell.cancel"), { onclick: () => close() }),
      button(t("roles.begin"), { kind: "primary", onclick: () => make(close) }),
    ];
    const dialog = openDialog(t("roles.create"), {
      build: (close) => h("form", { onsubmit: (event) => (event.preventDefault(), make(close)) }, id),
      actions,
    });
    const wanted = await dialog.closed;
    if (wanted) app.navigate(place.href(wanted));
  }

  /** Open the chat if nuwa, the role that writes roles, is the primary role or a sub-role. Otherwise, explain how to
   * add it. */
  function askNuwa() {
    const has = domain.settings.primaryRoleId === "nuwa" || domain.settings.subRoleIds?.includes("nuwa");
    if (has) return app.navigate(`#/chat/${encodeURIComponent(domain.id)}`);
    const actions = (close) => [
      button(t("shell.cancel"), { onclick: () => close() }),
      app.can(domain.id, "admin") &&
        h(
          "a",
          {
            class: "button button-primary",
            href: `#/domains/${encodeURIComponent(domain.id)}/settings`,
            onclick: () => close(),
          },
          t("roles.toSettings"),
        ),
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
