// The keys: a list, dialogs that create a key and show it once, and buttons that revoke one.

import { api } from "../api.js";
import { h, replace } from "../dom.js";
import { t } from "../i18n.js";
import {
  badge,
  button,
  checkbox,
  confirmLoss,
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
import { ago, code, dialogForm, domainNames, grantName, loadUsers, toolbar, userInput } from "./parts.js";

export async function show(place, { app }) {
  const list = h("div");
  let withRevoked = false;
  const nameOf = await domainNames(app);
  const load = () =>
    loadInto(
      list,
      () => api("GET", "/api/keys"),
      ({ items }) =>
        keysTable(
          items.filter((item) => withRevoked || !item.revokedAt),
          { onchange: load, nameOf, make },
        ),
    );
  const make = () => newKeyDialog({ app, ondone: load });
  const revoked = checkbox({ onchange: (event) => ((withRevoked = event.target.checked), load()) });
  replace(
    place,
    toolbar(
      t("operator.keysText"),
      field(t("operator.withRevoked"), revoked, { inline: true }),
      button(t("operator.newKey"), { kind: "primary", icon: "add", onclick: make }),
    ),
    list,
  );
  await load();
  return undefined;
}

/** Return a table of keys. `onchange()`: called when a key was revoked. */
export function keysTable(keys, { onchange, withUser = true, nameOf = (id) => id, make }) {
  const rights = (key) => {
    if (!key.role) return h("span", { class: "soft" }, t("operator.asUser"));
    if (key.role === "operator") return badge(t("operator.isOperator"), "wait");
    return h(
      "span",
      { class: "row row-tight" },
      key.domains.map((id) => badge(t("operator.grantIn", { domain: nameOf(id), grant: grantName(key.role) }))),
    );
  };
  const columns = [
    { label: t("operator.keyId"), cell: (key) => code(key.id) },
    withUser && {
      label: t("operator.user"),
      cell: (key) => h("a", { href: `#/operator/users/${encodeURIComponent(key.userId)}` }, key.userId),
    },
    { label: t("operator.permits"), cell: rights },
    { label: t("operator.keyGroups"), cell: (key) => h("span", { dir: "auto" }, key.groups.join(", ")) },
    { label: t("operator.created"), cell: (key) => ago(key.createdAt) },
    {
      label: t("operator.state"),
      cell: (key) => (key.revokedAt ? badge(t("operator.revoked"), "bad") : badge(t("operator.stateActive"), "ok")),
    },
    {
      label: t("operator.actions"),
      align: "end",
      cell: (key) =>
        !key.revokedAt &&
        button(t("operator.revokeKey", { id: key.id }), {
          kind: "quiet",
          icon: "close",
          compact: true,
          onclick: () => revoke(key, onchange),
        }),
    },
  ].filter(Boolean);
  const actions = make ? [button(t("operator.newKey"), { icon: "key", onclick: make })] : [];
  const none = emptyState(t("operator.noKeys"), t("operator.noKeysText"), { icon: "key", actions });
  return table(t("operator.keys"), columns, keys, { empty: none });
}

async function revoke(key, onchange) {
  const sure = await confirmLoss(
    t("operator.revokeQuestion"),
    t("operator.revokeText", { user: key.userId }),
    t("operator.revokeNow"),
  );
  if (!sure) return;
  await api("DELETE", `/api/keys/${encodeURIComponent(key.id)}`);
  toast(t("operator.keyRevoked"));
  await onchange();
}

/** Open the dialog that creates a key, then show the key once. `user`: the user of the key; "" to let the operator
 * choose. */
export async function newKeyDialog({ user = "", app, ondone }) {
  const address = location.hash;
  const [users, domains] = await Promise.all([user ? [] : loadUsers(), app.domains()]);
  if (location.hash !== address) return; // the user left the page meanwhile
  const { control, list } = userInput(users, { name: "user", required: true, value: user, readonly: Boolean(user) });
  const whose = field(t("operator.user"), control, { hint: user ? "" : t("operator.keyUserHint") });
  const roles = [
    ["", t("operator.asUser")],
    ["member", grantName("member")],
    ["author", grantName("author")],
    ["admin", grantName("admin")],
    ["operator", t("operator.isOperator")],
  ];
  const role = field(t("operator.permits"), select(roles), { hint: t("operator.permitsHint") });
  const checks = domains.map((domain) => field(domain.name, checkbox({ value: domain.id }), { inline: true }));
  const where = h(
    "fieldset",
    { class: "fieldset", hidden: true },
    h("legend", {}, t("operator.inDomains")),
    checks.length ? checks : h("p", { class: "soft" }, t("operator.noDomains")),
  );
  role.control.addEventListener(
    "change",
    () => (where.hidden = !["member", "author", "admin"].includes(role.control.value)),
  );
  const groups = field(t("operator.keyGroups"), textarea({ rows: 2, dir: "auto", spellcheck: "false" }), {
    hint: t("operator.keyGroupsHint"),
  });
  let created = null;
  let ownKey = null;
  const dialog = openDialog(t("operator.newKey"), {
    build: (close) =>
      dialogForm({
        close,
        fields: { user: whose, role },
        content: [whose, list, role, where, groups],
        action: t("operator.makeKey"),
        async send() {
          const body = {
            user: control.value.trim(),
            role: role.control.value || null,
            domains: where.hidden
              ? []
              : checks
                  .map(({ control }) => control)
                  .filter(({ checked }) => checked)
                  .map(({ value }) => value),
            groups: groups.control.value.split("\n").filter((group) => group.trim()),
          };
          created = await api("POST", "/api/keys", { body });
          if (created.first) await app.refreshUser();
          // Without a key of an operator, no user could change anything once this browser's session ends.
          if (created.first && created.role !== "operator")
            ownKey = await api("POST", "/api/keys", { body: { user: "operator", role: "operator" } });
          close();
        },
      }),
  });
  await dialog.closed;
  if (!created) return;
  await revealDialog(created, ownKey);
  await ondone();
}

/** Show a new key. No page can show it again. */
function revealDialog(created, ownKey) {
  const value = input({
    value: created.key,
    readonly: true,
    class: "input mono",
    "aria-label": t("operator.keyValue"),
    onfocus: (event) => event.target.select(),
  });
  const dialog = openDialog(t("operator.keyMade", { user: created.userId }), {
    lasting: true,
    build: () => [
      notice("warn", t("operator.keyOnce")),
      h(
        "div",
        { class: "key-line" },
        value,
        copyButton(t("operator.copyKey"), created.key, { compact: false, kind: "primary" }),
      ),
      h("p", { class: "soft" }, t("operator.keyUse")),
      created.first && notice("info", t("operator.firstKey")),
      ownKey && [
        h("p", {}, t("operator.ownKey", { user: ownKey.userId })),
        h(
          "div",
          { class: "key-line" },
          input({ value: ownKey.key, readonly: true, class: "input mono", "aria-label": t("operator.ownKeyValue") }),
          copyButton(t("operator.copyKey"), ownKey.key, { compact: false }),
        ),
      ],
    ],
    actions: (close) => [button(t("operator.keyKept"), { onclick: () => close(true) })],
  });
  value.focus();
  return dialog.closed;
}
