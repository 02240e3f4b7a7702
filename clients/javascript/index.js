// A client for Agentic RAG servers, for browsers and for node 22 and newer. It has no dependencies.
//
// `stream.js` is the module with which the server's own page connects, resumes and renders turns; `npm pack` copies it here.

import { emptyTurn, ENDS, FrameRefused, newKey, reduce, Stream, textOf } from "./stream.js";

export { emptyTurn, ENDS, FrameRefused, newKey, reduce, Stream, textOf };

/** The server refused a request: `code`, `message` and `details` as in its documentation; `status` is the HTTP status. */
export class ServerError extends Error {
  constructor(code, message, details = {}, status = null) {
    super(message);
    Object.assign(this, { code, details, status });
  }
}

/** The server no longer stores the events of this turn: load the messages of the conversation instead. */
export class LogGone extends Error {
  constructor(conversationId) {
    super(`The events of ${conversationId} are no longer stored. Load its messages.`);
    this.conversationId = conversationId;
  }
}

/** Events that were received and not read yet. */
class Reader {
  #items = [];
  #wake = null;

  push(item) {
    this.#items.push(item);
    this.#wake?.();
  }

  async next() {
    while (!this.#items.length) await new Promise((resolve) => (this.#wake = resolve));
    const item = this.#items.shift();
    if (item instanceof Error) throw item;
    return item;
  }
}

/** One turn: an async iterable of its events. `view` is the turn as far as its events were read. Leaving the loop does not
 * stop the turn; `client.interrupt` does. */
export class Turn {
  #client;
  #reader;

  constructor(client, conversationId, id, reader, after = 0) {
    this.#client = client;
    this.#reader = reader;
    this.conversationId = conversationId;
    this.id = id;
    this.view = { ...emptyTurn(id), seq: after };
  }

  get text() {
    return textOf(this.view);
  }

  async *[Symbol.asyncIterator]() {
    try {
      while (this.#reader) {
        const event = await this.#reader.next();
        if (event.turnId !== this.id) continue;
        const view = reduce(this.view, event);
        if (view === this.view) continue; // read before
        this.view = view;
        if (ENDS.has(event.type)) this.close();
        yield event;
      }
    } finally {
      this.close();
    }
  }

  /** Read to the end and return the view. */
  async finish() {
    for await (const _ of this);
    return this.view;
  }

  /** Stop reading; the turn continues on the server. */
  close() {
    if (this.#reader) this.#client.removeReader(this.conversationId, this.#reader);
    this.#reader = null;
  }
}

/** A client of one server.
 *
 * `url`: its address. `key`: an API key (`arag_…`); in a browser that is signed in, leave it out and the cookie counts. */
export class Client {
  #readers = new Map(); // conversation -> set of readers
  #refusal = null; // why the server refuses this client

