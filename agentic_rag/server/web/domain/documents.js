// The documents of a domain: the upload of files, the stage of each document, and the remedy for each that failed.

import { api, asQuery } from "../api.js";
import { h, replace } from "../dom.js";
import { errorText, loadErrorTexts } from "../errors/text.js";
import { compareTexts, formatBytes, formatDate, formatNumber, t } from "../i18n.js";
import { icon } from "../icons.js";
import {
  button,
  doLater,
  emptyState,
  input,
  isDoomed,
  loadInto,
  menu,
  notice,
  progress,
  toast,
  toastError,
} from "../ui.js";
import { labelBadges, openDocument } from "./document.js";
import { openSources } from "./sources.js";
import { openStale } from "./stale.js";
import { droppedFiles, isWanted, uploadFiles } from "./uploading.js";

const POLL_MS = 1200;
const SHOWN_AT_ONCE = 200;
const FILTERS = ["all", "failed", "working"];

/** The remedies for a failed document, by the code of its error. With any other code, the failure is the server's:
 * trying again can help, and a new file cannot.
 *
 * - `words`: the key of the advice.
 * - `replace`: whether a new file can help.
 * - `retry`: whether trying again can help. */
const REMEDIES = {
  DOCUMENT_BROKEN: { words: "broken", replace: true },
  DOCUMENT_EMPTY: { words: "empty", replace: true },
  DOCUMENT_ENCRYPTED: { words: "encrypted", replace: true },
  DOCUMENT_MISSING: { words: "missing", replace: true, retry: true },
  DOCUMENT_SCANNED: { words: "scanned", replace: true, retry: true },
  DOCUMENT_TIMEOUT: { words: "timeout", replace: true, retry: true },
  DOCUMENT_TOO_LARGE: { words: "tooLarge", replace: true },
  DOCUMENT_UNSUPPORTED: { words: "unsupported", replace: true },
};

