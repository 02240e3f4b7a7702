// The open conversation: its stored turns, the running turn, and the user's actions.
//
// `turns` has the shown turns in order: `{id, key, question, view, isLive}` with their elements. A turn's `view` has
// the shape that `stream.js` defines. It comes from the stored message (`viewOfMessage` in `turn.js`), or from the
// events of a running turn. `views` has the reduced events of each running turn, even if they came before the messages
// were loaded. `reload` merges both. `#settle` replaces the live view by the stored one when a turn has ended. A
// message that was just sent has a `key` (its `clientMessageId`), and no `id` until the server has accepted it. Changed
// turns are collected in `dirty` and drawn once per frame.

import { api, apiFile, lazily, loadAll } from "../api.js";
import { h, loadStyle, oncePerFrame, replace } from "../dom.js";
import { draft } from "../drafts.js";
import { inWords } from "../errors/text.js";
import { loadWords, t } from "../i18n.js";
import { icon } from "../icons.js";
import { ENDS, emptyTurn, newKey, reduce, textOf } from "../stream.js";
import { announce, button, emptyState, field, openDialog, skeleton, textarea, toast, toastError } from "../ui.js";
import { OlderMessages } from "./older.js";
import { AnswerPart, QuestionPart, headingOf, viewOfMessage } from "./turn.js";

const PAGE = 40;
const NEAR = 80;
const MOST_TURNS = 60; // shown at once; the others are loaded again when the user scrolls up
const KEPT_TURNS = 30;
const MOST_AT_ONCE = 200; // messages in one response
const RUNNING = new Set(["running", "waiting"]);
const OUTCOMES = { done: "done", error: "failed", interrupted: "interrupted" };

// Whether the page is being left. The browser then aborts requests, but their callbacks still run for a moment.
let isLeft = false;
addEventListener("beforeunload", () => {
  isLeft = true;
  setTimeout(() => (isLeft = false), 1000);
});

const caseParts = lazily((again) => import(`../domain/case-dialog.js${again}`));
const imageParts = lazily((again) => import(`./kept-images.js${again}`));

const previewsOf = (images) =>
  images.map((image) => ({ ref: image.name, preview: `data:${image.mediaType};base64,${image.data}` }));

/** A conversation on the page. `desk`: `{app, stream, domain, onTitle(id, title), onTurn(running, outcome),
 * onWaiting(waiting), onResumed(), onUnsent(content, images, attachments), model()}`. */
