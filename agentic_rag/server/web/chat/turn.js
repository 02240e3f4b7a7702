// A turn on the page: the question, and the answer as it comes or as it is stored.

import { lazily } from "../api.js";
import { h, replace } from "../dom.js";
import { formatDate, formatDuration, formatMoney, formatNumber, formatPercent, hasWords, t } from "../i18n.js";
import { icon } from "../icons.js";
import { isSearching } from "../stream.js";
import { showHtml } from "../trusted.js";
import { button, copyButton, notice, toastError } from "../ui.js";
import { CallCard, ThinkingFold, hitList, keyed, openSource, searchesButton, toolTitle } from "./calls.js";
import { GrowingText } from "./text.js";

const waitParts = lazily((again) => import(`./waits.js${again}`));
const RUNNING = new Set(["running", "waiting"]);

/** The answer of a turn. `around`: `{domainId, answer, mayAnswer, allowAlways, retry, rate, markdown, children, calls}`. `update(view)` where
 * view is `stream.js`'s, or `viewOfMessage`'s of a stored one. */
export class AnswerPart {
  constructor(around) {
    this.around = around;
    this.items = new Map();
    this.place = h("div", { class: "answer-items" });
    this.line = h("p", { class: "answer-line", hidden: true });
    this.sources = h("div", { class: "answer-sources", hidden: true });
    this.failure = h("div", { hidden: true });
    this.foot = h("footer", { class: "answer-foot" });
    this.element = h("div", { class: "answer" }, this.place, this.line, this.failure, this.sources, this.foot);
    this.element.addEventListener("click", (event) => this.#openCitation(event));
    this.element.addEventListener("keydown", (event) => (event.key === "Enter" || event.key === " ") && event.target.matches(".citation") && (event.preventDefault(), this.#openCitation(event)));
    this.loaded = {};
  }

  update(view) {
    this.view = view;
    this.#drawItems(this.place, this.items, view.items, view);
    this.#drawLine();
    this.#drawSources();
    this.#drawFailure();
    this.#drawFoot();
  }

  #openCitation(event) {
    const mark = event.target.closest(".citation");
    if (!mark) return;
    const number = Number(mark.dataset.number);
    const found = this.view.references.find((each) => each.number === number);
    openSource({ domainId: this.around.domainId, documentId: found?.documentId ?? mark.dataset.document, chunkId: found?.chunkId ?? mark.dataset.chunk, sentence: found?.citedText ?? "" });
  }

  #drawItems(place, drawn, items, view) {
    const isRunning = RUNNING.has(view.status);
    const shown = grouped(items);
    keyed(place, drawn, shown, ({ key }) => key, ({ item }) => this.#make(item));
    for (const [at, { key, item, hits }] of shown.entries()) {
      const part = drawn.get(key);
      const isLast = at === shown.length - 1;
      part.draw(item, { hits, isRunning: isRunning && isLast, isEnd: !isRunning || !isLast, view });
    }
  }

  #make(item) {
    switch (item.kind) {
      case "text":
        return item.html === undefined ? growing() : stored();
      case "thinking": {
        const fold = new ThinkingFold();
        return { element: fold.element, draw: (each, { isRunning }) => fold.update(each, isRunning) };
      }
      case "call": {
        const card = new CallCard();
        return { element: card.element, draw: (each, { hits, view }) => card.update(each, this.#aroundCall(each, hits, view)) };
      }
      case "retrieval":
        return fixed(h("div", { class: "card" }, h("p", { class: "faint small" }, item.query), hitList(item.hits, this.around.domainId)));
      case "wait": {
        const card = this.#waitCard();
        return { element: card.element, draw: (each, { view }) => view.waits[each.id] && card.update(view.waits[each.id]) };
      }
      case "compacted":
        return fixed(h("p", { class: "divider" }, t("chat.compacted", { count: item.messages })));
      default:
        return fixed(h("p", { class: "answer-notice" }, icon("info", 16), h("span", { class: "wrap" }, item.message)));
    }
  }

  #aroundCall(call, hits, view) {
    const { domainId } = this.around;
    const isStored = call.stored === true;
    return {
      lanes: view.lanes,
      waits: view.waits,
      hits,
      domainId,
      more: isStored && (call.name === "delegate" || call.durationMs === null) ? () => this.around.more(view, call) : null,
      lane: (lane) => this.#lane(lane),
      wait: () => this.#waitCard(),
    };
  }

  /** A wait's card; what it is made of is loaded with the first one. */
  #waitCard() {
    const element = h("div", {});
    let card;
    let latest;
    waitParts().then(({ WaitCard }) => {
      card = new WaitCard(this.around.answer, this.around.mayAnswer, this.around.allowAlways);
      element.append(card.element);
      card.update(latest);
    }, toastError);
    return { element, update: (wait) => ((latest = wait), card?.update(wait)) };
  }

  #lane(lane) {
    const drawn = new Map();
    const place = h("div", { class: "answer-items" });
    const element = h("section", { class: "lane", tabindex: 0, "aria-label": t("chat.delegate", { name: lane.agent }) }, h("p", { class: "lane-head" }, icon("person", 15), lane.agent), place);
    return { element, update: (each) => this.#drawItems(place, drawn, each.items, this.view) };
  }

  #drawLine() {
    const { view } = this;
    const words = lineOf(view);
    this.line.hidden = !words;
    if (words && this.line.dataset.words !== words) {
      this.line.dataset.words = words;
      replace(this.line, h("span", { class: "spinner" }), h("span", {}, words));
    }
  }