export async function show(panel, { domain, rest, app, place }) {
  const base = `/api/domains/${encodeURIComponent(domain.id)}/documents`;
  const mayChange = app.can(domain.id, "admin");
  const addressOf = (item) => `${base}/${item.id}`;
  let documents = [];
  let loads = 0;
  let isDrawnLate = false;
  const replaced = new Set(); // ids of documents that a file of another kind has replaced
  let shownCount = SHOWN_AT_ONCE;
  let filter = "all";
  let timer = 0;
  let left = false;

  const sending = h("div", { class: "stack-small" });
  const refused = h("div", { class: "stack-small" });
  const search = input({
    type: "search",
    class: "input find-input",
    placeholder: t("documents.find"),
    "aria-label": t("documents.find"),
    dataset: { search: "" },
    oninput: () => draw(),
  });
  const filters = h("div", { class: "segments", role: "group", "aria-label": t("documents.filter") });
  const stale =
    mayChange &&
    button(t("documents.stale"), {
      icon: "wait",
      onclick: () => openStale(domain.id, (id) => documents.find((item) => item.id === id), open),
    });
  const tools = h("div", { class: "row row-apart" }, filters, search, stale);
  const sources = () => button(t("sources.title"), { icon: "retry", onclick: () => openSources(domain, () => poll()) });
  const list = h("div", {});
  const model = h("p", { class: "faint small" });
  const files = mayChange && fileInputs(panel, (chosen) => send(chosen));
  replace(panel, h("div", { class: "stack" }, files && files.elements, sending, refused, tools, list, model));
  showModel(model);

  /** Whether `describe` was last called with documents. Null: it was not called yet. */
  let isDescribed = null;
  /** Show a text below the title, and beside it the sources and, if there are documents (`any`), the buttons that add
   * files. An empty list shows those buttons itself. */
  function describe(any) {
    if (isDescribed === any) return;
    isDescribed = any;
    const buttons = mayChange ? [sources(), ...(files && any ? files.buttons() : [])] : [];
    place.describe(t(files ? "documents.drop" : "documents.text"), ...buttons);
  }
  describe(true);

  const fits = { all: () => true, failed: (item) => item.status === "failed", working: isWorking };
  const present = () => documents.filter((item) => !isDoomed(addressOf(item)) && !replaced.has(item.id));

  const visible = () => {
    const wanted = search.value.trim().toLowerCase();
    return present().filter((item) => item.name.toLowerCase().includes(wanted) && fits[filter](item));
  };

  function draw() {
    // Drawing now would remove an open menu under the pointer, so the list is drawn when the menu closes.
    isDrawnLate = list.querySelector(".menu:popover-open") !== null;
    if (isDrawnLate) return;
    const focused = document.activeElement?.closest?.("[data-key]")?.dataset.key;
    replace(list, content());
    if (focused)
      [list, filters]
        .map((element) => element.querySelector(`[data-key="${CSS.escape(focused)}"]`))
        .find(Boolean)
        ?.focus();
  }

  function drawFilters() {
    const counts = Object.fromEntries(FILTERS.map((name) => [name, present().filter(fits[name]).length]));
    if (!counts[filter]) filter = "all";
    filters.hidden = !counts.failed && !counts.working;
    const choose = (name) => () => {
      filter = name;
      draw();
    };
    replace(
      filters,
      FILTERS.filter((name) => name === "all" || counts[name]).map((name) =>
        h(
          "button",
          {
            type: "button",
            class: "segment",
            "aria-pressed": String(name === filter),
            dataset: { key: `filter-${name}` },
            onclick: choose(name),
          },
          t(`documents.filter.${name}`),
          " ",
          h("span", { class: "segment-count" }, formatNumber(counts[name])),
        ),
      ),
    );
  }

  function content() {
    drawFilters();
    const shown = visible();
    const any = present().length > 0;
    tools.hidden = !any;
    describe(any);
    if (!any)
      return emptyState(t("documents.empty"), t(mayChange ? "documents.emptyAdmin" : "documents.emptyMember"), {
        icon: "page",
        actions: files ? files.buttons() : [],
      });
    if (!shown.length) return h("p", { class: "soft", role: "status" }, t("documents.noneFound"));
    const moreButton =
      shown.length > shownCount &&
      button(t("documents.more", { count: shown.length - shownCount }), {
        onclick: () => ((shownCount += SHOWN_AT_ONCE), draw()),
      });
    return [
      h("ul", { class: "documents", "aria-label": t("documents.list") }, shown.slice(0, shownCount).map(row)),
      moreButton,
    ];
  }

  function row(item) {
    const facts = [
      item.pageCount && t("documents.pages", { count: item.pageCount }),
      formatBytes(item.size),
      formatDate(item.date ?? item.createdAt, { time: false }),
    ].filter(Boolean);
    const remedy = item.status === "failed" ? (REMEDIES[item.error?.code] ?? { retry: true }) : null;
    const actions = [
      { label: t("documents.open"), icon: "page", act: () => open(item) },
      { label: t("documents.download"), icon: "download", act: () => download(item) },
      mayChange && { label: t("documents.replace"), icon: "upload", act: () => replaceFile(item) },
      mayChange && remedy?.retry && { label: t("documents.retry"), icon: "retry", act: () => retry(item) },
      mayChange && null,
      mayChange && { label: t("documents.delete"), icon: "trash", danger: true, act: () => remove(item) },
    ].filter((action) => action !== false && action !== undefined);
    const name = h(
      "button",
      { type: "button", class: "row-name", dir: "auto", dataset: { key: item.id }, onclick: () => open(item) },
      item.name,
    );
    const remedies = mayChange &&
      remedy && [
        remedy.replace &&
          button(t("documents.replace"), { dataset: { key: `${item.id}-replace` }, onclick: () => replaceFile(item) }),
        remedy.retry &&
          button(t("documents.retry"), { dataset: { key: `${item.id}-retry` }, onclick: () => retry(item) }),
      ];
    return h(
      "li",
      { class: "rows-item document-row" },
      h(
        "div",
        { class: "document-name" },
        name,
        h(
          "div",
          { class: "faint small fact-line" },
          facts.map((fact) => h("span", {}, fact)),
        ),
      ),
      stageView(item),
      h(
        "div",
        { class: "document-note small soft" },
        noteView(item, remedy),
        remedies && h("div", { class: "row" }, remedies),
      ),
      h("div", { class: "rows-end" }, labelBadges(item), menu(t("documents.actions", { name: item.name }), actions)),
    );
  }

  /** Load the documents. A response is ignored if a later request was sent, because it may lack changes made since,
   * such as an upload. */
  async function load() {
    clearTimeout(timer);
    const request = (loads += 1);
    const [{ items }] = await Promise.all([api("GET", base), loadErrorTexts()]);
    if (request !== loads) return documents;
    documents = items.sort(
      (first, second) =>
        urgency(first) - urgency(second) ||
        second.createdAt.localeCompare(first.createdAt) ||
        compareTexts(first.name, second.name),
    );
    return documents;
  }

  async function poll() {
    if (left) return;
    if (!document.hidden) {
      try {
        await load();
        if (left) return;
        draw();
      } catch (error) {
        if (!error.isOffline) toastError(error);
      }
    }
    clearTimeout(timer); // another poll may have set it meanwhile
    if (!left && documents.some(isWorking)) timer = setTimeout(poll, POLL_MS);
  }

  /** Upload files. Returns the documents that the server accepted. */
  async function send(files, { replace: isReplacing = false } = {}) {
    if (!files.length) return [];
    const stop = new AbortController();
    const bar = progress(t("documents.sending", { count: files.length }), { stop: () => stop.abort() });
    sending.append(bar);
    const problems = [];
    const accepted = [];
    const onItems = (items) => {
      for (const item of items) (item.status === "refused" ? problems : accepted).push(item);
      clearTimeout(timer);
      poll();
    };
    try {
      const onProgress = (sent, of) =>
        bar.set(
          sent,
          of,
          t("documents.sendingBytes", { count: files.length, sent: formatBytes(sent), of: formatBytes(of) }),
        );
      const count = await uploadFiles(
        `/api/domains/${encodeURIComponent(domain.id)}/documents${asQuery({ replace: isReplacing || null })}`,
        files,
        { signal: stop.signal, onProgress, onItems },
      );
      if (stop.signal.aborted) toast(t("documents.stopped", { sent: count, of: files.length }));
      else app.announce(t("documents.sent", { count }));
    } catch (error) {
      problems.push({ name: "", error: { message: error.message } });
    } finally {
      bar.remove();
      if (problems.length && !left) refused.append(refusals(problems));
    }
    return accepted;
  }

  /** Replace the file of a document. A file of another kind becomes a new document. Once the server has accepted it,
   * the old document is deleted. */
  async function replaceFile(item) {
    const file = await chooseFile();
    if (!file) return;
    const isSameKind = endingOf(file.name) === endingOf(item.name);
    const named = isSameKind ? new File([file], item.name, { type: file.type }) : file;
    const [accepted] = await send([named], { replace: isSameKind });
    if (!accepted || isSameKind || accepted.id === item.id) return;
    replaced.add(item.id);
    await api("DELETE", addressOf(item)).catch((error) => {
      if (error.status !== 404) throw error; // it is already deleted
    });
    await poll();
  }

  function refusals(problems) {
    const box = notice(
      "bad",
      h("p", { class: "strong" }, t("documents.refused", { count: problems.length })),
      h(
        "ul",
        { class: "plain-list" },
        problems.map(({ name, error }) =>
          h(
            "li",
            { dir: "auto" },
            name && h("span", { class: "strong" }, `${name}: `),
            errorText(error).replace(`${name}: `, ""),
          ),
        ),
      ),
      button(t("documents.understood"), { kind: "quiet", onclick: () => box.remove() }),
    );
    return box;
  }

  async function retry(item) {
    await api("POST", `${base}/${item.id}/retry`);
    await poll();
  }

  function remove(item) {
    const act = async () => {
      await api("DELETE", addressOf(item));
      await poll();
    };
    // If the user has left this section and come back, the page shows a newer list than this one.
    const undo = () => (left ? place.reload() : draw());
    doLater(t("documents.deleted", { name: item.name }), { act, undo, address: addressOf(item) });
    draw();
  }

  const changed = (item) => {
    documents = documents.map((shown) => (shown.id === item.id ? item : shown));
    draw();
    // If a request was sent before the change, its response has the old values. This poll makes `load` ignore it.
    poll();
  };
  const open = (item, chunkId) => openDocument(domain.id, item, { chunkId, onchange: mayChange ? changed : undefined });

  function download(item) {
    const link = h("a", { href: `${base}/${item.id}/file`, download: item.name });
    document.body.append(link);
    link.click();
    link.remove();
  }

  list.addEventListener("toggle", (event) => event.newState === "closed" && isDrawnLate && draw(), { capture: true });
  await loadInto(list, load, content);
  if (rest[0]) {
    const named = documents.find((item) => item.id === rest[0]);
    if (named) open(named, rest[1]);
  }
  if (documents.some(isWorking)) timer = setTimeout(poll, POLL_MS);
  const wake = () => !document.hidden && poll();
  document.addEventListener("visibilitychange", wake);
  return () => {
    left = true;
    clearTimeout(timer);
    document.removeEventListener("visibilitychange", wake);
  };
}

