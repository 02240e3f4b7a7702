// The chat: domains and conversations beside the open conversation.
//
// `ChatPage` has one connection (`stream.js`) for all conversations, the list, the composer, and the `view` of the open
// conversation. The view is null on the start of a new conversation. The address decides which conversation is open:
// `update` compares it with the view. `asked` counts the calls of `update`, so that the result of an older load is not
// shown.

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
/** Load the module that shows an open conversation. The start of a new conversation does not need it. */
const conversationParts = lazily((again) => import(`./conversation.js${again}`));

export async function show(main, { params, app }) {
  const page = new ChatPage(main, app);
  await page.begin(params);
  return { leave: () => page.leave(), update: (params) => page.update(params) };
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
    this.composer = new Composer({
      send: (message, taken) => this.#send(message, taken),
      stop: () => this.#stop(),
      conversation: () => this.#conversationId(),
      abandon: () => this.#abandon().catch(toastError),
    });
    this.title = h("h1", { class: "clip chat-title", dir: "auto" });
    this.line = h("p", { class: "chat-line small", role: "status" });
    this.body = h("div", { class: "chat-body" });
    this.share = button(t("chat.shareOrExport"), {
      kind: "quiet",
      icon: "upload",
      compact: true,
      hidden: true,
      onclick: () => this.#share(),
    });
    this.head = h(
      "header",
      { class: "chat-head" },
      button(t("chat.conversations"), {
        kind: "quiet",
        icon: "side",
        compact: true,
        class: "button button-quiet button-compact chat-side-button",
        "aria-expanded": "false",
        onclick: () => this.#toggleList(),
      }),
      this.title,
      this.line,
      this.share,
      menu(t("chat.more"), () => this.#items()),
    );
    this.starters = h("section", { class: "starters", "aria-label": t("chat.starters") });
    this.pane = h(
      "section",
      { class: "chat-pane" },
      this.head,
      this.body,
      h("div", { class: "chat-foot" }, this.composer.element),
      this.starters,
    );
    this.keys = (event) => this.#key(event);
    this.hiding = () => this.composer.flush();
    this.beginning = null;
    this.beginNew = () => this.#go(this.domain?.id);
  }

  async begin(params) {
    [this.domains] = await Promise.all([this.app.domains(), this.#loadParts(params.conversation)]);
    if (!this.main.isConnected) return; // the user has opened another page
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
    replace(
      this.main,
      emptyState(t("chat.noDomains"), t(operator ? "chat.noDomainsOperator" : "chat.noDomainsMember"), {
        icon: "domain",
        level: 1,
        actions: operator
          ? [button(t("chat.makeDomain"), { kind: "primary", icon: "add", onclick: () => this.#makeDomain() }), docs]
          : [],
      }),
    );
  }

  async #makeDomain() {
    const { createDomain } = await import("../domain/create.js");
    const created = await createDomain(this.app);
    if (created?.conversationId && !this.main.querySelector(".chat"))
      await this.begin({ domain: created.id, conversation: created.conversationId });
  }

  /** Load the module that shows conversations if one is opened. This comes first, so that the page changes in one
   * step. */
  async #loadParts(conversation) {
    if (conversation) this.parts ??= await conversationParts();
  }

  async update({ domain, conversation }) {
    const asked = (this.asked = (this.asked ?? 0) + 1);
    const isOld = () => asked !== this.asked; // the user has opened another conversation or page
    await this.#loadParts(conversation);
    if (isOld()) return;
    this.#toggleList(false);
    let domainId = domain;
    if (!domainId) domainId = this.domains.find((domain) => domain.id === keptDomain())?.id ?? this.domains[0].id;
    const chosen =
      this.domains.find((domain) => domain.id === domainId) ??
      (await this.app.domains({ again: true })).find((domain) => domain.id === domainId);
    if (isOld()) return;
    if (!chosen) {
      this.#closeView();
      this.pane.classList.remove("chat-fresh");
      replace(this.starters);
      replace(this.body, emptyState(t("shell.notFound"), t("shell.notFoundText"), { icon: "search" }));
      return;
    }
    if (chosen !== this.domain) {
      const domains = await this.app.domains();
      if (isOld()) return;
      this.domain = chosen;
      this.domains = domains;
      keepDomain(chosen.id);
      this.list.showDomains(this.domains, chosen.id);
      this.list.reload();
    }
    this.list.mark(conversation);
    if (this.view?.id === conversation && conversation) return this.#showPlace();
    this.#closeView();
    this.composer.open(conversation ?? `new:${chosen.id}`);
    this.composer.setPlaceholder(t(conversation ? "chat.followUp" : "chat.placeholder"));
    this.composer.setModels(chosen.models ?? []);
    this.prepared = null;
    this.beginning = null;
    this.composer.setRunning(false);
    if (!conversation) this.#showStart();
    else await this.#openView(conversation);
    // Do not move the focus out of the card of a wait, in which the user may already type.
    if (matchMedia("(pointer: fine)").matches && !this.body.contains(document.activeElement)) this.composer.focus();
  }

  leave() {
    this.asked += 1;
    this.isLeft = true;
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

  /** Show the start of a new conversation. Its text waits briefly for the starters, so that the layout does not
   * shift. */
  async #showStart() {
    this.#setTitle("");
    const { domain } = this;
    const hints = domain.documentCount
      ? t("chat.startDocuments", { count: domain.documentCount })
      : t(this.app.can(domain.id, "admin") ? "chat.startNoDocumentsAdmin" : "chat.startNoDocuments");
    this.pane.classList.add("chat-fresh");
    replace(this.starters);
    replace(this.body);
    const { asked } = this;
    // The start is also shown without starters.
    const starters = this.#loadStarters(domain).catch((error) => error.code || console.error(error));
    await Promise.race([starters, new Promise((resolve) => setTimeout(resolve, STARTERS_WAIT_MS))]);
    if (asked !== this.asked || this.view || this.beginning) return;
    replace(
      this.body,
      h(
        "div",
        { class: "start" },
        h("h2", { class: "start-title wrap", dir: "auto" }, domain.name),
        domain.description && h("p", { class: "soft wrap", dir: "auto" }, domain.description),
        h("p", { class: "faint" }, hints),
      ),
    );
  }

  async #loadStarters(domain) {
    const { items } = await api("GET", `/api/domains/${encodeURIComponent(domain.id)}/starters`);
    if (domain !== this.domain || this.view || this.beginning || !items.length) return;
    const line = ({ text, documentName }) =>
      h(
        "li",
        {},
        h(
          "button",
          { type: "button", class: "starter", onclick: () => this.#sendStarter(text) },
          h("span", { class: "starter-text", dir: "auto" }, text),
          documentName && h("span", { class: "starter-document clip", dir: "auto" }, documentName),
        ),
      );
    replace(this.starters, h("h2", {}, t("chat.starters")), h("ul", {}, items.slice(0, MOST_STARTERS).map(line)));
  }

  /** Send a question that the start offers. The text in the composer stays. */
  async #sendStarter(content) {
    for (const starter of this.starters.querySelectorAll("button")) starter.disabled = true;
    try {
      await this.#send({ content, images: [] }, () => {});
    } catch (error) {
      for (const starter of this.starters.querySelectorAll("button")) starter.disabled = false;
      toastError(error);
    }
  }

  #makeView(conversationId) {
    return new this.parts.ConversationView(
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
  }

  #showView(view) {
    this.view = view;
    this.pane.classList.remove("chat-fresh");
    replace(this.starters);
    replace(this.body, view.element, view.jump);
  }

  async #openView(conversationId) {
    const view = this.#makeView(conversationId);
    this.#showView(view);
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
      replace(
        this.body,
        emptyState(t("chat.notOpened"), error.status === 404 ? t("chat.gone") : error.message, {
          icon: "alert",
          actions: [back],
        }),
      );
      if (!error.code) console.error(error);
    }
  }

  /** Show the message that the address names, with the words of the search marked. */
  #showPlace() {
    const query = new URLSearchParams(location.hash.split("?")[1] ?? "");
    this.view?.showPlace(query.get("at"), query.get("find") ?? "").catch(toastError);
  }

  /** Compare the open conversation with its state in the list. A turn may have ended between two requests, so that no
   * event reports its end. The view is reloaded only after two polls in a row disagree with it, because the response
   * to one poll may be older than the newest event. */
  #compare(record) {
    const { view, composer } = this;
    if (!view?.record || view.id !== record.id) return;
    const isStale = !record.turn && (view.isUnfinished || composer.running);
    if (isStale && this.wasStale === record.id)
      view
        .reload()
        .then(() => view === this.view && composer.setRunning(view.running !== null))
        .catch(toastError);
    this.wasStale = isStale && this.wasStale !== record.id ? record.id : null;
    if (this.wasStale) this.list.lookSoon();
  }

  async #stop() {
    await this.view?.stop().catch(toastError);
  }

  async #send(message, taken) {
    const beginning = this.view ? null : (this.beginning ??= this.#begin());
    let { view } = this;
    try {
      view ??= await beginning;
    } finally {
      if (beginning === this.beginning) this.beginning = null;
    }
    const sending = view.send(message);
    taken();
    await sending.finally(() => this.#endUnseen(view));
  }

  /** Close the view of a message that was sent after the user had opened another page. */
  #endUnseen(view) {
    if (view.element.isConnected) return;
    if (view.id !== this.view?.id) view.close();
    if (this.isLeft) this.stream.close();
  }

  /** Create and show the conversation of a first message. Messages that are sent meanwhile are added to it. If the user
   * opens another page first, the conversation is not shown, but the message is sent. Returns the view. */
  async #begin() {
    const { asked, domain } = this;
    const { attachedTo, model } = this.composer;
    this.parts ??= await conversationParts(); // loaded first, so that no conversation is created that cannot be shown
    const record = await this.#prepare(domain.id, attachedTo);
    const view = this.#makeView(record.id);
    view.record = record;
    if (domain === this.domain && !this.isLeft) this.list.add(record);
    if (asked !== this.asked) {
      view.desk.model = () => model; // the composer shows the model of another conversation
      return view;
    }
    this.prepared = null;
    this.#showView(view);
    this.composer.setPlaceholder(t("chat.followUp"));
    this.composer.moveTo(record.id);
    this.app.navigate(`#/chat/${this.domain.id}/${record.id}`, { instead: true });
    this.stream.follow(record.id);
    return view;
  }

  /** Return the id of the conversation that files are attached to: the open one, or the one of the first message. */
  async #conversationId() {
    return this.view?.id ?? (await this.#prepare()).id;
  }

  /** Create the next conversation of a domain once. If an earlier page created one for attached files, it is used. */
  async #prepare(domainId = this.domain.id, attachedTo = this.composer.attachedTo) {
    if (this.prepared?.domainId !== domainId) {
      const earlier = attachedTo
        ? api("GET", `/api/conversations/${encodeURIComponent(attachedTo)}`).catch(() => null)
        : Promise.resolve(null);
      const record = earlier.then((existing) => existing ?? api("POST", "/api/conversations", { body: { domainId } }));
      const prepared = (this.prepared = { domainId, record });
      record.catch(() => prepared === this.prepared && (this.prepared = null));
    }
    return this.prepared.record;
  }

  /** Delete the conversation that was created for attached files, after the user has removed the last of them. */
  async #abandon() {
    const { prepared } = this;
    if (this.view || this.beginning || !prepared) return;
    this.prepared = null;
    const { id } = await prepared.record;
    await api("DELETE", `/api/conversations/${encodeURIComponent(id)}`).catch(
      (error) => error.status === 404 || toastError(error),
    );
  }

  /** Return the record of the open conversation, from the list if it is there. */
  get #record() {
    return this.list.items.find((item) => item.id === this.view?.id) ?? this.view?.record;
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
    if (location.hash === address) this.composer.focus(); // a new conversation is already open
    this.app.navigate(address);
  }

  /** Show or hide the list on a screen where it covers the conversation. `shown` undefined: toggle it. */
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
      view &&
        view.branches.length > 1 && { label: t("chat.branches"), icon: "branch", act: () => this.#showBranches() },
      view && { label: t("chat.compact"), icon: "archive", act: () => this.#compact() },
    ].filter((item) => item !== false && item !== undefined && !(item === null && !view));
  }

  #showBranches() {
    const { view } = this;
    const line = (branch, close) =>
      h(
        "li",
        {},
        h(
          "button",
          {
            type: "button",
            class: "branch-line",
            "aria-current": branch.active ? "true" : null,
            onclick: () => (close(), view.activate(branch.leaf).catch(toastError)),
          },
          h("span", { class: "wrap" }, branch.content),
          h(
            "span",
            { class: "row faint small" },
            t("chat.turns", { count: branch.turnCount }),
            formatDate(branch.startedAt),
            branch.active && badge(t("chat.current"), "ok"),
          ),
        ),
      );
    openDialog(t("chat.branches"), {
      build: (close) =>
        h(
          "ul",
          { class: "branch-lines" },
          view.branches.map((branch) => line(branch, close)),
        ),
    });
  }

  async #compact() {
    const { messageCount } = await api("POST", `${this.view.path}/compact`, { body: {} });
    this.#say(t("chat.compacted", { count: messageCount }), 8);
    await this.view.reload();
  }

  #key(event) {
    const isCovered = document.querySelector("dialog[open], [popover]:popover-open");
    if (event.key !== "Escape" || event.defaultPrevented || isCovered) return;
    // On a phone, the list covers the conversation.
    if (this.main.querySelector(".chat-listed")) this.#toggleList(false);
    else if (this.composer.running && !document.querySelector(".source-column")) this.#stop();
  }

  // The connection

  async #protocols() {
    let { user } = this.app;
    // A server without keys may have begun to require them, because another tab, which is now signed in, approved an
    // MCP server.
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
      // If the view followed no running turn, a turn may have begun and ended while the connection was lost.
      if (this.view?.record && !this.stream.followed.get(this.view.id)?.turnId) this.view.reload().catch(toastError);
    }
  }

  /** Show a status line for some seconds, or until the next one. */
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
    // The browser has no storage.
  }
}
