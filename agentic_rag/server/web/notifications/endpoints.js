// The notification endpoints of a domain or of the server: a list, a dialog that adds or changes one, and its
// deliveries.

import { api } from "../api.js";
import { h, replace } from "../dom.js";
import { t } from "../i18n.js";
import { dialogForm, moment, showProblem, toolbar } from "../operator/parts.js";
import {
  badge,
  button,
  checkbox,
  confirmLoss,
  copyButton,
  emptyState,
  field,
  input,
  openDialog,
  select,
  skeleton,
  table,
  toast,
} from "../ui.js";
import { keepFocus, watch } from "../watch.js";

const EVENTS = [
  "wait.created",
  "wait.answered",
  "turn.failed",
  "document.failed",
  "budget.crossed",
  "evaluation.finished",
  "schedule.finished",
  "server.signin_needed",
  "feedback.created",
];
const CHANNELS = {
  webhook: () => t("notifications.channelWebhook"),
  slack: () => "Slack",
  teams: () => "Teams",
  feishu: () => "Feishu",
  dingtalk: () => "DingTalk",
  wecom: () => "WeCom",
  mail: () => t("notifications.channelMail"),
};
const STATES = {
  pending: () => t("notifications.statePending"),
  delivered: () => t("notifications.stateDelivered"),
  parked: () => t("notifications.stateParked"),
};
const SIGNED = ["feishu", "dingtalk"];
export const LOOK_SECONDS = 5;

export const none = () => h("span", { class: "faint" }, "—");

/** Show the list of endpoints. Returns a function that stops the updates of the list. `base`: the endpoints' address in
 * the API. */