// Show the model that the search uses now, and how many tokens of a passage it reads at once.
async function showModel(line) {
  const { embedder } = await api("GET", "/api/health").catch(() => ({}));
  if (!embedder?.name) return;
  const { name, readsTokens } = embedder;
  line.textContent = readsTokens
    ? t("documents.modelWindows", { name, count: readsTokens })
    : t("documents.model", { name });
}

const isWorking = (item) => !["indexed", "failed"].includes(item.status) || item.denseState === "pending";

/** Return the rank of a document in the list: failed documents come first, then those in progress. */
const urgency = (item) => (item.status === "failed" ? 0 : isWorking(item) ? 1 : 2);

const endingOf = (name) => name.toLowerCase().match(/\.[^.]*$/)?.[0] ?? "";

/** Return whether the file of a document could not be read. Other failures happened while the text was indexed. */
const isUnread = (item) => item.status === "failed" && (item.error?.code ?? "").startsWith("DOCUMENT_");

/** Return the stage of a document: its word and kind, and the progress of reading and of indexing, each from 0 to 1. */
function stageOf(item) {
  const { scanned = 0, scans, chunks = 0, of } = item.progress;
  if (item.status === "failed")
    return {
      word: t(isUnread(item) ? "documents.state.unread" : "documents.state.failed"),
      kind: "bad",
      read: 1,
      index: isUnread(item) ? 0 : 1,
    };
  if (item.status === "indexed" && item.denseState === "pending")
    return { word: t("documents.state.dense"), kind: "run", read: 1, index: of ? 0.5 + (chunks / of) * 0.5 : 0.8 };
  if (item.status === "indexed") return { word: t("documents.state.indexed"), kind: "ok" };
  if (item.status === "queued") return { word: t("documents.state.queued"), kind: "run", read: 0, index: 0 };
  if (item.status === "parsing")
    return {
      word: scans
        ? t("documents.scanning", { page: Math.min(scanned + 1, scans), of: scans })
        : t("documents.state.parsing"),
      kind: "run",
      read: scans ? scanned / scans : 0.4,
      index: 0,
    };
  if (item.status === "indexing")
    return {
      word: of ? t("documents.stage", { done: chunks, of }) : t("documents.state.indexing"),
      kind: "run",
      read: 1,
      index: of ? chunks / of : 0.1,
    };
  return { word: t(`documents.state.${item.status}`), kind: "run", read: 0.9, index: 0 };
}

