// A turn on the page: the question, and the answer, which is streamed or stored.

import { lazily } from "../api.js";
import { h, replace } from "../dom.js";
import { inWords } from "../errors/text.js";
import {
  formatDate,
  formatDuration,
  formatMoney,
  formatNumber,
  formatPercent,
  formatSeconds,
  hasWords,
  t,
} from "../i18n.js";
import { icon } from "../icons.js";
import { showHtml } from "../trusted.js";
import { button, copyButton, menu, notice, toastError } from "../ui.js";
import {
  CallCard,
  ThinkingFold,
  hitList,
  keyed,
  openRetrievals,
  openSource,
  rowsTable,
  subject,
  toolTitle,
} from "./calls.js";
import { enrich } from "./rich.js";
import { GrowingText } from "./text.js";

const waitParts = lazily((again) => import(`./waits.js${again}`));
const RUNNING = new Set(["running", "waiting"]);
const STEPS = new Set(["call", "retrieval", "thinking", "wait"]);

/** The answer of a turn. `update(view)` draws it; `view` is a view of `stream.js`, or `viewOfMessage` of a stored
 * answer. `around`: `{domainId, answer, mayAnswer, mayAllowAlways, retry, rate, makeCase, markdown, text, more,
 * app}`. */
export class AnswerPart {
  constructor(around) {
    this.around = around;
    this.items = new Map();
    this.steps = new StepsFold((place, drawn, items, view) => this.#drawItems(place, drawn, items, view));
    this.place = h("div", { class: "answer-items" });
    this.waits = h("div", { class: "answer-waits" });
    this.waitCards = new Map();
    this.sources = h("div", { class: "answer-sources", hidden: true });
    this.failure = h("div", { hidden: true });
    this.foot = h("footer", { class: "answer-foot" });
    this.element = h(
      "div",
      { class: "answer" },
      this.steps.element,
      this.place,
      this.waits,
      this.failure,
      this.sources,
      this.foot,
    );
    this.element.addEventListener("click", (event) => this.#openCitation(event));
    this.element.addEventListener(
      "keydown",
      (event) =>
        (event.key === "Enter" || event.key === " ") &&
        event.target.matches(".citation") &&
        (event.preventDefault(), this.#openCitation(event)),
    );
    this.loaded = {};
  }

  update(view) {
    this.view = view;
    const shown = grouped(view.items, view);
    this.steps.update(
      shown.filter(({ item }) => STEPS.has(item.kind)),
      view,
    );
    this.#drawGroup(
      this.place,
      this.items,
      shown.filter(({ item }) => !STEPS.has(item.kind)),
      view,
    );
    const open = Object.values(view.waits).filter((wait) => wait.state === "open");
    keyed(
      this.waits,
      this.waitCards,
      open,
      ({ waitId }) => waitId,
      () => this.#waitCard(),
    );
    this.#drawSources();
    this.#drawFailure();
    this.#drawFoot();
  }

  #openCitation(event) {
    const mark = event.target.closest(".citation");
    if (!mark) return;
    const number = Number(mark.dataset.number);
    const at = this.view.references.findIndex((reference) => reference.number === number);
    if (at >= 0) this.#openAt(at, mark);
    else openSource({ domainId: this.around.domainId, documentId: mark.dataset.document, chunkId: mark.dataset.chunk });
  }

  /** Open a reference in the source panel, in which the user can move through all references. */
  #openAt(at, opener) {
    const { references } = this.view;
    const marked = (number) => this.element.querySelectorAll(`[data-number="${CSS.escape(String(number))}"]`);
    const onshow = (shown) => {
      for (const mark of this.element.querySelectorAll(".source-open")) mark.classList.remove("source-open");
      if (shown === null) return;
      for (const mark of marked(references[shown].number)) mark.classList.add("source-open");
      if (shown !== at) this.element.querySelector(".citation.source-open")?.scrollIntoView({ block: "nearest" });
    };
    const places = references.map(({ documentId, chunkId, citedText, documentName, table }) => ({
      documentId,
      chunkId,
      sentence: citedText,
      documentName,
      table,
    }));
    openSource({ domainId: this.around.domainId, ...places[at], places, at, opener, onshow });
  }

