// The MCP servers of a domain: the connections, the JSON that configures them, the secrets, and the launch requests.

import { api } from "../api.js";
import { h, replace } from "../dom.js";
import { inWords, loadSentences } from "../errors/text.js";
import { t } from "../i18n.js";
import { showProblem } from "../operator/parts.js";
import { badge, button, notice, openDialog, skeleton, toast, toastError } from "../ui.js";
import { keepFocus, watch } from "../watch.js";
import { connectionView, ruleName, stateBadge } from "./connection.js";
import { diffView } from "./lines-diff.js";
import { requestsView } from "./launch-requests.js";
import { pasteServers } from "./paste.js";
import { drawSecrets } from "./secrets.js";
import { serversEditor } from "./servers-editor.js";

await loadSentences();

const LOOK_SECONDS = 4;

export async function show(panel, { domain: listed, place, app }) {
  const base = `/api/domains/${encodeURIComponent(listed.id)}`;
  const domain = await api("GET", base);
  const list = h("div", {}, skeleton());
  const requests = h("div", {});
  const secrets = h("div", {});
  const lost = h("div", { hidden: true });
  let watching = null;
  const look = () => watching?.now();

  const editor = serversEditor(domain, {
    onSaved: (saved) => {
      place.changed(saved);
      look();
    },
    onRequested: look,
    onPaste: async () => {
      const context = { app, onRequested: look, onSecret: () => drawSecrets(secrets, base) };
      if (!(await pasteServers(base, context))) return;
      editor.reload(await api("GET", base));
      await look();
    },
  });

  /** Load the state that changes without an action on this page: the connections, and the operator's decisions about
   * launch requests. */
  async function load() {
    const [servers, launchRequests] = await Promise.all([
      api("GET", `${base}/mcp-servers`),
      api("GET", `${base}/launch-requests`),
    ]);
    return { servers: servers.items, launchRequests: launchRequests.items };
  }

  function draw({ servers, launchRequests }) {
    keepFocus(list, () => replace(list, content(servers)));
    keepFocus(requests, () => replace(requests, launchRequests.length > 0 && requestsView(launchRequests, base, look)));
  }

  const content = (items) => h("ul", { class: "rows", "aria-label": t("servers.list") }, items.map(row));

  function row(server) {
    const isOwn = server.origin === "user";
    const tools = server.tools.length;
    const line = server.url ?? [server.command, ...(server.args ?? [])].filter(Boolean).join(" ");
    const accept =
      server.pendingTools.length > 0 &&
      button(t("servers.look", { count: server.pendingTools.length }), { onclick: () => acceptTools(server) });
    return h(
      "li",
      { class: "rows-item" },
      h(
        "div",
        { class: "grow" },
        h(
          "div",
          { class: "row" },
          h("span", { class: "strong wrap" }, server.name),
          badge(t(`servers.origin.${server.origin}`)),
          server.enabled === false && badge(t("servers.disabled")),
        ),
        line && h("p", { class: "mono small soft wrap", dir: "ltr" }, line),
        server.reason &&
          h(
            "p",
            { class: server.state === "failed" ? "small bad wrap" : "small soft wrap", dir: "auto" },
            inWords(server.reason),
          ),
        server.droppedTools.map((tool) =>
          h("p", { class: "small bad wrap", dir: "auto" }, `${tool.name}: ${tool.reason}`),
        ),
        accept && notice("warn", h("p", {}, t("servers.changed", { count: server.pendingTools.length })), accept),
      ),
      h(
        "div",
        { class: "rows-end" },
        stateBadge(server.state),
        (tools > 0 || server.state !== "stopped") &&
          button(t("servers.details", { count: tools }), { kind: "quiet", onclick: () => showDetails(server) }),
        isOwn &&
          server.enabled &&
          button(t("servers.restart"), { kind: "quiet", icon: "retry", compact: true, onclick: () => restart(server) }),
      ),
    );
  }

  async function restart(server) {
    const state = await api("POST", `${base}/mcp-servers/${encodeURIComponent(server.name)}/restart`);
    toast(t("servers.restarted", { name: server.name, state: t(`servers.state.${state.state}`) }));
    await look();
  }

  async function showDetails(server) {
    const { settings } = await api("GET", base);
    if (!panel.isConnected) return; // the user left the page meanwhile
    const policy = { ...settings.toolPolicy };
    const rules = {
      of: (tool) => (typeof policy[tool.calledAs] === "string" ? policy[tool.calledAs] : ""),
      set: (tool, rule) => saveRule(tool, rule, policy),
    };
    openDialog(server.name, {
      side: true,
      build: () => connectionView(server, server.origin === "user" ? rules : null),
    });
  }

  async function saveRule(tool, rule, policy) {
    try {
      await api("PATCH", base, { body: { settings: { toolPolicy: { [tool.calledAs]: rule || null } } } });
      policy[tool.calledAs] = rule;
      toast(t("servers.ruleSaved", { tool: tool.title || tool.name, rule: ruleName(rule) }));
    } catch (error) {
      toastError(error);
    }
  }

  /** Show each changed tool as it was accepted and as it is now. Accept exactly the versions that were shown. */
  async function acceptTools(server) {
    const address = `${base}/mcp-servers/${encodeURIComponent(server.name)}`;
    const waiting = await api("GET", `${address}/pending`);
    if (!panel.isConnected) return;
    const build = () => [
      notice("info", t("servers.acceptText")),
      waiting.tools.map((tool) =>
        h(
          "section",
          { class: "stack-small" },
          h(
            "h3",
            { class: "mono wrap" },
            tool.name,
            " ",
            badge(t(tool.before ? "servers.toolChanged" : "servers.toolNew"), "wait"),
          ),
          diffView(tool.before && wording(tool.before), wording(tool.now)),
        ),
      ),
    ];
    const actions = (close) => [
      button(t("shell.cancel"), { onclick: () => close(false) }),
      button(t("servers.accept"), { kind: "primary", onclick: () => close(true) }),
    ];
    if (!(await openDialog(t("servers.acceptTitle", { name: server.name }), { build, actions, wide: true }).closed))
      return;
    try {
      const { accepted } = await api("POST", `${address}/accept`, { body: { fingerprint: waiting.fingerprint } });
      toast(t("servers.accepted", { count: accepted.length }));
    } catch (error) {
      toastError(error);
    }
    await look();
  }

  replace(
    panel,
    h(
      "div",
      { class: "stack-wide" },
      h(
        "section",
        { class: "stack-small", "aria-label": t("servers.running") },
        h("h2", {}, t("servers.running")),
        lost,
        list,
      ),
      editor,
      h(
        "section",
        { class: "stack-small", "aria-label": t("servers.secrets") },
        h("h2", {}, t("servers.secrets")),
        h("p", { class: "soft" }, t("servers.secretsText")),
        secrets,
      ),
      requests,
    ),
  );
  try {
    [watching] = await Promise.all([
      watch(load, draw, { seconds: LOOK_SECONDS, onerror: showProblem(lost) }),
      drawSecrets(secrets, base),
    ]);
  } catch (error) {
    editor.end();
    throw error;
  }
  return () => {
    watching();
    editor.end();
  };
}

const wording = (tool) => `${tool.name}\n\n${tool.description}\n\n${JSON.stringify(tool.inputSchema, null, 2)}`;