export class ConversationView {
  constructor(desk, conversationId) {
    Object.assign(this, {
      desk,
      id: conversationId,
      turns: [],
      views: new Map(),
      feedback: new Map(),
      branches: [],
      isOpen: true,
      ends: 0,
      reloads: 0,
    });
    this.list = h("div", { class: "turns", role: "log", "aria-live": "off", "aria-label": t("chat.conversation") });
    this.end = h("div", { class: "thread-end" });
    this.inner = h("div", { class: "thread-inner" }, this.list, this.end);
    this.element = h(
      "div",
      {
        class: "thread",
        tabindex: 0,
        role: "region",
        "aria-label": t("chat.conversation"),
        onscroll: () => this.#scrolled(),
      },
      this.inner,
    );
    this.jump = button(t("chat.toEnd"), {
      icon: "down",
      compact: true,
      class: "button button-compact jump",
      onclick: () => this.toEnd(),
    });
    this.jump.hidden = true;
    this.sticks = true;
    this.lastTop = 0;
    this.draw = oncePerFrame(() => this.#draw());
    this.dirty = new Set();
    // Messages that the server has not acknowledged: `{content, key, images, attachments}`.
    this.unsent = draft(`unsent:${conversationId}`);
    this.older = new OlderMessages({
      frame: this.element,
      list: this.list,
      load: () => this.#loadBefore(),
      put: ({ items }) => this.#putOlder(items),
    });
    this.inner.prepend(this.older.element);
    this.resizing = new ResizeObserver(() => this.#follow());
    this.resizing.observe(this.inner);
  }

  get path() {
    return `/api/conversations/${encodeURIComponent(this.id)}`;
  }

  get running() {
    return this.turns.findLast((turn) => turn.isLive && RUNNING.has(turn.view.status)) ?? null;
  }

  /** Return whether a stored question still waits for its answer, or an answer is being written. */
  get isUnfinished() {
    return this.turns.some((turn) => (turn.view ? turn.isLive && RUNNING.has(turn.view.status) : turn.key === null));
  }

  /** Load the stored messages, and follow new events. */
  async open() {
    replace(this.list, skeleton(5));
    this.desk.stream.follow(this.id);
    const [record] = await Promise.all([api("GET", this.path), this.#loadFeedback(), this.#loadBranches()]);
    this.record = record;
    await this.reload(record);
    this.#sendUnsent().catch(toastError);
    return record;
  }

  /** Load the newest messages again: at the start, and when the log of a turn is gone. `record`: the conversation as it
   * was loaded before the messages; it shows whether a question without an answer is still being answered. */
  async reload(record = null) {
    const { ends } = this;
    const request = (this.reloads += 1);
    const { turn: current } = record ?? (await api("GET", this.path));
    const { items, hasMore } = await api("GET", `${this.path}/messages`, { query: { limit: PAGE, format: "html" } });
    if (!this.isOpen || request !== this.reloads) return; // a later load has the messages of another branch
    // A turn has ended since, so the messages may lack its answer.
    if (ends !== this.ends) return void (await this.reload());
    const stored = pair(items);
    // Keep the focus of a control in the list, for example in the card of a wait.
    const typedIn = this.list.contains(document.activeElement) ? document.activeElement : null;
    const underWay = this.turns.filter((turn) => isUnderWay(turn, stored));
    for (const turn of this.turns) if (!underWay.includes(turn)) turn.element.remove();
    this.turns = [];
    replace(this.list);
    this.#put(stored, false);
    for (const turn of this.turns)
      if (!turn.view && turn.id !== current?.id) turn.view = { ...emptyTurn(turn.id), status: "interrupted" };
    for (const turn of underWay) {
      const loadedTurn = this.turns.find((shownTurn) => turn.id && shownTurn.id === turn.id);
      if (loadedTurn) this.#become(loadedTurn, turn);
      else this.#append(turn);
    }
    for (const [turnId, view] of this.views) {
      const isWhole = !RUNNING.has(view.status) && this.turns.some((turn) => turn.id === turnId && turn.view);
      if (isWhole) this.views.delete(turnId);
      else this.#liveTurn(turnId, view); // the server stores only the first steps of a running or waiting turn
    }
    this.#drawEmpty();
    for (const turn of this.turns) this.dirty.add(turn);
    this.#draw();
    if (typedIn?.isConnected) typedIn.focus({ preventScroll: true });
    this.toEnd();
    this.older.begin(hasMore);
  }

  close() {
    this.isOpen = false;
    this.desk.stream.unfollow(this.id);
    this.older.end();
    this.resizing.disconnect();
    this.draw.cancel();
  }

  // Events

  onEvent(event) {
    if (event.type === "title") this.desk.onTitle(this.id, event.title);
    if (!event.turnId || event.seq === undefined) {
      if (event.type === "notice") announce(inWords(event.message));
      return;
    }
    const view = reduce(this.views.get(event.turnId) ?? emptyTurn(event.turnId), event);
    this.views.set(event.turnId, view);
    if (!this.record) return; // the messages are still being loaded; `reload` will show this event
    const turn = this.#liveTurn(event.turnId, view);
    if (event.type === "turn_started") this.desk.onTurn(true);
    if (event.type === "input_required" || event.type === "input_answered")
      this.desk.onWaiting(view.status === "waiting");
    if (event.type === "input_required") announce(t("chat.waitAnnounced", { title: event.title ?? "" }));
    if (event.type === "resumed") this.desk.onResumed();
    if (ENDS.has(event.type)) {
      this.ends += 1;
      announce(t(`chat.announce.${view.status}`));
      this.#settle(turn).catch(toastError);
    }
    this.#touch(turn);
  }

  #liveTurn(turnId, view) {
    let turn = this.turns.find((turn) => turn.id === turnId || (turn.key && turn.key === view.clientMessageId));
    if (!turn) {
      this.#dropAsked(view.userMessageId);
      turn = this.#append(
        this.#newTurn({
          id: turnId,
          question: {
            content: view.content ?? "",
            images: view.images,
            attachments: view.attachments,
            messageId: view.userMessageId,
          },
        }),
      );
    }
    turn.id = turnId;
    turn.isLive = true;
    turn.view = view;
    Object.assign(turn.question, { messageId: view.userMessageId ?? turn.question.messageId });
    if (view.content !== null) turn.question.content = view.content;
    if (view.images.length) turn.question.images = view.images;
    if (view.attachments.length) turn.question.attachments = view.attachments;
    return turn;
  }

