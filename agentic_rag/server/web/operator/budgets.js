// Budgets: what may be spent on model calls, and how much of it is.

import { api } from "../api.js";
import { h, replace } from "../dom.js";
import { formatMoney, formatNumber, t } from "../i18n.js";
import { badge, button, doLater, emptyState, field, input, loadInto, openDialog, select, table, toast } from "../ui.js";
import { dialogForm, domainNames, loadUsers, moment, toolbar } from "./parts.js";

const BUDGETS = "/api/budgets";
const EACH = "*";
const SCOPES = { domain: () => t("operator.scopeDomain"), user: () => t("operator.scopeUser"), key: () => t("operator.scopeKey") };
const UNITS = { tokens: () => t("operator.tokens"), money: () => t("operator.money") };
const PERIODS = { day: () => t("operator.everyDay"), month: () => t("operator.everyMonth") };
const options = (names) => Object.entries(names).map(([key, name]) => [key, name()]);

/** Budgets that are removed once their toast has gone; kept for a reader who leaves the tab and comes back before. */
const removed = new Set();

/** What the server takes of a budget that it told. */
const wishOf = ({ scope, subject, unit, period, soft = null, hard = null }) => ({ scope, subject, unit, period, soft, hard });

export async function show(place, { app }) {
  const [users, keys, domains, domainName] = await Promise.all([loadUsers(), api("GET", "/api/keys").then(({ items }) => items), app.domains(), domainNames(app)]);
  const keyNames = new Map(keys.map((each) => [each.id, keyName(each)]));
  const subjects = {
    domain: domains.map(({ id, name }) => [id, name]),
    user: withOwn(users, app.user).map(({ name, displayName }) => [name, displayName && displayName !== name ? `${displayName} (${name})` : name]),
    key: keys.filter((each) => !each.revokedAt).map(({ id }) => [id, keyNames.get(id)]),
  };
  const list = h("div", {});
  let all = [];

  const subjectName = ({ scope, subject }) => (scope === "domain" ? domainName(subject) : (keyNames.get(subject) ?? subject));
  const nameOf = (each) => (each.each ? `${SCOPES[each.scope]()}: ${t("operator.budgetAll")}` : subjectName(each));

  async function load() {
    all = (await api("GET", BUDGETS)).items;
  }

  function content() {
    const shown = all.filter((each) => !removed.has(each.id));
    const start = button(t("operator.budgetAdd"), { kind: "primary", icon: "add", onclick: () => edit(null) });
    return table(t("operator.budgets"), columns, shown, { empty: emptyState(t("operator.noBudgets"), t("operator.noBudgetsText"), { icon: "list", actions: [start] }) });
  }

  const draw = () => replace(list, content());

  const again = async () => {
    await load();
    draw();
  };

  const columns = [
    { label: t("operator.budgetOf"), cell: (each) => h("div", {}, h("span", { class: "faint small" }, SCOPES[each.scope](), " "), h("div", { class: "wrap", dir: "auto" }, each.each ? badge(t("operator.budgetAll")) : subjectName(each))) },
    { label: t("operator.budgetPeriod"), cell: (each) => h("span", { class: "budget-amount" }, PERIODS[each.period]()) },
    { label: t("operator.budgetSoft"), align: "end", cell: (each) => amount(each, each.soft) },
    { label: t("operator.budgetHard"), align: "end", cell: (each) => amount(each, each.hard) },
    { label: t("operator.budgetUsed"), cell: used },
    { label: t("operator.budgetRenews"), cell: (each) => moment(each.renewsAt) ?? none() },
    {
      label: t("operator.actions"),
      align: "end",
      cell: (each) => [button(t("operator.budgetEdit"), { kind: "quiet", onclick: () => edit(each), "aria-label": t("operator.budgetEditNamed", { name: nameOf(each) }) }), button(t("operator.budgetRemove", { name: nameOf(each) }), { kind: "quiet", icon: "trash", compact: true, onclick: () => remove(each) })],
    },
  ];

  function remove(each) {
    removed.add(each.id);
    draw();
    const act = async () => {
      if (!removed.has(each.id)) return; // it was set anew meanwhile
      await api("DELETE", `${BUDGETS}/${encodeURIComponent(each.id)}`);
      removed.delete(each.id);
      all = all.filter((one) => one.id !== each.id);
    };
    const undo = () => {
      removed.delete(each.id);
      draw();
    };
    doLater(t("operator.budgetRemoved", { name: nameOf(each) }), { act, undo });
  }

  /** Set a budget. One that is there is found by whose, which, unit and period: these stay as they are. */
  async function edit(known) {
    const fixed = Boolean(known);
    const scope = field(t("operator.budgetScope"), select(options(SCOPES), { value: known?.scope ?? "domain", disabled: fixed, onchange: () => offer() }));
    const subject = field(t("operator.budgetSubject"), select([], { disabled: fixed }));
    const unit = field(t("operator.budgetUnit"), select(options(UNITS), { value: known?.unit ?? "tokens", disabled: fixed }));
    const period = field(t("operator.budgetPeriod"), select(options(PERIODS), { value: known?.period ?? "month", disabled: fixed }));
    const bound = (value) => input({ inputmode: "decimal", value: value ?? "", dir: "ltr" });
    const hard = field(t("operator.budgetHard"), bound(known?.hard), { hint: t("operator.budgetHardHint") });
    const soft = field(t("operator.budgetSoft"), bound(known?.soft), { hint: t("operator.budgetSoftHint") });
    const offer = () => {
      const given = [[EACH, t("operator.budgetAll")], ...subjects[scope.control.value]];
      if (known && !given.some(([id]) => id === known.subject)) given.push([known.subject, subjectName(known)]);
      replace(subject.control, given.map(([value, label]) => h("option", { value }, label)));
      subject.control.value = known?.subject ?? given[1]?.[0] ?? EACH;
    };
    offer();
    const amountOf = ({ control }) => control.value.trim() || null;
    const send = async (close) => {
      const wish = { scope: scope.control.value, subject: subject.control.value, unit: unit.control.value, period: period.control.value, soft: amountOf(soft), hard: amountOf(hard) };
      const before = all.find((each) => ["scope", "subject", "unit", "period"].every((name) => each[name] === wish[name]));
      const made = await api("PUT", BUDGETS, { body: wish });
      removed.delete(made.id);
      close();
      await again();
      const undo = async () => {
        if (before) await api("PUT", BUDGETS, { body: wishOf(before) });
        else await api("DELETE", `${BUDGETS}/${encodeURIComponent(made.id)}`);
        await again();
      };
      toast(t("operator.budgetSaved", { name: nameOf(made) }), { undo: { act: undo } });
    };
    const fields = { scope, subject, unit, period, soft, hard };
    const build = (close) => dialogForm({ fields, content: [h("div", { class: "budget-what" }, scope, subject, period, unit), hard, soft], action: t("operator.save"), send: () => send(close), close });
    await openDialog(fixed ? t("operator.budgetEditNamed", { name: nameOf(known) }) : t("operator.budgetAdd"), { build }).closed;
  }

  replace(place, toolbar(t("operator.budgetsText"), button(t("operator.budgetAdd"), { kind: "primary", icon: "add", onclick: () => edit(null) })), list);
  await loadInto(list, load, content);
}

