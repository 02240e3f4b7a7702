// The evaluation of a domain: its cases and runs, a comparison of two runs, and the drafts of cases and changes.

import { api, apiFile } from "../api.js";
import { h, replace, svg } from "../dom.js";
import { inWords, loadSentences } from "../errors/text.js";
import { formatAgo, formatDate, formatDuration, formatNumber, formatPercent, t } from "../i18n.js";
import { icon } from "../icons.js";
import {
  badge,
  button,
  confirmLoss,
  emptyState,
  loadInto,
  menu,
  notice,
  saveFile,
  table,
  tabLinks,
  toast,
  toastError,
} from "../ui.js";
import { openCase } from "./case-dialog.js";

await loadSentences();

const POLL = 700;
const RUNS = 60;
const SHOWN = 30;
const SCORING = ["planned", "waiting", "stopping"];
const ENDED = ["done", "stopped", "failed"];
/** Return whether a run, or the batch that scores its answers, is in progress. */
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
    const [view, ...parameters] = shown;
    turn += 1;
    const body = h("div", {});
    const views = { compare: drawCompare, drafts: drawDrafts, run: drawRun };
    const load = async () => {
      const [summary, { items: changes }] = await Promise.all([
        api("GET", base),
        api("GET", `${base}/drafts`, { query: { limit: 100 } }),
      ]);
      return { summary, changes };
    };
    await loadInto(panel, load, async (loaded) => {
      const { held, cases } = loaded.summary;
      const tabs = [
        { key: "cases", label: t("evaluation.casesAndRuns"), href: place.href() },
        {
          key: "compare",
          label: t("evaluation.compare"),
          href: place.href("compare"),
          count: held ? t("evaluation.heldCount", { count: held }) : undefined,
        },
        { key: "drafts", label: t("evaluation.drafts"), href: place.href("drafts"), count: cases.draft || undefined },
      ];
      await (views[view] ?? drawCases)(body, loaded, parameters);
      return h(
        "div",
        { class: "stack evaluation" },
        tabLinks(t("evaluation.parts"), tabs, views[view] && view !== "run" ? view : "cases"),
        body,
      );
    });
  }

  /** Load the current view again after an action. This may be another view if the user has changed it since. */
  const redraw = () => (left ? undefined : draw(shown));

  // -- cases and runs ----------------------------------------------------------------------------------------

  async function drawCases(body, { summary, changes }) {
    const load = async () => {
      const [cases, runs] = await Promise.all([
        api("GET", `${base}/cases`),
        api("GET", `${base}/runs`, { query: { limit: RUNS } }),
      ]);
      return { cases: cases.items.filter((item) => item.state !== "draft"), runs: runs.items };
    };
    await loadInto(body, load, ({ cases, runs }) => {
      const add = async () => (await openCase(base, domain, null)) && redraw();
      const drafts = summary.cases.draft;
      const moreMenu = menu(
        t("evaluation.more"),
        [
          { label: t("evaluation.importCsv"), icon: "upload", act: importCsv },
          { label: t("evaluation.suggest"), icon: "thought", act: suggest },
          cases.length > 0 && { label: t("evaluation.exportCsv"), icon: "download", act: exportCsv },
          cases.length > 0 && { label: t("evaluation.runAnswers"), icon: "chat", act: () => start("answers") },
        ].filter(Boolean),
      );
      const actions = h(
        "div",
        { class: "row" },
        cases.length > 0 && moreMenu,
        button(t("evaluation.addCase"), { kind: cases.length || drafts ? "" : "primary", icon: "add", onclick: add }),
        cases.length > 0 && button(t("evaluation.runNow"), { kind: "primary", onclick: () => start("retrieval") }),
        !cases.length && moreMenu,
      );
      if (!cases.length && drafts)
        actions.append(
          h(
            "a",
            { class: "button button-primary", href: place.href("drafts") },
            t("evaluation.reviewDrafts", { count: drafts }),
          ),
        );
      if (!cases.length)
        return h(
          "div",
          { class: "stack" },
          emptyState(t("evaluation.none"), t("evaluation.noneText"), { icon: "check", actions: [actions] }),
        );
      const finished = runs.filter((run) => !run.draftId && run.state === "done");
      return h(
        "div",
        { class: "stack" },
        h("div", { class: "row row-apart" }, h("p", { class: "lead" }, verdictOf(runs, summary)), actions),
        running(runs),
        finished.length > 0 && chart(finished, changes),
        h(
          "section",
          { class: "stack-small", "aria-label": t("evaluation.cases") },
          h("h2", {}, t("evaluation.cases")),
          caseTable(cases),
        ),
        h(
          "section",
          { class: "stack-small", "aria-label": t("evaluation.runs") },
          h("h2", {}, t("evaluation.runs")),
          runTable(runs),
        ),
      );
    });
  }

  // `summary` was loaded before `runs`, so a run in `runs` may have ended since. Only `summary` has the last run if
  // newer runs of drafts have displaced it from `runs`.
  function verdictOf(runs, summary) {
    const last = (tier) => runs.find((run) => run.tier === tier && !run.draftId && run.endedAt) ?? summary[tier];
    const answers = last("answers");
    const run = answers?.state === "done" ? answers : last("retrieval");
    if (!run || !run.endedAt) return t("evaluation.notRun");
    const judged = run.passed + run.failed;
    const verdict = t(`evaluation.verdict.${run.tier}`, { passed: run.passed, judged, when: formatAgo(run.endedAt) });
    const cannot = run.gone + run.unknown;
    return cannot ? `${verdict} ${t("evaluation.cannot", { count: cannot })}` : verdict;
  }

  function running(runs) {
    const active = runs.find((run) => !ENDED.includes(run.state));
    if (!active) return null;
    const words = h("span", { role: "status" });
    const stop = button(t("evaluation.stop"), {
      icon: "stop",
      onclick: async () => void (await api("POST", `${base}/runs/${active.id}/stop`)),
    });
    const line = h("div", { class: "row notice notice-info" }, words, stop);
    const tell = (run) =>
      (words.textContent = t("evaluation.running", {
        tier: t(`evaluation.tier.${run.tier}`),
        done: run.done,
        total: run.total,
      }));
    tell(active);
    follow(active, tell).catch(toastError);
    return line;
  }

  async function follow(run, tell) {
    const ownTurn = turn;
    const isShown = () => !left && ownTurn === turn;
    let latest = run;
    while (isShown() && isUnderWay(latest)) {
      await new Promise((done) => setTimeout(done, POLL));
      try {
        if (!document.hidden) latest = await api("GET", `${base}/runs/${run.id}`);
      } catch (error) {
        if (!error.isOffline) throw error; // if the server is unreachable, try again
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
    const worst = (testCase) =>
      testCase.last.answers ?? testCase.last.retrieval ?? { outcome: "none", reason: "", rank: null, seconds: null };
    const rows = cases.toSorted((a, b) => ATTENTION.indexOf(worst(a).outcome) - ATTENTION.indexOf(worst(b).outcome));
    const open = async (testCase) => (await openCase(base, domain, testCase)) && redraw();
    return table(
      t("evaluation.cases"),
      [
        {
          label: t("evaluation.case"),
          cell: (testCase) =>
            h(
              "button",
              { type: "button", class: "row-name", dir: "auto", onclick: () => open(testCase).catch(toastError) },
              testCase.questions.at(-1),
              testCase.state === "off" && " ",
              testCase.state === "off" && badge(t("evaluation.off")),
            ),
        },
        {
          label: t("evaluation.expected"),
          cell: (testCase) => h("span", { class: "soft wrap", dir: "auto" }, expectation(testCase.expect)),
        },
        { label: t("evaluation.lastRun"), cell: (testCase) => state(worst(testCase)) },
        {
          label: t("evaluation.rank"),
          align: "end",
          cell: (testCase) => (worst(testCase).rank ? formatNumber(worst(testCase).rank) : "–"),
        },
        {
          label: t("evaluation.time"),
          align: "end",
          cell: (testCase) => (worst(testCase).seconds === null ? "–" : formatDuration(worst(testCase).seconds * 1000)),
        },
        {
          label: t("evaluation.from"),
          cell: (testCase) => h("span", { class: "soft" }, t(`evaluation.origin.${testCase.origin}`)),
        },
      ],
      rows,
    );
  }

  function runTable(runs) {
    const ownRuns = runs.filter((run) => !run.draftId);
    const shown = ownRuns.slice(0, SHOWN);
    return table(
      t("evaluation.runs"),
      [
        {
          label: t("evaluation.when"),
          cell: (run) =>
            h("a", { href: place.href("run", run.id), title: formatDate(run.createdAt) }, formatAgo(run.createdAt)),
        },
        { label: t("evaluation.tier"), cell: (run) => t(`evaluation.tier.${run.tier}`) },
        {
          label: t("evaluation.result"),
          cell: (run) =>
            h(
              "span",
              {},
              t("evaluation.passedOf", { passed: run.passed, judged: run.passed + run.failed }),
              run.state !== "done" && " ",
              run.state !== "done" && badge(t(`evaluation.state.${run.state}`)),
            ),
        },
        { label: t("evaluation.before"), cell: (run) => previous(ownRuns, run) },
        {
          label: t("evaluation.label"),
          cell: (run) => h("span", { class: "soft wrap", dir: "auto" }, inWords(run.reason) || run.label),
        },
      ],
      shown,
      { empty: h("p", { class: "soft" }, t("evaluation.noRuns")) },
    );
  }

  function previous(runs, run) {
    const before = runs.find(
      (earlier) => earlier.tier === run.tier && earlier.createdAt < run.createdAt && earlier.state === "done",
    );
    return before && run.state === "done"
      ? h("a", { href: place.href("compare", before.id, run.id) }, t("evaluation.compareWith"))
      : "–";
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
      const imported = await api("POST", `${base}/cases/import`, { body: new Blob([file], { type: "text/csv" }) });
      const problems = imported.problems.map((problem) => `${problem.path}: ${problem.message}`);
      toast(
        [t("evaluation.imported", { added: imported.added, changed: imported.changed }), ...problems.slice(0, 5)].join(
          " · ",
        ),
        { kind: problems.length ? "error" : "" },
      );
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
    const csv = await apiFile(`${base}/cases`, { query: { format: "csv" } });
    saveFile("cases.csv", "text/csv", csv);
  }

  // -- one run -----------------------------------------------------------------------------------------------

  async function drawRun(body, _known, [id]) {
    const load = async () => ({
      run: await api("GET", `${base}/runs/${encodeURIComponent(id)}`),
      results: (await api("GET", `${base}/runs/${encodeURIComponent(id)}/results`)).items,
    });
    await loadInto(body, load, ({ run, results }) => {
      if (isUnderWay(run)) follow(run, () => {}).catch(toastError);
      return h(
        "div",
        { class: "stack" },
        h("p", {}, h("a", { class: "quiet-link", href: place.href() }, t("evaluation.back"))),
        h(
          "p",
          { class: "lead" },
          t("evaluation.passedOf", { passed: run.passed, judged: run.passed + run.failed }),
          " · ",
          t(`evaluation.tier.${run.tier}`),
          " · ",
          formatDate(run.createdAt),
        ),
        h("p", { class: "small soft mono wrap" }, run.imageId),
        run.reason && notice("info", inWords(run.reason)),
        SCORING.includes(run.scoring) && scoringLine(run),
        results.map((result) =>
          h(
            "section",
            { class: "pair", "aria-label": result.question },
            h("h2", { dir: "auto" }, result.question),
            h("p", {}, state(result)),
            side(result),
          ),
        ),
      );
    });
  }

  /** Return the state of the batch that scores a run's answers, with a button that stops it. */
  function scoringLine(run) {
    const words = h("span", { role: "status" }, t(`evaluation.scoring.${run.scoring}`));
    const stop = button(t("evaluation.stop"), {
      icon: "stop",
      onclick: async () => {
        const stopped = await api("POST", `${base}/runs/${run.id}/stop`);
        words.textContent = t(`evaluation.scoring.${stopped.scoring}`);
        stop.remove();
      },
    });
    return h("div", { class: "row notice notice-info" }, words, run.scoring !== "stopping" && stop);
  }

  // -- comparisons -------------------------------------------------------------------------------------------

  async function drawCompare(body, { changes }, [before, after]) {
    if (before && after)
      return drawPair(
        body,
        before,
        after,
        changes.find((change) => change.beforeRun === before && change.afterRun === after),
      );
    const held = changes.filter((change) => change.state === "held");
    const rest = changes.filter((change) => change.state !== "held");
    const row = (change) =>
      h(
        "li",
        { class: "rows-item" },
        h(
          "div",
          { class: "grow" },
          h(
            "a",
            { class: "row-name", dir: "auto", href: place.href("compare", change.beforeRun, change.afterRun) },
            change.label,
          ),
          h(
            "div",
            { class: "faint small fact-line" },
            h("span", {}, inWords(change.decision.sentence) ?? t("evaluation.trying")),
            h("span", { title: formatDate(change.createdAt) }, formatAgo(change.createdAt)),
            h("span", { dir: "auto" }, change.author),
          ),
        ),
        h(
          "div",
          { class: "rows-end" },
          badge(t(`evaluation.draft.${change.state}`), { held: "bad", warned: "wait" }[change.state]),
        ),
      );
    replace(
      body,
      h(
        "div",
        { class: "stack" },
        held.length > 0 &&
          h(
            "section",
            { class: "stack-small", "aria-label": t("evaluation.heldChanges") },
            h("h2", {}, t("evaluation.heldChanges")),
            h("ul", { class: "rows" }, held.map(row)),
          ),
        rest.length > 0 &&
          h(
            "section",
            { class: "stack-small", "aria-label": t("evaluation.triedChanges") },
            h("h2", {}, t("evaluation.triedChanges")),
            h("ul", { class: "rows" }, rest.map(row)),
          ),
        !changes.length && emptyState(t("evaluation.noChanges"), t("evaluation.noChangesText"), { icon: "history" }),
      ),
    );
    return undefined;
  }

  async function drawPair(body, before, after, change) {
    const load = () => api("GET", `${base}/comparison`, { query: { before, after } });
    await loadInto(body, load, (comparison) =>
      h(
        "div",
        { class: "stack" },
        h(
          "section",
          { class: `verdict verdict-${comparison.decision}`, "aria-label": t("evaluation.verdict") },
          icon(comparison.decision === "pass" ? "check" : "alert"),
          h(
            "div",
            { class: "grow" },
            h(
              "p",
              { class: "lead" },
              `${t(`evaluation.decision.${comparison.decision}`)}: ${inWords(change?.decision.sentence ?? comparison.sentence)}`,
            ),
            change &&
              h(
                "p",
                { class: "soft", dir: "auto" },
                t("evaluation.draftedBy", {
                  label: change.label,
                  author: change.author,
                  when: formatAgo(change.createdAt),
                }),
              ),
          ),
          change &&
            !["applied", "dropped", "trying"].includes(change.state) &&
            h(
              "div",
              { class: "row" },
              change.mayApply && button(t("evaluation.applyAnyway"), { onclick: () => decide(change, "apply") }),
              button(t("evaluation.drop"), { kind: "primary", onclick: () => decide(change, "drop") }),
            ),
        ),
        [...comparison.worse, ...comparison.better].map((result, at) => pair(result, at, comparison)),
      ),
    );
  }

  async function decide(change, verb) {
    if (
      verb === "apply" &&
      !(await confirmLoss(
        t("evaluation.applyTitle"),
        inWords(change.decision.sentence) ?? change.label,
        t("evaluation.applyAnyway"),
      ))
    )
      return;
    await api("POST", `${base}/drafts/${change.id}/${verb}`);
    if (!left) app.navigate(place.href("compare"));
  }

  function pair(result, at, comparison) {
    const number =
      at < comparison.worse.length
        ? t("evaluation.worseOf", { at: at + 1, count: comparison.worse.length })
        : t("evaluation.better");
    const column = (title, results) =>
      h("div", { class: "stack-small" }, h("h3", { dir: "auto" }, title), results.map(side));
    return h(
      "section",
      { class: "pair", "aria-label": result.question },
      h("h2", { dir: "auto" }, result.question, h("span", { class: "soft small" }, ` ${number}`)),
      h(
        "div",
        { class: "pair-sides" },
        column(comparison.before.label || t("evaluation.now"), result.before),
        column(comparison.after.label || t("evaluation.changed"), result.after),
      ),
    );
  }

  // -- drafts of cases ---------------------------------------------------------------------------------------

  async function drawDrafts(body) {
    await loadInto(
      body,
      () => api("GET", `${base}/cases`, { query: { state: "draft" } }),
      ({ items }) => {
        if (!items.length) return emptyState(t("evaluation.noDrafts"), t("evaluation.noDraftsText"), { icon: "chat" });
        const open = async (testCase) => (await openCase(base, domain, testCase)) && redraw();
        const drop = async (testCase) => {
          await api("DELETE", `${base}/cases/${testCase.id}`);
          await redraw();
        };
        return h(
          "ul",
          { class: "rows", "aria-label": t("evaluation.drafts") },
          items.map((item) =>
            h(
              "li",
              { class: "rows-item" },
              h(
                "div",
                { class: "grow" },
                h(
                  "button",
                  { type: "button", class: "row-name", dir: "auto", onclick: () => open(item).catch(toastError) },
                  item.questions.at(-1),
                ),
                h(
                  "div",
                  { class: "faint small fact-line" },
                  h("span", {}, t(`evaluation.origin.${item.origin}`)),
                  item.source.reason && h("span", { dir: "auto" }, item.source.reason),
                  h("span", { title: formatDate(item.createdAt) }, formatAgo(item.createdAt)),
                ),
              ),
              h(
                "div",
                { class: "rows-end" },
                button(t("evaluation.review"), { onclick: () => open(item) }),
                button(t("evaluation.discard"), {
                  kind: "quiet",
                  icon: "trash",
                  compact: true,
                  onclick: () => drop(item),
                }),
              ),
            ),
          ),
        );
      },
    );
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
  return h(
    "span",
    { class: `state state-${KINDS[outcome]}`, title: reason || null },
    icon(GLYPHS[outcome]),
    t(`evaluation.outcome.${outcome}`),
  );
}

/** Return the view of a result: the answer, its evidence (citations or passages found), and whether each expectation
 * was met. */
function side(result) {
  const { answer, passages = [], citations = [], scores = {} } = result.observed;
  const evidence = answer === undefined ? passages : citations;
  return h(
    "div",
    { class: "stack-small" },
    answer !== undefined && h("p", { class: "say", dir: "auto" }, answer || t("evaluation.noAnswer")),
    evidence.length > 0 &&
      h(
        "ol",
        { class: "small soft passages" },
        evidence.map((passage) =>
          h(
            "li",
            { dir: "auto" },
            [
              passage.document,
              passage.page && t("evaluation.page", { page: passage.page }),
              passage.section,
              passage.cells,
            ]
              .filter(Boolean)
              .join(", "),
            ": ",
            h("q", {}, passage.text),
          ),
        ),
      ),
    h(
      "ul",
      { class: "checks" },
      result.checks.map((expectation) =>
        h(
          "li",
          { class: expectation.passed ? "yes" : "no", dir: "auto" },
          icon(expectation.passed ? "check" : "close"),
          h("span", {}, check(expectation)),
        ),
      ),
    ),
    Object.keys(scores).length > 0 &&
      h(
        "dl",
        { class: "small scores" },
        Object.entries(scores).map(([name, { score, reason }]) => [
          h("dt", { dir: "auto" }, t("evaluation.score", { name, score: score ?? "–" })),
          h("dd", { class: "soft", dir: "auto" }, reason),
        ]),
      ),
    result.reason && h("p", { class: "small soft", dir: "auto" }, inWords(result.reason)),
  );
}

function check({ kind, expected, passed, found: observed }) {
  const words = [t(`evaluation.check.${kind}`), expected].filter(Boolean).join(" ");
  return !passed && observed ? t("evaluation.checkFound", { said: words, found: observed }) : words;
}

/** Return the expectations of a case in a few words. */
export function expectation(expect) {
  const place = ({ document, page, section, cells }) =>
    [document, page && t("evaluation.page", { page }), section, cells].filter(Boolean).join(", ");
  const text = (expected) =>
    typeof expected === "string"
      ? `“${expected}”`
      : Array.isArray(expected)
        ? expected.map((part) => `“${part}”`).join(" / ")
        : [expected.number, expected.tolerance && `± ${expected.tolerance}`, expected.unit]
            .filter((part) => part || part === 0)
            .join(" ");
  return [
    ...(expect.cites ?? []).map((cite) => `${t("evaluation.check.cites")} ${place(cite)}`),
    ...(expect.contains ?? []).map((part) => `${t("evaluation.check.contains")} ${text(part)}`),
    ...(expect.mustNotContain ?? []).map((part) => `${t("evaluation.check.mustNotContain")} “${part}”`),
    expect.declines === true && t("evaluation.check.declines"),
    expect.declines === false && t("evaluation.check.answers"),
    ...(expect.calls ?? []).map((call) => `${t("evaluation.check.calls")} ${call}`),
    ...(expect.mustNotCall ?? []).map((tool) => `${t("evaluation.check.mustNotCall")} ${tool}`),
    expect.language && `${t("evaluation.check.language")} ${expect.language}`,
    expect.maxSeconds && `${t("evaluation.check.maxSeconds")} ${expect.maxSeconds}`,
    expect.maxTokens && `${t("evaluation.check.maxTokens")} ${expect.maxTokens}`,
  ]
    .filter(Boolean)
    .join(" · ");
}

/** Return a chart of the share of passed cases over time, with a line for each tier. Held and warned changes are marked
 * below the lines. */
function chart(runs, changes) {
  const [width, height, top, foot] = [880, 150, 24, 44];
  const times = runs.map((run) => Date.parse(run.createdAt));
  const marks = changes
    .filter((change) => ["held", "warned"].includes(change.state) && Date.parse(change.createdAt) >= Math.min(...times))
    .slice(0, 6);
  const [first, last] = [Math.min(...times), Math.max(...times, ...marks.map((mark) => Date.parse(mark.createdAt)))];
  const share = (run) => (run.passed + run.failed ? run.passed / (run.passed + run.failed) : 1);
  const least = Math.floor(Math.min(0.9, ...runs.map(share)) * 10) / 10;
  const x = (time) => 44 + (last === first ? 1 : (time - first) / (last - first)) * 690;
  const y = (value) => top + ((1 - value) / (1 - least)) * (height - top);
  const grid = [1, (1 + least) / 2, least].map((value) => [
    svg("path", { class: "chart-grid", d: `M44 ${y(value)}H734` }),
    svg("text", { class: "chart-axis", x: 38, y: y(value) + 4, "text-anchor": "end" }, formatPercent(value)),
  ]);
  const lines = ["retrieval", "answers"].map((tier) => {
    const ofTier = runs.filter((run) => run.tier === tier).toReversed();
    if (!ofTier.length) return null;
    const points = ofTier.map((run) => [x(Date.parse(run.createdAt)), y(share(run))]);
    const end = points.at(-1);
    const name = t("evaluation.chartEnd", {
      tier: t(`evaluation.tier.${tier}`),
      passed: ofTier.at(-1).passed,
      judged: ofTier.at(-1).passed + ofTier.at(-1).failed,
    });
    return svg(
      "g",
      { class: `chart-${tier}` },
      svg("polyline", { points: points.map((point) => point.join(",")).join(" ") }),
      points.map(([at, level]) => svg("circle", { cx: at, cy: level, r: 3.5 })),
      svg("text", { class: "chart-label", x: end[0] + 10, y: end[1] + (tier === "answers" ? 14 : 2) }, name),
    );
  });
  const events = marks.map((mark, at) => {
    const place = x(Date.parse(mark.createdAt));
    const low = height + 10;
    const shape =
      mark.state === "held"
        ? svg("rect", { class: "chart-held", x: place - 4.5, y: low - 4.5, width: 9, height: 9 })
        : svg("path", { class: "chart-warned", d: `M${place} ${low - 5}l6 10h-12z` });
    return svg(
      "g",
      {},
      shape,
      svg(
        "text",
        { class: "chart-axis", x: Math.min(place, 700), y: low + 18 + (at % 2) * 13, "text-anchor": "middle" },
        t(`evaluation.mark.${mark.state}`, { label: mark.label.slice(0, 40) }),
      ),
    );
  });
  const words = t("evaluation.chart", { count: runs.length, least: formatPercent(Math.min(...runs.map(share))) });
  return h(
    "figure",
    { class: "evaluation-chart" },
    svg("svg", { viewBox: `0 0 ${width} ${height + foot}`, role: "img", "aria-label": words }, grid, lines, events),
  );
}
