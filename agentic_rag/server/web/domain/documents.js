// The documents of a domain: sending them, and where each stands.

import { api } from "../api.js";
import { h, replace } from "../dom.js";
import { compareTexts, formatBytes, formatDate, formatNumber, t } from "../i18n.js";
import { badge, button, doLater, emptyState, input, loadInto, menu, notice, progress, select, toast, toastError } from "../ui.js";
import { openDocument } from "./document.js";
import { droppedFiles, isWanted, uploadFiles } from "./uploading.js";

const POLL_MS = 1200;
const SHOWN_AT_ONCE = 200;
const KINDS = { indexed: "ok", failed: "bad" };

export async function show(panel, { domain, rest, app }) {
  const base = `/api/domains/${encodeURIComponent(domain.id)}/documents`;
  const mayChange = app.can(domain.id, "admin");
  const gone = new Set();
  let all = [];
  let shownCount = SHOWN_AT_ONCE;
  let timer = 0;
  let left = false;

  const sending = h("div", { class: "stack-small" });
  const refused = h("div", { class: "stack-small" });
  const search = input({ type: "search", placeholder: t("documents.find"), "aria-label": t("documents.find"), dataset: { search: "" }, oninput: () => draw() });
  const state = select(
    ["", "indexed", "working", "failed"].map((each) => [each, t(`documents.filter.${each || "all"}`)]),
    { "aria-label": t("documents.filter"), onchange: () => draw() },
  );
  const tools = h("div", { class: "toolbar" }, h("div", { class: "grow" }, search), state);
  const list = h("div", {});
  const zone = mayChange && dropZone(panel, (files) => send(files));
  replace(panel, h("div", { class: "stack" }, zone, sending, refused, tools, list));

  const visible = () => {
    const wanted = search.value.trim().toLowerCase();
    const fits = { "": () => true, indexed: (each) => each.status === "indexed", failed: (each) => each.status === "failed", working: isWorking }[state.value];
    return all.filter((each) => !gone.has(each.id) && each.name.toLowerCase().includes(wanted) && fits(each));
  };

  function draw() {
    // an open menu is not taken away from under the pointer; the next look draws
    if (list.querySelector(".menu:popover-open")) return;
    const focused = document.activeElement?.closest?.("[data-key]")?.dataset.key;
    replace(list, content());
    if (focused) list.querySelector(`[data-key="${CSS.escape(focused)}"]`)?.focus();
  }

  function content() {
    const found = visible();
    const any = all.some((each) => !gone.has(each.id));
    tools.hidden = !any;
    if (zone) zone.classList.toggle("drop-large", !any);
    if (!any) return emptyState(t("documents.empty"), t(mayChange ? "documents.emptyAdmin" : "documents.emptyMember"), { icon: "page" });
    if (!found.length) return h("p", { class: "soft", role: "status" }, t("documents.noneFound"));
    const more = found.length > shownCount && button(t("documents.more", { count: found.length - shownCount }), { onclick: () => ((shownCount += SHOWN_AT_ONCE), draw()) });
    return [h("ul", { class: "rows", "aria-label": t("documents.list") }, found.slice(0, shownCount).map(row)), more];
  }

  function row(item) {
    const facts = [
      item.pageCount && t("documents.pages", { count: item.pageCount }),
      item.chunkCount && t("documents.chunks", { count: item.chunkCount }),
      formatBytes(item.size),
      formatDate(item.createdAt, { time: false }),
    ].filter(Boolean);
    const actions = [
      { label: t("documents.open"), icon: "page", act: () => open(item) },
      { label: t("documents.download"), icon: "download", act: () => download(item) },
      mayChange && item.status === "failed" && { label: t("documents.retry"), icon: "retry", act: () => retry(item) },
      mayChange && null,
      mayChange && { label: t("documents.delete"), icon: "trash", danger: true, act: () => remove(item) },
    ].filter((each) => each !== false);
    const name = h("button", { type: "button", class: "row-name", dir: "auto", dataset: { key: item.id }, onclick: () => open(item) }, item.name);
    const reason = item.error?.message ?? item.progress.notes?.[0];
    return h(
      "li",
      { class: "rows-item" },
      h("div", { class: "grow" }, name, h("div", { class: "faint small fact-line" }, facts.map((each) => h("span", {}, each))), reason && h("p", { class: item.error ? "small bad wrap" : "small soft wrap", dir: "auto" }, reason), isWorking(item) && stageBar(item)),
      h("div", { class: "rows-end" }, stateBadge(item), item.status === "failed" && mayChange && button(t("documents.retry"), { kind: "quiet", icon: "retry", onclick: () => retry(item) }), menu(t("documents.actions", { name: item.name }), actions)),
    );
  }

  async function load() {
    clearTimeout(timer);
    const { items } = await api("GET", base);
    all = items.sort((first, second) => second.createdAt.localeCompare(first.createdAt) || compareTexts(first.name, second.name));
    return all;
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
    if (!left && all.some(isWorking)) timer = setTimeout(poll, POLL_MS);
  }

  async function send(files) {
    if (!files.length) return;
    const stop = new AbortController();
    const bar = progress(t("documents.sending", { count: files.length }), { stop: () => stop.abort() });
    sending.append(bar);
    const problems = [];
    const onItems = (items) => {
      problems.push(...items.filter((each) => each.status === "refused"));
      clearTimeout(timer);
      poll();
    };
    try {
      const onProgress = (sent, of) => bar.set(sent, of, t("documents.sendingBytes", { count: files.length, sent: formatBytes(sent), of: formatBytes(of) }));
      const count = await uploadFiles(domain.id, files, { signal: stop.signal, onProgress, onItems });
      if (stop.signal.aborted) toast(t("documents.stopped", { sent: count, of: files.length }));
      else app.announce(t("documents.sent", { count }));
    } catch (error) {
      problems.push({ name: "", error: { message: error.message } });
    } finally {
      bar.remove();
      if (problems.length && !left) refused.append(refusals(problems));
    }
  }

  function refusals(problems) {
    const box = notice(
      "bad",
      h("p", { class: "strong" }, t("documents.refused", { count: problems.length })),
      h("ul", { class: "plain-list" }, problems.map(({ name, error }) => h("li", { dir: "auto" }, name && h("span", { class: "strong" }, `${name}: `), error.message))),
      button(t("documents.understood"), { kind: "quiet", onclick: () => box.remove() }),
    );
    return box;
  }

  async function retry(item) {
    await api("POST", `${base}/${item.id}/retry`);
    await poll();
  }

  function remove(item) {
    gone.add(item.id);
    draw();
    const undo = () => {
      gone.delete(item.id);
      draw();
    };
    doLater(t("documents.deleted", { name: item.name }), { act: () => api("DELETE", `${base}/${item.id}`), undo });
  }

  const open = (item, chunkId) => openDocument(domain.id, item, { chunkId });

  function download(item) {
    const link = h("a", { href: `${base}/${item.id}/file`, download: item.name });
    document.body.append(link);
    link.click();
    link.remove();
  }

  await loadInto(list, load, content);
  if (rest[0]) {
    const named = all.find((each) => each.id === rest[0]);
    if (named) open(named, rest[1]);
  }
  if (all.some(isWorking)) timer = setTimeout(poll, POLL_MS);
  const wake = () => !document.hidden && poll();
  document.addEventListener("visibilitychange", wake);
  return () => {
    left = true;
    clearTimeout(timer);
    document.removeEventListener("visibilitychange", wake);
  };
}

