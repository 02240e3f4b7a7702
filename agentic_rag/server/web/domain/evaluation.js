// The evaluation of a domain: its cases and runs, two runs compared, and the drafts of cases and changes.

import { api, apiFile } from "../api.js";
import { h, replace, svg } from "../dom.js";
import { inWords, loadSentences } from "../errors/text.js";
import { formatAgo, formatDate, formatDuration, formatNumber, formatPercent, t } from "../i18n.js";
import { icon } from "../icons.js";
import { badge, button, confirmLoss, emptyState, loadInto, menu, notice, saveFile, table, tabLinks, toast, toastError } from "../ui.js";
import { openCase } from "./case-dialog.js";

await loadSentences();

const POLL = 700;
const RUNS = 60;
const SHOWN = 30;
const SCORING = ["planned", "waiting", "stopping"];
const ENDED = ["done", "stopped", "failed"];
/** Whether a run goes on, or the batch that scores its answers does. */
const isUnderWay = (run) => !ENDED.includes(run.state) || SCORING.includes(run.scoring);
const GLYPHS = { passed: "check", failed: "alert", gone: "minus", unknown: "info", unchecked: "minus", none: "minus" };
const KINDS = { passed: "ok", failed: "bad", gone: "off", unknown: "wait", unchecked: "off", none: "off" };
const ATTENTION = ["failed", "unknown", "gone", "none", "passed", "unchecked"];