  #drawItems(place, drawn, items, view) {
    this.#drawGroup(place, drawn, grouped(items, view), view);
  }

  #drawGroup(place, drawn, shown, view) {
    const isRunning = RUNNING.has(view.status);
    keyed(
      place,
      drawn,
      shown,
      ({ key }) => key,
      ({ item }) => this.#make(item),
    );
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
        return { element: fold.element, draw: (thinking, { isRunning }) => fold.update(thinking, isRunning) };
      }
      case "call": {
        const card = new CallCard();
        return {
          element: card.element,
          draw: (call, { hits, view }) => card.update(call, this.#aroundCall(call, hits, view)),
        };
      }
      case "retrieval":
        return fixed(
          h(
            "div",
            { class: "card" },
            h("p", { class: "faint small" }, item.query),
            hitList(item.hits, this.around.domainId),
          ),
        );
      case "wait": {
        const card = this.#waitCard();
        return {
          element: card.element,
          draw: (wait, { view }) => view.waits[wait.id] && card.update(view.waits[wait.id]),
        };
      }
      case "compacted":
        return fixed(h("p", { class: "divider" }, t("chat.compacted", { count: item.messages })));
      default:
        return fixed(
          h("p", { class: "answer-notice" }, icon("info", 16), h("span", { class: "wrap" }, inWords(item.message))),
        );
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
      more: isStored ? () => this.around.more(view, call) : null,
      app: this.around.app?.(call) ?? null,
      lane: (lane) => this.#lane(lane),
      wait: () => this.#waitCard(),
    };
  }

  /** Return the card of a wait. Its module is loaded with the first card. */
  #waitCard() {
    const element = h("div", {});
    let card;
    let latest;
    waitParts().then(({ WaitCard }) => {
      card = new WaitCard(this.around.answer, this.around.mayAnswer, this.around.mayAllowAlways);
      element.append(card.element);
      card.update(latest);
    }, toastError);
    return { element, update: (wait) => ((latest = wait), card?.update(wait)) };
  }

  #lane(lane) {
    const drawn = new Map();
    const place = h("div", { class: "answer-items" });
    const element = h(
      "section",
      { class: "lane", tabindex: 0, "aria-label": t("chat.delegate", { name: lane.agent }) },
      h("p", { class: "lane-head" }, icon("person", 15), lane.agent),
      place,
    );
    return { element, update: (changed) => this.#drawItems(place, drawn, changed.items, this.view) };
  }

  #drawSources() {
    const { references, status } = this.view;
    // The headings of the passages may come only with the stored answer.
    const key = RUNNING.has(status)
      ? ""
      : references.map((reference) => `${reference.number}:${placeOf(reference, this.view)}`).join();
    if (this.sources.dataset.key === key) return;
    this.sources.dataset.key = key;
    this.sources.hidden = !key;
    const documents = new Map();
    for (const [at, reference] of references.entries()) {
      const id = reference.documentId || reference.documentName;
      if (!documents.has(id)) documents.set(id, []);
      documents.get(id).push({ at, reference });
    }
    const head =
      documents.size === references.length
        ? t("chat.sources", { count: references.length })
        : t("chat.sourcesIn", { count: documents.size, places: t("chat.sources", { count: references.length }) });
    replace(
      this.sources,
      h("p", { class: "faint small sources-head" }, head),
      h(
        "ul",
        { class: "source-documents" },
        [...documents.values()].map((places) => this.#documentLine(places)),
      ),
    );
  }

  /** Return a cited document with the places that are cited in it. */
  #documentLine(places) {
    const chip = ({ at, reference }) =>
      h(
        "button",
        {
          type: "button",
          class: "source-chip",
          dataset: { number: reference.number },
          onclick: (event) => this.#openAt(at, event.currentTarget),
        },
        h(
          "span",
          { class: "visually-hidden" },
          t("chat.openSource", { number: reference.number, name: reference.documentName }),
        ),
        h("span", { class: "source-number" }, formatNumber(reference.number)),
        h(
          "span",
          { class: "clip source-place", dir: "auto" },
          placeOf(reference, this.view) || quoted(reference.citedText),
        ),
        reference.scanned &&
          h("span", { class: "faint" }, t(reference.scannedBy === "model" ? "chat.scannedByModel" : "chat.scanned")),
        reference.verified === false && h("span", { class: "badge badge-wait" }, t("chat.unverified")),
      );
    const tables = places.filter(({ reference }) => reference.table?.rows?.length).slice(0, 3);
    return h(
      "li",
      { class: "source-document" },
      icon("page", 16),
      h(
        "div",
        { class: "source-in" },
        h(
          "p",
          { class: "source-title" },
          h("span", { class: "source-name wrap", dir: "auto" }, places[0].reference.documentName),
          agesOf(places[0].reference),
        ),
        h("div", { class: "source-chips" }, places.map(chip)),
        tables.length > 0 &&
          h(
            "div",
            { class: "source-tables" },
            tables.map(({ reference: { table, number, documentName: name } }) =>
              rowsTable(table, t("chat.openSource", { number, name })),
            ),
          ),
      ),
    );
  }

  #drawFailure() {
    const { status, error } = this.view;
    const key = status === "error" ? (error?.code ?? "error") : status === "interrupted" ? "interrupted" : "";
    if (this.failure.dataset.key === key) return;
    this.failure.dataset.key = key;
    this.failure.hidden = !key;
    if (key === "interrupted")
      replace(this.failure, h("p", { class: "answer-notice" }, icon("stop", 16), t("chat.stopped")));
    else if (key)
      replace(
        this.failure,
        notice(
          "bad",
          h("p", {}, failureText(error ?? {})),
          h(
            "div",
            { class: "row" },
            button(t("chat.retry"), { icon: "retry", onclick: () => this.around.retry(this.view) }),
          ),
        ),
      );
  }

  #drawFoot() {
    const { view } = this;
    const isOver = !RUNNING.has(view.status);
    const key = `${isOver}${view.rating ?? ""}:${view.cost?.amount ?? ""}`;
    if (this.foot.dataset.key === key) return;
    this.foot.dataset.key = key;
    if (!isOver) return replace(this.foot);
    const wasOpen = this.foot.querySelector(":popover-open") !== null; // the cost may arrive while the menu is open
    const small = { kind: "quiet", compact: true };
    const thumb = (rating, name, label) =>
      button(label, {
        ...small,
        icon: name,
        "aria-pressed": String(view.rating === rating),
        onclick: () => this.around.rate(view, view.rating === rating ? null : rating),
      });
    const items = () => [
      {
        label: t("chat.copyPlain"),
        icon: "copy",
        act: () => navigator.clipboard.writeText(`${this.around.text(this.view).trim()}\n`),
      },
      Boolean(this.around.makeCase && this.view.messageId) && {
        label: t("chat.makeCase"),
        icon: "check",
        act: () => this.around.makeCase(),
      },
      this.view.retrievalIds?.length > 0 && {
        label: t("chat.searchesOf", { count: this.view.retrievalIds.length }),
        icon: "search",
        act: () => openRetrievals(this.around.domainId, this.view.retrievalIds),
      },
    ];
    replace(
      this.foot,
      h(
        "div",
        { class: "answer-acts" },
        copyButton(t("chat.copyAnswer"), () => this.around.markdown(this.view)),
        button(t("chat.retry"), { ...small, icon: "retry", onclick: () => this.around.retry(this.view) }),
        view.messageId && [thumb("up", "thumb-up", t("chat.good")), thumb("down", "thumb-down", t("chat.bad"))],
        menu(t("chat.answerMenu"), items, { facts: () => factsOf(this.view) }),
      ),
    );
    if (wasOpen) this.foot.querySelector('[aria-haspopup="menu"]').click();
  }
}

