/** What is known of a call: the words of both sides, what happened, and how loud it was. Made from its messages. */

import type { Json, JsonObject } from "../api/types";

export type MarkKind = "turn" | "interruption" | "tool" | "guardrail" | "agent" | "trouble";

export interface Mark {
  at: number;
  kind: MarkKind;
  title: string;
  text: string;
}

export interface Speech {
  id: string;
  who: "user" | "assistant" | "system";
  /** What the history has: of an agent that was interrupted, only what was heard. */
  said: string;
  /** What an agent has said and the server has not confirmed as heard. */
  unheard: string;
  isSettled: boolean;
  isAudio: boolean;
}

export interface WaitingCall {
  callId: string;
  tool: string;
  arguments: string;
}

export interface CallLog {
  agent: string;
  speeches: readonly Speech[];
  marks: readonly Mark[];
  waiting: readonly WaitingCall[];
  /** Milliseconds to the first sound of each answer. */
  latencies: readonly number[];
  lastNumber: number;
  lastAt: number;
  ended: string | null;
}

export const EMPTY_LOG: CallLog = {
  agent: "",
  speeches: [],
  marks: [],
  waiting: [],
  latencies: [],
  lastNumber: 0,
  lastAt: 0,
  ended: null,
};

/** Return the log with one more message of the server. */
export function addToLog(log: CallLog, message: JsonObject): CallLog {
  const at = Number(message.at ?? log.lastAt) || 0;
  const base: CallLog = { ...log, lastAt: Math.max(at, log.lastAt) };
  if (typeof message.number === "number") base.lastNumber = Math.max(log.lastNumber, message.number);
  const mark = describeMark(message, at);
  if (mark !== null) base.marks = [...log.marks, mark];
  switch (message.type) {
    case "call":
      return { ...base, agent: String(message.agent) };
    case "agent_changed":
      return { ...base, agent: String(message.to_agent) };
    case "transcript_delta":
      return { ...base, speeches: addWords(log.speeches, String(message.item_id), String(message.delta)) };
    case "history_updated":
      return { ...base, speeches: updateSpeeches(log.speeches, message) };
    case "metric": {
      if (message.name !== "time_to_first_audio") return base;
      return { ...base, latencies: [...log.latencies, Number(message.ms)] };
    }
    case "tool_approval_required": {
      const call = {
        callId: String(message.call_id),
        tool: String(message.tool),
        arguments: String(message.arguments),
      };
      return { ...base, waiting: [...log.waiting, call] };
    }
    case "tool_approval_expired":
    case "tool_end":
    case "tool_start":
      return { ...base, waiting: log.waiting.filter((one) => one.callId !== message.call_id) };
    case "session_closed":
      return { ...base, ended: String(message.reason ?? ""), waiting: [] };
    default:
      return base;
  }
}

function describeMark(message: JsonObject, at: number): Mark | null {
  const make = (kind: MarkKind, title: string, text = ""): Mark => ({ at, kind, title, text });
  switch (message.type) {
    case "agent_start":
      return make("turn", "Answer", String(message.agent));
    case "audio_interrupted":
      return make("interruption", "Interrupted", message.heard_ms ? `after ${String(message.heard_ms)} ms of it` : "");
    case "tool_start":
      return make("tool", String(message.tool), String(message.arguments));
    case "tool_end":
      return make("tool", `${String(message.tool)} returned`, String(message.output));
    case "tool_approval_required":
      return make("tool", `${String(message.tool)} asks`, String(message.arguments));
    case "tool_approval_expired":
      return make("tool", "Nobody decided");
    case "guardrail_tripped":
      return make("guardrail", "Guardrail", list(message.guardrails).map(String).join(", "));
    case "agent_changed":
      return make("agent", `Now ${String(message.to_agent)}`, String(message.reason ?? ""));
    case "error":
    case "refused":
      return make("trouble", "Error", String(message.message));
    case "response_failed":
    case "response_incomplete":
      return make("trouble", message.type === "response_failed" ? "Answer failed" : "Answer cut short");
    case "reconnecting":
    case "reconnected":
      return make("trouble", message.type === "reconnecting" ? "Model connection lost" : "Model connection restored");
    default:
      return null;
  }
}

function addWords(speeches: readonly Speech[], id: string, words: string): readonly Speech[] {
  const index = speeches.findIndex((one) => one.id === id);
  const known = speeches[index];
  if (known === undefined) {
    return [...speeches, { id, who: "assistant", said: "", unheard: words, isSettled: false, isAudio: true }];
  }
  return known.isSettled ? speeches : speeches.with(index, { ...known, unheard: known.unheard + words });
}

function updateSpeeches(speeches: readonly Speech[], message: JsonObject): readonly Speech[] {
  const removed = new Set(list(message.removed).map(String));
  let changed = removed.size === 0 ? speeches : speeches.filter((one) => !removed.has(one.id));
  for (const one of list(message.items)) {
    const item = one as JsonObject;
    if (item.type !== "message") continue;
    const index = changed.findIndex((known) => known.id === item.item_id);
    const speech = readItem(item, changed[index] ?? null);
    if (index >= 0) changed = changed.with(index, speech);
    else changed = insertAfter(changed, speech, item.previous_item_id);
  }
  return changed;
}

function insertAfter(speeches: readonly Speech[], speech: Speech, previous: Json | undefined): readonly Speech[] {
  const index = speeches.findIndex((one) => one.id === previous);
  return index < 0 ? [...speeches, speech] : speeches.toSpliced(index + 1, 0, speech);
}

function readItem(item: JsonObject, known: Speech | null): Speech {
  const id = String(item.item_id);
  const parts = list(item.content) as JsonObject[];
  const who = item.role === "user" || item.role === "system" ? item.role : "assistant";
  const said = parts.map((part) => String(part.transcript ?? part.text ?? "")).join(" ");
  const generated = parts.map((part) => String(part.generated_transcript ?? "")).join(" ");
  const isAudio = parts.some((part) => String(part.type).includes("audio"));
  if (who !== "assistant") return { id, who, said, unheard: "", isSettled: true, isAudio };
  const isSettled = item.status === "completed" || item.status === "incomplete";
  // While it is spoken, nothing says yet what was heard.
  if (!isSettled) return { id, who, said: "", unheard: known?.unheard || said, isSettled, isAudio };
  if (said === "") return { id, who, said: known?.said || known?.unheard || "", unheard: "", isSettled, isAudio };
  const unheard = generated.startsWith(said) ? generated.slice(said.length) : "";
  return { id, who, said, unheard, isSettled, isAudio };
}

function list(value: Json | undefined): Json[] {
  return Array.isArray(value) ? value : [];
}