export async function show(panel, { domain, rest, app, place }) {
  const base = `/api/domains/${encodeURIComponent(domain.id)}/evaluation`;
  let left = false;
  let turn = 0;
  let shown = rest;

  async function draw(parts) {
    shown = parts ?? [];
    const [view, ...more] = shown;
    turn += 1;
    const body = h("div", {});
    const views = { compare: drawCompare, drafts: drawDrafts, run: drawRun };
    const load = async () => {
      const [summary, { items: changes }] = await Promise.all([api("GET", base), api("GET", `${base}/drafts`, { query: { limit: 100 } })]);
      return { summary, changes };
    };
    await loadInto(panel, load, async (known) => {
      const { held, cases } = known.summary;
      const tabs = [
        { key: "cases", label: t("evaluation.casesAndRuns"), href: place.href() },
        { key: "compare", label: t("evaluation.compare"), href: place.href("compare"), count: held ? t("evaluation.heldCount", { count: held }) : undefined },
        { key: "drafts", label: t("evaluation.drafts"), href: place.href("drafts"), count: cases.draft || undefined },
      ];
      await (views[view] ?? drawCases)(body, known, more);
      return h("div", { class: "stack evaluation" }, tabLinks(t("evaluation.parts"), tabs, views[view] && view !== "run" ? view : "cases"), body);
    });
  }

  /** Load what is shown again after an action: another view than that of the action, if the reader went on meanwhile. */
  const redraw = () => (left ? undefined : draw(shown));

  // -- cases and runs ----------------------------------------------------------------------------------------

  async function drawCases(body, { summary, changes }) {
    const load = async () => {
      const [cases, runs] = await Promise.all([api("GET", `${base}/cases`), api("GET", `${base}/runs`, { query: { limit: RUNS } })]);
      return { cases: cases.items.filter((each) => each.state !== "draft"), runs: runs.items };
    };
    await loadInto(body, load, ({ cases, runs }) => {
      const add = async () => (await openCase(base, domain, null)) && redraw();
      const drafts = summary.cases.draft;
      const more = menu(t("evaluation.more"), [
        { label: t("evaluation.importCsv"), icon: "upload", act: importCsv },
        { label: t("evaluation.suggest"), icon: "thought", act: suggest },
        cases.length > 0 && { label: t("evaluation.exportCsv"), icon: "download", act: exportCsv },
        cases.length > 0 && { label: t("evaluation.runAnswers"), icon: "chat", act: () => start("answers") },
      ].filter(Boolean));
      const actions = h("div", { class: "row" },
        cases.length > 0 && more,
        button(t("evaluation.addCase"), { kind: cases.length || drafts ? "" : "primary", icon: "add", onclick: add }),
        cases.length > 0 && button(t("evaluation.runNow"), { kind: "primary", onclick: () => start("retrieval") }),
        !cases.length && more,
      );
      if (!cases.length && drafts) actions.append(h("a", { class: "button button-primary", href: place.href("drafts") }, t("evaluation.reviewDrafts", { count: drafts })));
      if (!cases.length) return h("div", { class: "stack" }, emptyState(t("evaluation.none"), t("evaluation.noneText"), { icon: "check", actions: [actions] }));
      const own = runs.filter((each) => !each.draftId && each.state === "done");
      return h("div", { class: "stack" },
        h("div", { class: "row row-apart" }, h("p", { class: "lead" }, verdictOf(runs, summary)), actions),
        running(runs),
        own.length > 0 && chart(own, changes),
        h("section", { class: "stack-small", "aria-label": t("evaluation.cases") }, h("h2", {}, t("evaluation.cases")), caseTable(cases)),
        h("section", { class: "stack-small", "aria-label": t("evaluation.runs") }, h("h2", {}, t("evaluation.runs")), runTable(runs)),
      );
    });
  }

  // The summary was loaded before the runs, so a run may have ended in between. It still knows a run that the newest
  // runs of drafts pushed out of the list.
  function verdictOf(runs, summary) {
    const last = (tier) => runs.find((each) => each.tier === tier && !each.draftId && each.endedAt) ?? summary[tier];
    const answers = last("answers");
    const run = answers?.state === "done" ? answers : last("retrieval");
    if (!run || !run.endedAt) return t("evaluation.notRun");
    const judged = run.passed + run.failed;
    const said = t(`evaluation.verdict.${run.tier}`, { passed: run.passed, judged, when: formatAgo(run.endedAt) });
    const cannot = run.gone + run.unknown;
    return cannot ? `${said} ${t("evaluation.cannot", { count: cannot })}` : said;
  }

  function running(runs) {
    const active = runs.find((each) => !ENDED.includes(each.state));
    if (!active) return null;
    const words = h("span", { role: "status" });
    const stop = button(t("evaluation.stop"), { icon: "stop", onclick: async () => void (await api("POST", `${base}/runs/${active.id}/stop`)) });
    const line = h("div", { class: "row notice notice-info" }, words, stop);
    const tell = (run) => (words.textContent = t("evaluation.running", { tier: t(`evaluation.tier.${run.tier}`), done: run.done, total: run.total }));
    tell(active);
    follow(active, tell).catch(toastError);
    return line;
  }

  async function follow(run, tell) {
    const own = turn;
    const isShown = () => !left && own === turn;
    let latest = run;
    while (isShown() && isUnderWay(latest)) {
      await new Promise((done) => setTimeout(done, POLL));
      try {
        if (!document.hidden) latest = await api("GET", `${base}/runs/${run.id}`);
      } catch (error) {
        if (!error.isOffline) throw error; // a server that is away is asked again
      }
      tell(latest);
    }
    if (isShown()) await redraw();
  }

  async function start(tier) {
    await api("POST", `${base}/runs`, { body: { tier } });
    await redraw();
  }

  function caseTable(cases) {
    const worst = (each) => each.last.answers ?? each.last.retrieval ?? { outcome: "none", reason: "", rank: null, seconds: null };
    const rows = cases.toSorted((a, b) => ATTENTION.indexOf(worst(a).outcome) - ATTENTION.indexOf(worst(b).outcome));
    const open = async (each) => (await openCase(base, domain, each)) && redraw();
    return table(t("evaluation.cases"), [
      { label: t("evaluation.case"), cell: (each) => h("button", { type: "button", class: "row-name", dir: "auto", onclick: () => open(each).catch(toastError) }, each.questions.at(-1), each.state === "off" && " ", each.state === "off" && badge(t("evaluation.off"))) },
      { label: t("evaluation.expected"), cell: (each) => h("span", { class: "soft wrap", dir: "auto" }, expectation(each.expect)) },
      { label: t("evaluation.lastRun"), cell: (each) => state(worst(each)) },
      { label: t("evaluation.rank"), align: "end", cell: (each) => (worst(each).rank ? formatNumber(worst(each).rank) : "–") },
      { label: t("evaluation.time"), align: "end", cell: (each) => (worst(each).seconds === null ? "–" : formatDuration(worst(each).seconds * 1000)) },
      { label: t("evaluation.from"), cell: (each) => h("span", { class: "soft" }, t(`evaluation.origin.${each.origin}`)) },
    ], rows);
  }

  function runTable(runs) {
    const own = runs.filter((each) => !each.draftId);
    const shown = own.slice(0, SHOWN);
    return table(t("evaluation.runs"), [
      { label: t("evaluation.when"), cell: (each) => h("a", { href: place.href("run", each.id), title: formatDate(each.createdAt) }, formatAgo(each.createdAt)) },
      { label: t("evaluation.tier"), cell: (each) => t(`evaluation.tier.${each.tier}`) },
      { label: t("evaluation.result"), cell: (each) => h("span", {}, t("evaluation.passedOf", { passed: each.passed, judged: each.passed + each.failed }), each.state !== "done" && " ", each.state !== "done" && badge(t(`evaluation.state.${each.state}`))) },
      { label: t("evaluation.before"), cell: (each) => previous(own, each) },
      { label: t("evaluation.label"), cell: (each) => h("span", { class: "soft wrap", dir: "auto" }, inWords(each.reason) || each.label) },
    ], shown, { empty: h("p", { class: "soft" }, t("evaluation.noRuns")) });
  }

  function previous(runs, run) {
    const before = runs.find((each) => each.tier === run.tier && each.createdAt < run.createdAt && each.state === "done");
    return before && run.state === "done" ? h("a", { href: place.href("compare", before.id, run.id) }, t("evaluation.compareWith")) : "–";
  }

  async function importCsv() {
    const [file] = await new Promise((done) => {
      const chooser = h("input", { type: "file", accept: ".csv,text/csv" });
      chooser.addEventListener("change", () => done([...chooser.files]));
      chooser.addEventListener("cancel", () => done([]));
      chooser.click();
    });
    if (!file) return;
    try {
      const made = await api("POST", `${base}/cases/import`, { body: new Blob([file], { type: "text/csv" }) });
      const problems = made.problems.map((each) => `${each.path}: ${each.message}`);
      toast([t("evaluation.imported", { added: made.added, changed: made.changed }), ...problems.slice(0, 5)].join(" · "), { kind: problems.length ? "error" : "" });
      await redraw();
    } catch (error) {
      toastError(error);
    }
  }

  async function suggest() {
    toast(t("evaluation.suggesting"));
    try {
      const { items } = await api("POST", `${base}/cases/suggest`, { body: { count: 10 } });
      toast(t("evaluation.suggested", { count: items.length }));
      if (!left) app.navigate(place.href("drafts"));
    } catch (error) {
      toastError(error);
    }
  }

  async function exportCsv() {
    const found = await apiFile(`${base}/cases`, { query: { format: "csv" } });
    saveFile("cases.csv", "text/csv", found);
  }

  // -- one run -----------------------------------------------------------------------------------------------

  async function drawRun(body, _known, [id]) {
    const load = async () => ({ run: await api("GET", `${base}/runs/${encodeURIComponent(id)}`), results: (await api("GET", `${base}/runs/${encodeURIComponent(id)}/results`)).items });
    await loadInto(body, load, ({ run, results }) => {
      if (isUnderWay(run)) follow(run, () => {}).catch(toastError);
      return h("div", { class: "stack" },
      h("p", {}, h("a", { class: "quiet-link", href: place.href() }, t("evaluation.back"))),
      h("p", { class: "lead" }, t("evaluation.passedOf", { passed: run.passed, judged: run.passed + run.failed }), " · ", t(`evaluation.tier.${run.tier}`), " · ", formatDate(run.createdAt)),
      h("p", { class: "small soft mono wrap" }, run.imageId),
      run.reason && notice("info", inWords(run.reason)),
      SCORING.includes(run.scoring) && scoringLine(run),
      results.map((each) => h("section", { class: "pair", "aria-label": each.question }, h("h2", { dir: "auto" }, each.question), h("p", {}, state(each)), side(each))),
      );
    });
  }

  /** The state of the batch that scores a run's answers, with a button that stops it. */
  function scoringLine(run) {
    const words = h("span", { role: "status" }, t(`evaluation.scoring.${run.scoring}`));
    const stop = button(t("evaluation.stop"), { icon: "stop", onclick: async () => {
      const stopped = await api("POST", `${base}/runs/${run.id}/stop`);
      words.textContent = t(`evaluation.scoring.${stopped.scoring}`);
      stop.remove();
    } });
    return h("div", { class: "row notice notice-info" }, words, run.scoring !== "stopping" && stop);
  }

  // -- comparisons -------------------------------------------------------------------------------------------

  async function drawCompare(body, { changes }, [before, after]) {
    if (before && after) return drawPair(body, before, after, changes.find((each) => each.beforeRun === before && each.afterRun === after));
    const held = changes.filter((each) => each.state === "held");
    const rest = changes.filter((each) => each.state !== "held");
    const row = (each) => h("li", { class: "rows-item" },
      h("div", { class: "grow" }, h("a", { class: "row-name", dir: "auto", href: place.href("compare", each.beforeRun, each.afterRun) }, each.label), h("div", { class: "faint small fact-line" }, h("span", {}, inWords(each.decision.sentence) ?? t("evaluation.trying")), h("span", { title: formatDate(each.createdAt) }, formatAgo(each.createdAt)), h("span", { dir: "auto" }, each.author))),
      h("div", { class: "rows-end" }, badge(t(`evaluation.draft.${each.state}`), { held: "bad", warned: "wait" }[each.state])));
    replace(body, h("div", { class: "stack" },
      held.length > 0 && h("section", { class: "stack-small", "aria-label": t("evaluation.heldChanges") }, h("h2", {}, t("evaluation.heldChanges")), h("ul", { class: "rows" }, held.map(row))),
      rest.length > 0 && h("section", { class: "stack-small", "aria-label": t("evaluation.triedChanges") }, h("h2", {}, t("evaluation.triedChanges")), h("ul", { class: "rows" }, rest.map(row))),
      !changes.length && emptyState(t("evaluation.noChanges"), t("evaluation.noChangesText"), { icon: "history" }),
    ));
    return undefined;
  }

  async function drawPair(body, before, after, change) {
    const load = () => api("GET", `${base}/comparison`, { query: { before, after } });
    await loadInto(body, load, (found) => h("div", { class: "stack" },
      h("section", { class: `verdict verdict-${found.decision}`, "aria-label": t("evaluation.verdict") },
        icon(found.decision === "pass" ? "check" : "alert"),
        h("div", { class: "grow" }, h("p", { class: "lead" }, `${t(`evaluation.decision.${found.decision}`)}: ${inWords(change?.decision.sentence ?? found.sentence)}`), change && h("p", { class: "soft", dir: "auto" }, t("evaluation.draftedBy", { label: change.label, author: change.author, when: formatAgo(change.createdAt) }))),
        change && !["applied", "dropped", "trying"].includes(change.state) && h("div", { class: "row" },
          change.mayApply && button(t("evaluation.applyAnyway"), { onclick: () => decide(change, "apply") }),
          button(t("evaluation.drop"), { kind: "primary", onclick: () => decide(change, "drop") }))),
      [...found.worse, ...found.better].map((each, at) => pair(each, at, found)),
    ));
  }

  async function decide(change, verb) {
    if (verb === "apply" && !(await confirmLoss(t("evaluation.applyTitle"), inWords(change.decision.sentence) ?? change.label, t("evaluation.applyAnyway")))) return;
    await api("POST", `${base}/drafts/${change.id}/${verb}`);
    if (!left) app.navigate(place.href("compare"));
  }

  function pair(each, at, found) {
    const number = at < found.worse.length ? t("evaluation.worseOf", { at: at + 1, count: found.worse.length }) : t("evaluation.better");
    const column = (title, results) => h("div", { class: "stack-small" }, h("h3", { dir: "auto" }, title), results.map(side));
    return h("section", { class: "pair", "aria-label": each.question }, h("h2", { dir: "auto" }, each.question, h("span", { class: "soft small" }, ` ${number}`)),
      h("div", { class: "pair-sides" }, column(found.before.label || t("evaluation.now"), each.before), column(found.after.label || t("evaluation.changed"), each.after)));
  }

  // -- drafts of cases ---------------------------------------------------------------------------------------

  async function drawDrafts(body) {
    await loadInto(body, () => api("GET", `${base}/cases`, { query: { state: "draft" } }), ({ items }) => {
      if (!items.length) return emptyState(t("evaluation.noDrafts"), t("evaluation.noDraftsText"), { icon: "chat" });
      const open = async (each) => (await openCase(base, domain, each)) && redraw();
      const drop = async (each) => {
        await api("DELETE", `${base}/cases/${each.id}`);
        await redraw();
      };
      return h("ul", { class: "rows", "aria-label": t("evaluation.drafts") }, items.map((each) => h("li", { class: "rows-item" },
        h("div", { class: "grow" }, h("button", { type: "button", class: "row-name", dir: "auto", onclick: () => open(each).catch(toastError) }, each.questions.at(-1)), h("div", { class: "faint small fact-line" }, h("span", {}, t(`evaluation.origin.${each.origin}`)), each.source.reason && h("span", { dir: "auto" }, each.source.reason), h("span", { title: formatDate(each.createdAt) }, formatAgo(each.createdAt)))),
        h("div", { class: "rows-end" }, button(t("evaluation.review"), { onclick: () => open(each) }), button(t("evaluation.discard"), { kind: "quiet", icon: "trash", compact: true, onclick: () => drop(each) })))));
    });
  }

  await draw(rest);
  return {
    leave: () => {
      left = true;
      turn += 1;
    },
    update: draw,
  };
}

