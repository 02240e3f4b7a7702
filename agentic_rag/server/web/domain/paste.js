// The dialog for pasting MCP servers from the file of another client. It shows a row for each server with the steps
// that are still needed, and lets the user choose the servers to save.

import { api } from "../api.js";
import { h, replace } from "../dom.js";
import { inWords, loadSentences } from "../errors/text.js";
import { t } from "../i18n.js";
import { badge, button, checkbox, field, input, notice, openDialog, textarea, toast, toastError } from "../ui.js";

await loadSentences();

const KINDS = {
  ready: "ok",
  needs_secret: "wait",
  needs_approval: "wait",
  needs_sign_in: "wait",
  change_proposed: "wait",
  not_possible: "bad",
};
const INSTALL_POLLS = 600;
const INSTALL_POLL_MS = 500;

/** Open the dialog. Resolves to whether servers were saved. An operator (`app.user.operator`) may approve command
 * lines.
 *
 * - `onRequested()`: called when a launch request was sent or decided.
 * - `onSecret()`: called when a secret was saved. */
export function pasteServers(base, { app, onRequested, onSecret }) {
  const { operator } = app.user;
  const text = field(
    t("servers.pasteText"),
    textarea({ rows: 10, spellcheck: false, class: "input mono", dir: "ltr" }),
    { hint: t("servers.pasteHint") },
  );
  const report = h("div", { class: "stack-small", "aria-live": "polite" });
  const accepted = new Map();
  const check = button(t("servers.check"), { icon: "tool", onclick: () => look() });
  const save = button(t("servers.addAccepted"), { kind: "primary", disabled: true });
  let dialog = null;
  let checks = 0;

  /** Check the document. A result is ignored if a later check has begun, because the user may have saved a value
   * since. */
  async function look() {
    text.setError("");
    if (!text.control.value.trim()) return text.refuse(t("servers.pasteMissing"));
    const number = (checks += 1);
    replace(report, notice("info", t("servers.checking")));
    try {
      const body = new Blob([text.control.value], { type: "application/json" });
      const checked = await api("POST", `${base}/mcp-servers/check`, { body });
      if (number === checks) draw(checked);
    } catch (error) {
      if (number !== checks) return undefined;
      replace(report);
      save.disabled = true;
      text.setError(error.message);
    }
    return undefined;
  }

  function draw({ items, changes, warnings }) {
    const before = new Map([...accepted].map(([name, box]) => [name, box.checked]));
    accepted.clear();
    const rows = items.map((row) => rowOf(row, before.get(row.name)));
    const notes = [...changes, ...warnings].map((change) =>
      h("li", { class: "small soft wrap" }, `${change.path}: ${change.text}`),
    );
    replace(
      report,
      h("ul", { class: "rows", "aria-label": t("servers.report") }, rows),
      notes.length > 0 && h("ul", { class: "plain-list" }, notes),
    );
    count();
    report.scrollIntoView({ block: "nearest" });
  }

  const count = () => (save.disabled = ![...accepted.values()].some((box) => box.checked));

  function rowOf(row, was) {
    const tools = row.connection?.tools.length ?? 0;
    const box = row.saveable && checkbox({ checked: was ?? row.status === "ready", onchange: count });
    if (box) accepted.set(row.name, box);
    const problems = row.problems.map((problem) =>
      h(
        "li",
        { class: "small wrap" },
        h("code", {}, problem.path.replace(/^mcpServers\./, "")),
        problem.value !== undefined && [" ", h("code", {}, problem.value)],
        ` ${problem.message}`,
      ),
    );
    const reason =
      row.reason &&
      !row.problems.some((problem) => problem.message === row.reason) &&
      h("p", { class: "small soft wrap" }, inWords(row.reason));
    const accept =
      row.status === "change_proposed"
        ? t("servers.acceptChange", { name: row.name })
        : t("servers.acceptServer", { name: row.name });
    return h(
      "li",
      { class: "rows-item", "data-server": row.name || row.key },
      h(
        "div",
        { class: "grow stack-small" },
        h(
          "div",
          { class: "row" },
          h("span", { class: "strong wrap" }, row.name || row.key),
          badge(t(`servers.row.${row.status}`), KINDS[row.status] ?? ""),
          tools > 0 && h("span", { class: "small soft" }, t("servers.details", { count: tools })),
        ),
        reason,
        problems.length > 0 && h("ul", { class: "plain-list" }, problems),
        row.proposed &&
          h(
            "pre",
            {
              class: "code-block mono",
              tabindex: 0,
              dir: "ltr",
              "aria-label": t("servers.proposed", { name: row.name }),
            },
            JSON.stringify(row.proposed, null, 2),
          ),
        row.needs.map((need) => needOf(need)),
        row.approval && approvalOf(row),
        row.connection?.notes.map((note) => h("p", { class: "small soft wrap" }, note)),
        box && field(accept, box, { inline: true }),
      ),
    );
  }

  function needOf(need) {
    const secret = need.kind === "secret";
    const kind = secret ? { type: "password", autocomplete: "new-password" } : {};
    const value = field(
      t(secret ? "servers.needSecret" : "servers.needVariable", { name: need.name }),
      input({ ...kind, class: "input mono", dir: "ltr" }),
      { hint: need.description },
    );
    const keep = async () => {
      if (!value.control.value) return value.setError(t("servers.secretMissing"));
      try {
        if (secret)
          await api("PUT", `${base}/secrets/${encodeURIComponent(need.name)}`, {
            body: { value: value.control.value },
          });
        else await api("PATCH", base, { body: { settings: { variables: { [need.name]: value.control.value } } } });
      } catch (error) {
        return value.setError(error.message);
      }
      value.control.value = "";
      if (secret) onSecret();
      return await look();
    };
    return h(
      "div",
      { class: "stack-small" },
      value,
      h("div", { class: "row" }, button(t("servers.saveValue", { name: need.name }), { onclick: keep })),
    );
  }

  function approvalOf(row) {
    const { command, allow } = row.approval;
    const line = h("pre", { class: "code-block mono", tabindex: 0, dir: "ltr" }, command);
    const act = operator
      ? button(t("servers.approve"), { icon: "check", onclick: () => approve(row) })
      : button(t("servers.request"), { icon: "send", onclick: () => ask(row) });
    return h(
      "div",
      { class: "stack-small" },
      h("p", { class: "wrap" }, t(operator ? "servers.approvalText" : "servers.approvalWaits")),
      line,
      operator && allow && h("p", { class: "small soft wrap" }, t("servers.allowHow"), " ", h("code", {}, allow)),
      h("div", { class: "row" }, act),
    );
  }

  /** Send a launch request for the command line of a row. The values of its environment variables are not sent. */
  async function request(row) {
    const env = Object.fromEntries(Object.keys(row.entry.env ?? {}).map((name) => [name, `\${${name}}`]));
    const request = await api("POST", row.approval.request, {
      body: { mcpServers: { [row.name]: { ...row.entry, env } } },
    });
    onRequested();
    return request;
  }

  async function ask(row) {
    await request(row);
    toast(t("servers.requested", { name: row.name }));
  }

  /** Show the command line, approve exactly this line, and check the servers again once it is installed. If another tab
   * has decided earlier, show the reason and continue with that decision. */
  async function approve(row) {
    const asked = await request(row);
    const path = `/api/launch-requests/${encodeURIComponent(asked.id)}`;
    const shown = await api("GET", path);
    const network = field(t("servers.network"), checkbox(), { inline: true, hint: t("servers.networkHint") });
    const signInNote = notice("warn", t("shell.networkEndsKeyless"));
    signInNote.hidden = true;
    network.control.addEventListener(
      "change",
      () => (signInNote.hidden = !network.control.checked || app.user.needsKey),
    );
    const build = () => [
      h("pre", { class: "code-block mono", tabindex: 0, dir: "ltr" }, [shown.command, ...shown.args].join(" ")),
      h("p", { class: "wrap" }, `${shown.facts.name} ${shown.facts.version}`),
      shown.facts.integrity && h("p", { class: "mono small soft wrap" }, shown.facts.integrity),
      shown.facts.warnings.map((warning) => notice("warn", warning)),
      network,
      signInNote,
    ];
    const actions = (close) => [
      button(t("shell.cancel"), { onclick: () => close(false) }),
      button(t("servers.approveNow"), { kind: "primary", onclick: () => close(true) }),
    ];
    if (!(await openDialog(t("servers.approveTitle", { name: row.name }), { build, actions }).closed)) return;
    try {
      await api("POST", `${path}/approve`, {
        body: { fingerprint: shown.fingerprint, network: network.control.checked },
      });
      await app.refreshUser();
    } catch (error) {
      toastError(error);
    }
    replace(report, notice("info", t("servers.installing", { name: row.name })));
    for (let polls = 0; polls < INSTALL_POLLS && dialog?.element.isConnected; polls += 1) {
      const { state } = await api("GET", path).catch((error) =>
        error.isOffline ? { state: "approved" } : Promise.reject(error),
      );
      if (state !== "approved") break;
      await new Promise((done) => setTimeout(done, INSTALL_POLL_MS));
    }
    onRequested();
    await look();
  }

  async function add(close) {
    const names = [...accepted].filter(([, box]) => box.checked).map(([name]) => name);
    try {
      const saved = await api("POST", `${base}/mcp-servers/add`, {
        body: { document: text.control.value, accept: names },
      });
      toast(t("servers.added", { count: saved.names.length }));
      close(true);
    } catch (error) {
      text.setError(error.message);
    }
  }

  const actions = (close) => {
    save.addEventListener("click", () => add(close));
    return [button(t("shell.cancel"), { onclick: () => close(false) }), check, save];
  };
  dialog = openDialog(t("servers.paste"), { build: () => [text, report], actions, wide: true });
  return dialog.closed.then(Boolean);
}