  constructor({ url = globalThis.location?.origin ?? "http://127.0.0.1:8000", key = null, Socket = globalThis.WebSocket } = {}) {
    if (!/^https?:\/\//.test(url)) throw new TypeError(`${url} is not the address of a server: it must start with http:// or https://`);
    this.url = url.replace(/\/+$/, "");
    this.key = key;
    this.stream = new Stream({
      url: `${this.url.replace(/^http/, "ws")}/ws`,
      Socket,
      protocols: () => this.#protocols(),
      onEvent: (event) => this.#pass(event.conversationId, event),
      onResync: (conversationId) => this.#pass(conversationId, new LogGone(conversationId)),
    });
  }

  /** Close the connection. Turns continue on the server. */
  close() {
    this.stream.close();
    for (const conversationId of this.#readers.keys()) this.#pass(conversationId, new ServerError("CLIENT_CLOSED", "The client was closed."));
  }

  /** Send one REST request; resolves to the JSON of the answer, or to null if the answer is empty. */
  async call(method, path, body) {
    const headers = { Accept: "application/json" };
    if (this.key) headers.Authorization = `Bearer ${this.key}`;
    if (body !== undefined) headers["Content-Type"] = "application/json";
    const response = await fetch(this.url + path, { method, headers, body: body === undefined ? undefined : JSON.stringify(body) });
    const text = await response.text();
    if (response.ok) return text ? JSON.parse(text) : null;
    let error = {};
    try {
      error = JSON.parse(text).error ?? {};
    } catch {
      // not an answer of the server: a proxy's page, for example
    }
    throw new ServerError(error.code ?? `HTTP_${response.status}`, error.message ?? text.slice(0, 200), error.details, response.status);
  }

  async createConversation(domainId, fields = {}) {
    return (await this.call("POST", "/api/conversations", { domainId, ...fields })).id;
  }

  /** Return the newest page of a conversation's messages, oldest first. */
  async messages(conversationId) {
    return (await this.call("GET", `/api/conversations/${conversationId}/messages`)).items;
  }

  /** Send a message; resolves to its turn once the server has stored it. Options: images, clientMessageId, onBusy. */
  send(conversationId, content, options = {}) {
    return this.#start(conversationId, () => this.stream.send({ conversationId, content, ...options }));
  }

  /** Answer a message of the user again. */
  retry(conversationId, messageId) {
    return this.#start(conversationId, () => this.stream.retry({ conversationId, messageId }));
  }

  /** Answer a message of the user again with other words for it. */
  edit(conversationId, messageId, content) {
    return this.#start(conversationId, () => this.stream.edit({ conversationId, messageId, content }));
  }

  /** Return a turn that began elsewhere or before a restart, from the event that follows number `after`. */
  followTurn(conversationId, turnId, { after = 0 } = {}) {
    const reader = this.#addReader(conversationId);
    this.stream.follow(conversationId, { turnId, seq: after });
    return new Turn(this, conversationId, turnId, reader, after);
  }

  /** Yield the events of the running turn from its first one, then those of the conversation's next turns. */
  async *follow(conversationId) {
    const reader = this.#addReader(conversationId);
    this.stream.follow(conversationId);
    try {
      while (true) yield await reader.next();
    } finally {
      this.removeReader(conversationId, reader);
    }
  }

  /** Answer a wait; resolves to its state. The first answer counts. `action`: accept, decline or cancel. */
  async answer(conversationId, waitId, action, content) {
    return (await this.stream.answer({ conversationId, waitId, action, content })).state;
  }

  /** Stop the conversation's running turn. The server keeps the text so far. */
  async interrupt(conversationId) {
    await this.call("POST", `/api/conversations/${conversationId}/interrupt`);
  }

  /** Used by `Turn`. */
  removeReader(conversationId, reader) {
    const readers = this.#readers.get(conversationId);
    if (!readers?.delete(reader) || readers.size) return;
    this.#readers.delete(conversationId);
    this.stream.unfollow(conversationId);
  }

  async #start(conversationId, send) {
    const reader = this.#addReader(conversationId);
    try {
      return new Turn(this, conversationId, (await send()).turnId, reader);
    } catch (error) {
      this.removeReader(conversationId, reader);
      throw this.#refusal ?? error;
    }
  }

  #addReader(conversationId) {
    const reader = new Reader();
    if (!this.#readers.has(conversationId)) this.#readers.set(conversationId, new Set());
    this.#readers.get(conversationId).add(reader);
    return reader;
  }

  #refuse(error) {
    this.#refusal = error;
    this.stream.close();
    for (const conversationId of this.#readers.keys()) this.#pass(conversationId, error);
  }

  #pass(conversationId, item) {
    for (const reader of this.#readers.get(conversationId) ?? []) reader.push(item);
  }

  async #protocols() {
    if (!this.key) return ["agentic-rag.native"];
    try {
      const { ticket } = await this.call("POST", "/api/ws-tickets", {}); // a page cannot set headers on a WebSocket
      return ["agentic-rag.native", `ticket.${ticket}`];
    } catch (error) {
      if (error.status === 401 || error.status === 403) this.#refuse(error); // another attempt would fail, too
      throw error;
    }
  }
}
