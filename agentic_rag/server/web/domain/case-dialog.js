// The dialog of an evaluation case: its questions, the expectations for the answer, and the answer that a drafted case
// comes from.

import { api } from "../api.js";
import { h, replace } from "../dom.js";
import { t } from "../i18n.js";
import { button, field, input, openDialog, select, textarea, toastError } from "../ui.js";

const lines = (text) =>
  text
    .split("\n")
    .map((line) => line.trim())
    .filter(Boolean);

/** Parse a line of the field `contains`: a text, alternatives separated by |, or a number such as =900±5 m³/h. */
function readContained(line) {
  const number = /^=\s*(-?\d+(?:\.\d+)?)(?:\s*±\s*(\d+(?:\.\d+)?))?\s*(.*)$/.exec(line);
  if (number)
    return {
      number: Number(number[1]),
      ...(number[2] && { tolerance: Number(number[2]) }),
      ...(number[3] && { unit: number[3] }),
    };
  const parts = line
    .split("|")
    .map((alternative) => alternative.trim())
    .filter(Boolean);
  return parts.length > 1 ? parts : line;
}

function writeContained(expected) {
  if (typeof expected === "string") return expected;
  if (Array.isArray(expected)) return expected.join(" | ");
  return `=${expected.number}${expected.tolerance ? `±${expected.tolerance}` : ""}${expected.unit ? ` ${expected.unit}` : ""}`;
}

/** Open the dialog of a case. Resolves to whether a case was saved or deleted.
 *
 * - `stored`: the case; null for a new one.
 * - `start`: the initial content of a new case. */
