/** Server-sent events by fetch: with credentials, a last id, and reconnection after any loss. */

import { ApiError, getApiUrl, makeHeaders, type Query, readProblem, signedOut } from "./client";

export interface ServerEvent {
  id: string | null;
  event: string;
  data: string;
}

/** Splits a stream of text into events. The rules are those of the HTML standard. */
export class EventParser {
  private rest = "";
  private data: string[] = [];
  private event = "";
  lastId: string | null = null;
  retry: number | null = null;

  push(text: string): ServerEvent[] {
    const found: ServerEvent[] = [];
    const lines = (this.rest + text).split(/\r\n|\n|\r(?!$)/);
    this.rest = lines.pop() ?? "";
    for (const line of lines) {
      if (line !== "") this.read(line);
      else if (this.data.length > 0) {
        found.push({ id: this.lastId, event: this.event || "message", data: this.data.join("\n") });
        this.data = [];
        this.event = "";
      } else this.event = "";
    }
    return found;
  }

  private read(line: string): void {
    const [, name, value] = /^([^:]*):? ?([\s\S]*)$/.exec(line) ?? [];
    if (name === "data") this.data.push(value ?? "");
    else if (name === "event") this.event = value ?? "";
    else if (name === "id" && !value?.includes("\0")) this.lastId = value ?? "";
    else if (name === "retry" && /^\d+$/.test(value ?? "")) this.retry = Number(value);
  }
}

export type StreamState =
  | { kind: "connecting" }
  | { kind: "open" }
  | { kind: "lost"; since: number }
  | { kind: "ended" }
  | { kind: "refused"; problem: ApiError };

export interface StreamOptions {
  query?: Query;
  lastId?: string | null;
  signal: AbortSignal;
  onEvents(events: ServerEvent[]): void;
  onState?(state: StreamState): void;
}

const LONGEST_PAUSE = 5000;

/** Follow a stream until it sends `end`, is refused for good, or the signal aborts. It reconnects after any loss. */
export async function follow(path: string, options: StreamOptions): Promise<void> {
  const { signal, onState } = options;
  let lastId = options.lastId ?? null;
  let failures = 0;
  let lostAt: number | null = null;
  onState?.({ kind: "connecting" });
  while (!signal.aborted) {
    let pause = Math.min(500 * 2 ** failures, LONGEST_PAUSE);
    try {
      const response = await open(path, options, lastId);
      onState?.({ kind: "open" });
      failures = 0;
      lostAt = null;
      const parser = new EventParser();
      parser.lastId = lastId;
      for await (const text of decode(response)) {
        const events = parser.push(text);
        lastId = parser.lastId;
        if (events.length > 0) options.onEvents(events);
        if (events.some((one) => one.event === "end")) {
          onState?.({ kind: "ended" });
          return;
        }
      }
      pause = parser.retry ?? pause;
    } catch (problem) {
      if (signal.aborted) return;
      if (problem instanceof ApiError && !problem.isPassing) {
        onState?.({ kind: "refused", problem });
        return;
      }
      failures += 1;
    }
    lostAt ??= Date.now();
    onState?.({ kind: "lost", since: lostAt });
    await wait(pause, signal);
  }
}

async function open(path: string, options: StreamOptions, lastId: string | null): Promise<Response> {
  const headers = makeHeaders({ accept: "text/event-stream", ...(lastId && { "last-event-id": lastId }) });
  const init: RequestInit = { headers, signal: options.signal, credentials: "same-origin", cache: "no-store" };
  const response = await fetch(getApiUrl(path, options.query), init);
  if (response.ok) return response;
  const error = await readProblem(response);
  if (error.status === 401) signedOut.set(error);
  throw error;
}

async function* decode(response: Response): AsyncGenerator<string> {
  if (response.body === null) return;
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  try {
    while (true) {
      const { done, value } = await reader.read();
      if (done) return;
      yield value;
    }
  } finally {
    reader.cancel().catch(() => undefined);
  }
}

export function wait(milliseconds: number, signal: AbortSignal): Promise<void> {
  return new Promise((resolve) => {
    const timer = setTimeout(finish, milliseconds);
    signal.addEventListener("abort", finish, { once: true });
    function finish() {
      clearTimeout(timer);
      signal.removeEventListener("abort", finish);
      resolve();
    }
  });
}
