// Who is signed in: by the ticket of `agentic-rag open`, by what the browser has; and noticing when a sign-in has
// ended, before somebody finds out by losing what they typed. The forms are in `sign-in.js`, loaded where one is
// wanted.

import { api } from "./api.js";
import { endDrafts, tabs } from "./drafts.js";

const RENEW_BEFORE = 10 * 60_000;
const LOOK_SECONDS = 30;

/** Word to and from the page's other tabs: `in` and `out`, of who signed in or out there. */
export const session = tabs("session");

/** Return who asks, `{name, operator, signedIn, provider, needsKey, grants}`; `name` is null where nobody is signed
 * in. */
export async function presence() {
  const early = globalThis.earlyPresence; // the request that `early.js` began
  globalThis.earlyPresence = null;
  return (await early) ?? (await api("GET", "/api/auth", { asIs: true }));
}

/** Use the ticket after the `#` of the address, and remove it from there. Returns whether there was one. */
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

/** Tell the page's other tabs that somebody signed in here. */
export const tellSignedIn = () => session.tell("in");

/** Keep a signed-in browser signed in while the page is used, and notice when it no longer is, or may do something else.
 * `ended()`: nobody is signed in any more; `changed(user)`: the same user with other rights. Returns a function that
 * ends the watch. */
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
    const who = await presence().catch(() => null); // without an answer, the sign-in is unknown
    if (!who) return;
    if (who.name === null) return void (document.hidden || ended());
    if (who.name !== lastUser.name) return void location.reload(); // nothing of one person is left for the next
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

/** Sign this browser out, at the provider, too, if it came from there. Nothing that was typed stays in it. */
export async function signOut() {
  const { logoutUrl } = await api("POST", "/api/auth/sign-out", { asIs: true });
  endDrafts();
  session.tell("out");
  if (logoutUrl) location.assign(logoutUrl);
  else location.reload();
}
