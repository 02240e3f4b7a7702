// The sign-in of this browser: with the ticket of `agentic-rag open`, or with the cookie that it already has. This
// module also detects the end of a sign-in, before the user loses unsaved input. The forms are in `sign-in.js`, which
// is loaded when one is needed.

import { api } from "./api.js";
import { endDrafts, tabs } from "./drafts.js";

const RENEW_BEFORE = 10 * 60_000;
const LOOK_SECONDS = 30;

/** The channel to the other tabs: `in` and `out` report a sign-in or a sign-out there. */
export const session = tabs("session");

/** Return the user of this browser, `{name, operator, signedIn, provider, needsKey, grants}`; `name` is null if a
 * sign-in is needed. */
export async function presence() {
  const early = globalThis.earlyPresence; // the request that `early.js` started
  globalThis.earlyPresence = null;
  return (await early) ?? (await api("GET", "/api/auth", { asIs: true }));
}

/** Sign in with the ticket after the `#` of the address, and remove it from there. Returns whether there was one. */
export async function useTicket() {
  const match = /^#ticket=([\w-]+)$/.exec(location.hash);
  if (!match) return false;
  history.replaceState(null, "", "#/");
  const who = await presence();
  if (who.name === null) await api("POST", "/api/auth/ticket", { body: { ticket: match[1] }, asIs: true });
  return true;
}

/** Remove and return the reason that an OpenID provider added to the address after a refused sign-in, or null. */
export function takeRefusal() {
  const match = /^#\/sign-in-failed\/([A-Z_]+)$/.exec(location.hash);
  if (!match) return null;
  history.replaceState(null, "", "#/");
  return match[1];
}

/** Notify the other tabs that a user signed in here. */
export const tellSignedIn = () => session.tell("in");

/** Renew the sign-in while the page is used, and detect changes. Returns a function that stops this.
 *
 * - `ended()`: called if no user is signed in any more
 * - `changed(user)`: called if the same user has other rights */
export function keepSignedIn(user, { ended, changed }) {
  if (!user.signedIn) return () => {};
  let lastUser = user;
  let used = Date.now();
  const note = () => (used = Date.now());
  for (const event of ["keydown", "pointerdown"]) addEventListener(event, note, { passive: true });
  const renewIfDue = async () => {
    if (!lastUser.signedIn) return;
    const expires = new Date(lastUser.signedIn.expiresAt).getTime();
    if (expires - Date.now() > RENEW_BEFORE || Date.now() - used > RENEW_BEFORE) return;
    await api("POST", "/api/auth/renew", { asIs: true }).catch(() => null);
  };
  const look = async () => {
    if (document.hidden) return;
    await renewIfDue();
    await compare();
  };
  const compare = async () => {
    const who = await presence().catch(() => null); // without a response, the sign-in is unknown
    if (!who) return;
    if (who.name === null) return void (document.hidden || ended());
    // The reload removes all data of the previous user from the page.
    if (who.name !== lastUser.name) return void location.reload();
    const isChanged = rights(who) !== rights(lastUser);
    lastUser = who;
    if (isChanged) changed(who);
  };
  const timer = setInterval(look, LOOK_SECONDS * 1000);
  const seen = () => document.hidden || look();
  document.addEventListener("visibilitychange", seen);
  const stops = [session.hear("in", compare), session.hear("out", compare)];
  return () => {
    clearInterval(timer);
    document.removeEventListener("visibilitychange", seen);
    for (const event of ["keydown", "pointerdown"]) removeEventListener(event, note);
    for (const stop of stops) stop();
  };
}

const rights = (who) => JSON.stringify([who.name, who.operator, Object.entries(who.grants).sort()]);

/** Sign this browser out, and also at the OpenID provider if the sign-in came from there. All drafts are deleted. */
export async function signOut() {
  const { logoutUrl } = await api("POST", "/api/auth/sign-out", { asIs: true });
  endDrafts();
  session.tell("out");
  if (logoutUrl) location.assign(logoutUrl);
  else location.reload();
}
