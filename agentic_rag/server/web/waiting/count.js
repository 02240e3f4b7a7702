// How many waits there are for this person, as a number beside the navigation's link.

import { api } from "../api.js";
import { h } from "../dom.js";
import { loadWords, t } from "../i18n.js";
import { announce } from "../ui.js";

const LOOK_SECONDS = 20;

/** Show the number at a link of the navigation, and look again while the page is seen. Returns what takes a number that
 * another part has just been told. */
export function countWaits(link) {
  const mark = h("span", { class: "rail-count", hidden: true });
  link.append(mark);
  let before = 0;
  const draw = async (total) => {
    await loadWords("waiting");
    mark.textContent = total > 99 ? "99+" : String(total);
    mark.hidden = total === 0;
    mark.setAttribute("aria-label", t("waiting.count", { count: total }));
    if (total > before) announce(t("waiting.count", { count: total }));
    before = total;
  };
  const look = async () => {
    if (document.hidden) return;
    const found = await api("GET", "/api/waits", { query: { state: "open", pageSize: 1 }, asIs: true }).catch(() => null);
    if (found) await draw(found.total);
  };
  setInterval(look, LOOK_SECONDS * 1000);
  document.addEventListener("visibilitychange", look);
  look();
  return draw;
}
