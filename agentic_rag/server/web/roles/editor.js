// The editor of a role: the source beside the text that a model gets. The source is checked while the user types, and
// the user can try it before saving it.

import { api } from "../api.js";
import { debounce, h, newId, replace } from "../dom.js";
import { draft, editing } from "../drafts.js";
import { inWords } from "../errors/text.js";
import { t } from "../i18n.js";
import {
  badge,
  button,
  doLater,
  emptyState,
  field,
  input,
  loadInto,
  menu,
  notice,
  openDialog,
  saveFile,
  select,
  toast,
  toastError,
} from "../ui.js";
import { historyOf } from "../domain/differences.js";
import { diffView } from "../domain/lines-diff.js";
import { sourceEditor } from "../domain/source-editor.js";
import { openTrial } from "./trial.js";

const WAIT_MS = 300;
const KINDS = ["thought", "execution", "knowledge", "manual"];
const keyOf = ({ kind, id }) => `${kind}/${id}`;

/** Return the draft of a role: `{files: {"kind/id": text}}` with the unsaved texts. */
export const draftOf = (domainId, role) => draft(`role.${domainId}.${role}`);

export const addressOfRole = (domainId, role) =>
  `/api/domains/${encodeURIComponent(domainId)}/roles/${encodeURIComponent(role)}`;

/** Show the editor of a role. Returns a function that ends the editor. */
export async function showRole(panel, { domain, role, app, place }) {
  const address = addressOfRole(domain.id, role);
  let end = null;
  await loadInto(
    panel,
    () => readRole(address),
    (view) => {
      const editor = new RoleEditor({ domain, role, app, place, address, view });
      end = () => editor.end();
      return editor.element;
    },
  );
  return () => end?.();
}

/** Load a role. If it does not exist yet, return the template of a new role (`isNew`). */
async function readRole(address) {
  try {
    return await api("GET", address);
  } catch (error) {
    if (error.status !== 404) throw error;
    const template = await api("POST", `${address}/check`, { body: {} });
    return { ...template, isNew: true };
  }
}

class RoleEditor {
  constructor({ domain, role, app, place, address, view }) {
    Object.assign(this, { domain, role, app, place, address });
    this.kept = draftOf(domain.id, role);
    this.told = h("div", { class: "stack-small" });
    this.origin = h("span", { class: "row" });
    this.tabs = h("div", { class: "tabs", role: "tablist", "aria-label": t("roles.files") });
    this.rendered = h("div", {
      class: "rendered",
      id: newId("rendered"),
      tabindex: 0,
      role: "region",
      "aria-label": t("roles.rendered"),
    });
    this.state = h("span", { class: "small soft", role: "status" });
    this.source = sourceEditor(t("roles.sourceText"), { rows: 26, oninput: () => this.typed() });
    this.save = button(t("roles.save"), { kind: "primary", onclick: () => this.store() });
    this.later = debounce(WAIT_MS, () => this.check());
    this.others = editing(`role.${domain.id}.${role}`, () =>
      replace(this.told, notice("warn", t("settings.otherTab"))),
    );
    this.others.onSaved(() => replace(this.told, notice("warn", h("p", {}, t("roles.savedElsewhere")))));
    this.take(view);
    this.element = this.build();
    this.choose(this.files[0]);
    this.checked(view);
    if (this.changed().length && !this.isNew) {
      this.told.append(notice("info", t("roles.draftBack")));
      this.check();
    } else if (this.isNew) this.check();
  }

  /** Use a role that the server sent. `typed`: the unsaved texts, which stay. */
  take(view, typed = this.kept.read()?.files ?? {}) {
    this.isNew = view.isNew === true;
    this.template = new Set(this.isNew ? view.files.flatMap((file) => linesOf(file.content ?? "")) : []);
    this.source_ = view.source;
    this.drawOrigin();
    this.paths = new Map(view.files.map((file) => [file.file, keyOf(file)]));
    this.files = view.files.map((file) => ({
      ...file,
      template: this.isNew ? (file.content ?? "") : null,
      stored: this.isNew ? null : (file.content ?? ""),
      text: typed[keyOf(file)] ?? file.content ?? "",
    }));
    for (const [key, text] of Object.entries(typed)) {
      const [kind, ...id] = key.split("/");
      if (!this.files.some((file) => keyOf(file) === key))
        this.files.push({ kind, id: id.join("/"), source: "workspace", file: "", stored: null, text });
    }
  }

