// Requests to the server: JSON in and out, errors as ApiError. If the session has ended, a request asks for a sign-in
// and is sent again.

import { below } from "./dom.js";
import { detailsInWords, errorText, loadErrorTexts } from "./errors/text.js";
import { t } from "./i18n.js";

export class ApiError extends Error {
  /** Create an error.
   *
   * - `status`: the HTTP status, or 0 if the server could not be reached
   * - `code`, `details`: as documented in the API
   * - `message`: in the user's language
   * - `requestId`: the id under which the server logged the request */
  constructor(status, code, message, details, requestId) {
    super(message);
    this.name = "ApiError";
    this.hasText = true;
    this.status = status;
    this.code = code;
    this.details = details ?? {};
    this.requestId = requestId ?? "";
  }

  get isOffline() {
    return this.status === 0;
  }

  /** Return the path of the invalid field as the server names it, or "". */
  get path() {
    return this.details.path ?? "";
  }
}

let signInAgain = null;

/** Set the function that asks for a sign-in. It resolves to whether a user is signed in. */
export function onSignedOut(ask) {
  signInAgain = ask;
}

/** Make a request and return its JSON, or null if the response has no body. Raises ApiError, or AbortError if the
 * request was aborted.
 *
 * - `body`: JSON, FormData or a Blob
 * - `query`: parameters; those that are null or "" are left out
 * - `ifMatch`: the version that must be the stored one; "" if nothing may be stored yet
 * - `signal`: aborts the request
 * - `asIs`: do not ask for a sign-in if the session has ended */
export async function api(method, path, options = {}) {
  const response = await send(method, path, options);
  return response.status === 204 || response.status === 304 ? null : await response.json();
}

/** Make a request and return the response body as a stream of bytes. `accept`: its media type. */
export async function apiStream(method, path, options = {}) {
  return (await send(method, path, options)).body;
}

/** Make a GET request and return the response body as a Blob. */
export async function apiFile(path, options = {}) {
  return await (await send("GET", path, options)).blob();
}

async function send(method, path, options) {
  for (let again = true; ; again = false) {
    const response = await sendOnce(method, path, options);
    if (response.ok || response.status === 304) return response;
    const error = await errorOf(response);
    if (error.status !== 401 || !again || !signInAgain || options.asIs) throw error;
    if (!(await signInAgain())) throw error;
  }
}

async function sendOnce(method, path, { body, query, signal, ifMatch, accept }) {
  const address = below(path) + asQuery(query);
  const headers = { Accept: accept ?? "application/json" };
  if (method !== "GET") headers["X-Requested-With"] = "console";
  if (ifMatch === "") headers["If-None-Match"] = "*";
  else if (ifMatch !== undefined && ifMatch !== null) headers["If-Match"] = `"${ifMatch}"`;
  let sent;
  if (body instanceof FormData || body instanceof Blob) sent = body;
  else if (body !== undefined) {
    headers["Content-Type"] = "application/json";
    sent = JSON.stringify(body);
  }
  try {
    return await fetch(address, {
      method,
      headers,
      body: sent,
      signal,
      credentials: "same-origin",
      redirect: "error",
      keepalive: method === "DELETE", // closing the page sends the deletions that wait for Undo, see `doLater`
    });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw unreachable();
  }
}

const unreachable = () =>
  new ApiError(0, "OFFLINE", t(navigator.onLine === false ? "shell.offline" : "shell.unreachable"));

async function errorOf(response) {
  const text = await response.text().catch(() => "");
  let answer = null;
  try {
    answer = JSON.parse(text).error;
  } catch {
    // The response came from a proxy or another server between the browser and this one.
  }
  return await errorFrom(response.status, answer, response.headers.get("X-Request-Id"));
}

/** Return the ApiError for an error response. `answer`: its `{code, message, details, requestId}`, or null if the body
 * was unreadable. */
export async function errorFrom(status, answer, requestId) {
  if (!answer?.message)
    return new ApiError(
      status,
      answer?.code ?? "UNEXPECTED",
      t("shell.unexpected", { status }),
      answer?.details,
      answer?.requestId ?? requestId,
    );
  await loadErrorTexts();
  return new ApiError(
    status,
    answer.code,
    errorText(answer),
    detailsInWords(answer.details),
    answer.requestId ?? requestId,
  );
}

/** Return parameters as a query string with its "?", or "" if there are none. */
export function asQuery(query) {
  const parameters = new URLSearchParams();
  for (const [name, value] of Object.entries(query ?? {})) {
    if (value !== null && value !== undefined && value !== "") parameters.append(name, String(value));
  }
  const text = parameters.toString();
  return text && `?${text}`;
}

/** Return a function that imports a module by calling `load(again)`. `again` is a suffix for the module's address.
 * After a failed fetch, the next call uses another address, because a browser remembers that the first one failed. */
export function lazily(load) {
  let failed = 0;
  return async () => {
    try {
      return await load(failed ? `?again=${failed}` : "");
    } catch (error) {
      if (!(error instanceof TypeError)) throw error;
      failed += 1;
      throw unreachable();
    }
  };
}

/** Wait for several loads and return their results. A failure is raised only after all of them have ended. A retry then
 * starts each failed load again and does not join one that is about to fail. */
export async function loadAll(...loads) {
  await Promise.allSettled(loads);
  return Promise.all(loads);
}
