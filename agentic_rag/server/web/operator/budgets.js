// The budgets: the limits for model calls, and how far each is used.

import { api } from "../api.js";
import { h, replace } from "../dom.js";
import { formatMoney, formatNumber, t } from "../i18n.js";
import { badge, button, doLater, emptyState, field, input, loadInto, openDialog, select, table, toast } from "../ui.js";
import { dialogForm, domainNames, loadUsers, moment, toolbar } from "./parts.js";

const BUDGETS = "/api/budgets";
const EACH = "*";
const SCOPES = {
  domain: () => t("operator.scopeDomain"),
  user: () => t("operator.scopeUser"),
  key: () => t("operator.scopeKey"),
};
const UNITS = { tokens: () => t("operator.tokens"), money: () => t("operator.money") };
const PERIODS = { day: () => t("operator.everyDay"), month: () => t("operator.everyMonth") };
const options = (names) => Object.entries(names).map(([key, name]) => [key, name()]);

/** The ids of budgets that are removed when their toast closes. The set outlives the tab, because the user may leave it
 * and come back earlier. */
const removed = new Set();

/** Return the fields of a budget that the server accepts. */
const wishOf = ({ scope, subject, unit, period, soft = null, hard = null }) => ({
  scope,
  subject,
  unit,
  period,
  soft,
  hard,
});

export async function show(place, { app }) {
  const [users, keys, domains, domainName] = await Promise.all([
    loadUsers(),
    api("GET", "/api/keys").then(({ items }) => items),
    app.domains(),
    domainNames(app),
  ]);
  const keyNames = new Map(keys.map((key) => [key.id, keyName(key)]));
  const subjects = {
    domain: domains.map(({ id, name }) => [id, name]),
    user: withOwn(users, app.user).map(({ name, displayName }) => [
      name,
      displayName && displayName !== name ? `${displayName} (${name})` : name,
    ]),
    key: keys.filter((key) => !key.revokedAt).map(({ id }) => [id, keyNames.get(id)]),
  };
  const list = h("div", {});
  let budgets = [];

  const subjectName = ({ scope, subject }) =>
    scope === "domain" ? domainName(subject) : (keyNames.get(subject) ?? subject);
  const nameOf = (budget) =>
    budget.each ? `${SCOPES[budget.scope]()}: ${t("operator.budgetAll")}` : subjectName(budget);

  async function load() {
    budgets = (await api("GET", BUDGETS)).items;
  }

  function content() {
    const shown = budgets.filter((budget) => !removed.has(budget.id));
    const start = button(t("operator.budgetAdd"), { kind: "primary", icon: "add", onclick: () => edit(null) });
    return table(t("operator.budgets"), columns, shown, {
      empty: emptyState(t("operator.noBudgets"), t("operator.noBudgetsText"), { icon: "list", actions: [start] }),
    });
  }

  const draw = () => replace(list, content());

  const again = async () => {
    await load();
    draw();
  };

  const columns = [
    {
      label: t("operator.budgetOf"),
      cell: (budget) =>
        h(
          "div",
          {},
          h("span", { class: "faint small" }, SCOPES[budget.scope](), " "),
          h("div", { class: "wrap", dir: "auto" }, budget.each ? badge(t("operator.budgetAll")) : subjectName(budget)),
        ),
    },
    {
      label: t("operator.budgetPeriod"),
      cell: (budget) => h("span", { class: "budget-amount" }, PERIODS[budget.period]()),
    },
    { label: t("operator.budgetSoft"), align: "end", cell: (budget) => amount(budget, budget.soft) },
    { label: t("operator.budgetHard"), align: "end", cell: (budget) => amount(budget, budget.hard) },
    { label: t("operator.budgetUsed"), cell: used },
    { label: t("operator.budgetRenews"), cell: (budget) => moment(budget.renewsAt) ?? none() },
    {
      label: t("operator.actions"),
      align: "end",
      cell: (budget) => [
        button(t("operator.budgetEdit"), {
          kind: "quiet",
          onclick: () => edit(budget),
          "aria-label": t("operator.budgetEditNamed", { name: nameOf(budget) }),
        }),
        button(t("operator.budgetRemove", { name: nameOf(budget) }), {
          kind: "quiet",
          icon: "trash",
          compact: true,
          onclick: () => remove(budget),
        }),
      ],
    },
  ];

  function remove(budget) {
    removed.add(budget.id);
    draw();
    const act = async () => {
      if (!removed.has(budget.id)) return; // a new budget has replaced it
      await api("DELETE", `${BUDGETS}/${encodeURIComponent(budget.id)}`);
      removed.delete(budget.id);
      budgets = budgets.filter((listed) => listed.id !== budget.id);
    };
    const undo = () => {
      removed.delete(budget.id);
      draw();
    };
    doLater(t("operator.budgetRemoved", { name: nameOf(budget) }), { act, undo });
  }

  /** Open the dialog that sets a budget. Scope, subject, unit and period identify a budget, so they cannot be changed
   * later. */
  async function edit(budget) {
    const fixed = Boolean(budget);
    const scope = field(
      t("operator.budgetScope"),
      select(options(SCOPES), { value: budget?.scope ?? "domain", disabled: fixed, onchange: () => offer() }),
    );
    const subject = field(t("operator.budgetSubject"), select([], { disabled: fixed }));
    const unit = field(
      t("operator.budgetUnit"),
      select(options(UNITS), { value: budget?.unit ?? "tokens", disabled: fixed }),
    );
    const period = field(
      t("operator.budgetPeriod"),
      select(options(PERIODS), { value: budget?.period ?? "month", disabled: fixed }),
    );
    const bound = (value) => input({ inputmode: "decimal", value: value ?? "", dir: "ltr" });
    const hard = field(t("operator.budgetHard"), bound(budget?.hard), { hint: t("operator.budgetHardHint") });
    const soft = field(t("operator.budgetSoft"), bound(budget?.soft), { hint: t("operator.budgetSoftHint") });
    const offer = () => {
      const choices = [[EACH, t("operator.budgetAll")], ...subjects[scope.control.value]];
      if (budget && !choices.some(([id]) => id === budget.subject)) choices.push([budget.subject, subjectName(budget)]);
      replace(
        subject.control,
        choices.map(([value, label]) => h("option", { value }, label)),
      );
      subject.control.value = budget?.subject ?? choices[1]?.[0] ?? EACH;
    };
    offer();
    const amountOf = ({ control }) => control.value.trim() || null;
    const send = async (close) => {
      const wish = {
        scope: scope.control.value,
        subject: subject.control.value,
        unit: unit.control.value,
        period: period.control.value,
        soft: amountOf(soft),
        hard: amountOf(hard),
      };
      const before = budgets.find((budget) =>
        ["scope", "subject", "unit", "period"].every((name) => budget[name] === wish[name]),
      );
      const saved = await api("PUT", BUDGETS, { body: wish });
      removed.delete(saved.id);
      close();
      await again();
      const undo = async () => {
        if (before) await api("PUT", BUDGETS, { body: wishOf(before) });
        else await api("DELETE", `${BUDGETS}/${encodeURIComponent(saved.id)}`);
        await again();
      };
      toast(t("operator.budgetSaved", { name: nameOf(saved) }), { undo: { act: undo } });
    };
    const fields = { scope, subject, unit, period, soft, hard };
    const build = (close) =>
      dialogForm({
        fields,
        content: [h("div", { class: "budget-what" }, scope, subject, period, unit), hard, soft],
        action: t("operator.save"),
        send: () => send(close),
        close,
      });
    await openDialog(fixed ? t("operator.budgetEditNamed", { name: nameOf(budget) }) : t("operator.budgetAdd"), {
      build,
    }).closed;
  }

  replace(
    place,
    toolbar(
      t("operator.budgetsText"),
      button(t("operator.budgetAdd"), { kind: "primary", icon: "add", onclick: () => edit(null) }),
    ),
    list,
  );
  await loadInto(list, load, content);
}