  /** Remove the turn of a question that is asked again and all later turns, because its answer begins a new branch. */
  #dropAsked(userMessageId) {
    const at = userMessageId ? this.turns.findIndex((turn) => turn.question.messageId === userMessageId) : -1;
    if (at >= 0) this.#cut(at);
  }

  #cut(at) {
    for (const turn of this.turns.splice(at)) turn.element.remove();
  }

  async #settle(turn) {
    this.desk.onTurn(this.running !== null, OUTCOMES[turn.view.status]);
    const { messageId } = turn.view;
    if (messageId) {
      const message = await api("GET", `${this.path}/messages/${encodeURIComponent(messageId)}`, {
        query: { format: "html" },
      }).catch(() => null);
      if (!this.isOpen) return;
      if (message) {
        const { lanes, waits, items } = turn.view;
        const calls = new Map(items.filter((item) => item.kind === "call").map((item) => [item.id, item]));
        const stored = viewOfMessage(message);
        const storedItems = stored.items.map((item) =>
          item.kind === "call" && calls.has(item.id) ? { ...item, ...calls.get(item.id), stored: false } : item,
        );
        const withHits = withLiveHits(
          storedItems,
          items.filter((item) => item.kind === "retrieval"),
        );
        const beside = items.filter(
          (item) => item.kind === "wait" || item.kind === "notice" || item.kind === "compacted",
        );
        turn.view = { ...stored, items: [...withHits, ...beside], lanes, waits, rating: this.feedback.get(messageId) };
        turn.isLive = false;
        this.views.delete(turn.id);
      }
    }
    this.#touch(turn);
    await this.#loadBranches();
    for (const turn of this.turns) this.#touch(turn);
    this.#letGo();
  }

  /** Remove the oldest turns if there are many and the user is at the end of the conversation. */
  #letGo() {
    if (!this.sticks || this.turns.length <= MOST_TURNS) return;
    const gone = this.turns.slice(0, -KEPT_TURNS);
    const first = this.turns[gone.length];
    const isNeeded = gone.some((turn) => turn.isLive || !turn.view || turn.element.contains(document.activeElement));
    if (isNeeded || !(first.question.messageId ?? first.view?.messageId)) return;
    this.turns = this.turns.slice(gone.length);
    for (const turn of gone) turn.element.remove();
    this.#drawCompaction();
    this.toEnd();
    this.older.begin(true);
  }

  #touch(turn) {
    this.dirty.add(turn);
    this.draw();
  }

  #draw() {
    for (const turn of this.dirty) {
      if (!this.turns.includes(turn)) continue;
      const isRunning = this.running !== null;
      turn.questionPart.update({ ...turn.question, branch: this.#branchAt(turn), editable: !isRunning });
      if (turn.view) turn.answerPart.update(turn.view);
      turn.element.dataset.status = turn.view?.status ?? "sending";
      turn.note.hidden = Boolean(turn.view);
    }
    this.dirty.clear();
    for (const turn of this.turns) if (!turn.view) this.#drawNote(turn);
    this.#follow();
  }

  /** Show below a question without an answer whether it is being sent or is queued behind a running turn. */
  #drawNote(turn) {
    const isQueued = Boolean(turn.question.messageId && this.running);
    if (isQueued === turn.isQueued) return;
    turn.isQueued = isQueued;
    replace(
      turn.note,
      isQueued ? icon("wait", 14) : h("span", { class: "spinner" }),
      t(isQueued ? "chat.queued" : "chat.sending"),
    );
  }

  // Stored turns

  #put(pairs, isOlder) {
    const turns = pairs.map(({ id, question, answer }) => {
      const turn = this.#newTurn({ id, question: { content: "", images: [] } });
      this.#ask(turn, question);
      if (answer) turn.view = { ...viewOfMessage(answer), rating: this.feedback.get(answer.id) };
      if (answer?.metadata.compacted || question?.metadata.compacted) turn.compacted = true;
      return turn;
    });
    if (isOlder) {
      this.turns.unshift(...turns);
      this.list.prepend(...turns.map((turn) => turn.element));
    } else {
      this.turns.push(...turns);
      this.list.append(...turns.map((turn) => turn.element));
    }
    this.#drawCompaction();
    for (const turn of turns) this.dirty.add(turn);
  }

  #ask(turn, message) {
    turn.questionPart.element.hidden = !message;
    if (message)
      turn.question = {
        content: message.content,
        images: imagesOf(message),
        attachments: message.attachments ?? [],
        messageId: message.id,
        parent: message.parentMessageId,
      };
    this.dirty.add(turn);
  }

  #drawCompaction() {
    this.list.querySelector(".compaction-line")?.remove();
    const at = this.turns.findLastIndex((turn) => turn.compacted);
    if (at >= 0) this.turns[at].element.after(h("p", { class: "divider compaction-line" }, t("chat.compactedLine")));
  }

  #newTurn({ id, question, key = null }) {
    const turn = { id, key, question, view: null, isLive: false };
    const around = {
      domainId: this.desk.domain.id,
      answer: (wait, action, content) => this.#answer(wait, action, content),
      mayAnswer: (wait) => wait.answerer !== "admin" || this.desk.app.can(this.desk.domain.id, "admin"),
      mayAllowAlways: this.desk.app.can(this.desk.domain.id, "admin"),
      retry: () => this.#retry(turn),
      rate: (view, rating) => this.#rate(turn, rating),
      makeCase: this.desk.app.can(this.desk.domain.id, "admin") ? () => this.#makeCase(turn) : null,
      markdown: (view) => markdownOf(view),
      text: (view) => view.text ?? textOf(view),
      more: (view, call) => this.#more(turn, call),
      app: (call) => this.#app(turn, call),
      edit: (_, content) => this.#edit(turn, content),
      branch: (_, by) => this.#switch(turn, by),
    };
    turn.questionPart = new QuestionPart(around);
    turn.answerPart = new AnswerPart(around);
    turn.note = h("p", { class: "answer-line" });
    turn.element = h("article", { class: "turn" }, turn.questionPart.element, turn.note, turn.answerPart.element);
    return turn;
  }

  #append(turn) {
    this.turns.push(turn);
    this.list.append(turn.element);
    this.#drawEmpty();
    this.#touch(turn);
    return turn;
  }

  #become(loaded, turn) {
    const at = this.turns.indexOf(loaded);
    loaded.element.replaceWith(turn.element);
    this.turns[at] = turn;
  }

  #drawEmpty() {
    this.list.querySelector(".empty")?.remove();
    if (!this.turns.length)
      this.list.append(emptyState(t("chat.nothingSaid"), t("chat.nothingSaidText"), { icon: "chat" }));
  }

  #loadBefore(limit = PAGE) {
    const [{ question, view }] = this.turns;
    return api("GET", `${this.path}/messages`, {
      query: { limit, format: "html", before: question.messageId ?? view.messageId },
    });
  }

  #putOlder(items) {
    const pairs = pair(items);
    const [first] = this.turns;
    // The first shown turn was split between the two pages of messages.
    if (pairs.at(-1)?.id === first.id) this.#ask(first, pairs.pop().question);
    this.#put(pairs, true);
    this.#draw();
  }

  #scrolled() {
    const { scrollTop, scrollHeight, clientHeight } = this.element;
    const isNear = scrollHeight - scrollTop - clientHeight < NEAR;
    // Growing content also fires a scroll event. Only scrolling up makes the view stop following the end.
    if (isNear || scrollTop < this.lastTop) this.sticks = isNear;
    this.lastTop = scrollTop;
    this.jump.hidden = this.sticks;
  }

  /** Stay at the end while content grows, unless the user has scrolled up since the last frame. */
  #follow() {
    if (this.sticks) this.#scrolled();
    if (this.sticks) this.toEnd();
  }

  toEnd() {
    this.sticks = true;
    this.element.scrollTop = this.element.scrollHeight;
    this.lastTop = this.element.scrollTop;
    this.jump.hidden = true;
  }

  /** Show a message of any branch, loading older messages up to it, and mark the words of the search. Without a
   * message, remove the marks. */
  async showPlace(messageId, words) {
    globalThis.CSS?.highlights?.delete("found");
    if (!messageId || !this.turns.length) return;
    let turn = await this.#findLoading(messageId);
    if (!turn && this.running === null) {
      await this.activate(messageId);
      turn = await this.#findLoading(messageId);
    }
    if (!turn || !this.isOpen) return;
    this.sticks = false;
    const isQuestion = turn.question.messageId === messageId;
    const place = isQuestion ? turn.questionPart.element : turn.answerPart.element;
    for (let frames = 4; frames > 0 && this.isOpen; frames -= 1) {
      await nextFrame();
      const ranges = rangesOf(place, words);
      (ranges[0]?.startContainer.parentElement ?? place).scrollIntoView({ block: ranges.length ? "center" : "start" });
      this.lastTop = this.element.scrollTop;
      if (globalThis.CSS?.highlights) CSS.highlights.set("found", new Highlight(...rangesOf(this.list, words)));
    }
    this.#scrolled();
  }

  async #findLoading(messageId) {
    const find = () =>
      this.turns.find((turn) => turn.question.messageId === messageId || turn.view?.messageId === messageId) ?? null;
    while (this.isOpen && !find() && this.older.hasMore) {
      const [first] = this.turns;
      const { items, hasMore } = await this.#loadBefore(MOST_AT_ONCE);
      if (first !== this.turns[0]) continue; // scrolling has loaded some of them meanwhile
      this.#putOlder(items);
      this.older.begin(hasMore);
    }
    return find();
  }

  // Actions

  /** Send a message; resolves once the server has it. */
  async send({ content, images, attachments = [] }) {
    const key = newKey();
    const turn = this.#append(
      this.#newTurn({ id: null, key, question: { content, images: previewsOf(images), attachments, messageId: null } }),
    );
    this.toEnd();
    this.unsent.write([...(this.unsent.read() ?? []), { content, key, images: images.length, attachments }]);
    if (images.length) await this.#keepImages(key, images);
    try {
      await this.#await(turn, () => this.#deliver({ content, images, attachments, key }));
    } catch (error) {
      if (error.code === "CLOSED" || isLeft) return; // the next page sends it
      this.#forgetUnsent(key);
      throw error;
    }
    this.#forgetUnsent(key);
  }

  #keepImages(key, images) {
    return imageParts()
      .then(({ writeImages }) => writeImages(`unsent:${key}`, images))
      .catch(() => {}); // the message is sent even if its images cannot be stored
  }

  #forgetUnsent(key) {
    const before = this.unsent.read() ?? [];
    const left = before.filter((message) => message.key !== key);
    this.unsent.write(left.length ? left : null);
    if (before.some((message) => message.key === key && message.images)) this.#keepImages(key, []);
  }

  /** Send the messages that an earlier page could not send. Each one keeps its key, so that it never arrives twice. If
   * the browser has lost the images of a message, it is put back into the composer. */
  async #sendUnsent() {
    for (const { content, key, images: count, attachments = [] } of this.unsent.read() ?? []) {
      const images = count ? await imageParts().then(({ readImages }) => readImages(`unsent:${key}`)) : [];
      if (!this.isOpen) return;
      const giveBack = (error) => {
        this.#forgetUnsent(key);
        this.desk.onUnsent(content, images, attachments);
        if (error) toastError(error);
      };
      if (images.length < count) {
        giveBack();
        continue;
      }
      const turn = this.#append(
        this.#newTurn({
          id: null,
          key,
          question: { content, images: previewsOf(images), attachments, messageId: null },
        }),
      );
      this.#await(turn, () => this.#deliver({ content, images, attachments, key })).then(
        () => this.#forgetUnsent(key),
        (error) => error.code === "CLOSED" || giveBack(error),
      );
    }
  }

  #deliver({ content, images, attachments, key }) {
    const common = {
      content,
      attachments: attachments.length ? attachments.map((attachment) => attachment.id) : undefined,
      clientMessageId: key,
      onBusy: "queue",
      model: this.desk.model(),
    };
    if (!images.length) return this.desk.stream.send({ conversationId: this.id, ...common });
    const body = { ...common, images: images.map(({ data, mediaType }) => ({ data, mediaType })) };
    return api("POST", `${this.path}/messages`, { body }); // images are too large for a WebSocket frame
  }

  async #await(turn, send) {
    try {
      const accepted = await send();
      turn.id ??= accepted.turnId ?? accepted.id;
      // The turn was loaded as a stored one meanwhile.
      if (this.turns.some((shownTurn) => shownTurn !== turn && shownTurn.id === turn.id)) return void this.#drop(turn);
      turn.question.messageId ??= accepted.userMessageId;
      this.desk.onTurn(true);
      this.#touch(turn);
    } catch (error) {
      this.#drop(turn);
      throw error;
    }
  }

  #drop(turn) {
    this.turns = this.turns.filter((listed) => listed !== turn);
    turn.element.remove();
    this.#drawEmpty();
  }

  /** Stop the running turn. This is an HTTP request, so that the user sees an error if it did not arrive. */
  async stop() {
    const turn = this.running;
    if (turn) await api("POST", `${this.path}/interrupt`, { body: { turnId: turn.id } });
  }

  async #retry(turn) {
    await this.#again(turn, { ...turn.question }, (messageId, key) =>
      this.desk.stream.retry({ conversationId: this.id, messageId, model: this.desk.model(), clientMessageId: key }),
    );
  }

  async #edit(turn, content) {
    await this.#again(turn, { ...turn.question, content, messageId: null }, (messageId, key) =>
      this.desk.stream.edit({
        conversationId: this.id,
        messageId,
        content,
        model: this.desk.model(),
        clientMessageId: key,
      }),
    );
  }

  async #again(turn, question, ask) {
    const at = this.turns.indexOf(turn);
    const { messageId } = turn.question;
    if (!messageId || at < 0) return;
    const before = this.turns.slice(at);
    const key = newKey();
    this.#cut(at);
    const next = this.#append(this.#newTurn({ id: null, key, question }));
    this.toEnd();
    try {
      await this.#await(next, () => ask(messageId, key));
    } catch (error) {
      for (const earlier of before)
        if (!this.turns.some((shownTurn) => shownTurn.id === earlier.id)) this.#append(earlier);
      throw error;
    }
  }

  async #answer(wait, action, content) {
    await this.desk.stream.answer({ conversationId: this.id, waitId: wait.waitId, action, content });
  }

  async #rate(turn, rating) {
    const { messageId } = turn.view;
    const place = `${this.path}/messages/${encodeURIComponent(messageId)}/feedback`;
    const set = (rating) => {
      if (rating) this.feedback.set(messageId, rating);
      else this.feedback.delete(messageId);
      turn.view = { ...turn.view, rating: rating };
      this.#touch(turn);
    };
    const before = turn.view.rating ?? null;
    const body = rating === "down" ? await this.#askReason() : { rating };
    if (!body) return; // the user closed the dialog without a rating
    set(rating);
    try {
      await api("PUT", place, { body });
    } catch (error) {
      set(before);
      throw error;
    }
    const { domain, app } = this.desk;
    if (rating === "down" && app.can(domain.id, "admin"))
      toast(t("chat.ratedDown"), {
        undo: { label: t("chat.makeCase"), act: () => this.#makeCase(turn).catch(toastError) },
      });
  }

  /** Open an evaluation case for the question of a turn: the one that was drafted from its rating, or a new one. */
  async #makeCase(turn) {
    const { domain, app } = this.desk;
    const base = `/api/domains/${encodeURIComponent(domain.id)}/evaluation`;
    const [{ openCase }, { items }] = await loadAll(
      caseParts(),
      api("GET", `${base}/cases`),
      loadWords("evaluation"),
      loadStyle("/web/domain/domain.css"),
    );
    const existingCase = items.find((item) => item.source?.messageId === turn.view.messageId) ?? null;
    const isSaved = await openCase(base, domain, existingCase, { questions: [turn.question.content] });
    if (isSaved)
      toast(t("chat.caseSaved"), {
        undo: {
          label: t("chat.openEvaluation"),
          act: () => app.navigate(`#/domains/${encodeURIComponent(domain.id)}/evaluation`),
        },
      });
  }

  /** Ask what was wrong. Returns the rating to send, or null if the user closes the dialog without an answer. */
  async #askReason() {
    const reason = textarea({ autofocus: true, maxlength: 2000, placeholder: t("chat.reasonPlaceholder") });
    const actions = (close) => [
      button(t("chat.noReason"), { onclick: () => close({ rating: "down" }) }),
      button(t("chat.send"), {
        kind: "primary",
        onclick: () => close({ rating: "down", ...(reason.value.trim() ? { reason: reason.value } : {}) }),
      }),
    ];
    return (
      (await openDialog(t("chat.whatWasWrong"), {
        build: () => field(t("chat.reason"), reason, { hint: t("chat.reasonHint") }),
        actions,
      }).closed) ?? null
    );
  }

  /** Return the app of a call's server if the domain shows apps of this server, else null. */
  #app(turn, call) {
    if (!turn.id || !call.server || !this.desk.domain.apps?.includes(call.server)) return null;
    const path = `/api/turns/${encodeURIComponent(turn.id)}/tool-calls/${encodeURIComponent(call.id)}/app`;
    const isAdmin = this.desk.app.can(this.desk.domain.id, "admin");
    return {
      address: path,
      name: call.name,
      check: () => apiFile(path, { accept: "text/html" }),
      send: (content) => this.send({ content, images: [] }),
      mayAnswer: (wait) => wait.answerer !== "admin" || isAdmin,
      mayAllowAlways: isAdmin,
    };
  }

  /** Load the details that a stored call lacks: its server, duration and delegates. */
  async #more(turn, call) {
    const wantsLanes =
      call.name === "delegate" && !Object.values(turn.view.lanes).some((lane) => lane.parentToolCallId === call.id);
    const [{ items: calls }, children] = await Promise.all([
      api("GET", `${this.path}/tool-calls`, { query: { turnId: turn.id, limit: 500 } }),
      wantsLanes ? api("GET", `/api/turns/${encodeURIComponent(turn.id)}/children`) : { items: [] },
    ]);
    const callsById = new Map(calls.map((call) => [call.toolCallId, call]));
    const items = turn.view.items.map((item) => {
      const details = item.kind === "call" ? callsById.get(item.id) : null;
      if (!details) return item;
      const result = item.result && { ...item.result, ref: details.ref, truncated: Boolean(details.ref) };
      return {
        ...item,
        server: details.server,
        durationMs: details.durationMs,
        status: details.status,
        result,
        stored: false,
      };
    });
    const lanes = { ...turn.view.lanes };
    for (const child of children.items)
      lanes[child.agent] = { agent: child.agent, parentToolCallId: child.parentToolCallId, items: laneItems(child) };
    turn.view = { ...turn.view, items, lanes };
    this.#touch(turn);
  }

  // Branches

  async #loadBranches() {
    const { items } = await api("GET", `${this.path}/branches`).catch(() => ({ items: [] }));
    this.branches = items;
  }

  async #loadFeedback() {
    const { items } = await api("GET", `${this.path}/feedback`).catch(() => ({ items: [] }));
    this.feedback = new Map(items.map((item) => [item.messageId, item.rating]));
  }

  #forksAt(turn) {
    const at = this.turns.indexOf(turn);
    const parent = at > 0 ? (this.turns[at - 1].view?.messageId ?? null) : this.older.hasMore ? undefined : null;
    const forks = this.branches.filter((branch) => branch.parentMessageId === parent);
    if (this.branches.length < 2 || !forks.length || parent === undefined) return [];
    const active = forks.some((fork) => fork.active);
    return active ? forks : [{ leaf: null, active: true }, ...forks];
  }

  #branchAt(turn) {
    const forks = this.#forksAt(turn);
    return forks.length > 1 ? { at: forks.findIndex((fork) => fork.active) + 1, of: forks.length } : null;
  }

  async #switch(turn, by) {
    const forks = this.#forksAt(turn);
    const next = forks[forks.findIndex((fork) => fork.active) + by];
    if (next?.leaf) await this.activate(next.leaf);
  }

  /** Switch to another branch. */
  async activate(leaf) {
    await api("PATCH", this.path, { body: { activeLeaf: leaf } });
    this.views.clear();
    this.turns = [];
    await this.#loadBranches();
    await this.reload();
  }
}

