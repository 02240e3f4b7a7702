// The source panel: a cited passage in its place. A page of a PDF with the words marked, a row below the header of its
// table, or the paragraphs around it; the original to download.

import { api, loadAll } from "./api.js";
import { h, loadStyle, replace } from "./dom.js";
import { formatNumber, loadWords, t } from "./i18n.js";
import { icon } from "./icons.js";
import { PageView } from "./source-page.js";
import { showHtml } from "./trusted.js";
import { button, copyButton, notice, openDialog, skeleton } from "./ui.js";

const MOST_ASKED = 6000; // bytes of the address that say what was cited: proxies refuse longer ones

/** Open the panel at a passage. `sentence`: the words of it that are cited, marked in it; "": the passage as a whole. */
export async function openSource({ domainId, documentId, chunkId, sentence = "" }) {
  await loadAll(loadWords("source"), loadStyle("/web/source.css"));
  const panel = new SourcePanel(domainId, documentId);
  await panel.show(chunkId, sentence);
  return panel.dialog;
}

class SourcePanel {
  constructor(domainId, documentId) {
    this.base = `/api/domains/${encodeURIComponent(domainId)}`;
    this.documentId = documentId;
    this.body = h("div", { class: "source" });
    this.dialog = openDialog(t("source.title"), { side: true, build: () => this.body, onclose: () => this.#leave() });
    this.dialog.element.classList.add("dialog-source");
  }

  #leave() {
    this.asking?.abort();
    this.pageView?.leave();
    this.pageView = null;
  }

  /** Show another passage. `step`: before or after, the button that asked for it, which gets the focus again. */
  async show(chunkId, sentence, step = "") {
    this.#leave();
    const asking = (this.asking = new AbortController());
    replace(this.body, skeleton(8));
    try {
      const query = { text: shortened(sentence), format: "html" };
      const place = await api("GET", `${this.base}/chunks/${encodeURIComponent(chunkId)}/place`, { query, signal: asking.signal });
      this.#draw(place, sentence);
    } catch (error) {
      if (error.name === "AbortError") return;
      if (!error.code) console.error(error);
      this.#fail(error, chunkId, sentence);
    }
    if (step) (this.body.querySelector(`[data-step="${step}"]:not(:disabled)`) ?? this.body.querySelector("[data-step]:not(:disabled)") ?? this.dialog.element.querySelector("button")).focus({ preventScroll: true });
  }

  #fail(error, chunkId, sentence) {
    const isGone = error.status === 404;
    const words = isGone ? t(sentence ? "source.gone" : "source.goneWhole") : error.code ? error.message : t("shell.failed");
    replace(
      this.body,
      notice("warn", h("p", {}, words)),
      !isGone && h("div", { class: "row" }, button(t("shell.tryAgain"), { icon: "retry", onclick: () => void this.show(chunkId, sentence) })),
      sentence && h("blockquote", { class: "passage passage-main plain", dir: "auto" }, sentence),
    );
  }

  #draw(place, sentence) {
    const { page, table } = place;
    const address = `${this.base}/documents/${encodeURIComponent(place.documentId ?? this.documentId)}`;
    const where = [page && t("source.page", { page: page.number }), place.cells, ...place.headingPath].filter(Boolean).join(" › ");
    if (page?.width) this.pageView = new PageView(address, page, place.text);
    replace(
      this.body,
      h(
        "div",
        { class: "stack-small" },
        h("h3", { class: "wrap", dir: "auto" }, place.documentName),
        where && h("p", { class: "faint small wrap", dir: "auto" }, where),
        h("div", { class: "row" }, h("a", { class: "button button-small", href: `${address}/file`, download: place.documentName }, icon("download", 14), t("source.download")), copyButton(t("source.copy"), place.text)),
      ),
      notesOf(place).map((words) => notice("info", h("p", { class: "wrap" }, words))),
      sentence && !place.cited && notice("warn", h("p", {}, t("source.notThere")), h("blockquote", { class: "plain", dir: "auto" }, sentence)),
      this.pageView?.element,
      h(
        "section",
        { class: "stack-small" },
        h("div", { class: "row" }, h("h4", { class: "grow" }, t(table ? "source.rows" : "source.passage")), this.#mover("before", place), this.#mover("after", place)),
        table ? tableOf(table) : [near(place, place.before), showHtml(h("div", { class: "passage passage-main wrap", dir: "auto" }), place.html), near(place, place.after)],
      ),
    );
    if (this.pageView) this.pageView.start();
    else (this.body.querySelector("mark") ?? this.body.querySelector(".passage-main"))?.scrollIntoView({ block: "center" });
  }

  #mover(step, place) {
    const to = place[step]?.chunkId;
    const label = step === "before" ? t("source.before") : t("source.after");
    return button(label, { kind: "quiet", icon: step === "before" ? "up" : "down", compact: true, disabled: !to, "data-step": step, onclick: () => void this.show(to, "", step) });
  }
}

/** Return what could not be shown, in words; what the page says of its own marks is said in the reader's language. */
function notesOf({ notes, page }) {
  if (!page || page.found === "whole") return notes;
  const [own, ...others] = notes;
  if (!page.width) return [t("source.noImage", { why: own }), ...others];
  return [page.found === "none" ? t("source.noMarks") : t("source.fewMarks"), ...others];
}

/** A paragraph beside the passage, below the heading it stands under where that is another one. */
function near(place, other) {
  if (!other) return null;
  const isElsewhere = other.headingPath.join("\n") !== place.headingPath.join("\n");
  return h("div", { class: "passage", dir: "auto" }, isElsewhere && other.headingPath.length > 0 && h("p", { class: "faint small wrap" }, other.headingPath.join(" › ")), h("p", { class: "plain wrap" }, other.text));
}

function tableOf({ header, rows }) {
  const hasNumbers = rows.some((row) => row.number !== undefined);
  const corner = hasNumbers && h("th", { scope: "col" }, h("span", { class: "visually-hidden" }, t("source.rowNumber")));
  const line = (row) =>
    h(
      "tr",
      { class: row.cited ? "row-cited" : null },
      hasNumbers && h("th", { scope: "row", class: "row-number" }, row.number === undefined ? "" : formatNumber(row.number, { useGrouping: false })),
      row.cells.map((cell) => h("td", { dir: "auto" }, row.cited && cell ? h("mark", {}, cell) : cell)),
    );
  const head = header.length > 0 && h("thead", {}, h("tr", {}, corner, header.map((cell) => h("th", { scope: "col", dir: "auto" }, cell))));
  return h("div", { class: "table-frame passage-main passage-table", tabindex: 0, role: "group", "aria-label": t("source.rows") }, h("table", {}, head, h("tbody", {}, rows.map(line))));
}

/** Return the beginning of a text that fits an address. */
function shortened(text) {
  let letters = [...text];
  while (letters.length && new URLSearchParams({ text: letters.join("") }).toString().length > MOST_ASKED) letters = letters.slice(0, Math.floor(letters.length * 0.8));
  return letters.join("");
}
