// The widgets of all pages. Each one works with the keyboard and has a name and role for screen readers.

import { h, newId, replace } from "./dom.js";
import { errorText } from "./errors/text.js";
import { t } from "./i18n.js";
import { icon } from "./icons.js";

/** Announce a text to a screen reader. */
export function announce(text) {
  const live = document.getElementById("live");
  live.textContent = "";
  setTimeout(() => (live.textContent = text), 30); // without the pause, a screen reader does not repeat an equal text
}

/** Return a button.
 *
 * - `kind`: primary, quiet (no frame) or danger
 * - `icon`: the name of an icon
 * - `label`: the words; if `compact`, only a screen reader gets them
 * - `onclick`: may be async; the button takes no clicks until it has ended */
export function button(label, { kind = "", icon: name, compact = false, onclick, ...props } = {}) {
  const content = [name && icon(name), compact ? null : h("span", {}, label)];
  const names = ["button", kind && `button-${kind}`, compact && "button-compact"].filter(Boolean).join(" ");
  const element = h(
    "button",
    { type: "button", class: names, "aria-label": compact ? label : null, title: compact ? label : null, ...props },
    content,
  );
  if (onclick)
    element.addEventListener(
      "click",
      (event) => element.ariaBusy !== "true" && whileBusy(element, () => onclick(event)),
    );
  return element;
}

/** Mark a button as busy while an action runs, so that it takes no clicks. It is not disabled, because it would lose
 * the focus, and because `act` may change `disabled`. */
async function whileBusy(element, act) {
  const ended = act();
  if (!(ended instanceof Promise)) return;
  element.ariaBusy = element.ariaDisabled = "true";
  try {
    await ended;
  } catch (error) {
    toastError(error);
  } finally {
    element.ariaBusy = element.ariaDisabled = null;
  }
}

/** Show a message for 5 seconds, or for 8 with `undo` (`{label?, act}`). A message of kind `error` stays until it is
 * closed. */
export function toast(text, { undo, kind = "", seconds } = {}) {
  const close = () => {
    clearTimeout(timer);
    element.remove();
  };
  const element = h(
    "div",
    { class: `toast ${kind && `toast-${kind}`}`, role: kind === "error" ? "alert" : "status" },
    kind === "error" && icon("alert"),
    h("span", { class: "toast-text" }, text),
    undo && button(undo.label ?? t("shell.undo"), { kind: "quiet", onclick: () => (close(), undo.act()) }),
    button(t("shell.close"), { kind: "quiet", icon: "close", compact: true, onclick: close }),
  );
  document.getElementById("toasts").append(element);
  const stay = seconds ?? (undo ? 8 : 5);
  const timer = kind === "error" && seconds === undefined ? 0 : setTimeout(close, stay * 1000);
  return { close };
}

/** Show an error: its text, and the id under which the server logged it. */
export function toastError(error) {
  if (error?.name === "AbortError") return null;
  if (!error?.code) console.error(error);
  const text = error?.code ? errorText(error) : t("shell.failed");
  return toast(error?.requestId && error.status >= 500 ? `${text} (${error.requestId})` : text, { kind: "error" });
}

/** The addresses of items that are deleted once their toast has gone. */
const doomed = new Set();

/** Return whether the item at an address is about to be deleted. The server lists the item until then, so a page that
 * reloads its list leaves it out. */
export const isDoomed = (address) => doomed.has(address);

/** Delay an action and offer an undo instead of a confirmation. The page shows the result of the action at once. If the
 * user opens another page of the console, the delay continues. If the browser's page is closed, the action runs at
 * once.
 *
 * - `act()`: runs after the delay
 * - `undo(error)`: called instead if the user presses undo, or with the error if `act` failed
 * - `address`: names the item that is deleted, for `isDoomed` */
export function doLater(text, { act, undo, address = "", seconds = 6 }) {
  let isOpen = true;
  const settle = () => {
    isOpen = false;
    removeEventListener("pagehide", finish);
    clearTimeout(timer);
  };
  const takeBack = (error) => {
    doomed.delete(address);
    undo(error);
  };
  const finish = async () => {
    if (!isOpen) return;
    settle();
    message.close();
    try {
      await act();
      doomed.delete(address);
    } catch (error) {
      toastError(error);
      takeBack(error);
    }
  };
  doomed.add(address);
  const message = toast(text, { seconds: seconds + 1, undo: { act: () => (settle(), takeBack()) } });
  const timer = setTimeout(finish, seconds * 1000);
  addEventListener("pagehide", finish);
}

/** Open a dialog and return `{element, close(value), closed}`. Escape closes it with undefined, and so does a change of
 * the address, unless the dialog is `lasting`.
 *
 * - `close(value)`: returns whether the dialog was still open, so that the caller does not navigate after the user
 *   closed it or opened another page
 * - `closed`: resolves to the value that the dialog was closed with
 * - `build(close)`: returns the content
 * - `actions(close)`: returns the buttons
 * - `lasting`: for a dialog that belongs to no page, or that shows something only once */
