// The audit log: actions with their actor and outcome, and a check that the chain of entries is intact.

import { api } from "../api.js";
import { h, replace } from "../dom.js";
import { formatNumber, t } from "../i18n.js";
import {
  badge,
  button,
  copyButton,
  emptyState,
  field,
  input,
  loadInto,
  notice,
  openDialog,
  select,
  table,
} from "../ui.js";
import { code, dialogForm, facts, moment } from "./parts.js";

const AUDIT = "/api/audit";
const OUTCOMES = {
  done: () => badge(t("operator.outcomeDone"), "ok"),
  refused: () => badge(t("operator.outcomeRefused"), "bad"),
  denied: () => badge(t("operator.outcomeDenied"), "wait"),
};
const LIMIT = 50;

export async function show(place) {
  const actor = input({
    placeholder: t("operator.anyActor"),
    "aria-label": t("operator.actor"),
    spellcheck: false,
    autocapitalize: "none",
    dataset: { search: "" },
  });
  const outcome = select(
    [
      ["", t("operator.anyOutcome")],
      ["done", t("operator.outcomeDone")],
      ["refused", t("operator.outcomeRefused")],
      ["denied", t("operator.outcomeDenied")],
    ],
    { "aria-label": t("operator.outcomeOf") },
  );
  const list = h("div", { class: "stack" });
  const ask = (before) =>
    api("GET", AUDIT, { query: { limit: LIMIT, before, actor: actor.value.trim(), outcome: outcome.value } });
  const load = () =>
    loadInto(
      list,
      () => ask(null),
      (page) => pages(page, ask),
    );
  const filter = h(
    "form",
    { class: "row", role: "search" },
    actor,
    outcome,
    button(t("operator.filter"), { type: "submit" }),
  );
  filter.addEventListener("submit", (event) => (event.preventDefault(), load()));
  outcome.addEventListener("change", load);
  replace(
    place,
    h(
      "div",
      { class: "row row-apart operator-bar" },
      filter,
      button(t("operator.verify"), { icon: "shield", onclick: () => verifyDialog() }),
    ),
    list,
  );
  await load();
}

function pages(page, ask) {
  const items = [...page.items];
  const none = emptyState(t("operator.noRows"), t("operator.noRowsText"), { icon: "list" });
  const element = table(t("operator.audit"), COLUMNS(), items, { empty: none });
  if (!page.hasMore) return element;
  const body = element.querySelector("tbody");
  const olderButton = button(t("operator.older"), {
    async onclick() {
      const next = await ask(items.at(-1).seq);
      items.push(...next.items);
      const lines = table("", COLUMNS(), next.items).querySelectorAll("tbody tr");
      body.append(...lines);
      if (!next.hasMore) olderButton.remove();
    },
  });
  return [element, h("div", { class: "row row-centre" }, olderButton)];
}

const COLUMNS = () => [
  { label: t("operator.when"), cell: (row) => moment(row.at) },
  { label: t("operator.actor"), cell: (row) => h("span", { class: "strong wrap" }, row.actor) },
  {
    label: t("operator.action"),
    cell: (row) => [code(row.action), row.count > 1 && h("span", { class: "faint" }, ` × ${formatNumber(row.count)}`)],
  },
  { label: t("operator.target"), cell: (row) => h("span", { class: "wrap" }, row.target) },
  { label: t("operator.outcomeOf"), cell: (row) => OUTCOMES[row.outcome]?.() ?? badge(row.outcome) },
  { label: t("operator.details"), cell: details },
];

function details(row) {
  const details = Object.keys(row.details).length ? JSON.stringify(row.details, null, 2) : "";
  const lines = [details, `#${row.seq}`, row.hash].filter(Boolean).join("\n");
  return h(
    "details",
    { class: "small" },
    h("summary", {}, row.details.code ?? t("operator.row", { number: String(row.seq) })),
    h("pre", { class: "block" }, lines),
  );
}

function verifyDialog() {
  const head = field(
    t("operator.head"),
    input({ spellcheck: false, class: "input mono", placeholder: "123:9f86d0…" }),
    { hint: t("operator.headHint") },
  );
  const result = h("div", { class: "stack", role: "status" });
  openDialog(t("operator.verifyTitle"), {
    wide: true,
    build: (close) => [
      h("p", { class: "soft" }, t("operator.verifyText")),
      dialogForm({
        close,
        fields: { head },
        content: [head],
        action: t("operator.verifyNow"),
        async send() {
          replace(result);
          const verdict = await api("GET", `${AUDIT}/verify`, { query: { head: head.control.value.trim() } });
          replace(result, showVerdict(verdict));
        },
      }),
      result,
    ],
  });
}

function showVerdict({ intact, rows, head, problems }) {
  return [
    notice(
      intact ? "info" : "bad",
      h("p", { class: "strong" }, intact ? t("operator.intact", { count: rows }) : t("operator.broken")),
    ),
    !intact &&
      h(
        "ul",
        { class: "list" },
        problems.map((problem) =>
          h("li", {}, t("operator.brokenAt", { number: String(problem.seq), problem: problem.problem })),
        ),
      ),
    facts([
      [
        t("operator.newHead"),
        h("span", { class: "row row-tight" }, code(head), copyButton(t("operator.copyHead"), head)),
      ],
    ]),
    h("p", { class: "field-hint" }, t("operator.keepHead")),
  ];
}
