// The forms for signing in: with a name and a key, or at an OpenID provider; as a page, and over what was typed.

import { api } from "./api.js";
import { h, replace } from "./dom.js";
import { loadWords, t } from "./i18n.js";
import { presence, session, tellSignedIn } from "./session.js";
import { button, copyButton, field, input, notice, openDialog } from "./ui.js";

const AGAIN_SECONDS = 2;

/** Return the form. `onsignedin()` follows. `name`: who was signed in before. `beside`: the provider's page opens in a
 * tab of its own, so that this page and what was typed in it stay. */
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

/** Show the form as the whole page until a person signs in, here or in another tab. */
export async function signInPage(place, who, refusal = null) {
  await loadWords("signin");
  return await new Promise((resolve) => {
    const end = onPresence(resolve);
    const done = () => (end(), resolve());
    // without keys there is nothing to type: the page says why this browser is refused
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

/** Ask for a sign-in over the page, where a session has ended; what was typed stays below. Resolves to who is signed in
 * now, to null where nobody is: another than before has the page loaded anew. */
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

/** Call `signedIn()` once somebody is, in whichever tab it was done. Returns a function that ends the polling. */
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