/** Return the view of a document's stage: an icon, a word, and, until the document is indexed, the progress of upload,
 * reading and indexing. */
function stageView(item) {
  const { word, kind, read, index } = stageOf(item);
  const sign =
    kind === "run"
      ? h("span", { class: "spinner", "aria-hidden": "true" })
      : icon(kind === "ok" ? "check" : "alert", 16);
  const label = h("span", { class: `state state-${kind}` }, sign, h("span", {}, word));
  if (kind === "ok") return h("div", { class: "document-stage" }, label);
  const segment = (share, isBad) =>
    h("span", {
      class: isBad ? "stage-part stage-bad" : "stage-part",
      style: { "--done": `${Math.round(share * 100)}%` },
    });
  const parts = [segment(1), segment(read, isUnread(item)), segment(index, kind === "bad" && !isUnread(item))];
  const done = Math.round(((1 + read + index) / 3) * 100);
  const bar =
    kind === "run"
      ? {
          role: "progressbar",
          "aria-label": t("documents.progressOf", { name: item.name }),
          "aria-valuenow": done,
          "aria-valuemin": 0,
          "aria-valuemax": 100,
          "aria-valuetext": word,
        }
      : { "aria-hidden": "true" };
  return h("div", { class: "document-stage" }, label, h("div", { class: "stages", ...bar }, parts));
}

