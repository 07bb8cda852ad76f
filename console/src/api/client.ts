/** Requests to the server, and the errors that they end with. */

import { Store } from "../state/store";
import type { JsonObject, Page } from "./types";

/** The address of the API: that of the page, which may be mounted below a path. */
export function getApiUrl(path: string, query: Query = {}): URL {
  const url = new URL(`.${path}`, document.baseURI);
  url.hash = "";
  for (const [name, value] of Object.entries(query)) {
    for (const one of Array.isArray(value) ? value : [value]) {
      if (one !== undefined && one !== null && one !== "") url.searchParams.append(name, String(one));
    }
  }
  return url;
}

export type Query = Record<string, string | number | boolean | null | undefined | string[]>;

/** An error that the server reported as application/problem+json. */
export class ApiError extends Error {
  constructor(
    readonly status: number,
    readonly code: string,
    readonly detail: string,
    readonly facts: JsonObject = {},
    readonly retryAfter: number | null = null,
  ) {
    super(detail);
  }

  /** Whether the same request may succeed later without a change. */
  get isPassing(): boolean {
    return this.status === 429 || this.status >= 502;
  }
}

/** The server could not be reached, or the connection broke. */
export class ConnectionLost extends Error {
  constructor() {
    super("The server does not answer.");
  }
}

const KEY_NAME = "standfast-key";

/** The key that a person has entered, for this tab only. Without one, the cookie of the printed URL counts. */
export const key = new Store<string | null>(sessionStorage.getItem(KEY_NAME));
/** Whether the server has refused the credential, or the lack of one. */
export const signedOut = new Store<ApiError | null>(null);

export function signIn(secret: string): void {
  sessionStorage.setItem(KEY_NAME, secret);
  key.set(secret);
  signedOut.set(null);
}

export function signOut(): void {
  sessionStorage.removeItem(KEY_NAME);
  key.set(null);
}

export function makeHeaders(extra: Record<string, string> = {}): Record<string, string> {
  return key.value === null ? extra : { authorization: `Bearer ${key.value}`, ...extra };
}

export interface RequestOptions {
  query?: Query;
  body?: unknown;
  headers?: Record<string, string>;
  signal?: AbortSignal;
}

/** Send a request and return the response; raise ApiError or ConnectionLost. */
export async function send(method: string, path: string, options: RequestOptions = {}): Promise<Response> {
  const headers = makeHeaders(options.headers);
  const init: RequestInit = { method, headers, credentials: "same-origin", cache: "no-store" };
  if (options.signal) init.signal = options.signal;
  if (options.body instanceof FormData || options.body instanceof Blob) init.body = options.body;
  else if (options.body !== undefined) {
    headers["content-type"] = "application/json";
    init.body = JSON.stringify(options.body);
  }
  let response: Response;
  try {
    response = await fetch(getApiUrl(path, options.query), init);
  } catch (problem) {
    if (options.signal?.aborted) throw problem;
    throw new ConnectionLost();
  }
  if (response.ok) return response;
  const error = await readProblem(response);
  if (error.status === 401) signedOut.set(error);
  throw error;
}

export async function readProblem(response: Response): Promise<ApiError> {
  const after = Number(response.headers.get("retry-after"));
  const retryAfter = Number.isFinite(after) && after > 0 ? after : null;
  try {
    const problem = (await response.json()) as JsonObject;
    const facts = (problem.facts ?? {}) as JsonObject;
    return new ApiError(response.status, String(problem.code), String(problem.detail), facts, retryAfter);
  } catch {
    const detail = `The server answered ${response.status} without an explanation: see its log.`;
    return new ApiError(response.status, "unknown", detail, {}, retryAfter);
  }
}

async function receive<T>(method: string, path: string, options: RequestOptions): Promise<T> {
  const response = await send(method, path, options);
  if (response.status === 204) return undefined as T;
  try {
    return (await response.json()) as T;
  } catch (problem) {
    if (options.signal?.aborted) throw problem;
    throw new ConnectionLost();
  }
}

export const get = <T>(path: string, query?: Query, signal?: AbortSignal) =>
  receive<T>("GET", path, { ...(query && { query }), ...(signal && { signal }) });
export const post = <T>(path: string, body: unknown = {}, headers?: Record<string, string>) =>
  receive<T>("POST", path, { body, ...(headers && { headers }) });
export const put = <T>(path: string, body: unknown) => receive<T>("PUT", path, { body });
export const remove = <T>(path: string, query?: Query) => receive<T>("DELETE", path, query ? { query } : {});

/** Return all entries of a listing, at most `most`. */
export async function getAll<T>(path: string, query: Query, most = 5000, signal?: AbortSignal): Promise<T[]> {
  const found: T[] = [];
  let after: string | null = null;
  do {
    const page: Page<T> = await get<Page<T>>(path, { ...query, limit: 500, after }, signal);
    found.push(...page.items);
    after = page.next;
  } while (after !== null && found.length < most);
  return found;
}

/** A segment of a path: ids may contain any character. */
export const segment = encodeURIComponent;

export function describeError(problem: unknown): string {
  if (problem instanceof ConnectionLost) return `${problem.message} Nothing is known about the request: look again.`;
  return problem instanceof Error ? problem.message : String(problem);
}
