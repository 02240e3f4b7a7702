// The export of a domain to one file (a bundle), and the import of a bundle: over an existing domain or as a new one.
// Before an import, the dialog shows the changes that it would make.

import { api, asQuery } from "../api.js";
import { h, replace } from "../dom.js";
import { loadWords, t } from "../i18n.js";
import { button, checkbox, field, input, notice, openDialog, progress, toastError } from "../ui.js";
import { reportView } from "./import-report.js";

/** Open the dialog that downloads a domain as a bundle. Resolves when the dialog is closed. */
export async function openExport(domain) {
  await loadWords("bundles");
  const memories = field(t("bundles.memories"), checkbox({}), { inline: true, hint: t("bundles.memoriesHint") });
  const address = () =>
    `/api/domains/${encodeURIComponent(domain.id)}/bundle${asQuery({ memories: memories.control.checked || null })}`;
  const link = (close) =>
    h(
      "a",
      { class: "button button-primary", href: address(), download: "", onclick: () => setTimeout(close) },
      t("bundles.download"),
    );
  let shown = null;
  memories.control.addEventListener("change", () => shown.setAttribute("href", address()));
  const actions = (close) => [button(t("shell.cancel"), { onclick: () => close() }), (shown = link(close))];
  await openDialog(t("bundles.export", { name: domain.name }), {
    build: () => [h("p", {}, t("bundles.exportText")), memories],
    actions,
  }).closed;
}

/** Open the dialog that imports a bundle. Resolves when the dialog is closed, to the report of the import, or to null
 * if nothing was imported.
 *
 * - `domain`: the domain to import over; null to create a new one. */
export async function openImport(domain) {
  await loadWords("bundles");
  const importing = new Import(domain);
  const title = domain ? t("bundles.over", { name: domain.name }) : t("bundles.new");
  const dialog = openDialog(title, { build: () => importing.element, wide: true });
  importing.close = dialog.close;
  await dialog.closed;
  importing.stop();
  return importing.done;
}

class Import {
  constructor(domain) {
    this.domain = domain;
    this.path = domain ? `/api/domains/${encodeURIComponent(domain.id)}/bundle` : "/api/bundles";
    this.file = null;
    this.done = null;
    this.running = null;
    this.close = () => {};
    this.name = domain ? null : field(t("bundles.name"), input({ maxlength: 200 }), { hint: t("bundles.nameHint") });
    this.others =
      domain &&
      field(t("bundles.removeOthers"), checkbox({ onchange: () => this.file && this.look().catch(toastError) }), {
        inline: true,
      });
    this.body = h("div", { class: "stack", "aria-live": "polite" });
    this.zone = this.dropZone();
    this.choice = h(
      "div",
      { class: "stack" },
      domain && h("p", {}, t("bundles.overText")),
      this.zone,
      this.name,
      this.others,
    );
    this.element = h("div", { class: "stack import" }, this.choice, this.body);
  }

  dropZone() {
    const file = h("input", {
      type: "file",
      accept: ".zip,application/zip",
      class: "visually-hidden",
      tabindex: -1,
      "aria-hidden": "true",
    });
    file.addEventListener("change", () => {
      this.take([...file.files]);
      file.value = "";
    });
    this.chosen = h("p", { class: "soft wrap" }, t("bundles.drop"));
    const zone = h(
      "section",
      { class: "drop", "aria-label": t("bundles.choose") },
      this.chosen,
      button(t("bundles.choose"), { icon: "upload", onclick: () => file.click() }),
      file,
    );
    const over = (is) => (event) => {
      if (!event.dataTransfer?.types.includes("Files")) return;
      event.preventDefault();
      zone.classList.toggle("drop-over", is);
    };
    zone.addEventListener("dragenter", over(true));
    zone.addEventListener("dragover", over(true));
    zone.addEventListener("dragleave", over(false));
    zone.addEventListener("drop", (event) => {
      over(false)(event);
      this.take([...(event.dataTransfer?.files ?? [])]);
    });
    return zone;
  }

  take(files) {
    if (files.length !== 1) return replace(this.body, notice("bad", t("bundles.oneFile")));
    [this.file] = files;
    this.chosen.textContent = this.file.name;
    return this.look().catch(toastError);
  }

  /** Show the changes that importing the file would make, without making them. */
  async look() {
    const report = await this.send(t("bundles.reading", { file: this.file.name }), { dryRun: true });
    if (!report) return;
    const act = button(t("bundles.now"), { kind: "primary", onclick: () => this.bring() });
    replace(
      this.body,
      h(
        "div",
        { class: "row row-apart" },
        h("p", { class: "strong wrap" }, t("bundles.wait", { name: this.name?.control.value.trim() || report.name })),
        act,
      ),
      reportView(report),
    );
  }

  async bring(bind = null) {
    const report = await this.send(t("bundles.importing", { file: this.file.name }), { bind });
    if (!report) return;
    this.done = report;
    this.choice.hidden = true;
    const address = `#/domains/${encodeURIComponent(report.domainId)}`;
    const open = h(
      "a",
      { class: "button button-primary", href: address, onclick: () => this.close() },
      t("bundles.open"),
    );
    const headline = t(this.domain ? "bundles.doneOver" : "bundles.done", { name: report.name });
    replace(
      this.body,
      h("div", { class: "row row-apart" }, h("p", { class: "strong wrap" }, headline), open),
      reportView(report, { onleave: () => this.close() }),
    );
    open.focus();
  }

  /** Send the file to the server. Returns the report, or null if the request was stopped, replaced by a later one, or
   * refused. The dialog shows the reason of a refusal. */
  async send(words, { dryRun = null, bind = null }) {
    this.stop();
    const request = new AbortController();
    this.running = request;
    const bar = progress(words, { stop: () => request.abort() });
    bar.set(0, 0);
    replace(this.body, bar);
    const query = this.domain
      ? { dryRun, bind, removeOthers: this.others.control.checked || null }
      : { dryRun, name: this.name.control.value.trim() };
    try {
      const body = new Blob([this.file], { type: "application/zip" });
      const report = await api("POST", this.path, { body, query, signal: request.signal });
      return this.running === request ? report : null;
    } catch (error) {
      if (this.running !== request) return null;
      if (error.name === "AbortError") replace(this.body, dryRun ? null : notice("warn", t("bundles.stopped")));
      else if (error.code === "BUNDLE_BINDS_SECRETS") replace(this.body, this.question(error.details.servers));
      else if (error.code) replace(this.body, notice("bad", error.message));
      else throw error;
      return null;
    }
  }

  /** Return a warning that lists the servers that would get secrets of the domain, and a button that confirms the
   * import. It is prominent, so that the user does not overlook it. */
  question(servers) {
    const line = ({ server, target, secrets }) =>
      h("li", { class: "wrap", dir: "auto" }, t("bundles.bindWhat", { server, target, secrets: secrets.join(", ") }));
    const names = servers.map(({ server }) => server).join(",");
    return [
      notice("bad", h("p", {}, t("bundles.bindText")), h("ul", {}, servers.map(line))),
      h(
        "div",
        { class: "row row-end" },
        button(t("shell.cancel"), { onclick: () => this.look() }),
        button(t("bundles.bind"), { kind: "danger", onclick: () => this.bring(names) }),
      ),
    ];
  }

  stop() {
    const last = this.running;
    this.running = null;
    last?.abort();
  }
}