  build() {
    const back = h("a", { class: "quiet-link small", href: this.place.href() }, t("roles.back"));
    const moreMenu = menu(t("roles.more"), () => [
      { label: t("roles.addFile"), icon: "add", act: () => this.addFile() },
      {
        label: t("roles.makePrimary"),
        icon: "person",
        act: () => this.makePrimary().catch(toastError),
        disabled: this.isNew || this.isPrimary || !this.mayDecide,
      },
      { label: t("roles.asSkill"), icon: "download", act: () => this.downloadSkill(), disabled: this.isNew },
      {
        label: t("roles.history"),
        icon: "history",
        act: () => this.app.navigate(historyOf(this.domain.id, "role", this.open.file)),
        disabled: !this.open?.file,
      },
      null,
      { label: t("roles.discard"), icon: "close", act: () => this.discard(), disabled: !this.changed().length },
      {
        label: t("roles.delete"),
        icon: "trash",
        danger: true,
        act: () => this.remove(),
        disabled: this.isNew || this.source_ !== "workspace",
      },
    ]);
    const head = h(
      "div",
      { class: "row row-apart" },
      h("div", { class: "row role-head" }, h("h2", { class: "wrap", dir: "auto" }, this.role), this.origin, this.state),
      h(
        "div",
        { class: "row" },
        moreMenu,
        button(t("roles.try"), { icon: "chat", onclick: () => this.tryOut() }),
        this.save,
      ),
    );
    const about = this.source_ === "builtin" && !this.isNew && notice("info", t("roles.builtinText"));
    return h(
      "div",
      { class: "stack" },
      back,
      head,
      about,
      this.told,
      h(
        "div",
        { class: "role-sides" },
        h("section", { class: "role-source", "aria-label": t("roles.source") }, this.tabs, this.source),
        h("div", { class: "role-result" }, h("h3", { class: "small soft" }, t("roles.rendered")), this.rendered),
      ),
    );
  }

  get isPrimary() {
    return (this.domain.settings.primaryRoleId ?? "assistant") === this.role;
  }

  get mayDecide() {
    return this.app.can(this.domain.id, "admin");
  }

  drawOrigin() {
    replace(
      this.origin,
      this.isPrimary && badge(t("roles.primary"), "ok"),
      badge(t(`roles.source.${this.isNew ? "new" : this.source_}`)),
    );
  }

  /** Make this role the primary role. It answers from the next message on. */
  async makePrimary() {
    const saved = await api("PATCH", `/api/domains/${encodeURIComponent(this.domain.id)}`, {
      body: { settings: { primaryRoleId: this.role } },
    });
    this.domain.settings = saved.settings;
    this.drawOrigin();
    replace(this.told);
    toast(t("roles.isPrimary", { role: this.role }));
  }

  changed() {
    return this.files.filter((file) => file.text !== file.stored);
  }

  choose(file) {
    this.open = file;
    if (this.source.value !== file.text) this.source.value = file.text;
    this.source.area.readOnly = false;
    this.drawTabs();
    this.mark();
  }