const asSentence = (text) => text && text[0].toUpperCase() + text.slice(1) + (/[.。)）]$/.test(text) ? "" : ".");

function noteView(item, remedy) {
  const line = (text, bad) => text && h("p", { class: bad ? "bad wrap" : "wrap", dir: "auto" }, text);
  if (remedy) {
    const error = item.error ?? {};
    const text = errorText(error);
    // The server's text already has advice. It begins with the name of the file, which the row shows anyway.
    const hasAdvice = text === error.message && text.startsWith('"');
    return [
      line(asSentence(text.replace(/^".{1,210}?" was not read: /, "")), true),
      remedy.words && !hasAdvice && line(t(`documents.remedy.${remedy.words}`)),
    ];
  }
  const { chunksPerSecond, notes } = item.progress;
  if (item.status === "indexing" && chunksPerSecond)
    return line(t("documents.rate", { rate: formatNumber(chunksPerSecond, { maximumFractionDigits: 0 }) }));
  if (item.status === "indexed" && item.denseState === "pending") return line(t("documents.searchable"));
  return [
    item.chunkCount > 0 && line(t("documents.chunks", { count: item.chunkCount })),
    line(linesText(item.contextLines)),
    line(notes?.[0]),
  ];
}

/** Return how many passages have a context line, and why the others have none. */
function linesText(lines) {
  if (!lines) return "";
  const { made: count, of, failed, reason } = lines;
  const summary = t(failed > 0 ? "documents.contextLinesFailed" : "documents.contextLines", {
    made: count,
    of,
    failed,
  });
  return reason ? `${summary}: ${reason}` : summary;
}

/** Ask for one file. Resolves to undefined if the user chooses none. */
function chooseFile() {
  return new Promise((resolve) => {
    const chooser = h("input", { type: "file" });
    chooser.addEventListener("change", () => resolve(chooser.files[0]));
    chooser.addEventListener("cancel", () => resolve(undefined));
    chooser.click();
  });
}

/** Let the user add files with buttons, or by dropping files anywhere on the section. Returns `elements`, the hidden
 * inputs, and `buttons()`, which makes the buttons. */
function fileInputs(panel, take) {
  const files = h("input", {
    type: "file",
    multiple: true,
    class: "visually-hidden",
    tabindex: -1,
    "aria-hidden": "true",
  });
  const folder = h("input", {
    type: "file",
    multiple: true,
    webkitdirectory: "",
    class: "visually-hidden",
    tabindex: -1,
    "aria-hidden": "true",
  });
  // Without the list of formats, the file picker offers every file, and the server refuses those that it cannot read.
  api("GET", "/api/document-formats").then(
    ({ items }) =>
      (files.accept = items
        .filter((item) => item.mediaType)
        .map((item) => item.ending)
        .join(",")),
    () => undefined,
  );
  for (const chooser of [files, folder]) {
    chooser.addEventListener("change", () => {
      take([...chooser.files].filter(isWanted));
      chooser.value = "";
    });
  }
  const isFiles = (event) => event.dataTransfer?.types.includes("Files");
  let depth = 0;
  panel.ondragenter = (event) => {
    if (!isFiles(event)) return;
    event.preventDefault();
    depth += 1;
    panel.classList.add("drop-over");
  };
  panel.ondragover = (event) => isFiles(event) && event.preventDefault();
  panel.ondragleave = () => {
    depth = Math.max(0, depth - 1);
    if (!depth) panel.classList.remove("drop-over");
  };
  panel.ondrop = async (event) => {
    if (!isFiles(event)) return;
    event.preventDefault();
    depth = 0;
    panel.classList.remove("drop-over");
    try {
      take(await droppedFiles(event.dataTransfer));
    } catch (error) {
      toastError(error);
    }
  };
  const buttons = () => [
    button(t("documents.chooseFolder"), { icon: "domain", onclick: () => folder.click() }),
    button(t("documents.chooseFiles"), { kind: "primary", icon: "upload", onclick: () => files.click() }),
  ];
  return { elements: [files, folder], buttons };
}
