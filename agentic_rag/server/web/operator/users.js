// The users: their rights and keys, and buttons that disable an account or erase it permanently.

import { ApiError, api } from "../api.js";
import { h, replace } from "../dom.js";
import { t } from "../i18n.js";
import {
  badge,
  button,
  checkbox,
  emptyState,
  field,
  input,
  loadInto,
  notice,
  openDialog,
  table,
  toast,
} from "../ui.js";
import { keysTable, newKeyDialog } from "./keys.js";
import {
  ago,
  card,
  dialogForm,
  domainNames,
  facts,
  grantsEditor,
  grantsLine,
  loadUsers,
  moment,
  toolbar,
} from "./parts.js";

const STATES = {
  active: () => badge(t("operator.stateActive"), "ok"),
  disabled: () => badge(t("operator.stateDisabled"), "bad"),
  erasing: () => badge(t("operator.stateErasing"), "wait"),
};
const stateBadge = (state) => STATES[state]?.() ?? badge(state);
const ORIGINS = { local: () => t("operator.originLocal"), oidc: () => t("operator.originOidc") };

export async function show(place, { app, item }) {
  if (item) return await showOne(place, app, item);
  const nameOf = await domainNames(app);
  const list = h("div");
  const make = () => newUserDialog(app, (user) => app.navigate(`#/operator/users/${encodeURIComponent(user.name)}`));
  replace(
    place,
    toolbar(t("operator.usersText"), button(t("operator.newUser"), { kind: "primary", icon: "add", onclick: make })),
    list,
  );
  await loadInto(list, loadUsers, (users) => usersTable(users, nameOf, make));
  return undefined;
}

function usersTable(users, nameOf, make) {
  const columns = [
    {
      label: t("operator.user"),
      cell: (user) => [
        h("a", { class: "strong", href: `#/operator/users/${encodeURIComponent(user.name)}` }, user.name),
        user.displayName && h("div", { class: "soft small" }, user.displayName),
      ],
    },
    { label: t("operator.grants"), cell: (user) => grantsLine(user, nameOf) },
    { label: t("operator.origin"), cell: (user) => ORIGINS[user.origin]?.() ?? user.origin },
    { label: t("operator.state"), cell: (user) => stateBadge(user.state) },
    { label: t("operator.created"), cell: (user) => ago(user.createdAt) },
  ];
  const none = emptyState(t("operator.noUsers"), t("operator.noUsersText"), {
    icon: "person",
    actions: [button(t("operator.newUser"), { icon: "add", onclick: make })],
  });
  return table(t("operator.users"), columns, users, { empty: none });
}

async function newUserDialog(app, ondone) {
  const domains = await app.domains();
  const name = field(
    t("operator.userName"),
    input({ name: "name", required: true, spellcheck: false, autocapitalize: "none" }),
    { hint: t("operator.userNameHint") },
  );
  const display = field(t("operator.displayName"), input({ name: "displayName" }));
  const operator = field(t("operator.mayOperate"), checkbox(), { inline: true, hint: t("operator.mayOperateHint") });
  const grants = grantsEditor(domains);
  operator.control.addEventListener("change", () => (grants.hidden = operator.control.checked));
  openDialog(t("operator.newUser"), {
    build: (close) =>
      dialogForm({
        close,
        fields: { name, displayName: display },
        content: [name, display, operator, grants],
        action: t("operator.create"),
        async send() {
          const isOperator = operator.control.checked;
          const body = {
            name: name.control.value.trim(),
            displayName: display.control.value.trim(),
            operator: isOperator,
            grants: isOperator ? {} : grants.read(),
          };
          const user = await api("POST", "/api/users", { body });
          toast(t("operator.userMade", { name: user.name }));
          if (close(user)) ondone(user);
        },
      }),
  });
}

async function showOne(place, app, name) {
  const path = `/api/users/${encodeURIComponent(name)}`;
  const body = h("div", { class: "stack" });
  const back = h("a", { href: "#/operator/users" }, t("operator.allUsers"));
  replace(place, h("div", {}, back), body);
  let rights = { of: "", element: null };
  /** Return the form of a user's rights. The form stays the same until the stored rights change, so that a new key or a
   * disabled account does not discard text in it. */
  const rightsOf = (user, domains) => {
    const of = JSON.stringify([
      user.displayName,
      user.operator,
      user.grants,
      domains.map(({ id, name }) => [id, name]),
    ]);
    if (of !== rights.of) rights = { of, element: grantsCard(user, domains, path, redraw) };
    return rights.element;
  };
  const redraw = () => load(body, app, path, { redraw, rightsOf });
  await redraw();
}

async function load(body, app, path, { redraw, rightsOf }) {
  let user;
  try {
    user = await api("GET", path);
  } catch (error) {
    if (!(error instanceof ApiError) || error.status !== 404) throw error;
    const back = h("a", { class: "button", href: "#/operator/users" }, t("operator.allUsers"));
    replace(
      body,
      emptyState(t("operator.noSuchUser"), t("operator.noSuchUserText"), { icon: "person", actions: [back] }),
    );
    return;
  }
  const domains = await app.domains();
  const nameOf = await domainNames(app);
  const provided = user.origin === "oidc";
  replace(
    body,
    h(
      "div",
      { class: "row row-apart" },
      h(
        "div",
        {},
        h("h2", { class: "wrap" }, user.displayName || user.name),
        h("p", { class: "soft" }, h("code", {}, user.name)),
      ),
      h("div", { class: "row" }, user.operator && badge(t("operator.isOperator"), "wait"), stateBadge(user.state)),
    ),
    user.state === "erasing" && notice("warn", t("operator.erasingText")),
    facts([
      [t("operator.origin"), ORIGINS[user.origin]?.() ?? user.origin],
      [t("operator.created"), moment(user.createdAt)],
      [t("operator.changed"), moment(user.updatedAt)],
    ]),
    provided ? providedGrants(user, nameOf) : rightsOf(user, domains),
    keysCard(user, app, nameOf, redraw),
    endCard(user, path, redraw, app),
  );
}

