// Loads older messages when the user scrolls up. The visible messages keep their position.

import { h, replace } from "../dom.js";
import { t } from "../i18n.js";
import { button } from "../ui.js";

const SETTLING = 6;
const AHEAD = "600px 0px 0px";

export class OlderMessages {
  /** Create the loader.
   *
   * - `frame`: the element that scrolls
   * - `list`: the element that holds the turns
   * - `load()`: resolves to the page of messages before the first one, `{hasMore, …}`
   * - `put(page)`: puts it into the list */
  constructor({ frame, list, load, put }) {
    Object.assign(this, { frame, list, load, put, hasMore: false, begun: 0, loading: false });
    this.mark = h("div", { class: "older" });
    this.problem = h("div", { class: "small", role: "status", hidden: true });
    this.element = h("div", {}, this.mark, this.problem);
    // A callback may get several changes of one frame. The last one is the current state.
    this.observer = new IntersectionObserver((entries) => entries.at(-1).isIntersecting && this.#next(), {
      root: frame,
      rootMargin: AHEAD,
    });
  }

  /** Begin with another list. A page of the previous list that is still being loaded is dropped. */
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

  /** Observe the top again, because a user who scrolled there during a load needs the next page. */
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

  /** Change the content above, and keep the visible content in its position until the layout is complete. The browser
   * lays out hidden turns some frames later, and their height usually differs from the estimate. If the user scrolls
   * meanwhile, that movement is kept. */
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
