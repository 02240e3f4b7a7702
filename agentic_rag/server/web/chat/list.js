// The conversations of a domain with their states, a search over titles and messages, pins, folders and the archive.

import { api } from "../api.js";
import { debounce, h, replace } from "../dom.js";
import { draft } from "../drafts.js";
import { formatDate, formatDay, t } from "../i18n.js";
import { icon } from "../icons.js";
import { button, doLater, field, input, menu, openDialog, select, toast, toastError } from "../ui.js";

const PAGE = 40;
const MOST = 100; // conversations in one response
const FOLDER_PAGES = 10; // pages of `MOST` conversations that an open folder shows
const MAX_FOLDER = 60; // characters of a folder's name
const BUSY_MS = 4_000; // between two polls of the list while a conversation is being answered
const QUIET_MS = 30_000;

/** Return the state of a conversation, `[class, icon, words]`, or null if there is nothing to show. */
function stateOf(record) {
  if (record.turn?.status === "waiting") return ["wait", "shield", "chat.isWaiting"];
  if (record.turn) return ["run", null, "chat.isRunning"];
  return record.outcome === "failed" ? ["bad", "alert", "chat.isFailed"] : null;
}

/** The ids of conversations that are deleted once their toast has gone. They are kept here for a user who leaves the
 * chat and returns before that. */
const hidden = new Set();

const timeOf = (record) => record.lastMessageAt ?? record.updatedAt;

export class ConversationList {
  /** `desk`: `{app, begin(), chooseDomain(id), onDeleted(id), onRenamed(id, title), onState(record)}`. */
  constructor(desk) {
    Object.assign(this, {
      desk,
      items: [],
      folders: [],
      page: 0,
      hasMore: false,
      current: null,
      status: "active",
      hidden,
      asked: 0,
      changes: 0,
      found: null,
    });
    this.choice = select([], { "aria-label": t("chat.domain"), onchange: () => desk.chooseDomain(this.choice.value) });
    this.only = h("p", { class: "chat-list-domain clip", dir: "auto" });
    this.search = h("input", {
      type: "search",
      autocomplete: "off",
      maxlength: 200,
      placeholder: t("chat.search"),
      "aria-label": t("chat.search"),
      "data-search": "",
      oninput: debounce(200, () => this.#searchOrList()),
    });
    this.archived = button(t("chat.archived"), {
      kind: "quiet",
      icon: "archive",
      class: "button button-quiet button-small",
      "aria-pressed": "false",
      onclick: () => this.#toggleArchived(),
    });
    this.list = h("div", { class: "conversations" });
    this.sentinel = h("div", { class: "older" });
    this.frame = h("div", { class: "conversations-frame" }, this.list, this.sentinel);
    this.element = h(
      "div",
      { class: "chat-list" },
      h(
        "div",
        { class: "chat-list-head" },
        this.only,
        this.choice,
        button(t("chat.new"), {
          kind: "quiet",
          icon: "compose",
          class: "button button-quiet chat-list-act",
          onclick: () => desk.begin(),
        }),
        h(
          "label",
          { class: "chat-list-act chat-search" },
          icon("search"),
          this.search,
          h("kbd", { "aria-hidden": "true" }, "/"),
        ),
      ),
      this.frame,
      h("div", { class: "chat-list-foot" }, this.archived),
    );
    this.end = new IntersectionObserver(
      ([entry]) => entry.isIntersecting && this.hasMore && !this.found && this.#more(),
      { root: this.frame, rootMargin: "200px" },
    );
    this.end.observe(this.sentinel);
    this.wake = () => !document.hidden && this.#look();
    document.addEventListener("visibilitychange", this.wake);
    addEventListener("online", this.wake);
  }

  leave() {
    clearTimeout(this.timer);
    this.isLeft = true;
    document.removeEventListener("visibilitychange", this.wake);
    removeEventListener("online", this.wake);
  }

  showDomains(domains, current) {
    replace(
      this.choice,
      domains.map((domain) => h("option", { value: domain.id }, domain.name)),
    );
    this.choice.value = current ?? "";
    this.choice.hidden = domains.length < 2;
    this.only.hidden = domains.length > 1;
    this.only.textContent = domains[0]?.name ?? "";
    this.domain = current;
    this.opened = draft(`folders:${current}`);
  }

  async reload() {
    this.page = 0;
    await this.#more(true);
    if (this.search.value.trim()) await this.#searchOrList();
  }

  #ask(page, pageSize) {
    const query = {
      domainId: this.domain,
      status: this.status,
      page,
      pageSize,
      sortBy: "lastMessageAt",
      sortOrder: "desc",
      pinnedFirst: true,
    };
    return api("GET", "/api/conversations", { query });
  }

