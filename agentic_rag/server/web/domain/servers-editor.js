// The JSON editor for a domain's own MCP servers. It marks errors at their line and column while the user types, tests
// and saves the servers, and requests the approval of command lines.

import { api } from "../api.js";
import { debounce, h, replace } from "../dom.js";
import { draft, editing } from "../drafts.js";
import { t } from "../i18n.js";
import { button, notice, openDialog, toast, toastError } from "../ui.js";
import { connectionView } from "./connection.js";
import { placeOf, readJson } from "./json-source.js";
import { diffView } from "./lines-diff.js";
import { sourceEditor } from "./source-editor.js";

const WAIT_MS = 250;
const SHOWN = new Set(["origin", "readOnly"]);

/** Return the domain's own servers in the form in which a user pastes them. */
function ownEntries(domain) {
  const entries = Object.entries(domain.settings.mcpServers ?? {}).filter(([, entry]) => entry.origin === "user");
  return Object.fromEntries(
    entries.map(([name, entry]) => [
      name,
      Object.fromEntries(Object.entries(entry).filter(([key]) => !SHOWN.has(key))),
    ]),
  );
}

const asText = (entries) => JSON.stringify({ mcpServers: entries }, null, 2);

/** Return the editor: an element with `end()` and `reload(domain)`.
 *
 * - `onSaved(domain)`: called when the servers were saved.
 * - `onRequested()`: called when a launch request was sent.
 * - `onPaste()`: called when the user wants to paste servers. */
