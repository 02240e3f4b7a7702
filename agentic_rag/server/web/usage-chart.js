// The chart of tokens per day, stacked by model or by kind of token. The usage pages of a domain and of the server show
// it.

import { h, loadStyle, replace, svg } from "./dom.js";
import { formatDate, formatNumber, t } from "./i18n.js";

const DAY_MS = 86_400_000;
const MOST_DAYS = 366;
const MOST_MODELS = 5;
const HEIGHT = 100;
const KINDS = ["input", "cacheRead", "cacheWrite", "output"];
const VIEWS = ["model", "kind"];

export const tokensOf = (row) => KINDS.reduce((sum, kind) => sum + row[kind], 0);
export const dayOf = (time) => new Date(time).toISOString().slice(0, 10);

const MISSES = [
  "messages_changed",
  "model_changed",
  "previous_message_not_found",
  "system_changed",
  "tools_changed",
  "unavailable",
];

/** Return the text for a reason why the prompt cache missed. An unknown reason, which a model provider may have added,
 * is returned unchanged. */
export const cacheMissName = (reason) => (MISSES.includes(reason) ? t(`usage.miss.${reason}`) : reason);

/** Load the style sheet of the chart. Wait for it before the chart is shown, so that the layout does not shift. */
export const loadChartStyle = () => loadStyle("/web/usage-chart.css");

/** Return the chart of rows grouped by day and model, for the days `from` to `to`, both included; null if no tokens
 * were used. */
export function usageChart(rows, { from, to }) {
  if (!rows.some(tokensOf)) return null;
  const days = daysBetween(from || rows.map((row) => row.day).sort()[0], to);
  const place = h("div", {});
  const buttons = VIEWS.map((view) =>
    h(
      "button",
      { type: "button", class: "segment", dataset: { view }, onclick: () => draw(view) },
      t(`usage.view.${view}`),
    ),
  );
  const draw = (view) => {
    for (const button of buttons) button.setAttribute("aria-pressed", String(button.dataset.view === view));
    replace(place, drawing(days, view === "model" ? byModel(rows) : byKind(rows)));
  };
  draw("model");
  return h(
    "figure",
    { class: "usage-chart card" },
    h(
      "figcaption",
      { class: "row row-apart" },
      h("span", { class: "strong" }, t("usage.perDay")),
      h("span", { class: "segments", role: "group", "aria-label": t("usage.view") }, buttons),
    ),
    place,
  );
}

function daysBetween(from, to) {
  const end = Date.parse(`${to}T00:00:00Z`);
  const begin = Math.max(Date.parse(`${from}T00:00:00Z`), end - (MOST_DAYS - 1) * DAY_MS);
  const days = [];
  for (let time = begin; time <= end; time += DAY_MS) days.push(dayOf(time));
  return days;
}

/** Return the series of the chart, `{label, at(day)}`: the models with the most tokens first, and the others as one
 * series. */
function byModel(rows) {
  const models = new Map();
  for (const row of rows) {
    const days = models.get(row.model) ?? new Map();
    models.set(row.model, days.set(row.day, (days.get(row.day) ?? 0) + tokensOf(row)));
  }
  const sum = (days) => [...days.values()].reduce((total, day) => total + day, 0);
  const sorted = [...models].sort(([, first], [, second]) => sum(second) - sum(first));
  const shown = sorted.length > MOST_MODELS ? sorted.slice(0, MOST_MODELS - 1) : sorted;
  const rest = sorted.slice(shown.length);
  const series = shown.map(([model, days]) => ({
    label: model || t("usage.unknown"),
    at: (day) => days.get(day) ?? 0,
  }));
  if (rest.length)
    series.push({
      label: t("usage.otherModels", { count: rest.length }),
      at: (day) => rest.reduce((total, [, days]) => total + (days.get(day) ?? 0), 0),
    });
  return series;
}

function byKind(rows) {
  const days = new Map();
  for (const row of rows) {
    const ofDay = days.get(row.day) ?? {};
    days.set(row.day, Object.fromEntries(KINDS.map((kind) => [kind, (ofDay[kind] ?? 0) + row[kind]])));
  }
  return KINDS.map((kind) => ({ label: t(`usage.${kind}`), at: (day) => days.get(day)?.[kind] ?? 0 })).filter(
    ({ at }) => [...days.keys()].some(at),
  );
}

function drawing(days, series) {
  const total = (day) => series.reduce((sum, { at }) => sum + at(day), 0);
  const most = Math.max(1, ...days.map(total));
  const dayName = (day) => formatDate(`${day}T12:00:00Z`, { time: false });
  const bars = days.map((day, index) => {
    let top = HEIGHT;
    const parts = series.map(({ at }, number) => {
      const tall = (at(day) / most) * HEIGHT;
      top -= tall;
      return (
        tall > 0 &&
        svg("rect", { class: `usage-bar series-${number}`, x: index * 10 + 1.5, y: top, width: 7, height: tall })
      );
    });
    const lines = series.filter(({ at }) => at(day)).map(({ label, at }) => `${label}: ${formatNumber(at(day))}`);
    return svg(
      "g",
      {},
      svg("title", {}, [`${dayName(day)}: ${formatNumber(total(day))}`, ...lines].join("\n")),
      svg("rect", { class: "usage-room", x: index * 10, y: 0, width: 10, height: HEIGHT }),
      parts,
    );
  });
  return h(
    "div",
    { class: "stack-small" },
    h("p", { class: "small faint" }, t("usage.most", { most: formatNumber(most) })),
    svg(
      "svg",
      {
        viewBox: `0 0 ${days.length * 10} ${HEIGHT}`,
        preserveAspectRatio: "none",
        role: "img",
        "aria-label": t("usage.chart", { most: formatNumber(most) }),
      },
      bars,
    ),
    h(
      "div",
      { class: "row row-apart small faint" },
      h("span", {}, dayName(days[0])),
      h("span", {}, dayName(days.at(-1))),
    ),
    h(
      "ul",
      { class: "usage-legend small" },
      series.map(({ label }, number) =>
        h(
          "li",
          {},
          h("span", { class: `usage-key series-${number}`, "aria-hidden": "true" }),
          h("span", { class: "wrap" }, label),
        ),
      ),
    ),
  );
}
