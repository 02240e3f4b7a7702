// The launch requests: command lines that admins ask for. The page shows exactly what would run. An operator approves
// it as shown, or refuses it with a reason.

import { api } from "../api.js";
import { h, replace } from "../dom.js";
import { inWords, loadSentences } from "../errors/text.js";
import { formatBytes, formatNumber, t } from "../i18n.js";
import {
  badge,
  button,
  checkbox,
  copyButton,
  emptyState,
  field,
  input,
  loadInto,
  notice,
  openDialog,
  select,
  table,
  textarea,
  toast,
} from "../ui.js";
import { keepFocus, watch } from "../watch.js";
import { ago, card, code, dialogForm, domainNames, facts, moment, showProblem, toolbar } from "./parts.js";

await loadSentences();

const REQUESTS = "/api/launch-requests";
const STATES = {
  open: () => badge(t("operator.requestOpen"), "wait"),
  approved: () => badge(t("operator.requestApproved"), "wait"),
  installed: () => badge(t("operator.requestInstalled"), "ok"),
  refused: () => badge(t("operator.requestRefused"), "bad"),
  withdrawn: () => badge(t("operator.requestWithdrawn")),
};
const stateBadge = (state) => STATES[state]?.() ?? badge(state);

export async function show(place, { app, item }) {
  const nameOf = await domainNames(app);
  if (item) {
    const body = h("div", { class: "stack" });
    const lost = h("div", { hidden: true });
    replace(place, h("div", {}, h("a", { href: "#/operator/requests" }, t("operator.allRequests"))), lost, body);
    const load = () => api("GET", `${REQUESTS}/${encodeURIComponent(item)}`);
    // The request changes when an approved line is installed, or when another operator decides. Until then, `watch`
    // does not draw again, so that text in the form stays.
    const end = await watch(
      load,
      (request) =>
        keepFocus(body, () =>
          replace(
            body,
            draw(request, nameOf, () => end.now(), app),
          ),
        ),
      { onerror: showProblem(lost) },
    );
    return end;
  }
  const list = h("div");
  const choices = [
    ["open", t("operator.requestsOpen")],
    ["", t("operator.requestsAll")],
  ];
  const state = select(choices, { "aria-label": t("operator.which"), onchange: () => load() });
  const load = () =>
    loadInto(
      list,
      () => api("GET", REQUESTS, { query: { state: state.value } }),
      ({ items }) => requestsTable(items, nameOf),
    );
  replace(place, toolbar(t("operator.requestsText"), state), list);
  await load();
  return undefined;
}

function requestsTable(items, nameOf) {
  const columns = [
    {
      label: t("operator.server"),
      cell: (request) => [
        h("a", { class: "strong", href: `#/operator/requests/${encodeURIComponent(request.id)}` }, request.server),
        h("div", { class: "small" }, code([request.command, ...request.args].join(" "))),
      ],
    },
    { label: t("operator.domain"), cell: (request) => nameOf(request.domainId) },
    { label: t("operator.askedBy"), cell: (request) => request.requestedBy },
    { label: t("operator.asked"), cell: (request) => ago(request.requestedAt) },
    { label: t("operator.state"), cell: (request) => stateBadge(request.state) },
  ];
  const none = emptyState(t("operator.noRequests"), t("operator.noRequestsText"), { icon: "check" });
  return table(t("operator.requests"), columns, items, { empty: none });
}

function draw(request, nameOf, load, app) {
  const { facts: program } = request;
  const open = request.state === "open";
  return [
    h(
      "div",
      { class: "row row-apart" },
      h(
        "div",
        {},
        h("h2", { class: "wrap" }, request.server),
        h(
          "p",
          { class: "soft" },
          t("operator.requestOf", { user: request.requestedBy, domain: nameOf(request.domainId) }),
        ),
      ),
      stateBadge(request.state),
    ),
    ...program.warnings.map((warning) => notice("warn", warning)),
    program.installScripts.length > 0 &&
      notice(
        "warn",
        t("operator.installScripts"),
        h(
          "ul",
          { class: "list" },
          program.installScripts.map((script) => h("li", {}, code(script))),
        ),
      ),
    lineCard(request),
    factsCard(program, request),
    open ? decisionCard(request, load, app) : outcomeCard(request),
  ];
}

function lineCard(request) {
  const line = [request.command, ...request.args].join(" ");
  const words = [request.command, ...request.args];
  return card(
    t("operator.whatRuns"),
    { actions: [copyButton(t("operator.copyLine"), line)] },
    h(
      "ol",
      { class: "words" },
      words.map((word) => h("li", {}, code(word))),
    ),
    facts([
      [
        t("operator.variables"),
        request.env.length > 0 &&
          h(
            "span",
            { class: "row row-tight" },
            request.env.map((name) => [code(name), request.secrets.includes(name) && badge(t("operator.secret"))]),
          ),
      ],
      [
        t("operator.fixedVariables"),
        Object.keys(request.facts.fixed).length > 0 &&
          h(
            "ul",
            { class: "list" },
            Object.entries(request.facts.fixed).map(([name, value]) => h("li", {}, code(`${name}=${value}`))),
          ),
      ],
    ]),
  );
}

