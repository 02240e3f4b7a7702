// The page that an OpenID provider returns to in a separate tab after a sign-in.

import { h, replace } from "../dom.js";
import { t } from "../i18n.js";
import { emptyState } from "../ui.js";
import { tellSignedIn } from "../session.js";

export async function show(main, { app }) {
  tellSignedIn();
  app.setTitle(t("signin.done"));
  const on = h("a", { class: "button button-primary", href: "#/" }, t("signin.goOn"));
  replace(
    main,
    emptyState(t("signin.done"), t("signin.doneText", { name: app.user.name ?? "" }), { icon: "check", actions: [on] }),
  );
}
