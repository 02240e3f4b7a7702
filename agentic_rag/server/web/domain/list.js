// The list of domains, with buttons that create or import one.

import { h, replace } from "../dom.js";
import { t } from "../i18n.js";
import { icon } from "../icons.js";
import { button, emptyState, input, loadInto } from "../ui.js";
import { createDomain } from "./create.js";

export async function show(main, { app }) {
  app.setTitle(t("domain.title"));
  const create =
    app.user.operator && button(t("domain.create"), { kind: "primary", icon: "add", onclick: () => createDomain(app) });
  const bring = app.user.operator && button(t("domain.importNew"), { icon: "upload", onclick: () => importNew() });
  const list = h("div", {});
  const search = input({
    type: "search",
    class: "input domain-search",
    placeholder: t("domain.find"),
    "aria-label": t("domain.find"),
    dataset: { search: "" },
    oninput: () => draw(),
  });
  let domains = [];
  const content = () => {
    const wanted = search.value.trim().toLowerCase();
    const matches = domains.filter((domain) =>
      `${domain.name} ${domain.description} ${domain.id}`.toLowerCase().includes(wanted),
    );
    search.hidden = domains.length < 7;
    if (!domains.length) return noDomains(app, create);
    if (!matches.length) return h("p", { class: "soft", role: "status" }, t("domain.noneFound"));
    return h(
      "ul",
      { class: "grid domain-grid" },
      matches.map((domain) => h("li", {}, domainCard(domain))),
    );
  };
  const draw = () => replace(list, content());
  replace(
    main,
    h(
      "div",
      { class: "page" },
      h(
        "header",
        { class: "page-head" },
        h("h1", {}, t("domain.title")),
        h("div", { class: "row" }, search, bring, create),
      ),
      list,
    ),
  );
  const load = () =>
    loadInto(
      list,
      () => app.domains({ again: true }),
      (items) => {
        domains = items;
        return content();
      },
    );
  async function importNew() {
    const { openImport } = await import("./bundles.js");
    if (await openImport(null)) await load();
  }
  await load();
}

function noDomains(app, create) {
  const text = t(app.user.operator ? "domain.emptyOperator" : "domain.emptyMember");
  return emptyState(t("domain.empty"), text, {
    icon: "domain",
    actions: create
      ? [button(t("domain.create"), { kind: "primary", icon: "add", onclick: () => createDomain(app) })]
      : [],
  });
}

function domainCard({ id, name, description, documentCount }) {
  return h(
    "a",
    { class: "card domain-card", href: `#/domains/${encodeURIComponent(id)}` },
    h(
      "div",
      { class: "row domain-card-head" },
      h("span", { class: "domain-sign" }, icon("domain", 18)),
      h("span", { class: "strong clip", dir: "auto" }, name),
    ),
    h("p", { class: "soft small domain-about", dir: "auto" }, description || t("domain.noDescription")),
    h("p", { class: "faint small" }, t("domain.documentCount", { count: documentCount })),
  );
}
