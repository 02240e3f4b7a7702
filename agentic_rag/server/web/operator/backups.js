// Backups: which there are, one made now, one read to its end; progress that survives a reload, since it is the server's.

import { api } from "../api.js";
import { h, replace } from "../dom.js";
import { formatBytes, t } from "../i18n.js";
import { badge, button, copyButton, emptyState, notice, progress, table, toast } from "../ui.js";
import { keepFocus, watch } from "../watch.js";
import { ago, card, code, facts, moment, showProblem, toolbar } from "./parts.js";

const BACKUPS = "/api/backups";

export async function show(place) {
  const job = h("div", { role: "status" });
  const list = h("div", { class: "stack" });
  const lost = h("div", { hidden: true });
  const make = button(t("operator.backUpNow"), { kind: "primary", icon: "download", onclick: () => begin(BACKUPS) });
  let looking = null;
  let running = null;
  const begin = async (path) => {
    await api("POST", path);
    await looking.now();
  };
  replace(place, toolbar(t("operator.backupsText"), make), lost, job, list);
  let bar = null;
  let shown = null;
  looking = await watch(
    () => api("GET", BACKUPS),
    (found) => {
      const now = found.job?.state === "running" ? found.job.id : null;
      if (running && !now && found.job?.id === running) tell(found.job); // without a job, the server has restarted
      running = now;
      make.disabled = Boolean(now);
      if (now) {
        if (!bar) {
          bar = progress("", { stop: () => api("POST", `${BACKUPS}/stop`) });
          replace(job, h("section", { class: "card" }, bar));
        }
        bar.set(0, 0, jobWords(found.job));
      } else {
        bar = null;
        replace(job, found.job ? outcome(found.job) : null);
      }
      const text = JSON.stringify([found.items, Boolean(now)]);
      if (text === shown) return;
      shown = text;
      keepFocus(list, () => replace(list, draw(found, (name) => begin(`${BACKUPS}/${encodeURIComponent(name)}/verify`), Boolean(now))));
    },
    {
      seconds: 1,
      onerror: showProblem(lost),
    },
  );
  return looking;
}

function jobWords(job) {
  const done = formatBytes(job.bytes);
  return job.kind === "write" ? t("operator.writing", { done, part: job.part }) : t("operator.verifying", { name: job.name, done });
}

const ENDS = {
  done: (job) => (job.kind === "write" ? t("operator.written", { name: job.name }) : t("operator.verified", { name: job.name })),
  failed: (job) => (job.kind === "write" ? t("operator.notWritten") : t("operator.notWhole", { name: job.name })),
  stopped: () => t("operator.jobStopped"),
};

function tell(job) {
  toast(ENDS[job.state](job), { kind: job.state === "failed" ? "error" : "" });
}

function outcome(job) {
  const kind = job.state === "failed" ? "bad" : "info";
  return notice(kind, h("p", {}, ENDS[job.state](job), " ", h("span", { class: "faint" }, ago(job.endedAt))), job.reason && h("p", { class: "wrap" }, job.reason));
}

function draw(found, verify, busy) {
  const columns = [
    { label: t("operator.made"), cell: (each) => moment(each.madeAt) },
    { label: t("operator.file"), cell: (each) => [code(each.name), " ", each.beforeUpgrade && badge(t("operator.beforeUpgrade"))] },
    { label: t("operator.size"), align: "end", cell: (each) => formatBytes(each.sizeBytes) },
    { label: t("operator.actions"), align: "end", cell: (each) => button(t("operator.verifyBackup"), { icon: "shield", disabled: busy, onclick: () => verify(each.name), "aria-label": t("operator.verifyNamed", { name: each.name }) }) },
  ];
  const none = emptyState(t("operator.noBackups"), t("operator.noBackupsText"), { icon: "archive" });
  return [
    table(t("operator.backups"), columns, found.items, { empty: none }),
    card(
      t("operator.backupCare"),
      {},
      h("p", {}, t("operator.backupCareText")),
      facts([
        [t("operator.folder"), h("span", { class: "row row-tight" }, code(found.folder), copyButton(t("operator.copyFolder"), found.folder))],
        [t("operator.backupEvery"), found.everyHours ? t("operator.everyHours", { count: found.everyHours }) : t("operator.backupOff")],
        [t("operator.backupKeep"), t("operator.newest", { count: found.keep })],
        [t("operator.restoreWith"), code("agentic-rag restore FILE --data EMPTY_FOLDER")],
      ]),
    ),
  ];
}