const isWorking = (item) => !["indexed", "failed"].includes(item.status) || item.denseState === "pending";

function stateBadge(item) {
  if (item.status === "indexed" && item.denseState === "pending") return badge(t("documents.state.dense"), "wait");
  return badge(t(`documents.state.${item.status}`), KINDS[item.status] ?? "wait");
}

function stageBar(item) {
  const { scanned, scans, chunksPerSecond } = item.progress;
  const [chunks, of] = scans ? [scanned, scans] : [item.progress.chunks, item.progress.of];
  const label = t("documents.progressOf", { name: item.name });
  const bar = h("progress", { "aria-label": label, class: "stage-bar" });
  if (of) {
    bar.max = of;
    bar.value = chunks ?? 0;
  }
  const words = scans ? t("documents.scanning", { page: Math.min(scanned + 1, scans), of: scans }) : of ? t("documents.stage", { done: chunks ?? 0, of }) : "";
  const rate = chunksPerSecond ? t("documents.rate", { rate: formatNumber(chunksPerSecond, { maximumFractionDigits: 0 }) }) : "";
  return h("div", { class: "stage small faint" }, bar, h("span", {}, [words, rate].filter(Boolean).join(" · ")));
}

/** Where files are dropped: the box, and the whole tab while something is dragged over it. */
function dropZone(panel, take) {
  const files = h("input", { type: "file", multiple: true, class: "visually-hidden", tabindex: -1, "aria-hidden": "true" });
  const folder = h("input", { type: "file", multiple: true, webkitdirectory: "", class: "visually-hidden", tabindex: -1, "aria-hidden": "true" });
  // without the list, the picker offers every file, and the server says which it does not read
  api("GET", "/api/document-formats").then(
    ({ items }) => (files.accept = items.filter((each) => each.mediaType).map((each) => each.ending).join(",")),
    () => undefined,
  );
  for (const each of [files, folder]) {
    each.addEventListener("change", () => {
      take([...each.files].filter(isWanted));
      each.value = "";
    });
  }
  const zone = h(
    "section",
    { class: "drop", "aria-label": t("documents.add") },
    h("p", { class: "soft" }, t("documents.drop")),
    h("div", { class: "row" }, button(t("documents.chooseFiles"), { kind: "primary", icon: "upload", onclick: () => files.click() }), button(t("documents.chooseFolder"), { icon: "domain", onclick: () => folder.click() })),
    h("p", { class: "faint small" }, t("documents.formats")),
    files,
    folder,
  );
  const isFiles = (event) => event.dataTransfer?.types.includes("Files");
  let depth = 0;
  panel.ondragenter = (event) => {
    if (!isFiles(event)) return;
    event.preventDefault();
    depth += 1;
    zone.classList.add("drop-over");
  };
  panel.ondragover = (event) => isFiles(event) && event.preventDefault();
  panel.ondragleave = () => {
    depth = Math.max(0, depth - 1);
    if (!depth) zone.classList.remove("drop-over");
  };
  panel.ondrop = async (event) => {
    if (!isFiles(event)) return;
    event.preventDefault();
    depth = 0;
    zone.classList.remove("drop-over");
    try {
      take(await droppedFiles(event.dataTransfer));
    } catch (error) {
      toastError(error);
    }
  };
  return zone;
}
