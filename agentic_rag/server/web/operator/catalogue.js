// The launch catalogue: the command lines that may run, the origin of each, and a button that revokes a permission.

import { api } from "../api.js";
import { h, replace } from "../dom.js";
import { inWords, loadSentences } from "../errors/text.js";
import { t } from "../i18n.js";
import { badge, button, confirmLoss, emptyState, input, loadInto, table, toast } from "../ui.js";
import { code, toolbar } from "./parts.js";

await loadSentences();

const CATALOGUE = "/api/launch-catalogue";
const ORIGINS = {
  builtin: () => badge(t("operator.originBuiltin")),
  operator: () => badge(t("operator.originFile"), "wait"),
  allowed: () => badge(t("operator.originAllowed"), "ok"),
};

export async function show(place) {
  const list = h("div");
  let items = [];
  const wanted = () => search.value.trim().toLowerCase();
  const fits = (entry) => `${entry.id} ${entry.command} ${entry.arguments}`.toLowerCase().includes(wanted());
  const entries = () => entriesTable(items.filter(fits), load, wanted() !== "");
  const search = input({
    type: "search",
    placeholder: t("operator.searchCatalogue"),
    "aria-label": t("operator.searchCatalogue"),
    dataset: { search: "" },
    oninput: () => replace(list, entries()),
  });
  const load = () =>
    loadInto(
      list,
      () => api("GET", CATALOGUE),
      (page) => ((items = page.items), entries()),
    );
  replace(place, toolbar(t("operator.catalogueText"), search), list);
  await load();
}

function entriesTable(items, load, searched) {
  const rights = (entry) =>
    h(
      "span",
      { class: "row row-tight" },
      entry.network && badge(t("operator.mayNetwork"), "wait"),
      entry.write && badge(t("operator.mayWrite"), "wait"),
      !entry.network && !entry.write && h("span", { class: "faint" }, t("operator.sandboxed")),
    );
  const columns = [
    {
      label: t("operator.line"),
      cell: (entry) => [code(entry.command), h("div", { class: "small soft" }, code(inWords(entry.arguments)))],
    },
    { label: t("operator.catalogueId"), cell: (entry) => code(entry.id) },
    { label: t("operator.origin"), cell: (entry) => ORIGINS[entry.origin]?.() ?? entry.origin },
    { label: t("operator.rights"), cell: rights },
    {
      label: t("operator.variables"),
      cell: (entry) => h("span", { class: "row row-tight" }, Object.keys(entry.env).map(code)),
    },
    {
      label: t("operator.actions"),
      align: "end",
      cell: (entry) =>
        entry.origin === "allowed" &&
        button(t("operator.takeBack", { id: entry.id }), {
          kind: "quiet",
          icon: "close",
          compact: true,
          onclick: () => revoke(entry, load),
        }),
    },
  ];
  const none = searched
    ? emptyState(t("operator.nothingFound"), t("operator.nothingFoundText"), { icon: "search" })
    : emptyState(t("operator.noEntries"), t("operator.noEntriesText"), { icon: "list" });
  return table(t("operator.catalogue"), columns, items, { empty: none });
}

async function revoke(entry, load) {
  const sure = await confirmLoss(
    t("operator.takeBackQuestion"),
    t("operator.takeBackText", { line: entry.command }),
    t("operator.takeBackNow"),
  );
  if (!sure) return;
  await api("DELETE", `${CATALOGUE}/${encodeURIComponent(entry.id)}`);
  toast(t("operator.takenBack", { id: entry.id }));
  await load();
}
