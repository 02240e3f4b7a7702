// The number of open waits for this user. The navigation shows its link only while there are open waits.

import { api } from "../api.js";
import { debounce, h } from "../dom.js";
import { loadWords, t } from "../i18n.js";
import { announce } from "../ui.js";

const LOOK_SECONDS = 20;
const SETTLE_MS = 300;

let shownAt = null;
let total = 0;
let requests = 0;
let isWatching = false;

/** Show the number at a link of the navigation, and keep it up to date. Returns a function that sets a new number. */
export function countWaits(link) {
  const mark = h("span", { class: "rail-count", hidden: true });
  link.append(mark);
  shownAt = { link, mark };
  draw(total);
  if (!isWatching) watch();
  return draw;
}

async function draw(count) {
  const before = total;
  total = count;
  if (count > 0) await loadWords("waiting"); // words are needed only if there are waits
  if (total !== count) return; // another call has drawn a newer count
  const { link, mark } = shownAt;
  mark.textContent = count > 99 ? "99+" : String(count);
  mark.hidden = count === 0;
  link.toggleAttribute("data-empty", count === 0);
  if (count === 0) return;
  mark.setAttribute("aria-label", t("waiting.count", { count }));
  if (count > before) announce(t("waiting.count", { count }));
}

async function look() {
  if (document.hidden) return;
  const request = (requests += 1);
  const page = await api("GET", "/api/waits", { query: { state: "open", pageSize: 1 }, asIs: true }).catch(() => null);
  if (page && request === requests) await draw(page.total); // drop a response that is older than a later request
}

/** Count the waits at once when a conversation of this page opens or ends a wait. Also poll, because other
 * conversations may have waits. */
function watch() {
  isWatching = true;
  document.addEventListener("waits-changed", debounce(SETTLE_MS, look));
  document.addEventListener("visibilitychange", look);
  setInterval(look, LOOK_SECONDS * 1000);
  look();
}
