// The history of a domain: each change, its author, and a button that restores an earlier state. The server decides
// which kinds of changes the user can read.

import { api } from "../api.js";
import { h, replace } from "../dom.js";
import { formatAgo, formatDate, t } from "../i18n.js";
import { badge, button, emptyState, loadInto, notice, select, toast } from "../ui.js";
import { differenceView } from "./differences.js";

const KINDS = ["settings", "server", "prompt", "role", "case"];
const FOR_AUTHORS = ["prompt", "role"];
const AT_ONCE = 50;

export async function show(panel, { domain, rest, app, place }) {
  const base = `/api/domains/${encodeURIComponent(domain.id)}`;
  let left = false;
  const kinds = app.can(domain.id, "admin") ? KINDS : FOR_AUTHORS;

  /** The last question of each evaluation case, by the id that the history has for the case. */
  let questions = null;
  const readQuestions = async () =>
    new Map((await api("GET", `${base}/evaluation/cases`)).items.map(({ id, questions }) => [id, questions.at(-1)]));
  const nameCases = async (changes) => {
    if (changes.some(({ kind, subject }) => kind === "case" && !questions?.has(subject)))
      questions = await readQuestions();
  };
  const nameOf = ({ kind, subject }) =>
    (kind === "case" && questions?.get(subject)) || subject || t(`history.kind.${kind}`);

  /** Draw a change or the list of changes. `parts`: the number of a change, or a kind and a subject, both optional. */
  async function draw(parts = []) {
    const [first, subject = null] = parts;
    if (/^\d+$/.test(first ?? "")) await drawChange(first);
    else await drawList(kinds.includes(first) ? first : null, subject);
  }

  async function drawList(kind, subject) {
    const list = h("ul", { class: "rows", "aria-label": t("history.list") });
    const moreRow = h("div", { class: "row" });
    const page = async (below) => {
      const loaded = await api("GET", `${base}/history`, { query: { kind, subject, below, limit: AT_ONCE } });
      await nameCases(loaded.items);
      return loaded;
    };
    const add = ({ items, hasMore }) => {
      for (const change of items) list.append(row(change));
      const last = items.at(-1);
      replace(moreRow, hasMore && button(t("history.more"), { onclick: async () => add(await page(last.n)) }));
    };
    const which = select([["", t("history.kind.all")], ...kinds.map((kind) => [kind, t(`history.kind.${kind}`)])], {
      value: kind ?? "",
      "aria-label": t("history.kind"),
      onchange: () => app.navigate(which.value ? place.href(which.value) : place.href()),
    });
    const only =
      subject &&
      h(
        "p",
        { class: "row" },
        h("span", { class: "soft" }, t("history.subjectOnly")),
        h("code", { class: "wrap" }, subject),
        h("a", { href: place.href() }, t("history.showAll")),
      );
    const body = h("div", { class: "stack" });
    replace(
      panel,
      h(
        "div",
        { class: "stack" },
        h("div", { class: "row row-apart" }, h("p", { class: "soft grow" }, t("history.text")), which),
        only,
        body,
      ),
    );
    await loadInto(
      body,
      () => page(null),
      (loaded) => {
        if (!loaded.items.length)
          return emptyState(
            t(kind ? "history.noneOf" : "history.none"),
            t(kind ? "history.noneOfText" : "history.noneText"),
            { icon: "history" },
          );
        add(loaded);
        return [list, moreRow];
      },
    );
  }

  function row(change) {
    return h(
      "li",
      { class: "rows-item" },
      h(
        "div",
        { class: "grow" },
        h("a", { class: "row-name", dir: "auto", href: place.href(String(change.n)) }, nameOf(change)),
        madeBy(change),
      ),
      h(
        "div",
        { class: "rows-end" },
        change.gone && badge(t("history.gone"), "bad"),
        change.redacted && badge(t("history.redacted"), "wait"),
        badge(t(`history.kind.${change.kind}`)),
      ),
    );
  }

  async function drawChange(n) {
    const back = h("a", { class: "quiet-link small", href: place.href() }, t("history.back"));
    const body = h("div", { class: "stack" });
    replace(panel, h("div", { class: "stack" }, back, body));
    await loadInto(
      body,
      () => readChange(n),
      ({ change, newest, would }) => changeView(change, newest, would),
    );
  }

  /** Load a change, the newest change of the same item, and the difference that a restore would make. */
  async function readChange(n) {
    const change = await api("GET", `${base}/history/${n}`);
    await nameCases([change]);
    const newest = await newestOf(change);
    const would =
      newest.n === change.n ? null : await api("GET", `${base}/history/${n}`, { query: { against: newest.n } });
    return { change, newest, would };
  }

  const newestOf = async ({ kind, subject }) =>
    (await api("GET", `${base}/history`, { query: { kind, subject, limit: 1 } })).items[0];

  function changeView(change, newest, would) {
    const mayRestore = newest.n !== change.n && !change.redacted;
    const head = h(
      "div",
      { class: "row row-apart" },
      h(
        "div",
        { class: "stack-small" },
        h("h2", { class: "wrap", dir: "auto" }, nameOf(change)),
        h(
          "p",
          { class: "row" },
          badge(t(`history.kind.${change.kind}`)),
          madeBy(change),
          h("span", { class: "faint small" }, t("history.one", { n: change.n })),
        ),
      ),
      mayRestore && button(t("history.restore"), { kind: "primary", icon: "history", onclick: () => restore(change) }),
    );
    return [
      head,
      newest.n === change.n && h("p", { class: "soft" }, t("history.latest")),
      change.redacted && notice("warn", t("history.redactedText")),
      change.gone && notice("info", t("history.goneThen")),
      part(t("history.what"), differenceView(change)),
      would && part(t("history.backWould"), differenceView(would)),
      change.content !== null &&
        h(
          "details",
          {},
          h("summary", { class: "soft" }, t("history.content")),
          h(
            "pre",
            { class: "code-block mono small", dir: "auto", tabindex: 0 },
            typeof change.content === "string" ? change.content : JSON.stringify(change.content, null, 2),
          ),
        ),
    ];
  }

  const part = (title, content) =>
    h("section", { class: "stack-small", "aria-label": title }, h("h3", {}, title), content);

  /** Restore the item to its state after a change. The undo restores the state before, which is in the history, too. */
  async function restore(change) {
    const before = await newestOf(change);
    await api("POST", `${base}/history/${change.n}/restore`);
    const undo = async () => {
      await api("POST", `${base}/history/${before.n}/restore`);
      await settled(change);
    };
    toast(t("history.restored", { name: nameOf(change) }), { undo: { act: undo } });
    await settled(change);
  }

  /** Update the page after a restore. If the user has left the section, only load the list of domains again. */
  async function settled({ kind }) {
    if (left) return void (await app.domains({ again: true }));
    if (kind === "settings") place.changed(await api("GET", base));
    if (location.hash === place.href(kind)) await draw([kind]);
    else app.navigate(place.href(kind));
  }

  await draw(rest);
  return { update: draw, leave: () => (left = true) };
}

/** Return the author and the date of a change. */
function madeBy({ author, at }) {
  const names = { disk: t("history.author.disk"), system: t("history.author.system"), "": t("history.author.nobody") };
  const who = Object.hasOwn(names, author) ? names[author] : author;
  return h(
    "span",
    { class: "fact-line small soft" },
    h("span", { class: "wrap", dir: "auto" }, who),
    h("time", { datetime: at, title: formatDate(at) }, formatAgo(at)),
  );
}
