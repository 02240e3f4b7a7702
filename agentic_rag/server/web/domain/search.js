// The search playground: a question, and its results with the domain's search settings or other values.

import { api } from "../api.js";
import { h, replace } from "../dom.js";
import { draft } from "../drafts.js";
import { formatNumber, t } from "../i18n.js";
import { button, emptyState, field, input, select, toastError } from "../ui.js";
import { scoresView } from "./scores.js";

export async function show(panel, { domain, place }) {
  const base = `/api/domains/${encodeURIComponent(domain.id)}`;
  const typed = draft(`search.${domain.id}`);
  let {
    retrievalTopK: topK = 5,
    retrievalThreshold: threshold = 0,
    retrievalFusion: fusion = "dbsf",
  } = domain.settings;
  const query = input({
    type: "search",
    value: typed.read() ?? "",
    placeholder: t("retrieval.ask"),
    "aria-label": t("retrieval.ask"),
    maxlength: 2000,
    dataset: { search: "" },
    oninput: (event) => typed.write(event.target.value),
  });
  const count = field(t("retrieval.topK"), input({ type: "number", min: 1, max: 50, value: topK }));
  const line = input({ type: "range", class: "range", min: 0, max: 1, step: 0.01, value: threshold });
  const shown = h("output", { class: "mono small" }, formatNumber(Number(threshold), { minimumFractionDigits: 2 }));
  const limit = field(t("retrieval.threshold"), line);
  limit.querySelector("label").append(" ", shown);
  const fuse = field(
    t("retrieval.fusion"),
    select(
      [
        ["dbsf", "DBSF"],
        ["rrf", "RRF"],
      ],
      { value: fusion },
    ),
  );
  const within = field(t("retrieval.document"), input({ placeholder: t("retrieval.documentHint") }));
  const heading = field(t("retrieval.heading"), input({}));
  const kind = field(t("retrieval.type"), input({ placeholder: "pdf" }));
  const start = emptyState(t("retrieval.start"), t("retrieval.startText"), { icon: "search" });
  const results = h("div", {}, start);
  let view = null;
  let asking = null;
  const form = h(
    "form",
    { class: "stack", role: "search" },
    h(
      "div",
      { class: "toolbar" },
      h("div", { class: "grow" }, query),
      button(t("retrieval.search"), { kind: "primary", icon: "search", type: "submit" }),
    ),
    h("div", { class: "search-knobs" }, count, limit, fuse),
    h(
      "details",
      { class: "more-knobs" },
      h("summary", {}, t("retrieval.filters")),
      h("div", { class: "search-knobs" }, within, heading, kind),
    ),
  );
  line.addEventListener("input", () => {
    shown.textContent = formatNumber(Number(line.value), { minimumFractionDigits: 2 });
    view?.setThreshold(Number(line.value));
  });
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    if (!query.value.trim()) return query.focus();
    asking?.abort();
    const { signal } = (asking = new AbortController());
    results.setAttribute("aria-busy", "true");
    const asked = { topK: Number(count.control.value) || 5, threshold: Number(line.value) };
    const filters = Object.fromEntries(
      Object.entries({ document: within, heading, type: kind })
        .map(([name, control]) => [name, control.control.value.trim()])
        .filter(([, value]) => value),
    );
    try {
      const body = { query: query.value.trim(), ...asked, fusion: fuse.control.value, filters };
      const retrieval = await api("POST", `${base}/documents/search`, { body, signal });
      view = retrieval.candidates.length ? scoresView(domain.id, retrieval) : null;
      const documents = h(
        "a",
        { class: "button", href: `#/domains/${encodeURIComponent(domain.id)}/documents` },
        t("retrieval.toDocuments"),
      );
      replace(
        results,
        view ??
          emptyState(
            t("retrieval.nothing"),
            retrieval.incomplete ?? t(domain.documentCount ? "retrieval.nothingText" : "retrieval.noDocuments"),
            { icon: "search", actions: [documents] },
          ),
        view && asSetting(asked, fuse.control.value),
      );
    } catch (error) {
      if (error.name !== "AbortError") {
        replace(results, start);
        toastError(error);
      }
    } finally {
      if (!signal.aborted) results.removeAttribute("aria-busy");
    }
    return undefined;
  });

  /** Return a row that offers to save the tried values as the domain's settings. Return null if they are the same. */
  function asSetting(asked, fused) {
    if (asked.topK === topK && asked.threshold === threshold && fused === fusion) return null;
    const keep = async () => {
      const settings = { retrievalTopK: asked.topK, retrievalThreshold: Number(line.value), retrievalFusion: fused };
      const saved = await api("PATCH", base, { body: { settings } });
      [topK, threshold, fusion] = [settings.retrievalTopK, settings.retrievalThreshold, fused];
      place.changed(saved);
      row.replaceWith(h("p", { class: "small soft", role: "status" }, t("retrieval.kept")));
    };
    const row = h(
      "div",
      { class: "row" },
      h("span", { class: "small soft" }, t("retrieval.differs")),
      button(t("retrieval.keep"), { onclick: keep }),
    );
    return row;
  }

  replace(panel, h("div", { class: "stack" }, form, results));
  return () => asking?.abort();
}
