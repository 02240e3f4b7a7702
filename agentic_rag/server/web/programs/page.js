// The programs that the signed-in user has permitted to use a domain over MCP: a list in which the user can revoke each
// permission.

import { api } from "../api.js";
import { h, replace } from "../dom.js";
import { formatAgo, t } from "../i18n.js";
import { badge, button, confirmLoss, emptyState, loadInto, table, toast } from "../ui.js";

export async function show(main, { app }) {
  app.setTitle(t("programs.title"));
  const list = h("div");
  const domains = new Map((await app.domains()).map((domain) => [domain.id, domain.name]));
  const nameOf = (program) => program.client || program.clientHost || t("programs.unnamed");
  const columns = [
    {
      label: t("programs.program"),
      cell: (program) =>
        h(
          "div",
          {},
          h("div", { class: "wrap", dir: "auto" }, nameOf(program)),
          h("span", { class: "faint small wrap" }, program.clientHost || program.redirectHost),
        ),
    },
    {
      label: t("programs.domain"),
      cell: (program) => h("span", { dir: "auto" }, domains.get(program.domainId) ?? program.domainId),
    },
    {
      label: t("programs.may"),
      cell: (program) =>
        h(
          "span",
          { class: "row row-tight" },
          program.scopes.map((scope) => badge(scope)),
        ),
    },
    { label: t("programs.used"), cell: (program) => (program.usedAt ? formatAgo(program.usedAt) : "—") },
    {
      label: t("programs.actions"),
      align: "end",
      cell: (program) =>
        button(t("programs.end", { name: nameOf(program) }), {
          kind: "quiet",
          icon: "close",
          compact: true,
          onclick: () => end(program),
        }),
    },
  ];
  const empty = emptyState(t("programs.none"), t("programs.noneText"), { icon: "key" });
  const load = () =>
    loadInto(
      list,
      () => api("GET", "/api/authorizations"),
      ({ items }) => table(t("programs.title"), columns, items, { empty }),
    );

  async function end(program) {
    if (
      !(await confirmLoss(
        t("programs.endTitle", { name: nameOf(program) }),
        t("programs.endText"),
        t("programs.endNow"),
      ))
    )
      return;
    await api("DELETE", `/api/authorizations/${encodeURIComponent(program.id)}`);
    toast(t("programs.ended"));
    await load();
  }

  replace(
    main,
    h("div", { class: "page" }, h("h1", {}, t("programs.title")), h("p", { class: "soft" }, t("programs.text")), list),
  );
  await load();
}