  #drawSources() {
    const { references, status } = this.view;
    const key = RUNNING.has(status) ? "" : references.map((each) => each.number).join();
    if (this.sources.dataset.key === key) return;
    this.sources.dataset.key = key;
    this.sources.hidden = !key;
    const line = (each) => h("li", {}, h("button", { type: "button", class: "source-chip", onclick: () => openSource({ domainId: this.around.domainId, documentId: each.documentId, chunkId: each.chunkId, sentence: each.citedText }) }, h("span", { class: "source-number" }, formatNumber(each.number)), h("span", { class: "clip", dir: "auto" }, each.documentName), each.page && h("span", { class: "faint" }, t("chat.page", { page: each.page })), each.scanned && h("span", { class: "faint" }, t("chat.scanned")), each.table && h("span", { class: "faint clip", dir: "auto" }, rowWords(each.table)), each.verified === false && h("span", { class: "badge badge-wait" }, t("chat.unverified"))));
    replace(this.sources, h("p", { class: "faint small sources-head" }, t("chat.sources", { count: references.length })), h("ul", { class: "source-chips" }, references.map(line)));
  }

  #drawFailure() {
    const { status, error } = this.view;
    const key = status === "error" ? (error?.code ?? "error") : status === "interrupted" ? "interrupted" : "";
    if (this.failure.dataset.key === key) return;
    this.failure.dataset.key = key;
    this.failure.hidden = !key;
    if (key === "interrupted") replace(this.failure, h("p", { class: "answer-notice" }, icon("stop", 16), t("chat.stopped")));
    else if (key) replace(this.failure, notice("bad", h("p", {}, failureText(error ?? {})), h("div", { class: "row" }, button(t("chat.retry"), { icon: "retry", onclick: () => this.around.retry(this.view) }))));
  }

  #drawFoot() {
    const { view } = this;
    const isOver = !RUNNING.has(view.status);
    const key = `${isOver}${view.rating ?? ""}:${view.cost?.amount ?? ""}`;
    if (this.foot.dataset.key === key) return;
    this.foot.dataset.key = key;
    if (!isOver) return replace(this.foot);
    const small = { kind: "quiet", compact: true };
    const thumb = (rating, name, label) => button(label, { ...small, icon: name, "aria-pressed": String(view.rating === rating), onclick: () => this.around.rate(view, view.rating === rating ? null : rating) });
    replace(
      this.foot,
      h("div", { class: "answer-acts" }, copyButton(t("chat.copyAnswer"), () => this.around.markdown(view)), button(t("chat.retry"), { ...small, icon: "retry", onclick: () => this.around.retry(view) }), view.messageId && [thumb("up", "thumb-up", t("chat.good")), thumb("down", "thumb-down", t("chat.bad"))], view.retrievalIds?.length > 0 && searchesButton(this.around.domainId, view.retrievalIds)),
      usageLine(view),
    );
  }
}

/** Words for a person of why a turn failed. */
function failureText(error) {
  const key = `chat.failed.${error.code}`;
  return hasWords(key) ? t(key) : (error.message ?? t("chat.failedUnknown"));
}

const fixed = (element) => ({ element, draw() {} });

function growing() {
  const text = new GrowingText();
  return { element: text.element, draw: (item, { isEnd }) => text.update(item.text, item.citations, isEnd) };
}

