// Streams turns: a connection to `/ws` in the native dialect, and a reducer that turns the events of a turn into a
// view.
//
// This module needs no other part of the console, so you can copy it into your page. The reducer is pure and runs
// anywhere:
//
//     let view = emptyTurn();
//     for (const event of events) view = reduce(view, event);
//
// The connection reconnects automatically and requests the events after the last one that it has. It sends a message
// that was not acknowledged again under the same `clientMessageId`, so that no message is lost or duplicated:
//
//     const stream = new Stream({ protocols: async () => ["agentic-rag.native"], onEvent, onState, onResync });
//     stream.follow(conversationId);
//     await stream.send({ conversationId, content: "Hello" });

export const ENDS = new Set(["done", "error", "interrupted"]);

// The view of a turn

/** Return the view of a turn before its first event.
 *
 * - `status`: running, waiting (for a person), done, error or interrupted
 * - `items`: the agent's text and actions, in order
 * - `lanes`: for each delegate, by its path: `{agent, parentToolCallId, items}`
 * - `waits`: the questions for a person, by their ids
 * - `seq`: the number of the last event
 *
 * The items:
 *
 * - `{kind: "text", iteration, text, at, citations, continues}`: `at` is the offset in the text of its iteration, in
 *   code points
 * - `{kind: "thinking", iteration, text}`
 * - `{kind: "call", id, name, server, iteration, written, arguments, status, progress, result, durationMs, waitIds}`;
 *   `status`: writing (its arguments are streamed), running, ok, error, denied, interrupted
 * - `{kind: "retrieval", id, source, query, hits}`
 * - `{kind: "notice", code, message}`, `{kind: "compacted", messages, summaryTokens}`, `{kind: "wait", id}` */
export function emptyTurn(turnId = null) {
  return {
    turnId,
    seq: 0,
    status: "running",
    userMessageId: null,
    messageId: null,
    content: null,
    images: [],
    attachments: [],
    model: null,
    clientMessageId: null,
    items: [],
    lanes: {},
    iterations: {},
    waits: {},
    references: [],
    retrying: null,
    resumed: 0,
    usage: null,
    timings: null,
    stopReason: null,
    error: null,
    retrievalIds: [],
    title: null,
    startedAt: null,
    endedAt: null,
  };
}

const length = (text) => {
  let points = 0;
  for (const _ of text) points += 1;
  return points;
};

/** Return the view after an event. An event that the view already has changes nothing. An event of an unknown type only
 * updates `seq`. */
export function reduce(view, event) {
  if (event.seq !== undefined && event.seq <= view.seq) return view;
  const next = { ...view, seq: event.seq ?? view.seq, turnId: event.turnId ?? view.turnId };
  if (event.type !== "retrying" && event.seq !== undefined) next.retrying = null;
  const change = CHANGES[event.type];
  if (change) change(next, event);
  return next;
}

const itemsOf = (view, agent) => (agent ? (view.lanes[agent]?.items ?? []) : view.items);

function setItems(view, event, items) {
  const agent = event.agent;
  if (!agent) {
    view.items = items;
    return;
  }
  const lane = view.lanes[agent] ?? { agent, parentToolCallId: event.parentToolCallId ?? null, items: [] };
  view.lanes = {
    ...view.lanes,
    [agent]: { ...lane, parentToolCallId: event.parentToolCallId ?? lane.parentToolCallId, items },
  };
}

const add = (view, event, item) => setItems(view, event, [...itemsOf(view, event.agent), item]);

function changeCall(view, event, change) {
  const items = itemsOf(view, event.agent);
  const at = items.findLastIndex((item) => item.kind === "call" && item.id === event.toolCallId);
  if (at < 0) return false;
  setItems(view, event, items.with(at, { ...items[at], ...change(items[at]) }));
  return true;
}

const iterationOf = (view, event) => view.iterations[event.agent ?? ""] ?? { number: 0, length: 0, continues: false };

