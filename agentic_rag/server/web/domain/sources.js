// The sources of a domain's documents: their state and errors, and dialogs that add, change and remove one.

import { api } from "../api.js";
import { h, replace } from "../dom.js";
import { errorText, loadErrorTexts } from "../errors/text.js";
import { t } from "../i18n.js";
import { dialogForm, moment, showProblem } from "../operator/parts.js";
import {
  addressOf,
  badge,
  button,
  checkbox,
  emptyState,
  field,
  input,
  loadInto,
  openDialog,
  select,
  skeleton,
  textarea,
  toast,
} from "../ui.js";
import { keepFocus, watch } from "../watch.js";
import { labelsIn } from "./settings-fields.js";

const LOOK_SECONDS = 1.5;
const KINDS = {
  mcp: () => t("sources.kindMcp"),
  folder: () => t("sources.kindFolder"),
  website: () => t("sources.kindWebsite"),
};
const linesIn = (text) =>
  text
    .split("\n")
    .map((line) => line.trim())
    .filter(Boolean);
const isDue = (source) => source.enabled && (!source.endedAt || new Date(source.nextAt) <= Date.now());
const isBusy = (source) => source.state !== "idle" || source.requested || isDue(source);

/** Show the sources of a domain in a dialog beside the page. Resolves when the dialog is closed. `onchange()`: called
 * when documents may have changed. */