export function openDialog(title, { build, actions, wide = false, side = false, lasting = false, onclose } = {}) {
  const heading = newId("dialog");
  let resolve;
  const closed = new Promise((done) => (resolve = done));
  let value;
  const close = (result) => {
    if (!element.open) return false;
    value = result;
    element.close();
    return true;
  };
  const element = h(
    "dialog",
    {
      class: ["dialog", wide && "dialog-wide", side && "dialog-side"].filter(Boolean).join(" "),
      "aria-labelledby": heading,
      "data-lasting": lasting,
    },
    h(
      "div",
      { class: "dialog-frame" },
      h(
        "div",
        { class: "dialog-head" },
        h("h2", { id: heading }, title),
        button(t("shell.close"), { kind: "quiet", icon: "close", compact: true, onclick: () => close() }),
      ),
      h("div", { class: "dialog-body" }, build?.(close)),
      actions && h("div", { class: "dialog-foot" }, actions(close)),
    ),
  );
  element.addEventListener("click", (event) => event.target === element && close());
  element.addEventListener("close", () => {
    element.remove();
    onclose?.(value);
    resolve(value);
  });
  document.body.append(element);
  element.showModal();
  // Without this, the browser would focus the button that closes the dialog.
  const fields = [
    ...element.querySelectorAll(
      ".dialog-body :is(input:not([type=file], [type=checkbox], [type=radio]), textarea):not(:disabled)",
    ),
  ];
  fields.find((field) => field.checkVisibility())?.focus();
  return { element, close, closed };
}

/** Ask for confirmation before an action that cannot be undone. Resolves to whether it was confirmed. */
export function confirmLoss(title, text, action) {
  const actions = (close) => [
    button(t("shell.cancel"), { onclick: () => close(false) }),
    button(action, { kind: "danger", onclick: () => close(true) }),
  ];
  return openDialog(title, { build: () => h("p", {}, text), actions }).closed.then(Boolean);
}

/** Return a field with a label. It has `setError(text)`, `setHint` and `refuse(text)`, which shows an error and focuses
 * the control. `control`: an input, select or textarea. */
export function field(label, control, { hint = "", error = "", inline = false } = {}) {
  control.id ||= newId("field");
  const hintId = newId("hint");
  const errorId = newId("error");
  const hintLine = h("p", { class: "field-hint", id: hintId, hidden: !hint }, hint);
  const errorLine = h("p", { class: "field-error", id: errorId, role: "alert", hidden: !error }, error);
  const name = h("label", { for: control.id }, label);
  const element = h(
    "div",
    { class: `field ${inline ? "field-inline" : ""}` },
    inline ? [control, name] : [name, control],
    hintLine,
    errorLine,
  );
  control.setAttribute("aria-describedby", `${hintId} ${errorId}`);
  element.control = control;
  element.setHint = (text) => {
    hintLine.textContent = text;
    hintLine.hidden = !text;
  };
  element.setError = (text) => {
    errorLine.textContent = text;
    errorLine.hidden = !text;
    control.setAttribute("aria-invalid", text ? "true" : "false");
  };
  element.refuse = (text) => {
    element.setError(text);
    control.focus();
  };
  return element;
}

export const input = (props = {}) => h("input", { type: "text", class: "input", autocomplete: "off", ...props });
export const textarea = (props = {}) => h("textarea", { class: "input", rows: 4, ...props });
export const checkbox = (props = {}) => h("input", { type: "checkbox", class: "checkbox", ...props });

/** Return a select with options from `[value, label]` pairs. */
export function select(options, { value, ...props } = {}) {
  const element = h(
    "select",
    { class: "input", ...props },
    options.map(([value, label]) => h("option", { value: value }, label)),
  );
  if (value !== undefined) element.value = value;
  return element;
}

/** Return whether the page is dark: by the chosen theme, else by the system's. */
export function isDark() {
  const { theme } = document.documentElement.dataset;
  return theme ? theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
}

/** Return a button that opens a menu.
 *
 * - `items`: `{label, icon?, act, danger?, disabled?}`, or null for a line; or a function that returns them when the
 *   menu opens
 * - `facts()`: returns `[name, value]` pairs to show below the items */