function say(view, event, kind) {
  const items = itemsOf(view, event.agent);
  const iteration = iterationOf(view, event);
  const last = items.at(-1);
  const added = kind === "text" ? length(event.text) : 0;
  if (last?.kind === kind && last.iteration === iteration.number) {
    setItems(view, event, items.with(-1, { ...last, text: last.text + event.text }));
  } else {
    const citing =
      kind === "text"
        ? { at: iteration.length, citations: [], continues: iteration.continues && iteration.length === 0 }
        : {};
    add(view, event, { kind, iteration: iteration.number, text: event.text, ...citing });
  }
  view.iterations = { ...view.iterations, [event.agent ?? ""]: { ...iteration, length: iteration.length + added } };
}

function cite(view, event) {
  const items = itemsOf(view, event.agent);
  const at = items.findLastIndex(
    (item) => item.kind === "text" && item.iteration === event.iteration && item.at < event.textTo,
  );
  const { type, seq, ts, turnId, conversationId, ...reference } = event;
  if (at >= 0) {
    const item = items[at];
    const citation = { ...reference, from: Math.max(0, event.textFrom - item.at), to: event.textTo - item.at };
    setItems(view, event, items.with(at, { ...item, citations: [...item.citations, citation] }));
  }
  if (!view.references.some((cited) => cited.number === reference.number)) {
    view.references = [...view.references, reference].sort((first, second) => first.number - second.number);
  }
}

function reset(view, event) {
  const dropped = (item) =>
    item.iteration === event.iteration &&
    (item.kind === "text" || item.kind === "thinking" || (item.kind === "call" && item.status === "writing"));
  setItems(
    view,
    event,
    itemsOf(view, event.agent).filter((item) => !dropped(item)),
  );
  const iteration = iterationOf(view, event);
  view.iterations = { ...view.iterations, [event.agent ?? ""]: { ...iteration, number: event.iteration, length: 0 } };
  const cited = new Set();
  for (const items of [view.items, ...Object.values(view.lanes).map((lane) => lane.items)]) {
    for (const item of items) for (const citation of item.citations ?? []) cited.add(citation.number);
  }
  view.references = view.references.filter((reference) => cited.has(reference.number));
}

function end(view, event, status) {
  view.status = status;
  view.endedAt = event.ts ?? null;
  const settle = (items) =>
    items.map((item) =>
      item.kind === "call" && (item.status === "running" || item.status === "writing")
        ? { ...item, status: "interrupted" }
        : item,
    );
  view.items = settle(view.items);
  view.lanes = Object.fromEntries(
    Object.entries(view.lanes).map(([agent, lane]) => [agent, { ...lane, items: settle(lane.items) }]),
  );
}

