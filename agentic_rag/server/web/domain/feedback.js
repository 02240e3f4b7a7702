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
    const [feedback, cases] = await Promise.all([
      api("GET", `${path}/feedback`, { query: { limit } }),
      api("GET", `${path}/evaluation/cases`),
    ]);
    const byMessage = new Map(
      cases.items
        .filter((testCase) => testCase.source?.messageId)
        .map((testCase) => [testCase.source.messageId, testCase]),
    );
    return { feedback, byMessage };
  }

  async function draw() {
    await loadInto(panel, load, ({ feedback, byMessage }) => {
      if (!feedback.items.length)
        return emptyState(t("evaluation.noFeedback"), t("evaluation.noFeedbackText"), {
          icon: "chat",
          actions: [place.chatLink()],
        });
      const count = (rating) => feedback.items.filter((rated) => !rating || rated.rating === rating).length;
      const segment = (rating, words) =>
        h(
          "button",
          {
            type: "button",
            class: "segment",
            "aria-pressed": String(wanted === rating),
            onclick: () => ((wanted = rating), draw().catch(toastError)),
          },
          words,
          " ",
          h("span", { class: "segment-count" }, formatNumber(count(rating))),
        );
      const which = h(
        "div",
        { class: "segments", role: "group", "aria-label": t("evaluation.whichFeedback") },
        segment("", t("evaluation.allFeedback")),
        segment("down", t("evaluation.rating.down")),
        segment("up", t("evaluation.rating.up")),
      );
      const shown = feedback.items.filter((rating) => !wanted || rating.rating === wanted);
      return h(
        "div",
        { class: "stack" },
        h("div", {}, which),
        h(
          "ul",
          { class: "rows", "aria-label": t("domain.tab.feedback") },
          shown.map((feedbackItem) => row(feedbackItem, byMessage.get(feedbackItem.messageId))),
        ),
        feedback.hasMore &&
          limit < MOST &&
          button(t("evaluation.moreFeedback"), { onclick: () => ((limit = MOST), draw()) }),
      );
    });
  }

  function row(feedbackItem, testCase) {
    const open = async () => {
      if (await openCase(`${path}/evaluation`, domain, testCase)) await draw();
    };
    return h(
      "li",
      { class: "rows-item" },
      h(
        "div",
        { class: "grow" },
        h(
          "span",
          { class: `state state-${feedbackItem.rating === "up" ? "ok" : "bad"}` },
          icon(feedbackItem.rating === "up" ? "check" : "alert"),
          t(`evaluation.rating.${feedbackItem.rating}`),
        ),
        testCase && h("span", { dir: "auto" }, testCase.questions.at(-1)),
        feedbackItem.reason && h("q", { class: "wrap", dir: "auto" }, feedbackItem.reason),
        h(
          "div",
          { class: "faint small fact-line" },
          h("span", { dir: "auto" }, feedbackItem.userId),
          h("span", { title: formatDate(feedbackItem.createdAt) }, formatAgo(feedbackItem.createdAt)),
        ),
      ),
      h(
        "div",
        { class: "rows-end" },
        testCase &&
          button(t(testCase.state === "draft" ? "evaluation.review" : "evaluation.openCase"), {
            onclick: () => open().catch(toastError),
          }),
      ),
    );
  }

  await draw();
}