function state({ outcome, reason }) {
  return h("span", { class: `state state-${KINDS[outcome]}`, title: reason || null }, icon(GLYPHS[outcome]), t(`evaluation.outcome.${outcome}`));
}

/** What a result is based on: the answer or the passages found, then each expectation with whether it was met. */
function side(result) {
  const { answer, passages = [], citations = [], scores = {} } = result.observed;
  const evidence = answer === undefined ? passages : citations;
  return h("div", { class: "stack-small" },
    answer !== undefined && h("p", { class: "say", dir: "auto" }, answer || t("evaluation.noAnswer")),
    evidence.length > 0 && h("ol", { class: "small soft passages" }, evidence.map((each) => h("li", { dir: "auto" }, [each.document, each.page && t("evaluation.page", { page: each.page }), each.section, each.cells].filter(Boolean).join(", "), ": ", h("q", {}, each.text)))),
    h("ul", { class: "checks" }, result.checks.map((each) => h("li", { class: each.passed ? "yes" : "no", dir: "auto" }, icon(each.passed ? "check" : "close"), h("span", {}, check(each))))),
    Object.keys(scores).length > 0 && h("dl", { class: "small scores" }, Object.entries(scores).map(([name, { score, reason }]) => [h("dt", { dir: "auto" }, t("evaluation.score", { name, score: score ?? "–" })), h("dd", { class: "soft", dir: "auto" }, reason)])),
    result.reason && h("p", { class: "small soft", dir: "auto" }, inWords(result.reason)),
  );
}

