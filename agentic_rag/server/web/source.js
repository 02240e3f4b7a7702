// The source panel: a cited passage in its context. This is a page of a PDF with the words marked, a row below the
// header of its table, or the paragraphs around the passage. The user can download the original.

import { api, loadAll } from "./api.js";
import { h, loadStyle, replace } from "./dom.js";
import { formatNumber, loadWords, t } from "./i18n.js";
import { icon } from "./icons.js";
import { PageView } from "./source-page.js";
import { showHtml } from "./trusted.js";
import { addressOf, button, copyButton, notice, openDialog, skeleton } from "./ui.js";

const MOST_ASKED = 6000; // bytes of the query that has the cited text: proxies refuse longer addresses
const BESIDE = matchMedia("(min-width: 1100px)");

let shown = null;

/** Open the panel at a passage: beside the chat if there is room, else over the page.
 *
 * - `sentence`: the cited words, which are marked in the passage; "" for the passage as a whole
 * - `table`: the cited rows, shown instead of a passage
 * - `places`, `at`: all citations of the answer and the index of this one; arrow keys move through them
 * - `opener`: the element that gets the focus back
 * - `onshow(at)`: called with the index of the shown citation, and with null when the panel closes */
export async function openSource({
  domainId,
  documentId,
  chunkId,
  sentence = "",
  table = null,
  places = [],
  at = 0,
  opener = document.activeElement,
  onshow = () => {},
}) {
  const address = location.hash;
  await loadAll(loadWords("source"), loadStyle("/web/source.css"));
  if (location.hash !== address) return null; // the user has opened another page meanwhile
  shown?.close({ restore: false });
  const panel = new SourcePanel(domainId, {
    places: places.length ? places : [{ documentId, chunkId, sentence, table }],
    at,
    opener,
    onshow,
  });
  shown = panel;
  await panel.open();
  return panel;
}

class SourcePanel {
  constructor(domainId, { places, at, opener, onshow }) {
    this.base = `/api/domains/${encodeURIComponent(domainId)}`;
    Object.assign(this, { places, at, opener, onshow });
    this.body = h("div", { class: "source", tabindex: -1 });
    this.count = h("span", { "aria-live": "polite" });
    this.back = button(t("source.previous"), {
      kind: "quiet",
      icon: "left",
      compact: true,
      onclick: () => this.go(-1),
    });
    this.next = button(t("source.next"), { kind: "quiet", icon: "right", compact: true, onclick: () => this.go(1) });
    this.steps = h("footer", { class: "source-steps", hidden: places.length < 2 }, this.back, this.count, this.next);
    this.keys = (event) => this.#key(event);
    this.leaving = () => this.close({ restore: false });
    this.resizing = () => void this.#place();
  }

  async open() {
    document.addEventListener("keydown", this.keys);
    addEventListener("hashchange", this.leaving);
    BESIDE.addEventListener("change", this.resizing);
    this.#place();
    await this.#showPlace();
  }