const nextFrame = () => new Promise((resolve) => requestAnimationFrame(resolve));

/** Return the ranges of words in the texts of an element. */
function rangesOf(element, words) {
  const terms = words.toLowerCase().split(/\s+/).filter(Boolean);
  const ranges = [];
  const walker = document.createTreeWalker(element, NodeFilter.SHOW_TEXT, (node) =>
    node.parentElement.closest(".question-text, .prose") ? NodeFilter.FILTER_ACCEPT : NodeFilter.FILTER_REJECT,
  );
  for (let node = walker.nextNode(); node; node = walker.nextNode()) {
    const text = node.data.toLowerCase();
    if (text.length !== node.data.length) continue;
    for (const term of terms) {
      for (let at = text.indexOf(term); at >= 0; at = text.indexOf(term, at + term.length)) {
        const range = new Range();
        range.setStart(node, at);
        range.setEnd(node, at + term.length);
        ranges.push(range);
      }
    }
  }
  return ranges;
}

/** Return the items of a stored answer, with the hits from the stream added. Streamed hits have scores and can open
 * their passages; stored hits have the headings. Searches of one step end in any order, so they are matched by their
 * queries. */
function withLiveHits(items, live) {
  const queries = new Map(
    items.filter((item) => item.kind === "call").map((item) => [`${item.id}:hits`, item.arguments?.query]),
  );
  const left = new Set(live);
  const merged = items.map((item) => {
    const liveHits =
      item.kind === "retrieval" &&
      [...left].find(({ source, query }) => source === "documents" && query === queries.get(item.id));
    if (!liveHits) return item;
    left.delete(liveHits);
    const hits = liveHits.hits.map((hit, at) =>
      item.hits[at]?.documentId === hit.documentId ? { headingPath: item.hits[at].headingPath, ...hit } : hit,
    );
    return { ...liveHits, of: item.id.slice(0, -":hits".length), hits };
  });
  return [...merged, ...[...left].filter(({ source }) => source === "memory")];
}

