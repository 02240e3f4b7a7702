// The backups: a list, and buttons that make and verify one. The server keeps the progress, so a reload still shows it.

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
    (state) => {
      const jobId = state.job?.state === "running" ? state.job.id : null;
      // After a restart, the server reports no job.
      if (running && !jobId && state.job?.id === running) tell(state.job);
      running = jobId;
      make.disabled = Boolean(jobId);
      if (jobId) {
        if (!bar) {
          bar = progress("", { stop: () => api("POST", `${BACKUPS}/stop`) });
          replace(job, h("section", { class: "card" }, bar));
        }
        bar.set(0, 0, jobWords(state.job));
      } else {
        bar = null;
        replace(job, state.job ? outcome(state.job) : null);
      }
      const text = JSON.stringify([state.items, Boolean(jobId)]);
      if (text === shown) return;
      shown = text;
      keepFocus(list, () =>
        replace(
          list,
          draw(state, (name) => begin(`${BACKUPS}/${encodeURIComponent(name)}/verify`), Boolean(jobId)),
        ),
      );
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
  return job.kind === "write"
    ? t("operator.writing", { done, part: job.part })
    : t("operator.verifying", { name: job.name, done });
}

const ENDS = {
  done: (job) =>
    job.kind === "write" ? t("operator.written", { name: job.name }) : t("operator.verified", { name: job.name }),
  failed: (job) => (job.kind === "write" ? t("operator.notWritten") : t("operator.notWhole", { name: job.name })),
  stopped: () => t("operator.jobStopped"),
};

function tell(job) {
  toast(ENDS[job.state](job), { kind: job.state === "failed" ? "error" : "" });
}

function outcome(job) {
  const kind = job.state === "failed" ? "bad" : "info";
  return notice(
    kind,
    h("p", {}, ENDS[job.state](job), " ", h("span", { class: "faint" }, ago(job.endedAt))),
    job.reason && h("p", { class: "wrap" }, job.reason),
  );
}

function draw(state, verify, busy) {
  const columns = [
    { label: t("operator.made"), cell: (backup) => moment(backup.madeAt) },
    {
      label: t("operator.file"),
      cell: (backup) => [code(backup.name), " ", backup.beforeUpgrade && badge(t("operator.beforeUpgrade"))],
    },
    { label: t("operator.size"), align: "end", cell: (backup) => formatBytes(backup.sizeBytes) },
    {
      label: t("operator.actions"),
      align: "end",
      cell: (backup) =>
        button(t("operator.verifyBackup"), {
          icon: "shield",
          disabled: busy,
          onclick: () => verify(backup.name),
          "aria-label": t("operator.verifyNamed", { name: backup.name }),
        }),
    },
  ];
  const none = emptyState(t("operator.noBackups"), t("operator.noBackupsText"), { icon: "archive" });
  return [
    table(t("operator.backups"), columns, state.items, { empty: none }),
    card(
      t("operator.backupCare"),
      {},
      h("p", {}, t("operator.backupCareText")),
      facts([
        [
          t("operator.folder"),
          h("span", { class: "row row-tight" }, code(state.folder), copyButton(t("operator.copyFolder"), state.folder)),
        ],
        [
          t("operator.backupEvery"),
          state.everyHours ? t("operator.everyHours", { count: state.everyHours }) : t("operator.backupOff"),
        ],
        [t("operator.backupKeep"), t("operator.newest", { count: state.keep })],
        [t("operator.restoreWith"), code("agentic-rag restore FILE --data EMPTY_FOLDER")],
      ]),
    ),
  ];
}
