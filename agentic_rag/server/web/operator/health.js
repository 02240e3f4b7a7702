// The health of each part of the server: its state, its recent activity, and the reason for a problem.

import { api } from "../api.js";
import { h, replace } from "../dom.js";
import { inWords, loadSentences } from "../errors/text.js";
import { formatBytes, formatNumber, formatPercent, t } from "../i18n.js";
import { icon } from "../icons.js";
import { announce, badge, emptyState, notice, table } from "../ui.js";
import { keepFocus, watch } from "../watch.js";
import { ago, code, domainNames, facts } from "./parts.js";

await loadSentences();

const STATES = {
  ready: { word: () => t("operator.ready"), kind: "ok" },
  limited: { word: () => t("operator.limited"), kind: "wait" },
  degraded: { word: () => t("operator.degraded"), kind: "wait" },
  down: { word: () => t("operator.down"), kind: "bad" },
};
const OVERALL = {
  ok: { title: () => t("operator.allWell"), text: () => t("operator.allWellText"), icon: "check", kind: "ok" },
  degraded: {
    title: () => t("operator.someDegraded"),
    text: () => t("operator.someDegradedText"),
    icon: "alert",
    kind: "wait",
  },
  limited: {
    title: () => t("operator.someLimited"),
    text: () => t("operator.someLimitedText"),
    icon: "alert",
    kind: "wait",
  },
  down: { title: () => t("operator.someDown"), text: () => t("operator.someDownText"), icon: "alert", kind: "bad" },
};
const MODES = {
  lexical: () => t("operator.modeLexical"),
  loading: () => t("operator.modeLoading"),
  fetching: () => t("operator.modeFetching"),
  failing: () => t("operator.modeFailing"),
  rebuilding: () => t("operator.modeRebuilding"),
  stalled: () => t("operator.modeStalled"),
  full: () => t("operator.modeFull"),
};

export async function show(place, { app }) {
  const nameOf = await domainNames(app);
  const lost = h("div", { hidden: true });
  const shown = h("div", { class: "stack" });
  replace(place, lost, shown);
  let status = null;
  return await watch(
    () => api("GET", "/api/health"),
    (report) => {
      if (status !== null && status !== report.status) announce(overall(report).title());
      status = report.status;
      keepFocus(shown, () => replace(shown, draw(report, nameOf)));
    },
    {
      onerror: (error) => {
        lost.hidden = !error;
        if (error) replace(lost, notice("bad", t("operator.noAnswer"), " ", error.message));
      },
    },
  );
}

/** Return whether a part works, but not as well as it could. Such a part is ready and gives a reason. */
const isLimited = ({ state, reason }) => state === "ready" && Boolean(reason);

function overall(report) {
  const parts = [report.model, report.embedder, report.index, report.store, report.disk, report.backup].filter(Boolean);
  return report.status === "ok" && parts.some(isLimited)
    ? OVERALL.limited
    : (OVERALL[report.status] ?? OVERALL.degraded);
}

/** Return the words for an unusual state of a part. */
function modeWords({ name, state, mode, reason, bytes, of }) {
  if (mode === "lexical" && reason) return t("operator.modeLexicalMissing");
  if (!mode) return isLimited({ state, reason }) && name?.startsWith("wheel:") ? t("operator.modeBuiltIn") : "";
  return `${MODES[mode]?.() ?? mode}${of ? ` ${formatBytes(bytes ?? 0)} / ${formatBytes(of)}` : ""}`;
}

function draw(report, nameOf) {
  const summary = overall(report);
  return [
    h(
      "div",
      { class: `health-sum health-${summary.kind}` },
      h("span", { class: "health-icon" }, icon(summary.icon, 22)),
      h("div", {}, h("h2", {}, summary.title()), h("p", { class: "soft" }, summary.text())),
    ),
    report.anyCommand && notice("warn", t("operator.anyCommand")),
    report.unsandboxed && notice("warn", t("operator.unsandboxed")),
    report.retiring?.map(({ model, on, successor }) =>
      notice("warn", t(successor ? "operator.retiring" : "operator.retiringUnknown", { model, on, successor })),
    ),
    h(
      "div",
      { class: "grid" },
      part(t("operator.model"), report.model, nameOf),
      part(t("operator.embedder"), report.embedder, nameOf),
      part(t("operator.index"), report.index, nameOf),
      part(t("operator.store"), report.store, nameOf),
      diskCard(report.disk),
      report.queue && queueCard(report.queue),
      report.backup && backupCard(report.backup),
    ),
    report.replicas?.length > 0 && [
      h("h2", {}, t("operator.replicas")),
      h("p", { class: "soft" }, t("operator.replicasText")),
      replicasTable(report.replicas),
    ],
    h("h2", {}, t("operator.mcpServers")),
    serversTable(report.servers, nameOf),
  ];
}