const CHANGES = {
  turn_started(view, event) {
    const { userMessageId, messageId, content, model, images, attachments, clientMessageId, ts } = event;
    Object.assign(view, {
      userMessageId,
      messageId,
      content,
      model,
      images: images ?? [],
      attachments: attachments ?? [],
      clientMessageId: clientMessageId ?? null,
      startedAt: ts ?? null,
    });
  },
  iteration_start(view, event) {
    const begun = { number: event.iteration, length: 0, continues: event.continues ?? false };
    view.iterations = { ...view.iterations, [event.agent ?? ""]: begun };
  },
  thinking: (view, event) => say(view, event, "thinking"),
  text: (view, event) => say(view, event, "text"),
  tool_call_started(view, event) {
    const { toolCallId: id, toolName: name, server } = event;
    add(view, event, {
      kind: "call",
      id,
      name,
      server,
      iteration: iterationOf(view, event).number,
      written: "",
      arguments: null,
      status: "writing",
      progress: null,
      result: null,
      durationMs: null,
      waitIds: [],
      at: event.ts ?? null,
    });
  },
  tool_arguments(view, event) {
    changeCall(view, event, (call) => ({ written: call.written + event.delta }));
  },
  tool_call(view, event) {
    const decided = {
      name: event.toolName,
      server: event.server,
      arguments: event.arguments,
      status: "running",
      at: event.ts ?? null,
    };
    if (changeCall(view, event, () => decided)) return;
    add(view, event, {
      kind: "call",
      id: event.toolCallId,
      iteration: iterationOf(view, event).number,
      written: "",
      progress: null,
      result: null,
      durationMs: null,
      waitIds: [],
      ...decided,
    });
  },
  tool_progress(view, event) {
    const { progress, total, message } = event;
    changeCall(view, event, () => ({ progress: { progress, total: total ?? null, message: message ?? "" } }));
  },
  tool_result(view, event) {
    const { status, durationMs, content, structured, truncated, ref } = event;
    changeCall(view, event, () => ({
      status,
      durationMs,
      progress: null,
      result: { content, structured: structured ?? null, truncated: truncated ?? false, ref: ref ?? null },
    }));
  },
  retrieval(view, event) {
    add(view, event, {
      kind: "retrieval",
      id: event.retrievalId,
      source: event.source,
      query: event.query,
      hits: event.hits,
    });
  },
  source_reference: cite,
  step_reset: reset,
  resumed(view) {
    view.resumed += 1;
  },
  retrying(view, event) {
    view.retrying = { attempt: event.attempt, inMs: event.inMs, reason: event.reason };
  },
  notice: (view, event) => add(view, event, { kind: "notice", code: event.code, message: event.message }),
  compacted: (view, event) =>
    add(view, event, { kind: "compacted", messages: event.messages, summaryTokens: event.summaryTokens }),
  title(view, event) {
    view.title = event.title;
  },
  input_required(view, event) {
    const { type, seq, ts, turnId, conversationId, ...wait } = event;
    view.waits = { ...view.waits, [event.waitId]: { ...wait, state: "open" } };
    if (!event.toolCallId || !changeCall(view, event, (call) => ({ waitIds: [...call.waitIds, event.waitId] })))
      add(view, event, { kind: "wait", id: event.waitId });
    view.status = "waiting";
  },
  input_answered(view, event) {
    const wait = view.waits[event.waitId];
    if (wait) view.waits = { ...view.waits, [event.waitId]: { ...wait, state: event.action, by: event.by ?? "" } };
    if (!Object.values(view.waits).some((wait) => wait.state === "open")) view.status = "running";
  },
  done(view, event) {
    end(view, event, "done");
    const { usage, stopReason, references, model, timings, messageId, retrievalIds } = event;
    Object.assign(view, {
      usage,
      stopReason,
      retrievalIds: retrievalIds ?? [],
      timings: timings ?? null,
      model: model ?? view.model,
      references: references ?? view.references,
      messageId: messageId ?? view.messageId,
    });
  },
  error(view, event) {
    end(view, event, "error");
    view.error = { code: event.code, message: event.message, retryable: event.retryable ?? false };
  },
  interrupted(view, event) {
    end(view, event, "interrupted");
    view.messageId = event.messageId ?? view.messageId;
  },
};

/** Return the agent's text in its stored form: an empty line between steps, but none before a step that continues the
 * previous one. */
export function textOf(view) {
  let text = "";
  let iteration = null;
  for (const item of view.items) {
    if (item.kind !== "text") continue;
    if (text && item.iteration !== iteration && !item.continues) text += "\n\n";
    text += item.text;
    iteration = item.iteration;
  }
  return text;
}

// The connection

const PING_MS = 20_000;
const PONG_MS = 10_000;
const FIRST_PAUSE_MS = 300;
const LONGEST_PAUSE_MS = 10_000;
const ANSWERS = new Set(["accepted", "answered"]);
const CHANGES_WAITS = new Set(["input_required", "input_answered", "error", "interrupted"]);

/** A frame that the server refused. `code` and `message`: as documented. */
export class FrameRefused extends Error {
  constructor(code, message, details) {
    super(message);
    this.code = code;
    this.details = details ?? {};
  }
}

/** One WebSocket for any number of conversations.
 *
 * - `protocols()`: resolves to the subprotocols to offer, with a new ticket if the server uses keys; if it fails, it is
 *   called again later
 * - `onEvent(event)`: called with each event of a followed conversation, once and in order; title changes between turns
 *   have no `seq`
 * - `onState(state)`: called with connecting, open, lost (it reconnects) or closed
 * - `onResync(conversationId)`: called if the log of a turn is gone; load the messages instead */
