// The page on which a user permits a program, such as Claude, to use a domain over MCP. The program sends its name and
// addresses, so they are shown as plain text, beside the host that receives the permission.

import { api } from "../api.js";
import { h, replace } from "../dom.js";
import { t } from "../i18n.js";
import { button, checkbox, emptyState, field, notice } from "../ui.js";

const SCOPES = {
  search: () => t("programs.search"),
  ask: () => t("programs.ask"),
  remember: () => t("programs.remember"),
};

export async function show(main, { params, app }) {
  app.setTitle(t("programs.consentTitle"));
  const path = `/api/authorizations/requests/${encodeURIComponent(params.request)}`;
  let asked;
  try {
    asked = await api("GET", path);
  } catch (error) {
    if (error.status !== 404) throw error;
    replace(main, emptyState(t("programs.gone"), t("programs.goneText"), { icon: "alert", level: 1 }));
    return;
  }
  const name = asked.client || t("programs.unnamed");
  const boxes = asked.scopes.map((scope) =>
    field(SCOPES[scope](), checkbox({ value: scope, checked: true, onchange: () => offer() }), { inline: true }),
  );
  const problem = h("p", { class: "field-error", role: "alert", hidden: true });
  const decide = async (allow) => {
    problem.hidden = true;
    try {
      const scopes = allow
        ? boxes
            .map((box) => box.control)
            .filter((box) => box.checked)
            .map((box) => box.value)
        : [];
      const { redirectTo } = await api("POST", path, { body: { allow, scopes } });
      replace(
        main,
        emptyState(allow ? t("programs.permitted") : t("programs.refused"), t("programs.return", { name }), {
          icon: allow ? "check" : "info",
          level: 1,
        }),
      );
      location.assign(redirectTo);
    } catch (error) {
      problem.textContent = error.message;
      problem.hidden = false;
    }
  };
  const permit = button(t("programs.permit"), { kind: "primary", onclick: () => decide(true) });
  const offer = () => (permit.disabled = !boxes.some((box) => box.control.checked));
  const to = asked.local
    ? t("programs.toThisComputer", { host: asked.redirectHost })
    : t("programs.toHost", { host: asked.redirectHost });
  const facts = [
    [t("programs.domain"), asked.domainName],
    [t("programs.account"), app.user.name],
    [t("programs.publisher"), asked.clientHost || t("programs.unknownPublisher")],
    [t("programs.receiver"), to],
  ];
  replace(
    main,
    h(
      "section",
      { class: "sign-in" },
      h(
        "div",
        { class: "sign-in-card" },
        h("div", { class: "rail-mark" }),
        h("h1", { class: "wrap", dir: "auto" }, t("programs.wants", { name })),
        h(
          "dl",
          { class: "stack" },
          facts.map(([label, text]) =>
            h("div", {}, h("dt", { class: "faint small" }, label), h("dd", { class: "wrap", dir: "auto" }, text)),
          ),
        ),
        h("fieldset", { class: "fieldset" }, h("legend", {}, t("programs.may")), boxes),
        notice("warn", t("programs.warning")),
        problem,
        h("div", { class: "row" }, permit, button(t("programs.refuse"), { onclick: () => decide(false) })),
      ),
    ),
  );
  permit.focus();
}