function box(title, { state, reason }, ...children) {
  const { word, kind } = isLimited({ state, reason }) ? STATES.limited : (STATES[state] ?? STATES.ready);
  return h(
    "section",
    { class: "card health-card", "aria-label": title },
    h("div", { class: "card-head" }, h("h3", {}, title), state && badge(word(), kind)),
    children,
  );
}

function part(title, report, nameOf) {
  const { name, state, collectionsToReindex, rebuilding, readsTokens, reason, lastSuccess, lastFailure, recently } =
    report;
  const mode = modeWords(report);
  const share = recently && recently.calls ? recently.failures / recently.calls : 0;
  return box(
    title,
    { state, reason },
    name ? code(name) : h("span", { class: "faint" }, t("operator.none")),
    mode && h("p", { class: isLimited({ state, reason }) ? "health-limit" : "soft" }, mode),
    reason && h("p", { class: "health-reason wrap" }, inWords(reason)),
    facts([
      [t("operator.lastSuccess"), ago(lastSuccess)],
      [t("operator.lastFailure"), lastFailure && [ago(lastFailure.at), " ", code(lastFailure.code)]],
      [
        t("operator.recently"),
        recently && t("operator.recentCalls", { count: recently.calls, failed: formatPercent(share) }),
      ],
      [t("operator.readsTokens"), readsTokens && t("operator.inWindows", { count: readsTokens })],
      [t("operator.toReindex"), collectionsToReindex && formatNumber(collectionsToReindex)],
      ...(rebuilding ?? []).map((collection) => [
        nameOf(collection.domain),
        t("operator.rebuilt", { done: collection.done, of: collection.of }),
      ]),
    ]),
  );
}

function diskCard({ state, reason, free, reserve }) {
  return box(
    t("operator.disk"),
    { state, reason },
    reason && h("p", { class: "health-reason wrap" }, inWords(reason)),
    facts([
      [t("operator.diskFree"), free !== undefined && formatBytes(free)],
      [t("operator.diskReserve"), reserve !== undefined && formatBytes(reserve)],
    ]),
  );
}

function queueCard({ running, waiting, documents }) {
  return box(
    t("operator.queue"),
    {},
    facts([
      [t("operator.turnsRunning"), formatNumber(running)],
      [t("operator.turnsWaiting"), waiting !== undefined && formatNumber(waiting)],
      [t("operator.documentsWaiting"), formatNumber(documents)],
    ]),
  );
}

function backupCard({ state, ageSeconds, everyHours, reason }) {
  return box(
    t("operator.backup"),
    { state, reason },
    reason && h("p", { class: "health-reason wrap" }, inWords(reason)),
    ageSeconds === undefined && h("p", { class: "soft" }, t("operator.noBackupYet")),
    facts([
      [
        t("operator.backupAge"),
        ageSeconds !== undefined && ago(new Date(Date.now() - ageSeconds * 1000).toISOString()),
      ],
      [
        t("operator.backupEvery"),
        everyHours ? t("operator.everyHours", { count: everyHours }) : t("operator.backupOff"),
      ],
    ]),
    h("a", { href: "#/operator/backups" }, t("operator.toBackups")),
  );
}

function serversTable(servers, nameOf) {
  const columns = [
    { label: t("operator.server"), cell: (server) => h("span", { class: "strong" }, server.name) },
    {
      label: t("operator.domain"),
      cell: (server) => (server.domain ? nameOf(server.domain) : h("span", { class: "faint" }, t("operator.ourOwn"))),
    },
    {
      label: t("operator.state"),
      cell: (server) => badge(STATES[server.state]?.word() ?? server.state, STATES[server.state]?.kind),
    },
    { label: t("operator.doing"), cell: (server) => code(server.mode) },
    { label: t("operator.reason"), cell: (server) => inWords(server.reason) ?? "" },
  ];
  const none = emptyState(t("operator.noServers"), t("operator.noServersText"), { icon: "server" });
  return table(t("operator.mcpServers"), columns, servers, { empty: none });
}

function replicasTable(replicas) {
  const columns = [
    {
      label: t("operator.replica"),
      cell: (replica) => [
        h("span", { class: "strong wrap" }, replica.id),
        " ",
        replica.own && badge(t("operator.replicaOwn")),
      ],
    },
    {
      label: t("operator.state"),
      cell: (replica) => (replica.leaving ? badge(t("operator.draining"), "wait") : badge(t("operator.ready"), "ok")),
    },
    { label: t("operator.replicaVersion"), cell: (replica) => code(replica.version) },
    { label: t("operator.replicaAddress"), cell: (replica) => code(replica.address) },
    { label: t("operator.heartbeat"), cell: (replica) => ago(replica.heartbeatAt) },
    { label: t("operator.started"), cell: (replica) => ago(replica.startedAt) },
  ];
  return table(t("operator.replicas"), columns, replicas);
}
