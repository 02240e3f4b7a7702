// What people said of the answers of a domain, and the evaluation cases drafted from it.

import { api } from "../api.js";
import { h } from "../dom.js";
import { formatAgo, formatDate, t } from "../i18n.js";
import { icon } from "../icons.js";
import { button, emptyState, loadInto, select, toastError } from "../ui.js";
import { openCase } from "./case-dialog.js";

const AT_ONCE = 100;
const MOST = 500;

export async function show(panel, { domain }) {
  const path = `/api/domains/${encodeURIComponent(domain.id)}`;
  let limit = AT_ONCE;
  let wanted = "";

  async function load() {
    const [feedback, cases] = await Promise.all([api("GET", `${path}/feedback`, { query: { limit } }), api("GET", `${path}/evaluation/cases`)]);
    const byMessage = new Map(cases.items.filter((each) => each.source?.messageId).map((each) => [each.source.messageId, each]));
    return { feedback, byMessage };
  }

  async function draw() {
    await loadInto(panel, load, ({ feedback, byMessage }) => {
      if (!feedback.items.length) return emptyState(t("evaluation.noFeedback"), t("evaluation.noFeedbackText"), { icon: "chat" });
      const which = select([["", t("evaluation.allFeedback")], ["down", t("evaluation.rating.down")], ["up", t("evaluation.rating.up")]], { value: wanted, "aria-label": t("evaluation.whichFeedback"), onchange: () => ((wanted = which.value), draw()) });
      const shown = feedback.items.filter((each) => !wanted || each.rating === wanted);
      return h("div", { class: "stack" },
        h("div", { class: "row row-apart" }, h("p", { class: "soft" }, t("evaluation.feedbackText")), which),
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
