// The files attached to the question that is being written. Each file is uploaded and read at once, and its row shows
// the progress and the outcome.

import { api } from "../api.js";
import { uploadFiles } from "../domain/uploading.js";
import { h } from "../dom.js";
import { errorText } from "../errors/text.js";
import { formatPercent, t } from "../i18n.js";
import { badge, button, toast, toastError } from "../ui.js";

const MOST_FILES = 8;
const KINDS = { ready: "ok", failed: "bad" };
const pathOf = (conversationId) => `/api/conversations/${encodeURIComponent(conversationId)}/attachments`;

/** Return the reason why a file was refused. The server's list of all file types is too long for a line below the
 * file. */
const reasonOf = (error, name) => {
  if (error.code === "DOCUMENT_UNSUPPORTED" && error.message.includes("Supported: ")) return t("chat.fileUnsupported");
  const text = errorText(error).replace(`${name}: `, ""); // the row names the file already
  return text.charAt(0).toUpperCase() + text.slice(1);
};

/** The attached files. `isBusy`: a file is still being uploaded or read. `ready`: the files that can be sent with a
 * message.
 *
 * - `conversation()`: resolves to the id of the conversation that the files belong to
 * - `onchange()`: called when the status of a file has changed
 * - `onempty()`: called when the user has removed the last file */
export class AttachedFiles {
  constructor({ conversation, onchange, onempty }) {
    Object.assign(this, { conversation, onchange, onempty, items: [], last: Promise.resolve(), isOver: false });
    this.list = h("ul", { class: "composer-documents", "aria-label": t("chat.attachments") });
    this.note = h("p", { class: "small faint", role: "status", hidden: true }, t("chat.attachWait"));
    this.element = h("div", { class: "stack-small", hidden: true }, this.list, this.note);
  }

  get isBusy() {
    return this.items.some((item) => item.status === "sending" || item.status === "reading");
  }

  get ready() {
    return this.items
      .filter((item) => item.status === "ready")
      .map(({ id, name, mediaType }) => ({ id, name, mediaType }));
  }

  add(files) {
    for (const file of files) {
      if (this.items.length >= MOST_FILES)
        return void toast(t("chat.tooManyFiles", { count: MOST_FILES }), { kind: "error" });
      this.#send(this.#append({ file, name: file.name, status: "sending" }));
    }
    return undefined;
  }

  /** Show the files of a conversation that were not sent with a message. */
  async restore(conversationId) {
    const { items } = await api("GET", pathOf(conversationId));
    if (this.isOver) return;
    for (const item of items.filter((item) => !item.sent)) this.put([{ ...item, conversationId }]);
  }

  /** Show files that were read before. */
  put(files) {
    for (const file of files) this.#change(this.#append({ ...file, status: "ready" }), {});
  }

  /** Remove the files that were sent with a message. Files that could not be read are removed, too, because the user
   * has seen their errors. */
  clear() {
    for (const item of this.items.filter((item) => item.status === "ready" || item.status === "failed"))
      this.#takeOff(item);
  }

  /** Stop showing the files. Uploads continue, and the files are shown when the user opens the conversation again. */
  leave() {
    this.isOver = true;
  }

  #append({ file = null, id = null, conversationId = null, name, mediaType = "", notes = [], status }) {
    const item = {
      file,
      id,
      conversationId,
      name,
      mediaType,
      notes,
      status,
      sent: 0,
      reason: "",
      isRefused: false,
      stop: null,
    };
    const parts = (item.parts = {
      state: h("span"),
      why: h("bdi", {}),
      notes: h("p", { class: "small faint wrap", hidden: true }),
    });
    parts.reason = h("p", { class: "field-error wrap", role: "alert", hidden: true }, parts.why);
    parts.again = button(t("shell.tryAgain"), { kind: "quiet", icon: "retry", onclick: () => this.#send(item) });
    const off = button(t("chat.removeFile", { name }), {
      kind: "quiet",
      icon: "close",
      compact: true,
      onclick: () => this.#remove(item),
    });
    parts.row = h(
      "li",
      {},
      h("div", { class: "row" }, h("span", { class: "grow clip" }, h("bdi", {}, name)), parts.state, parts.again, off),
      parts.notes,
      parts.reason,
    );
    this.items.push(item);
    this.list.append(parts.row);
    return item;
  }

  /** Upload a file after the previous one, so that several uploads do not share a slow connection. */
  #send(item) {
    this.#change(item, { status: "sending", sent: 0, reason: "" });
    this.last = this.last.then(() => this.#upload(item)).catch(toastError);
  }

  async #upload(item) {
    if (!this.items.includes(item)) return;
    item.stop = new AbortController();
    try {
      item.conversationId = await this.conversation();
      await uploadFiles(pathOf(item.conversationId), [item.file], {
        signal: item.stop.signal,
        onProgress: (sent, of) =>
          item.status !== "ready" &&
          item.status !== "failed" &&
          this.#change(item, sent < of ? { sent: sent / of } : { status: "reading" }),
        onItems: ([answer]) => {
          const isRefused = answer.status === "refused";
          this.#change(
            item,
            isRefused
              ? { isRefused, status: "failed", reason: reasonOf(answer.error, item.name) }
              : { ...answer, notes: answer.notes ?? [] },
          );
        },
      });
    } catch (error) {
      if (!error.code) throw error;
      this.#change(item, { status: "failed", reason: error.message });
    }
  }

  /** Remove a file from the message. Its upload is stopped, or the uploaded file is deleted. */
  async #remove(item) {
    item.stop?.abort();
    this.#takeOff(item);
    if (item.id)
      await api(
        "DELETE",
        `${pathOf(item.conversationId ?? (await this.conversation()))}/${encodeURIComponent(item.id)}`,
      ).catch((error) => error.status === 404 || toastError(error));
    if (!this.items.length && !this.isOver) await this.onempty();
  }

  #takeOff(item) {
    this.items = this.items.filter((listed) => listed !== item);
    item.parts.row.remove();
    this.#draw();
  }

  #change(item, changed) {
    Object.assign(item, changed);
    const { state, reason, why, notes, again } = item.parts;
    const words =
      item.status === "sending"
        ? t("chat.fileSending", { share: formatPercent(item.sent) })
        : t(`chat.file.${item.status}`);
    state.replaceChildren(badge(words, KINDS[item.status] ?? "wait"));
    why.textContent = item.reason;
    reason.hidden = !item.reason;
    notes.textContent = item.notes.length ? t("chat.fileNotes", { notes: item.notes.join("; ") }) : "";
    notes.hidden = !item.notes.length;
    again.hidden = item.status !== "failed" || item.isRefused;
    this.#draw();
  }

  #draw() {
    this.element.hidden = !this.items.length;
    this.note.hidden = !this.isBusy;
    this.onchange();
  }
}