function check({ kind, expected, passed, found }) {
  const said = [t(`evaluation.check.${kind}`), expected].filter(Boolean).join(" ");
  return !passed && found ? t("evaluation.checkFound", { said, found }) : said;
}

/** What a case expects, in a few words. */
export function expectation(expect) {
  const place = ({ document, page, section, cells }) => [document, page && t("evaluation.page", { page }), section, cells].filter(Boolean).join(", ");
  const text = (each) => (typeof each === "string" ? `“${each}”` : Array.isArray(each) ? each.map((one) => `“${one}”`).join(" / ") : [each.number, each.tolerance && `± ${each.tolerance}`, each.unit].filter((one) => one || one === 0).join(" "));
  return [
    ...(expect.cites ?? []).map((each) => `${t("evaluation.check.cites")} ${place(each)}`),
    ...(expect.contains ?? []).map((each) => `${t("evaluation.check.contains")} ${text(each)}`),
    ...(expect.mustNotContain ?? []).map((each) => `${t("evaluation.check.mustNotContain")} “${each}”`),
    expect.declines === true && t("evaluation.check.declines"),
    expect.declines === false && t("evaluation.check.answers"),
    ...(expect.calls ?? []).map((each) => `${t("evaluation.check.calls")} ${each}`),
    ...(expect.mustNotCall ?? []).map((each) => `${t("evaluation.check.mustNotCall")} ${each}`),
    expect.language && `${t("evaluation.check.language")} ${expect.language}`,
    expect.maxSeconds && `${t("evaluation.check.maxSeconds")} ${expect.maxSeconds}`,
    expect.maxTokens && `${t("evaluation.check.maxTokens")} ${expect.maxTokens}`,
  ].filter(Boolean).join(" · ");
}

