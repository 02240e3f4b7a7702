// The secrets of a domain. The page can set a secret, but never shows its value again.

import { api } from "../api.js";
import { h } from "../dom.js";
import { t } from "../i18n.js";
import { button, confirmLoss, field, input, loadInto, openDialog, table } from "../ui.js";

export async function drawSecrets(element, base) {
  const again = () => drawSecrets(element, base);
  await loadInto(
    element,
    () => api("GET", `${base}/secrets`),
    ({ items }) => [
      table(
        t("servers.secrets"),
        [
          { label: t("servers.secretName"), cell: (secret) => h("code", {}, secret.name) },
          {
            label: t("servers.secretValue"),
            cell: (secret) => h("span", { class: "mono soft" }, secret.last4 ? `••••${secret.last4}` : "••••"),
          },
          {
            label: "",
            align: "end",
            cell: (secret) =>
              h(
                "span",
                { class: "row row-end" },
                button(t("servers.replaceSecret"), {
                  kind: "quiet",
                  onclick: () => setSecret(base, secret.name, again),
                }),
                button(t("servers.deleteSecret", { name: secret.name }), {
                  kind: "quiet",
                  icon: "trash",
                  compact: true,
                  onclick: () => remove(base, secret.name, again),
                }),
              ),
          },
        ],
        items,
        { empty: h("p", { class: "soft small" }, t("servers.noSecrets")) },
      ),
      h(
        "div",
        { class: "row" },
        button(t("servers.setSecret"), { icon: "key", onclick: () => setSecret(base, "", again) }),
      ),
    ],
  );
}

async function setSecret(base, givenName, again) {
  const name = field(
    t("servers.secretName"),
    input({
      value: givenName,
      readOnly: givenName !== "",
      class: "input mono",
      placeholder: "GITHUB_TOKEN",
      dir: "ltr",
      pattern: "[A-Za-z_][A-Za-z0-9_]*",
    }),
    { hint: t("servers.secretNameHint") },
  );
  const value = field(
    t("servers.secretValue"),
    input({ type: "password", autocomplete: "new-password", class: "input mono", dir: "ltr" }),
    { hint: t("servers.secretHint") },
  );
  const keep = async (close) => {
    name.setError("");
    value.setError("");
    if (!name.control.value.trim()) return name.refuse(t("servers.secretNameMissing"));
    if (!value.control.value) return value.refuse(t("servers.secretMissing"));
    try {
      await api("PUT", `${base}/secrets/${encodeURIComponent(name.control.value.trim())}`, {
        body: { value: value.control.value },
      });
      value.control.value = "";
      close(true);
    } catch (error) {
      (error.path.endsWith("name") ? name : value).refuse(error.message);
    }
    return undefined;
  };
  const actions = (close) => [
    button(t("shell.cancel"), { onclick: () => close() }),
    button(t("servers.keepSecret"), { kind: "primary", onclick: () => keep(close) }),
  ];
  if (await openDialog(t("servers.setSecret"), { build: () => [name, value], actions }).closed) await again();
}

async function remove(base, name, again) {
  if (
    !(await confirmLoss(
      t("servers.deleteSecretTitle", { name }),
      t("servers.deleteSecretText"),
      t("servers.deleteSecretNow"),
    ))
  )
    return;
  await api("DELETE", `${base}/secrets/${encodeURIComponent(name)}`);
  await again();
}
