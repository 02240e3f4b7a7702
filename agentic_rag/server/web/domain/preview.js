// The preview of the text that a model gets before the first message, with the tokens of each part. It follows typing.

import { api } from "../api.js";
import { debounce, h, replace } from "../dom.js";
import { t } from "../i18n.js";
import { badge, notice, skeleton } from "../ui.js";

const WAIT_MS = 350;

/** Return the preview of a domain's prompt: an element with `update(draft)` and `stop()`. `draft`: `{settings,
 * components}` with unsaved changes, or null. */
export function promptPreview(domainId) {
  const address = `/api/domains/${encodeURIComponent(domainId)}/effective-prompt`;
  const body = h("div", { class: "stack-small" }, skeleton());
  const element = h(
    "section",
    { class: "preview", "aria-label": t("settings.preview") },
    h("h2", {}, t("settings.preview")),
    body,
  );
  const open = new Set();
  let asking = null;
  let before = null;
  let shown = null;

  const ask = async (draft) => {
    asking?.abort();
    asking = new AbortController();
    const { signal } = asking;
    element.setAttribute("aria-busy", "true");
    try {
      // Without a draft, the response is for the stored prompt. Later drafts are compared with it.
      if (before === null || !draft) before = total((shown = await api("GET", address, { signal })));
      if (draft) shown = await api("POST", address, { body: draft, signal });
      replace(body, show(shown, open, before));
    } catch (error) {
      if (error.name === "AbortError") return;
      const problem = notice("warn", error.code ? error.message : t("shell.failed"));
      replace(body, problem, shown && show(shown, open, before));
    } finally {
      if (!signal.aborted) element.removeAttribute("aria-busy");
    }
  };

  const later = debounce(WAIT_MS, ask);
  element.update = (draft) => (before === null ? ask(draft) : later(draft));
  element.stop = () => {
    later.cancel();
    asking?.abort();
  };
  return element;
}

const atOnce = (prompt) =>
  prompt.servers.filter((server) => !server.deferred).reduce((sum, server) => sum + server.tokens, 0);
const total = (prompt) => prompt.system.tokens + atOnce(prompt) + (prompt.role?.tokens ?? 0);

function show(prompt, open, before) {
  const parts = [
    { ...prompt.bootstrap, kind: "system", label: t("settings.part.bootstrap") },
    ...prompt.components.map((component) => ({
      ...component,
      kind: "component",
      label: component.name || t("settings.part.component"),
    })),
    prompt.skills && { ...prompt.skills, kind: "system", label: t("settings.part.skills") },
    prompt.catalogue && { ...prompt.catalogue, kind: "system", label: t("settings.part.catalogue") },
    { ...prompt.present, kind: "system", label: t("settings.part.present") },
    prompt.role && {
      key: "role",
      text: prompt.role.text,
      tokens: prompt.role.tokens ?? 0,
      kind: "role",
      label: t("settings.part.role", { role: prompt.roleId }),
    },
    ...prompt.servers.map((server) => ({
      ...server,
      kind: "tools",
      label: server.tools ? t("settings.part.server", { name: server.name, count: server.tools }) : server.name,
      tokens: server.deferred ? 0 : server.tokens,
      note: toolsNote(server),
    })),
  ].filter(Boolean);
  const sum = total(prompt);
  const change = sum - before;
  const changed =
    change !== 0 &&
    badge(
      t(change > 0 ? "settings.moreTokens" : "settings.fewerTokens", { count: Math.abs(change) }),
      change > 0 ? "wait" : "ok",
    );
  const bar = h(
    "div",
    { class: "token-bar", "aria-hidden": "true" },
    parts
      .filter((part) => part.tokens)
      .map((part) => h("span", { class: `token-${part.kind}`, style: { "--grow": part.tokens }, title: part.label })),
  );
  return [
    h("p", { class: "row" }, h("span", { class: "token-sum" }, t("settings.tokens", { count: sum })), changed),
    bar,
    prompt.problems.map((problem) => notice("warn", `${problem.name}: ${problem.problem}`)),
    prompt.role === null && notice("bad", t("settings.noRole", { role: prompt.roleId })),
    h(
      "div",
      { class: "token-parts" },
      parts.map((part) => partView(part, open)),
    ),
    h("p", { class: "faint small" }, t("settings.previewNote")),
  ];
}

/** Return why the tools of a server have no tokens here: the model loads them later, or the server was not used yet. */
const toolsNote = ({ tools, deferred }) =>
  tools === 0 ? t("settings.notListed") : deferred ? t("settings.deferred") : "";

function partView({ kind, label, tokens, text, note }, open) {
  const count = h(
    "span",
    { class: note ? "token-count small" : "token-count mono small" },
    note || t("settings.tokens", { count: tokens }),
  );
  const head = [
    h("span", { class: `token-dot token-${kind}`, "aria-hidden": "true" }),
    h("span", { class: "grow wrap", dir: "auto" }, label),
    count,
  ];
  if (!text) return h("div", { class: "token-part" }, head);
  const view = h(
    "details",
    { class: "token-part", open: open.has(label) },
    h("summary", {}, head),
    h("pre", { class: "token-text plain", dir: "auto", tabindex: 0 }, text),
  );
  view.addEventListener("toggle", () => (view.open ? open.add(label) : open.delete(label)));
  return view;
}
