// The notification endpoints of the server, which receive the events of all domains.

import { loadWords } from "../i18n.js";
import { showEndpoints } from "../notifications/endpoints.js";

export async function show(place, { app }) {
  await loadWords("notifications");
  return await showEndpoints(place, { base: "/api/endpoints", app });
}
