// Older messages are loaded while a person scrolls up, and the visible ones keep their place.

import { h, replace } from "../dom.js";
import { t } from "../i18n.js";
import { button } from "../ui.js";

const SETTLING = 6;
const AHEAD = "600px 0px 0px";

export class OlderMessages {
  /** `frame`: what scrolls; `list`: holds the turns. `load()` resolves to a page before the first message, `{hasMore,
   * …}`; `put(page)` puts it into the list. */
  constructor({ frame, list, load, put }) {
    Object.assign(this, { frame, list, load, put, hasMore: false, begun: 0, loading: false });
    this.mark = h("div", { class: "older" });
    this.problem = h("div", { class: "small", role: "status", hidden: true });
    this.element = h("div", {}, this.mark, this.problem);
    // several of a frame's changes may come at once: the last one says how it is
    this.observer = new IntersectionObserver((entries) => entries.at(-1).isIntersecting && this.#next(), {
      root: frame,
      rootMargin: AHEAD,
    });
  }

  /** Begin with another list. A page that is being loaded for the previous one is dropped. */
  begin(hasMore) {
    this.begun += 1;
    this.#rest(hasMore);
  }

  end() {
    this.begun += 1;
    this.observer.disconnect();
  }

  async #next() {
    if (!this.hasMore || this.loading) return;
    const { begun } = this;
    this.#setLoading(true);
    this.problem.hidden = true;
    try {
      const page = await this.load();
      if (begun !== this.begun) return;
      await this.#keepPlace(() => this.put(page));
      if (begun === this.begun) this.#rest(page.hasMore);
    } catch (error) {
      if (begun !== this.begun) return;
      if (!error.code) console.error(error);
      this.#setLoading(false);
      const words = error.code ? error.message : t("shell.failed");
      replace(
        this.problem,
        t("chat.olderFailed"),
        " ",
        words,
        " ",
        button(t("shell.tryAgain"), { icon: "retry", class: "button button-small", onclick: () => this.#next() }),
      );
      this.problem.hidden = false;
    }
  }

  /** Observe the top again: a person who scrolled there while a page was loading needs the next one. */
  #rest(hasMore) {
    this.hasMore = hasMore;
    this.#setLoading(false);
    this.observer.unobserve(this.mark);
    if (hasMore) this.observer.observe(this.mark);
  }

  #setLoading(loading) {
    this.loading = loading;
    this.list.setAttribute("aria-busy", String(loading));
  }

  /** Change what is above, and keep what is read in its place until all is laid out: what comes near is so some frames
   * later, and seldom as high as it was taken for. Who scrolls meanwhile gets where they want. */
  #keepPlace(change) {
    let seen = this.#seen();
    let { scrollTop } = this.frame;
    let place = topOf(seen);
    change();
    const { begun } = this;
    return new Promise((resolve) => {
      const settle = (frames) => {
        if (begun !== this.begun || !seen) return resolve();
        const moved = this.frame.scrollTop - scrollTop;
        const off = topOf(seen) - (place - moved);
        if (off) this.frame.scrollTop += off;
        ({ scrollTop } = this.frame);
        if (moved) seen = this.#seen();
        place = topOf(seen);
        if (!frames) return resolve();
        return requestAnimationFrame(() => settle(frames - 1));
      };
      settle(SETTLING);
    });
  }

  /** Return the first visible turn. */
  #seen() {
    const top = topOf(this.frame);
    const turns = [...this.list.querySelectorAll(":scope > .turn")];
    return turns.find((turn) => turn.getBoundingClientRect().bottom > top) ?? turns.at(-1) ?? null;
  }
}

const topOf = (element) => element?.getBoundingClientRect().top ?? 0;