function stored() {
  const element = h("div", { class: "prose" });
  let html;
  return {
    element,
    draw(item) {
      if (item.html === html) return;
      html = item.html;
      showHtml(element, html);
      for (const mark of element.querySelectorAll(".citation")) {
        mark.tabIndex = 0;
        mark.setAttribute("role", "button");
        mark.setAttribute("aria-label", t("chat.openSource", { number: Number(mark.dataset.number), name: mark.title }));
      }
    },
  };
}

/** Return what stands on the page with a key each: what a search found goes with its call. */
function grouped(items) {
  const shown = [];
  const counts = {};
  for (const item of items) {
    if (item.kind === "retrieval") {
      const call = shown.findLast((each) => each.item.kind === "call" && each.item.status !== "writing");
      if (call) {
        call.hits = item.hits;
        continue;
      }
    }
    const count = (counts[item.kind] = (counts[item.kind] ?? 0) + 1);
    // keyed by their place among their kind, so that a stored answer takes the place of the streamed one
    const key = item.kind === "call" ? `call:${item.id}` : `${item.kind}:${count}:${item.html === undefined ? "live" : "html"}`;
    shown.push({ key, item, hits: null });
  }
  return shown;
}

function lineOf(view) {
  if (view.status === "waiting") return "";
  if (view.status !== "running") return "";
  if (view.retrying) return t("chat.retrying");
  if (isSearching(view)) return t("chat.searching");
  const last = view.items.at(-1);
  if (last?.kind === "call" && last.status === "running") return t("chat.using", { tool: toolTitle(last.name, last.server) });
  if (last?.kind === "text" && last.text) return "";
  if (view.references.length || view.items.some((each) => each.kind === "retrieval")) return t("chat.usingSources", { count: sourcesOf(view) });
  return t("chat.working");
}

function sourcesOf(view) {
  const found = new Set();
  for (const items of [view.items, ...Object.values(view.lanes).map((lane) => lane.items)]) {
    for (const item of items) if (item.kind === "retrieval") for (const hit of item.hits) found.add(hit.documentId ?? hit.id);
  }
  return found.size;
}

function usageLine({ usage, cost, timings, model, messageAt }) {
  if (!usage?.inputTokens) return null;
  const cached = usage.cacheReadTokens ? t("chat.cached", { share: formatPercent(usage.cacheReadTokens / usage.inputTokens) }) : "";
  const parts = [t("chat.tokens", { input: usage.inputTokens, output: usage.outputTokens }), cached, cost && costText(cost), timings?.generation && formatDuration(timings.generation)];
  return h("span", { class: "faint small usage", title: [model, messageAt && formatDate(messageAt)].filter(Boolean).join(" · ") }, parts.filter(Boolean).join(" · "));
}

function costText({ amount, currency, unpricedCalls }) {
  const cost = formatMoney(amount, currency);
  return unpricedCalls ? t("chat.costUnpriced", { cost, count: unpricedCalls }) : cost;
}

/** The question of a turn. `update({content, images, html, messageId})`. */
export class QuestionPart {
  constructor(around) {
    this.around = around;
    this.images = h("div", { class: "question-images", hidden: true });
    this.text = h("div", { class: "question-text plain" });
    this.acts = h("div", { class: "question-acts" });
    this.element = h("div", { class: "question" }, h("div", { class: "question-bubble" }, this.images, this.text), this.acts);
  }

