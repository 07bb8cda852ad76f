/** Items of a conversation in words. They come from models and tools: nothing about their shape is certain. */

import type { Json, JsonObject } from "../api/types";
import { formatJson, showUnseen } from "../text";

export interface ItemText {
  who: string;
  kind: "user" | "assistant" | "system" | "call" | "output" | "reasoning" | "other";
  text: string;
}

export function describeItem(item: JsonObject): ItemText {
  const type = String(item.type ?? "message");
  if (type === "message" || (item.type === undefined && item.role !== undefined)) {
    const role = String(item.role ?? "message");
    const kind = role === "user" || role === "assistant" ? role : "system";
    return { who: showUnseen(role), kind, text: readContent(item.content ?? null) };
  }
  if (type.endsWith("_output")) return { who: "output", kind: "output", text: readContent(item.output ?? null) };
  if (type === "reasoning") {
    return { who: "reasoning", kind: "reasoning", text: readContent(item.summary ?? item.content ?? null) };
  }
  if (type === "function_call") {
    return { who: `calls ${showUnseen(String(item.name))}`, kind: "call", text: formatArguments(item.arguments) };
  }
  return { who: showUnseen(type), kind: type.endsWith("_call") ? "call" : "other", text: formatJson(item) };
}

function formatArguments(value: Json | undefined): string {
  if (typeof value !== "string") return formatJson(value ?? {});
  try {
    const parsed = JSON.parse(value) as unknown;
    if (typeof parsed !== "object" || parsed === null || Array.isArray(parsed)) return value;
    return Object.entries(parsed)
      .map(([name, one]) => `${name}: ${typeof one === "string" ? one : JSON.stringify(one)}`)
      .join("\n");
  } catch {
    return value;
  }
}

/** Return the text of a content: a text, or parts of which some have one. */
export function readContent(content: Json): string {
  if (typeof content === "string") return content;
  if (!Array.isArray(content)) return content === null ? "" : formatJson(content);
  return content
    .map((part) => {
      if (typeof part !== "object" || part === null || Array.isArray(part)) return formatJson(part);
      const text = part.text ?? part.transcript ?? part.refusal;
      if (typeof text === "string") return text;
      const type = String(part.type ?? "part");
      return /image|audio|file/.test(type) ? `[${type}]` : formatJson(part);
    })
    .join("\n");
}
