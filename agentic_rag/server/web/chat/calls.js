// The actions of an agent: calls with their arguments, progress and results, delegates in separate lanes, and the hits
// of searches.

import { api, lazily } from "../api.js";
import { h, replace } from "../dom.js";
import { formatDuration, formatNumber, formatPercent, hasWords, t } from "../i18n.js";
import { icon } from "../icons.js";
import { button, copyButton, openDialog, toastError } from "../ui.js";

/** Open a passage in the source panel, which is loaded when it is first needed. */
const sourcePanel = lazily((again) => import(`../source.js${again}`));
export const openSource = (place) =>
  sourcePanel()
    .then((module) => module.openSource(place))
    .catch(toastError);

/** Load the module for apps of MCP servers when the user first opens an app. */
const appParts = lazily((again) => import(`./app-frame.js${again}`));

const STATUS_KIND = { ok: "ok", error: "bad", denied: "bad", interrupted: "wait", waiting: "wait" };

/** Return the name of a tool for users: words for a known tool, else the name that its server uses. */
export function toolTitle(name, server = "") {
  const key = `chat.tool.${name}`;
  if (hasWords(key)) return t(key);
  return server && name.startsWith(`${server}__`) ? name.slice(server.length + 2) : name;
}

/** Return the argument that best describes a call, such as its query, or "". */
export function subject(call) {
  const input = call.arguments;
  if (!input) return "";
  const value =
    input.query ??
    input.question ??
    input.agent ??
    input.role ??
    input.document ??
    input.path ??
    input.url ??
    input.name;
  return typeof value === "string" ? value : "";
}

const pretty = (value) => (typeof value === "string" ? value : JSON.stringify(value, null, 2));

/** The card of a call. `update(call, around)` draws it; `around` is `{lanes, waits, hits, domainId, lane(lane),
 * wait(wait), more(), app}`. */
export class CallCard {
  constructor() {
    this.mark = h("span", { class: "call-mark" });
    this.title = h("span", { class: "call-title" });
    this.subject = h("span", { class: "call-subject clip", dir: "auto" });
    this.state = h("span", { class: "call-state" });
    this.rows = h("div", { class: "call-rows" });
    this.appPlace = h("div", { hidden: true });
    this.body = h("div", { class: "call-body" }, this.rows, this.appPlace);
    this.details = h(
      "details",
      { class: "call-details" },
      h("summary", { class: "call-head" }, this.mark, this.title, this.subject, this.state, icon("down", 16)),
      this.body,
    );
    this.lanes = h("div", { class: "lanes", hidden: true });
    this.waits = h("div", { class: "stack-small", hidden: true });
    this.element = h("div", { class: "call" }, this.details, this.waits, this.lanes);
    this.drawn = new Map();
    this.details.addEventListener("toggle", () => this.details.open && this.#drawBody());
  }

  update(call, around) {
    const isWaiting = (call.waitIds ?? []).some((id) => around.waits[id]?.state === "open");
    const changed = call !== this.call || around.hits !== this.around?.hits || isWaiting !== this.isWaiting;
    this.call = call;
    this.around = around;
    this.isWaiting = isWaiting;
    if (changed) this.#drawHead();
    if (changed && this.details.open) this.#drawBody();
    this.#drawWaits();
    this.#drawLanes();
  }

  #drawHead() {
    const { call } = this;
    const isRunning = call.status === "running" || call.status === "writing";
    this.element.dataset.status = call.status;
    // A call does not run while it waits for a person.
    const shown = isRunning && this.isWaiting ? "waiting" : call.status;
    replace(
      this.mark,
      isRunning && shown !== "waiting" ? h("span", { class: "spinner" }) : icon(MARKS[shown] ?? "tool", 16),
    );
    this.title.textContent = toolTitle(call.name, call.server);
    this.subject.textContent = subject(call) || (hasWords(`chat.tool.${call.name}`) ? "" : call.server);
    const parts = [t(`chat.call.${shown}`)];
    if (call.progress)
      parts.push(
        call.progress.total
          ? formatPercent(call.progress.progress / call.progress.total)
          : formatNumber(call.progress.progress),
      );
    if (call.durationMs !== null && call.durationMs !== undefined) parts.push(formatDuration(call.durationMs));
    this.state.textContent = parts.join(" · ");
    this.state.className = `call-state badge-text-${STATUS_KIND[shown] ?? "none"}`;
  }