export async function openSources(domain, onchange) {
  const base = `/api/domains/${encodeURIComponent(domain.id)}/sources`;
  const at = (source, ...parts) => [base, encodeURIComponent(source.id), ...parts].join("/");
  const list = h("div", {}, skeleton());
  const lost = h("div", { hidden: true });
  let watching = null;
  const again = () => watching?.now();

  const load = async () => {
    const [{ items }] = await Promise.all([api("GET", base), loadErrorTexts()]);
    return items;
  };
  const content = (sources) =>
    sources.length
      ? h("ul", { class: "rows", "aria-label": t("sources.title") }, sources.map(row))
      : emptyState(t("sources.none"), t("sources.noneText"), { icon: "page" });
  const draw = (sources) => {
    keepFocus(list, () => replace(list, content(sources)));
    if (watching) onchange();
  };

  function row(source) {
    const counts = t("sources.items", { count: source.items });
    const facts = [
      KINDS[source.kind](),
      counts,
      source.labels.length > 0 && source.labels.join(", "),
      source.endedAt && h("span", {}, t("sources.lastRun"), " ", moment(source.endedAt)),
    ].filter(Boolean);
    const failed =
      source.failedItems > 0 &&
      button(t("sources.failedItems", { count: source.failedItems }), {
        kind: "quiet",
        onclick: () => openItems(source),
      });
    return h(
      "li",
      { class: "rows-item" },
      h(
        "div",
        { class: "grow" },
        h("div", { class: "wrap", dir: "auto" }, source.name),
        h(
          "div",
          { class: "faint small fact-line" },
          facts.map((fact) => h("span", {}, fact)),
        ),
        source.problem && h("p", { class: "bad small wrap", role: "status" }, errorText(source.problem)),
        failed,
        source.notes.length > 0 &&
          h(
            "details",
            { class: "small" },
            h("summary", {}, t("sources.notes", { count: source.notes.length })),
            h(
              "ul",
              {},
              source.notes.map((note) => h("li", { class: "wrap", dir: "auto" }, note)),
            ),
          ),
      ),
      h(
        "div",
        { class: "rows-end" },
        stateBadge(source),
        button(t("sources.runNow"), {
          kind: "quiet",
          "aria-label": t("sources.runNamed", { name: source.name }),
          onclick: () => runNow(source),
        }),
        button(t("sources.edit"), {
          kind: "quiet",
          "aria-label": t("sources.editNamed", { name: source.name }),
          onclick: () => edit(source),
        }),
        button(t("sources.remove", { name: source.name }), {
          kind: "quiet",
          icon: "trash",
          compact: true,
          onclick: () => remove(source),
        }),
      ),
    );
  }

  function stateBadge(source) {
    if (source.state === "deleting") return badge(t("sources.deleting"), "wait");
    if (isBusy(source)) return badge(t("sources.running"), "wait");
    if (source.problem) return badge(t("sources.failing"), "bad");
    return source.enabled ? badge(t("sources.on"), "ok") : badge(t("sources.off"));
  }

  async function runNow(source) {
    await api("POST", at(source, "run"));
    toast(t("sources.runQueued", { name: source.name }));
    await again();
  }

  async function remove(source) {
    const choose = (documents, close) => async () => {
      await api("DELETE", at(source), { query: { documents } });
      close();
      await again();
    };
    const actions = (close) => [
      button(t("shell.cancel"), { onclick: () => close() }),
      button(t("sources.keepDocuments"), { onclick: choose("keep", close) }),
      button(t("sources.deleteDocuments"), { kind: "danger", onclick: choose("delete", close) }),
    ];
    await openDialog(t("sources.removeTitle", { name: source.name }), {
      build: () => [h("p", {}, t("sources.removeText"))],
      actions,
    }).closed;
  }

  async function openItems(source) {
    const inner = h("div", {});
    const dialog = openDialog(t("sources.failedOf", { name: source.name }), {
      wide: true,
      build: () => [inner],
      actions: (close) => [button(t("shell.close"), { onclick: () => close() })],
    });
    const shown = (item) =>
      h(
        "li",
        { class: "rows-item" },
        h("div", { class: "grow" }, addressOf(item.uri), h("p", { class: "bad small wrap" }, errorText(item.error))),
      );
    await loadInto(
      inner,
      () => api("GET", at(source, "items"), { query: { failed: true } }),
      ({ items }) => h("ul", { class: "rows" }, items.map(shown)),
    );
    await dialog.closed;
  }

  async function edit(source) {
    const kind = field(
      t("sources.kind"),
      select(
        Object.entries(KINDS).map(([key, label]) => [key, label()]),
        { value: source?.kind ?? "website", disabled: Boolean(source), onchange: () => showKind() },
      ),
    );
    const mono = (value, props = {}) => input({ value, dir: "ltr", class: "input mono", ...props });
    const name = field(t("sources.name"), input({ value: source?.name ?? "", dir: "auto" }));
    const servers = Object.entries(domain.settings?.mcpServers ?? {}).flatMap(([server, entry]) =>
      entry.command || entry.url ? [server] : [],
    ); // without the built-in servers
    const server = field(t("sources.server"), mono(source?.mcp?.server ?? servers[0] ?? ""), {
      hint: t("sources.serverHint"),
    });
    const resources = field(
      t("sources.resources"),
      textarea({ value: (source?.mcp?.resources ?? ["*"]).join("\n"), dir: "ltr" }),
      { hint: t("sources.resourcesHint") },
    );
    const path = field(t("sources.path"), mono(source?.folder?.path ?? ""), { hint: t("sources.pathHint") });
    const urls = field(t("sources.urls"), textarea({ value: (source?.website?.urls ?? []).join("\n"), dir: "ltr" }), {
      hint: t("sources.urlsHint"),
    });
    const sitemaps = field(
      t("sources.sitemaps"),
      textarea({ value: (source?.website?.sitemaps ?? []).join("\n"), dir: "ltr" }),
    );
    const labels = field(t("documents.labels"), input({ value: source?.labels.join(", ") ?? "", dir: "auto" }), {
      hint: t("sources.labelsHint"),
    });
    const interval = field(t("sources.interval"), mono(source?.intervalMinutes ?? 1440, { inputmode: "numeric" }));
    const grace = field(t("sources.grace"), mono(source?.graceHours ?? 24, { inputmode: "numeric" }), {
      hint: t("sources.graceHint"),
    });
    const exclude = field(t("sources.exclude"), textarea({ value: (source?.exclude ?? []).join("\n"), dir: "ltr" }), {
      hint: t("sources.excludeHint"),
    });
    const enabled = field(t("sources.enabled"), checkbox({ checked: source?.enabled ?? true }), { inline: true });
    const parts = { mcp: [server, resources], folder: [path], website: [urls, sitemaps] };
    const ofKind = h("div", { class: "stack" });
    const showKind = () => replace(ofKind, parts[kind.control.value]);
    showKind();
    const configs = {
      mcp: () => ({ ...source?.mcp, server: server.control.value.trim(), resources: linesIn(resources.control.value) }),
      folder: () => ({ ...source?.folder, path: path.control.value.trim() }),
      website: () => ({
        ...source?.website,
        urls: linesIn(urls.control.value),
        sitemaps: linesIn(sitemaps.control.value),
      }),
    };
    const send = async (close) => {
      const chosen = kind.control.value;
      const times = { intervalMinutes: Number(interval.control.value), graceHours: Number(grace.control.value) };
      const body = {
        name: name.control.value,
        [chosen]: configs[chosen](),
        labels: labelsIn(labels.control.value),
        exclude: linesIn(exclude.control.value),
        enabled: enabled.control.checked,
        ...times,
      };
      await (source ? api("PATCH", at(source), { body }) : api("POST", base, { body }));
      close();
      await again();
    };
    const fields = { name, labels, intervalMinutes: interval, graceHours: grace, exclude };
    const content = [name, kind, ofKind, labels, interval, grace, exclude, enabled];
    const build = (close) => dialogForm({ fields, content, action: t("sources.save"), send: () => send(close), close });
    await openDialog(source ? t("sources.editNamed", { name: source.name }) : t("sources.add"), { build }).closed;
  }

  const build = () => [
    h("p", { class: "soft" }, t("sources.text")),
    h("div", { class: "row" }, button(t("sources.add"), { kind: "primary", icon: "add", onclick: () => edit(null) })),
    lost,
    list,
  ];
  const dialog = openDialog(t("sources.title"), { side: true, build });
  watching = await watch(load, draw, { seconds: LOOK_SECONDS, onerror: showProblem(lost) }).catch(
    (error) => (dialog.close(), Promise.reject(error)),
  );
  await dialog.closed;
  watching();
  onchange();
}