/** Return whether the stored messages do not yet have the whole turn: its answer is being written, or its question
 * waits to be sent or answered. */
function isUnderWay(turn, stored) {
  const storedTurn = stored.find((candidate) => candidate.id === turn.id);
  if (turn.isLive) return RUNNING.has(turn.view.status) || !storedTurn?.answer;
  return turn.key !== null && !turn.view && !storedTurn;
}

/** Return messages as turns: a question and its answer. */
function pair(items) {
  const turns = [];
  for (const message of items) {
    let turn = turns.at(-1);
    if (!turn || turn.id !== message.turnId) turns.push((turn = { id: message.turnId, question: null, answer: null }));
    turn[message.role === "user" ? "question" : "answer"] = message;
  }
  return turns;
}

function imagesOf(message) {
  return message.blocks
    .filter((block) => block.type === "image" && block.source?.ref)
    .map((block) => ({ ref: block.source.ref }));
}

function laneItems({ messages, toolCalls }) {
  const items = messages
    .filter((message) => message.role === "assistant")
    .flatMap((message) => viewOfMessage(message).items);
  const callsById = new Map(toolCalls.map((call) => [call.toolCallId, call]));
  return items.map((item) =>
    callsById.has(item.id)
      ? {
          ...item,
          server: callsById.get(item.id).server,
          durationMs: callsById.get(item.id).durationMs,
          status: callsById.get(item.id).status,
          stored: false,
        }
      : item,
  );
}