/** The agent's steps, folded into one line. While the agent works, the line shows the current step. */
class StepsFold {
  /** Create the fold. `drawItems(place, drawn, items, view)` draws items into `place`. */
  constructor(drawItems) {
    this.drawItems = drawItems;
    this.mark = h("span", { class: "steps-mark" });
    this.words = h("span", { class: "steps-words", dir: "auto" });
    this.time = h("span", { class: "steps-time" });
    this.body = h("div", { class: "answer-items steps-body" });
    this.summary = h("summary", { class: "steps-head" }, this.mark, this.words, this.time);
    this.details = h("details", { class: "steps" }, this.summary, this.body);
    this.line = h("p", { class: "steps steps-head" });
    this.element = h("div", { class: "steps-frame" }, this.line, this.details);
    this.drawn = new Map();
    this.details.addEventListener("toggle", () => this.#drawBody());
  }

  update(shown, view) {
    Object.assign(this, { shown, view });
    const activity = nowOf(view);
    const hasSteps = shown.length > 0;
    this.element.hidden = !hasSteps && !activity;
    this.details.hidden = !hasSteps;
    this.line.hidden = hasSteps;
    const place = hasSteps ? this.summary : this.line;
    if (this.mark.parentNode !== place) place.append(this.mark, this.words, this.time);
    const kind = activity ? "spinner" : "chevron";
    if (this.mark.dataset.kind !== kind) {
      this.mark.dataset.kind = kind;
      replace(this.mark, activity ? h("span", { class: "spinner" }) : icon("right", 16));
    }
    const parts = activity ? [activity] : stepsParts(shown);
    const key = parts.map((part) => part.textContent ?? part).join(" · ");
    if (this.words.dataset.key !== key) {
      this.words.dataset.key = key;
      replace(
        this.words,
        parts.flatMap((part, number) => (number ? [" · ", part] : [part])),
      );
      this.since = performance.now();
    }
    this.#tick(Boolean(activity));
    this.#drawBody();
  }

  #drawBody() {
    if (this.details.open && this.shown)
      this.drawItems(
        this.body,
        this.drawn,
        this.shown
          .map(({ item }) => item)
          .concat(
            this.shown.filter(({ hits }) => hits).map(({ item, hits }) => ({ kind: "retrieval", of: item.id, hits })),
          ),
        this.view,
      );
  }