export async function showEndpoints(place, { base, app }) {
  const list = h("div", {}, skeleton());
  const lost = h("div", { hidden: true });
  const at = (endpoint, ...parts) => [base, encodeURIComponent(endpoint.id), ...parts].join("/");
  const again = () => watching.now();
  const columns = [
    {
      label: t("notifications.name"),
      cell: (endpoint) =>
        h(
          "div",
          {},
          h("div", { class: "wrap", dir: "auto" }, endpoint.name),
          h(
            "span",
            { class: "faint small wrap" },
            CHANNELS[endpoint.channel](),
            endpoint.address && ` · ${endpoint.address}`,
          ),
        ),
    },
    {
      label: t("notifications.events"),
      cell: (endpoint) =>
        h(
          "span",
          { class: "row row-tight" },
          endpoint.events.map((kind) => badge(kind)),
        ),
    },
    {
      label: t("notifications.state"),
      cell: (endpoint) =>
        h(
          "div",
          {},
          endpoint.enabled ? badge(t("notifications.on"), "ok") : badge(t("notifications.off")),
          endpoint.problem && h("p", { class: "small bad wrap" }, endpoint.problem),
          endpoint.pending > 0 && h("p", { class: "small" }, t("notifications.pending", { count: endpoint.pending })),
          endpoint.parked > 0 && h("p", { class: "small bad" }, t("notifications.parked", { count: endpoint.parked })),
        ),
    },
    { label: t("notifications.lastSent"), cell: (endpoint) => moment(endpoint.sentAt) ?? none() },
    {
      label: t("notifications.actions"),
      align: "end",
      cell: (endpoint) => [
        button(t("notifications.edit"), {
          kind: "quiet",
          onclick: () => edit(endpoint),
          "aria-label": t("notifications.editNamed", { name: endpoint.name }),
        }),
        button(t("notifications.deliveries"), {
          kind: "quiet",
          onclick: () => openDeliveries(endpoint),
          "aria-label": t("notifications.deliveriesOf", { name: endpoint.name }),
        }),
        endpoint.enabled &&
          button(t("notifications.test"), {
            kind: "quiet",
            onclick: () => test(endpoint),
            "aria-label": t("notifications.testNamed", { name: endpoint.name }),
          }),
        button(t("notifications.remove", { name: endpoint.name }), {
          kind: "quiet",
          icon: "trash",
          compact: true,
          onclick: () => remove(endpoint),
        }),
      ],
    },
  ];
  const content = (endpoints) =>
    table(t("notifications.endpoints"), columns, endpoints, {
      empty: emptyState(t("notifications.noEndpoints"), t("notifications.noEndpointsText"), { icon: "list" }),
    });

  async function test(endpoint) {
    await api("POST", at(endpoint, "test"));
    toast(t("notifications.testQueued"));
    await again();
  }

  async function remove(endpoint) {
    if (
      !(await confirmLoss(
        t("notifications.removeTitle", { name: endpoint.name }),
        t("notifications.removeText"),
        t("notifications.removeNow"),
      ))
    )
      return;
    await api("DELETE", at(endpoint));
    await again();
  }

  async function edit(endpoint) {
    const name = field(t("notifications.name"), input({ value: endpoint?.name ?? "" }));
    const channel = field(
      t("notifications.channel"),
      select(
        Object.entries(CHANNELS).map(([key, label]) => [key, label()]),
        { value: endpoint?.channel ?? "webhook", disabled: Boolean(endpoint), onchange: () => offer() },
      ),
    );
    const url = field(t("notifications.url"), input({ dir: "ltr", class: "input mono", placeholder: "https://" }), {
      hint: endpoint ? t("notifications.urlKept", { host: endpoint.address || "—" }) : t("notifications.urlHint"),
    });
    const address = field(
      t("notifications.mailAddress"),
      input({ dir: "ltr", type: "email", value: endpoint?.channel === "mail" ? endpoint.address : "" }),
    );
    const secret = field(
      t("notifications.robotSecret"),
      input({ dir: "ltr", type: "password", autocomplete: "new-password" }),
      { hint: t("notifications.robotSecretHint") },
    );
    const boxes = EVENTS.map((kind) =>
      field(kind, checkbox({ checked: endpoint ? endpoint.events.includes(kind) : kind === "wait.created" }), {
        inline: true,
      }),
    );
    const events = h("fieldset", { class: "fieldset" }, h("legend", {}, t("notifications.events")), boxes);
    const texts = field(t("notifications.withTexts"), checkbox({ checked: endpoint?.withTexts ?? false }), {
      inline: true,
      hint: t("notifications.withTextsHint"),
    });
    const mine = endpoint?.recipient || app.user.name;
    const links = field(t("notifications.links", { name: mine }), checkbox({ checked: Boolean(endpoint?.recipient) }), {
      inline: true,
      hint: t("notifications.linksHint"),
    });
    const enabled = field(t("notifications.enabled"), checkbox({ checked: endpoint?.enabled ?? true }), {
      inline: true,
    });
    const offer = () => {
      const chosen = channel.control.value;
      url.hidden = chosen === "mail";
      address.hidden = chosen !== "mail";
      secret.hidden = !SIGNED.includes(chosen);
    };
    offer();
    const send = async (close) => {
      const chosen = channel.control.value;
      const body = {
        name: name.control.value,
        events: EVENTS.filter((_, index) => boxes[index].control.checked),
        withTexts: texts.control.checked,
        recipient: links.control.checked ? mine : "",
        enabled: enabled.control.checked,
      };
      if (!endpoint) body.channel = chosen;
      if (chosen === "mail") body.address = address.control.value.trim();
      else if (!endpoint || url.control.value.trim()) body.url = url.control.value.trim();
      if (SIGNED.includes(chosen) && secret.control.value) body.secret = secret.control.value;
      const saved = await (endpoint ? api("PATCH", at(endpoint), { body }) : api("POST", base, { body }));
      close();
      await again();
      if (saved.secret) showSecret(saved.secret);
    };
    const fields = { name, channel, url, address, secret, recipient: links, enabled };
    const rotate =
      endpoint?.channel === "webhook" &&
      button(t("notifications.rotate"), {
        kind: "quiet",
        onclick: async () => showSecret((await api("POST", at(endpoint, "secret"))).secret),
      });
    const build = (close) =>
      dialogForm({
        fields,
        content: [name, channel, url, address, secret, events, texts, links, enabled, rotate].filter(Boolean),
        action: t("notifications.save"),
        send: () => send(close),
        close,
      });
    await openDialog(endpoint ? t("notifications.editNamed", { name: endpoint.name }) : t("notifications.add"), {
      build,
    }).closed;
  }

  async function openDeliveries(endpoint) {
    const inner = h("div", { class: "stack" }, skeleton());
    const problem = h("div", { hidden: true });
    const replay = async (...parts) => {
      await api("POST", at(endpoint, ...parts, "replay"));
      await watchingDeliveries.now();
    };
    const deliveryColumns = [
      { label: t("notifications.event"), cell: (delivery) => badge(delivery.kind) },
      {
        label: t("notifications.state"),
        cell: (delivery) =>
          h(
            "div",
            {},
            STATES[delivery.state](),
            delivery.problem && h("p", { class: "small bad wrap" }, delivery.problem),
          ),
      },
      { label: t("notifications.time"), cell: (delivery) => moment(delivery.createdAt) },
      {
        label: t("notifications.actions"),
        align: "end",
        cell: (delivery) =>
          delivery.state !== "pending" &&
          button(t("notifications.replay"), {
            kind: "quiet",
            onclick: () => replay("deliveries", encodeURIComponent(delivery.id)),
          }),
      },
    ];
    const draw = ({ items }) => [
      items.some(({ state }) => state === "parked") &&
        h("div", { class: "row" }, button(t("notifications.replayAll"), { onclick: () => replay() })),
      table(t("notifications.deliveriesOf", { name: endpoint.name }), deliveryColumns, items, {
        empty: h("p", { class: "soft" }, t("notifications.noDeliveries")),
      }),
    ];
    const dialog = openDialog(t("notifications.deliveriesOf", { name: endpoint.name }), {
      wide: true,
      build: () => [problem, inner],
      actions: (close) => [button(t("shell.close"), { onclick: () => close() })],
    });
    const watchingDeliveries = await watch(
      () => api("GET", at(endpoint, "deliveries")),
      (state) => keepFocus(inner, () => replace(inner, draw(state))),
      { seconds: LOOK_SECONDS, onerror: showProblem(problem) },
    ).catch((error) => (dialog.close(), Promise.reject(error)));
    await dialog.closed;
    watchingDeliveries();
    await again();
  }

  replace(
    place,
    toolbar(
      t("notifications.endpointsText"),
      button(t("notifications.add"), { kind: "primary", icon: "add", onclick: () => edit(null) }),
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

/** Show a secret once. No page shows it again. */
export function showSecret(secret, address = "") {
  const shown = h("code", { class: "wrap", dir: "ltr" }, secret);
  const build = () =>
    [
      h("p", {}, t("notifications.secretText")),
      address && h("p", {}, h("code", { class: "wrap", dir: "ltr" }, address)),
      h(
        "div",
        { class: "row" },
        shown,
        copyButton(t("notifications.copySecret"), () => secret),
      ),
    ].filter(Boolean);
  openDialog(t("notifications.secretTitle"), {
    lasting: true,
    build,
    actions: (close) => [button(t("shell.close"), { kind: "primary", onclick: () => close() })],
  });
}