function providedGrants(user, nameOf) {
  return card(
    t("operator.grants"),
    {},
    grantsLine(user, nameOf),
    h(
      "p",
      { class: "field-hint" },
      t("operator.providedGrants"),
      " ",
      h("a", { href: "#/operator/provider" }, t("operator.toMapping")),
    ),
  );
}

function grantsCard(user, domains, path, redraw) {
  const display = field(t("operator.displayName"), input({ value: user.displayName }));
  const operator = field(t("operator.mayOperate"), checkbox({ checked: user.operator }), {
    inline: true,
    hint: t("operator.mayOperateHint"),
  });
  const grants = grantsEditor(domains, user.grants);
  grants.hidden = user.operator;
  operator.control.addEventListener("change", () => (grants.hidden = operator.control.checked));
  const save = async () => {
    display.setError("");
    const isOperator = operator.control.checked;
    const wanted = {
      displayName: display.control.value.trim(),
      operator: isOperator,
      grants: isOperator ? {} : grants.read(),
    };
    const before = { displayName: user.displayName, operator: user.operator, grants: { ...user.grants } };
    try {
      await api("PATCH", path, { body: wanted });
    } catch (error) {
      if (error?.path !== "displayName") throw error;
      display.setError(error.details.problem ?? error.message);
      return;
    }
    toast(t("operator.saved"), { undo: { act: () => api("PATCH", path, { body: before }).then(redraw) } });
    await redraw();
  };
  const actions = button(t("operator.save"), { kind: "primary", onclick: save });
  return card(
    t("operator.rights"),
    {},
    display,
    operator,
    grants,
    h("div", { class: "row" }, actions, h("span", { class: "faint small" }, t("operator.rightsNow"))),
  );
}

function keysCard(user, app, nameOf, redraw) {
  const make = () => newKeyDialog({ user: user.name, app, ondone: redraw });
  const disabled = user.state !== "active";
  const actions = [button(t("operator.newKey"), { icon: "key", onclick: make, disabled })];
  return card(t("operator.keys"), { actions }, keysTable(user.keys, { onchange: redraw, withUser: false, nameOf }));
}

function endCard(user, path, redraw, app) {
  const isSelf = user.name === app.user.name;
  const disable = async () => {
    await api("POST", `${path}/disable`);
    toast(t("operator.userDisabled", { name: user.name }), {
      undo: { act: () => api("POST", `${path}/enable`).then(redraw) },
    });
    await redraw();
  };
  const enable = async () => {
    await api("POST", `${path}/enable`);
    toast(t("operator.userEnabled", { name: user.name }));
    await redraw();
  };
  const state =
    user.state === "disabled"
      ? button(t("operator.enable"), { onclick: enable })
      : button(t("operator.disable"), { onclick: disable, disabled: isSelf || user.state === "erasing" });
  const erase = button(t("operator.erase"), {
    kind: "danger",
    onclick: () => eraseDialog(user, path, app),
    disabled: isSelf,
  });
  return card(
    t("operator.ending"),
    {},
    h(
      "div",
      { class: "row row-apart" },
      h(
        "div",
        { class: "grow" },
        h("h3", {}, t("operator.disableTitle")),
        h("p", { class: "soft" }, t("operator.disableText")),
      ),
      state,
    ),
    h(
      "div",
      { class: "row row-apart" },
      h(
        "div",
        { class: "grow" },
        h("h3", {}, t("operator.eraseTitle")),
        h("p", { class: "soft" }, t("operator.eraseText")),
      ),
      erase,
    ),
    isSelf && h("p", { class: "field-hint" }, t("operator.notYourself")),
  );
}

function eraseDialog(user, path, app) {
  const name = field(
    t("operator.typeName", { name: user.name }),
    input({ required: true, spellcheck: false, autocapitalize: "none" }),
  );
  openDialog(t("operator.eraseQuestion", { name: user.name }), {
    build: (close) =>
      dialogForm({
        close,
        fields: {},
        content: [
          h(
            "ul",
            { class: "list" },
            h("li", {}, t("operator.erasesConversations")),
            h("li", {}, t("operator.erasesMemories")),
            h("li", {}, t("operator.erasesKeys")),
          ),
          h("p", {}, h("strong", {}, t("operator.eraseStays"))),
          h(
            "ul",
            { class: "list" },
            h("li", {}, t("operator.staysUsage")),
            h("li", {}, t("operator.staysAudit")),
            h("li", {}, t("operator.staysDocuments")),
          ),
          notice("warn", t("operator.eraseNoUndo")),
          name,
        ],
        action: t("operator.eraseNow"),
        async send() {
          if (name.control.value.trim() !== user.name) {
            name.setError(t("operator.otherName"));
            name.control.focus();
            return;
          }
          const { number } = await api("DELETE", path);
          toast(t("operator.userErased", { name: user.name, number: String(number) }), { seconds: 12 });
          if (close(true)) app.navigate("#/operator/users");
        },
      }),
  });
}