  update(question) {
    if (this.text.textContent !== question.content) this.text.textContent = question.content ?? "";
    const refs = (question.images ?? []).map((each) => each.ref).join();
    if (this.images.dataset.refs !== refs) {
      this.images.dataset.refs = refs;
      this.images.hidden = !refs;
      replace(this.images, question.images.map((each) => h("img", { src: each.preview ?? `/api/payloads/${encodeURIComponent(each.ref)}`, alt: t("chat.imageSent"), width: each.width, height: each.height, loading: "lazy" })));
    }
    const key = `${question.messageId ?? ""}:${question.branch ? `${question.branch.at}/${question.branch.of}` : ""}:${question.editable}`;
    if (this.acts.dataset.key === key) return;
    this.acts.dataset.key = key;
    const { branch } = question;
    replace(
      this.acts,
      branch?.of > 1 && h("span", { class: "branch" }, button(t("chat.previousBranch"), { kind: "quiet", icon: "back", compact: true, disabled: branch.at === 1, onclick: () => this.around.branch(question, -1) }), h("span", { class: "small faint" }, t("chat.branchOf", { at: branch.at, of: branch.of })), button(t("chat.nextBranch"), { kind: "quiet", icon: "back", compact: true, class: "button button-quiet button-compact turned", disabled: branch.at === branch.of, onclick: () => this.around.branch(question, 1) })),
      question.messageId && question.editable && button(t("chat.editQuestion"), { kind: "quiet", icon: "edit", compact: true, onclick: () => this.#edit(question) }),
      copyButton(t("chat.copy"), () => question.content),
    );
  }

  #edit(question) {
    const editor = h("textarea", { class: "input", rows: 3, value: question.content, "aria-label": t("chat.editQuestion") });
    const close = () => {
      form.remove();
      this.element.classList.remove("question-edited");
    };
    const send = async () => {
      if (!editor.value.trim()) return;
      await this.around.edit(question, editor.value);
      close();
    };
    const form = h("div", { class: "stack-small question-form" }, editor, h("p", { class: "faint small" }, t("chat.editHint")), h("div", { class: "row" }, button(t("chat.send"), { kind: "primary", onclick: send }), button(t("shell.cancel"), { onclick: close })));
    editor.addEventListener("keydown", (event) => {
      if (event.key === "Escape") close();
      if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
        event.preventDefault();
        form.querySelector(".button-primary").click();
      }
    });
    this.element.classList.add("question-edited");
    this.element.append(form);
    editor.focus();
  }
}

/** Return a stored answer as a view: the same shape that streaming makes. */
export function viewOfMessage(message) {
  const items = [];
  const calls = new Map();
  const parts = new Map((message.parts ?? []).map((each) => [each.block, each.html]));
  let shownWhole = false;
  for (const [at, block] of message.blocks.entries()) {
    if (block.type === "thinking" && block.thinking) items.push({ kind: "thinking", text: block.thinking });
    else if (block.type === "text") {
      const isRendered = message.html !== undefined;
      const html = message.parts ? parts.get(at) : shownWhole ? undefined : message.html;
      shownWhole = true;
      if (!isRendered) items.push({ kind: "text", text: block.text, citations: [] });
      else if (html) items.push({ kind: "text", html, text: block.text, citations: [] });
    } else if (block.type === "tool_use") {
      const call = { kind: "call", id: block.id, name: block.name, server: "", arguments: block.input, written: "", status: "interrupted", progress: null, result: null, durationMs: null, waitIds: [], stored: true };
      calls.set(block.id, call);
      items.push(call);
    } else if (block.type === "tool_result") {
      const call = calls.get(block.tool_use_id);
      if (!call) continue;
      call.status = block.is_error ? "error" : "ok";
      const { text, hits } = readResult(block);
      call.result = { content: text, structured: block.structuredContent ?? null, truncated: false, ref: null };
      if (hits.length) items.push({ kind: "retrieval", id: `${block.tool_use_id}:hits`, source: "documents", query: "", hits });
    }
  }
  if (!shownWhole && message.html && !message.blocks.length) items.push({ kind: "text", html: message.html, text: message.content, citations: [] });
  const { metadata } = message;
  return {
    turnId: message.turnId,
    seq: Infinity,
    status: metadata.error ? "error" : metadata.interrupted ? "interrupted" : "done",
    userMessageId: message.parentMessageId,
    messageId: message.id,
    model: metadata.model,
    items,
    lanes: {},
    waits: {},
    references: message.references,
    usage: metadata.usage,
    cost: metadata.cost,
    timings: { generation: metadata.generationTimeMs },
    error: metadata.error ?? null,
    retrievalIds: metadata.retrievalIds ?? [],
    text: message.content,
    messageAt: message.createdAt,
    stored: true,
  };
}

function readResult(block) {
  const texts = [];
  const hits = [];
  const content = typeof block.content === "string" ? [{ type: "text", text: block.content }] : (block.content ?? []);
  for (const each of content) {
    if (each.type === "text") texts.push(each.text);
    else if (each.type === "search_result") hits.push({ id: `${block.tool_use_id}:${hits.length}`, name: each.title, snippet: (each.content ?? []).map((part) => part.text).join(""), documentId: each.source });
    else texts.push(`[${each.type}]`);
  }
  return { text: texts.join("\n"), hits };
}

/** Return the cited rows of a table in words, each cell behind its column's name. */
function rowWords({ header, rows }) {
  const cells = (row) => row.map((cell, at) => cell && (header[at] ? `${header[at]}: ${cell}` : cell)).filter(Boolean);
  return rows.map((row) => cells(row).join(" · ")).join("; ");
}