  /** Put the panel into a column beside the chat, or into a dialog. */
  #place() {
    const chat = BESIDE.matches ? document.querySelector(".chat") : null;
    this.#takeOut();
    if (chat && !document.querySelector("dialog[open]")) {
      const close = button(t("shell.close"), {
        kind: "quiet",
        icon: "close",
        compact: true,
        class: "button button-quiet button-compact source-close",
        onclick: () => this.close(),
      });
      this.column = h(
        "section",
        { class: "source-column", role: "dialog", "aria-label": t("source.title") },
        close,
        this.body,
        this.steps,
      );
      chat.append(this.column);
      chat.classList.add("with-source");
      this.chat = chat;
    } else {
      const dialog = openDialog(t("source.title"), {
        side: true,
        build: () => this.body,
        onclose: () => dialog === this.dialog && ((this.dialog = null), this.close()),
      });
      dialog.element.classList.add("dialog-source");
      dialog.element.querySelector(".dialog-frame").append(this.steps);
      this.dialog = dialog;
    }
    this.body.focus({ preventScroll: true });
  }

  #takeOut() {
    this.column?.remove();
    this.chat?.classList.remove("with-source");
    const { dialog } = this;
    this.column = this.chat = this.dialog = null;
    dialog?.close();
  }

  /** Close the panel. The focus returns to the element that opened it. */
  close({ restore = true } = {}) {
    if (this.isClosed) return;
    this.isClosed = true;
    if (shown === this) shown = null;
    document.removeEventListener("keydown", this.keys);
    removeEventListener("hashchange", this.leaving);
    BESIDE.removeEventListener("change", this.resizing);
    this.#leave();
    this.#takeOut();
    this.onshow(null);
    if (restore && this.opener?.isConnected) this.opener.focus({ preventScroll: true });
  }

  /** Show the previous or the next citation. */
  go(by) {
    const at = this.at + by;
    if (at < 0 || at >= this.places.length) return;
    this.at = at;
    void this.#showPlace();
  }

  #key(event) {
    if (event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.target.closest?.("input, textarea, select, [contenteditable]")) return;
    const isOver =
      document.querySelector("[popover]:popover-open") ||
      [...document.querySelectorAll("dialog[open]")].some((dialog) => dialog !== this.dialog?.element);
    if (isOver) return;
    if (event.key === "Escape" && this.column) {
      event.preventDefault();
      this.close();
      return;
    }
    const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!by || this.places.length < 2 || event.target.closest?.("[role=tablist], .table-frame, .page-large")) return;
    event.preventDefault();
    this.go(document.documentElement.dir === "rtl" ? -by : by);
  }

  async #showPlace() {
    const { places, at } = this;
    this.count.textContent = t("source.numberOf", { at: at + 1, of: places.length });
    const focused = document.activeElement;
    this.back.disabled = at === 0;
    this.next.disabled = at === places.length - 1;
    if (focused?.disabled) (this.back.disabled ? this.next : this.back).focus();
    this.onshow(at);
    await this.show(places[at].chunkId, places[at].sentence ?? "");
  }

  /** Return the base address for requests about a passage: the domain, or the file that is attached to the
   * conversation. */
  #baseOf(chunkId) {
    return isAttached(chunkId) ? `/api/attachments/${encodeURIComponent(chunkId.split(".")[0])}` : this.base;
  }

  #leave() {
    this.asking?.abort();
    this.pageView?.leave();
    this.pageView = null;
  }

  /** Show a passage. `step`: "before" or "after", the pressed button, which gets the focus again. */
  async show(chunkId, sentence, step = "") {
    this.#leave();
    const asking = (this.asking = new AbortController());
    if (!this.body.firstChild) replace(this.body, skeleton(8));
    try {
      const query = { text: shortened(sentence), format: "html" };
      const place = await api("GET", `${this.#baseOf(chunkId)}/chunks/${encodeURIComponent(chunkId)}/place`, {
        query,
        signal: asking.signal,
      });
      this.#draw(place, sentence);
    } catch (error) {
      if (error.name === "AbortError") return;
      if (!error.code) console.error(error);
      this.#fail(error, chunkId, sentence);
    }
    if (step)
      (
        this.body.querySelector(`[data-step="${step}"]:not(:disabled)`) ??
        this.body.querySelector("[data-step]:not(:disabled)") ??
        this.body
      ).focus({ preventScroll: true });
  }

  #fail(error, chunkId, sentence) {
    const isGone = error.status === 404;
    const words = isGone
      ? t(sentence ? "source.gone" : "source.goneWhole")
      : error.code
        ? error.message
        : t("shell.failed");
    replace(
      this.body,
      notice("warn", h("p", {}, words)),
      !isGone &&
        h(
          "div",
          { class: "row" },
          button(t("shell.tryAgain"), { icon: "retry", onclick: () => void this.show(chunkId, sentence) }),
        ),
      sentence && h("blockquote", { class: "passage passage-main plain", dir: "auto" }, sentence),
    );
  }

  #draw(place, sentence) {
    const { page, table } = place;
    const address = isAttached(place.documentId)
      ? this.#baseOf(place.chunkId)
      : `${this.base}/documents/${encodeURIComponent(place.documentId)}`;
    const where = [page && t("source.page", { page: page.number }), place.cells, ...place.headingPath]
      .filter(Boolean)
      .join(" › ");
    if (page?.width) this.pageView = new PageView(address, page, place.text);
    replace(
      this.body,
      h(
        "header",
        { class: "source-head" },
        h(
          "div",
          { class: "grow" },
          h("h2", { class: "source-name wrap", dir: "auto" }, place.documentName),
          where && h("p", { class: "faint small wrap", dir: "auto" }, where),
          place.sourceUri && h("p", { class: "small" }, addressOf(place.sourceUri, t("source.openThere"))),
        ),
        h(
          "a",
          {
            class: "button button-quiet button-compact",
            href: `${address}/file`,
            download: place.documentName,
            "aria-label": t("source.download"),
            title: t("source.download"),
          },
          icon("download"),
        ),
      ),
      sentence &&
        place.cited &&
        !table &&
        h(
          "blockquote",
          { class: "source-quote" },
          h("p", { class: "wrap", dir: "auto" }, h("span", { class: "source-words" }, sentence.trim())),
          copyButton(t("source.copyQuote"), sentence.trim()),
        ),
      notesOf(place).map((words) => notice("info", h("p", { class: "wrap" }, words))),
      sentence &&
        !place.cited &&
        notice("warn", h("p", {}, t("source.notThere")), h("blockquote", { class: "plain", dir: "auto" }, sentence)),
      this.pageView?.element,
      h(
        "section",
        { class: "stack-small" },
        h(
          "div",
          { class: "row" },
          h("h3", { class: "grow" }, t(table ? "source.rows" : "source.passage")),
          copyButton(t("source.copy"), place.text),
          this.#mover("before", place),
          this.#mover("after", place),
        ),
        table
          ? tableOf(table)
          : [
              near(place, place.before),
              showHtml(h("div", { class: "passage passage-main wrap", dir: "auto" }), place.html),
              near(place, place.after),
            ],
      ),
    );
    this.body.scrollTop = 0;
    if (this.pageView) this.pageView.start();
    else
      (this.body.querySelector("mark") ?? this.body.querySelector(".passage-main"))?.scrollIntoView({
        block: "nearest",
      });
  }

  #mover(step, place) {
    const to = place[step]?.chunkId;
    const label = step === "before" ? t("source.before") : t("source.after");
    return button(label, {
      kind: "quiet",
      icon: step === "before" ? "up" : "down",
      compact: true,
      disabled: !to,
      "data-step": step,
      onclick: () => void this.show(to, "", step),
    });
  }
}