  drawTabs() {
    const count = (file) =>
      (this.findings ?? []).filter(
        (finding) => this.paths.get(finding.file) === keyOf(file) && finding.severity === "error",
      ).length;
    const focused = this.tabs.contains(document.activeElement);
    replace(
      this.tabs,
      this.files.map((file) => {
        const is = file === this.open;
        const errors = count(file);
        const name = `${file.id}.${file.kind}.md`;
        const head = h(
          "button",
          {
            type: "button",
            class: "tab role-tab",
            role: "tab",
            "aria-selected": String(is),
            tabindex: is ? 0 : -1,
            onclick: () => this.choose(file),
          },
          h("span", { class: "mono small" }, name),
          file.text !== file.stored &&
            h("span", { class: "dot" }, h("span", { class: "visually-hidden" }, t("settings.notSaved"))),
          errors > 0 && badge(errors, "bad"),
        );
        head.addEventListener("keydown", (event) => {
          const by = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
          if (!by) return;
          this.choose(this.files.at((this.files.indexOf(file) + by) % this.files.length));
          this.tabs.querySelector('[aria-selected="true"]').focus();
        });
        return head;
      }),
    );
    if (focused) this.tabs.querySelector('[aria-selected="true"]')?.focus();
  }

  typed() {
    this.open.text = this.source.value;
    this.keep();
    this.drawTabs();
    this.state.textContent = t("roles.checking");
    this.later();
  }

  keep() {
    const changed = this.changed();
    // The template of a new role becomes a draft when the user first types into it.
    this.kept.write(
      changed.length ? { files: Object.fromEntries(changed.map((file) => [keyOf(file), file.text])) } : null,
    );
    this.save.disabled = !changed.length;
  }

  drafts(withRole = false) {
    const isRole = (file) => file.kind === "role" && file.id === this.role;
    return this.files
      .filter((file) => file.text !== file.stored || (withRole && isRole(file)))
      .map(({ kind, id, text }) => ({ kind, id, content: text }));
  }

  async check() {
    this.asking?.abort();
    this.asking = new AbortController();
    try {
      const files = this.drafts(true);
      this.checked(await api("POST", `${this.address}/check`, { body: { files }, signal: this.asking.signal }));
    } catch (error) {
      if (error.name === "AbortError") return;
      this.state.textContent = error.code ? error.message : t("shell.failed");
    }
  }

  checked(view) {
    for (const file of view.files) this.paths.set(file.file, keyOf(file));
    this.findings = view.findings;
    const errors = view.findings.filter((finding) => finding.severity === "error").length;
    const others = view.findings.length - errors;
    this.state.textContent = errors
      ? t("roles.errors", { count: errors })
      : others
        ? t("roles.hints", { count: others })
        : t("roles.fine");
    this.state.className = errors ? "small bad" : "small soft";
    this.broken = errors > 0 || view.text === null;
    this.save.disabled = !this.changed().length;
    replace(this.rendered, view.text === null ? h("p", { class: "bad" }, t("roles.broken")) : renderedText(view.text));
    this.drawTabs();
    this.mark();
  }

  mark() {
    const ownFindings = (this.findings ?? []).filter((finding) => this.paths.get(finding.file) === keyOf(this.open));
    const elsewhere = (this.findings ?? []).filter((finding) => !this.paths.has(finding.file));
    const mark = ({ line, column, severity, message, hint }) => ({
      line,
      column,
      severity,
      message: inWords(message),
      hint: inWords(hint),
    });
    this.source.setMarks([
      ...ownFindings.map(mark),
      ...elsewhere.map((finding) => ({
        ...mark(finding),
        line: 1,
        column: 1,
        message: `${finding.file}: ${inWords(finding.message)}`,
      })),
    ]);
  }

  /** Remove the template's files that the user neither changed nor refers to. Then ask about lines of the template that
   * remain. Returns whether to save. */
  async settleTemplate() {
    if (!this.isNew) return true;
    const isMain = (file) => file.kind === "role" && file.id === this.role;
    const isUntouched = (file) => file.template === file.text && !isMain(file);
    const isReferred = (file) => this.files.some((referring) => referring.text.includes(referenceTo(file)));
    this.leaveOut((file) => isUntouched(file) && !isReferred(file));
    const lines = this.files.flatMap((file) => linesOf(file.text));
    const left = lines.filter((line) => this.template.has(line));
    if (!left.length) return true;
    const build = () => [
      h("p", {}, t("roles.templateLeftText")),
      h(
        "ul",
        {},
        left.map((line) => h("li", { dir: "auto" }, line)),
      ),
    ];
    const mayRemove = left.length < lines.length; // removing all lines would leave an empty role
    const actions = (close) => [
      button(t("roles.templateEdit"), { kind: mayRemove ? "" : "primary", onclick: () => close(false) }),
      mayRemove && button(t("roles.templateRemove"), { kind: "primary", onclick: () => close(true) }),
    ];
    if (!(await openDialog(t("roles.templateLeft"), { build, actions }).closed)) return false;
    const dropped = this.files.filter(isUntouched).map(referenceTo);
    this.leaveOut(isUntouched);
    const stays = (line) => !this.template.has(line.trim()) && !dropped.includes(line.trim());
    for (const file of this.files) file.text = withoutEmptySections(file.text.split("\n").filter(stays).join("\n"));
    this.choose(this.open);
    return true;
  }