export function serversEditor(domain, { onSaved, onRequested, onPaste }) {
  const base = `/api/domains/${encodeURIComponent(domain.id)}`;
  const typed = draft(`servers.${domain.id}`);
  let stored = domain;
  let storedText = asText(ownEntries(domain));
  const before = typed.read();
  const notices = h("div", { class: "stack-small" });
  const result = h("div", { class: "stack-small", "aria-live": "polite" });
  const source = sourceEditor(t("servers.json"), {
    value: before?.text ?? storedText,
    rows: 14,
    oninput: (text) => (keep(text), later()),
  });
  const test = button(t("servers.test"), { icon: "tool", onclick: () => tryOut() });
  const save = button(t("settings.save"), { kind: "primary", onclick: () => store() });
  const discard = button(t("settings.discard"), { onclick: () => undo() });
  const paste = button(t("servers.paste"), { icon: "add", onclick: () => onPaste() });
  const format = button(t("servers.format"), { kind: "quiet", onclick: () => tidy() });
  const later = debounce(WAIT_MS, () => check());

  function keep(text) {
    typed.write(text === storedText ? null : { version: stored.version, text });
    save.disabled = discard.disabled = text === storedText;
  }

  /** Parse the text and mark its errors. Returns `{value, places}`, or null if there is an error. */
  function check() {
    const parsed = readJson(source.value);
    if (parsed.error) {
      const { line, column, code, key } = parsed.error;
      source.setMarks([{ line, column, severity: "error", message: t(`servers.syntax.${code}`, { key }) }]);
      return null;
    }
    source.setMarks([]);
    return parsed;
  }

  /** Return the map of servers in a parsed document, with or without a root such as `mcpServers`. */
  function documentOf({ value }) {
    if (value === null || typeof value !== "object" || Array.isArray(value)) return value;
    return value.mcpServers ?? value.servers ?? value;
  }

  function markError(error, places, message) {
    const place = error.path && placeOf(places, error.path);
    if (!place) return false;
    source.setMarks([{ line: place.line, column: place.column, severity: "error", message }]);
    source.goTo(place.line, place.column);
    return true;
  }

  function notes({ changes = [], warnings = [] }, places) {
    const marks = warnings.map((warning) => {
      const place = placeOf(places, warning.path);
      return { line: place?.line ?? 1, column: place?.column ?? 1, severity: "warning", message: warning.text };
    });
    source.setMarks(marks);
    if (!changes.length) return null;
    return notice(
      "info",
      h("p", { class: "strong" }, t("servers.changes", { count: changes.length })),
      h(
        "ul",
        { class: "plain-list" },
        changes.map((change) =>
          h("li", {}, h("code", {}, change.path.replace(/^(settings\.)?mcpServers\./, "")), ` ${change.text}`),
        ),
      ),
    );
  }

  function refuse(error, parsed) {
    const short = error.code === "MCP_COMMAND_NOT_ALLOWED" ? (error.details.reason ?? error.message) : error.message;
    const shown = markError(error, parsed.places, short);
    if (error.code === "MCP_COMMAND_NOT_ALLOWED") replace(result, notAllowed(error, parsed));
    else if (shown) replace(result, notice("bad", h("p", {}, error.message)));
    else {
      replace(result);
      toastError(error);
    }
    result.scrollIntoView({ block: "nearest" });
  }

  function notAllowed(error, parsed) {
    const { command, allow, request } = error.details;
    const name = /^(?:settings\.)?mcpServers\.([^.]+)/.exec(error.path)?.[1];
    const entry = name === undefined ? undefined : documentOf(parsed)?.[name];
    const ask = async () => {
      const asked = await api("POST", request, { body: entry === undefined ? {} : { mcpServers: { [name]: entry } } });
      replace(result, notice("info", t("servers.requested", { name: asked.server })));
      onRequested();
    };
    return notice(
      "warn",
      h("p", { class: "strong" }, t("servers.notAllowed")),
      h("p", {}, error.details.reason ?? error.message),
      command && h("pre", { class: "code-block mono", tabindex: 0, dir: "ltr" }, command),
      allow && [
        h("p", {}, t("servers.allowHow")),
        h("pre", { class: "code-block mono", tabindex: 0, dir: "ltr" }, allow),
      ],
      request && button(t("servers.request"), { kind: "primary", icon: "send", onclick: ask }),
    );
  }

  async function tryOut() {
    later.cancel();
    const parsed = check();
    if (!parsed) return source.area.focus();
    replace(result, notice("info", t("servers.testing")));
    try {
      const trial = await api("POST", `${base}/mcp-servers/test`, { body: { mcpServers: documentOf(parsed) } });
      const cards = trial.items.map((item) =>
        h(
          "section",
          { class: "card stack-small", "aria-label": item.name },
          h("h3", { class: "wrap" }, item.name),
          connectionView(item),
        ),
      );
      replace(result, notes(trial, parsed.places), cards);
      result.scrollIntoView({ block: "nearest" });
    } catch (error) {
      refuse(error, parsed);
    }
    return undefined;
  }

  async function store(version = stored.version) {
    later.cancel();
    const parsed = check();
    if (!parsed) return source.area.focus();
    const sent = source.value;
    try {
      const saved = await api("PUT", base, {
        body: { settings: { mcpServers: documentOf(parsed) } },
        ifMatch: version,
      });
      stored = { ...stored, ...saved };
      storedText = asText(ownEntries(stored));
      const typedOn = source.value !== sent;
      if (!typedOn) source.value = storedText;
      keep(source.value);
      others.saved(saved.version);
      replace(result, notes(saved, readJson(storedText).places));
      if (typedOn) check();
      toast(t("servers.saved"));
      onSaved(stored);
    } catch (error) {
      if (error.code === "VERSION_CONFLICT") await settle();
      else refuse(error, parsed);
    }
    return undefined;
  }

  /** Resolve a conflict with another save: show how the servers differ and let the user choose. */
  async function settle() {
    const theirs = await api("GET", base);
    const text = asText(ownEntries(theirs));
    if (text === storedText) return await store(theirs.version); // only other settings were changed
    if (!source.isConnected) return undefined; // the text is kept as a draft
    const actions = (close) => [
      button(t("settings.takeTheirs"), { onclick: () => close("theirs") }),
      button(t("settings.keepMine"), { kind: "primary", onclick: () => close("mine") }),
    ];
    const build = () => [h("p", {}, t("servers.conflictText")), diffView(text, source.value)];
    const chosen = await openDialog(t("settings.conflict"), { build, actions, wide: true }).closed;
    if (!chosen) return undefined;
    stored = theirs;
    storedText = text;
    if (chosen === "mine") return await store();
    source.value = text;
    typed.clear();
    keep(text);
    return check();
  }

  function undo() {
    const was = source.value;
    source.value = storedText;
    keep(storedText);
    check();
    const back = () => {
      source.value = was;
      keep(was);
      check();
    };
    toast(t("settings.discarded"), { undo: { act: back } });
  }

  function tidy() {
    const parsed = check();
    if (!parsed) return source.area.focus();
    source.value = JSON.stringify(parsed.value, null, 2);
    keep(source.value);
    return undefined;
  }

  const others = editing(`servers.${domain.id}`, () => replace(notices, notice("warn", t("settings.otherTab"))));
  others.onSaved(() => replace(notices, notice("warn", t("settings.savedElsewhere"))));
  if (before)
    notices.append(notice("info", t(before.version === stored.version ? "settings.draftBack" : "settings.draftOlder")));
  keep(source.value);
  check();
  const element = h(
    "section",
    { class: "stack-small", "aria-label": t("servers.json") },
    h(
      "div",
      { class: "row row-apart" },
      h("h2", {}, t("servers.json")),
      h("div", { class: "row" }, paste, format, discard, test, save),
    ),
    h("p", { class: "soft" }, t("servers.jsonText")),
    notices,
    source,
    result,
  );
  /** Show servers that were stored from elsewhere on the page. Unsaved text stays, and saving it shows the
   * difference. */
  element.reload = (theirs) => {
    if (source.value !== storedText) return replace(notices, notice("warn", t("settings.savedElsewhere")));
    stored = theirs;
    storedText = asText(ownEntries(theirs));
    source.value = storedText;
    keep(storedText);
    others.saved(theirs.version);
    onSaved(stored);
    return check();
  };
  element.end = () => {
    later.cancel();
    others.end();
  };
  return element;
}
