// The shell of the console: it signs the user in, draws the navigation, and shows the page that the address names.
//
// How a page is shown. The server sends `index.html` with an empty `main`. `early.js` waits for the first paint, then
// imports this module. `begin` loads the signed-in user. `route` finds the entry of `pages` for the part of the address
// after `#`, imports its module with its words and style sheet, and calls `show(main, {params, app})`. There is no
// framework: a page creates elements with `h` (`dom.js`, widgets in `ui.js`) and replaces the parts that change.
//
// Where state is kept. The address names the page and the item that are shown. `App` has the state that all pages
// share: the user and the domains. Each page loads the rest and keeps it in the closure of its `show`. Unsaved input is
// in `localStorage` (`drafts.js`); a save notifies the other tabs.
//
// How changes arrive. In the chat, events come over a WebSocket (`stream.js`). Other pages poll (`watch.js`). A
// response may come after the user has opened another page. Therefore `loadInto` and `watch` drop a response that is
// older than a later request, and each page has a separate `main`. Code that does something visible after an `await`,
// such as opening a dialog or changing the address, first checks that its page is still shown (`isConnected`).

import { api, lazily, loadAll, onSignedOut } from "./api.js";
import { append, below, h, loadStyle, replace } from "./dom.js";
import { ownDrafts } from "./drafts.js";
import { loadErrorTexts } from "./errors/text.js";
import { chooseLanguage, language, languages, loadWords, storeChoice, t } from "./i18n.js";
import { icon } from "./icons.js";
import { keepSignedIn, presence, signOut, takeRefusal, useTicket } from "./session.js";
import { announce, button, emptyState, menu, skeleton, toast, toastError } from "./ui.js";

/** The pages. The first one whose `path` matches the address is shown.
 *
 * - `path`: the address after `#/`. `:name` is a segment, `:name?` an optional one, `*name` all remaining ones
 * - `load`: imports the module, which exports `async function show(main, {params, app})`. That may return `leave()`, or
 *   `{leave, update(params)}` if the page can show other params without a new `show`
 * - `words`: the section of the language files
 * - `style`: a style sheet for this page
 * - `allowed(app)`: whether the user may open the page; missing if every user may
 * - `nav`: the link in the navigation, if there is one: label, icon and address; `mount(link)` adds to the link */
export const pages = [
  {
    name: "chat",
    path: "chat/:domain?/:conversation?",
    words: "chat",
    style: "/web/chat/chat.css",
    load: lazily((again) => import(`./chat/page.js${again}`)),
    nav: { label: () => t("shell.navChat"), icon: "chat", href: "#/chat" },
  },
  {
    name: "domains",
    path: "domains",
    words: "domain",
    style: "/web/domain/domain.css",
    load: lazily((again) => import(`./domain/list.js${again}`)),
    nav: { label: () => t("shell.navDomains"), icon: "domain", href: "#/domains" },
  },
  {
    name: "domain",
    under: "domains",
    path: "domains/:domain/:tab?/*rest",
    words: "domain",
    style: "/web/domain/domain.css",
    load: lazily((again) => import(`./domain/page.js${again}`)),
  },
  {
    name: "waiting",
    path: "waiting",
    words: "waiting",
    style: "/web/chat/chat.css",
    load: lazily((again) => import(`./waiting/page.js${again}`)),
    nav: { label: () => t("shell.navWaiting"), icon: "wait", href: "#/waiting", mount: mountCount },
  },
  {
    name: "operator",
    path: "operator/:tab?/:item?",
    words: "operator",
    style: "/web/operator/operator.css",
    load: lazily((again) => import(`./operator/page.js${again}`)),
    allowed: (app) => app.user.operator,
    nav: { label: () => t("shell.navOperator"), icon: "operator", href: "#/operator" },
  },
  {
    name: "authorize",
    path: "authorize/:request",
    words: "programs",
    load: lazily((again) => import(`./programs/consent.js${again}`)),
  },
  {
    name: "programs",
    path: "programs",
    words: "programs",
    load: lazily((again) => import(`./programs/page.js${again}`)),
  },
  {
    name: "signed-in",
    path: "signed-in",
    words: "signin",
    load: lazily((again) => import(`./signin/page.js${again}`)),
  },
];