  /** Remove files from a new role before it is saved. */
  leaveOut(isLeftOut) {
    this.files = this.files.filter((file) => !isLeftOut(file));
    if (!this.files.includes(this.open)) this.open = this.files[0];
    this.choose(this.open);
    this.keep();
  }

  async store() {
    if (!this.drafts().length || !(await this.settleTemplate())) return;
    const files = this.drafts();
    const sent = new Map(this.files.map((file) => [keyOf(file), file.text]));
    if (!(await this.settle())) return;
    const wasNew = this.isNew;
    try {
      const written = await api("PUT", this.address, { body: { files } });
      const typedMeanwhile = this.files.filter((file) => file.text !== sent.get(keyOf(file)));
      this.take(written, Object.fromEntries(typedMeanwhile.map((file) => [keyOf(file), file.text])));
      this.choose(this.files.find((file) => keyOf(file) === keyOf(this.open)) ?? this.files[0]);
      this.checked(written);
      this.others.saved(Date.now());
      const answers = this.domain.settings.primaryRoleId ?? "assistant";
      replace(
        this.told,
        wasNew &&
          !this.isPrimary &&
          notice(
            "info",
            h("p", {}, t("roles.otherAnswers", { role: answers })),
            this.mayDecide && button(t("roles.makePrimary"), { onclick: () => this.makePrimary() }),
          ),
      );
      this.keep();
      if (typedMeanwhile.length) this.later();
      toast(t("roles.saved"));
    } catch (error) {
      if (error.status !== 422) throw error;
      replace(
        this.told,
        notice("bad", h("p", { class: "strong" }, t("roles.notSaved")), h("p", { class: "plain" }, error.message)),
      );
      await this.check();
    }
  }

  /** Compare the loaded files with the stored files, because files have no version. If they differ, let the user
   * choose. Returns whether to save. */
  async settle() {
    if (this.isNew) return true;
    let stored;
    try {
      stored = await api("GET", this.address);
    } catch (error) {
      if (error.status === 404) return true; // the role was deleted, and saving creates it again
      throw error;
    }
    const theirs = stored.files.filter((file) =>
      this.files.some(
        (mine) =>
          keyOf(mine) === keyOf(file) &&
          mine.stored !== null &&
          mine.stored !== (file.content ?? "") &&
          mine.text !== (file.content ?? ""),
      ),
    );
    if (!theirs.length) return true;
    if (!this.element.isConnected) return false; // the text is kept as a draft
    const build = () => [
      h("p", {}, t("roles.conflictText")),
      theirs.map((file) =>
        h(
          "section",
          { class: "stack-small" },
          h("h3", { class: "mono" }, file.file),
          diffView(file.content ?? "", this.files.find((mine) => keyOf(mine) === keyOf(file)).text),
        ),
      ),
    ];
    const actions = (close) => [
      button(t("settings.takeTheirs"), { onclick: () => close("theirs") }),
      button(t("settings.keepMine"), { kind: "primary", onclick: () => close("mine") }),
    ];
    const chosen = await openDialog(t("settings.conflict"), { build, actions, wide: true }).closed;
    if (chosen === "theirs") {
      this.kept.clear();
      this.take(stored);
      this.choose(this.files[0]);
      this.checked(stored);
    }
    return chosen === "mine";
  }

