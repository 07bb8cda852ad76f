/** The approvals that wait, live. Every page shows how many there are. */

import { ApiError, get, getAll, segment } from "../api/client";
import { follow, type ServerEvent, type StreamState, wait } from "../api/events";
import { refreshAll } from "../api/query";
import type { Approval } from "../api/types";
import { Store } from "./store";

export type Approvals = ReadonlyMap<string, Approval>;

/** Those that wait, and those that were decided since the page was opened; `null` until the server has answered. */
export const approvals = new Store<Approvals | null>(null);
/** Whether what the page shows is up to date. */
export const connection = new Store<StreamState>({ kind: "connecting" });

export function addApprovals(changed: Approval[]): void {
  const merged = new Map(approvals.value);
  for (const one of changed) {
    const known = merged.get(one.id);
    // An answer may overtake the stream: a decision is final, so what still waits is older.
    if (known === undefined || known.status === "pending" || one.status !== "pending") merged.set(one.id, one);
  }
  approvals.set(merged);
}

export function listWaiting(known: Approvals | null): Approval[] {
  return known === null ? [] : [...known.values()].filter((one) => one.status === "pending");
}

export async function loadApproval(id: string): Promise<void> {
  addApprovals([await get<Approval>(`/approvals/${segment(id)}`)]);
}

/** Keep the approvals up to date until the signal aborts. */
export async function followApprovals(signal: AbortSignal): Promise<void> {
  while (!signal.aborted) {
    try {
      const found = await getAll<Approval>("/approvals", { status: "pending" }, 5000, signal);
      approvals.set(new Map(found.map((one) => [one.id, one])));
    } catch (problem) {
      if (signal.aborted) return;
      if (problem instanceof ApiError && !problem.isPassing) {
        connection.set({ kind: "refused", problem });
        return;
      }
      connection.set(connection.value.kind === "lost" ? connection.value : { kind: "lost", since: Date.now() });
      await wait(1000, signal);
      continue;
    }
    await follow("/approvals/events", { signal, onEvents: readChanges, onState: setConnection });
    // A cursor that the server does not know, for example of another store: begin anew.
    const state = connection.value;
    if (state.kind === "refused" && state.problem.status !== 400) return;
    await wait(1000, signal);
  }
}

function readChanges(events: ServerEvent[]): void {
  addApprovals(events.filter((one) => one.event !== "end").map((one) => JSON.parse(one.data) as Approval));
}

function setConnection(state: StreamState): void {
  const wasLost = connection.value.kind === "lost";
  connection.set(state);
  if (wasLost && state.kind === "open") refreshAll();
}