export async function openCase(base, domain, stored, start = {}) {
  const expect = stored?.expect ?? {};
  const [cited = {}] = expect.cites ?? [];
  const text = (label, value, hint, props = {}) => field(label, input({ value: value ?? "", ...props }), { hint });
  const questions = field(
    t("evaluation.questions"),
    textarea({ rows: 2, value: (stored?.questions ?? start.questions ?? []).join("\n"), required: true, dir: "auto" }),
    { hint: t("evaluation.questionsHint") },
  );
  const document = text(t("evaluation.document"), cited.document);
  const section = text(t("evaluation.section"), cited.section);
  const page = text(t("evaluation.pageNumber"), cited.page, "", { type: "number", min: 1 });
  const cells = text(t("evaluation.cells"), cited.cells, "", { placeholder: "Rates!A2:D9" });
  const passage = field(t("evaluation.passage"), textarea({ rows: 2, value: cited.text ?? "", dir: "auto" }), {
    hint: t("evaluation.passageHint"),
  });
  const contains = field(
    t("evaluation.contains"),
    textarea({ rows: 2, value: (expect.contains ?? []).map(writeContained).join("\n"), dir: "auto" }),
    { hint: t("evaluation.containsHint") },
  );
  const mustNot = field(
    t("evaluation.mustNotContain"),
    textarea({ rows: 1, value: (expect.mustNotContain ?? []).join("\n"), dir: "auto" }),
  );
  const declines = field(
    t("evaluation.declines"),
    select(
      [
        ["", t("evaluation.declines.any")],
        ["yes", t("evaluation.declines.yes")],
        ["no", t("evaluation.declines.no")],
      ],
      { value: expect.declines === undefined ? "" : expect.declines ? "yes" : "no" },
    ),
  );
  const language = text(t("evaluation.language"), expect.language, "", { placeholder: "en" });
  const calls = text(t("evaluation.calls"), (expect.calls ?? []).join(", "));
  const mustNotCall = text(t("evaluation.mustNotCall"), (expect.mustNotCall ?? []).join(", "));
  const seconds = text(t("evaluation.maxSeconds"), expect.maxSeconds, "", { type: "number", min: 0.1, step: "any" });
  const tokens = text(t("evaluation.maxTokens"), expect.maxTokens, "", { type: "number", min: 1 });
  const note = text(t("evaluation.note"), stored?.note);
  const state =
    stored && stored.state !== "draft"
      ? field(
          t("evaluation.stateOf"),
          select(
            [
              ["active", t("evaluation.active")],
              ["off", t("evaluation.off")],
            ],
            { value: stored.state },
          ),
        )
      : null;
  const passageList = h("div", { class: "stack-small", "aria-live": "polite" });

  function use(chosen) {
    document.control.value = chosen.document ?? "";
    section.control.value = chosen.section ?? "";
    page.control.value = chosen.page ?? "";
    cells.control.value = chosen.cells ?? "";
    passage.control.value = chosen.text ?? "";
    passage.control.focus();
  }

  const passageRow = (passage) =>
    h(
      "div",
      { class: "row row-apart" },
      h(
        "span",
        { class: "small wrap grow", dir: "auto" },
        h("b", {}, [passage.document, passage.section].filter(Boolean).join(", ")),
        " ",
        passage.text,
      ),
      button(t("evaluation.usePassage"), { onclick: () => use(passage) }),
    );

  async function search() {
    const query = lines(questions.control.value).at(-1);
    if (!query) return questions.control.focus();
    const { hits } = await api("POST", `/api/domains/${encodeURIComponent(domain.id)}/documents/search`, {
      body: { query, topK: 8, threshold: 0 },
    });
    const rows = hits.map((hit) => ({
      document: hit.documentName,
      section: hit.headingPath.at(-1),
      page: hit.page,
      cells: hit.cells,
      text: hit.sentences
        .map((sentence) => sentence.text)
        .join(" ")
        .slice(0, 600),
    }));
    replace(passageList, rows.length ? rows.map(passageRow) : h("p", { class: "soft" }, t("evaluation.nothingFound")));
    return undefined;
  }

  function source() {
    if (!stored?.source?.answer) return null;
    const { answer, reason, passages = [] } = stored.source;
    return h(
      "section",
      { class: "stack-small", "aria-label": t("evaluation.source") },
      reason && h("p", { dir: "auto" }, h("b", {}, t("evaluation.reason")), " ", reason),
      h("details", {}, h("summary", {}, t("evaluation.givenAnswer")), h("p", { class: "say", dir: "auto" }, answer)),
      passages.map(passageRow),
    );
  }

  function read() {
    const value = (part) => part.control.value.trim();
    const cite = Object.fromEntries(
      Object.entries({
        document: value(document),
        section: value(section),
        page: Number(value(page)) || null,
        cells: value(cells),
        text: value(passage),
      }).filter(([, value]) => value),
    );
    const names = (part) =>
      value(part)
        .split(",")
        .map((name) => name.trim())
        .filter(Boolean);
    const expectations = {
      cites: cite.document ? [cite, ...(expect.cites ?? []).slice(1)] : [],
      need: (expect.cites ?? []).length > 1 ? expect.need : undefined,
      contains: lines(contains.control.value).map(readContained),
      mustNotContain: lines(mustNot.control.value),
      declines: { yes: true, no: false }[declines.control.value],
      calls: names(calls),
      mustNotCall: names(mustNotCall),
      language: value(language) || undefined,
      maxSeconds: Number(value(seconds)) || undefined,
      maxTokens: Number(value(tokens)) || undefined,
    };
    const filled = Object.fromEntries(
      Object.entries(expectations).filter(
        ([, value]) => value !== undefined && !(Array.isArray(value) && !value.length),
      ),
    );
    return { questions: lines(questions.control.value), expect: filled, note: value(note) };
  }

  const save = button(stored?.state === "draft" ? t("evaluation.confirm") : t("evaluation.save"), { kind: "primary" });
  const remove = stored && button(t("evaluation.delete"), { kind: "quiet", icon: "trash" });
  const dialog = openDialog(stored ? t("evaluation.caseTitle") : t("evaluation.newCase"), {
    wide: true,
    build: () => [
      source(),
      questions,
      h(
        "fieldset",
        { class: "stack-small" },
        h("legend", {}, t("evaluation.mustCite")),
        h(
          "div",
          { class: "row" },
          button(t("evaluation.findPassage"), { icon: "search", onclick: () => search().catch(toastError) }),
        ),
        passageList,
        h("div", { class: "case-grid" }, document, section, page, cells),
        passage,
      ),
      contains,
      mustNot,
      h(
        "details",
        {},
        h("summary", {}, t("evaluation.moreExpectations")),
        h("div", { class: "case-grid" }, declines, language, calls, mustNotCall, seconds, tokens),
      ),
      note,
      state,
    ],
    actions: (close) => [remove, button(t("shell.cancel"), { onclick: () => close(false) }), save],
  });
  /** The fields, by the beginning of the path in an error of the server. The first entry that matches is used. */
  const FIELDS = [
    ["expect.cites.0.section", section],
    ["expect.cites.0.page", page],
    ["expect.cites.0.cells", cells],
    ["expect.cites.0.text", passage],
    ["expect.cites", document],
    ["expect.contains", contains],
    ["expect.mustNotContain", mustNot],
    ["expect.declines", declines],
    ["expect.language", language],
    ["expect.calls", calls],
    ["expect.mustNotCall", mustNotCall],
    ["expect.maxSeconds", seconds],
    ["expect.maxTokens", tokens],
    ["note", note],
    ["", questions],
  ];

  function refuse(error) {
    const path = (error.path ?? "").replace(/^case\./, "");
    const [, meant] = FIELDS.find(([start]) => path.startsWith(start));
    meant.closest("details")?.setAttribute("open", "");
    const words = error.details?.problem ?? error.message;
    meant.refuse(words.charAt(0).toUpperCase() + words.slice(1));
  }

  save.addEventListener("click", async () => {
    for (const [, part] of FIELDS) part.setError("");
    if (!lines(questions.control.value).length) return questions.refuse(t("evaluation.questionMissing"));
    save.disabled = true;
    try {
      const form = read();
      if (stored)
        await api("PUT", `${base}/cases/${stored.id}`, {
          body: { case: form, state: state ? state.control.value : "active", version: stored.version },
        });
      else
        await api("POST", `${base}/cases`, {
          body: { ...form, ...(passageList.childElementCount && { origin: "search" }) },
        });
      dialog.close(true);
    } catch (error) {
      save.disabled = false;
      refuse(error);
    }
    return undefined;
  });
  remove?.addEventListener("click", async () => {
    try {
      await api("DELETE", `${base}/cases/${stored.id}`);
      dialog.close(true);
    } catch (error) {
      toastError(error);
    }
  });
  return Boolean(await dialog.closed);
}