export class Stream {
  constructor({
    url = defaultUrl(),
    protocols,
    onEvent,
    onState = () => {},
    onResync = () => {},
    Socket = globalThis.WebSocket,
  }) {
    Object.assign(this, { url, protocols, onEvent, onState, onResync, Socket });
    this.state = "closed";
    this.followed = new Map(); // conversation -> {turnId, seq, voids}
    this.unanswered = new Map(); // requestId -> {frame, resolve, reject, again}
    this.requests = 0;
    this.attempt = 0;
    this.socket = null;
    this.wanted = false;
    this.wake = () => this.#wake();
  }

  open() {
    if (this.wanted) return;
    this.wanted = true;
    globalThis.addEventListener?.("online", this.wake);
    globalThis.document?.addEventListener("visibilitychange", this.wake);
    this.#connect();
  }

  close() {
    this.wanted = false;
    globalThis.removeEventListener?.("online", this.wake);
    globalThis.document?.removeEventListener("visibilitychange", this.wake);
    clearTimeout(this.timer);
    this.#drop();
    this.#tell("closed");
    for (const { reject } of this.unanswered.values()) reject(new FrameRefused("CLOSED", "The connection was closed."));
    this.unanswered.clear();
  }

  /** Follow a conversation: from after event `seq` of a turn; or the running turn and all later ones. */
  follow(conversationId, { turnId = null, seq = 0 } = {}) {
    this.followed.set(conversationId, { turnId, seq });
    this.open();
    if (this.state === "open") this.#subscribe(conversationId);
  }

  unfollow(conversationId) {
    if (!this.followed.delete(conversationId)) return;
    if (this.state === "open") this.#write({ type: "unsubscribe", conversationId });
  }

