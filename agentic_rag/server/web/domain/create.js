// The dialog that creates a domain. Every "New domain" button opens it.

import { api } from "../api.js";
import { h } from "../dom.js";
import { draft } from "../drafts.js";
import { loadWords, t } from "../i18n.js";
import { button, field, input, openDialog, textarea, toastError } from "../ui.js";

/** Ask for a new domain, create it, and open its documents. If the user described the domain, open the conversation
 * that drafts its role instead. The text that the user types is kept as a draft until the domain exists. Resolves to
 * the domain, or to undefined if the user closed the dialog. */
export async function createDomain(app) {
  await loadWords("domain");
  const typed = draft("domain.new");
  const earlier = typed.read() ?? {};
  const name = field(
    t("domain.name"),
    input({ value: earlier.name ?? "", required: true, maxlength: 200, oninput: keep }),
    { hint: t("domain.nameHint") },
  );
  const about = field(t("domain.about"), textarea({ value: earlier.description ?? "", rows: 2, oninput: keep }), {
    hint: t("domain.aboutHint"),
  });
  const describe = field(
    t("domain.describe"),
    textarea({ value: earlier.describe ?? "", rows: 5, maxlength: 8000, oninput: keep }),
    { hint: t("domain.describeHint") },
  );
  function keep() {
    typed.write({ name: name.control.value, description: about.control.value, describe: describe.control.value });
  }
  const problem = h("p", { class: "field-error", role: "alert", hidden: true });
  const send = async (close) => {
    problem.hidden = true;
    name.setError(name.control.value.trim() ? "" : t("domain.nameMissing"));
    if (!name.control.value.trim()) return name.control.focus();
    const words = describe.control.value.trim();
    const body = {
      name: name.control.value.trim(),
      description: about.control.value.trim(),
      ...(words && { describe: words }),
    };
    try {
      const created = await api("POST", "/api/domains", { body });
      typed.clear();
      await app.domains({ again: true });
      if (close(created))
        app.navigate(
          created.conversationId ? `#/chat/${created.id}/${created.conversationId}` : `#/domains/${created.id}`,
        );
    } catch (error) {
      const fields = { name, description: about, describe };
      const refused = fields[error.path];
      if (refused) refused.setError(error.message);
      else {
        problem.textContent = error.message;
        problem.hidden = false;
      }
    }
    return undefined;
  };
  const actions = (close) => [
    button(t("shell.cancel"), { onclick: () => close() }),
    button(t("domain.make"), { kind: "primary", onclick: () => send(close) }),
  ];
  return openDialog(t("domain.create"), {
    build: (close) =>
      h(
        "form",
        { class: "stack", onsubmit: (event) => (event.preventDefault(), send(close).catch(toastError)) },
        name,
        about,
        describe,
        problem,
      ),
    actions,
  }).closed;
}
