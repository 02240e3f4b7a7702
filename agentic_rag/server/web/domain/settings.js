// The settings of a domain. Unsaved changes are kept as a draft. A save names the version that was loaded, so that the
// server refuses it if that version is no longer current.

import { api } from "../api.js";
import { h, replace } from "../dom.js";
import { draft, editing } from "../drafts.js";
import { formatDate, t } from "../i18n.js";
import { button, field, input, notice, openDialog, textarea, toast, toastError } from "../ui.js";
import { promptPreview } from "./preview.js";
import { groupsOf, settingField } from "./settings-fields.js";

const same = (first, second) => JSON.stringify(first ?? null) === JSON.stringify(second ?? null);

export async function show(panel, { domain: listed, place }) {
  const base = `/api/domains/${encodeURIComponent(listed.id)}`;
  const [domain, schema, roles] = await Promise.all([
    api("GET", base),
    api("GET", "/api/domain-settings"),
    api("GET", `${base}/roles`),
  ]);
  const typedDraft = draft(`settings.${domain.id}`);
  let stored = domain;
  const notices = h("div", { class: "stack-small" });

  const name = field(t("settings.name"), input({ maxlength: 200, oninput: () => change(), dir: "auto" }));
  const about = field(t("settings.about"), textarea({ rows: 2, oninput: () => change(), dir: "auto" }), {
    hint: t("settings.aboutHint"),
  });
  const fields = [];
  const sections = groupsOf(schema).map(([group, keys]) => {
    const members = keys.map((key) => settingField(schema, key, { roles: roles.items, onchange: () => change() }));
    fields.push(...members);
    return section(group, members);
  });
  const preview = promptPreview(domain.id);
  const save = button(t("settings.save"), { kind: "primary", onclick: () => store() });
  const discard = button(t("settings.discard"), { onclick: () => undo() });
  const count = h("span", { class: "grow", role: "status" });
  const bar = h("div", { class: "save-bar", hidden: true }, count, discard, save);

  /** Return the unsaved changes: `{name?, description?, settings?}`. In `settings`, null resets a setting. */
  function changes() {
    const settings = {};
    for (const field of fields) {
      const value = field.read();
      if (!same(value, field.counting(stored.settings[field.key]))) settings[field.key] = value;
    }
    const changed = {};
    if (name.control.value.trim() !== stored.name) changed.name = name.control.value.trim();
    if (about.control.value !== stored.description) changed.description = about.control.value;
    if (Object.keys(settings).length) changed.settings = settings;
    return changed;
  }

  function change() {
    const changed = changes();
    const changeCount = Object.keys(changed.settings ?? {}).length + ("name" in changed) + ("description" in changed);
    bar.hidden = changeCount === 0;
    count.textContent = t("settings.unsaved", { count: changeCount });
    typedDraft.write(changeCount ? { version: stored.version, found: changed } : null);
    preview.update(changeCount ? { settings: changed.settings ?? {} } : null);
  }

  function write(from) {
    name.control.value = from.name;
    about.control.value = from.description;
    for (const field of fields) field.write(from.settings[field.key]);
  }

  /** Return the value of each field with a function that restores it. */
  function typed() {
    const texts = [name, about].map(({ control }) => [control.value, (value) => (control.value = value)]);
    return [...texts, ...fields.map((field) => [field.read(), (value) => field.write(value)])];
  }

  function put(changed) {
    if ("name" in changed) name.control.value = changed.name;
    if ("description" in changed) about.control.value = changed.description;
    for (const field of fields)
      if (changed.settings && field.key in changed.settings) field.write(changed.settings[field.key]);
  }

  function undo() {
    const was = changes();
    write(stored);
    clearErrors();
    change();
    toast(t("settings.discarded"), { undo: { act: () => (put(was), change()) } });
  }

  function clearErrors() {
    for (const control of [name, about, ...fields]) control.setError("");
  }

  async function store({ version = stored.version } = {}) {
    const changed = changes();
    const sent = typed();
    clearErrors();
    try {
      // PUT replaces a map, so an entry that the user removed is removed. PATCH would keep it.
      const saved = await api("PUT", base, { body: changed, ifMatch: version });
      stored = { ...stored, ...saved };
      others.saved(saved.version);
      place.changed(stored);
      const typedNow = typed();
      write(stored);
      // Restore the values that the user typed during the request.
      for (const [at, [value, put]] of typedNow.entries()) if (!same(value, sent[at][0])) put(value);
      change();
      tellNotes(saved);
      toast(t("settings.saved"));
    } catch (error) {
      if (error.code === "VERSION_CONFLICT") await settle(changed);
      else if (!showError(error)) toastError(error);
    }
  }

  function showError(error) {
    if (!error.path) return false;
    const key = error.path.split(".")[error.path.startsWith("settings.") ? 1 : 0];
    const named = { name, description: about }[key] ?? fields.find((field) => field.key === key);
    if (!named) return false;
    named.setError(error.message);
    named.scrollIntoView({ block: "center" });
    (named.control ?? named.querySelector("input, select, textarea"))?.focus();
    return true;
  }

  function tellNotes({ changes: changed = [], warnings = [] }) {
    if (changed.length + warnings.length)
      notices.append(
        notice(
          "info",
          [...changed, ...warnings].map((note) => h("p", {}, `${note.path}: ${note.text}`)),
        ),
      );
  }

  /** Resolve a conflict with another save: show both changes and let the user choose. */
  async function settle(mine) {
    const theirs = await api("GET", base);
    if (!panel.isConnected) return; // the changes are kept as a draft
    const keys = new Set([...Object.keys(theirs.settings), ...Object.keys(stored.settings)]);
    keys.delete("mcpServers");
    const changed = [...keys].filter((key) => !same(theirs.settings[key], stored.settings[key]));
    const both = changed.filter((key) => mine.settings && key in mine.settings);
    const line = (key) =>
      h(
        "tr",
        {},
        h("th", { scope: "row", class: "mono" }, key),
        h("td", { class: "mono wrap" }, shown(theirs.settings[key])),
        h("td", { class: "mono wrap" }, mine.settings && key in mine.settings ? shown(mine.settings[key]) : "—"),
      );
    const build = () => [
      h("p", {}, t("settings.conflictText", { at: formatDate(theirs.updatedAt), version: theirs.version })),
      changed.length > 0 &&
        h(
          "div",
          { class: "table-frame", tabindex: 0, role: "group", "aria-label": t("settings.conflict") },
          h(
            "table",
            { class: "table" },
            h(
              "thead",
              {},
              h(
                "tr",
                {},
                ["", t("settings.theirs"), t("settings.mine")].map((heading) => h("th", { scope: "col" }, heading)),
              ),
            ),
            h("tbody", {}, changed.map(line)),
          ),
        ),
      both.length > 0 && notice("warn", t("settings.conflictBoth", { count: both.length })),
    ];
    const actions = (close) => [
      button(t("settings.takeTheirs"), { onclick: () => close("theirs") }),
      button(t("settings.keepMine"), { kind: "primary", onclick: () => close("mine") }),
    ];
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
    if (!notices.querySelector(".told-other"))
      notices.append(h("div", { class: "told-other" }, notice("warn", t("settings.otherTab"))));
  });
  const stopHearing = others.onSaved(({ version }) => {
    if (version === stored.version || notices.querySelector(".told-saved")) return;
    const box = h(
      "div",
      { class: "told-saved" },
      notice(
        "warn",
        h("p", {}, t("settings.savedElsewhere")),
        button(t("settings.readAgain"), { onclick: () => readAgain(box) }),
      ),
    );
    notices.append(box);
  });

  /** Load the settings that another tab saved. The unsaved changes of this tab stay. */
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
  const before = typedDraft.read();
  if (before) {
    put(before.found);
    notices.append(notice("info", t(before.version === stored.version ? "settings.draftBack" : "settings.draftOlder")));
  }
  const form = h(
    "form",
    { class: "stack", onsubmit: (event) => event.preventDefault() },
    notices,
    h("section", { class: "card setting-card" }, h("h2", {}, t("settings.group.general")), name, about),
    sections,
    bar,
  );
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

const shown = (value) =>
  value === undefined || value === null ? "—" : typeof value === "string" ? value : JSON.stringify(value);

function section(group, fields) {
  return h(
    "section",
    { class: "card setting-card", "aria-label": t(`settings.group.${group}`) },
    h("h2", {}, t(`settings.group.${group}`)),
    h("div", { class: "setting-grid" }, fields),
  );
}
