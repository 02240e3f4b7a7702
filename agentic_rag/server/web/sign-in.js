// The sign-in forms: with a name and a key, or at an OpenID provider. They are shown as a page, or in a dialog over a
// page with unsaved input.

import { api } from "./api.js";
import { h, replace } from "./dom.js";
import { loadWords, t } from "./i18n.js";
import { presence, session, tellSignedIn } from "./session.js";
import { button, copyButton, field, input, notice, openDialog } from "./ui.js";

const AGAIN_SECONDS = 2;

/** Return the form.
 *
 * - `onsignedin()`: called after the sign-in
 * - `name`: the user who was signed in before
 * - `beside`: open the provider's page in a new tab, so that this page and its unsaved input stay */
function signInForm(provider, onsignedin, { name = "", beside = false } = {}) {
  const who = field(
    t("shell.name"),
    input({
      name: "username",
      autocomplete: "username",
      required: true,
      value: name,
      spellcheck: false,
      autocapitalize: "none",
    }),
  );
  const key = field(
    t("shell.key"),
    input({ name: "password", type: "password", autocomplete: "current-password", required: true }),
    { hint: t("shell.keyHint") },
  );
  const problem = h("p", { class: "field-error", role: "alert", hidden: true });
  const submit = button(t("shell.signIn"), { kind: "primary", type: "submit" });
  const form = h("form", { class: "stack", method: "post" }, who, key, problem, submit);
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    submit.disabled = true;
    problem.hidden = true;
    try {
      const body = { name: who.control.value.trim(), key: key.control.value.trim() };
      await api("POST", "/api/auth/sign-in", { body, asIs: true });
      key.control.value = "";
      tellSignedIn();
      await onsignedin();
    } catch (error) {
      problem.textContent = error.status === 401 ? t("shell.wrongKey") : error.message;
      problem.hidden = false;
      key.control.focus();
    } finally {
      submit.disabled = false;
    }
  });
  if (!provider) return form;
  const back = beside ? "/#/signed-in" : `/${location.hash}`;
  const where = beside ? { target: "_blank", rel: "noopener" } : {};
  const there = h(
    "a",
    { class: "button button-primary", href: `/api/auth/oidc/begin?returnTo=${encodeURIComponent(back)}`, ...where },
    t("shell.signInProvider"),
  );
  return h("div", { class: "stack" }, there, h("p", { class: "or" }, t("shell.or")), form);
}

/** Show the form as the whole page until a user signs in, here or in another tab. */
export async function signInPage(place, who, refusal = null) {
  await loadWords("signin");
  return await new Promise((resolve) => {
    const end = onPresence(resolve);
    const done = () => (end(), resolve());
    // If the server uses no keys, there is no form: the page explains why this browser is refused.
    const way = who.needsKey ? signInForm(who.provider, done) : h("p", {}, refusedBecause(who.refusal));
    const element = h(
      "section",
      { class: "sign-in" },
      h(
        "div",
        { class: "sign-in-card" },
        h("div", { class: "rail-mark" }),
        h("h1", {}, t("shell.signInTitle")),
        refusal && notice("bad", refusalWords(refusal)),
        way,
        who.openCommand
          ? h(
              "div",
              { class: "stack" },
              h("p", { class: "faint" }, t("shell.signInHelp")),
              h(
                "div",
                { class: "row row-tight" },
                h("code", { class: "wrap" }, who.openCommand),
                copyButton(t("signin.copyCommand"), who.openCommand),
              ),
            )
          : h("p", { class: "faint" }, t("shell.signInHelp"), " ", h("code", {}, "agentic-rag open")),
      ),
    );
    replace(place, element);
    element.querySelector("input")?.focus();
  });
}

function refusedBecause(reason) {
  const words = {
    networkedServer: t("signin.networkedServer"),
    otherUser: t("signin.otherUser"),
    unknownUser: t("signin.unknownUser"),
  };
  return words[reason] ?? t("signin.noKeys");
}

function refusalWords(code) {
  const words = {
    FORBIDDEN: t("signin.notLetIn"),
    UNAUTHENTICATED: t("signin.notProven"),
    OIDC_UNAVAILABLE: t("signin.providerSilent"),
  };
  return words[code] ?? t("signin.failed", { code });
}

/** Ask for a sign-in in a dialog over the page after a session has ended; unsaved input stays. Resolves to the user who
 * is now signed in, or to null if there is none. If it is another user than before, the page is reloaded. */
export async function signInDialog(before) {
  const who = await presence();
  if (who.name !== null) return settle(before, who);
  const dialog = openDialog(t("shell.ended"), {
    lasting: true,
    build: (close) => {
      const end = onPresence(() => close(true));
      const form = signInForm(who.provider, () => close(true), { name: before?.name ?? "", beside: true });
      form.addEventListener("focusout", () => form.isConnected || end());
      return [h("p", {}, t("shell.endedText")), form];
    },
  });
  dialog.element.querySelector(before?.name ? "input[type=password]" : "input")?.focus();
  return (await dialog.closed) === true ? settle(before, await presence()) : null;
}

/** Call `signedIn()` once a user is signed in, in any tab. Returns a function that stops the polling. */
function onPresence(signedIn) {
  let ended = false;
  const end = () => {
    ended = true;
    stopHearing();
    clearInterval(timer);
  };
  const look = async () => {
    if (ended || document.hidden) return;
    const who = await presence().catch(() => null);
    if (ended || !who || who.name === null) return;
    end();
    signedIn();
  };
  const stopHearing = session.hear("in", look);
  const timer = setInterval(look, AGAIN_SECONDS * 1000);
  return end;
}

function settle(before, who) {
  if (before?.name && before.name !== who.name) {
    location.reload();
    return null;
  }
  return who;
}
