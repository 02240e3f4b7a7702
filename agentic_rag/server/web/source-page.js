// A page of a PDF as an image, with the passage and its cited words marked. Buttons show the previous and the next
// page. One page is loaded at a time, so that a document of any length opens at once.

import { api, apiFile } from "./api.js";
import { h, replace } from "./dom.js";
import { t } from "./i18n.js";
import { button, notice } from "./ui.js";

// Widths of the image in pixels. Requests use steps, so that the browser's cache often has the image already.
const WIDTHS = { step: 100, least: 200, most: 2000 };

/** The view of a PDF page. The caller calls `start()` once `element` is in the page, and `leave()` before it removes
 * it.
 *
 * - `address`: the address of the document
 * - `page`: the `page` of the place of a passage, as the API returns it
 * - `text`: the passage's text, for users who do not see the image */
export class PageView {
  constructor(address, page, text) {
    Object.assign(this, { address, page, text, number: page.number, count: null, scale: 1 });
    const small = { kind: "quiet", icon: "back", compact: true };
    this.previous = button(t("source.pageBefore"), { ...small, onclick: () => void this.#show(this.number - 1) });
    this.next = button(t("source.pageAfter"), {
      ...small,
      class: "button button-quiet button-compact page-next",
      onclick: () => void this.#show(this.number + 1),
    });
    this.label = h("span", { class: "small", "aria-live": "polite" });
    this.larger = button(t("source.enlarge"), {
      kind: "quiet",
      icon: "search",
      "aria-pressed": "false",
      onclick: () => void this.#enlarge(),
    });
    this.image = h("img", { class: "page-image", hidden: true });
    const box = (kind) => (box) =>
      h("span", {
        class: `page-mark ${kind}`,
        style: { "--x": box.x, "--y": box.y, "--w": box.width, "--h": box.height },
      });
    this.marks = h(
      "div",
      { class: "page-marks", "aria-hidden": "true" },
      page.passage.map(box("page-passage")),
      page.cited.map(box("page-cited")),
    );
    this.sheet = h(
      "div",
      { class: "page-sheet", style: { "--ratio": page.width / page.height } },
      this.image,
      this.marks,
    );
    this.frame = h("div", { class: "page-frame", tabindex: 0, role: "group" }, this.sheet);
    this.failure = h("div", { class: "stack-small", hidden: true });
    this.element = h(
      "section",
      { class: "source-page stack-small" },
      h("div", { class: "row" }, this.previous, this.label, this.next, h("span", { class: "grow" }), this.larger),
      this.failure,
      this.frame,
    );
  }

  start() {
    this.#show(this.number);
    const { marks, page } = this;
    // The sheet has the shape of the page before the image is loaded, so the view can scroll to the marks at once.
    (marks.querySelector(".page-cited") ?? marks.querySelector(".page-passage"))?.scrollIntoView({
      block: "nearest",
      inline: "nearest",
    });
    this.counting = new AbortController();
    api("GET", this.address, { signal: this.counting.signal }).then(
      ({ pageCount }) => this.#setCount(Math.max(pageCount ?? 0, page.number) || null),
      () => {}, // if the number of pages is unknown, a missing next page shows where the document ends
    );
  }

  leave() {
    this.counting?.abort();
    this.asking?.abort();
    this.#letGo();
  }

  #letGo() {
    if (this.shown) URL.revokeObjectURL(this.shown);
    this.shown = null;
  }

  async #enlarge() {
    this.scale = this.scale === 1 ? 2 : 1;
    this.larger.setAttribute("aria-pressed", String(this.scale > 1));
    this.sheet.classList.toggle("page-large", this.scale > 1);
    if (!this.marks.hidden)
      this.marks.querySelector(".page-cited")?.scrollIntoView({ block: "center", inline: "center" });
    await this.#show(this.number);
  }

  async #show(number) {
    this.asking?.abort();
    const { signal } = (this.asking = new AbortController());
    const isOther = number !== this.number || !this.shown;
    this.number = number;
    this.marks.hidden = number !== this.page.number;
    if (isOther) this.image.hidden = true;
    this.failure.hidden = true;
    this.frame.hidden = false;
    this.#drawBar();
    this.sheet.setAttribute("aria-busy", "true");
    try {
      const file = await apiFile(`${this.address}/pages/${number}`, {
        query: { width: this.#width() },
        accept: "image/png",
        signal,
      });
      await this.#put(file, number, signal);
    } catch (error) {
      if (error.name !== "AbortError" && !signal.aborted) this.#fail(error, number);
    } finally {
      if (!signal.aborted) this.sheet.removeAttribute("aria-busy");
    }
  }

  async #put(file, number, signal) {
    const address = URL.createObjectURL(file);
    const ready = new Image();
    ready.src = address;
    try {
      await ready.decode();
      signal.throwIfAborted();
    } catch (error) {
      URL.revokeObjectURL(address);
      throw error;
    }
    this.#letGo();
    this.shown = address;
    this.image.src = address;
    this.image.alt = number === this.page.number ? this.text : t("source.page", { page: number });
    this.image.hidden = false;
    this.sheet.style.setProperty("--ratio", ready.naturalWidth / ready.naturalHeight);
  }

  #fail(error, number) {
    if (error.code === "PAGE_NOT_FOUND" && number > this.page.number) this.#setCount(number - 1);
    const words =
      error.code === "PAGE_NOT_FOUND"
        ? t("source.noPage", { page: number })
        : error.code
          ? error.message
          : t("shell.failed");
    if (!error.code) console.error(error);
    this.frame.hidden = true;
    this.failure.hidden = false;
    replace(
      this.failure,
      notice("warn", h("p", {}, words)),
      error.status !== 404 && button(t("shell.tryAgain"), { icon: "retry", onclick: () => void this.#show(number) }),
    );
  }

  #setCount(count) {
    this.count = count;
    this.#drawBar();
  }

  #drawBar() {
    const { number, count } = this;
    const words = count ? t("source.pageOf", { page: number, of: count }) : t("source.page", { page: number });
    if (this.label.textContent !== words) this.label.textContent = words;
    this.frame.setAttribute("aria-label", t("source.page", { page: number }));
    const focused = document.activeElement;
    this.previous.disabled = number <= 1;
    this.next.disabled = count !== null && number >= count;
    if (focused === this.previous && this.previous.disabled) this.next.focus();
    if (focused === this.next && this.next.disabled) this.previous.focus();
  }

  /** Return the width in pixels to request for this screen. */
  #width() {
    const wanted = this.frame.clientWidth * this.scale * (devicePixelRatio || 1);
    return Math.min(WIDTHS.most, Math.max(WIDTHS.least, Math.ceil(wanted / WIDTHS.step) * WIDTHS.step));
  }
}
