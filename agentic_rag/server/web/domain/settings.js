// The settings of a domain: changed here, kept while they are typed, saved against the version they were read from.

import { api } from "../api.js";
import { h, replace } from "../dom.js";
import { draft, editing } from "../drafts.js";
import { formatDate, t } from "../i18n.js";
import { button, field, input, notice, openDialog, textarea, toast, toastError } from "../ui.js";
import { promptPreview } from "./preview.js";
import { groupsOf, settingField } from "./settings-fields.js";

const same = (first, second) => JSON.stringify(first ?? null) === JSON.stringify(second ?? null);

export async function show(panel, { domain: given, place }) {
  const base = `/api/domains/${encodeURIComponent(given.id)}`;
  const [domain, schema, roles] = await Promise.all([api("GET", base), api("GET", "/api/domain-settings"), api("GET", `${base}/roles`)]);
  const kept = draft(`settings.${domain.id}`);
  let stored = domain;
  const told = h("div", { class: "stack-small" });

  const name = field(t("settings.name"), input({ maxlength: 200, oninput: () => change(), dir: "auto" }));
  const about = field(t("settings.about"), textarea({ rows: 2, oninput: () => change(), dir: "auto" }), { hint: t("settings.aboutHint") });
  const fields = [];
  const sections = groupsOf(schema).map(([group, keys]) => {
    const own = keys.map((key) => settingField(schema, key, { roles: roles.items, onchange: () => change() }));
    fields.push(...own);
    return section(group, own);
  });
  const preview = promptPreview(domain.id);
  const save = button(t("settings.save"), { kind: "primary", onclick: () => store() });
  const discard = button(t("settings.discard"), { onclick: () => undo() });
  const count = h("span", { class: "grow", role: "status" });
  const bar = h("div", { class: "save-bar", hidden: true }, count, discard, save);

  /** What was typed and is not stored: `{name?, description?, settings?}`; null resets a setting. */
  function changes() {
    const settings = {};
    for (const each of fields) {
      const value = each.read();
      if (!same(value, each.counting(stored.settings[each.key]))) settings[each.key] = value;
    }
    const found = {};
    if (name.control.value.trim() !== stored.name) found.name = name.control.value.trim();
    if (about.control.value !== stored.description) found.description = about.control.value;
    if (Object.keys(settings).length) found.settings = settings;
    return found;
  }

  function change() {
    const found = changes();
    const all = Object.keys(found.settings ?? {}).length + ("name" in found) + ("description" in found);
    bar.hidden = all === 0;
    count.textContent = t("settings.unsaved", { count: all });
    kept.write(all ? { version: stored.version, found } : null);
    preview.update(all ? { settings: found.settings ?? {} } : null);
  }

  function write(from) {
    name.control.value = from.name;
    about.control.value = from.description;
    for (const each of fields) each.write(from.settings[each.key]);
  }

  /** What stands in each field, with what puts it there again. */
  function typed() {
    const own = [name, about].map(({ control }) => [control.value, (value) => (control.value = value)]);
    return [...own, ...fields.map((each) => [each.read(), (value) => each.write(value)])];
  }

  function put(found) {
    if ("name" in found) name.control.value = found.name;
    if ("description" in found) about.control.value = found.description;
    for (const each of fields) if (found.settings && each.key in found.settings) each.write(found.settings[each.key]);
  }

  function undo() {
    const was = changes();
    write(stored);
    clearErrors();
    change();
    toast(t("settings.discarded"), { undo: { act: () => (put(was), change()) } });
  }

  function clearErrors() {
    for (const each of [name, about, ...fields]) each.setError("");
  }

  async function store({ version = stored.version } = {}) {
    const found = changes();
    const sent = typed();
    clearErrors();
    try {
      // a map that is replaced loses what was taken out of it; PATCH would keep it
      const saved = await api("PUT", base, { body: found, ifMatch: version });
      stored = { ...stored, ...saved };
      others.saved(saved.version);
      place.changed(stored);
      const now = typed();
      write(stored);
      for (const [at, [value, put]] of now.entries()) if (!same(value, sent[at][0])) put(value); // typed while it was saved
      change();
      tellNotes(saved);
      toast(t("settings.saved"));
    } catch (error) {
      if (error.code === "VERSION_CONFLICT") await settle(found);
      else if (!showError(error)) toastError(error);
    }
  }

  function showError(error) {
    const key = error.path.split(".")[error.path.startsWith("settings.") ? 1 : 0];
    const named = { name, description: about }[key] ?? fields.find((each) => each.key === key);
    if (!named) return false;
    named.setError(error.message);
    named.scrollIntoView({ block: "center" });
    (named.control ?? named.querySelector("input, select, textarea"))?.focus();
    return true;
  }

  function tellNotes({ changes: changed = [], warnings = [] }) {
    if (changed.length + warnings.length) told.append(notice("info", [...changed, ...warnings].map((each) => h("p", {}, `${each.path}: ${each.text}`))));
  }

  /** Somebody else saved in between: show what they changed and what is changed here, and let the person choose. */
  async function settle(mine) {
    const theirs = await api("GET", base);
    if (!panel.isConnected) return; // what is typed is kept as a draft
    const keys = new Set([...Object.keys(theirs.settings), ...Object.keys(stored.settings)]);
    keys.delete("mcpServers");
    const changed = [...keys].filter((key) => !same(theirs.settings[key], stored.settings[key]));
    const both = changed.filter((key) => mine.settings && key in mine.settings);
    const line = (key) => h("tr", {}, h("th", { scope: "row", class: "mono" }, key), h("td", { class: "mono wrap" }, shown(theirs.settings[key])), h("td", { class: "mono wrap" }, mine.settings && key in mine.settings ? shown(mine.settings[key]) : "—"));
    const build = () => [
      h("p", {}, t("settings.conflictText", { at: formatDate(theirs.updatedAt), version: theirs.version })),
      changed.length > 0 && h("div", { class: "table-frame", tabindex: 0, role: "group", "aria-label": t("settings.conflict") }, h("table", { class: "table" }, h("thead", {}, h("tr", {}, ["", t("settings.theirs"), t("settings.mine")].map((each) => h("th", { scope: "col" }, each)))), h("tbody", {}, changed.map(line)))),
      both.length > 0 && notice("warn", t("settings.conflictBoth", { count: both.length })),
    ];
    const actions = (close) => [button(t("settings.takeTheirs"), { onclick: () => close("theirs") }), button(t("settings.keepMine"), { kind: "primary", onclick: () => close("mine") })];
    const chosen = await openDialog(t("settings.conflict"), { build, actions, wide: true }).closed;
    if (!chosen) return;
    stored = theirs;
    write(theirs);
    if (chosen === "mine") {
      put(mine);
      await store();
    } else change();
    place.changed(theirs);
  }

  const others = editing(`settings.${domain.id}`, () => {
    if (!told.querySelector(".told-other")) told.append(h("div", { class: "told-other" }, notice("warn", t("settings.otherTab"))));
  });
  const stopHearing = others.onSaved(({ version }) => {
    if (version === stored.version || told.querySelector(".told-saved")) return;
    const box = h("div", { class: "told-saved" }, notice("warn", h("p", {}, t("settings.savedElsewhere")), button(t("settings.readAgain"), { onclick: () => readAgain(box) })));
    told.append(box);
  });

  /** Take what another tab saved; what is typed here stays. */
  async function readAgain(box) {
    const mine = changes();
    stored = await api("GET", base);
    write(stored);
    put(mine);
    change();
    place.changed(stored);
    box.remove();
  }

  write(stored);
  const before = kept.read();
  if (before) {
    put(before.found);
    told.append(notice("info", t(before.version === stored.version ? "settings.draftBack" : "settings.draftOlder")));
  }
  const form = h("form", { class: "stack", onsubmit: (event) => event.preventDefault() }, told, h("section", { class: "card setting-card" }, h("h2", {}, t("settings.group.general")), name, about), sections, bar);
  form.addEventListener("keydown", (event) => {
    if ((event.ctrlKey || event.metaKey) && event.key === "s") {
      event.preventDefault();
      if (!bar.hidden) save.click();
    }
  });
  replace(panel, h("div", { class: "beside" }, form, h("aside", { class: "beside-end" }, preview)));
  change();
  return () => {
    preview.stop();
    stopHearing();
    others.end();
  };
}

const shown = (value) => (value === undefined || value === null ? "—" : typeof value === "string" ? value : JSON.stringify(value));

function section(group, fields) {
  return h("section", { class: "card setting-card", "aria-label": t(`settings.group.${group}`) }, h("h2", {}, t(`settings.group.${group}`)), h("div", { class: "setting-grid" }, fields));
}
