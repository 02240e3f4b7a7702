// Endpoints of notifications, of a domain or of the server: a list, a dialog to add or change one, and its deliveries.

import { api } from "../api.js";
import { h, replace } from "../dom.js";
import { t } from "../i18n.js";
import { dialogForm, moment, showProblem, toolbar } from "../operator/parts.js";
import { badge, button, checkbox, confirmLoss, copyButton, emptyState, field, input, openDialog, select, skeleton, table, toast } from "../ui.js";
import { keepFocus, watch } from "../watch.js";

const EVENTS = ["wait.created", "wait.answered", "turn.failed", "document.failed", "budget.crossed", "evaluation.finished", "schedule.finished", "server.signin_needed", "feedback.created"];
const CHANNELS = { webhook: () => t("notifications.channelWebhook"), slack: () => "Slack", teams: () => "Teams", feishu: () => "Feishu", dingtalk: () => "DingTalk", wecom: () => "WeCom", mail: () => t("notifications.channelMail") };
const STATES = { pending: () => t("notifications.statePending"), delivered: () => t("notifications.stateDelivered"), parked: () => t("notifications.stateParked") };
const SIGNED = ["feishu", "dingtalk"];
export const LOOK_SECONDS = 5;

export const none = () => h("span", { class: "faint" }, "—");

