// The schedules of a domain: a list, a dialog that adds or changes one, and its runs.

import { api } from "../api.js";
import { h, replace } from "../dom.js";
import { t } from "../i18n.js";
import { dialogForm, moment, showProblem, toolbar } from "../operator/parts.js";
import {
  badge,
  button,
  checkbox,
  confirmLoss,
  emptyState,
  field,
  input,
  openDialog,
  select,
  skeleton,
  table,
  textarea,
  toast,
} from "../ui.js";
import { keepFocus, watch } from "../watch.js";
import { LOOK_SECONDS, none, showSecret } from "./endpoints.js";

const CATCH_UP = {
  skip: () => t("notifications.catchSkip"),
  once: () => t("notifications.catchOnce"),
  all: () => t("notifications.catchAll"),
};
const STATES = {
  claimed: () => t("notifications.stateWaiting"),
  running: () => t("notifications.stateRunning"),
  done: () => t("notifications.stateDone"),
  failed: () => t("notifications.stateFailed"),
  skipped: () => t("notifications.stateSkipped"),
};

/** Show the list of schedules. Returns a function that stops the updates of the list. */
export async function showSchedules(place, { domain }) {
  const base = `/api/domains/${encodeURIComponent(domain.id)}/schedules`;
  const list = h("div", {}, skeleton());
  const lost = h("div", { hidden: true });
  const at = (schedule, ...parts) => [base, encodeURIComponent(schedule.id), ...parts].join("/");
  const again = () => watching.now();
  const columns = [
    {
      label: t("notifications.name"),
      cell: (schedule) =>
        h(
          "div",
          {},
          h("div", { class: "wrap", dir: "auto" }, schedule.name),
          h("span", { class: "faint small" }, t("notifications.runsAs", { name: schedule.ownerId })),
        ),
    },
    {
      label: t("notifications.when"),
      cell: (schedule) =>
        schedule.cron
          ? h("div", {}, h("code", {}, schedule.cron), " ", h("span", { class: "faint small" }, schedule.timeZone))
          : h("div", {}, t("notifications.byWebhook"), " ", h("code", { class: "wrap small" }, schedule.trigger)),
    },
    {
      label: t("notifications.state"),
      cell: (schedule) =>
        h(
          "div",
          {},
          schedule.enabled ? badge(t("notifications.on"), "ok") : badge(t("notifications.off")),
          schedule.problem && h("p", { class: "small bad wrap" }, schedule.problem),
        ),
    },
    { label: t("notifications.next"), cell: (schedule) => moment(schedule.nextAt) ?? none() },
    {
      label: t("notifications.actions"),
      align: "end",
      cell: (schedule) => [
        button(t("notifications.edit"), {
          kind: "quiet",
          onclick: () => edit(schedule),
          "aria-label": t("notifications.editNamed", { name: schedule.name }),
        }),
        button(t("notifications.runs"), {
          kind: "quiet",
          onclick: () => openRuns(schedule),
          "aria-label": t("notifications.runsOf", { name: schedule.name }),
        }),
        button(t("notifications.runNow"), {
          kind: "quiet",
          onclick: () => runNow(schedule),
          "aria-label": t("notifications.runNowNamed", { name: schedule.name }),
        }),
        button(t("notifications.remove", { name: schedule.name }), {
          kind: "quiet",
          icon: "trash",
          compact: true,
          onclick: () => remove(schedule),
        }),
      ],
    },
  ];
  const content = (schedules) =>
    table(t("notifications.schedules"), columns, schedules, {
      empty: emptyState(t("notifications.noSchedules"), t("notifications.noSchedulesText"), { icon: "list" }),
    });

  async function runNow(schedule) {
    await api("POST", at(schedule, "run"));
    toast(t("notifications.runQueued", { name: schedule.name }));
    await again();
  }

  async function remove(schedule) {
    if (
      !(await confirmLoss(
        t("notifications.removeTitle", { name: schedule.name }),
        t("notifications.removeScheduleText"),
        t("notifications.removeNow"),
      ))
    )
      return;
    await api("DELETE", at(schedule));
    await again();
  }

  async function edit(schedule) {
    const { items: endpoints } = await api("GET", `/api/domains/${encodeURIComponent(domain.id)}/endpoints`);
    if (!list.isConnected) return; // the user left the page meanwhile
    const zone = schedule?.timeZone ?? Intl.DateTimeFormat().resolvedOptions().timeZone ?? "UTC";
    const mono = (value, props = {}) => input({ value, dir: "ltr", class: "input mono", ...props });
    const name = field(t("notifications.name"), input({ value: schedule?.name ?? "" }));
    const cron = field(
      t("notifications.cron"),
      mono(schedule?.cron ?? "0 7 * * MON-FRI", { disabled: Boolean(schedule && !schedule.cron) }),
      { hint: t("notifications.cronHint") },
    );
    const timeZone = field(t("notifications.timeZone"), mono(zone));
    const prompt = field(t("notifications.prompt"), textarea({ value: schedule?.prompt ?? "", dir: "auto" }));
    const role = field(t("notifications.role"), mono(schedule?.role ?? ""), { hint: t("notifications.roleHint") });
    const allowedTools = field(t("notifications.tools"), mono(schedule?.allowedTools.join(", ") ?? ""), {
      hint: t("notifications.toolsHint"),
    });
    const maxTokens = field(t("notifications.maxTokens"), mono(schedule?.maxTokens ?? "", { inputmode: "numeric" }), {
      hint: t("notifications.maxTokensHint"),
    });
    const endpointId = field(
      t("notifications.answerTo"),
      select(
        [["", t("notifications.answerConversation")], ...endpoints.map((endpoint) => [endpoint.id, endpoint.name])],
        { value: schedule?.endpointId ?? "" },
      ),
    );
    const catchUp = field(
      t("notifications.catchUp"),
      select(
        Object.entries(CATCH_UP).map(([key, label]) => [key, label()]),
        { value: schedule?.catchUp ?? "once" },
      ),
    );
    const maxFailures = field(
      t("notifications.maxFailures"),
      mono(schedule?.maxFailures ?? 3, { inputmode: "numeric" }),
    );
    const enabled = field(t("notifications.enabled"), checkbox({ checked: schedule?.enabled ?? true }), {
      inline: true,
    });
    const number = (text, fallback) => (text.trim() === "" ? fallback : Number(text));
    const send = async (close) => {
      const tools = allowedTools.control.value.split(/[,\s]+/u).filter(Boolean);
      const body = {
        name: name.control.value,
        timeZone: timeZone.control.value.trim(),
        prompt: prompt.control.value,
        role: role.control.value.trim(),
        allowedTools: tools,
        maxTokens: number(maxTokens.control.value, schedule ? 0 : null),
        endpointId: endpointId.control.value,
        catchUp: catchUp.control.value,
        maxFailures: number(maxFailures.control.value, 3),
        enabled: enabled.control.checked,
      };
      if (!schedule || schedule.cron) body.cron = cron.control.value.trim();
      const saved = await (schedule ? api("PATCH", at(schedule), { body }) : api("POST", base, { body }));
      close();
      await again();
      if (saved.secret) showSecret(saved.secret, saved.trigger);
    };
    const fields = {
      name,
      cron,
      timeZone,
      prompt,
      role,
      allowedTools,
      maxTokens,
      endpointId,
      catchUp,
      maxFailures,
      enabled,
    };
    const build = (close) =>
      dialogForm({
        fields,
        content: Object.values(fields),
        action: t("notifications.save"),
        send: () => send(close),
        close,
      });
    await openDialog(
      schedule ? t("notifications.editNamed", { name: schedule.name }) : t("notifications.addSchedule"),
      { build },
    ).closed;
  }

  async function openRuns(schedule) {
    const inner = h("div", { class: "stack" }, skeleton());
    const problem = h("div", { hidden: true });
    const chat = (run) => `#/chat/${encodeURIComponent(domain.id)}/${encodeURIComponent(run.conversationId)}`;
    const dialog = openDialog(t("notifications.runsOf", { name: schedule.name }), {
      wide: true,
      build: () => [problem, inner],
      actions: (close) => [button(t("shell.close"), { onclick: () => close() })],
    });
    const runColumns = [
      { label: t("notifications.time"), cell: (run) => moment(run.createdAt) },
      {
        label: t("notifications.state"),
        cell: (run) => h("div", {}, STATES[run.state](), run.detail && h("p", { class: "small wrap" }, run.detail)),
      },
      {
        label: t("notifications.conversation"),
        cell: (run) =>
          run.conversationId
            ? h("a", { href: chat(run), onclick: () => dialog.close() }, t("notifications.openConversation"))
            : none(),
      },
    ];
    const draw = ({ items }) =>
      table(t("notifications.runsOf", { name: schedule.name }), runColumns, items, {
        empty: h("p", { class: "soft" }, t("notifications.noRuns")),
      });
    const endWatch = await watch(
      () => api("GET", at(schedule, "firings")),
      (runs) => keepFocus(inner, () => replace(inner, draw(runs))),
      { seconds: LOOK_SECONDS, onerror: showProblem(problem) },
    ).catch((error) => (dialog.close(), Promise.reject(error)));
    await dialog.closed;
    endWatch();
    await again();
  }

  replace(
    place,
    toolbar(
      t("notifications.schedulesText"),
      button(t("notifications.addSchedule"), { kind: "primary", icon: "add", onclick: () => edit(null) }),
    ),
    lost,
    list,
  );
  const watching = await watch(
    () => api("GET", base),
    ({ items }) => keepFocus(list, () => replace(list, content(items))),
    { seconds: LOOK_SECONDS, onerror: showProblem(lost) },
  );
  return watching;
}