  #drawBody() {
    const { call, around } = this;
    const written = call.arguments ? pretty(call.arguments) : call.written;
    const rows = [
      h(
        "dl",
        { class: "facts" },
        fact(t("chat.call.tool"), call.name),
        call.server && fact(t("chat.call.server"), call.server),
      ),
      written &&
        h("div", {}, heading(t("chat.call.arguments"), written), h("pre", { class: "code", tabindex: 0 }, written)),
      call.progress?.message && h("p", { class: "faint" }, call.progress.message),
      around.hits?.length > 0 && hitList(around.hits, around.domainId),
      call.result && this.#result(call.result),
    ];
    replace(this.rows, rows);
    this.#offerApp();
    this.app?.update(call);
    if (around.more && !this.asked) {
      this.asked = true;
      around.more().catch(toastError);
    }
  }

  /** Offer the app of the call's server once. An open app is never moved in the page, because a moved frame loads
   * again. */
  #offerApp() {
    if (!this.around.app || this.appPlace.firstChild) return;
    const open = async () => {
      try {
        const { AppFrame } = await appParts();
        await this.around.app.check();
        this.app = new AppFrame({ ...this.around.app, onEnd: () => this.#closeApp() });
        replace(this.appPlace, this.app.element);
        this.app.update(this.call);
      } catch (error) {
        toastError(error);
      }
    };
    replace(this.appPlace, button(t("chat.app.show"), { kind: "quiet", class: "button button-small", onclick: open }));
    this.appPlace.hidden = false;
  }

  #closeApp() {
    this.app = null;
    replace(this.appPlace);
    this.#offerApp();
  }

  #result({ content, structured, truncated, ref, images = [] }) {
    const whole =
      ref &&
      h(
        "a",
        { class: "button button-small", href: `/api/payloads/${encodeURIComponent(ref)}`, download: "" },
        icon("download", 14),
        t("chat.call.whole"),
      );
    return h(
      "div",
      {},
      heading(t("chat.call.result"), content),
      images.map((image) =>
        h("img", {
          class: "call-image",
          src: `/api/payloads/${encodeURIComponent(image.ref)}`,
          alt: t("chat.call.image"),
          loading: "lazy",
        }),
      ),
      (content || !images.length) && h("pre", { class: "code", tabindex: 0 }, content || t("chat.call.empty")),
      structured &&
        !structured._ref &&
        h(
          "details",
          {},
          h("summary", { class: "faint small" }, t("chat.call.structured")),
          h("pre", { class: "code", tabindex: 0 }, pretty(structured)),
        ),
      (truncated || ref) &&
        h("div", { class: "row" }, truncated && h("span", { class: "faint small" }, t("chat.call.truncated")), whole),
    );
  }

  #drawWaits() {
    const waits = (this.call.waitIds ?? [])
      .map((id) => this.around.waits[id])
      .filter((wait) => wait && wait.state !== "open"); // open waits are shown below the text
    this.waits.hidden = !waits.length;
    keyed(
      this.waits,
      this.drawn,
      waits,
      (wait) => `wait:${wait.waitId}`,
      (wait) => this.around.wait(wait),
    );
  }

  #drawLanes() {
    const lanes = Object.values(this.around.lanes).filter((lane) => lane.parentToolCallId === this.call.id);
    this.lanes.hidden = !lanes.length;
    this.lanes.classList.toggle("lanes-many", lanes.length > 1);
    keyed(
      this.lanes,
      this.drawn,
      lanes,
      (lane) => `lane:${lane.agent}`,
      (lane) => this.around.lane(lane),
    );
  }
}

const MARKS = { ok: "check", error: "alert", denied: "shield", interrupted: "stop", waiting: "wait" };

/** Update the elements of a list. For each value, the part with its key is found or created, updated and put in order.
 * Other parts are removed. */
export function keyed(place, drawn, values, keyOf, make) {
  let before = null;
  const keys = new Set();
  for (const value of values) {
    const key = keyOf(value);
    keys.add(key);
    let part = drawn.get(key);
    if (!part) drawn.set(key, (part = make(value)));
    part.update?.(value);
    const wanted = before ? before.nextSibling : place.firstChild;
    if (part.element !== wanted) place.insertBefore(part.element, wanted);
    before = part.element;
  }
  for (const [key, part] of drawn) {
    if (part.element.parentNode === place && !keys.has(key)) {
      part.element.remove();
      drawn.delete(key);
    }
  }
}

const fact = (name, value) => h("div", { class: "fact" }, h("dt", {}, name), h("dd", { class: "mono wrap" }, value));

const heading = (text, copied) =>
  h(
    "div",
    { class: "row row-apart call-part" },
    h("span", { class: "faint small" }, text),
    copied && copyButton(t("chat.copy"), copied, {}),
  );

/** Return a list of the hits of a search: document, page, heading, text and score. A card opens the passage. */
export function hitList(hits, domainId) {
  return h(
    "ol",
    { class: "hits" },
    hits.map((hit) => h("li", {}, hitCard(hit, domainId))),
  );
}

