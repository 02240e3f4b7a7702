// The app of an MCP server below a tool call: a stranger's page in a frame without origin and network, and the host's side
// of the protocol of MCP Apps (SEP-1865) with it. The page gets the call's arguments and result. It can ask to open a link
// or to send a message; a person confirms each. It cannot call tools.

import { h, replace } from "../dom.js";
import { t } from "../i18n.js";
import { button, isDark, openDialog } from "../ui.js";

const VERSION = "2026-01-26";
const LEAST_HEIGHT = 40;
const MOST_HEIGHT = 720;
const FIRST_HEIGHT = 160;
const MOST_CHARACTERS = 4_000;
const NO_METHOD = -32601;
const WRONG_PARAMS = -32602;
const DECLINED = -32000;

/** The app of one call. `address`: of its page; `name`: of its tool; `send(text)`: sends a message of the person.
 * `update(call)` tells the app the call's result; `end()` removes it. */
export class AppFrame {
  constructor({ address, name, send }) {
    this.name = name;
    this.send = send;
    this.hear = (event) => event.source === this.frame.contentWindow && this.#take(event.data);
    this.frame = h("iframe", { class: "app-frame", title: t("chat.app.of", { name }), sandbox: "allow-scripts allow-forms", referrerpolicy: "no-referrer", src: address });
    this.frame.style.height = `${FIRST_HEIGHT}px`;
    this.element = h("div", { class: "app" }, this.frame);
    this.isAsking = false;
    addEventListener("message", this.hear);
  }

  end() {
    removeEventListener("message", this.hear);
    replace(this.element);
  }

  update(call) {
    this.call = call;
    this.#tell();
  }

  /** Send the app what it has not got yet: first the arguments, then the result. */
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
    if (!call.result) return; // it is loaded with the call's details
    this.hasResult = true;
    const { content, structured } = call.result;
    const whole = structured && !structured._ref ? { structuredContent: structured } : {};
    this.#post({ method: "ui/notifications/tool-result", params: { content: content ? [{ type: "text", text: content }] : [], ...whole, isError: call.status === "error" } });
  }

  #post(message) {
    this.frame.contentWindow?.postMessage({ jsonrpc: "2.0", ...message }, "*");
  }

  #take(data) {
    if (data?.jsonrpc !== "2.0" || typeof data.method !== "string") return;
    const params = data.params && typeof data.params === "object" ? data.params : {};
    if (typeof data.id !== "string" && typeof data.id !== "number") return this.#note(data.method, params);
    this.#answer(data.method, params).then(
      (result) => this.#post({ id: data.id, result }),
      (error) => this.#post({ id: data.id, error: { code: error.code ?? DECLINED, message: String(error.message ?? error) } }),
    );
  }

  #note(method, params) {
    if (method === "ui/notifications/initialized") {
      this.isReady = true;
      this.#tell();
    } else if (method === "ui/notifications/size-changed" && Number.isFinite(params.height)) {
      this.frame.style.height = `${Math.min(Math.max(Math.ceil(params.height), LEAST_HEIGHT), MOST_HEIGHT)}px`;
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
      default:
        throw refusal(NO_METHOD, `${method.slice(0, 100)} is not available in this host`);
    }
  }

  #introduce() {
    return {
      protocolVersion: VERSION,
      hostInfo: { name: "agentic-rag", version: "1" },
      hostCapabilities: { openLinks: {}, message: { text: {} }, sandbox: { permissions: {}, csp: {} } },
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

  async #openLink(given) {
    let url;
    try {
      url = new URL(String(given).slice(0, MOST_CHARACTERS));
    } catch {
      throw refusal(WRONG_PARAMS, "the url is not valid");
    }
    if (url.protocol !== "https:" && url.protocol !== "http:") throw refusal(WRONG_PARAMS, "only http and https links can be opened");
    await this.#ask(t("chat.app.openLink"), url.href, t("chat.app.open"));
    window.open(url.href, "_blank", "noopener,noreferrer");
    return {};
  }

  async #message(content) {
    const blocks = Array.isArray(content) ? content : [content];
    const text = blocks.map((each) => (each?.type === "text" ? String(each.text) : "")).join("\n\n").trim();
    if (!text || text.length > MOST_CHARACTERS) throw refusal(WRONG_PARAMS, `a text of 1 to ${MOST_CHARACTERS} characters is expected`);
    await this.#ask(t("chat.app.sendMessage"), text, t("chat.app.send"));
    await this.send(text);
    return {};
  }

  /** Ask the person, who sees what the app wants. One question at a time, or an app could cover the page with them. */
  async #ask(title, text, action) {
    if (this.isAsking) throw refusal(DECLINED, "another question is open");
    this.isAsking = true;
    const actions = (close) => [button(t("shell.cancel"), { onclick: () => close(false) }), button(action, { kind: "primary", onclick: () => close(true) })];
    const build = () => h("div", { class: "stack-small" }, h("p", { class: "soft small" }, t("chat.app.asks", { name: this.name })), h("p", { class: "wrap plain", dir: "auto" }, text));
    const agreed = await openDialog(title, { build, actions }).closed;
    this.isAsking = false;
    if (!agreed) throw refusal(DECLINED, "the person declined");
  }
}

const refusal = (code, message) => Object.assign(new Error(message), { code });
