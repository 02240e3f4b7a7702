// The programs that the signed-in person has permitted to use a domain over MCP: a list, from which each can be ended.

import { api } from "../api.js";
import { h, replace } from "../dom.js";
import { formatAgo, t } from "../i18n.js";
import { badge, button, confirmLoss, emptyState, loadInto, table, toast } from "../ui.js";

export async function show(main, { app }) {
  app.setTitle(t("programs.title"));
  const list = h("div");
  const domains = new Map((await app.domains()).map((each) => [each.id, each.name]));
  const nameOf = (each) => each.client || each.clientHost || t("programs.unnamed");
  const columns = [
    { label: t("programs.program"), cell: (each) => h("div", {}, h("div", { class: "wrap", dir: "auto" }, nameOf(each)), h("span", { class: "faint small wrap" }, each.clientHost || each.redirectHost)) },
    { label: t("programs.domain"), cell: (each) => h("span", { dir: "auto" }, domains.get(each.domainId) ?? each.domainId) },
    { label: t("programs.may"), cell: (each) => h("span", { class: "row row-tight" }, each.scopes.map((scope) => badge(scope))) },
    { label: t("programs.used"), cell: (each) => (each.usedAt ? formatAgo(each.usedAt) : "—") },
    { label: t("programs.actions"), align: "end", cell: (each) => button(t("programs.end", { name: nameOf(each) }), { kind: "quiet", icon: "close", compact: true, onclick: () => end(each) }) },
  ];
  const empty = emptyState(t("programs.none"), t("programs.noneText"), { icon: "key" });
  const load = () => loadInto(list, () => api("GET", "/api/authorizations"), ({ items }) => table(t("programs.title"), columns, items, { empty }));

  async function end(each) {
    if (!(await confirmLoss(t("programs.endTitle", { name: nameOf(each) }), t("programs.endText"), t("programs.endNow")))) return;
    await api("DELETE", `/api/authorizations/${encodeURIComponent(each.id)}`);
    toast(t("programs.ended"));
    await load();
  }

  replace(main, h("div", { class: "page" }, h("h1", {}, t("programs.title")), h("p", { class: "soft" }, t("programs.text")), list));
  await load();
}