  /** Send a message. Resolves to `accepted` once the server has it. After a lost connection, the same message is sent
   * again under the same key. */
  send({ conversationId, content, images, attachments, model, clientMessageId = newKey(), onBusy }) {
    return this.#ask(
      { type: "message", conversationId, content, images, attachments, model, clientMessageId, onBusy },
      true,
    );
  }

  retry({ conversationId, messageId, model, clientMessageId = newKey() }) {
    return this.#ask({ type: "retry", conversationId, messageId, model, clientMessageId }, true);
  }

  edit({ conversationId, messageId, content, model, clientMessageId = newKey() }) {
    return this.#ask({ type: "edit", conversationId, messageId, content, model, clientMessageId }, true);
  }

  /** Answer a wait. The first answer counts; a later one is refused, because the wait was answered before. After a lost
   * connection, the answer is not sent again, and the promise rejects with CONNECTION_LOST. */
  answer({ conversationId, waitId, action, content }) {
    return this.#ask({ type: "answer", conversationId, waitId, action, content }, false);
  }

  /** Stop a turn if the connection is open. `POST …/interrupt` also reports whether the request arrived. */
  interrupt({ conversationId, turnId, queued }) {
    this.#write({ type: "interrupt", conversationId, turnId, queued });
  }

  #ask(frame, again) {
    const requestId = `r${(this.requests += 1)}`;
    this.open();
    if (!this.followed.has(frame.conversationId)) this.followed.set(frame.conversationId, { turnId: null, seq: 0 });
    return new Promise((resolve, reject) => {
      this.unanswered.set(requestId, { frame: { ...frame, requestId }, resolve, reject, again, sent: false });
      this.#flush();
    });
  }

  #flush() {
    if (this.state !== "open") return;
    for (const request of this.unanswered.values()) {
      if (request.sent) continue;
      request.sent = true;
      this.#write(request.frame);
    }
  }

  #write(frame) {
    if (this.socket?.readyState === 1) this.socket.send(JSON.stringify(frame));
  }

  async #connect() {
    if (!this.wanted || this.socket) return;
    this.#tell("connecting");
    let protocols;
    const mine = (this.connecting = {});
    try {
      protocols = await this.protocols();
    } catch {
      if (mine === this.connecting) this.#again();
      return;
    }
    if (!this.wanted || this.socket || mine !== this.connecting) return;
    const socket = (this.socket = new this.Socket(this.url, protocols));
    socket.onopen = () => socket === this.socket && this.#opened();
    socket.onmessage = ({ data }) => socket === this.socket && this.#hear(JSON.parse(data));
    socket.onclose = () => socket === this.socket && this.#lost();
    socket.onerror = () => {}; // the close event follows
  }

  #opened() {
    this.attempt = 0;
    this.#tell("open");
    for (const conversationId of this.followed.keys()) this.#subscribe(conversationId);
    this.#flush();
    this.pings = setInterval(() => this.#ping(), PING_MS);
  }

  #ping() {
    this.#write({ type: "ping" });
    clearTimeout(this.pong);
    this.pong = setTimeout(() => this.socket && this.#lost(), PONG_MS); // a network that is gone causes no close event
  }

  #wake() {
    if (!this.wanted || globalThis.document?.hidden) return;
    if (this.socket && this.state === "open") this.#ping();
    else if (!this.socket) {
      clearTimeout(this.timer);
      this.connecting = null;
      this.#connect();
    }
  }

  #drop() {
    clearInterval(this.pings);
    clearTimeout(this.pong);
    const socket = this.socket;
    this.socket = null;
    if (socket) {
      socket.onclose = socket.onmessage = null;
      socket.close();
    }
  }

  #lost() {
    this.#drop();
    for (const [requestId, request] of this.unanswered) {
      if (request.again) request.sent = false;
      else if (request.sent) {
        this.unanswered.delete(requestId);
        request.reject(new FrameRefused("CONNECTION_LOST", "The connection was lost before the answer came."));
      }
    }
    this.#again();
  }

  #again() {
    if (!this.wanted) return;
    this.#tell("lost");
    this.attempt += 1;
    const pause = Math.min(LONGEST_PAUSE_MS, FIRST_PAUSE_MS * 2 ** (this.attempt - 1));
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.#connect(), pause * (0.5 + Math.random() / 2));
  }

  #tell(state) {
    if (state === this.state) return;
    this.state = state;
    this.onState(state);
  }

  #subscribe(conversationId) {
    const { turnId, seq } = this.followed.get(conversationId);
    this.#write(
      turnId ? { type: "subscribe", conversationId, turnId, after: seq } : { type: "subscribe", conversationId },
    );
  }

  #hear(frame) {
    if (frame.type === "pong") clearTimeout(this.pong);
    else if (ANSWERS.has(frame.type)) this.#settle(frame, (request) => request.resolve(frame));
    else if (frame.type === "error" && !frame.turnId) this.#refused(frame);
    else if (frame.type === "resync") this.#resync(frame);
    else if (frame.conversationId && frame.type !== "subscribed") this.#event(frame);
  }

  #settle(frame, act) {
    const request = this.unanswered.get(frame.requestId);
    if (!request) return;
    this.unanswered.delete(frame.requestId);
    act(request);
  }

  #refused(frame) {
    if (frame.requestId && this.unanswered.has(frame.requestId)) {
      this.#settle(frame, (request) => request.reject(new FrameRefused(frame.code, frame.message, frame.details)));
    } else if (frame.code === "LOG_GONE" || frame.code === "TURN_NOT_FOUND") this.#resync(frame);
  }

  #resync({ conversationId }) {
    for (const id of conversationId ? [conversationId] : [...this.followed.keys()]) {
      if (!this.followed.has(id)) continue;
      this.followed.set(id, { turnId: null, seq: 0 });
      this.onResync(id);
    }
  }

  #event(event) {
    const place = this.followed.get(event.conversationId);
    if (!place) return;
    if (event.seq !== undefined) {
      if (event.turnId === place.turnId && event.seq <= place.seq) return; // received twice
      const gap = event.turnId === place.turnId ? event.seq > place.seq + 1 : event.seq > 1 && place.turnId !== null;
      if (gap && event.type !== "resumed") return this.#subscribe(event.conversationId); // request the missing events
      this.followed.set(event.conversationId, { turnId: event.turnId, seq: event.seq });
    }
    if (CHANGES_WAITS.has(event.type)) globalThis.document?.dispatchEvent(new Event("waits-changed"));
    this.onEvent(event);
  }
}

function defaultUrl() {
  const { protocol, host } = globalThis.location ?? { protocol: "http:", host: "127.0.0.1:8000" };
  return `${protocol === "https:" ? "wss" : "ws"}://${host}/ws`;
}

/** Return a new key for a message. Sending the message again under the same key does not duplicate it. */
export function newKey() {
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}