export function menu(label, items, { icon: name = "more", compact = true, kind = "quiet", facts, ...props } = {}) {
  const entriesPlace = h("div", { role: "menu" });
  const list = h("div", { class: "menu", popover: "auto", id: newId("menu") }, entriesPlace);
  const opener = button(label, {
    kind,
    icon: name,
    compact,
    "aria-haspopup": "menu",
    "aria-expanded": "false",
    popovertarget: list.id,
    ...props,
  });
  const entries = () => [...list.querySelectorAll('[role="menuitem"]:not([disabled])')];
  const move = (by) => {
    const items = entries();
    items[(items.indexOf(document.activeElement) + by + items.length) % items.length]?.focus();
  };
  list.addEventListener("beforetoggle", (event) => {
    opener.setAttribute("aria-expanded", String(event.newState === "open"));
    if (event.newState !== "open") return;
    const listed = typeof items === "function" ? items() : items;
    const shown = listed.filter((item) => item !== false && item !== undefined);
    replace(
      entriesPlace,
      shown
        .filter((item, at) => item !== null || (at > 0 && at < shown.length - 1))
        .map((item) => (item === null ? h("hr") : menuItem(item, list))),
    );
    const pairs = facts?.() ?? [];
    replace(
      list,
      entriesPlace,
      pairs.length > 0 &&
        h(
          "dl",
          { class: "menu-facts" },
          pairs.map(([key, value]) => h("div", {}, h("dt", {}, key), h("dd", {}, value))),
        ),
    );
    const place = opener.getBoundingClientRect();
    const below = place.bottom + 260 < innerHeight;
    list.style.setProperty("--menu-x", `${Math.max(8, Math.min(place.left, innerWidth - 272))}px`);
    list.style.setProperty("--menu-top", below ? `${place.bottom + 4}px` : "auto");
    list.style.setProperty("--menu-bottom", below ? "auto" : `${innerHeight - place.top + 4}px`);
  });
  list.addEventListener("toggle", (event) => event.newState === "open" && entries()[0]?.focus());
  list.addEventListener("keydown", (event) => {
    const by = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (by) {
      event.preventDefault();
      move(by);
    } else if (event.key === "Home" || event.key === "End") {
      event.preventDefault();
      entries()
        .at(event.key === "Home" ? 0 : -1)
        ?.focus();
    }
  });
  return h("span", { class: "menu-place" }, opener, list);
}

function menuItem({ label, icon: name, act, danger, disabled }, list) {
  const props = { type: "button", role: "menuitem", class: `menu-item ${danger ? "menu-danger" : ""}`, disabled };
  const element = h("button", props, name ? icon(name, 16) : h("span", { class: "menu-gap" }), h("span", {}, label));
  element.addEventListener("click", () => {
    list.hidePopover();
    Promise.resolve(act()).catch(toastError);
  });
  return element;
}

/** Return tabs that are links. `items`: `{key, label, href, count?}`. */
export function tabLinks(label, items, current) {
  const links = items.map(({ key, label: name, href, count }) =>
    h(
      "a",
      { class: "tab", href, "aria-current": key === current ? "page" : null },
      name,
      count !== undefined && h("span", { class: "tab-count" }, count),
    ),
  );
  return h("nav", { class: "tabs", "aria-label": label }, links);
}

/** Return tabs with panels. The element has `select(key)`. `items`: `{key, label, build()}`; `build` is called when the
 * tab is first shown. */
export function tabs(label, items, { current = items[0].key, onselect } = {}) {
  const built = new Map();
  const panel = h("div", { class: "tab-panel", role: "tabpanel", id: newId("panel"), tabindex: 0 });
  const heads = items.map(({ key, label: name }) =>
    h(
      "button",
      {
        type: "button",
        class: "tab",
        role: "tab",
        id: newId("tab"),
        "aria-controls": panel.id,
        dataset: { key },
        onclick: () => choose(key),
      },
      name,
    ),
  );
  const choose = (key) => {
    for (const head of heads) {
      const is = head.dataset.key === key;
      head.setAttribute("aria-selected", String(is));
      head.tabIndex = is ? 0 : -1;
      if (is) panel.setAttribute("aria-labelledby", head.id);
    }
    if (!built.has(key)) built.set(key, items.find((item) => item.key === key).build());
    replace(panel, built.get(key));
    onselect?.(key);
  };
  const list = h("div", { class: "tabs", role: "tablist", "aria-label": label }, heads);
  list.addEventListener("keydown", (event) => {
    const by = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!by) return;
    const next = heads[(heads.indexOf(document.activeElement) + by + heads.length) % heads.length];
    choose(next.dataset.key);
    next.focus();
  });
  const element = h("div", {}, list, panel);
  element.select = choose;
  choose(current);
  return element;
}

/** Return a table. A wide table scrolls.
 *
 * - `columns`: `{label, cell(row), align?}`
 * - `empty`: shown if there are no rows */