/** Show the endpoints below an address of the API (`base`). Returns a function that ends the watch of their states. */
export async function showEndpoints(place, { base, app }) {
  const list = h("div", {}, skeleton());
  const lost = h("div", { hidden: true });
  const at = (each, ...parts) => [base, encodeURIComponent(each.id), ...parts].join("/");
  const again = () => watching.now();
  const columns = [
    { label: t("notifications.name"), cell: (each) => h("div", {}, h("div", { class: "wrap", dir: "auto" }, each.name), h("span", { class: "faint small wrap" }, CHANNELS[each.channel](), each.address && ` · ${each.address}`)) },
    { label: t("notifications.events"), cell: (each) => h("span", { class: "row row-tight" }, each.events.map((kind) => badge(kind))) },
    { label: t("notifications.state"), cell: (each) => h("div", {}, each.enabled ? badge(t("notifications.on"), "good") : badge(t("notifications.off")), each.problem && h("p", { class: "small bad wrap" }, each.problem), each.pending > 0 && h("p", { class: "small" }, t("notifications.pending", { count: each.pending })), each.parked > 0 && h("p", { class: "small bad" }, t("notifications.parked", { count: each.parked }))) },
    { label: t("notifications.lastSent"), cell: (each) => moment(each.sentAt) ?? none() },
    {
      label: t("notifications.actions"),
      align: "end",
      cell: (each) => [
        button(t("notifications.edit"), { kind: "quiet", onclick: () => edit(each), "aria-label": t("notifications.editNamed", { name: each.name }) }),
        button(t("notifications.deliveries"), { kind: "quiet", onclick: () => openDeliveries(each), "aria-label": t("notifications.deliveriesOf", { name: each.name }) }),
        each.enabled && button(t("notifications.test"), { kind: "quiet", onclick: () => test(each), "aria-label": t("notifications.testNamed", { name: each.name }) }),
        button(t("notifications.remove", { name: each.name }), { kind: "quiet", icon: "trash", compact: true, onclick: () => remove(each) }),
      ],
    },
  ];
  const content = (endpoints) => table(t("notifications.endpoints"), columns, endpoints, { empty: emptyState(t("notifications.noEndpoints"), t("notifications.noEndpointsText"), { icon: "list" }) });

  async function test(each) {
    await api("POST", at(each, "test"));
    toast(t("notifications.testQueued"));
    await again();
  }

  async function remove(each) {
    if (!(await confirmLoss(t("notifications.removeTitle", { name: each.name }), t("notifications.removeText"), t("notifications.removeNow")))) return;
    await api("DELETE", at(each));
    await again();
  }

  async function edit(known) {
    const name = field(t("notifications.name"), input({ value: known?.name ?? "" }));
    const channel = field(t("notifications.channel"), select(Object.entries(CHANNELS).map(([key, label]) => [key, label()]), { value: known?.channel ?? "webhook", disabled: Boolean(known), onchange: () => offer() }));
    const url = field(t("notifications.url"), input({ dir: "ltr", class: "input mono", placeholder: "https://" }), { hint: known ? t("notifications.urlKept", { host: known.address || "—" }) : t("notifications.urlHint") });
    const address = field(t("notifications.mailAddress"), input({ dir: "ltr", type: "email", value: known?.channel === "mail" ? known.address : "" }));
    const secret = field(t("notifications.robotSecret"), input({ dir: "ltr", type: "password", autocomplete: "new-password" }), { hint: t("notifications.robotSecretHint") });
    const boxes = EVENTS.map((kind) => field(kind, checkbox({ checked: known ? known.events.includes(kind) : kind === "wait.created" }), { inline: true }));
    const events = h("fieldset", { class: "fieldset" }, h("legend", {}, t("notifications.events")), boxes);
    const texts = field(t("notifications.withTexts"), checkbox({ checked: known?.withTexts ?? false }), { inline: true, hint: t("notifications.withTextsHint") });
    const mine = known?.recipient || app.user.name;
    const links = field(t("notifications.links", { name: mine }), checkbox({ checked: Boolean(known?.recipient) }), { inline: true, hint: t("notifications.linksHint") });
    const enabled = field(t("notifications.enabled"), checkbox({ checked: known?.enabled ?? true }), { inline: true });
    const offer = () => {
      const chosen = channel.control.value;
      url.hidden = chosen === "mail";
      address.hidden = chosen !== "mail";
      secret.hidden = !SIGNED.includes(chosen);
    };
    offer();
    const send = async (close) => {
      const chosen = channel.control.value;
      const body = { name: name.control.value, events: EVENTS.filter((_, index) => boxes[index].control.checked), withTexts: texts.control.checked, recipient: links.control.checked ? mine : "", enabled: enabled.control.checked };
      if (!known) body.channel = chosen;
      if (chosen === "mail") body.address = address.control.value.trim();
      else if (!known || url.control.value.trim()) body.url = url.control.value.trim();
      if (SIGNED.includes(chosen) && secret.control.value) body.secret = secret.control.value;
      const made = await (known ? api("PATCH", at(known), { body }) : api("POST", base, { body }));
      close();
      await again();
      if (made.secret) showSecret(made.secret);
    };
    const fields = { name, channel, url, address, secret, recipient: links, enabled };
    const rotate = known?.channel === "webhook" && button(t("notifications.rotate"), { kind: "quiet", onclick: async () => showSecret((await api("POST", at(known, "secret"))).secret) });
    const build = (close) => dialogForm({ fields, content: [name, channel, url, address, secret, events, texts, links, enabled, rotate].filter(Boolean), action: t("notifications.save"), send: () => send(close), close });
    await openDialog(known ? t("notifications.editNamed", { name: known.name }) : t("notifications.add"), { build }).closed;
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
      { label: t("notifications.state"), cell: (delivery) => h("div", {}, STATES[delivery.state](), delivery.problem && h("p", { class: "small bad wrap" }, delivery.problem)) },
      { label: t("notifications.time"), cell: (delivery) => moment(delivery.createdAt) },
      { label: t("notifications.actions"), align: "end", cell: (delivery) => delivery.state !== "pending" && button(t("notifications.replay"), { kind: "quiet", onclick: () => replay("deliveries", encodeURIComponent(delivery.id)) }) },
    ];
    const draw = ({ items }) => [
      items.some(({ state }) => state === "parked") && h("div", { class: "row" }, button(t("notifications.replayAll"), { onclick: () => replay() })),
      table(t("notifications.deliveriesOf", { name: endpoint.name }), deliveryColumns, items, { empty: h("p", { class: "soft" }, t("notifications.noDeliveries")) }),
    ];
    const dialog = openDialog(t("notifications.deliveriesOf", { name: endpoint.name }), { wide: true, build: () => [problem, inner], actions: (close) => [button(t("shell.close"), { onclick: () => close() })] });
    const watchingDeliveries = await watch(() => api("GET", at(endpoint, "deliveries")), (state) => keepFocus(inner, () => replace(inner, draw(state))), { seconds: LOOK_SECONDS, onerror: showProblem(problem) }).catch((error) => (dialog.close(), Promise.reject(error)));
    await dialog.closed;
    watchingDeliveries();
    await again();
  }

  replace(place, toolbar(t("notifications.endpointsText"), button(t("notifications.add"), { kind: "primary", icon: "add", onclick: () => edit(null) })), lost, list);
  const watching = await watch(() => api("GET", base), ({ items }) => keepFocus(list, () => replace(list, content(items))), { seconds: LOOK_SECONDS, onerror: showProblem(lost) });
  return watching;
}

/** Show a secret that no page shows again. */
export function showSecret(secret, address = "") {
  const shown = h("code", { class: "wrap", dir: "ltr" }, secret);
  const build = () => [h("p", {}, t("notifications.secretText")), address && h("p", {}, h("code", { class: "wrap", dir: "ltr" }, address)), h("div", { class: "row" }, shown, copyButton(t("notifications.copySecret"), () => secret))].filter(Boolean);
  openDialog(t("notifications.secretTitle"), { lasting: true, build, actions: (close) => [button(t("shell.close"), { kind: "primary", onclick: () => close() })] });
}
