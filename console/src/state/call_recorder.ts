/** Recordings of calls: JSON Lines, in the form of those that models write, to be saved and replayed. */

import type { Json, JsonObject } from "../api/types";
import { decodeSamples } from "../audio/player";
import { parseJson } from "../text";

/** Some twenty minutes of both sides. */
const MOST_BYTES = 100_000_000;

export class CallRecorder {
  private lines: string[] = ['{"at":0,"way":"opened"}'];
  private bytes = 0;

  add(way: "sent" | "received", frame: JsonObject, nowMs: number): void {
    if (this.bytes > MOST_BYTES) return;
    const line = JSON.stringify({ at: Math.round(nowMs) / 1000, way, frame });
    this.bytes += line.length;
    this.lines.push(line);
  }

  addCaller(samples: Int16Array, nowMs: number): void {
    const bytes = new Uint8Array(samples.buffer, samples.byteOffset, samples.byteLength);
    this.add("sent", { type: "input_audio_buffer.append", audio: btoa(String.fromCharCode(...bytes)) }, nowMs);
  }

  makeBlob(): Blob {
    return new Blob([`${this.lines.join("\n")}\n`], { type: "application/jsonl" });
  }
}

/** One message of a recording, as a call would have sent it; or audio of one side. */
export interface RecordedMessage {
  at: number;
  message: JsonObject;
  audio: { who: "caller" | "agent"; samples: Int16Array } | null;
}

/** Return the messages of a recording of this page, or of a model (`recording=`); raise an error for anything else. */
export function readRecording(text: string): RecordedMessage[] {
  const found: RecordedMessage[] = [];
  let line = 0;
  for (const one of text.split("\n")) {
    line += 1;
    if (one.trim() === "") continue;
    const parsed = parseJson(one);
    const entry = "value" in parsed ? parsed.value : null;
    if (!isObject(entry) || typeof entry.at !== "number" || typeof entry.way !== "string") {
      throw new Error(`Line ${line} is not one of a recording.`);
    }
    if (!isObject(entry.frame)) continue;
    const message = translate(entry.frame, entry.way);
    if (message !== null)
      found.push({ at: entry.at, message: { ...message, at: entry.at }, audio: readAudio(message) });
  }
  if (found.length === 0) throw new Error("The file has no messages of a call.");
  return found;
}

function readAudio(message: JsonObject): RecordedMessage["audio"] {
  if (message.type !== "audio" && message.type !== "caller_audio") return null;
  try {
    return { who: message.type === "audio" ? "agent" : "caller", samples: decodeSamples(String(message.data)) };
  } catch {
    return null; // it was left out of the recording: its length is there instead
  }
}

/** Return a frame in the terms of a call; those of the OpenAI protocol are translated. `null`: it says nothing here. */
function translate(frame: JsonObject, way: string): JsonObject | null {
  const { type, item_id, content_index } = frame;
  if (way === "sent") return translateSent(frame);
  switch (type) {
    case "session.created": {
      const model = isObject(frame.session) ? frame.session.model : null;
      return { type: "call", agent: String(model ?? "recording") };
    }
    case "response.output_audio.delta":
      return { type: "audio", item_id: item_id ?? "", content_index: content_index ?? 0, data: frame.delta ?? "" };
    case "response.output_audio_transcript.delta":
    case "response.output_text.delta":
      return { type: "transcript_delta", item_id: item_id ?? "", delta: frame.delta ?? "" };
    case "conversation.item.added":
    case "conversation.item.done":
    case "response.output_item.done":
      return isObject(frame.item) ? translateItem(frame.item, frame.previous_item_id ?? null) : null;
    case "response.created":
      return { type: "agent_start", agent: "model" };
    case "conversation.item.truncated":
      return { type: "audio_interrupted", heard_ms: frame.audio_end_ms ?? 0 };
    case "response.function_call_arguments.done":
      return {
        type: "tool_start",
        tool: frame.name ?? "tool",
        arguments: frame.arguments ?? "",
        call_id: frame.call_id ?? "",
      };
    case "error":
      return { type: "error", message: isObject(frame.error) ? String(frame.error.message) : "error" };
    default:
      return typeof type === "string" && !type.includes(".") ? frame : null;
  }
}

function translateSent(frame: JsonObject): JsonObject | null {
  if (frame.type === "input_audio_buffer.append") return { type: "caller_audio", data: frame.audio ?? "" };
  const item = frame.item;
  if (frame.type !== "conversation.item.create" || !isObject(item) || item.type !== "function_call_output") return null;
  return { type: "tool_end", tool: "tool", output: item.output ?? "", call_id: item.call_id ?? "" };
}

function translateItem(item: JsonObject, previous: Json): JsonObject | null {
  if (item.type !== "message") return null;
  const content = Array.isArray(item.content) ? item.content : [];
  // An answer that has just been added has no words yet: it is settled when it is done.
  const status = item.role === "assistant" && content.length === 0 ? "in_progress" : (item.status ?? "completed");
  return {
    type: "history_updated",
    items: [{ ...item, item_id: item.id ?? "", status, previous_item_id: previous }],
    removed: [],
  };
}

function isObject(value: unknown): value is JsonObject {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}
