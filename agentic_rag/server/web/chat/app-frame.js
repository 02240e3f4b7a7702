// The app of an MCP server below a tool call: an untrusted page in a frame without origin and network. This module is
// the host in the protocol of MCP Apps (SEP-1865). The page gets the arguments and the result of the call. It can ask
// to open a link or to send a message; the user confirms each of these. It can call tools and read resources of its own
// server: the server decides which, and a person must approve a call if the domain's rules require it. All requests end
// when the app is closed or removed from the page.

import { api, apiFile } from "../api.js";
import { h, replace } from "../dom.js";
import { t } from "../i18n.js";
import { button, isDark, openDialog } from "../ui.js";
import { WaitCard } from "./waits.js";

const VERSION = "2026-01-26";
const LEAST_HEIGHT = 40;
const MOST_HEIGHT = 720;
const FIRST_HEIGHT = 160;
const MOST_CHARACTERS = 4_000;
const NO_METHOD = -32601;
const WRONG_PARAMS = -32602;
const DECLINED = -32000;
const LAST_WORDS_MS = 500;
const LOOK_MS = 1_000;

/** The app of one call. It ends when it is removed from the page.
 *
 * - `address`: the address of its page
 * - `name`: the name of its tool
 * - `send(text)`: sends a message as the user
 * - `mayAnswer(wait)`, `mayAllowAlways`: as for `WaitCard`
 * - `onEnd()`: called when the app was closed
 *
 * `update(call)` sends the result of the call to the app. */
export class AppFrame {
  constructor({ address, name, send, mayAnswer, mayAllowAlways, onEnd }) {
    Object.assign(this, { address, name, send, mayAnswer, mayAllowAlways, onEnd });
    this.hear = (event) => event.source === this.frame.contentWindow && this.#take(event.data);
    this.frame = h("iframe", {
      class: "app-frame",
      title: t("chat.app.of", { name }),
      sandbox: "allow-scripts allow-forms",
      referrerpolicy: "no-referrer",
      src: address,
    });
    this.frame.style.height = `${FIRST_HEIGHT}px`;
    this.questions = h("div", { class: "stack-small" });
    this.element = h(
      "div",
      { class: "app" },
      this.frame,
      this.questions,
      button(t("chat.app.close"), { kind: "quiet", class: "button button-small", onclick: () => this.#close() }),
    );
    this.isAsking = false;
    this.requests = new AbortController();
    this.lastId = 0;
    this.waiting = new Map();
    addEventListener("message", this.hear);
    const { signal } = this.requests;
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.#tellTheme(), { signal });
    this.themes = new MutationObserver(() => this.#tellTheme());
    this.themes.observe(document.documentElement, { attributes: true, attributeFilter: ["data-theme"] });
    this.looking = setInterval(() => !this.element.isConnected && this.#end(), LOOK_MS);
    addEventListener("pagehide", () => this.#end(), { signal });
  }

  /** Close the app as the protocol requires: the app gets a moment to clean up first. */
  async #close() {
    if (this.isReady) {
      const id = `teardown-${++this.lastId}`;
      const answered = new Promise((resolve) => this.waiting.set(id, resolve));
      this.#post({ id, method: "ui/resource-teardown", params: {} });
      await Promise.race([answered, new Promise((resolve) => setTimeout(resolve, LAST_WORDS_MS))]);
    }
    this.#end();
    this.onEnd();
  }

  /** End all requests, and stop listening to the app. */
  #end() {
    removeEventListener("message", this.hear);
    clearInterval(this.looking);
    this.themes.disconnect();
    this.requests.abort();
    replace(this.element);
  }

  #tellTheme() {
    if (this.isReady)
      this.#post({ method: "ui/notifications/host-context-changed", params: { theme: isDark() ? "dark" : "light" } });
  }

  update(call) {
    this.call = call;
    this.#tell();
  }

  /** Send the app the data that it does not have yet: first the arguments, then the result. */
  #tell() {
    const { call } = this;
    if (!this.isReady || !call) return;
    if (!this.hasInput && call.arguments) {
      this.hasInput = true;
      this.#post({ method: "ui/notifications/tool-input", params: { arguments: call.arguments } });
    }
    if (!this.hasInput || this.hasResult || !["ok", "error", "denied", "interrupted"].includes(call.status)) return;
    if (call.status === "interrupted" || call.status === "denied") {
      this.hasResult = true;
      return void this.#post({ method: "ui/notifications/tool-cancelled", params: { reason: call.status } });
    }
    if (!call.result || call.stored) return; // the result is loaded with the call's details
    this.hasResult = true;
    this.#tellResult(call).catch(
      (error) =>
        error.name !== "AbortError" &&
        this.#post({ method: "ui/notifications/tool-cancelled", params: { reason: String(error.message) } }),
    );
  }