  async #askFolders() {
    return (await api("GET", "/api/conversation-folders", { query: { domainId: this.domain, status: this.status } }))
      .items;
  }

  async #more(isFirst = false) {
    const asked = (this.asked += 1);
    try {
      const [{ items, hasMore }, folders] = await Promise.all([
        this.#ask(this.page + 1, PAGE),
        isFirst ? this.#askFolders() : this.folders,
      ]);
      if (asked !== this.asked) return;
      this.folders = folders;
      this.page += 1;
      this.hasMore = hasMore;
      const shownIds = new Set(isFirst ? [] : this.items.map((record) => record.id));
      this.items = [...(isFirst ? [] : this.items), ...items.filter((record) => !shownIds.has(record.id))];
      this.#draw();
      this.#plan();
      // Closed folders may leave the end in view. Observing it again then loads the next page.
      this.end.unobserve(this.sentinel);
      this.end.observe(this.sentinel);
      if (isFirst) for (const { name } of folders) if (this.#isOpen(name)) await this.#fill(name);
    } catch (error) {
      if (isFirst && asked === this.asked && !this.items.length)
        replace(
          this.list,
          h(
            "div",
            { class: "conversations-none" },
            button(t("shell.tryAgain"), { kind: "quiet", icon: "retry", onclick: () => this.reload() }),
          ),
        );
      toastError(error);
    }
  }

  // Folders

  #isOpen(name) {
    return Boolean(this.opened?.read()?.includes(name));
  }

  #setOpen(name, isOpen) {
    const existing = new Set(this.folders.map((folder) => folder.name));
    const others = (this.opened.read() ?? []).filter((folder) => folder !== name && existing.has(folder));
    this.opened.write(isOpen ? [...others, name] : others.length ? others : null);
  }

  /** Load the conversations of a folder that are older than the shown part of the list. */
  async #fill(name) {
    const { domain, status } = this;
    for (let page = 1; page <= FOLDER_PAGES; page += 1) {
      const count = this.folders.find((folder) => folder.name === name)?.count ?? 0;
      if (this.items.filter((record) => record.folder === name).length >= count) return;
      const query = { domainId: domain, status, folder: name, page, pageSize: MOST, sortBy: "lastMessageAt" };
      const { items, hasMore } = await api("GET", "/api/conversations", { query });
      if (this.isLeft || domain !== this.domain || status !== this.status) return;
      const shownIds = new Set(this.items.map((record) => record.id));
      this.items.push(...items.filter((record) => !shownIds.has(record.id)));
      this.#drawFresh();
      if (!hasMore) return;
    }
  }

  /** Load the folders again after a change, and draw their counts. */
  async #countFolders() {
    this.folders = await this.#askFolders();
    this.#drawFresh();
  }

  #toggleFolder(name) {
    const isOpen = !this.#isOpen(name);
    this.#setOpen(name, isOpen);
    this.#draw();
    if (isOpen) this.#fill(name).catch(toastError);
  }

  moveToFolder(record) {
    const names = this.#folderNames();
    const name = field(t("chat.folderName"), input({ maxlength: MAX_FOLDER }));
    const choice = field(
      t("chat.folder"),
      select([...names.map((name) => [name, name]), ["", t("chat.newFolder")]], {
        value: record.folder ?? names[0] ?? "",
      }),
    );
    const show = () => (name.hidden = choice.control.value !== "");
    choice.control.addEventListener("change", () => {
      show();
      if (!name.hidden) name.control.focus();
    });
    choice.hidden = !names.length;
    show();
    const save = (close) => async () => {
      const folder = choice.control.value || name.control.value.trim();
      if (!folder) return void name.setError(t("chat.folderEmpty"));
      await this.#setFolder(record, folder);
      close(true);
      this.#focusMenu(record);
    };
    const dialog = openDialog(t("chat.toFolder"), {
      build: () => [choice, name],
      actions: (close) => [
        button(t("shell.cancel"), { onclick: () => close() }),
        button(t("chat.move"), { kind: "primary", onclick: save(close) }),
      ],
    });
    name.control.addEventListener(
      "keydown",
      (event) =>
        event.key === "Enter" &&
        !event.isComposing &&
        dialog.element.querySelector(".dialog-foot .button-primary").click(),
    );
    (names.length ? choice : name).control.focus();
  }

  async #setFolder(record, folder) {
    const changed = await api("PATCH", `/api/conversations/${record.id}`, { body: { folder } });
    this.folders = await this.#askFolders();
    if (changed.folder) this.#setOpen(changed.folder, true);
    this.#takeAndSort(changed);
    toast(changed.folder ? t("chat.wasMoved", { folder: changed.folder }) : t("chat.wasRemoved"));
    if (changed.folder) this.#fill(changed.folder).catch(toastError);
  }

  #focusMenu(record) {
    this.list.querySelector(`.conversation[data-id="${CSS.escape(record.id)}"] .menu-place > button`)?.focus();
  }

  #folderNames() {
    const names = new Set(
      [...this.folders, ...this.items.map((record) => ({ name: record.folder }))].map((folder) => folder.name),
    );
    names.delete(undefined);
    return [...names].sort((first, second) => first.localeCompare(second, undefined, { numeric: true }));
  }

  // Polling of conversations that are not open or that change in another tab

  #plan() {
    clearTimeout(this.timer);
    if (this.isLeft) return;
    const isBusy = this.isHasty || this.items.some((record) => record.turn);
    this.isHasty = false;
    this.timer = setTimeout(() => this.#look(), isBusy ? BUSY_MS : QUIET_MS);
  }

  lookSoon() {
    this.isHasty = true;
  }

  /** Load the shown conversations again and draw the changes. After an error, the next poll tries again. */
  async #look() {
    clearTimeout(this.timer);
    if (this.isLeft || document.hidden) return;
    const { asked, changes } = this;
    try {
      const [{ items }, folders] = await Promise.all([
        this.#ask(1, Math.min(MOST, Math.max(PAGE, this.items.length))),
        this.#askFolders(),
      ]);
      // The response is older than the list.
      if (asked !== this.asked || changes !== this.changes || this.isLeft) return this.#plan();
      this.folders = folders;
      const loadedIds = new Set(items.map((record) => record.id));
      const last = items.at(-1);
      const isBelow = (record) => last && !record.pinned && (timeOf(record) < timeOf(last) || !record.lastMessageAt);
      const rest =
        items.length < MOST && items.length < this.items.length
          ? []
          : this.items.filter((record) => !loadedIds.has(record.id) && isBelow(record));
      this.items = [...items, ...rest];
      this.#drawFresh();
      for (const record of items) if (record.id === this.current) this.desk.onState(record);
    } catch (error) {
      if (!error?.code) console.error(error);
    }
    this.#plan();
  }

  mark(conversationId) {
    this.current = conversationId;
    for (const link of this.list.querySelectorAll("a")) {
      if (link.dataset.id === conversationId) link.setAttribute("aria-current", "true");
      else link.removeAttribute("aria-current");
    }
  }

  setTitle(conversationId, title) {
    const record = this.items.find((record) => record.id === conversationId);
    if (!record) return void this.reload();
    this.changes += 1;
    record.title = title;
    this.#draw();
  }

  /** Show that a turn of a conversation has begun or ended. `outcome`: how it ended. */
  setTurn(conversationId, isRunning, outcome = null) {
    const record = this.items.find((record) => record.id === conversationId);
    if (!record) return;
    this.changes += 1;
    if (Boolean(record.turn) !== isRunning) {
      record.turn = isRunning ? { status: "running" } : null;
      record.lastMessageAt = new Date().toISOString();
      this.items = [record, ...this.items.filter((listed) => listed !== record)];
    }
    if (!isRunning && outcome) record.outcome = outcome;
    this.#draw();
    this.#plan();
  }

  /** Show that a turn waits for a person, or continues. */
  setWaiting(conversationId, isWaiting) {
    const record = this.items.find((record) => record.id === conversationId);
    if (!record?.turn) return;
    this.changes += 1;
    record.turn = { ...record.turn, status: isWaiting ? "waiting" : "running" };
    this.#draw();
  }

  add(record) {
    this.changes += 1;
    this.items = [record, ...this.items.filter((listed) => listed.id !== record.id)];
    this.#draw();
  }

  #toggleArchived() {
    this.status = this.status === "active" ? "archived" : "active";
    this.archived.setAttribute("aria-pressed", String(this.status === "archived"));
    this.reload();
  }

  // The search

  async #searchOrList() {
    const q = this.search.value.trim();
    const asked = (this.searched = (this.searched ?? 0) + 1);
    if (!q) {
      this.found = null;
      return this.#draw();
    }
    try {
      const { items, hasMore } = await api("GET", "/api/conversation-search", {
        query: { q, domainId: this.domain, limit: 50 },
      });
      if (asked !== this.searched) return;
      this.found = { q, items, hasMore };
      this.#draw();
    } catch (error) {
      if (asked === this.searched) toastError(error);
    }
  }

  #drawFound() {
    const { q, items, hasMore } = this.found;
    // `items` has the current state of a conversation; a search result may be older.
    const current = (hit) => ({
      ...hit,
      conversation: this.items.find(({ id }) => id === hit.conversation.id) ?? hit.conversation,
    });
    const there = items.filter((hit) => !this.hidden.has(hit.conversation.id)).map(current);
    const shown = there.filter((hit) => hit.conversation.status === this.status);
    const others = there.length - shown.length;
    const count = hasMore
      ? t("chat.foundMany", { count: shown.length })
      : t("chat.foundCount", { count: shown.length });
    const otherWords = this.status === "active" ? "chat.foundArchived" : "chat.foundActive";
    const heads = shown.length
      ? h("h2", { class: "conversations-head" }, count)
      : h("p", { class: "faint small conversations-none" }, t("chat.noneFound"));
    const otherStatus =
      others > 0 &&
      button(t(otherWords, { count: others }), {
        kind: "quiet",
        class: "button button-quiet button-small",
        onclick: () => this.#toggleArchived(),
      });
    replace(
      this.list,
      heads,
      h(
        "ul",
        { class: "conversations-group" },
        shown.map((hit) => this.#line(hit.conversation, { ...hit, q })),
      ),
      otherStatus,
    );
  }

  // Drawing

  /** Draw the list, unless nothing has changed or a menu is open, which drawing would close. */
  #drawFresh() {
    const drawn = this.#state();
    if (drawn === this.drawn || this.list.querySelector(":popover-open")) return;
    this.#draw();
  }

  #state() {
    return JSON.stringify([this.items, this.folders, new Date().toDateString()]);
  }

  #draw() {
    const focused = this.list.contains(document.activeElement) ? document.activeElement : null;
    const place = focused && {
      id: focused.closest(".conversation")?.dataset.id,
      isLink: focused.matches("a"),
      folder: focused.dataset.folder,
    };
    this.drawn = this.#state();
    if (this.found) this.#drawFound();
    else this.#drawGroups();
    this.mark(this.current);
    if (place?.folder)
      this.list.querySelector(`[data-folder="${CSS.escape(place.folder)}"]`)?.focus({ preventScroll: true });
    if (place?.id)
      this.list
        .querySelector(`[data-id="${CSS.escape(place.id)}"] ${place.isLink ? "a" : ".menu-place > button"}`)
        ?.focus({ preventScroll: true });
  }

  #drawGroups() {
    const shown = this.items.filter(
      (record) => !this.hidden.has(record.id) && (record.id === this.current || !isUnused(record)),
    );
    const folders = this.#drawFolders(shown);
    if (!shown.length && !folders.length)
      return void replace(
        this.list,
        h(
          "p",
          { class: "faint small conversations-none" },
          t(this.status === "archived" ? "chat.noneArchived" : "chat.noneYet"),
        ),
      );
    const groups = new Map();
    for (const record of shown) {
      if (record.folder && !record.pinned) continue;
      const name = record.pinned ? "chat.group.pinned" : groupOf(timeOf(record));
      groups.set(name, [...(groups.get(name) ?? []), record]);
    }
    const sections = [...groups].map(([name, records]) => [
      h("h2", { class: "conversations-head" }, t(name)),
      h(
        "ul",
        { class: "conversations-group" },
        records.map((record) => this.#line(record)),
      ),
    ]);
    sections.splice(groups.has("chat.group.pinned") ? 1 : 0, 0, folders);
    replace(this.list, sections);
  }

  /** Return the groups of the folders. Pinned conversations are shown above them and are not counted. */
  #drawFolders(shown) {
    const sections = [];
    for (const name of this.#folderNames()) {
      const records = shown
        .filter((record) => record.folder === name && !record.pinned)
        .sort((first, second) => (timeOf(first) < timeOf(second) ? 1 : -1));
      const elsewhere = this.items.filter(
        (record) => record.folder === name && (record.pinned || this.hidden.has(record.id)),
      ).length;
      const count = Math.max(
        records.length,
        (this.folders.find((folder) => folder.name === name)?.count ?? 0) - elsewhere,
      );
      if (count <= 0) continue;
      const isOpen = this.#isOpen(name);
      const state =
        !isOpen &&
        (records.map(stateOf).find((shownState) => shownState?.[0] === "wait") ??
          records.map(stateOf).find((shownState) => shownState?.[0] === "run"));
      const list = h(
        "ul",
        { class: "conversations-group", id: `folder-${sections.length}`, hidden: !isOpen },
        records.map((record) => this.#line(record)),
      );
      const words = [t("chat.foundCount", { count }), state && t(state[2])].filter(Boolean).join(", ");
      const toggle = h(
        "button",
        {
          type: "button",
          class: "folder-toggle",
          "aria-expanded": String(isOpen),
          "aria-controls": list.id,
          dataset: { folder: name },
          onclick: () => this.#toggleFolder(name),
        },
        icon(isOpen ? "down" : "right", 14),
        h("span", { class: "clip folder-name", dir: "auto", title: name }, name),
        h("span", { class: "visually-hidden" }, words),
        state &&
          h(
            "span",
            { class: `conversation-${state[0]} folder-state` },
            state[1] ? icon(state[1], 13) : h("span", { class: "spinner" }),
          ),
        h("span", { class: "folder-count", "aria-hidden": "true" }, count),
      );
      sections.push([h("h2", { class: "conversations-head" }, toggle), list]);
    }
    return sections;
  }

  #line(record, hit = null) {
    const title = record.title || t("chat.untitled");
    const items = () => [
      record.status !== "archived" && {
        label: t(record.pinned ? "chat.unpin" : "chat.pin"),
        icon: "pin",
        act: () => this.#pin(record, !record.pinned),
      },
      { label: t("chat.rename"), icon: "edit", act: () => this.rename(record) },
      { label: t("chat.toFolder"), icon: "domain", act: () => this.moveToFolder(record) },
      record.folder && {
        label: t("chat.outOfFolder"),
        icon: "minus",
        act: () => this.#setFolder(record, null).then(() => this.#focusMenu(record)),
      },
      record.status === "archived"
        ? { label: t("chat.unarchive"), icon: "archive", act: () => this.#setStatus(record, "active") }
        : { label: t("chat.archive"), icon: "archive", act: () => this.#setStatus(record, "archived") },
      null,
      { label: t("chat.delete"), icon: "trash", danger: true, act: () => this.delete(record) },
    ];
    const state = stateOf(record);
    const at = timeOf(record);
    const place = hit ? `?${new URLSearchParams({ ...(hit.message ? { at: hit.message.id } : {}), find: hit.q })}` : "";
    const link = h(
      "a",
      {
        href: `#/chat/${record.domainId}/${record.id}${place}`,
        dataset: { id: record.id },
        class: "conversation-link",
      },
      h(
        "span",
        { class: "clip conversation-title", dir: "auto" },
        hit && record.title ? marked(title, hit.titleMarks) : title,
      ),
      h("time", { class: "conversation-time", datetime: at, title: formatDate(at) }, formatDay(at)),
      state &&
        h(
          "span",
          { class: `conversation-state conversation-${state[0]}` },
          state[1] ? icon(state[1], 13) : h("span", { class: "spinner" }),
          t(state[2]),
        ),
      (hit || record.pinned) &&
        record.folder &&
        h(
          "span",
          { class: "conversation-folder" },
          icon("domain", 12),
          h("span", { class: "visually-hidden" }, t("chat.folder"), ": "),
          h("span", { class: "clip", dir: "auto" }, record.folder),
        ),
      hit && this.#hitLine(hit),
    );
    return h(
      "li",
      { class: "conversation", dataset: { id: record.id } },
      link,
      menu(t("chat.menuOf", { title }), items),
    );
  }

  #hitLine({ message, count }) {
    if (!message) return null;
    const moreHits = count > 1 && h("span", { class: "conversation-more" }, t("chat.foundMore", { count: count - 1 }));
    const { text, marks } = message.excerpt;
    return h(
      "span",
      { class: "conversation-hit" },
      h("b", {}, t(message.role === "user" ? "chat.hitYou" : "chat.hitAnswer")),
      " ",
      h("span", { dir: "auto" }, marked(text, marks)),
      moreHits && " ",
      moreHits,
    );
  }

  // Actions

  rename(record) {
    const name = field(t("chat.title"), input({ value: record.title, maxlength: 200 }));
    const save = (close) => async () => {
      const changed = await api("PATCH", `/api/conversations/${record.id}`, {
        body: { title: name.control.value.trim() },
      });
      this.#take(changed);
      this.desk.onRenamed(record.id, changed.title);
      close(true);
    };
    const dialog = openDialog(t("chat.rename"), {
      build: () => name,
      actions: (close) => [
        button(t("shell.cancel"), { onclick: () => close() }),
        button(t("chat.save"), { kind: "primary", onclick: save(close) }),
      ],
    });
    name.control.addEventListener(
      "keydown",
      (event) =>
        event.key === "Enter" &&
        !event.isComposing &&
        dialog.element.querySelector(".dialog-foot .button-primary").click(),
    );
    name.control.select();
  }

  /** Replace a conversation in the list and in search results by the version that the server returned. */
  #take(changed) {
    this.changes += 1;
    this.items = this.items.map((record) => (record.id === changed.id ? changed : record));
    if (this.found)
      this.found.items = this.found.items.map((hit) =>
        hit.conversation.id === changed.id ? { ...hit, conversation: changed, titleMarks: [] } : hit,
      );
    this.#draw();
  }

  async #pin(record, pinned) {
    this.#takeAndSort(await api("PATCH", `/api/conversations/${record.id}`, { body: { pinned } }));
  }

  #takeAndSort(changed) {
    this.#take(changed);
    this.items = [
      ...this.items.filter((record) => record.pinned),
      ...this.items.filter((record) => !record.pinned),
    ].sort(
      (first, second) =>
        Number(second.pinned ?? false) - Number(first.pinned ?? false) || (timeOf(first) < timeOf(second) ? 1 : -1),
    );
    this.#draw();
  }

  async #setStatus(record, status) {
    const changed = await api("PATCH", `/api/conversations/${record.id}`, { body: { status } });
    this.changes += 1;
    this.items = this.items.filter((listed) => listed.id !== record.id);
    this.#take(changed);
    this.#countFolders().catch(toastError);
    const back = async () => {
      await api("PATCH", `/api/conversations/${record.id}`, { body: { status: record.status } });
      await this.reload();
    };
    toast(t(status === "archived" ? "chat.wasArchived" : "chat.wasUnarchived"), {
      undo: { act: () => back().catch(toastError) },
    });
  }

  delete(record) {
    this.hidden.add(record.id);
    this.#draw();
    if (record.id === this.current) this.desk.onDeleted(record.id);
    doLater(t("chat.wasDeleted", { title: record.title || t("chat.untitled") }), {
      act: async () => {
        await api("DELETE", `/api/conversations/${record.id}`).catch((error) => {
          if (error.status !== 404) throw error;
        });
        this.items = this.items.filter((listed) => listed.id !== record.id);
        if (record.folder && !this.isLeft) await this.#countFolders();
      },
      undo: () => {
        this.hidden.delete(record.id);
        this.#draw();
      },
    });
  }
}

/** Return whether a conversation has no messages. The page creates a conversation when a file is attached to a first
 * question, and the question may never be sent. */
const isUnused = ({ title, lastMessageAt, turn }) => !title && !lastMessageAt && !turn;

/** Return the key of the words for the group of a time, such as "Today". */
function groupOf(iso) {
  const today = new Date().setHours(0, 0, 0, 0);
  const days = Math.ceil((today - new Date(iso).getTime()) / 86_400_000);
  if (days <= 0) return "chat.group.today";
  if (days === 1) return "chat.group.yesterday";
  return days <= 7 ? "chat.group.week" : "chat.group.older";
}

/** Return a text with its marks as elements. The offsets of the marks count code points. */
function marked(text, marks) {
  const points = [...text];
  const parts = [];
  let at = 0;
  for (const [start, end] of marks ?? []) {
    parts.push(points.slice(at, start).join(""), h("mark", {}, points.slice(start, end).join("")));
    at = end;
  }
  return [...parts, points.slice(at).join("")];
}