/** Return the users, including the signed-in user. On a server without keys, that user is in no list. */
const withOwn = (users, user) =>
  users.some(({ name }) => name === user.name) ? users : [...users, { name: user.name, displayName: user.name }];

const none = () => h("span", { class: "faint" }, "—");
const keyName = ({ id, userId }) => t("operator.keyOf", { id, user: userId });

const amountText = (budget, text) =>
  budget.unit === "money" ? formatMoney(text, budget.currency) : formatNumber(Number(text));
const amount = (budget, text) =>
  text === undefined ? none() : h("span", { class: "budget-amount" }, amountText(budget, text));

/** Return how far a budget is used. A budget that applies to each subject separately has no such number. */
function used(budget) {
  if (budget.each) return h("span", { class: "faint" }, t("operator.budgetEach"));
  if (budget.spent === undefined) return none();
  const bound = budget.hard ?? budget.soft;
  const words = t("operator.usedOf", { used: amountText(budget, budget.spent), bound: amountText(budget, bound) });
  const share = Number(bound) ? Number(budget.spent) / Number(bound) : 1;
  return h(
    "div",
    { class: "stack-small budget-used" },
    h("progress", { class: share >= 1 ? "budget-out" : "", max: 1, value: Math.min(1, share), "aria-label": words }),
    h("span", { class: "small budget-amount" }, words),
    Number(budget.reserved ?? 0) > 0 &&
      h(
        "span",
        { class: "small faint" },
        t("operator.budgetReserved", { amount: amountText(budget, budget.reserved) }),
      ),
    budget.unpricedModels &&
      h(
        "span",
        { class: "small bad wrap" },
        t("operator.budgetUnpriced", { models: budget.unpricedModels.join(", ") }),
      ),
  );
}