  /** Send the app the whole result. A long one is stored separately and loaded first. */
  async #tellResult({ result, status }) {
    const { signal } = this.requests;
    const load = async (ref) => (await apiFile(`/api/payloads/${encodeURIComponent(ref)}`, { signal })).text();
    const content = result.ref ? await load(result.ref) : result.content;
    const structured = result.structured?._ref ? JSON.parse(await load(result.structured._ref)) : result.structured;
    const params = {
      content: content ? [{ type: "text", text: content }] : [],
      ...(structured ? { structuredContent: structured } : {}),
      isError: status === "error",
    };
    this.#post({ method: "ui/notifications/tool-result", params });
  }

  #post(message) {
    this.frame.contentWindow?.postMessage({ jsonrpc: "2.0", ...message }, "*");
  }

  #take(data) {
    if (data?.jsonrpc !== "2.0") return;
    if (typeof data.method !== "string") return void this.waiting.get(data.id)?.();
    const params = data.params && typeof data.params === "object" ? data.params : {};
    if (typeof data.id !== "string" && typeof data.id !== "number") return this.#note(data.method, params);
    this.#answer(data.method, params).then(
      (result) => this.#post({ id: data.id, result }),
      (error) =>
        this.#post({ id: data.id, error: { code: error.code ?? DECLINED, message: String(error.message ?? error) } }),
    );
  }

  #note(method, params) {
    if (method === "ui/notifications/initialized") {
      this.isReady = true;
      this.#tell();
    } else if (method === "ui/notifications/size-changed" && Number.isFinite(params.height)) {
      this.frame.style.height = `${Math.min(Math.max(Math.ceil(params.height), LEAST_HEIGHT), MOST_HEIGHT)}px`;
    } else if (method === "ui/notifications/request-teardown") {
      this.#close();
    }
  }

  async #answer(method, params) {
    switch (method) {
      case "ping":
        return {};
      case "ui/initialize":
        return this.#introduce();
      case "ui/request-display-mode":
        return { mode: "inline" };
      case "ui/open-link":
        return this.#openLink(params.url);
      case "ui/message":
        return this.#message(params.content);
      case "tools/call":
        return this.#callTool(params);
      case "resources/read":
        return this.#request("resources", { uri: params.uri });
      default:
        throw refusal(NO_METHOD, `${method.slice(0, 100)} is not available in this host`);
    }
  }

  #introduce() {
    return {
      protocolVersion: VERSION,
      hostInfo: { name: "agentic-rag", version: "1" },
      hostCapabilities: {
        openLinks: {},
        message: { text: {} },
        serverTools: {},
        serverResources: {},
        sandbox: { permissions: {}, csp: {} },
      },
      hostContext: {
        toolInfo: { tool: { name: this.name, inputSchema: { type: "object" } } },
        theme: isDark() ? "dark" : "light",
        displayMode: "inline",
        availableDisplayModes: ["inline"],
        containerDimensions: { width: this.element.clientWidth, maxHeight: MOST_HEIGHT },
        locale: document.documentElement.lang,
        platform: "web",
      },
    };
  }

  /** Send a request to this server as the user. When the app has ended, its requests are aborted. */
  async #request(what, body) {
    try {
      return await api("POST", `${this.address}/${what}`, { body, signal: this.requests.signal });
    } catch (error) {
      throw refusal(error.status === 404 || error.status === 422 ? WRONG_PARAMS : DECLINED, error.message, error);
    }
  }

  async #callTool({ name, arguments: callArguments }) {
    const call = { name, arguments: callArguments ?? {} };
    const { result, question } = await this.#request("tools", call);
    return question ? await this.#approve(call, question) : result;
  }

  /** Ask the user whether a call may run. Returns the result of the request. */
  #approve(call, question) {
    if (this.isAsking) throw refusal(DECLINED, "another question is open");
    this.isAsking = true;
    return new Promise((resolve, fail) => {
      const end = (settle, value) => {
        this.isAsking = false;
        replace(this.questions);
        settle(value);
      };
      const answer = async (_, action, content) => {
        const { result } = await this.#request("tools", { ...call, approval: { action, content } }).catch((error) =>
          Promise.reject(error.cause ?? error),
        );
        end(resolve, result);
      };
      const card = new WaitCard(answer, this.mayAnswer, this.mayAllowAlways);
      card.update({ ...question, waitId: question.id, expiresAt: null });
      replace(this.questions, card.element);
      card.element.scrollIntoView({ block: "nearest" });
      this.requests.signal.addEventListener("abort", () => end(fail, refusal(DECLINED, "the app was closed")));
    });
  }

  async #openLink(params) {
    let url;
    try {
      url = new URL(String(params).slice(0, MOST_CHARACTERS));
    } catch {
      throw refusal(WRONG_PARAMS, "the url is not valid");
    }
    if (url.protocol !== "https:" && url.protocol !== "http:")
      throw refusal(WRONG_PARAMS, "only http and https links can be opened");
    await this.#ask(t("chat.app.openLink"), url.href, t("chat.app.open"));
    window.open(url.href, "_blank", "noopener,noreferrer");
    return {};
  }

  async #message(content) {
    const blocks = Array.isArray(content) ? content : [content];
    const text = blocks
      .map((block) => (block?.type === "text" ? String(block.text) : ""))
      .join("\n\n")
      .trim();
    if (!text || text.length > MOST_CHARACTERS)
      throw refusal(WRONG_PARAMS, `a text of 1 to ${MOST_CHARACTERS} characters is expected`);
    await this.#ask(t("chat.app.sendMessage"), text, t("chat.app.send"));
    await this.send(text);
    return {};
  }

  /** Ask the user to confirm a request of the app, and show its text. Only one question may be open, because an app
   * could cover the page with several. */
  async #ask(title, text, action) {
    if (this.isAsking) throw refusal(DECLINED, "another question is open");
    this.isAsking = true;
    const actions = (close) => [
      button(t("shell.cancel"), { onclick: () => close(false) }),
      button(action, { kind: "primary", onclick: () => close(true) }),
    ];
    const build = () =>
      h(
        "div",
        { class: "stack-small" },
        h("p", { class: "soft small" }, t("chat.app.asks", { name: this.name })),
        h("p", { class: "wrap plain", dir: "auto" }, text),
      );
    const agreed = await openDialog(title, { build, actions }).closed;
    this.isAsking = false;
    if (!agreed) throw refusal(DECLINED, "the person declined");
  }
}

const refusal = (code, message, cause) => Object.assign(new Error(message, { cause }), { code });
