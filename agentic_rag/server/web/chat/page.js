// The chat: domains and conversations beside the conversation that is open.

import { api, lazily } from "../api.js";
import { h, replace, ROOT } from "../dom.js";
import { formatDate, t } from "../i18n.js";
import { Stream } from "../stream.js";
import { badge, button, emptyState, menu, openDialog, toastError } from "../ui.js";
import { Composer } from "./composer.js";
import { ConversationList } from "./list.js";

const MOST_STARTERS = 4;
const STARTERS_WAIT_MS = 400;
const KEPT_DOMAIN = "agentic-rag.domain";

const sharingParts = lazily((again) => import(`./sharing.js${again}`));
/** What an open conversation is made of: the first page does without. */
const conversationParts = lazily((again) => import(`./conversation.js${again}`));

export async function show(main, { params, app }) {
  const page = new ChatPage(main, app);
  await page.begin(params);
  return { leave: () => page.leave(), update: (given) => page.update(given) };
}

class ChatPage {
  constructor(main, app) {
    Object.assign(this, { main, app, view: null, domain: null, wasLost: false });
    this.stream = new Stream({
      url: `${location.origin.replace(/^http/, "ws")}${ROOT}/ws`,
      protocols: () => this.#protocols(),
      onEvent: (event) => this.view?.id === event.conversationId && this.view.onEvent(event),
      onState: (state) => this.#onState(state),
      onResync: (id) => this.view?.id === id && this.view.reload().catch(toastError),
    });
    this.list = new ConversationList({
      app,
      begin: () => this.#go(this.domain?.id),
      chooseDomain: (id) => this.#go(id),
      onDeleted: () => this.#go(this.domain?.id),
      onRenamed: (id, title) => id === this.view?.id && this.#setTitle(title),
      onState: (record) => this.#compare(record),
    });
    this.composer = new Composer({ send: (given, taken) => this.#send(given, taken), stop: () => this.#stop(), conversation: () => this.#conversationId(), abandon: () => this.#abandon().catch(toastError) });
    this.title = h("h1", { class: "clip chat-title", dir: "auto" });
    this.line = h("p", { class: "chat-line small", role: "status" });
    this.body = h("div", { class: "chat-body" });
    this.share = button(t("chat.shareOrExport"), { kind: "quiet", icon: "upload", compact: true, hidden: true, onclick: () => this.#share() });
    this.head = h("header", { class: "chat-head" }, button(t("chat.conversations"), { kind: "quiet", icon: "side", compact: true, class: "button button-quiet button-compact chat-side-button", "aria-expanded": "false", onclick: () => this.#toggleList() }), this.title, this.line, this.share, menu(t("chat.more"), () => this.#items()));
    this.starters = h("section", { class: "starters", "aria-label": t("chat.starters") });
    this.pane = h("section", { class: "chat-pane" }, this.head, this.body, h("div", { class: "chat-foot" }, this.composer.element), this.starters);
    this.keys = (event) => this.#key(event);
    this.hiding = () => this.composer.flush();
    this.beginning = null;
    this.beginNew = () => this.#go(this.domain?.id);
  }

  async begin(params) {
    [this.domains] = await Promise.all([this.app.domains(), this.#loadParts(params.conversation)]);
    if (!this.domains.length) return this.#showNoDomain();
    replace(this.main, h("div", { class: "chat" }, this.list.element, this.pane));
    document.addEventListener("keydown", this.keys);
    document.addEventListener("new-conversation", this.beginNew);
    addEventListener("pagehide", this.hiding);
    await this.update(params);
  }

  #showNoDomain() {
    const { operator } = this.app.user;
    this.app.setTitle(t("shell.navChat"));
    const docs = h("a", { class: "button", href: "/api/docs", target: "_blank", rel: "noopener" }, t("shell.apiDocs"));
    replace(this.main, emptyState(t("chat.noDomains"), t(operator ? "chat.noDomainsOperator" : "chat.noDomainsMember"), { icon: "domain", level: 1, actions: operator ? [button(t("chat.makeDomain"), { kind: "primary", icon: "add", onclick: () => this.#makeDomain() }), docs] : [] }));
  }

  async #makeDomain() {
    const { createDomain } = await import("../domain/create.js");
    const made = await createDomain(this.app);
    if (made?.conversationId && !this.main.querySelector(".chat")) await this.begin({ domain: made.id, conversation: made.conversationId });
  }

  /** Load what a conversation is shown with, if there is one: before anything changes, so that nothing comes between. */
  async #loadParts(conversation) {
    if (conversation) this.parts ??= await conversationParts();
  }

  async update({ domain, conversation }) {
    const asked = (this.asked = (this.asked ?? 0) + 1);
    await this.#loadParts(conversation);
    if (asked !== this.asked) return; // one went on meanwhile
    this.#toggleList(false);
    let domainId = domain;
    if (!domainId) domainId = this.domains.find((each) => each.id === keptDomain())?.id ?? this.domains[0].id;
    const found = this.domains.find((each) => each.id === domainId) ?? (await this.app.domains({ again: true })).find((each) => each.id === domainId);
    if (!found) {
      this.#closeView();
      this.pane.classList.remove("chat-fresh");
      replace(this.starters);
      replace(this.body, emptyState(t("shell.notFound"), t("shell.notFoundText"), { icon: "search" }));
      return;
    }
    if (found !== this.domain) {
      this.domain = found;
      keepDomain(found.id);
      this.domains = await this.app.domains();
      this.list.showDomains(this.domains, found.id);
      this.list.reload();
    }
    this.list.mark(conversation);
    if (this.view?.id === conversation && conversation) return this.#showPlace();
    this.#closeView();
    this.composer.open(conversation ?? `new:${found.id}`);
    this.composer.setPlaceholder(t(conversation ? "chat.followUp" : "chat.placeholder"));
    this.composer.setModels(found.models ?? []);
    this.prepared = null;
    this.composer.setRunning(false);
    if (!conversation) this.#showStart();
    else await this.#openView(conversation);
    // who answers a card already types there
    if (matchMedia("(pointer: fine)").matches && !this.body.contains(document.activeElement)) this.composer.focus();
  }

  leave() {
    this.#closeView();
    this.composer.flush();
    this.composer.leave();
    this.list.leave();
    this.stream.close();
    document.removeEventListener("keydown", this.keys);
    document.removeEventListener("new-conversation", this.beginNew);
    removeEventListener("pagehide", this.hiding);
  }

  #closeView() {
    this.view?.close();
    this.view = null;
  }

  /** Show the start of a new conversation. Its text waits a moment for the starters, so that nothing moves. */
  async #showStart() {
    this.#setTitle("");
    const { domain } = this;
    const hints = domain.documentCount ? t("chat.startDocuments", { count: domain.documentCount }) : t(this.app.can(domain.id, "admin") ? "chat.startNoDocumentsAdmin" : "chat.startNoDocuments");
    this.pane.classList.add("chat-fresh");
    replace(this.starters);
    replace(this.body);
    const { asked } = this;
    const starters = this.#loadStarters(domain).catch((error) => error.code || console.error(error)); // a start without them is whole
    await Promise.race([starters, new Promise((resolve) => setTimeout(resolve, STARTERS_WAIT_MS))]);
    if (asked !== this.asked || this.view || this.beginning) return;
    replace(this.body, h("div", { class: "start" }, h("h2", { class: "start-title wrap", dir: "auto" }, domain.name), domain.description && h("p", { class: "soft wrap", dir: "auto" }, domain.description), h("p", { class: "faint" }, hints)));
  }

  async #loadStarters(domain) {
    const { items } = await api("GET", `/api/domains/${encodeURIComponent(domain.id)}/starters`);
    if (domain !== this.domain || this.view || this.beginning || !items.length) return;
    const line = ({ text, documentName }) => h("li", {}, h("button", { type: "button", class: "starter", onclick: () => this.#sendStarter(text) }, h("span", { class: "starter-text", dir: "auto" }, text), documentName && h("span", { class: "starter-document clip", dir: "auto" }, documentName)));
    replace(this.starters, h("h2", {}, t("chat.starters")), h("ul", {}, items.slice(0, MOST_STARTERS).map(line)));
  }

  /** Send a question that the start offers. What is typed stays. */
  async #sendStarter(content) {
    for (const each of this.starters.querySelectorAll("button")) each.disabled = true;
    try {
      await this.#send({ content, images: [] }, () => {});
    } catch (error) {
      for (const each of this.starters.querySelectorAll("button")) each.disabled = false;
      toastError(error);
    }
  }

  #makeView(conversationId) {
    this.view = new this.parts.ConversationView(
      {
        app: this.app,
        stream: this.stream,
        domain: this.domain,
        onTitle: (id, title) => {
          this.list.setTitle(id, title);
          if (id === this.view?.id) this.#setTitle(title);
        },
        onTurn: (running, outcome) => {
          if (conversationId === this.view?.id) this.composer.setRunning(running);
          this.list.setTurn(conversationId, running, outcome);
        },
        onWaiting: (waiting) => this.list.setWaiting(conversationId, waiting),
        onUnsent: (content, images, attachments) => this.composer.giveBack(content, images, attachments),
        onResumed: () => this.#say(t("chat.wasRestarted"), 8),
        model: () => this.composer.model,
      },
      conversationId,
    );
    this.pane.classList.remove("chat-fresh");
    replace(this.starters);
    replace(this.body, this.view.element, this.view.jump);
    return this.view;
  }

  async #openView(conversationId) {
    const view = this.#makeView(conversationId);
    try {
      const record = await view.open();
      if (view !== this.view) return;
      this.#setTitle(record.title);
      this.composer.chooseModel(record.model);
      this.composer.setRunning(view.running !== null || record.turn !== null);
      this.#showPlace();
    } catch (error) {
      if (view !== this.view) return;
      this.#closeView();
      const back = button(t("chat.new"), { kind: "primary", onclick: () => this.#go(this.domain.id) });
      replace(this.body, emptyState(t("chat.notOpened"), error.status === 404 ? t("chat.gone") : error.message, { icon: "alert", actions: [back] }));
      if (!error.code) console.error(error);
    }
  }

  /** Show the message that the address names, with the words that were searched for. */
  #showPlace() {
    const query = new URLSearchParams(location.hash.split("?")[1] ?? "");
    this.view?.showPlace(query.get("at"), query.get("find") ?? "").catch(toastError);
  }

  /** Compare the open conversation with its state in the list: its turn may have ended between two requests, so that no
   * event of it comes. One look alone may have been answered before the newest event. */
  #compare(record) {
    const { view, composer } = this;
    if (!view?.record || view.id !== record.id) return;
    const isStale = !record.turn && (view.isUnfinished || composer.running);
    if (isStale && this.wasStale === record.id) view.reload().then(() => view === this.view && composer.setRunning(view.running !== null)).catch(toastError);
    this.wasStale = isStale && this.wasStale !== record.id ? record.id : null;
    if (this.wasStale) this.list.lookSoon();
  }

  async #stop() {
    await this.view?.stop().catch(toastError);
  }

  async #send(given, taken) {
    if (!this.view) await (this.beginning ??= this.#begin().finally(() => (this.beginning = null)));
    const sending = this.view.send(given);
    taken();
    await sending;
  }

  /** Make the conversation of a first message, one for all that are sent until it is there. */
  async #begin() {
    this.parts ??= await conversationParts(); // first, so that no conversation is made that cannot be shown
    const record = await this.#prepare();
    this.prepared = null;
    const view = this.#makeView(record.id);
    view.record = record;
    this.list.add(record);
    this.composer.setPlaceholder(t("chat.followUp"));
    this.composer.moveTo(record.id);
    this.app.navigate(`#/chat/${this.domain.id}/${record.id}`, { instead: true });
    this.stream.follow(record.id);
  }

  /** The conversation that is open, or the one that the first message will be in: files are attached to it. */
  async #conversationId() {
    return this.view?.id ?? (await this.#prepare()).id;
  }

  /** Make the next conversation of this domain, once. One that an earlier page made for its attached files goes on. */
  async #prepare() {
    const domainId = this.domain.id;
    if (this.prepared?.domainId !== domainId) {
      const kept = this.composer.attachedTo;
      const found = kept ? api("GET", `/api/conversations/${encodeURIComponent(kept)}`).catch(() => null) : Promise.resolve(null);
      const record = found.then((known) => known ?? api("POST", "/api/conversations", { body: { domainId } }));
      this.prepared = { domainId, record };
      record.catch(() => (this.prepared = null));
    }
    return this.prepared.record;
  }

  /** Delete the conversation that was only made for attached files, after the last of them was removed. */
  async #abandon() {
    const { prepared } = this;
    if (this.view || this.beginning || !prepared) return;
    this.prepared = null;
    const { id } = await prepared.record;
    await api("DELETE", `/api/conversations/${encodeURIComponent(id)}`).catch((error) => error.status === 404 || toastError(error));
  }

  /** The record of the open conversation, as the list has it. */
  get #record() {
    return this.list.items.find((each) => each.id === this.view?.id) ?? this.view?.record;
  }

  async #share() {
    if (this.#record) (await sharingParts()).openSharing(this.#record);
  }

  #setTitle(title) {
    this.share.hidden = !this.view;
    this.title.textContent = title || (this.view ? t("chat.untitled") : t("chat.new"));
    this.app.setTitle(title, this.domain?.name);
  }

  #go(domainId) {
    const address = domainId ? `#/chat/${domainId}` : "#/chat";
    if (location.hash === address) this.composer.focus(); // a new conversation is open already
    this.app.navigate(address);
  }

  /** Show or hide the list where it covers the conversation. `shown` undefined: the other of the two. */
  #toggleList(shown) {
    const isShown = this.main.querySelector(".chat")?.classList.toggle("chat-listed", shown);
    this.head.firstChild.setAttribute("aria-expanded", String(Boolean(isShown)));
  }

  #items() {
    const { view } = this;
    const record = this.#record;
    return [
      { label: t("chat.new"), icon: "add", act: () => this.#go(this.domain.id) },
      this.app.user.operator && { label: t("chat.makeDomain"), icon: "domain", act: () => this.#makeDomain() },
      view && null,
      view && record && { label: t("chat.rename"), icon: "edit", act: () => this.list.rename(record) },
      view && record && { label: t("chat.toFolder"), icon: "domain", act: () => this.list.moveToFolder(record) },
      view && record && { label: t("chat.shareOrExport"), icon: "upload", act: () => this.#share() },
      view && view.branches.length > 1 && { label: t("chat.branches"), icon: "branch", act: () => this.#showBranches() },
      view && { label: t("chat.compact"), icon: "archive", act: () => this.#compact() },
    ].filter((each) => each !== false && each !== undefined && !(each === null && !view));
  }

  #showBranches() {
    const { view } = this;
    const line = (each, close) => h("li", {}, h("button", { type: "button", class: "branch-line", "aria-current": each.active ? "true" : null, onclick: () => (close(), view.activate(each.leaf).catch(toastError)) }, h("span", { class: "wrap" }, each.content), h("span", { class: "row faint small" }, t("chat.turns", { count: each.turnCount }), formatDate(each.startedAt), each.active && badge(t("chat.current"), "ok"))));
    openDialog(t("chat.branches"), { build: (close) => h("ul", { class: "branch-lines" }, view.branches.map((each) => line(each, close))) });
  }

  async #compact() {
    const { messageCount } = await api("POST", `${this.view.path}/compact`, { body: {} });
    this.#say(t("chat.compacted", { count: messageCount }), 8);
    await this.view.reload();
  }

  #key(event) {
    if (event.key === "Escape" && this.main.querySelector(".chat-listed") && !event.defaultPrevented && !document.querySelector("dialog[open], [popover]:popover-open")) {
      this.#toggleList(false); // on a phone the list covers the conversation
      return;
    }
    if (event.key === "Escape" && this.composer.running && !document.querySelector("dialog[open], [popover]:popover-open, .source-column") && !event.defaultPrevented) this.#stop();
  }

  // The connection

  async #protocols() {
    let { user } = this.app;
    // A server without keys may have begun to ask for them: another tab, which is signed in now, approved a server.
    if (!user.signedIn && this.wasLost) user = await this.app.refreshUser();
    if (!user.signedIn && user.name !== null) return ["agentic-rag.native"];
    const { subprotocol } = await api("POST", "/api/ws-tickets");
    return ["agentic-rag.native", subprotocol];
  }

  #onState(state) {
    if (state === "lost") {
      this.wasLost = true;
      this.#say(t(this.view?.running ? "chat.lost" : "chat.lostIdle"));
    } else if (state === "open" && this.wasLost) {
      this.wasLost = false;
      this.#say(t("chat.back"), 6);
      // Where no turn was known whose events would be asked for, one may have come and gone.
      if (this.view?.record && !this.stream.followed.get(this.view.id)?.turnId) this.view.reload().catch(toastError);
    }
  }

  /** Show a quiet line, for so many seconds or until the next one. */
  #say(text, seconds) {
    clearTimeout(this.timer);
    this.line.textContent = text;
    if (seconds) this.timer = setTimeout(() => (this.line.textContent = ""), seconds * 1000);
  }
}

function keptDomain() {
  try {
    return localStorage.getItem(KEPT_DOMAIN);
  } catch {
    return null;
  }
}

function keepDomain(id) {
  try {
    localStorage.setItem(KEPT_DOMAIN, id);
  } catch {
    // a browser that keeps nothing
  }
}
