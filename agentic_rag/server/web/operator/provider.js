// The OpenID provider: its settings, the rights of groups, and a form that shows the rights of given groups.

import { ApiError, api } from "../api.js";
import { h, replace } from "../dom.js";
import { t } from "../i18n.js";
import { badge, button, copyButton, emptyState, field, loadInto, notice, table, textarea } from "../ui.js";
import { card, code, domainNames, facts, grantName, grantsLine } from "./parts.js";

const MAPPING = "/api/auth/oidc/mapping";

export async function show(place, { app }) {
  const nameOf = await domainNames(app);
  const load = () =>
    api("GET", MAPPING).catch((error) =>
      error instanceof ApiError && error.status === 404 ? null : Promise.reject(error),
    );
  await loadInto(place, load, (mapping) => (mapping ? draw(mapping, nameOf) : nothing()));
}

function nothing() {
  const lines = [
    "AGENTIC_RAG_PUBLIC_URL=https://rag.example",
    "AGENTIC_RAG_OIDC_ISSUER=https://login.example/realms/acme",
    "AGENTIC_RAG_OIDC_CLIENT_ID=rag",
    "AGENTIC_RAG_OIDC_GRANTS=/etc/agentic-rag/grants.toml",
  ].join("\n");
  return [
    emptyState(t("operator.noProvider"), t("operator.noProviderText"), { icon: "shield" }),
    h(
      "div",
      { class: "provider-setup" },
      h(
        "div",
        { class: "row row-apart" },
        h("h3", {}, t("operator.providerSetup")),
        copyButton(t("operator.copySettings"), lines),
      ),
      h("pre", { class: "block", tabindex: 0 }, lines),
    ),
  ];
}

function draw(mapping, nameOf) {
  return [
    mapping.problem &&
      notice(
        "bad",
        h("p", { class: "strong" }, t("operator.mappingBroken")),
        h("p", { class: "wrap" }, mapping.problem),
      ),
    card(
      t("operator.providerTitle"),
      {},
      facts([
        [t("operator.issuer"), code(mapping.issuer)],
        [t("operator.clientId"), code(mapping.clientId)],
        [
          t("operator.redirect"),
          h(
            "span",
            { class: "row row-tight" },
            code(mapping.redirect),
            copyButton(t("operator.copyRedirect"), mapping.redirect),
          ),
        ],
        [t("operator.audience"), code(mapping.audience)],
        [t("operator.groupsClaim"), code(mapping.groupsClaim)],
        [t("operator.nameClaim"), code(mapping.nameClaim)],
        [t("operator.scopes"), code(mapping.scopes)],
      ]),
    ),
    card(
      t("operator.mapping"),
      {},
      h("p", { class: "soft" }, t("operator.mappingText")),
      mappingTable(mapping.lines, nameOf),
    ),
    tryCard(nameOf),
  ];
}

function mappingTable(lines, nameOf) {
  const columns = [
    { label: t("operator.groups"), cell: (line) => code(line.groups) },
    {
      label: t("operator.permits"),
      cell: (line) =>
        line.operator
          ? badge(t("operator.isOperator"), "wait")
          : badge(t("operator.grantIn", { domain: nameOf(line.domain), grant: grantName(line.grant) })),
    },
  ];
  return table(t("operator.mapping"), columns, lines, { empty: h("p", { class: "soft" }, t("operator.noLines")) });
}

function tryCard(nameOf) {
  const groups = field(t("operator.groupsOf"), textarea({ rows: 3, spellcheck: false, class: "input mono" }), {
    hint: t("operator.groupsOfHint"),
  });
  const result = h("div", { role: "status" });
  const ask = async () => {
    groups.setError("");
    const names = groups.control.value
      .split("\n")
      .map((name) => name.trim())
      .filter(Boolean);
    if (!names.length) {
      groups.setError(t("operator.groupsNeeded"));
      groups.control.focus();
      return;
    }
    const { rights, problem } = await api("GET", MAPPING, { query: { groups: names.join("\n") } });
    if (problem) replace(result, notice("bad", problem));
    else if (!rights.operator && !Object.keys(rights.grants).length)
      replace(result, notice("warn", t("operator.notLetIn")));
    else replace(result, h("div", { class: "row" }, h("span", {}, t("operator.wouldMay")), grantsLine(rights, nameOf)));
  };
  return card(
    t("operator.tryGroups"),
    {},
    groups,
    h("div", {}, button(t("operator.tryNow"), { onclick: ask })),
    result,
  );
}