const isAttached = (id) => id.startsWith("att_");

/** Return the notes about parts that could not be shown. Notes about marks are translated. */
function notesOf({ notes, page }) {
  if (!page || page.found === "whole") return notes;
  const [ownNote, ...others] = notes;
  if (!page.width) return [t("source.noImage", { why: ownNote }), ...others];
  return [page.found === "none" ? t("source.noMarks") : t("source.fewMarks"), ...others];
}

/** Return the paragraph before or after the passage, below its heading if that differs. */
function near(place, neighbour) {
  if (!neighbour) return null;
  const isElsewhere = neighbour.headingPath.join("\n") !== place.headingPath.join("\n");
  return h(
    "div",
    { class: "passage", dir: "auto" },
    isElsewhere &&
      neighbour.headingPath.length > 0 &&
      h("p", { class: "faint small wrap" }, neighbour.headingPath.join(" › ")),
    h("p", { class: "plain wrap" }, neighbour.text),
  );
}

function tableOf({ header, rows }) {
  const hasNumbers = rows.some((row) => row.number !== undefined);
  const corner =
    hasNumbers && h("th", { scope: "col" }, h("span", { class: "visually-hidden" }, t("source.rowNumber")));
  const line = (row) =>
    h(
      "tr",
      { class: row.cited ? "row-cited" : null },
      hasNumbers &&
        h(
          "th",
          { scope: "row", class: "row-number" },
          row.number === undefined ? "" : formatNumber(row.number, { useGrouping: false }),
        ),
      row.cells.map((cell) => h("td", { dir: "auto" }, row.cited && cell ? h("mark", {}, cell) : cell)),
    );
  const head =
    header.length > 0 &&
    h(
      "thead",
      {},
      h(
        "tr",
        {},
        corner,
        header.map((cell) => h("th", { scope: "col", dir: "auto" }, cell)),
      ),
    );
  return h(
    "div",
    { class: "table-frame passage-main passage-table", tabindex: 0, role: "group", "aria-label": t("source.rows") },
    h("table", {}, head, h("tbody", {}, rows.map(line))),
  );
}

/** Return the beginning of a text, short enough for an address. */
function shortened(text) {
  let letters = [...text];
  while (letters.length && new URLSearchParams({ text: letters.join("") }).toString().length > MOST_ASKED)
    letters = letters.slice(0, Math.floor(letters.length * 0.8));
  return letters.join("");
}
