/** An event of the native dialect. Its fields depend on `type`; the server's page "Native" lists them. */
export interface TurnEvent {
  type: string;
  conversationId: string;
  turnId: string;
  seq?: number;
  ts?: string;
  [field: string]: unknown;
}

export interface Citation {
  number: number;
  from: number;
  to: number;
  documentId: string;
  documentName: string;
  chunkId: string;
  citedText: string;
  page?: number;
  [field: string]: unknown;
}

export type TurnItem =
  | { kind: "text"; iteration: number; text: string; at: number; citations: Citation[]; continues: boolean }
  | { kind: "thinking"; iteration: number; text: string }
  | {
      kind: "call";
      id: string;
      name: string;
      server: string;
      iteration: number;
      written: string;
      arguments: Record<string, unknown> | null;
      status: "writing" | "running" | "ok" | "error" | "denied" | "interrupted";
      progress: { progress: number; total: number | null; message: string } | null;
      result: { content: string; structured: unknown; truncated: boolean; ref: string | null } | null;
      durationMs: number | null;
      waitIds: string[];
    }
  | { kind: "retrieval"; id: string; source: "documents" | "memory"; query: string; hits: Record<string, unknown>[] }
  | { kind: "notice"; code: string; message: string }
  | { kind: "compacted"; messages: number; summaryTokens: number }
  | { kind: "wait"; id: string };

export interface TurnView {
  turnId: string | null;
  seq: number;
  status: "running" | "waiting" | "done" | "error" | "interrupted";
  content: string | null;
  userMessageId: string | null;
  messageId: string | null;
  model: string | null;
  items: TurnItem[];
  lanes: Record<string, { agent: string; parentToolCallId: string | null; items: TurnItem[] }>;
  waits: Record<string, { waitId: string; kind: string; state: string; [field: string]: unknown }>;
  references: Citation[];
  retrying: { attempt: number; inMs: number; reason: string } | null;
  title: string | null;
  usage: Record<string, unknown> | null;
  stopReason: string | null;
  error: { code: string; message: string; retryable: boolean } | null;
  [field: string]: unknown;
}

export const ENDS: ReadonlySet<string>;
export function emptyTurn(turnId?: string | null): TurnView;
export function reduce(view: TurnView, event: TurnEvent): TurnView;
export function textOf(view: TurnView): string;
export function newKey(): string;

export class FrameRefused extends Error {
  code: string;
  details: Record<string, unknown>;
}

export class ServerError extends Error {
  code: string;
  details: Record<string, unknown>;
  status: number | null;
}

export class LogGone extends Error {
  conversationId: string;
}

export type StreamState = "connecting" | "open" | "lost" | "closed";

/** The connection without turns, as the server's own page uses it. */
export class Stream {
  constructor(options: {
    url?: string;
    protocols: () => Promise<string[]>;
    onEvent: (event: TurnEvent) => void;
    onState?: (state: StreamState) => void;
    onResync?: (conversationId: string) => void;
    Socket?: typeof WebSocket;
  });
  readonly state: StreamState;
  onState: (state: StreamState) => void;
  open(): void;
  close(): void;
  follow(conversationId: string, place?: { turnId?: string | null; seq?: number }): void;
  unfollow(conversationId: string): void;
}

export class Turn implements AsyncIterable<TurnEvent> {
  readonly id: string;
  readonly conversationId: string;
  readonly view: TurnView;
  readonly text: string;
  [Symbol.asyncIterator](): AsyncIterator<TurnEvent>;
  finish(): Promise<TurnView>;
  close(): void;
}

export interface SendOptions {
  images?: Record<string, unknown>[];
  clientMessageId?: string;
  onBusy?: "queue";
}

export class Client {
  constructor(options?: { url?: string; key?: string | null; Socket?: typeof WebSocket });
  readonly url: string;
  readonly stream: Stream;
  close(): void;
  call(method: string, path: string, body?: unknown): Promise<any>;
  createConversation(domainId: string, fields?: Record<string, unknown>): Promise<string>;
  messages(conversationId: string): Promise<Record<string, unknown>[]>;
  send(conversationId: string, content: string, options?: SendOptions): Promise<Turn>;
  retry(conversationId: string, messageId: string): Promise<Turn>;
  edit(conversationId: string, messageId: string, content: string): Promise<Turn>;
  followTurn(conversationId: string, turnId: string, options?: { after?: number }): Turn;
  follow(conversationId: string): AsyncGenerator<TurnEvent>;
  answer(conversationId: string, waitId: string, action: "accept" | "decline" | "cancel", content?: Record<string, unknown>): Promise<string>;
  interrupt(conversationId: string): Promise<void>;
}
