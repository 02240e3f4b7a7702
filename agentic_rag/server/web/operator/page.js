// The operator's pages: tabs below a common heading, each with an address.

import { api, lazily } from "../api.js";
import { h, replace } from "../dom.js";
import { t } from "../i18n.js";
import { emptyState, loadInto, tabLinks } from "../ui.js";

/** The tabs in their order. Each module exports `async function show(place, {app, item})`. The page calls the function
 * that `show` returns when the user leaves the tab. */
const TABS = [
  { key: "health", label: () => t("operator.health"), load: lazily((again) => import(`./health.js${again}`)) },
  { key: "users", label: () => t("operator.users"), load: lazily((again) => import(`./users.js${again}`)) },
  { key: "keys", label: () => t("operator.keys"), load: lazily((again) => import(`./keys.js${again}`)) },
  { key: "provider", label: () => t("operator.provider"), load: lazily((again) => import(`./provider.js${again}`)) },
  { key: "requests", label: () => t("operator.requests"), load: lazily((again) => import(`./requests.js${again}`)) },
  { key: "catalogue", label: () => t("operator.catalogue"), load: lazily((again) => import(`./catalogue.js${again}`)) },
  { key: "audit", label: () => t("operator.audit"), load: lazily((again) => import(`./audit.js${again}`)) },
  { key: "usage", label: () => t("operator.usage"), load: lazily((again) => import(`./usage.js${again}`)) },
  { key: "budgets", label: () => t("operator.budgets"), load: lazily((again) => import(`./budgets.js${again}`)) },
  {
    key: "notifications",
    label: () => t("operator.notifications"),
    load: lazily((again) => import(`./notifications.js${again}`)),
  },
  { key: "backups", label: () => t("operator.backups"), load: lazily((again) => import(`./backups.js${again}`)) },
];

export async function show(main, { params, app }) {
  const head = h("header", { class: "operator-head" });
  const place = h("div", {});
  replace(main, h("div", { class: "page" }, head, place));
  let leaveTab = null;
  let order = 0;

  async function open({ tab, item }) {
    const ownOrder = ++order;
    const chosen = TABS.find((candidate) => candidate.key === (tab ?? TABS[0].key));
    leaveTab?.();
    leaveTab = null;
    if (!chosen) {
      replace(place, emptyState(t("shell.notFound"), t("shell.notFoundText"), { icon: "search" }));
      return;
    }
    app.setTitle(item ?? chosen.label(), t("operator.title"));
    drawHead(head, chosen.key);
    main.scrollTop = 0;
    await loadInto(place, chosen.load, async (module) => {
      const inner = h("div", { class: "stack operator-tab" });
      const left = await module.show(inner, { app, item });
      if (ownOrder === order) leaveTab = left ?? null;
      else left?.();
      return inner;
    });
  }

  await open(params);
  const leave = () => {
    order += 1; // a tab that is still being loaded is left once it is loaded
    leaveTab?.();
  };
  return { leave, update: open };
}

function drawHead(head, current) {
  const items = TABS.map(({ key, label }) => ({ key, label: label(), href: `#/operator/${key}` }));
  const links = tabLinks(t("operator.title"), items, current);
  replace(head, h("div", { class: "row row-apart" }, h("h1", {}, t("operator.title")), versionLine()), links);
  links.querySelector("[aria-current]")?.scrollIntoView({ block: "nearest", inline: "nearest" });
}

let version = null;

function versionLine() {
  const line = h("span", { class: "faint small" });
  version ??= api("GET", "/api/version").then((answer) => answer.version);
  version.then(
    (text) => (line.textContent = t("operator.version", { version: text })),
    () => (version = null),
  );
  return line;
}
