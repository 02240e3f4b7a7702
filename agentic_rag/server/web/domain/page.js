// The page of a domain: its name, the links to its sections in three groups, and the open section. Each section is a
// module that is loaded when the user opens the section. It exports `async function show(panel, {domain, rest, app,
// place})`, which may return `leave()` or `{leave, update(rest)}`.

import { api, lazily, loadAll } from "../api.js";
import { h, newId, replace } from "../dom.js";
import { loadWords, t } from "../i18n.js";
import { icon } from "../icons.js";
import { button, checkbox, emptyState, field, input, menu, openDialog, skeleton } from "../ui.js";

/** The sections in the order of the navigation.
 *
 * - `allow`: the lowest grant that may open the section.
 * - `words`: the sections of the languages to load. */
const SECTIONS = [
  {
    key: "documents",
    group: "content",
    icon: "page",
    allow: "member",
    words: ["documents", "sources", "operator"],
    load: lazily((again) => import(`./documents.js${again}`)),
  },
  {
    key: "search",
    group: "content",
    icon: "search",
    allow: "admin",
    words: ["retrieval", "documents"],
    load: lazily((again) => import(`./search.js${again}`)),
  },
  {
    key: "evaluation",
    group: "content",
    icon: "chart",
    allow: "admin",
    words: ["evaluation"],
    load: lazily((again) => import(`./evaluation.js${again}`)),
  },
  {
    key: "prompt",
    group: "behaviour",
    icon: "edit",
    allow: "author",
    words: ["settings"],
    load: lazily((again) => import(`./prompt.js${again}`)),
  },
  {
    key: "roles",
    group: "behaviour",
    icon: "person",
    allow: "author",
    words: ["roles", "settings"],
    load: lazily((again) => import(`../roles/roles.js${again}`)),
  },
  {
    key: "memory",
    group: "behaviour",
    icon: "thought",
    allow: "member",
    words: ["roles"],
    load: lazily((again) => import(`../roles/memory.js${again}`)),
  },
  {
    key: "servers",
    group: "behaviour",
    icon: "server",
    allow: "admin",
    words: ["servers", "settings"],
    load: lazily((again) => import(`./servers.js${again}`)),
  },
  {
    key: "settings",
    group: "behaviour",
    icon: "operator",
    allow: "admin",
    words: ["settings"],
    load: lazily((again) => import(`./settings.js${again}`)),
  },
  {
    key: "notifications",
    group: "behaviour",
    icon: "wait",
    allow: "admin",
    words: ["notifications", "operator"],
    load: lazily((again) => import(`./notifications.js${again}`)),
  },
  {
    key: "answers",
    group: "record",
    icon: "chat",
    allow: "admin",
    words: ["retrieval", "documents"],
    load: lazily((again) => import(`./answers.js${again}`)),
  },
  {
    key: "feedback",
    group: "record",
    icon: "thumb-up",
    allow: "admin",
    words: ["evaluation"],
    load: lazily((again) => import(`./feedback.js${again}`)),
  },
  {
    key: "history",
    group: "record",
    icon: "history",
    allow: "author",
    words: ["history"],
    load: lazily((again) => import(`./history.js${again}`)),
  },
  {
    key: "usage",
    group: "record",
    icon: "list",
    allow: "admin",
    words: ["usage"],
    load: lazily((again) => import(`./usage.js${again}`)),
  },
];
const GROUPS = ["content", "behaviour", "record"];

