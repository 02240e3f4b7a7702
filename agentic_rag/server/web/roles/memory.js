// The memory of a role: as the network of a recall, and as a list.

import { api } from "../api.js";
import { h, replace } from "../dom.js";
import { formatDate, formatPercent, t } from "../i18n.js";
import {
  badge,
  button,
  doLater,
  emptyState,
  input,
  isDoomed,
  loadInto,
  menu,
  notice,
  saveFile,
  select,
  tabs,
  toast,
} from "../ui.js";
import { networkView, ROOT } from "./network.js";

const AT_ONCE = 50;
const MODES = ["balanced", "focused", "creative"];
const SHOWN = ["current", "replaced", "proposed", "all"];
const MOST_BYTES = 20_000_000;

export async function show(panel, { domain, rest, app, place }) {
  const base = `/api/domains/${encodeURIComponent(domain.id)}/memories`;
  let shown = [];

  async function draw(parts) {
    shown = parts;
    await loadInto(
      panel,
      () => api("GET", base, { query: { limit: 1 } }),
      ({ roles, scope }) => {
        const role = parts?.[0] ?? roles[0] ?? domain.settings.primaryRoleId ?? "assistant";
        if (!roles.length) return emptyMemory(role);
        const names = roles.includes(role) ? roles : [role, ...roles];
        const chosen = select(
          names.map((name) => [name, name]),
          {
            value: role,
            "aria-label": t("roles.memoryOf"),
            onchange: (event) => app.navigate(place.href(event.target.value)),
          },
        );
        const moreMenu = menu(t("roles.memoryMore"), [
          { label: t("roles.export"), icon: "download", act: () => exportMemory(role) },
          { label: t("roles.import"), icon: "upload", act: () => importMemory(role) },
        ]);
        const views = tabs(t("roles.memoryViews"), [
          { key: "network", label: t("roles.asNetwork"), build: () => networkPart(role) },
          { key: "list", label: t("roles.asList"), build: () => listPart(role) },
        ]);
        return h(
          "div",
          { class: "stack" },
          h(
            "div",
            { class: "row row-apart" },
            h("div", { class: "row" }, h("div", {}, chosen), badge(t(`roles.scope.${scope}`))),
            moreMenu,
          ),
          h("p", { class: "soft small" }, t(`roles.scopeText.${scope}`)),
          views,
        );
      },
    );
  }

  function emptyMemory(role) {
    const take = button(t("roles.import"), { icon: "upload", onclick: () => importMemory(role) });
    const chat = h("a", { class: "button", href: `#/chat/${encodeURIComponent(domain.id)}` }, t("domain.chat"));
    return emptyState(t("roles.noMemory"), t("roles.noMemoryText"), { icon: "thought", actions: [chat, take] });
  }

  function networkPart(role) {
    const query = input({
      type: "search",
      placeholder: t("roles.recallWords"),
      "aria-label": t("roles.recallWords"),
      maxlength: 2000,
      dataset: { search: "" },
    });
    const mode = select(
      MODES.map((mode) => [mode, t(`roles.mode.${mode}`)]),
      { "aria-label": t("roles.mode"), onchange: () => recall(last) },
    );
    const result = h("div", { class: "stack" });
    let last = {};
    const recall = async (asked) => {
      last = asked;
      await loadInto(
        result,
        () => api("GET", `${base}/recall`, { query: { role, mode: mode.value, ...asked } }),
        (recollection) => recalled(recollection, asked),
      );
    };
    const recalled = (recollection, asked) => {
      const engrams = recollection.engrams.length ? recollection.engrams : recollection.overview;
      const heading = recollection.engrams.length
        ? t("roles.recalled", { count: engrams.length })
        : t("roles.overview");
      const fallback = asked.q && recollection.fallback && notice("info", t("roles.fallback"));
      if (!recollection.activated.length && !engrams.length)
        return emptyState(t("roles.nothingRecalled"), t("roles.nothingRecalledText"), { icon: "thought" });
      return [
        fallback,
        recollection.activated.length > 0 &&
          networkView(recollection, (cue) => {
            query.value = "";
            app.announce(t("roles.recallFrom", { cue }));
            recall(cue === ROOT ? {} : { cue });
          }),
        h(
          "section",
          { class: "stack-small", "aria-label": heading },
          h("h2", {}, heading, asked.cue && h("span", { class: "soft" }, ` · ${asked.cue}`)),
          h(
            "ul",
            { class: "rows" },
            engrams.map((engram) => h("li", { class: "rows-item" }, engramView(engram))),
          ),
        ),
      ];
    };
    const form = h(
      "form",
      { class: "toolbar", role: "search" },
      h("div", { class: "grow" }, query),
      mode,
      button(t("roles.recall"), { kind: "primary", type: "submit" }),
      button(t("roles.whole"), { onclick: () => ((query.value = ""), recall({})) }),
    );
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      recall(query.value.trim() ? { q: query.value.trim() } : {});
    });
    recall({});
    return h("div", { class: "stack" }, form, result);
  }

  function listPart(role) {
    const list = h("div", {});
    const addressOf = (engram) => `${base}/${encodeURIComponent(engram.id)}`;
    const query = input({ type: "search", placeholder: t("roles.find"), "aria-label": t("roles.find") });
    const which = select(
      SHOWN.map((choice) => [choice, t(`roles.show.${choice}`)]),
      { "aria-label": t("roles.show"), onchange: () => begin() },
    );
    let items = [];
    let total = 0;
    let searches = 0;
    /** Load the next page. The page of an earlier search is ignored: its memories do not belong in this list. */
    const load = async () => {
      const search = searches;
      const page = await api("GET", base, {
        query: { role, q: query.value.trim(), show: which.value, offset: items.length, limit: AT_ONCE },
      });
      if (search !== searches) return;
      items = [...items, ...page.items];
      total = page.total;
    };
    const content = () => {
      const left = items.filter((engram) => !isDoomed(addressOf(engram)));
      const doomed = items.length - left.length;
      if (!left.length) return h("p", { class: "soft", role: "status" }, t("roles.noneFound"));
      const moreButton =
        items.length < total &&
        button(t("roles.moreMemories", { count: total - items.length }), {
          onclick: async () => (await load(), redraw()),
        });
      return [
        h("p", { class: "small soft", role: "status" }, t("roles.memories", { count: total - doomed })),
        h("ul", { class: "rows", "aria-label": t("roles.memoryOf") }, left.map(row)),
        moreButton,
      ];
    };
    const redraw = () => replace(list, content());
    const begin = () => {
      searches += 1;
      items = [];
      return loadInto(list, load, content);
    };
    const remove = (engram) => {
      const act = async () => {
        await api("DELETE", addressOf(engram), { query: { role } });
        items = items.filter((listed) => listed !== engram);
        total -= 1;
      };
      // If the user has left this section and come back, the page shows a newer list than this one.
      doLater(t("roles.forgotten"), {
        act,
        undo: () => (list.isConnected ? redraw() : place.reload()),
        address: addressOf(engram),
      });
      redraw();
    };
    const row = (engram) =>
      h(
        "li",
        { class: "rows-item" },
        engramView(engram),
        h(
          "div",
          { class: "rows-end" },
          button(t("roles.forget"), { kind: "quiet", icon: "trash", compact: true, onclick: () => remove(engram) }),
        ),
      );
    const form = h(
      "form",
      { class: "toolbar", role: "search" },
      h("div", { class: "grow" }, query),
      which,
      button(t("roles.findNow"), { type: "submit" }),
    );
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      begin();
    });
    begin();
    return h("div", { class: "stack" }, form, list);
  }

  async function exportMemory(role) {
    const whole = await api("GET", `${base}/export`, { query: { role } });
    saveFile(`${domain.name}-${role}-memory.json`, "application/json", JSON.stringify(whole, null, 2));
  }

  function importMemory(role) {
    const file = h("input", { type: "file", accept: ".json,application/json" });
    file.addEventListener("change", async () => {
      const [chosen] = file.files;
      if (!chosen) return;
      if (chosen.size > MOST_BYTES) return toast(t("roles.importLarge"), { kind: "error" });
      try {
        const { engrams, frequencies = {} } = JSON.parse(await chosen.text());
        if (!Array.isArray(engrams)) throw new SyntaxError("no engrams");
        let [added, existing] = [0, 0];
        for (let at = 0; at < Math.max(1, engrams.length); at += 500) {
          const body = { engrams: engrams.slice(at, at + 500), frequencies: at === 0 ? frequencies : {} };
          const done = await api("POST", `${base}/import`, { query: { role }, body });
          added += done.added;
          existing += done.known;
        }
        toast(t("roles.imported", { count: added, known: existing }));
        await draw(shown); // this may be another role, which the user chose meanwhile
      } catch (error) {
        toast(error instanceof SyntaxError ? t("roles.importBad") : error.code ? error.message : t("shell.failed"), {
          kind: "error",
        });
      }
      return undefined;
    });
    file.click();
  }

  replace(panel);
  await draw(rest);
  return { update: draw };
}

function engramView(engram) {
  return h(
    "div",
    { class: "grow" },
    h("p", { class: "plain", dir: "auto" }, engram.content),
    h(
      "div",
      { class: "row small faint" },
      engram.cues.map((cue) => h("span", { class: "cue", dir: "auto" }, cue)),
    ),
    h(
      "div",
      { class: "small faint fact-line" },
      h("span", {}, t(`roles.type.${engram.type}`)),
      h("span", {}, t("roles.strength", { share: formatPercent(engram.strength) })),
      h("span", {}, formatDate(engram.createdAt)),
      engram.proposed && badge(t("roles.proposed")),
      engram.replacedBy && badge(t("roles.replaced")),
    ),
  );
}