/** Return an answer as Markdown with its sources. Cited rows become tables. */
function markdownOf(view) {
  const text = view.text ?? textOf(view);
  if (!view.references.length) return `${text.trim()}\n`;
  return `${text.trim()}\n\n## ${t("chat.sourcesHeading")}\n\n${view.references.map((reference) => sourceMarkdown(reference, view)).join("\n")}\n`;
}

function sourceMarkdown(reference, view) {
  const place = [
    reference.page && t("chat.page", { page: reference.page }),
    headingOf(reference, view),
    reference.table && reference.cells,
  ].filter(Boolean);
  const address = reference.sourceUri ? ` <${reference.sourceUri.replace(/[\s<>\\`]/gu, encodeURIComponent)}>` : "";
  const begin = `${reference.number}. ${[reference.documentName, ...place].join(", ")}${address}:${reference.scanned ? ` (${t(reference.scannedBy === "model" ? "chat.scannedByModel" : "chat.scanned")})` : ""}`;
  if (!reference.table?.rows?.length) return `${begin} “${reference.citedText.replace(/\s+/g, " ").trim()}”`;
  const { header, rows } = reference.table;
  const width = Math.max(header?.length ?? 0, ...rows.map((row) => row.length));
  const line = (cells) =>
    `   | ${Array.from({ length: width }, (_, at) => (cells[at] ?? "").replaceAll("|", "\\|").replace(/\s+/g, " ")).join(" | ")} |`;
  return [begin, "", line(header ?? []), `   |${" --- |".repeat(width)}`, ...rows.map(line), ""].join("\n");
}