export async function show(main, { params, app }) {
  let shown = { domain: null, key: null, leave: null, update: null };
  let asked = params;
  let turn = 0;
  const head = h("header", { class: "domain-head" });
  const title = h("div", { class: "section-head" });
  let panel = h("div", { class: "domain-panel" }, skeleton());
  replace(main, h("div", { class: "domain-layout" }, head, h("div", { class: "page page-domain" }, title, panel)));

  async function draw(wanted) {
    const ownTurn = ++turn;
    asked = wanted;
    const { domain: id, tab, rest } = wanted;
    const sections = sectionsOf(id);
    const chosen = sections.find((section) => section.key === (tab ?? "documents"));
    if (shown.domain?.id === id && shown.key === chosen?.key && shown.update) return shown.update(rest);
    await shown.leave?.();
    const loaded = shown.domain?.id === id ? shown.domain : null;
    shown = { domain: loaded, key: null, leave: null, update: null };
    drawTitle(chosen?.key);
    let domain;
    try {
      domain = loaded ?? (await api("GET", `/api/domains/${encodeURIComponent(id)}`));
    } catch (error) {
      if (ownTurn === turn) {
        replace(title);
        replace(panel, cannotShow(error));
      }
      return undefined;
    }
    if (ownTurn !== turn) return undefined;
    shown.domain = domain;
    drawHead(domain, sections, chosen?.key);
    if (!chosen) return replace(panel, emptyState(t("shell.notFound"), t("shell.notFoundText"), { icon: "search" }));
    replace(panel, skeleton());
    try {
      const [module] = await loadAll(chosen.load(), loadWords(...chosen.words));
      if (ownTurn !== turn) return undefined;
      // The section gets a new element, because the user would see the old one move when the section adds a description
      // above it, and because an earlier section may still draw into the old one.
      const fresh = h("div", { class: `domain-panel panel-${chosen.key}` });
      panel.replaceWith(fresh);
      panel = fresh;
      const left = await module.show(panel, {
        domain,
        rest: rest ?? [],
        app,
        place: placeOf(domain, chosen.key, ownTurn),
      });
      const ends = typeof left === "function" ? { leave: left } : (left ?? {});
      if (ownTurn !== turn) return ends.leave?.();
      Object.assign(shown, { key: chosen.key, leave: ends.leave ?? null, update: ends.update ?? null });
    } catch (error) {
      if (ownTurn !== turn) return undefined;
      if (!error.code) console.error(error);
      const again = button(t("shell.tryAgain"), { icon: "retry", onclick: () => draw(asked) });
      replace(
        panel,
        emptyState(t("shell.notLoaded"), error.code ? error.message : t("shell.failed"), {
          icon: "alert",
          actions: [again],
        }),
      );
    }
    return undefined;
  }

  /** Return the functions of this page that a section gets as `place`. A section may call them late, after the user has
   * opened another section or domain (`ownTurn` is no longer `turn`). They then leave the title unchanged. */
  function placeOf({ id }, key, ownTurn) {
    return {
      href: (...parts) =>
        ["#/domains", id, key, ...parts].map((part, at) => (at ? encodeURIComponent(part) : part)).join("/"),
      /** Show a text below the title and buttons beside it. */
      describe: (text, ...actions) => ownTurn === turn && drawTitle(key, text, actions),
      /** Return a link to the domain's chat, for a section that has nothing to show before the first question. */
      chatLink: () => h("a", { class: "button", href: `#/chat/${encodeURIComponent(id)}` }, t("domain.chat")),
      /** Show the saved domain, and load the list of domains again. */
      changed: (domain) => {
        app.domains({ again: true }).catch(() => {});
        if (shown.domain?.id !== id || !main.isConnected) return;
        shown.domain = domain;
        drawHead(domain, sectionsOf(id), asked.tab ?? "documents");
      },
      /** Load the section again, but only if the user is in it at the time of the call. */
      reload: () =>
        asked.domain === id && (asked.tab ?? "documents") === key && main.isConnected ? reload() : undefined,
    };
  }

  async function reload() {
    await shown.leave?.();
    shown = { domain: null, key: null, leave: null, update: null };
    await draw(asked);
  }

  const sectionsOf = (id) => SECTIONS.filter((section) => app.can(id, section.allow));

  function drawTitle(key, text = "", actions = []) {
    replace(
      title,
      key &&
        h(
          "div",
          { class: "section-words" },
          h("h2", { class: "section-title" }, t(`domain.tab.${key}`)),
          text && h("p", { class: "soft" }, text),
        ),
      actions.length > 0 && h("div", { class: "row" }, actions),
    );
  }

  function drawHead(domain, sections, current) {
    app.setTitle(current && t(`domain.tab.${current}`), domain.name);
    const actions = [
      app.can(domain.id, "admin") && {
        label: t("domain.export"),
        icon: "download",
        act: async () => (await import("./bundles.js")).openExport(domain),
      },
      app.can(domain.id, "admin") && { label: t("domain.importOver"), icon: "upload", act: () => importOver(domain) },
      app.user.operator && {
        label: t("domain.delete"),
        icon: "trash",
        danger: true,
        act: () => deleteDomain(app, domain),
      },
    ].filter(Boolean);
    const nav = sectionLinks(domain, sections, current);
    const opener = h(
      "button",
      { type: "button", class: "button section-opener", popovertarget: nav.id, "aria-haspopup": "true" },
      icon("menu"),
      h("span", {}, current ? t(`domain.tab.${current}`) : t("domain.tabs")),
      icon("down", 16),
    );
    const list = h(
      "nav",
      { class: "small", "aria-label": t("domain.where") },
      h("a", { class: "quiet-link", href: "#/domains" }, t("domain.title")),
    );
    const name = h("h1", { class: "domain-name wrap", dir: "auto" }, domain.name);
    replace(
      head,
      list,
      h("div", { class: "domain-names" }, name, actions.length > 0 && menu(t("domain.more"), actions)),
      opener,
      nav,
    );
  }

  /** Import a bundle over a domain. Load the open section again if the page still shows this domain. */
  async function importOver(domain) {
    const report = await (await import("./bundles.js")).openImport(domain);
    if (!report) return;
    app.domains({ again: true }).catch(() => {});
    if (shown.domain?.id === domain.id && main.isConnected) await reload();
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

/** Return the links to the sections in their groups. They are a column beside the section, or a popover on a narrow
 * page. */
function sectionLinks(domain, sections, current) {
  const address = encodeURIComponent(domain.id);
  const link = (href, name, words, attributes = {}) =>
    h("a", { class: "section-link", href, ...attributes }, icon(name, 16), h("span", {}, words));
  const groups = GROUPS.map((group) => {
    const members = sections.filter((section) => section.group === group);
    if (!members.length) return null;
    const heading = newId("group");
    const links = members.map((section) =>
      h(
        "li",
        {},
        link(`#/domains/${address}/${section.key}`, section.icon, t(`domain.tab.${section.key}`), {
          "aria-current": section.key === current ? "page" : null,
        }),
      ),
    );
    return h(
      "div",
      { class: "section-group" },
      h("p", { class: "section-group-name", id: heading }, t(`domain.group.${group}`)),
      h("ul", { "aria-labelledby": heading }, links),
    );
  });
  const nav = h(
    "nav",
    { class: "section-nav", id: newId("sections"), popover: "auto", "aria-label": t("domain.tabs") },
    link(`#/chat/${address}`, "chat", t("domain.chat")),
    groups,
  );
  nav.addEventListener(
    "click",
    (event) => event.target.closest("a") && nav.matches(":popover-open") && nav.hidePopover(),
  );
  return nav;
}

function cannotShow(error) {
  const back = h("a", { class: "button", href: "#/domains" }, t("domain.toList"));
  return emptyState(t("shell.notLoaded"), error.code ? error.message : t("shell.failed"), {
    icon: "alert",
    actions: [back],
  });
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
      await api("DELETE", `/api/domains/${encodeURIComponent(domain.id)}`, {
        query: { workspace: folder.control.checked || null },
      });
      if (dialog.close(true)) app.navigate("#/domains");
      await app.domains({ again: true });
    } catch (error) {
      remove.disabled = false;
      name.setError(error.message);
    }
  });
  await dialog.closed;
}
