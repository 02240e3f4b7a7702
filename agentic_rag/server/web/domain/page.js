// One domain: its head and the tabs in which it is looked after. Each tab is a module of its own, loaded when it is
// shown: `async function show(panel, {domain, rest, app, place})` may return `leave()` or `{leave, update(rest)}`.

import { api, lazily, loadAll } from "../api.js";
import { h, replace } from "../dom.js";
import { loadWords, t } from "../i18n.js";
import { button, checkbox, emptyState, field, input, menu, openDialog, skeleton, tabLinks } from "../ui.js";

const TABS = [
  { key: "documents", allow: "member", words: ["documents"], load: lazily((again) => import(`./documents.js${again}`)) },
  { key: "search", allow: "admin", words: ["retrieval", "documents"], load: lazily((again) => import(`./search.js${again}`)) },
  { key: "answers", allow: "admin", words: ["retrieval", "documents"], load: lazily((again) => import(`./answers.js${again}`)) },
  { key: "evaluation", allow: "admin", words: ["evaluation"], load: lazily((again) => import(`./evaluation.js${again}`)) },
  { key: "feedback", allow: "admin", words: ["evaluation"], load: lazily((again) => import(`./feedback.js${again}`)) },
  { key: "roles", allow: "author", words: ["roles", "settings"], load: lazily((again) => import(`../roles/roles.js${again}`)) },
  { key: "memory", allow: "member", words: ["roles"], load: lazily((again) => import(`../roles/memory.js${again}`)) },
  { key: "prompt", allow: "author", words: ["settings"], load: lazily((again) => import(`./prompt.js${again}`)) },
  { key: "settings", allow: "admin", words: ["settings"], load: lazily((again) => import(`./settings.js${again}`)) },
  { key: "servers", allow: "admin", words: ["servers", "settings"], load: lazily((again) => import(`./servers.js${again}`)) },
  { key: "history", allow: "author", words: ["history"], load: lazily((again) => import(`./history.js${again}`)) },
  { key: "usage", allow: "admin", words: ["usage"], load: lazily((again) => import(`./usage.js${again}`)) },
];

export async function show(main, { params, app }) {
  let shown = { domain: null, key: null, leave: null, update: null };
  let asked = params;
  let turn = 0;
  const head = h("header", { class: "domain-head" });
  const panel = h("div", { class: "domain-panel" }, skeleton());
  replace(main, h("div", { class: "page page-domain" }, head, panel));

  async function draw(wanted) {
    const own = ++turn;
    asked = wanted;
    const { domain: id, tab, rest } = wanted;
    const tabs = TABS.filter((each) => app.can(id, each.allow));
    const chosen = tabs.find((each) => each.key === (tab ?? "documents"));
    if (shown.domain?.id === id && shown.key === chosen?.key && shown.update) return shown.update(rest);
    await shown.leave?.();
    const known = shown.domain?.id === id ? shown.domain : null;
    shown = { domain: known, key: null, leave: null, update: null };
    let domain;
    try {
      domain = known ?? (await api("GET", `/api/domains/${encodeURIComponent(id)}`));
    } catch (error) {
      if (own === turn) replace(panel, cannotShow(error));
      return undefined;
    }
    if (own !== turn) return undefined;
    shown.domain = domain;
    drawHead(domain, tabs, chosen?.key);
    if (!chosen) return replace(panel, emptyState(t("shell.notFound"), t("shell.notFoundText"), { icon: "search" }));
    replace(panel, skeleton());
    const [module] = await loadAll(chosen.load(), loadWords(...chosen.words));
    if (own !== turn) return undefined;
    replace(panel);
    panel.className = `domain-panel panel-${chosen.key}`;
    const place = {
      href: (...parts) => ["#/domains", id, chosen.key, ...parts].map((each, at) => (at ? encodeURIComponent(each) : each)).join("/"),
      renamed: (changed) => {
        shown.domain = changed;
        drawHead(changed, tabs, chosen.key);
        app.domains({ again: true }).catch(() => {});
      },
    };
    const left = await module.show(panel, { domain, rest: rest ?? [], app, place });
    const ends = typeof left === "function" ? { leave: left } : (left ?? {});
    if (own !== turn) return ends.leave?.();
    Object.assign(shown, { key: chosen.key, leave: ends.leave ?? null, update: ends.update ?? null });
    return undefined;
  }

  function drawHead(domain, tabs, current) {
    app.setTitle(current && t(`domain.tab.${current}`), domain.name);
    const actions = [
      app.can(domain.id, "admin") && { label: t("domain.export"), icon: "download", act: async () => (await import("./bundles.js")).openExport(domain) },
      app.can(domain.id, "admin") && { label: t("domain.importOver"), icon: "upload", act: () => importOver(domain) },
      app.user.operator && { label: t("domain.delete"), icon: "trash", danger: true, act: () => deleteDomain(app, domain) },
    ].filter(Boolean);
    const items = tabs.map(({ key }) => ({ key, label: t(`domain.tab.${key}`), href: `#/domains/${encodeURIComponent(domain.id)}/${key}` }));
    replace(
      head,
      h(
        "div",
        { class: "page-head" },
        h("div", { class: "domain-names" }, h("nav", { class: "small", "aria-label": t("domain.where") }, h("a", { class: "quiet-link", href: "#/domains" }, t("domain.title"))), h("h1", { class: "wrap", dir: "auto" }, domain.name)),
        h("div", { class: "row" }, h("a", { class: "button", href: `#/chat/${encodeURIComponent(domain.id)}` }, t("domain.chat")), actions.length > 0 && menu(t("domain.more"), actions)),
      ),
      tabLinks(t("domain.tabs"), items, current),
    );
    head.querySelector(".tab[aria-current]")?.scrollIntoView({ block: "nearest", inline: "nearest" });
  }

  /** What is shown is read anew once a bundle came over it; a reader who has gone on stays where they are. */
  async function importOver(domain) {
    const report = await (await import("./bundles.js")).openImport(domain);
    if (!report) return;
    app.domains({ again: true }).catch(() => {});
    if (shown.domain?.id !== domain.id) return;
    await shown.leave?.();
    shown = { domain: null, key: null, leave: null, update: null };
    await draw(asked);
  }

  await draw(params);
  return {
    leave: () => {
      turn += 1;
      return shown.leave?.();
    },
    update: draw,
  };
}

function cannotShow(error) {
  const back = h("a", { class: "button", href: "#/domains" }, t("domain.toList"));
  return emptyState(t("shell.notLoaded"), error.code ? error.message : t("shell.failed"), { icon: "alert", actions: [back] });
}

async function deleteDomain(app, domain) {
  const name = field(t("domain.deleteName", { name: domain.name }), input({}));
  const folder = field(t("domain.deleteFolder"), checkbox({}), { inline: true });
  const remove = button(t("domain.deleteNow"), { kind: "danger", disabled: true });
  name.control.addEventListener("input", () => (remove.disabled = name.control.value.trim() !== domain.name));
  const dialog = openDialog(t("domain.deleteTitle", { name: domain.name }), {
    build: () => [h("p", {}, t("domain.deleteText")), name, folder],
    actions: (close) => [button(t("shell.cancel"), { onclick: () => close() }), remove],
  });
  remove.addEventListener("click", async () => {
    remove.disabled = true;
    try {
      await api("DELETE", `/api/domains/${encodeURIComponent(domain.id)}`, { query: { workspace: folder.control.checked || null } });
      dialog.close(true);
      await app.domains({ again: true });
      app.navigate("#/domains");
    } catch (error) {
      remove.disabled = false;
      name.setError(error.message);
    }
  });
  await dialog.closed;
}