const REGISTRIES = {
  npm: () => t("operator.registryNpm"),
  pypi: () => t("operator.registryPypi"),
  mcpb: () => t("operator.registryBundle"),
  "": () => t("operator.registryProgram"),
};

function factsCard(program, request) {
  const files = Object.entries(program.files);
  const folded = (label, names) =>
    names.length > 0 &&
    h(
      "details",
      {},
      h("summary", {}, label),
      h(
        "ul",
        { class: "list" },
        names.map((name) => h("li", {}, code(name))),
      ),
    );
  return card(
    t("operator.facts"),
    {},
    facts([
      [t("operator.from"), REGISTRIES[program.registry]?.() ?? program.registry],
      [t("operator.package"), code(program.version ? `${program.name} ${program.version}` : program.name)],
      [t("operator.license"), program.license],
      [
        t("operator.size"),
        program.sizeBytes > 0 &&
          t("operator.sizeOf", { size: formatBytes(program.sizeBytes), files: formatNumber(program.fileCount) }),
      ],
      [t("operator.integrity"), program.integrity && code(program.integrity)],
      [t("operator.fingerprint"), code(request.fingerprint)],
    ]),
    folded(t("operator.dependencies", { count: program.dependencies.length }), program.dependencies),
    folded(t("operator.programs", { count: program.programs.length }), program.programs),
    folded(
      t("operator.files", { count: files.length }),
      files.map(([name, hash]) => `${hash}  ${name}`),
    ),
  );
}

function decisionCard(request, load, app) {
  const template = field(
    t("operator.template"),
    textarea({
      rows: Math.max(3, request.template.length + 1),
      spellcheck: false,
      class: "input mono",
      value: request.template.join("\n"),
    }),
    { hint: t("operator.templateHint", { workspace: "{path:workspace}", text: "{text}", url: "{url}" }) },
  );
  const network = field(t("operator.network"), checkbox(), { inline: true, hint: t("operator.networkHint") });
  const write = field(t("operator.write"), checkbox(), { inline: true, hint: t("operator.writeHint") });
  const lockNote = notice("warn", t("shell.networkEndsKeyless"));
  lockNote.hidden = true;
  network.control.addEventListener("change", () => (lockNote.hidden = !network.control.checked || app.user.needsKey));
  const readOnly = field(t("operator.readOnly"), input({ spellcheck: false, class: "input mono" }), {
    hint: t("operator.readOnlyHint"),
  });
  const fields = { args: template, network, write, readOnly };
  const path = `${REQUESTS}/${encodeURIComponent(request.id)}`;
  const approve = async () => {
    for (const field of Object.values(fields)) field.setError("");
    const args = template.control.value.split("\n").filter((argument) => argument !== "");
    const tools = readOnly.control.value.split(/[\s,]+/).filter(Boolean);
    const body = {
      fingerprint: request.fingerprint,
      args,
      network: network.control.checked,
      write: write.control.checked,
      readOnly: tools,
    };
    try {
      await api("POST", `${path}/approve`, { body });
      await app.refreshUser();
    } catch (error) {
      const at = fields[error?.path?.split(".")[0]];
      if (!at) throw error;
      at.setError(error.details.problem ?? error.message);
      at.control.focus();
      return;
    }
    toast(t("operator.approved", { server: request.server }));
    await load();
  };
  return card(
    t("operator.decide"),
    {},
    h("p", { class: "soft" }, t("operator.decideText")),
    template,
    network,
    lockNote,
    write,
    readOnly,
    h(
      "div",
      { class: "row" },
      button(t("operator.approve"), { kind: "primary", icon: "check", onclick: approve }),
      button(t("operator.refuse"), { kind: "danger", onclick: () => refuseDialog(request, path, load) }),
    ),
  );
}

function refuseDialog(request, path, load) {
  const reason = field(t("operator.refuseReason"), textarea({ required: true, maxlength: 500 }), {
    hint: t("operator.refuseHint"),
  });
  openDialog(t("operator.refuseTitle", { server: request.server }), {
    build: (close) =>
      dialogForm({
        close,
        fields: { reason },
        content: [reason],
        action: t("operator.refuse"),
        async send() {
          await api("POST", `${path}/refuse`, { body: { reason: reason.control.value.trim() } });
          close(true);
          toast(t("operator.refusedNow", { server: request.server }));
          await load();
        },
      }),
  });
}

function outcomeCard(request) {
  const { grant } = request;
  return card(
    t("operator.outcome"),
    {},
    request.reason && notice(request.state === "refused" ? "info" : "warn", inWords(request.reason)),
    facts([
      [t("operator.decidedBy"), request.decidedBy],
      [t("operator.decidedAt"), moment(request.decidedAt)],
      [t("operator.catalogueId"), request.catalogueId && code(request.catalogueId)],
      [t("operator.sha256"), request.sha256 && code(request.sha256)],
      [t("operator.template"), grant && code(grant.args.join(" ") || "—")],
      [t("operator.network"), grant && (grant.network ? t("operator.yes") : t("operator.no"))],
      [t("operator.write"), grant && (grant.write ? t("operator.yes") : t("operator.no"))],
    ]),
    grant && h("a", { href: "#/operator/catalogue" }, t("operator.toCatalogue")),
  );
}