  discard() {
    const was = this.changed().map((file) => [file, file.text]);
    const had = this.kept.read();
    for (const [file] of was) if (file.stored !== null) file.text = file.stored;
    const added = this.files.filter((file) => file.stored === null && !this.isNew);
    this.files = this.files.filter((file) => !added.includes(file));
    this.kept.clear();
    this.choose(this.files[0]);
    this.check();
    this.keep();
    const undo = () => {
      this.files.push(...added);
      for (const [file, text] of was) file.text = text;
      this.kept.write(had);
      this.choose(this.files[0]);
      this.check();
    };
    toast(t("settings.discarded"), { undo: { act: undo } });
  }

  remove() {
    const undo = (error) => (error ? this.place.reload() : this.app.navigate(this.place.href(this.role)));
    doLater(t("roles.deleted", { role: this.role }), {
      act: () => api("DELETE", this.address),
      undo,
      address: this.address,
    });
    this.app.navigate(this.place.href());
  }

  async addFile() {
    const kind = field(t("roles.fileKind"), select(KINDS.map((fileKind) => [fileKind, t(`roles.kind.${fileKind}`)])));
    const id = field(t("roles.fileId"), input({ value: `${this.role}-`, dir: "auto" }), {
      hint: t("roles.fileIdHint"),
    });
    const make = (close) => {
      const wanted = { kind: kind.control.value, id: id.control.value.trim() };
      if (!wanted.id || this.files.some((file) => keyOf(file) === keyOf(wanted))) return id.setError(t("roles.idBad"));
      return close(wanted);
    };
    const actions = (close) => [
      button(t("shell.cancel"), { onclick: () => close() }),
      button(t("roles.add"), { kind: "primary", onclick: () => make(close) }),
    ];
    const wanted = await openDialog(t("roles.addFile"), { build: () => [kind, id], actions }).closed;
    if (!wanted) return;
    const file = {
      ...wanted,
      source: "workspace",
      file: "",
      stored: null,
      text: `<${wanted.kind}>\n\n</${wanted.kind}>\n`,
    };
    this.files.push(file);
    this.keep();
    this.choose(file);
    toast(t("roles.refer", { reference: `@!${wanted.kind}://${wanted.id}` }));
    await this.check();
  }

  async downloadSkill() {
    const { name, content } = await api("GET", `${this.address}/skill`);
    saveFile(`${name}-SKILL.md`, "text/markdown", content);
  }

  async tryOut() {
    await this.check();
    if (!this.element.isConnected) return undefined; // the user left the page meanwhile
    if (this.broken) return toastError({ code: "BROKEN", message: t("roles.brokenTrial"), status: 0 });
    return openTrial({ domain: this.domain, role: this.role, files: () => this.drafts(true) });
  }

  end() {
    this.later.cancel();
    this.asking?.abort();
    this.others.end();
  }
}

const referenceTo = ({ kind, id }) => `@!${kind}://${id}`;

/** Return the lines of a file that its author writes: all but tags, headings and references. */
function linesOf(text) {
  return text
    .split("\n")
    .map((line) => line.trim())
    .filter((line) => line && !/^(?:<|#|@!)/.test(line));
}

const withoutEmptySections = (text) =>
  text.replace(/[ \t]*<(\w+)>\s*<\/\1>[ \t]*\n?/g, "").replace(/\n\s*\n(?=\s*\n|\s*<\/)/g, "\n");

/** Return the view of a role's text with its headings. HTML in the text is shown as text. */
function renderedText(text) {
  if (!text.trim()) return emptyState(t("roles.empty"), t("roles.emptyText"), { icon: "page" });
  return text.split("\n").map((line) => {
    const heading = /^(#{1,4})\s+(.*)$/.exec(line);
    return heading
      ? h("p", { class: `rendered-${heading[1].length}`, dir: "auto" }, heading[2])
      : h("p", { class: "rendered-line", dir: "auto" }, line || "\u00a0");
  });
}