export function table(caption, columns, rows, { empty } = {}) {
  if (!rows.length && empty) return empty;
  const of = (column) => (column.align === "end" ? "cell-end" : null);
  const head = h(
    "tr",
    {},
    columns.map((column) => h("th", { scope: "col", class: of(column) }, column.label)),
  );
  const line = (row) =>
    h(
      "tr",
      {},
      columns.map((column) => h("td", { class: of(column), "data-label": column.label }, column.cell(row))),
    );
  return h(
    "div",
    { class: "table-frame", tabindex: 0, role: "group", "aria-label": caption },
    h(
      "table",
      { class: columns.length > 3 ? "table table-wide" : "table" },
      h("caption", { class: "visually-hidden" }, caption),
      h("thead", {}, head),
      h("tbody", {}, rows.map(line)),
    ),
  );
}

/** Return the content of an empty list or page: an explanation and the next actions.
 *
 * - `actions`: buttons or links
 * - `level`: the level of the heading, 1 if this is the whole page */
export function emptyState(title, text, { icon: name = "info", actions = [], level = 2 } = {}) {
  return h(
    "div",
    { class: "empty" },
    h("div", { class: "empty-icon" }, icon(name, 26)),
    h(`h${level}`, {}, title),
    h("p", {}, text),
    actions.length > 0 && h("div", { class: "row" }, actions),
  );
}

/** Return a progress bar for a long job. It has `set(done, of, text)`; `of` is 0 if the total is unknown. `stop`:
 * called by the stop button. */
export function progress(label, { stop } = {}) {
  const bar = h("progress", { "aria-label": label });
  const text = h("span", {}, label);
  const element = h(
    "div",
    { class: "progress" },
    text,
    bar,
    stop && button(t("shell.stop"), { kind: "quiet", icon: "stop", onclick: stop }),
  );
  element.set = (done, of, words) => {
    if (of) {
      bar.max = of;
      bar.value = done;
    } else bar.removeAttribute("value");
    if (words !== undefined) text.textContent = words;
  };
  return element;
}

/** Return a button that copies text and confirms that. `text`: the text, or a function that returns it on a click. */
export function copyButton(label, text, { compact = true, kind = "quiet" } = {}) {
  const element = button(label, { kind, icon: "copy", compact });
  element.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(typeof text === "function" ? await text() : text);
      element.firstChild.replaceWith(icon("check"));
      announce(t("shell.copied"));
      setTimeout(() => element.firstChild.replaceWith(icon("copy")), 1500);
    } catch (error) {
      toast(error?.code ? error.message : t("shell.notCopied"), { kind: "error" });
    }
  });
  return element;
}

/** Return the address of a document in its source system: as a link if it is a web address, else as text. */
export function addressOf(uri, label = uri) {
  const isWeb = /^https?:\/\//iu.test(uri);
  return isWeb
    ? h(
        "a",
        {
          href: uri,
          title: uri,
          rel: "noreferrer noopener",
          target: "_blank",
          class: "wrap",
          dir: label === uri ? "ltr" : null,
        },
        label,
      )
    : h("code", { class: "wrap", dir: "ltr" }, uri);
}

/** Return a short word with a colour. The word has the meaning; the colour only supports it. `kind`: ok, wait, bad or
 * "". */
export const badge = (text, kind = "") => h("span", { class: `badge ${kind && `badge-${kind}`}` }, text);

/** Return a box with a note. `kind`: info, warn or bad. */
export function notice(kind, ...children) {
  return h(
    "div",
    { class: `notice notice-${kind}`, role: kind === "bad" ? "alert" : "note" },
    icon(kind === "info" ? "info" : "alert"),
    h("div", {}, children),
  );
}

/** Return placeholder lines for content that is loading. */
export function skeleton(lines = 3) {
  return h(
    "div",
    { class: "skeleton", role: "status", "aria-label": t("shell.loading") },
    Array.from({ length: lines }, () => h("div", { class: "skeleton-line" })),
  );
}

/** The newest load of each element, as a token. An older load has another token. */
const loads = new WeakMap();

/** Load data and show it in an element: a skeleton during the load, and the error with a retry button if it fails. A
 * response is dropped if a later load of the element has begun. */
export async function loadInto(element, load, build) {
  const token = {};
  loads.set(element, token);
  replace(element, skeleton());
  try {
    const loaded = await load();
    if (loads.get(element) !== token) return;
    const built = await build(loaded);
    if (loads.get(element) === token) replace(element, built);
  } catch (error) {
    if (error?.name === "AbortError" || loads.get(element) !== token) return;
    if (!error?.code) console.error(error);
    const again = button(t("shell.tryAgain"), { icon: "retry", onclick: () => loadInto(element, load, build) });
    replace(
      element,
      emptyState(t("shell.notLoaded"), error?.code ? error.message : t("shell.failed"), {
        icon: "alert",
        actions: [again],
      }),
    );
  }
}

/** Save a text, or the bytes of a Blob, as a file in the browser's downloads. */
export function saveFile(name, type, content) {
  const address = URL.createObjectURL(new Blob([content], { type }));
  const link = h("a", { href: address, download: name });
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(address), 10_000);
}
