// Documents that are attached where one types: they go to the domain's documents, and each says how far it is.

import { api } from "../api.js";
import { uploadFiles } from "../domain/uploading.js";
import { h } from "../dom.js";
import { formatPercent, t } from "../i18n.js";
import { badge, button, toastError } from "../ui.js";

const LOOK_MS = 1200;
const KINDS = { indexed: "ok", failed: "bad" };

/** The documents that a domain gets from here. `onchange()`: one has come further; `isBusy`: one is on its way still. */
export class AttachedDocuments {
  constructor(domain, onchange) {
    Object.assign(this, { domain, onchange, items: [], last: Promise.resolve(), left: false });
    this.list = h("ul", { class: "composer-documents", "aria-label": t("documents.attached") });
    this.note = h("p", { class: "small faint", role: "status", hidden: true }, t("documents.attachWait"));
    this.element = h("div", { class: "stack-small", hidden: true }, this.list, this.note);
  }

  get isBusy() {
    return this.items.some((each) => each.status === "sending" || isRead(each.status));
  }

  add(files) {
    for (const file of files) {
      const item = { file, name: file.name, status: "sending", sent: 0, reason: "", isRefused: false, id: null, stop: null };
      item.parts = this.#parts(item);
      this.items.push(item);
      this.list.append(item.parts.row);
      this.#send(item);
    }
  }

  /** Those that are ready went with a message: they are no longer shown. */
  clear() {
    for (const item of this.items.filter((each) => each.status === "indexed")) this.#drop(item);
  }

  /** Look no more; what is on its way goes on. */
  leave() {
    this.left = true;
    clearTimeout(this.timer);
  }

  #parts(item) {
    const parts = { state: h("span"), why: h("bdi", {}) };
    parts.reason = h("p", { class: "field-error wrap", role: "alert", hidden: true }, parts.why);
    parts.again = button(t("documents.retry"), { kind: "quiet", icon: "retry", onclick: () => this.#again(item) });
    const off = button(t("documents.detach", { name: item.name }), { kind: "quiet", icon: "close", compact: true, onclick: () => this.#drop(item) });
    parts.row = h("li", {}, h("div", { class: "row" }, h("span", { class: "grow clip" }, h("bdi", {}, item.name)), parts.state, parts.again, off), parts.reason);
    return parts;
  }

  /** One after the other, so that a slow line is not shared by all of them. */
  #send(item) {
    this.#change(item, { status: "sending", sent: 0, reason: "" });
    this.last = this.last.then(() => this.#upload(item)).catch(toastError);
  }

  async #upload(item) {
    if (!this.items.includes(item)) return;
    item.stop = new AbortController();
    try {
      await uploadFiles(this.domain.id, [item.file], {
        signal: item.stop.signal,
        onProgress: (sent, of) => this.#change(item, { sent: of ? sent / of : 0 }),
        onItems: ([{ id = null, status, error }]) => {
          const isRefused = status === "refused";
          this.#change(item, { id, isRefused, status: isRefused ? "failed" : status, reason: error?.message ?? "" });
        },
      });
      this.#look();
    } catch (error) {
      if (!error.code) throw error;
      this.#change(item, { status: "failed", reason: error.message });
    }
  }

  async #again(item) {
    if (!item.id) return this.#send(item);
    await api("POST", `${this.#path(item)}/retry`);
    this.#change(item, { status: "queued", reason: "" });
    return this.#look();
  }

  /** Ask how far those are that are being read, until none is; a server that is away is asked again. */
  async #look() {
    clearTimeout(this.timer);
    for (const item of this.items.filter((each) => each.id && isRead(each.status))) {
      try {
        const { status, error } = await api("GET", this.#path(item));
        this.#change(item, { status, reason: error?.message ?? "" });
      } catch (error) {
        if (!error.isOffline) this.#change(item, { status: "failed", reason: error.message });
      }
    }
    clearTimeout(this.timer);
    if (!this.left && this.items.some((each) => each.id && isRead(each.status))) this.timer = setTimeout(() => this.#look(), LOOK_MS);
  }

  #path(item) {
    return `/api/domains/${encodeURIComponent(this.domain.id)}/documents/${encodeURIComponent(item.id)}`;
  }

  /** Take one off the list. What is being sent is stopped; what the domain has stays there. */
  #drop(item) {
    item.stop?.abort();
    this.items = this.items.filter((each) => each !== item);
    item.parts.row.remove();
    this.#draw();
  }

  #change(item, changed) {
    Object.assign(item, changed);
    const { state, reason, why, again } = item.parts;
    const words = item.status === "sending" ? t("documents.sendingShare", { share: formatPercent(item.sent) }) : t(`documents.state.${item.status}`);
    state.replaceChildren(badge(words, KINDS[item.status] ?? "wait"));
    why.textContent = item.reason;
    reason.hidden = !item.reason;
    again.hidden = item.status !== "failed" || item.isRefused;
    this.#draw();
  }

  #draw() {
    this.element.hidden = !this.items.length;
    this.note.hidden = !this.isBusy;
    this.onchange();
  }
}

const isRead = (status) => !["sending", "indexed", "failed"].includes(status);