  /** Show the duration of the current step, updated once a second. */
  #tick(isRunning) {
    if (!isRunning) {
      clearInterval(this.timer);
      this.timer = null;
      this.time.textContent = "";
      return;
    }
    const show = () => {
      if (this.timer && !this.element.isConnected) return this.#tick(false);
      const seconds = Math.floor((performance.now() - this.since) / 1000);
      this.time.textContent = seconds > 0 ? ` · ${formatDuration(seconds * 1000)}` : "";
    };
    this.timer ??= setInterval(show, 1000);
    show();
  }
}

/** Return the current step in words; "" while the answer is being written or after it has ended. */
function nowOf(view) {
  if (view.status !== "running") return "";
  if (view.retrying) return t("chat.retrying");
  const call = view.items.findLast(
    (item) => item.kind === "call" && (item.status === "running" || item.status === "writing"),
  );
  if (call) {
    const about = subject(call);
    const key = NOW[call.name];
    return key && about
      ? t(key, { about: shortened(about) })
      : t("chat.using", { tool: toolTitle(call.name, call.server) });
  }
  const last = view.items.at(-1);
  if (last?.kind === "text" && last.text) return "";
  if (last?.kind === "thinking") return t("chat.thinking");
  return t("chat.working");
}

const NOW = {
  search_documents: "chat.now.search",
  promptx_recall: "chat.now.recall",
  read_document: "chat.now.read",
  find_in_document: "chat.now.read",
  delegate: "chat.now.delegate",
};
const READS = new Set(["read_document", "find_in_document"]);
/** A memory in the result of a recall: "- [ATOMIC 0.9 2026-11-26 its-id] …". */
const MEMORY = /^- \[[A-Z]+ [\d.]+ \S+ (\S+)\]/gm;

