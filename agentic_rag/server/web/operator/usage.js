// The tokens and the cost of all model calls: by day and model, and summed by groups that the user chooses.

import { api, apiFile } from "../api.js";
import { h, replace } from "../dom.js";
import { formatDate, formatMoney, formatNumber, formatPercent, loadWords, t } from "../i18n.js";
import { button, emptyState, field, input, loadInto, saveFile, select, table } from "../ui.js";
import { cacheMissName, dayOf, loadChartStyle, tokensOf as total, usageChart } from "../usage-chart.js";
import { card, code, domainNames } from "./parts.js";

const DAY = 86_400_000;
const KINDS = ["input", "cacheRead", "cacheWrite", "output"];
const KIND_NAMES = {
  input: () => t("operator.tokensInput"),
  cacheRead: () => t("operator.tokensCacheRead"),
  cacheWrite: () => t("operator.tokensCacheWrite"),
  output: () => t("operator.tokensOutput"),
};
const GROUPS = [
  { key: "domain", id: "domainId", label: () => t("operator.domain") },
  { key: "user", id: "userId", label: () => t("operator.user") },
  { key: "model", id: "model", label: () => t("operator.model") },
  { key: "key", id: "keyId", label: () => t("operator.key") },
  { key: "agent", id: "agent", label: () => t("operator.agent") },
  { key: "day", id: "day", label: () => t("operator.day") },
  { key: "cacheMiss", id: "cacheMiss", label: () => t("usage.cacheMiss") },
];

const read = (row) => row.input + row.cacheRead + row.cacheWrite;
const cachedShare = (row) => (read(row) ? row.cacheRead / read(row) : 0);

export async function show(place, { app }) {
  const [nameOf] = await Promise.all([domainNames(app), loadWords("usage")]);
  const from = input({ type: "date", value: dayOf(Date.now() - 29 * DAY), max: dayOf(Date.now()) });
  const to = input({ type: "date", value: dayOf(Date.now()) });
  const by = select(
    GROUPS.map(({ key, label }) => [key, label()]),
    { value: "domain" },
  );
  const list = h("div", { class: "stack" });
  const load = () => {
    const range = { from: from.value, to: to.value ? dayOf(new Date(`${to.value}T00:00:00Z`).getTime() + DAY) : "" };
    const csv = async () =>
      saveFile(
        `usage-${by.value}-${from.value || "all"}-${to.value || dayOf(Date.now())}.csv`,
        "text/csv",
        await apiFile("/api/usage", { query: { ...range, groupBy: by.value, format: "csv" }, accept: "text/csv" }),
      );
    const ask = (groupBy) => api("GET", "/api/usage", { query: { ...range, groupBy } }).then(({ items }) => items);
    return loadInto(
      list,
      () => Promise.all([ask("day,model"), ask(by.value), loadChartStyle()]),
      ([days, rows]) =>
        draw(days, rows, by.value, { from: from.value, to: to.value || dayOf(Date.now()) }, nameOf, csv),
    );
  };
  for (const control of [from, to, by]) control.addEventListener("change", load);
  replace(
    place,
    h(
      "div",
      { class: "row usage-bar" },
      field(t("operator.fromDay"), from),
      field(t("operator.toDay"), to),
      field(t("operator.groupBy"), by),
    ),
    list,
  );
  await load();
}

function draw(days, rows, group, range, nameOf, csv) {
  if (!days.length) return emptyState(t("operator.noUsage"), t("operator.noUsageText"), { icon: "list" });
  const sum = Object.fromEntries(
    [...KINDS, "calls"].map((kind) => [kind, days.reduce((total, day) => total + day[kind], 0)]),
  );
  const { id, label } = GROUPS.find((grouping) => grouping.key === group);
  const nameOfRow = (row) => rowName(row[id] ?? "", group, nameOf);
  const sorted =
    group === "day"
      ? [...rows].sort((a, b) => (a.day < b.day ? 1 : -1))
      : [...rows].sort((a, b) => total(b) - total(a));
  const number = (value) => formatNumber(value);
  const columns = [
    { label: label(), cell: nameOfRow },
    { label: t("operator.calls"), align: "end", cell: (row) => number(row.calls) },
    ...KINDS.map((kind) => ({ label: KIND_NAMES[kind](), align: "end", cell: (row) => number(row[kind]) })),
    { label: t("operator.cachedShare"), align: "end", cell: (row) => formatPercent(cachedShare(row)) },
  ];
  const priced = days.find((day) => day.currency !== undefined);
  const unpriced = days.reduce((total, day) => total + (day.unpricedCalls ?? 0), 0);
  if (priced) columns.push({ label: t("operator.cost"), align: "end", cell: costCell });
  const download = button(t("operator.csv"), { icon: "download", onclick: csv });
  return [
    h(
      "div",
      { class: "figures" },
      figure(t("operator.calls"), number(sum.calls)),
      figure(t("operator.tokens"), formatNumber(total(sum), { notation: "compact", maximumFractionDigits: 1 })),
      figure(t("operator.tokensOutput"), formatNumber(sum.output, { notation: "compact", maximumFractionDigits: 1 })),
      figure(t("operator.cachedShare"), formatPercent(cachedShare(sum))),
      priced && figure(t("operator.cost"), formatMoney(sumOf(days), priced.currency)),
    ),
    usageChart(days, range),
    card(t("operator.totals"), { actions: [download] }, table(t("operator.totals"), columns, sorted)),
    priced && unpriced > 0 && h("p", { class: "field-hint" }, t("operator.unpriced", { count: unpriced })),
    h("p", { class: "field-hint" }, t("operator.usageHint")),
  ];
}

const figure = (label, value) =>
  h("div", { class: "figure" }, h("div", { class: "figure-value" }, value), h("div", { class: "soft small" }, label));

function rowName(value, group, nameOf) {
  if (group === "domain") return value ? nameOf(value) : h("span", { class: "faint" }, t("operator.noDomain"));
  if (group === "agent") return value ? code(value) : t("operator.mainAgent");
  if (group === "key") return value ? code(value) : h("span", { class: "faint" }, t("operator.withoutKey"));
  if (group === "cacheMiss")
    return value ? cacheMissName(value) : h("span", { class: "faint" }, t("usage.noCacheMiss"));
  if (group === "day") return formatDate(`${value}T12:00:00Z`, { time: false });
  return value || h("span", { class: "faint" }, "—");
}

const sumOf = (rows) => rows.reduce((total, row) => total + Number(row.cost ?? 0), 0);

function costCell(row) {
  if (row.cost === undefined) return h("span", { class: "faint" }, "—");
  const note =
    row.unpricedCalls > 0 &&
    h("span", { class: "faint", title: t("operator.unpriced", { count: row.unpricedCalls }) }, "*");
  return [formatMoney(row.cost, row.currency), note];
}
