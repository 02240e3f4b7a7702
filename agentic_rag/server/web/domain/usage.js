// The tokens and the cost of a domain's answers: by day and model, by user and by agent.

import { api } from "../api.js";
import { h, replace } from "../dom.js";
import { formatBytes, formatMoney, formatNumber, formatPercent, t } from "../i18n.js";
import { emptyState, loadInto, select, table } from "../ui.js";
import { cacheMissName, dayOf, loadChartStyle, tokensOf, usageChart } from "../usage-chart.js";

const DAYS = [7, 30, 90];
const GROUPS = ["model", "user", "agent"];

export async function show(panel, { domain, place }) {
  const body = h("div", {});
  const span = select(
    DAYS.map((days) => [String(days), t("usage.days", { count: days })]),
    { value: "30", "aria-label": t("usage.span"), onchange: () => draw() },
  );
  const quotas = h("div", {});
  place.describe(t("usage.text"), span);
  replace(panel, h("div", { class: "stack" }, body, quotas));

  async function load() {
    const from = dayOf(Date.now() - (Number(span.value) - 1) * 86_400_000);
    const ask = async (group) =>
      (await api("GET", "/api/usage", { query: { groupBy: `domain,${group}`, from } })).items.filter(
        (row) => row.domainId === domain.id,
      );
    const [[days, misses, ...groups]] = await Promise.all([
      Promise.all(["day,model", "cacheMiss", ...GROUPS].map(ask)),
      loadChartStyle(),
    ]);
    return { days, misses: misses.filter((row) => row.cacheMiss), groups, from };
  }

  async function draw() {
    await loadInto(body, load, ({ days, misses, groups, from }) => {
      if (!days.length)
        return emptyState(t("usage.none"), t("usage.noneText"), { icon: "history", actions: [place.chatLink()] });
      const sum = days.reduce((total, day) => ({
        calls: total.calls + day.calls,
        input: total.input + day.input,
        cacheRead: total.cacheRead + day.cacheRead,
        cacheWrite: total.cacheWrite + day.cacheWrite,
        output: total.output + day.output,
      }));
      const read = sum.input + sum.cacheRead + sum.cacheWrite;
      const priced = days.find((day) => day.currency !== undefined);
      const cost = days.reduce((total, day) => total + Number(day.cost ?? 0), 0);
      const unpriced = days.reduce((total, day) => total + (day.unpricedCalls ?? 0), 0);
      const figure = (label, value) =>
        h(
          "div",
          { class: "figure card" },
          h("dd", { class: "figure-value" }, value),
          h("dt", { class: "small soft" }, label),
        );
      return [
        h(
          "dl",
          { class: "figures" },
          figure(t("usage.tokens"), formatNumber(tokensOf(sum), { notation: "compact" })),
          figure(t("usage.calls"), formatNumber(sum.calls)),
          figure(t("usage.cached"), formatPercent(read ? sum.cacheRead / read : 0)),
          figure(t("usage.output"), formatNumber(sum.output, { notation: "compact" })),
          priced && figure(t("usage.cost"), formatMoney(cost, priced.currency)),
        ),
        unpriced > 0 && h("p", { class: "small soft" }, t("usage.unpriced", { count: unpriced })),
        usageChart(days, { from, to: dayOf(Date.now()) }),
        GROUPS.map((group, at) =>
          h(
            "section",
            { class: "stack-small", "aria-label": t(`usage.by.${group}`) },
            h("h3", {}, t(`usage.by.${group}`)),
            groupTable(group, groups[at]),
          ),
        ),
        misses.length > 0 &&
          h(
            "section",
            { class: "stack-small", "aria-label": t("usage.cacheMisses") },
            h("h3", {}, t("usage.cacheMisses")),
            missTable(misses),
            h("p", { class: "small soft" }, t("usage.cacheMissHint")),
          ),
      ];
    });
  }

  await draw();
  await drawQuotas(quotas, domain);
}

function groupTable(group, rows) {
  const name = { model: "model", user: "userId", agent: "agent" }[group];
  const number = (key) => ({ label: t(`usage.${key}`), align: "end", cell: (row) => formatNumber(row[key]) });
  const first = {
    label: t(`usage.${group}`),
    cell: (row) =>
      h("span", { class: "mono wrap" }, row[name] || t(group === "agent" ? "usage.mainAgent" : "usage.unknown")),
  };
  return table(
    t(`usage.by.${group}`),
    [first, ...["calls", "input", "cacheRead", "cacheWrite", "output"].map(number)],
    rows.toSorted((a, b) => tokensOf(b) - tokensOf(a)),
  );
}

function missTable(rows) {
  const number = (label, key) => ({ label, align: "end", cell: (row) => formatNumber(row[key] ?? 0) });
  const reason = { label: t("usage.cacheMiss"), cell: (row) => cacheMissName(row.cacheMiss) };
  return table(
    t("usage.cacheMisses"),
    [reason, number(t("usage.calls"), "calls"), number(t("usage.cacheMissed"), "cacheMissed")],
    rows.toSorted((a, b) => (b.cacheMissed ?? 0) - (a.cacheMissed ?? 0)),
  );
}

async function drawQuotas(element, domain) {
  const { items } = await api("GET", `/api/domains/${encodeURIComponent(domain.id)}/quotas`);
  const line = ({ noun, used, limit }) => {
    const amount = noun === "documentBytes" ? formatBytes : formatNumber;
    const bar = h("progress", { max: limit, value: Math.min(used, limit), "aria-label": noun });
    return h(
      "div",
      { class: "quota" },
      h("span", { class: "small wrap" }, t(`usage.quota.${noun}`)),
      bar,
      h("span", { class: "small faint mono" }, `${amount(used)} / ${amount(limit)}`),
    );
  };
  replace(
    element,
    h(
      "section",
      { class: "stack-small", "aria-label": t("usage.quotas") },
      h("h3", {}, t("usage.quotas")),
      items.filter((row) => row.limit).map(line),
    ),
  );
}