/** Return the steps as the parts of one line: "Searched 8 documents · recalled 1 memory · 0.3 s". */
function stepsParts(shown) {
  const calls = shown.filter(({ item }) => item.kind === "call");
  const of = (test) => calls.filter(({ item }) => test(item.name));
  const parts = [];
  const searches = of((name) => name === "search_documents");
  if (searches.length) {
    const documents = new Set(searches.flatMap(({ hits }) => hits ?? []).map((hit) => hit.documentId ?? hit.name));
    parts.push(documents.size ? t("chat.did.searched", { count: documents.size }) : t("chat.did.foundNothing"));
  }
  const recalls = of((name) => name === "promptx_recall");
  if (recalls.length) {
    const memories = new Set(
      recalls.flatMap(({ item }) => [...(item.result?.content ?? "").matchAll(MEMORY)].map(([, id]) => id)),
    );
    parts.push(memories.size ? t("chat.did.recalled", { count: memories.size }) : t("chat.did.recalledNothing"));
  }
  const reads = new Set(of((name) => READS.has(name)).map(({ item }) => subject(item))).size;
  if (reads) parts.push(t("chat.did.read", { count: reads }));
  const delegates = of((name) => name === "delegate").length;
  if (delegates) parts.push(t("chat.did.delegated", { count: delegates }));
  if (of((name) => name === "ask_user").length) parts.push(t("chat.did.asked"));
  if (of((name) => name === "promptx_action").length) parts.push(t("chat.did.role"));
  const named = ["promptx_action", "search_documents", "promptx_recall", "delegate", "ask_user"];
  const others = of((name) => !named.includes(name) && !READS.has(name));
  const names = [...new Set(others.map(({ item }) => toolTitle(item.name, item.server)))];
  if (names.length > 2) parts.push(t("chat.did.usedMany", { count: names.length }));
  else if (names.length) parts.push(t("chat.did.used", { tools: names.join(", ") }));
  if (!parts.length) parts.push(t("chat.thought"));
  const failed = calls.filter(({ item }) => item.status === "error" || item.status === "denied").length;
  parts[0] = parts[0].charAt(0).toLocaleUpperCase() + parts[0].slice(1);
  if (failed) parts.push(h("span", { class: "steps-failed" }, t("chat.did.failed", { count: failed })));
  const milliseconds = durationOf(calls);
  if (milliseconds) parts.push(formatSeconds(milliseconds));
  return parts;
}

/** Return the total duration of calls. Calls of one step run at the same time, so only the longest of them counts. */
function durationOf(calls) {
  const longest = new Map();
  for (const { item } of calls)
    longest.set(item.iteration, Math.max(longest.get(item.iteration) ?? 0, item.durationMs ?? 0));
  return [...longest.values()].reduce((sum, duration) => sum + duration, 0);
}

/** Return the reason why a turn failed, in words for the user. */
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
      enrich(showHtml(element, html));
    },
  };
}

/** Return the shown items, each with a key. The hits of a search are added to its call. */
function grouped(items, view) {
  const shown = [];
  const counts = {};
  for (const item of items) {
    if (item.kind === "wait" && view.waits[item.id]?.state === "open") continue; // shown below the text
    if (item.kind === "retrieval") {
      const callId = item.of ?? (item.id?.endsWith(":hits") ? item.id.slice(0, -5) : "");
      const asked = (candidate) =>
        candidate.item.kind === "call" &&
        !candidate.hits &&
        item.query &&
        candidate.item.arguments?.query === item.query;
      const call =
        shown.find((candidate) => candidate.item.id === callId) ??
        shown.find(asked) ??
        shown.findLast((candidate) => candidate.item.kind === "call" && candidate.item.status !== "writing");
      if (call) {
        call.hits = item.hits;
        continue;
      }
    }
    const count = (counts[item.kind] = (counts[item.kind] ?? 0) + 1);
    // The key is the position among items of the same kind, so that a stored item replaces the streamed one.
    const key =
      item.kind === "call" ? `call:${item.id}` : `${item.kind}:${count}:${item.html === undefined ? "live" : "html"}`;
    shown.push({ key, item, hits: null });
  }
  return shown;
}

/** Return the cost and duration of an answer as names and values. Tokens are shown only if a model wrote the answer. */
function factsOf({ usage, cost, timings, model, messageAt }) {
  const isModel = usage?.inputTokens > 0 && !model?.startsWith("extractive");
  return [
    isModel && [t("chat.fact.input"), formatNumber(usage.inputTokens)],
    isModel && [t("chat.fact.output"), formatNumber(usage.outputTokens)],
    isModel &&
      usage.cacheReadTokens > 0 && [t("chat.fact.cached"), formatPercent(usage.cacheReadTokens / usage.inputTokens)],
    isModel && cost && [t("chat.fact.cost"), costText(cost)],
    timings?.generation && [t("chat.fact.time"), formatDuration(timings.generation)],
    isModel && model && [t("chat.fact.model"), model],
    messageAt && [t("chat.fact.at"), formatDate(messageAt)],
  ].filter(Boolean);
}

function costText({ amount, currency, unpricedCalls }) {
  const cost = formatMoney(amount, currency);
  return unpricedCalls ? t("chat.costUnpriced", { cost, count: unpricedCalls }) : cost;
}