/** Show the number of waits at their link. The module is loaded after the page is shown. */
async function mountCount(link) {
  const { countWaits } = await import("./waiting/count.js");
  app.waitsCounted = countWaits(link);
}

const START = "#/chat";

/** Return the page for a hash with its params, `{page, params}`, or null if no page matches. */
function findPage(hash, among = pages) {
  const segments = hash.replace(/^#\/?/, "").split("?")[0].split("/").filter(Boolean).map(decode);
  for (const page of among) {
    const params = match(page.path.split("/"), segments);
    if (params) return { page, params };
  }
  return null;
}

function decode(segment) {
  try {
    return decodeURIComponent(segment);
  } catch {
    return segment;
  }
}

function match(wanted, segments) {
  const params = {};
  for (const [at, segment] of wanted.entries()) {
    if (segment.startsWith("*")) return { ...params, [segment.slice(1)]: segments.slice(at) };
    const name = /^:(\w+)(\??)$/.exec(segment);
    if (!name && segments[at] !== segment) return null;
    if (name && segments[at] === undefined && !name[2]) return null;
    if (name) params[name[1]] = segments[at] ?? null;
  }
  return segments.length > wanted.length ? null : params;
}

const SLOW = 400; // milliseconds

const ROLES = ["member", "author", "admin"];

/** The state and functions that all pages share. `user`: the response of GET /api/auth. */
class App {
  constructor(user) {
    this.user = user;
    this._domains = null;
  }

  /** Return whether the user has at least a role in a domain: member, author or admin. */
  can(domainId, role = "member") {
    return this.user.operator || ROLES.indexOf(this.user.grants[domainId]) >= ROLES.indexOf(role);
  }

  /** Return the domains that the user may use. They are loaded once for each page; `again` loads them now. */
  async domains({ again = false } = {}) {
    if (again || !this._domains) {
      const loading = (this._domains = api("GET", "/api/domains").then(({ items }) => items));
      loading.catch(() => this._domains === loading && this.forgetDomains());
    }
    return await this._domains;
  }

  /** Drop the loaded domains, because another page or tab may have changed them. The next page that needs them loads
   * them. */
  forgetDomains() {
    this._domains = null;
  }

  /** Load the signed-in user again, after an action that may have signed this browser in. Returns the response, in
   * which `name` is null if a sign-in is needed. In that case, `user` stays the same. */
  async refreshUser() {
    const before = this.user;
    const user = await presence();
    if (user.name !== null) this.user = user;
    if (!before.signedIn && user.signedIn) watchSignIn(user);
    return user;
  }

  /** Go to an address of the console, such as "#/chat/dom_1". `instead`: replace the current entry in the browser's
   * history. */
  navigate(hash, { instead = false } = {}) {
    if (instead) {
      history.replaceState(null, "", hash);
      dispatchEvent(new HashChangeEvent("hashchange"));
    } else location.hash = hash;
  }

  /** Set the title of the browser's tab, which a screen reader announces. */
  setTitle(...parts) {
    document.title = [...parts.filter(Boolean), "Agentic RAG"].join(" · ");
  }

  announce(text) {
    announce(text);
  }
}

let app;
let shown = { page: null, leave: null, update: null };
let turn = 0;

/** Replace `main` by a new, empty one and return it. If a response comes after the user has left the old page, that
 * page writes into an element that is no longer shown. */
function freshMain(page = null) {
  const old = document.getElementById("main");
  const fresh = old.cloneNode(false);
  const hadFocus = document.activeElement === old; // the link that skips the navigation had moved the focus there
  fresh.className = page ? `main page-${page.name}` : "main";
  old.replaceWith(fresh);
  if (hadFocus) fresh.focus({ preventScroll: true });
  return fresh;
}

async function route() {
  const match = findPage(location.hash.replace(/^#?\/?$/, START));
  const ownTurn = ++turn;
  if (match && match.page === shown.page && shown.update) {
    mark(match.page);
    await shown.update(match.params);
    return;
  }
  await shown.leave?.();
  if (ownTurn !== turn) return;
  if (shown.page) app.forgetDomains();
  shown = { page: null, leave: null, update: null };
  if (!match || (match.page.allowed && !match.page.allowed(app))) {
    mark(null);
    app.setTitle(t("shell.notFound"));
    const home = h("a", { class: "button", href: START }, t("shell.toChat"));
    append(
      freshMain(),
      emptyState(t("shell.notFound"), t("shell.notFoundText"), { icon: "search", actions: [home], level: 1 }),
    );
    return;
  }
  mark(match.page);
  try {
    const [module] = await loadAll(match.page.load(), loadWords(match.page.words), loadStyle(match.page.style));
    if (ownTurn !== turn) return;
    const main = freshMain(match.page); // only now, so that the old page stays until the new one can be drawn
    const stop = fillIfSlow(main);
    const left = await module.show(main, { params: match.params, app }).finally(stop);
    const ends = typeof left === "function" ? { leave: left } : (left ?? {});
    if (ownTurn !== turn) await ends.leave?.();
    else shown = { page: match.page, leave: ends.leave ?? null, update: ends.update ?? null };
  } catch (error) {
    if (ownTurn !== turn) return;
    if (!error?.code) console.error(error);
    const again = button(t("shell.tryAgain"), { icon: "retry", onclick: route });
    append(
      freshMain(),
      emptyState(t("shell.notLoaded"), error?.code ? error.message : t("shell.failed"), {
        icon: "alert",
        actions: [again],
        level: 1,
      }),
    );
  }
}

/** Show a skeleton in a page that stays empty for long, for example on a slow network. Returns a function that cancels
 * this. */
function fillIfSlow(main) {
  const timer = setTimeout(() => main.hasChildNodes() || replace(main, h("div", { class: "page" }, skeleton(5))), SLOW);
  return () => clearTimeout(timer);
}

function mark(page) {
  for (const link of document.querySelectorAll(".rail a[data-page]")) {
    if (link.dataset.page === page?.name || link.dataset.page === page?.under)
      link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
}

function buildRail() {
  const rail = document.getElementById("rail");
  rail.setAttribute("aria-label", t("shell.navigation"));
  const links = pages
    .filter((page) => page.nav && (!page.allowed || page.allowed(app)))
    .map(({ name, nav }) =>
      h(
        "a",
        {
          class: "rail-link",
          href: nav.href,
          dataset: nav.mount ? { page: name, empty: "" } : { page: name },
          ref: (link) => nav.mount && queueMicrotask(() => nav.mount(link).catch(toastError)),
        },
        icon(nav.icon, 20),
        h("span", {}, nav.label()),
      ),
    );
  const theme = document.documentElement.dataset.theme ?? "";
  const items = [
    ...["", "light", "dark"].map((choice) => ({
      label: t(`shell.theme.${choice || "system"}`),
      icon: choice === theme ? "check" : null,
      act: () => chooseTheme(choice),
    })),
    null,
    { label: t("shell.programs"), icon: "key", act: () => app.navigate("#/programs") },
    { label: t("shell.keys"), icon: "keyboard", act: showKeys },
    { label: t("shell.apiDocs"), icon: "book", act: () => open(below("/api/docs"), "_blank", "noopener") },
    null,
    ...Object.entries(languages).map(([code, name]) => ({
      label: name,
      icon: code === language ? "check" : "globe",
      act: () => chooseLanguage(code),
    })),
    app.user.signedIn ? null : false,
    app.user.signedIn ? { label: t("shell.signOut"), icon: "sign-out", act: signOut } : false,
  ].filter((item) => item !== false);
  const person = menu(t("shell.account", { name: app.user.name }), items, { icon: "person" });
  replace(rail, rail.querySelector(".rail-mark"), h("div", { class: "rail-links" }, links), person);
}

/** Set the theme: "light", "dark", or "" for the system's. */
function chooseTheme(theme) {
  storeChoice("theme", theme);
  if (theme) document.documentElement.dataset.theme = theme;
  else delete document.documentElement.dataset.theme;
  buildRail();
  if (shown.page) mark(shown.page);
}

const KEYS = [
  ["Enter", "send"],
  ["Shift + Enter", "line"],
  ["Esc", "stop"],
  ["/", "search"],
  ["← →", "sources"],
  ["Alt + N", "new"],
  ["?", "list"],
];

async function showKeys() {
  const { openDialog } = await import("./ui.js");
  openDialog(t("shell.keys"), {
    build: () =>
      h(
        "dl",
        { class: "keys" },
        KEYS.map(([key, name]) => h("div", {}, h("dt", {}, h("kbd", {}, key)), h("dd", {}, t(`shell.keys.${name}`)))),
      ),
  });
}

/** Handle the keys of every page: "/" searches, "?" lists the keys, Alt + N begins a conversation. */
function pressKey(event) {
  if (event.ctrlKey || event.metaKey || document.querySelector("dialog[open]")) return;
  if (event.altKey && event.code === "KeyN") {
    event.preventDefault();
    document.dispatchEvent(new Event("new-conversation"));
    return;
  }
  if (event.altKey || event.target.closest?.("input, textarea, select, [contenteditable]")) return;
  const search = event.key === "/" ? document.querySelector("[data-search]") : null;
  if (search) search.focus();
  else if (event.key === "?") showKeys().catch(toastError);
  else return;
  event.preventDefault();
}

/** Use the new rights of the same user. The navigation and the domains change; unsaved input stays. */
function takeRights(who) {
  const before = JSON.stringify([app.user.operator, app.user.grants]);
  app.user = who;
  if (JSON.stringify([who.operator, who.grants]) === before) return;
  app.domains({ again: true }).catch(toastError);
  buildRail();
  if (shown.page) mark(shown.page);
  toast(t("shell.rightsChanged"));
}

let asking = null;

/** Ask for a sign-in in a dialog over the page. Resolves to whether a user is signed in. */
const signedOut = () => (asking ??= askAgain().finally(() => (asking = null)));

async function askAgain() {
  const { signInDialog } = await import("./sign-in.js");
  const who = await signInDialog(app.user);
  if (who) takeRights(who);
  return who !== null;
}

function watchSignIn(user) {
  keepSignedIn(user, { ended: () => signedOut().catch(toastError), changed: takeRights });
}

function watchConnection() {
  const line = h(
    "div",
    { class: "offline", role: "status", hidden: navigator.onLine !== false },
    icon("alert", 16),
    t("shell.offlineLine"),
  );
  document.body.prepend(line);
  addEventListener("offline", () => (line.hidden = false));
  addEventListener("online", () => (line.hidden = true));
}

function skipToContent(event) {
  event.preventDefault();
  document.getElementById("main").focus();
}

async function begin() {
  const main = document.getElementById("main");
  await loadWords("shell");
  document.getElementById("skip").textContent = t("shell.skip");
  document.getElementById("skip").addEventListener("click", skipToContent);
  document.getElementById("toasts").setAttribute("aria-label", t("shell.notifications"));
  const stop = fillIfSlow(main);
  await useTicket().catch(toastError);
  const refusal = takeRefusal();
  let user = await presence().finally(stop);
  if (user.name === null) {
    app = new App(user);
    app.setTitle(t("shell.signIn"));
    document.getElementById("shell").classList.add("shell-bare");
    const { signInPage } = await import("./sign-in.js");
    await signInPage(main, user, refusal);
    document.getElementById("shell").classList.remove("shell-bare");
    user = await presence();
  }
  app = new App(user);
  // Nearly every page needs the domains. After an error, a page that needs them loads them again.
  app.domains().catch(() => {});
  ownDrafts(user.name);
  onSignedOut(signedOut);
  watchSignIn(user);
  buildRail();
  watchConnection();
  addEventListener("hashchange", () => {
    for (const dialog of document.querySelectorAll("dialog[open]:not([data-lasting])")) dialog.close();
    route().catch(toastError);
  });
  document.addEventListener("keydown", pressKey);
  await route();
  await loadErrorTexts();
}

function failToBegin(error) {
  console.error(error);
  const again = h("button", { class: "button", onclick: () => location.reload() }, t("shell.tryAgain"));
  replace(
    document.getElementById("main"),
    emptyState(t("shell.notLoaded"), error?.code ? error.message : t("shell.failed"), {
      icon: "alert",
      actions: [again],
      level: 1,
    }),
  );
}

begin().catch(failToBegin);
