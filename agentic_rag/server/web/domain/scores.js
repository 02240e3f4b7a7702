// The scores of a search: each passage with its scores, in the fused order, and the threshold as a line across them.

import { h, replace } from "../dom.js";
import { formatNumber, formatPercent, t } from "../i18n.js";
import { badge } from "../ui.js";
import { openDocument } from "./document.js";

const LEGS = ["lexical", "dense", "fused"];

/** Return the view of a search: an element with `setThreshold(value)`. It moves the line and updates which passages the
 * answer would have, without a new search. */
export function scoresView(domainId, retrieval) {
  const asked = { topK: retrieval.topK, threshold: retrieval.threshold ?? 0 }; // old records lack it
  const hitChunks = new Set(retrieval.hits.flatMap((hit) => hit.sentences.map((sentence) => sentence.chunkId)));
  const inHit = (candidate) => candidate.hit !== undefined || hitChunks.has(candidate.chunkId);
  const largest = Object.fromEntries(
    LEGS.map((leg) => [leg, Math.max(0, ...retrieval.candidates.map((candidate) => candidate[leg] ?? 0))]),
  );
  let threshold = asked.threshold;
  const rows = h("ol", { class: "scores" });
  const summary = h("p", { class: "small soft", role: "status" });
  /** Return "seen" if the answer would have the passage, or the reason why not. `at`: the rank of the passage among
   * those above the threshold. */
  const seenAt = (candidate, at) => {
    if (candidate.relevanceScore < threshold) return "below";
    if (inHit(candidate)) return "seen";
    // A lower threshold than that of the search adds passages that the search had cut off.
    const asAsked = threshold >= asked.threshold;
    return !asAsked && asked.topK && at < asked.topK ? "seen" : "beyond";
  };
  const draw = () => {
    const above = retrieval.candidates.filter((candidate) => candidate.relevanceScore >= threshold);
    const places = new Map(above.map((candidate, at) => [candidate.chunkId, at]));
    const verdicts = retrieval.candidates.map((candidate) =>
      seenAt(candidate, places.get(candidate.chunkId) ?? Infinity),
    );
    rows.style.setProperty("--threshold", threshold);
    [...rows.children].forEach((row, at) => row.mark(verdicts[at]));
    summary.textContent = t("retrieval.seenCount", {
      count: verdicts.filter((verdict) => verdict === "seen").length,
      of: retrieval.candidates.length,
    });
  };
  replace(
    rows,
    retrieval.candidates.map((candidate, at) => candidateRow(domainId, candidate, at, largest)),
  );
  const how = h("p", { class: "small soft" }, [
    h("span", {}, t(`retrieval.mode.${retrieval.mode}`)),
    retrieval.mode === "hybrid" &&
      h("span", {}, ` · ${t("retrieval.denseWeight", { share: formatPercent(retrieval.denseWeight) })}`),
    h("span", {}, ` · ${t("retrieval.took", { ms: formatNumber(retrieval.tookMs, { maximumFractionDigits: 1 }) })}`),
  ]);
  const element = h(
    "div",
    { class: "stack-small" },
    how,
    retrieval.note && h("p", { class: "small soft" }, retrieval.note),
    retrieval.incomplete && h("p", { class: "small bad" }, retrieval.incomplete),
    summary,
    legend(),
    rows,
  );
  element.setThreshold = (value) => {
    threshold = value;
    draw();
  };
  draw();
  return element;
}

function legend() {
  const part = (name) => h("span", { class: `score-key score-${name}` }, t(`retrieval.leg.${name}`));
  return h(
    "div",
    { class: "row small soft" },
    [...LEGS, "relevance"].map(part),
    h("span", { class: "score-key score-line" }, t("retrieval.thresholdLine")),
  );
}

function candidateRow(domainId, candidate, at, largest) {
  const verdict = h("span", {});
  const gone = candidate.documentId === undefined;
  const name = h(
    "span",
    { class: "strong wrap", dir: "auto" },
    gone ? t("retrieval.gone") : [candidate.documentName, ...candidate.headingPath].join(" › "),
  );
  const open = h(
    "button",
    {
      type: "button",
      class: "row-name",
      disabled: gone,
      onclick: () =>
        openDocument(
          domainId,
          { id: candidate.documentId, name: candidate.documentName, status: "indexed" },
          { chunkId: candidate.chunkId },
        ),
    },
    name,
  );
  const snippet = h("p", { class: "small soft score-text", dir: "auto" }, candidate.snippet);
  const reranked =
    candidate.reranked !== undefined &&
    h(
      "p",
      { class: "small faint" },
      t("retrieval.reranked", {
        rank: candidate.rerankedRank,
        score: formatNumber(candidate.reranked, { maximumFractionDigits: 3 }),
      }),
    );
  const bar = (leg, value, share, rank) =>
    h(
      "div",
      { class: `score-bar score-${leg}`, style: { "--share": share ?? 0 } },
      h("span", { class: "visually-hidden" }, t(`retrieval.leg.${leg}`)),
      h(
        "span",
        { class: "score-value" },
        value === null || value === undefined
          ? t("retrieval.noScore")
          : formatNumber(value, { maximumFractionDigits: 3 }),
      ),
      rank !== undefined && h("span", { class: "score-place", title: t("retrieval.rank", { rank }) }, `#${rank}`),
    );
  const bars = h(
    "div",
    { class: "score-bars" },
    LEGS.map((leg) =>
      bar(
        leg,
        candidate[leg],
        largest[leg] ? Math.max(0, candidate[leg] ?? 0) / largest[leg] : 0,
        candidate[`${leg}Rank`],
      ),
    ),
    bar("relevance", candidate.relevanceScore, candidate.relevanceScore),
  );
  const row = h(
    "li",
    { class: "score" },
    h(
      "div",
      { class: "score-head" },
      h("span", { class: "score-rank mono faint" }, at + 1),
      h("div", { class: "grow" }, open, snippet, reranked),
      verdict,
    ),
    bars,
  );
  row.mark = (state) => {
    row.classList.toggle("score-unseen", state !== "seen");
    replace(verdict, badge(t(`retrieval.verdict.${state}`), state === "seen" ? "ok" : ""));
  };
  return row;
}
