// Parts that several of the operator's pages use: dates, grants, facts, and a form in a dialog.

import { api } from "../api.js";
import { h, replace } from "../dom.js";
import { formatAgo, formatDate, t } from "../i18n.js";
import { badge, button, input, notice, select } from "../ui.js";

/** Return how long ago a date is, with the exact date as its tooltip. Return null if there is no date. */
export const ago = (iso) => (iso ? h("time", { datetime: iso, title: formatDate(iso) }, formatAgo(iso)) : null);

/** Return the day and time of a date. Return null if there is no date. */
export const moment = (iso) => (iso ? h("time", { datetime: iso, title: iso }, formatDate(iso)) : null);

/** Return a list of facts. `pairs`: a list of `[label, value]`. A fact without a value is left out. */
export function facts(pairs) {
  const shown = pairs.filter(([, value]) => value !== null && value !== undefined && value !== "" && value !== false);
  return h(
    "dl",
    { class: "facts" },
    shown.map(([label, value]) => h("div", {}, h("dt", {}, label), h("dd", {}, value))),
  );
}

/** Return text as code that can wrap at any character. */
export const code = (text) => h("code", { class: "wrap" }, text);

/** Return a card with a heading. `actions`: the buttons beside the heading. */
export function card(title, { actions = [], ...props } = {}, ...children) {
  return h(
    "section",
    { class: "card", ...props },
    h("div", { class: "card-head" }, h("h2", {}, title), h("div", { class: "row" }, actions)),
    h("div", { class: "stack" }, children),
  );
}

/** Return a line of text above a list, with buttons on the other side. */
export const toolbar = (text, ...actions) =>
  h(
    "div",
    { class: "row row-apart operator-bar" },
    h("p", { class: "soft" }, text),
    h("div", { class: "row" }, actions),
  );

/** Return a function that maps the id of a domain to its name. It returns the id of a deleted domain unchanged. */
export async function domainNames(app) {
  const names = new Map((await app.domains()).map((domain) => [domain.id, domain.name]));
  return (id) => names.get(id) ?? id;
}

const GRANTS = ["member", "author", "admin"];
const GRANT_WORDS = {
  member: () => t("operator.grantMember"),
  author: () => t("operator.grantAuthor"),
  admin: () => t("operator.grantAdmin"),
};

export const grantName = (grant) => GRANT_WORDS[grant]?.() ?? grant;

/** Return the grants of a user for one cell of a table. */
export function grantsLine(user, nameOf) {
  if (user.operator) return badge(t("operator.isOperator"), "wait");
  const grants = Object.entries(user.grants);
  if (!grants.length) return h("span", { class: "faint" }, t("operator.noGrants"));
  const shown = grants
    .slice(0, 4)
    .map(([id, grant]) => badge(t("operator.grantIn", { domain: nameOf(id), grant: grantName(grant) })));
  return h(
    "span",
    { class: "row row-tight" },
    shown,
    grants.length > shown.length &&
      h("span", { class: "faint small" }, t("operator.more", { count: grants.length - shown.length })),
  );
}

/** Return an editor with rows of domain and grant. Its `read()` returns the grants by the domain's id. */
export function grantsEditor(domains, initial = {}) {
  const list = h("div", { class: "stack-small" });
  const names = new Map(domains.map((domain) => [domain.id, domain.name]));
  for (const id of Object.keys(initial)) if (!names.has(id)) names.set(id, id);
  const add = (id = "", grant = "member") => {
    const domain = select([["", t("operator.chooseDomain")], ...names], {
      value: id,
      "aria-label": t("operator.domain"),
    });
    const level = select(
      GRANTS.map((grant) => [grant, grantName(grant)]),
      { value: grant, "aria-label": t("operator.grant") },
    );
    const remove = button(t("operator.removeGrant"), { kind: "quiet", icon: "close", compact: true });
    const row = h("div", { class: "grant-row" }, domain, level, remove);
    remove.addEventListener("click", () => {
      const next = row.nextElementSibling ?? row.previousElementSibling;
      row.remove();
      (next?.querySelector("select") ?? adder).focus();
    });
    row.read = () => [domain.value, level.value];
    list.append(row);
    return domain;
  };
  const adder = button(t("operator.addGrant"), { icon: "add", kind: "quiet", onclick: () => void add().focus() });
  for (const [id, grant] of Object.entries(initial)) add(id, grant);
  const hint = h("p", { class: "field-hint" }, t("operator.grantsHint"));
  const element = h(
    "fieldset",
    { class: "fieldset" },
    h("legend", {}, t("operator.grants")),
    list,
    h("div", {}, adder),
    hint,
  );
  element.read = () => Object.fromEntries([...list.children].map((row) => row.read()).filter(([id]) => id));
  return element;
}

/** Return `control`, an input that suggests users, and `list`, the element with its suggestions. */
export function userInput(users, props = {}) {
  const id = `users-${Math.random().toString(36).slice(2)}`;
  const list = h(
    "datalist",
    { id },
    users.map((user) => h("option", { value: user.name }, user.displayName)),
  );
  const control = input({ list: id, spellcheck: false, autocapitalize: "none", ...props });
  return { control: control, list };
}

/** Return an `onerror` callback for `watch`. It shows in `element` that the state could not be loaded again. */
export const showProblem = (element) => (error) => {
  element.hidden = !error;
  if (error) replace(element, notice("bad", error.code ? error.message : t("shell.failed")));
};

/** Return a form for a dialog. An error is shown at its field, or below all fields. The typed values stay.
 *
 * - `fields`: the fields, by the first key of the path in an error of the server.
 * - `send()`: makes the request and closes the dialog. */
export function dialogForm({ fields, content, action, send, close }) {
  const problem = h("p", { class: "field-error", role: "alert", hidden: true });
  const submit = button(action, { kind: "primary", type: "submit" });
  const form = h(
    "form",
    { class: "stack" },
    content,
    problem,
    h("div", { class: "row dialog-actions" }, button(t("shell.cancel"), { onclick: () => close() }), submit),
  );
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    problem.hidden = true;
    for (const field of Object.values(fields)) field.setError("");
    submit.disabled = true;
    try {
      await send();
    } catch (error) {
      if (!error?.code) console.error(error);
      const at = fields[error?.path?.split(".")[0]];
      const text = error?.code ? (error.details?.problem ?? error.message) : t("shell.failed");
      const words = text.charAt(0).toUpperCase() + text.slice(1);
      if (at) {
        at.setError(words);
        at.control.focus();
      } else {
        problem.textContent = error?.code ? error.message : t("shell.failed");
        problem.hidden = false;
      }
    } finally {
      submit.disabled = false;
    }
  });
  return form;
}

/** Load the users. */
export const loadUsers = () => api("GET", "/api/users").then(({ items }) => items);