/** On the machine itself one is a user who stands in no list. */
const withOwn = (users, own) => (users.some(({ name }) => name === own.name) ? users : [...users, { name: own.name, displayName: own.name }]);

const none = () => h("span", { class: "faint" }, "—");
const keyName = ({ id, userId }) => t("operator.keyOf", { id, user: userId });

const amountText = (each, text) => (each.unit === "money" ? formatMoney(text, each.currency) : formatNumber(Number(text)));
const amount = (each, text) => (text === undefined ? none() : h("span", { class: "budget-amount" }, amountText(each, text)));

/** How far a budget is used; one that each has for itself is not asked about. */
function used(each) {
  if (each.each) return h("span", { class: "faint" }, t("operator.budgetEach"));
  if (each.spent === undefined) return none();
  const bound = each.hard ?? each.soft;
  const words = t("operator.usedOf", { used: amountText(each, each.spent), bound: amountText(each, bound) });
  const share = Number(bound) ? Number(each.spent) / Number(bound) : 1;
  return h(
    "div",
    { class: "stack-small budget-used" },
    h("progress", { class: share >= 1 ? "budget-out" : "", max: 1, value: Math.min(1, share), "aria-label": words }),
    h("span", { class: "small budget-amount" }, words),
    Number(each.reserved ?? 0) > 0 && h("span", { class: "small faint" }, t("operator.budgetReserved", { amount: amountText(each, each.reserved) })),
    each.unpricedModels && h("span", { class: "small bad wrap" }, t("operator.budgetUnpriced", { models: each.unpricedModels.join(", ") })),
  );
}