/** The share of cases as expected over time, a line for each tier; held and warned changes are marked below. */
function chart(runs, changes) {
  const [width, height, top, foot] = [880, 150, 24, 44];
  const times = runs.map((each) => Date.parse(each.createdAt));
  const marks = changes.filter((each) => ["held", "warned"].includes(each.state) && Date.parse(each.createdAt) >= Math.min(...times)).slice(0, 6);
  const [first, last] = [Math.min(...times), Math.max(...times, ...marks.map((each) => Date.parse(each.createdAt)))];
  const share = (run) => (run.passed + run.failed ? run.passed / (run.passed + run.failed) : 1);
  const least = Math.floor(Math.min(0.9, ...runs.map(share)) * 10) / 10;
  const x = (time) => 44 + (last === first ? 1 : (time - first) / (last - first)) * 690;
  const y = (value) => top + ((1 - value) / (1 - least)) * (height - top);
  const grid = [1, (1 + least) / 2, least].map((value) => [svg("path", { class: "chart-grid", d: `M44 ${y(value)}H734` }), svg("text", { class: "chart-axis", x: 38, y: y(value) + 4, "text-anchor": "end" }, formatPercent(value))]);
  const lines = ["retrieval", "answers"].map((tier) => {
    const own = runs.filter((each) => each.tier === tier).toReversed();
    if (!own.length) return null;
    const points = own.map((each) => [x(Date.parse(each.createdAt)), y(share(each))]);
    const end = points.at(-1);
    const name = t("evaluation.chartEnd", { tier: t(`evaluation.tier.${tier}`), passed: own.at(-1).passed, judged: own.at(-1).passed + own.at(-1).failed });
    return svg("g", { class: `chart-${tier}` }, svg("polyline", { points: points.map((each) => each.join(",")).join(" ") }), points.map(([at, level]) => svg("circle", { cx: at, cy: level, r: 3.5 })), svg("text", { class: "chart-label", x: end[0] + 10, y: end[1] + (tier === "answers" ? 14 : 2) }, name));
  });
  const events = marks.map((each, at) => {
    const place = x(Date.parse(each.createdAt));
    const low = height + 10;
    const shape = each.state === "held" ? svg("rect", { class: "chart-held", x: place - 4.5, y: low - 4.5, width: 9, height: 9 }) : svg("path", { class: "chart-warned", d: `M${place} ${low - 5}l6 10h-12z` });
    return svg("g", {}, shape, svg("text", { class: "chart-axis", x: Math.min(place, 700), y: low + 18 + (at % 2) * 13, "text-anchor": "middle" }, t(`evaluation.mark.${each.state}`, { label: each.label.slice(0, 40) })));
  });
  const words = t("evaluation.chart", { count: runs.length, least: formatPercent(Math.min(...runs.map(share))) });
  return h("figure", { class: "evaluation-chart" }, svg("svg", { viewBox: `0 0 ${width} ${height + foot}`, role: "img", "aria-label": words }, grid, lines, events));
}
