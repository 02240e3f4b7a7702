// The domains there are, and making one.

import { api } from "../api.js";
import { h, replace } from "../dom.js";
import { draft } from "../drafts.js";
import { t } from "../i18n.js";
import { icon } from "../icons.js";
import { button, emptyState, field, input, loadInto, openDialog, textarea } from "../ui.js";

export async function show(main, { app }) {
  app.setTitle(t("domain.title"));
  const create = app.user.operator && button(t("domain.create"), { kind: "primary", icon: "add", onclick: () => createDomain(app) });
  const bring = app.user.operator && button(t("domain.importNew"), { icon: "upload", onclick: () => importNew() });
  const list = h("div", {});
  const search = input({ type: "search", class: "input domain-search", placeholder: t("domain.find"), "aria-label": t("domain.find"), dataset: { search: "" }, oninput: () => draw() });
  let all = [];
  const content = () => {
    const wanted = search.value.trim().toLowerCase();
    const found = all.filter((each) => `${each.name} ${each.description} ${each.id}`.toLowerCase().includes(wanted));
    search.hidden = all.length < 7;
    if (!all.length) return noDomains(app, create);
    if (!found.length) return h("p", { class: "soft", role: "status" }, t("domain.noneFound"));
    return h("ul", { class: "grid domain-grid" }, found.map((each) => h("li", {}, domainCard(each))));
  };
  const draw = () => replace(list, content());
  replace(main, h("div", { class: "page" }, h("header", { class: "page-head" }, h("h1", {}, t("domain.title")), h("div", { class: "row" }, search, bring, create)), list));
  const load = () =>
    loadInto(list, () => app.domains({ again: true }), (items) => {
      all = items;
      return content();
    });
  async function importNew() {
    const { openImport } = await import("./bundles.js");
    if (await openImport(null)) await load();
  }
  await load();
}

function noDomains(app, create) {
  const text = t(app.user.operator ? "domain.emptyOperator" : "domain.emptyMember");
  return emptyState(t("domain.empty"), text, { icon: "domain", actions: create ? [button(t("domain.create"), { kind: "primary", icon: "add", onclick: () => createDomain(app) })] : [] });
}

function domainCard({ id, name, description, documentCount }) {
  return h(
    "a",
    { class: "card domain-card", href: `#/domains/${encodeURIComponent(id)}` },
    h("div", { class: "row domain-card-head" }, h("span", { class: "domain-sign" }, icon("domain", 18)), h("span", { class: "strong clip", dir: "auto" }, name)),
    h("p", { class: "soft small domain-about", dir: "auto" }, description || t("domain.noDescription")),
    h("p", { class: "faint small" }, t("domain.documentCount", { count: documentCount })),
  );
}

/** Ask what the new domain is, make it and go there: to its documents, or to the conversation in which its role is
 * written. What is typed is kept until then. */
export async function createDomain(app) {
  const kept = draft("domain.new");
  const given = kept.read() ?? {};
  const name = field(t("domain.name"), input({ value: given.name ?? "", required: true, maxlength: 200, oninput: keep }), { hint: t("domain.nameHint") });
  const about = field(t("domain.about"), textarea({ value: given.description ?? "", rows: 2, oninput: keep }), { hint: t("domain.aboutHint") });
  const describe = field(t("domain.describe"), textarea({ value: given.describe ?? "", rows: 5, maxlength: 8000, oninput: keep }), { hint: t("domain.describeHint") });
  function keep() {
    kept.write({ name: name.control.value, description: about.control.value, describe: describe.control.value });
  }
  const problem = h("p", { class: "field-error", role: "alert", hidden: true });
  const send = async (close) => {
    problem.hidden = true;
    name.setError(name.control.value.trim() ? "" : t("domain.nameMissing"));
    if (!name.control.value.trim()) return name.control.focus();
    const words = describe.control.value.trim();
    const body = { name: name.control.value.trim(), description: about.control.value.trim(), ...(words && { describe: words }) };
    try {
      const made = await api("POST", "/api/domains", { body });
      kept.clear();
      await app.domains({ again: true });
      close();
      app.navigate(made.conversationId ? `#/chat/${made.id}/${made.conversationId}` : `#/domains/${made.id}`);
    } catch (error) {
      const fields = { name, description: about, describe };
      const own = fields[error.path];
      if (own) own.setError(error.message);
      else {
        problem.textContent = error.message;
        problem.hidden = false;
      }
    }
    return undefined;
  };
  const actions = (close) => [button(t("shell.cancel"), { onclick: () => close() }), button(t("domain.make"), { kind: "primary", onclick: () => send(close) })];
  return openDialog(t("domain.create"), { build: () => [name, about, describe, problem], actions }).closed;
}