/** The question of a turn. `update({content, images, attachments, messageId})` draws it. */
export class QuestionPart {
  constructor(around) {
    this.around = around;
    this.images = h("div", { class: "question-images", hidden: true });
    this.files = h("ul", { class: "question-files", "aria-label": t("chat.attachments"), hidden: true });
    this.text = h("div", { class: "question-text plain", dir: "auto" });
    this.acts = h("div", { class: "question-acts" });
    this.element = h(
      "div",
      { class: "question" },
      h("div", { class: "question-bubble" }, this.images, this.files, this.text),
      this.acts,
    );
  }

  update(question) {
    if (this.text.textContent !== question.content) this.text.textContent = question.content ?? "";
    const refs = (question.images ?? []).map((image) => image.ref).join();
    if (this.images.dataset.refs !== refs) {
      this.images.dataset.refs = refs;
      this.images.hidden = !refs;
      replace(
        this.images,
        question.images.map((image) =>
          h("img", {
            src: image.preview ?? `/api/payloads/${encodeURIComponent(image.ref)}`,
            alt: t("chat.imageSent"),
            width: image.width,
            height: image.height,
            loading: "lazy",
          }),
        ),
      );
    }
    const files = question.attachments ?? [];
    const ids = files.map((file) => file.id).join();
    if (this.files.dataset.ids !== ids) {
      this.files.dataset.ids = ids;
      this.files.hidden = !ids;
      replace(
        this.files,
        files.map((file) =>
          h(
            "li",
            {},
            h(
              "a",
              {
                class: "question-file",
                href: `/api/attachments/${encodeURIComponent(file.id)}/file`,
                download: file.name,
              },
              icon("page", 15),
              h("span", { class: "clip", dir: "auto" }, file.name),
            ),
          ),
        ),
      );
    }
    const key = `${question.messageId ?? ""}:${question.branch ? `${question.branch.at}/${question.branch.of}` : ""}:${question.editable}`;
    if (this.acts.dataset.key === key) return;
    this.acts.dataset.key = key;
    const { branch } = question;
    replace(
      this.acts,
      branch?.of > 1 &&
        h(
          "span",
          { class: "branch" },
          button(t("chat.previousBranch"), {
            kind: "quiet",
            icon: "back",
            compact: true,
            disabled: branch.at === 1,
            onclick: () => this.around.branch(question, -1),
          }),
          h("span", { class: "small faint" }, t("chat.branchOf", { at: branch.at, of: branch.of })),
          button(t("chat.nextBranch"), {
            kind: "quiet",
            icon: "back",
            compact: true,
            class: "button button-quiet button-compact turned",
            disabled: branch.at === branch.of,
            onclick: () => this.around.branch(question, 1),
          }),
        ),
      question.messageId &&
        question.editable &&
        button(t("chat.editQuestion"), {
          kind: "quiet",
          icon: "edit",
          compact: true,
          onclick: () => this.#edit(question),
        }),
      copyButton(t("chat.copy"), () => question.content),
    );
  }

  #edit(question) {
    const editor = h("textarea", {
      class: "input",
      rows: 3,
      value: question.content,
      "aria-label": t("chat.editQuestion"),
    });
    const close = () => {
      form.remove();
      this.element.classList.remove("question-edited");
    };
    const send = async () => {
      if (!editor.value.trim()) return;
      await this.around.edit(question, editor.value);
      close();
    };
    const form = h(
      "div",
      { class: "stack-small question-form" },
      editor,
      h("p", { class: "faint small" }, t("chat.editHint")),
      h(
        "div",
        { class: "row" },
        button(t("chat.send"), { kind: "primary", onclick: send }),
        button(t("shell.cancel"), { onclick: close }),
      ),
    );
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

/** Return a stored answer as a view with the same shape as a streamed one. */
export function viewOfMessage(message) {
  const items = [];
  const calls = new Map();
  const summaries = new Map((message.metadata.toolCalls ?? []).map((call) => [call.id, call]));
  let iteration = 1;
  const parts = new Map((message.parts ?? []).map((part) => [part.block, part.html]));
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
      const { server = "", durationMs = null } = summaries.get(block.id) ?? {};
      if (message.blocks[at - 1]?.type === "tool_result") iteration += 1;
      const call = {
        kind: "call",
        id: block.id,
        name: block.name,
        server,
        iteration,
        arguments: block.input,
        written: "",
        status: "interrupted",
        progress: null,
        result: null,
        durationMs,
        waitIds: [],
        stored: true,
      };
      calls.set(block.id, call);
      items.push(call);
    } else if (block.type === "tool_result") {
      const call = calls.get(block.tool_use_id);
      if (!call) continue;
      call.status = summaries.get(call.id)?.status ?? (block.is_error ? "error" : "ok");
      const { text, hits, images } = readResult(block, message.references ?? []);
      call.result = { content: text, structured: block.structuredContent ?? null, truncated: false, ref: null, images };
      if (hits.length)
        items.push({ kind: "retrieval", id: `${block.tool_use_id}:hits`, source: "documents", query: "", hits });
    }
  }
  if (!shownWhole && message.html && !message.blocks.length)
    items.push({ kind: "text", html: message.html, text: message.content, citations: [] });
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

