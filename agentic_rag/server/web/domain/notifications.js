// The notification endpoints and the schedules of a domain.

import { h } from "../dom.js";
import { t } from "../i18n.js";
import { showEndpoints } from "../notifications/endpoints.js";
import { showSchedules } from "../notifications/schedules.js";

export async function show(panel, { domain, app }) {
  const endpoints = h("section", { class: "stack" });
  const schedules = h("section", { class: "stack" });
  panel.append(
    h(
      "div",
      { class: "stack" },
      h("h2", {}, t("notifications.endpoints")),
      endpoints,
      h("h2", {}, t("notifications.schedules")),
      schedules,
    ),
  );
  const lists = await Promise.allSettled([
    showEndpoints(endpoints, { base: `/api/domains/${encodeURIComponent(domain.id)}/endpoints`, app }),
    showSchedules(schedules, { domain }),
  ]);
  const leave = () => lists.forEach(({ value: end }) => end?.());
  const failed = lists.find(({ status }) => status === "rejected");
  if (!failed) return leave;
  leave();
  throw failed.reason;
}
