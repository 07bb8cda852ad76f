/** Events of runs in words. */

import type { Json, JsonObject, RunEvent } from "../api/types";
import { formatCount, summarize } from "../text";
import { describeItem } from "./items";

export type EventKind = "model" | "tool" | "agent" | "wait" | "run" | "data" | "trouble";

export interface EventWords {
  kind: EventKind;
  title: string;
  text: string;
}

export function describeEvent(event: RunEvent): EventWords {
  const { type, data } = event;
  const trouble = data.error ? summarize(JSON.stringify(data.error), 200) : "";
  if (trouble) return { kind: "trouble", title: readType(type), text: trouble };
  switch (type) {
    case "model.answered":
      return { kind: "model", title: "Model", text: `${describeItems(data.items)}${describeTokens(data)}` };
    case "calls.started":
      return { kind: "tool", title: "Calls start", text: `${count(data.call_ids)} under way` };
    case "calls.made":
      return { kind: "tool", title: "Tools", text: `${describeCalls(data.calls)} ${describeItems(data.items)}`.trim() };
    case "calls.checked":
      return { kind: "tool", title: "Calls checked", text: describeCalls(data.calls) };
    case "approval.requested":
      return { kind: "wait", title: "Approval requested", text: summarize(String(data.tool), 80) };
    case "approval.decided":
      return {
        kind: "wait",
        title: "Approval decided",
        text: `${String(data.verdict)} by ${summarize(String(data.by), 60)}`,
      };
    case "agent.handed_over":
      return { kind: "agent", title: "Handoff", text: summarize(String(data.agent ?? describeItems(data.items)), 120) };
    case "agent.nested":
      return { kind: "agent", title: "Nested run", text: summarize(String(data.agent), 120) };
    case "input.taken":
    case "input.staged":
      return { kind: "data", title: "Input", text: describeItems(data.items) };
    case "run.queued":
      return { kind: "run", title: "Queued", text: typeof data.input === "string" ? summarize(data.input) : "" };
    case "run.waiting":
      return { kind: "wait", title: "Waits", text: readReason(data) };
    case "run.failed":
      return { kind: "trouble", title: "Failed", text: readReason(data) };
    case "run.taken_over":
    case "run.lease_lost":
      return { kind: "trouble", title: readType(type), text: readReason(data) };
    default: {
      const kind: EventKind = type.startsWith("run.") ? "run" : "data";
      return { kind, title: readType(type), text: readReason(data) };
    }
  }
}

function readType(type: string): string {
  const words = type.replace(/^step\./, "").replace(/[._]/g, " ");
  return words.charAt(0).toUpperCase() + words.slice(1);
}

function readReason(data: JsonObject): string {
  const reason = data.reason;
  if (typeof reason === "object" && reason !== null && !Array.isArray(reason))
    return summarize(String(reason.message ?? ""), 200);
  const shown = Object.entries(data).filter(([name, value]) => typeof value === "string" && name !== "status");
  return summarize(shown.map(([name, value]) => `${name} ${String(value)}`).join(", "), 160);
}

function describeItems(items: Json | undefined): string {
  if (!Array.isArray(items)) return "";
  const shown = items.slice(0, 4).map((item) => {
    const { who, text, kind } = describeItem(item as JsonObject);
    return kind === "assistant" || kind === "output" ? summarize(text, 160) : `${who} ${summarize(text, 120)}`;
  });
  return shown.join(" · ") + (items.length > 4 ? ` and ${items.length - 4} more` : "");
}

function describeCalls(calls: Json | undefined): string {
  if (!Array.isArray(calls)) return "";
  return calls
    .map((call) => {
      const { tool, status } = (call ?? {}) as JsonObject;
      return `${summarize(String(tool), 60)} ${String(status)}`;
    })
    .join(", ");
}

function describeTokens(data: JsonObject): string {
  const { input, output, cost } = readUsage(data);
  const spent = cost === null ? "" : `, ${formatCost(cost)}`;
  return input + output > 0 ? ` (${input} + ${output} tokens${spent})` : "";
}

/** What models did for a run. The cost is that of the price list, of the models that it has. */
export function describeUsage({ requests, input, output, cost }: Usage): string {
  const calls = `${formatCount(requests)} model ${requests === 1 ? "call" : "calls"}`;
  const tokens = input + output > 0 ? `${calls}, ${formatCount(input)} + ${formatCount(output)} tokens` : calls;
  return cost === null ? tokens : `${tokens}, ${formatCost(cost)}`;
}

/** US dollars, with as many digits as small sums need. */
export function formatCost(dollars: number): string {
  return `$${dollars >= 1 || dollars === 0 ? dollars.toFixed(2) : dollars.toPrecision(2)}`;
}

function count(list: Json | undefined): number {
  return Array.isArray(list) ? list.length : 0;
}

export interface Usage {
  requests: number;
  input: number;
  output: number;
  /** US dollars; null if no price is known. */
  cost: number | null;
}

export function readUsage({ usage, cost }: JsonObject): Usage {
  const found = (typeof usage === "object" && usage !== null && !Array.isArray(usage) ? usage : {}) as JsonObject;
  return {
    requests: Number(found.requests ?? 0) || 0,
    input: Number(found.input ?? 0) || 0,
    output: Number(found.output ?? 0) || 0,
    cost: typeof cost === "number" ? cost : null,
  };
}

export function addUsage(events: readonly RunEvent[]): Usage {
  const total: Usage = { requests: 0, input: 0, output: 0, cost: null };
  for (const event of events) {
    if (event.type !== "model.answered") continue;
    const one = readUsage(event.data);
    total.requests += one.requests;
    total.input += one.input;
    total.output += one.output;
    if (one.cost !== null) total.cost = (total.cost ?? 0) + one.cost;
  }
  return total;
}
