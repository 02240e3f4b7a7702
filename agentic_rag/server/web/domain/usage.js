// What the answers of a domain have cost, in tokens: by day, and by whom, with what.

import { api } from "../api.js";
import { h, replace, svg } from "../dom.js";
import { formatDate, formatMoney, formatNumber, formatPercent, t } from "../i18n.js";
import { emptyState, loadInto, select, table } from "../ui.js";

const DAYS = [7, 30, 90];
const GROUPS = ["model", "user", "agent"];

const tokens = (each) => each.input + each.cacheRead + each.cacheWrite + each.output;

export async function show(panel, { domain }) {
  const body = h("div", {});
  const span = select(DAYS.map((each) => [String(each), t("usage.days", { count: each })]), { value: "30", "aria-label": t("usage.span"), onchange: () => draw() });
  const quotas = h("div", {});
  replace(panel, h("div", { class: "stack" }, h("div", { class: "row row-apart" }, h("h2", {}, t("usage.title")), span), body, quotas));

  async function load() {
    const from = dayOf(Date.now() - (Number(span.value) - 1) * 86_400_000);
    const ask = async (group) => (await api("GET", "/api/usage", { query: { groupBy: `domain,${group}`, from } })).items.filter((each) => each.domainId === domain.id);
    const [days, ...groups] = await Promise.all(["day", ...GROUPS].map(ask));
    return { days, groups, from };
  }

  async function draw() {
    await loadInto(body, load, ({ days, groups, from }) => {
      if (!days.length) return emptyState(t("usage.none"), t("usage.noneText"), { icon: "history" });
      const sum = days.reduce((all, each) => ({ calls: all.calls + each.calls, input: all.input + each.input, cacheRead: all.cacheRead + each.cacheRead, cacheWrite: all.cacheWrite + each.cacheWrite, output: all.output + each.output }));
      const read = sum.input + sum.cacheRead + sum.cacheWrite;
      const priced = days.find((each) => each.currency !== undefined);
      const cost = days.reduce((all, each) => all + Number(each.cost ?? 0), 0);
      const unpriced = days.reduce((all, each) => all + (each.unpricedCalls ?? 0), 0);
      const figure = (label, value) => h("div", { class: "figure card" }, h("dd", { class: "figure-value" }, value), h("dt", { class: "small soft" }, label));
      return [
        h("dl", { class: "figures" }, figure(t("usage.tokens"), formatNumber(tokens(sum), { notation: "compact" })), figure(t("usage.calls"), formatNumber(sum.calls)), figure(t("usage.cached"), formatPercent(read ? sum.cacheRead / read : 0)), figure(t("usage.output"), formatNumber(sum.output, { notation: "compact" })), priced && figure(t("usage.cost"), formatMoney(cost, priced.currency))),
        unpriced > 0 && h("p", { class: "small soft" }, t("usage.unpriced", { count: unpriced })),
        chart(days, from),
        GROUPS.map((group, at) => h("section", { class: "stack-small", "aria-label": t(`usage.by.${group}`) }, h("h3", {}, t(`usage.by.${group}`)), groupTable(group, groups[at]))),
      ];
    });
  }

  await Promise.all([draw(), drawQuotas(quotas, domain)]);
}

const dayOf = (time) => new Date(time).toISOString().slice(0, 10);

function groupTable(group, rows) {
  const name = { model: "model", user: "userId", agent: "agent" }[group];
  const number = (key) => ({ label: t(`usage.${key}`), align: "end", cell: (each) => formatNumber(each[key]) });
  const first = { label: t(`usage.${group}`), cell: (each) => h("span", { class: "mono wrap" }, each[name] || t(group === "agent" ? "usage.mainAgent" : "usage.unknown")) };
  return table(t(`usage.by.${group}`), [first, ...["calls", "input", "cacheRead", "cacheWrite", "output"].map(number)], rows.toSorted((a, b) => tokens(b) - tokens(a)));
}

/** Bars of tokens a day; the days without any are there, too. */
function chart(days, from) {
  const known = new Map(days.map((each) => [each.day, each]));
  const all = [];
  for (let time = Date.parse(`${from}T00:00:00Z`); time <= Date.now(); time += 86_400_000) all.push(known.get(dayOf(time)) ?? { day: dayOf(time), input: 0, cacheRead: 0, cacheWrite: 0, output: 0, calls: 0 });
  const most = Math.max(1, ...all.map(tokens));
  const [width, height] = [all.length * 10, 100];
  const bars = all.map((each, at) => {
    let top = height;
    const part = (kind, count) => {
      const tall = (count / most) * height;
      top -= tall;
      return count > 0 && svg("rect", { class: `usage-${kind}`, x: at * 10 + 1.5, y: top, width: 7, height: tall });
    };
    const words = `${formatDate(`${each.day}T12:00:00Z`, { time: false })}: ${formatNumber(tokens(each))}`;
    return svg("g", {}, svg("title", {}, words), svg("rect", { class: "usage-room", x: at * 10, y: 0, width: 10, height }), part("cached", each.cacheRead), part("input", each.input + each.cacheWrite), part("output", each.output));
  });
  const key = (kind) => h("span", { class: `score-key usage-key-${kind}` }, t(`usage.key.${kind}`));
  return h(
    "figure",
    { class: "card usage-chart" },
    svg("svg", { viewBox: `0 0 ${width} ${height}`, preserveAspectRatio: "none", role: "img", "aria-label": t("usage.chart", { most: formatNumber(most) }) }, bars),
    h("figcaption", { class: "row row-apart small soft" }, h("span", {}, formatDate(`${all[0].day}T12:00:00Z`, { time: false })), h("span", { class: "row" }, ["cached", "input", "output"].map(key)), h("span", {}, formatDate(`${all.at(-1).day}T12:00:00Z`, { time: false }))),
  );
}

async function drawQuotas(element, domain) {
  const { items } = await api("GET", `/api/domains/${encodeURIComponent(domain.id)}/quotas`);
  const line = ({ noun, used, limit }) => {
    const bar = h("progress", { max: limit, value: Math.min(used, limit), "aria-label": noun });
    return h("div", { class: "quota" }, h("span", { class: "small wrap" }, t(`usage.quota.${noun}`)), bar, h("span", { class: "small faint mono" }, `${formatNumber(used)} / ${formatNumber(limit)}`));
  };
  replace(element, h("section", { class: "stack-small", "aria-label": t("usage.quotas") }, h("h3", {}, t("usage.quotas")), items.filter((each) => each.limit).map(line)));
}
