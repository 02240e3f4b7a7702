// The prompt components of a domain: Markdown files that a model gets before the first message.

import { api } from "../api.js";
import { h, replace } from "../dom.js";
import { draft, draftsUnder, editing } from "../drafts.js";
import { compareTexts, t } from "../i18n.js";
import { button, doLater, emptyState, field, input, isDoomed, notice, openDialog, toast } from "../ui.js";
import { historyOf } from "./differences.js";
import { diffView } from "./lines-diff.js";
import { promptPreview } from "./preview.js";
import { sourceEditor } from "./source-editor.js";

const NAME = /^[A-Za-z0-9][A-Za-z0-9._-]{0,95}\.md$/;

export async function show(panel, { domain, rest, app, place }) {
  const base = `/api/domains/${encodeURIComponent(domain.id)}/prompt-components`;
  const preview = promptPreview(domain.id);
  const list = h("nav", { class: "side-list", "aria-label": t("settings.components") });
  const editor = h("div", { class: "grow" });
  const prefix = `prompt.${domain.id}.`;
  const draftOf = (name) => draft(`${prefix}${name}`);
  const addressOf = (name) => `${base}/${encodeURIComponent(name)}`;
  const read = async () => (await api("GET", base)).items.filter(({ name }) => !isDoomed(addressOf(name)));
  /** Return a file with its draft: `text` is the text in the editor, `version` the stored version that the text is
   * based on. An empty `version` means that the file was not stored yet. */
  const withDraft = (file) => ({ ...file, text: file.content ?? "", ...draftOf(file.name).read() });
  const byName = (first, second) => compareTexts(first.name, second.name);
  const stored = await read();
  const unsaved = draftsUnder(prefix).filter(
    (name) => !isDoomed(addressOf(name)) && !stored.some((file) => file.name === name),
  );
  let files = [...stored, ...unsaved.map((name) => ({ name, content: null, version: "" }))].map(withDraft).sort(byName);
  let open = null;
  let others = null;

  const isChanged = (file) => file.text !== (file.content ?? "");
  const keep = (file) => draftOf(file.name).write(isChanged(file) ? { text: file.text, version: file.version } : null);

  function drawList() {
    const links = files.map((file) =>
      h(
        "a",
        { class: "side-link", href: place.href(file.name), "aria-current": file.name === open?.name ? "page" : null },
        h("span", { class: "clip mono small" }, file.name),
        isChanged(file) &&
          h(
            "span",
            { class: "dot", title: t("settings.notSaved") },
            h("span", { class: "visually-hidden" }, t("settings.notSaved")),
          ),
      ),
    );
    replace(list, links, files.length > 0 && button(t("settings.newComponent"), { icon: "add", onclick: create }));
    list.hidden = !files.length;
  }

  const asDraft = () => {
    const changed = files.filter(isChanged);
    return changed.length ? { components: files.map((file) => ({ name: file.name, content: file.text })) } : null;
  };

  function drawEditor(name) {
    others?.end();
    others = null;
    open = files.find((file) => file.name === name) ?? files[0] ?? null;
    drawList();
    if (!open) {
      const start = button(t("settings.newComponent"), { kind: "primary", icon: "add", onclick: create });
      return replace(
        editor,
        emptyState(t("settings.noComponents"), t("settings.noComponentsText"), { icon: "page", actions: [start] }),
      );
    }
    const file = open;
    const notices = h("div", {});
    const source = sourceEditor(t("settings.componentText", { name: file.name }), {
      value: file.text,
      rows: 20,
      oninput: (value) => {
        file.text = value;
        keep(file);
        mark();
      },
    });
    const save = button(t("settings.save"), {
      kind: "primary",
      onclick: () => store(file).finally(() => queueMicrotask(mark)),
    });
    const mark = () => {
      save.disabled = file.text === file.content;
      drawList();
      preview.update(asDraft());
    };
    others = editing(`prompt.${domain.id}.${file.name}`, () =>
      replace(notices, notice("warn", t("settings.otherTab"))),
    );
    others.onSaved(() => replace(notices, notice("warn", t("settings.savedElsewhere"))));
    replace(
      editor,
      h(
        "div",
        { class: "stack-small" },
        notices,
        h(
          "div",
          { class: "row row-apart" },
          h("h2", { class: "mono wrap" }, file.name),
          h(
            "div",
            { class: "row" },
            h(
              "a",
              { class: "button button-quiet", href: historyOf(domain.id, "prompt", file.name) },
              t("settings.history"),
            ),
            button(t("settings.removeComponent"), { kind: "quiet", icon: "trash", onclick: () => remove(file) }),
            save,
          ),
        ),
        source,
        h("p", { class: "faint small" }, t("settings.componentHint")),
      ),
    );
    save.disabled = file.text === file.content;
    return undefined;
  }

  /** Save the text of a file, unless the stored file has changed since it was loaded. Text typed during the request is
   * kept. */
  async function store(file) {
    const { text } = file;
    try {
      const { version } = await api("PUT", addressOf(file.name), { body: { content: text }, ifMatch: file.version });
      Object.assign(file, { content: text, version });
    } catch (error) {
      if (error.code !== "COMPONENT_CHANGED") throw error;
      return await settle(file);
    }
    keep(file);
    if (open === file) others?.saved(file.version);
    return toast(t("settings.componentSaved"));
  }

  /** Resolve a conflict with another save: show the differences and let the user choose a text. */
  async function settle(file) {
    const theirs = (await read()).find((stored) => stored.name === file.name) ?? { content: null, version: "" };
    if (!panel.isConnected) return undefined; // the text is kept as a draft
    const build = () => [
      h("p", {}, t(theirs.version ? "settings.componentConflict" : "settings.componentGone")),
      diffView(theirs.content ?? "", file.text),
    ];
    const actions = (close) => [
      button(t("settings.takeTheirs"), { onclick: () => close("theirs") }),
      button(t("settings.keepMine"), { kind: "primary", onclick: () => close("mine") }),
    ];
    const chosen = await openDialog(t("settings.conflict"), { build, actions, wide: true }).closed;
    if (!chosen) return undefined;
    Object.assign(file, { content: theirs.content, version: theirs.version });
    if (chosen === "mine") return await store(file);
    file.text = theirs.content ?? "";
    keep(file);
    if (open === file) drawEditor(file.name);
    return undefined;
  }

  function remove(file) {
    const at = files.indexOf(file);
    files = files.filter((listed) => listed !== file);
    drawEditor();
    const undo = () => {
      // If the user has left this section and come back, the page shows a newer list than this one.
      if (!panel.isConnected) return place.reload();
      files = files.toSpliced(at, 0, file);
      return drawEditor(file.name);
    };
    const act = async () => {
      if (file.version) await api("DELETE", addressOf(file.name));
      draftOf(file.name).clear();
    };
    doLater(t("settings.componentRemoved", { name: file.name }), { act, undo, address: addressOf(file.name) });
  }

  async function create() {
    const name = field(t("settings.componentName"), input({ placeholder: "10-house-rules.md", dir: "ltr" }), {
      hint: t("settings.componentNameHint"),
    });
    const make = (close) => {
      const typed = name.control.value.trim();
      const wanted = typed.endsWith(".md") ? typed : `${typed}.md`;
      if (!NAME.test(wanted)) return name.refuse(t("settings.componentNameBad"));
      if (files.some((file) => file.name === wanted)) return name.refuse(t("settings.componentTwice"));
      return close(wanted);
    };
    const actions = (close) => [
      button(t("shell.cancel"), { onclick: () => close() }),
      button(t("settings.make"), { kind: "primary", onclick: () => make(close) }),
    ];
    const wanted = await openDialog(t("settings.newComponent"), { build: () => name, actions }).closed;
    if (!wanted) return;
    files = [...files, { name: wanted, content: null, version: "", text: "" }].sort(byName);
    app.navigate(place.href(wanted));
  }

  drawEditor(rest[0]);
  replace(
    panel,
    h(
      "div",
      { class: "beside" },
      h("div", { class: "with-list" }, list, editor),
      h("aside", { class: "beside-end" }, preview),
    ),
  );
  preview.update(asDraft());
  return {
    update: (parts) => drawEditor(parts?.[0]),
    leave: () => {
      preview.stop();
      others?.end();
    },
  };
}