function hitCard(hit, domainId) {
  const open = () => openSource({ domainId, documentId: hit.documentId, chunkId: hit.chunkId, sentence: "" });
  const place = [hit.page && t("chat.page", { page: hit.page }), hit.cells, hit.headingPath?.at(-1)]
    .filter(Boolean)
    .join(", ");
  const content = [
    h(
      "span",
      { class: "hit-head" },
      icon("page", 15),
      h("span", { class: "strong clip", dir: "auto" }, hit.name),
      hit.score !== undefined &&
        hit.score !== null &&
        h(
          "span",
          { class: "hit-score", title: t("chat.score") },
          formatNumber(hit.score, { maximumFractionDigits: 2 }),
        ),
    ),
    place && h("span", { class: "faint small clip", dir: "auto", title: hit.headingPath?.join(" › ") }, place),
    h("span", { class: "hit-snippet", dir: "auto" }, hit.snippet),
    hit.legs && h("span", { class: "row small faint" }, hit.legs),
  ];
  return hit.chunkId
    ? h("button", { type: "button", class: "hit", onclick: open }, content)
    : h("div", { class: "hit" }, content);
}

/** Open a dialog with the stored searches of an answer and the scores of both search methods. */
export function openRetrievals(domainId, retrievalIds) {
  const dialog = openDialog(t("chat.searches"), {
    side: true,
    build: () => h("div", { class: "stack", ref: (element) => load(element) }),
  });
  async function load(place) {
    try {
      const retrievals = await Promise.all(
        retrievalIds.map((id) => api("GET", `/api/domains/${domainId}/retrievals/${id}`)),
      );
      replace(
        place,
        retrievals.map((details) => retrieval(details, domainId)),
      );
    } catch (error) {
      dialog.close();
      toastError(error);
    }
  }
}

function retrieval(details, domainId) {
  const candidates = new Map(details.candidates.map((candidate) => [candidate.chunkId, candidate]));
  const hits = details.hits.map((hit) => {
    const candidate = candidates.get(hit.chunkId ?? hit.id) ?? {};
    const legs = [leg("chat.legWords", candidate.lexical), leg("chat.legMeaning", candidate.dense)]
      .filter(Boolean)
      .join(" · ");
    const text =
      (hit.sentences ?? [])
        .map((sentence) => (typeof sentence === "string" ? sentence : (sentence.text ?? "")))
        .join(" ") ||
      candidate.snippet ||
      hit.snippet ||
      "";
    return {
      ...hit,
      name: hit.documentName ?? hit.name ?? candidate.documentName ?? "",
      chunkId: hit.chunkId ?? hit.chunkIds?.[0],
      documentId: hit.documentId ?? candidate.documentId,
      headingPath: hit.headingPath ?? candidate.headingPath,
      score: hit.score ?? candidate.relevanceScore,
      snippet: text,
      legs,
    };
  });
  return h(
    "section",
    { class: "stack-small" },
    h("h3", { class: "wrap" }, details.query),
    h(
      "p",
      { class: "faint small" },
      t("chat.foundOf", {
        count: details.hits.length,
        of: details.candidates.length,
        time: formatDuration(details.tookMs),
      }),
    ),
    hits.length ? hitList(hits, domainId) : h("p", { class: "soft" }, t("chat.foundNothing")),
  );
}

const leg = (key, score) =>
  score === null || score === undefined ? "" : `${t(key)} ${formatNumber(score, { maximumFractionDigits: 2 })}`;

/** The agent's thinking, folded. `update(item)` draws it. */
export class ThinkingFold {
  constructor() {
    this.text = document.createTextNode("");
    this.label = h("span", {});
    this.element = h(
      "details",
      { class: "thinking" },
      h("summary", {}, icon("thought", 16), this.label),
      h("div", { class: "plain thinking-text", tabindex: 0 }, this.text),
    );
  }

  update(item, isRunning) {
    this.text.data = item.text;
    this.label.textContent = t(isRunning ? "chat.thinking" : "chat.thought");
    this.element.hidden = !item.text;
  }
}

/** Return a table of cited rows below their header. */
export function rowsTable({ header, rows }, label) {
  const head =
    header?.some(Boolean) &&
    h(
      "thead",
      {},
      h(
        "tr",
        {},
        header.map((cell) => h("th", { scope: "col", dir: "auto" }, cell)),
      ),
    );
  return h(
    "div",
    { class: "table-frame rows-table", tabindex: 0, role: "group", "aria-label": label },
    h(
      "table",
      {},
      head,
      h(
        "tbody",
        {},
        rows.slice(0, 20).map((row) =>
          h(
            "tr",
            {},
            row.map((cell) => h("td", { dir: "auto" }, cell)),
          ),
        ),
      ),
    ),
  );
}
