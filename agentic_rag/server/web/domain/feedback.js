// The ratings of a domain's answers, and the evaluation cases drafted from them.

import { api } from "../api.js";
import { h } from "../dom.js";
import { formatAgo, formatDate, formatNumber, t } from "../i18n.js";
import { icon } from "../icons.js";
import { button, emptyState, loadInto, toastError } from "../ui.js";
import { openCase } from "./case-dialog.js";

const AT_ONCE = 100;
const MOST = 500;

export async function show(panel, { domain, place }) {
  const path = `/api/domains/${encodeURIComponent(domain.id)}`;
  let limit = AT_ONCE;
  let wanted = "";

  place.describe(t("evaluation.feedbackText"));

  async function load() {
    const [feedback, cases] = await Promise.all([api("GET", `${path}/feedback`, { query: { limit } }), api("GET", `${path}/evaluation/cases`)]);
    const byMessage = new Map(cases.items.filter((each) => each.source?.messageId).map((each) => [each.source.messageId, each]));
    return { feedback, byMessage };
  }

  async function draw() {
    await loadInto(panel, load, ({ feedback, byMessage }) => {
      if (!feedback.items.length) return emptyState(t("evaluation.noFeedback"), t("evaluation.noFeedbackText"), { icon: "chat", actions: [place.chatLink()] });
      const count = (rating) => feedback.items.filter((each) => !rating || each.rating === rating).length;
      const segment = (rating, words) => h("button", { type: "button", class: "segment", "aria-pressed": String(wanted === rating), onclick: () => ((wanted = rating), draw().catch(toastError)) }, words, " ", h("span", { class: "segment-count" }, formatNumber(count(rating))));
      const which = h("div", { class: "segments", role: "group", "aria-label": t("evaluation.whichFeedback") }, segment("", t("evaluation.allFeedback")), segment("down", t("evaluation.rating.down")), segment("up", t("evaluation.rating.up")));
      const shown = feedback.items.filter((each) => !wanted || each.rating === wanted);
      return h("div", { class: "stack" },
        h("div", {}, which),
        h("ul", { class: "rows", "aria-label": t("domain.tab.feedback") }, shown.map((each) => row(each, byMessage.get(each.messageId)))),
        feedback.hasMore && limit < MOST && button(t("evaluation.moreFeedback"), { onclick: () => ((limit = MOST), draw()) }));
    });
  }

  function row(each, known) {
    const open = async () => {
      if (await openCase(`${path}/evaluation`, domain, known)) await draw();
    };
    return h("li", { class: "rows-item" },
      h("div", { class: "grow" },
        h("span", { class: `state state-${each.rating === "up" ? "ok" : "bad"}` }, icon(each.rating === "up" ? "check" : "alert"), t(`evaluation.rating.${each.rating}`)),
        known && h("span", { dir: "auto" }, known.questions.at(-1)),
        each.reason && h("q", { class: "wrap", dir: "auto" }, each.reason),
        h("div", { class: "faint small fact-line" }, h("span", { dir: "auto" }, each.userId), h("span", { title: formatDate(each.createdAt) }, formatAgo(each.createdAt)))),
      h("div", { class: "rows-end" }, known && button(t(known.state === "draft" ? "evaluation.review" : "evaluation.openCase"), { onclick: () => open().catch(toastError) })));
  }

  await draw();
}
