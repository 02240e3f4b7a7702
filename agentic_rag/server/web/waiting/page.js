// The open waits for this user: questions of their own turns, and those that admins answer.

import { api } from "../api.js";
import { WaitCard } from "../chat/waits.js";
import { h, replace } from "../dom.js";
import { formatAgo, loadWords, t } from "../i18n.js";
import { showProblem } from "../operator/parts.js";
import { emptyState, toast } from "../ui.js";
import { watch } from "../watch.js";

const WAITS = "/api/waits";
const LOOK_SECONDS = 5;
const AT_ONCE = 100;

export async function show(main, { app }) {
  await loadWords("chat"); // the cards are those of the chat
  app.setTitle(t("waiting.title"));
  const list = h("div", { class: "stack" });
  const none = emptyState(t("waiting.nothing"), t("waiting.nothingText"), { icon: "check" });
  const lost = h("div", { hidden: true });
  const head = h(
    "header",
    { class: "stack-small" },
    h("h1", {}, t("waiting.title")),
    h("p", { class: "soft" }, t("waiting.text")),
  );
  replace(main, h("div", { class: "page page-narrow" }, head, lost, list, none));
  const names = new Map((await app.domains()).map((domain) => [domain.id, domain.name]));
  const cards = new Map();
  const load = () => api("GET", WAITS, { query: { state: "open", pageSize: AT_ONCE } });

  function draw({ items, total }) {
    // A card may have a form that the user is filling in, so only added and removed waits change the list.
    const open = new Set(items.map((item) => item.id));
    for (const [id, card] of cards) {
      if (open.has(id)) continue;
      card.remove();
      cards.delete(id);
    }
    for (const wait of items.toReversed()) {
      if (cards.has(wait.id)) continue;
      const card = waitItem(app, wait, names.get(wait.domainId) ?? wait.domainId, () => watching.now());
      cards.set(wait.id, card);
      list.prepend(card);
    }
    none.hidden = cards.size > 0;
    app.waitsCounted?.(total);
  }

  const watching = await watch(load, draw, { seconds: LOOK_SECONDS, onerror: showProblem(lost) });
  return watching;
}

function waitItem(app, wait, domain, look) {
  const answer = async (_, action, content) => {
    try {
      await api("POST", `${WAITS}/${encodeURIComponent(wait.id)}`, { body: { action, content } });
    } catch (error) {
      if (error.code !== "WAIT_ANSWERED" && error.code !== "WAIT_NOT_FOUND") throw error;
      toast(error.message);
      await look();
      return;
    }
    toast(action === "accept" ? t("waiting.answered") : t("waiting.declined"));
    await look();
  };
  const forAdmins = wait.answerer === "admin";
  const administers = app.can(wait.domainId, "admin");
  const card = new WaitCard(answer, () => !forAdmins || administers);
  card.update({ ...wait, waitId: wait.id });
  const isOwn = !forAdmins || !administers; // users who are not admins get a wait for admins only if it is their own
  const place = `#/chat/${encodeURIComponent(wait.domainId)}/${encodeURIComponent(wait.conversationId)}`;
  return h(
    "article",
    { class: "stack-small", "aria-label": wait.title },
    h(
      "div",
      { class: "soft small row row-apart" },
      h(
        "h2",
        { class: "small" },
        t("waiting.where", { domain, ago: formatAgo(wait.openedAt) }),
        !isOwn && ` · ${t("waiting.asAdmin")}`,
      ),
      isOwn && h("a", { href: place }, t("waiting.toConversation")),
    ),
    card.element,
  );
}
