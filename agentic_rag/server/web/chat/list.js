// The conversations of a domain: found, named, put away, deleted; older ones come as one scrolls.

import { api } from "../api.js";
import { below, debounce, h, replace } from "../dom.js";
import { formatAgo, t } from "../i18n.js";
import { button, doLater, field, input, menu, openDialog, select, toast, toastError } from "../ui.js";

const PAGE = 40;

export class ConversationList {
  /** `desk`: `{app, domains, open(conversationId), begin(), chooseDomain(id), onDeleted(id)}`. */
  constructor(desk) {
    Object.assign(this, { desk, items: [], page: 0, hasMore: false, current: null, status: "active", hidden: new Set(), asked: 0 });
    this.choice = select([], { "aria-label": t("chat.domain"), onchange: () => desk.chooseDomain(this.choice.value) });
    this.only = h("p", { class: "chat-list-domain clip", dir: "auto" });
    this.search = input({ type: "search", placeholder: t("chat.search"), "aria-label": t("chat.search"), "data-search": "", oninput: debounce(200, () => this.reload()) });
    this.archived = button(t("chat.archived"), { kind: "quiet", icon: "archive", class: "button button-quiet button-small", "aria-pressed": "false", onclick: () => this.#toggleArchived() });
    this.list = h("ul", { class: "conversations" });
    this.sentinel = h("div", { class: "older" });
    this.frame = h("div", { class: "conversations-frame" }, this.list, this.sentinel);
    this.element = h("div", { class: "chat-list" }, h("div", { class: "chat-list-head" }, this.only, this.choice, button(t("chat.new"), { kind: "primary", icon: "add", onclick: () => desk.begin() }), this.search), this.frame, h("div", { class: "chat-list-foot" }, this.archived));
    new IntersectionObserver(([entry]) => entry.isIntersecting && this.hasMore && this.#more(), { root: this.frame, rootMargin: "200px" }).observe(this.sentinel);
  }

  showDomains(domains, current) {
    replace(this.choice, domains.map((each) => h("option", { value: each.id }, each.name)));
    this.choice.value = current ?? "";
    this.choice.hidden = domains.length < 2;
    this.only.hidden = domains.length > 1;
    this.only.textContent = domains[0]?.name ?? "";
    this.domain = current;
  }

  async reload() {
    this.page = 0;
    await this.#more(true);
  }

  async #more(anew = false) {
    const asked = (this.asked += 1);
    try {
      const query = { domainId: this.domain, status: this.status, q: this.search.value.trim(), page: this.page + 1, pageSize: PAGE, sortBy: "updatedAt", sortOrder: "desc" };
      const { items, hasMore } = await api("GET", "/api/conversations", { query });
      if (asked !== this.asked) return;
      this.page += 1;
      this.hasMore = hasMore;
      const known = new Set(anew ? [] : this.items.map((each) => each.id));
      this.items = [...(anew ? [] : this.items), ...items.filter((each) => !known.has(each.id))];
      this.#draw();
    } catch (error) {
      toastError(error);
    }
  }

  mark(conversationId) {
    this.current = conversationId;
    for (const link of this.list.querySelectorAll("a")) {
      if (link.dataset.id === conversationId) link.setAttribute("aria-current", "true");
      else link.removeAttribute("aria-current");
    }
  }

  setTitle(conversationId, title) {
    const found = this.items.find((each) => each.id === conversationId);
    if (!found) return void this.reload();
    found.title = title;
    this.#draw();
  }

  /** Show whether a conversation is being answered: the list was loaded before its turn began or ended. */
  setTurn(conversationId, running) {
    const found = this.items.find((each) => each.id === conversationId);
    if (!found || Boolean(found.turn) === running) return;
    found.turn = running ? { status: "running" } : null;
    found.lastMessageAt = new Date().toISOString();
    this.#draw();
  }

  add(record) {
    this.items = [record, ...this.items.filter((each) => each.id !== record.id)];
    this.#draw();
  }

  #toggleArchived() {
    this.status = this.status === "active" ? "archived" : "active";
    this.archived.setAttribute("aria-pressed", String(this.status === "archived"));
    this.reload();
  }

  #draw() {
    const shown = this.items.filter((each) => !this.hidden.has(each.id));
    const nothing = this.search.value ? "chat.noneFound" : this.status === "archived" ? "chat.noneArchived" : "chat.noneYet";
    replace(this.list, shown.length ? shown.map((each) => this.#line(each)) : h("li", { class: "faint small conversations-none" }, t(nothing)));
    this.mark(this.current);
  }

  #line(record) {
    const title = record.title || t("chat.untitled");
    const items = () => [
      { label: t("chat.rename"), icon: "edit", act: () => this.rename(record) },
      record.status === "archived" ? { label: t("chat.unarchive"), icon: "archive", act: () => this.#setStatus(record, "active") } : { label: t("chat.archive"), icon: "archive", act: () => this.#setStatus(record, "archived") },
      null,
      { label: t("chat.delete"), icon: "trash", danger: true, act: () => this.#delete(record) },
    ];
    const link = h("a", { href: `#/chat/${record.domainId}/${record.id}`, dataset: { id: record.id }, class: "conversation-link" }, h("span", { class: "clip", dir: "auto" }, title), h("span", { class: "faint small" }, record.turn ? t(record.turn.status === "waiting" ? "chat.isWaiting" : "chat.isRunning") : formatAgo(record.lastMessageAt ?? record.updatedAt)));
    return h("li", { class: "conversation" }, link, menu(t("chat.menuOf", { title }), items));
  }

  rename(record) {
    const name = field(t("chat.title"), input({ value: record.title, maxlength: 200 }));
    const save = (close) => async () => {
      const changed = await api("PATCH", `/api/conversations/${record.id}`, { body: { title: name.control.value.trim() } });
      Object.assign(record, changed);
      this.#draw();
      this.desk.onRenamed(record.id, record.title);
      close(true);
    };
    const dialog = openDialog(t("chat.rename"), { build: () => name, actions: (close) => [button(t("shell.cancel"), { onclick: () => close() }), button(t("chat.save"), { kind: "primary", onclick: save(close) })] });
    name.control.addEventListener("keydown", (event) => event.key === "Enter" && !event.isComposing && dialog.element.querySelector(".dialog-foot .button-primary").click());
    name.control.select();
  }

  async #setStatus(record, status) {
    await api("PATCH", `/api/conversations/${record.id}`, { body: { status } });
    this.items = this.items.filter((each) => each.id !== record.id);
    this.#draw();
    const back = async () => {
      await api("PATCH", `/api/conversations/${record.id}`, { body: { status: record.status } });
      await this.reload();
    };
    toast(t(status === "archived" ? "chat.wasArchived" : "chat.wasUnarchived"), { undo: { act: () => back().catch(toastError) } });
  }

  #delete(record) {
    this.hidden.add(record.id);
    this.#draw();
    if (record.id === this.current) this.desk.onDeleted(record.id);
    doLater(t("chat.wasDeleted", { title: record.title || t("chat.untitled") }), {
      act: async () => {
        await fetch(below(`/api/conversations/${record.id}`), { method: "DELETE", headers: { "X-Requested-With": "console" }, keepalive: true }).then((answer) => {
          if (!answer.ok && answer.status !== 404) throw new Error(`delete: ${answer.status}`);
        });
        this.items = this.items.filter((each) => each.id !== record.id);
      },
      undo: () => {
        this.hidden.delete(record.id);
        this.#draw();
      },
    });
  }
}