function readResult(block, references) {
  const texts = [];
  const hits = [];
  const images = [];
  const content = typeof block.content === "string" ? [{ type: "text", text: block.content }] : (block.content ?? []);
  for (const part of content) {
    if (part.type === "text") texts.push(part.text);
    else if (part.type === "search_result")
      hits.push(storedHit(`${block.tool_use_id}:${hits.length}`, part, references));
    else if (part.type === "image" && part.source?.ref) images.push({ ref: part.source.ref });
    else texts.push(`[${part.type}]`);
  }
  return { text: texts.join("\n"), hits, images };
}

/** Return a stored passage as a hit. Its title is parsed, for example "leave.md › Leave › Rest (p. 2; passage 3 of 9)".
 * If the answer cites the passage, the hit gets the id of the cited chunk, so that it can be opened. */
function storedHit(id, { title, source, content }, references) {
  const sentences = (content ?? []).map((part) => part.text);
  const snippet = sentences.reduce(
    (text, sentence) =>
      /[\s\u3000-\u9fff\uff00-\uffef]$/u.test(text) || !text ? text + sentence : `${text} ${sentence}`,
    "",
  );
  const [, path, notes = ""] = /^(.*?)(?: \(([^()]*)\))?$/su.exec(title);
  const [name, ...headingPath] = path.split(" › ");
  const page = Number(/(?:^|; )p\. (\d+)/u.exec(notes)?.[1]) || null;
  const words = folded(snippet);
  const cited = references.find(
    (reference) =>
      reference.documentId === source &&
      reference.chunkId &&
      folded(reference.citedText) &&
      words.includes(folded(reference.citedText)),
  );
  return { id, name, headingPath, page, snippet, documentId: source, chunkId: cited?.chunkId ?? null };
}

/** Return the place of a reference in its document: page, heading and rows. */
function placeOf({ page, cells, ...reference }, view) {
  return [page && t("chat.page", { page }), headingOf(reference, view), cells?.replace(/^.*!/, "")]
    .filter(Boolean)
    .join(", ");
}

/** Return the heading above a cited passage from the hits of the search, or "". */
export function headingOf({ documentId, chunkId, citedText }, view) {
  const cited = folded(citedText);
  for (const item of view.items) {
    for (const hit of item.kind === "retrieval" ? item.hits : []) {
      if (hit.documentId !== documentId || !(hit.chunkId === chunkId || (cited && folded(hit.snippet).includes(cited))))
        continue;
      if (hit.headingPath?.length) return hit.headingPath.at(-1);
    }
  }
  return "";
}

const folded = (text) => (text ?? "").replace(/\s+/g, "").toLowerCase();

const shortened = (text) => (text.length > 60 ? `${text.slice(0, 59).trimEnd()}…` : text);

/** Return the beginning of a quote, for a passage without a heading. */
const quoted = (text) => (text.length > 60 ? `“${text.slice(0, 59).trimEnd()}…”` : `“${text.trim()}”`);

/** Return the date of a cited document, and a mark if its review date has passed. */
function agesOf({ documentDate, reviewBy }) {
  const isOverdue = reviewBy && reviewBy < new Date().toISOString().slice(0, 10);
  return [
    documentDate && h("span", { class: "faint small" }, formatDate(documentDate, { time: false })),
    isOverdue &&
      h(
        "span",
        { class: "badge badge-wait" },
        t("chat.reviewOverdue", { date: formatDate(reviewBy, { time: false }) }),
      ),
  ];
}
