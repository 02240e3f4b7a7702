// The searches that were made for answers: a list, and the passages and scores of one search.

import { api } from "../api.js";
import { h, replace } from "../dom.js";
import { formatAgo, formatDate, t } from "../i18n.js";
import { badge, button, emptyState, loadInto } from "../ui.js";
import { scoresView } from "./scores.js";

const AT_ONCE = 50;
const MOST = 200;

export async function show(panel, { domain, rest, app, place }) {
  const base = `/api/domains/${encodeURIComponent(domain.id)}/retrievals`;
  let limit = AT_ONCE;

  async function drawList() {
    await loadInto(
      panel,
      () => api("GET", base, { query: { limit } }),
      ({ items, hasMore }) => {
        if (!items.length)
          return emptyState(t("retrieval.noAnswers"), t("retrieval.noAnswersText"), {
            icon: "history",
            actions: [place.chatLink()],
          });
        const moreButton =
          hasMore && limit < MOST && button(t("retrieval.more"), { onclick: () => ((limit = MOST), drawList()) });
        return h(
          "div",
          { class: "stack" },
          h("p", { class: "soft" }, t("retrieval.answersText")),
          h("ul", { class: "rows", "aria-label": t("retrieval.answers") }, items.map(row)),
          moreButton,
        );
      },
    );
  }

  function row(retrieval) {
    const from = retrieval.turnId ? null : badge(t("retrieval.tried"));
    return h(
      "li",
      { class: "rows-item" },
      h(
        "div",
        { class: "grow" },
        h(
          "a",
          { class: "row-name", dir: "auto", href: place.href(retrieval.retrievalId) },
          retrieval.query || t("retrieval.noQuery"),
        ),
        h(
          "div",
          { class: "faint small fact-line" },
          h("span", { title: formatDate(retrieval.createdAt) }, formatAgo(retrieval.createdAt)),
          h("span", {}, t(`retrieval.mode.${retrieval.mode}`)),
        ),
      ),
      h("div", { class: "rows-end" }, from),
    );
  }

  async function drawOne(id) {
    await loadInto(
      panel,
      () => api("GET", `${base}/${encodeURIComponent(id)}`),
      async (retrieval) =>
        h(
          "div",
          { class: "stack" },
          h("p", {}, h("a", { class: "quiet-link", href: place.href() }, t("retrieval.back"))),
          h(
            "div",
            { class: "stack-small" },
            h("h2", { class: "wrap", dir: "auto" }, retrieval.query),
            h("p", { class: "faint small" }, formatDate(retrieval.createdAt)),
          ),
          retrieval.candidates.length
            ? scoresView(domain.id, retrieval)
            : h("p", { class: "soft" }, t("retrieval.nothingText")),
          await conversationLink(retrieval),
        ),
    );
  }

  /** Return a link to the conversation of a search, or a note if the conversation belongs to another user. */
  async function conversationLink({ conversationId }) {
    if (!conversationId) return null;
    try {
      const { title } = await api("GET", `/api/conversations/${conversationId}`);
      return h(
        "p",
        {},
        h(
          "a",
          { href: `#/chat/${encodeURIComponent(domain.id)}/${conversationId}` },
          t("retrieval.conversation", { title }),
        ),
      );
    } catch (error) {
      if (error.status !== 404) throw error;
      return h("p", { class: "small faint" }, t("retrieval.othersConversation"));
    }
  }

  const draw = (parts) => (parts?.[0] ? drawOne(parts[0]) : drawList());
  replace(panel);
  await draw(rest);
  app.announce(t("domain.tab.answers"));
  return { update: draw };
}
