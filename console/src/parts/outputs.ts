/** What a cell has printed and shown: from its messages while it runs, or from its result. */

import type { CellInfo, Json, JsonObject } from "../api/types";

export type Output =
  | { kind: "text"; stream: "stdout" | "stderr"; text: string; lost: number }
  | { kind: "display"; data: JsonObject; id: string | null }
  | { kind: "value"; data: JsonObject }
  | { kind: "error"; title: string; text: string; isInterrupted: boolean; isLost: boolean }
  | { kind: "input"; id: string; prompt: string; isSecret: boolean }
  | { kind: "dropped"; count: number };

/** Of one stream of text; its end is what counts. */
const LONGEST = 200_000;

/** Return the outputs with those of one more message. Consecutive texts of one stream are one output. */
export function addMessage(outputs: readonly Output[], message: JsonObject): readonly Output[] {
  // Whatever comes after a question means that it was answered, or given up.
  const rest = message.type === "end" || outputs.at(-1)?.kind !== "input" ? outputs : outputs.slice(0, -1);
  switch (message.type) {
    case "output":
      return addText(rest, message);
    case "display":
      return addDisplay(rest, readObject(message.data), readText(message.display_id));
    case "input": {
      const prompt = readText(message.prompt) ?? "";
      return [...rest, { kind: "input", id: String(message.id), prompt, isSecret: message.password === true }];
    }
    case "result":
      return addValue(rest, message);
    case "error":
      return [...rest, readError(message)];
    case "dropped":
      return [...rest, { kind: "dropped", count: Number(message.count) || 0 }];
    case "end":
      return outputs.filter((one) => one.kind !== "input");
    default:
      return outputs;
  }
}

/** Return the outputs of a cell that has ended, as its result has them. */
export function readResult({ result }: CellInfo): readonly Output[] {
  if (result === null) return [];
  const dropped = readObject(result.dropped);
  let outputs: readonly Output[] = [];
  for (const stream of ["stdout", "stderr"] as const) {
    if (result[stream]) {
      outputs = addText(outputs, { data: result[stream] ?? "", stream, dropped: dropped[stream] ?? 0 });
    }
  }
  for (const one of Array.isArray(result.displays) ? result.displays : []) {
    const display = readObject(one);
    outputs = addDisplay(outputs, readObject(display.data), readText(display.display_id));
  }
  outputs = addValue(outputs, result);
  const error = readObject(result.error);
  return error.exception_type === undefined ? outputs : [...outputs, readError(error)];
}

function addText(outputs: readonly Output[], message: JsonObject): readonly Output[] {
  const stream = message.stream === "stderr" ? "stderr" : "stdout";
  const [text, lost] = [String(message.data ?? ""), Number(message.dropped) || 0];
  const last = outputs.at(-1);
  if (last?.kind !== "text" || last.stream !== stream) {
    return [...outputs, shorten({ kind: "text", stream, text: print("", text), lost })];
  }
  return [...outputs.slice(0, -1), shorten({ ...last, text: print(last.text, text), lost: last.lost + lost })];
}

function shorten(output: Output & { kind: "text" }): Output {
  const excess = output.text.length - LONGEST;
  return excess <= 0 ? output : { ...output, text: output.text.slice(excess), lost: output.lost + excess };
}

// biome-ignore lint/complexity/useRegexLiterals: the control character is easier to read as text
const COLOURS = new RegExp("\\u001b\\[[0-9;?]*[A-Za-z]", "g");

/** Return a text after more of it, as a terminal shows it: a carriage return begins the line anew. */
export function print(before: string, more: string): string {
  const plain = more.replace(COLOURS, "").replaceAll("\r\n", "\n");
  if (!plain.includes("\r")) return before + plain;
  const start = before.lastIndexOf("\n") + 1;
  const lines = (before.slice(start) + plain).split("\n").map((line) => {
    const parts = line.split("\r");
    return parts.findLast((part) => part !== "") ?? "";
  });
  return before.slice(0, start) + lines.join("\n");
}

function addDisplay(outputs: readonly Output[], data: JsonObject, id: string | null): readonly Output[] {
  const shown: Output = { kind: "display", data, id };
  const index = id === null ? -1 : outputs.findIndex((one) => one.kind === "display" && one.id === id);
  return index < 0 ? [...outputs, shown] : outputs.with(index, shown);
}

function addValue(outputs: readonly Output[], message: JsonObject): readonly Output[] {
  const repr = readText(message.repr) ?? "";
  if (repr === "" || repr === "None") return outputs;
  return [...outputs, { kind: "value", data: { "text/plain": repr, ...readObject(message.data) } }];
}

function readError(message: JsonObject): Output {
  const [type, text] = [String(message.exception_type), readText(message.exception_message) ?? ""];
  return {
    kind: "error",
    title: text === "" ? type : `${type}: ${text}`,
    text: (readText(message.traceback) ?? "").replace(COLOURS, ""),
    isInterrupted: message.interrupted === true,
    isLost: message.state === "lost",
  };
}

function readObject(value: Json | undefined): JsonObject {
  return typeof value === "object" && value !== null && !Array.isArray(value) ? value : {};
}

function readText(value: Json | undefined): string | null {
  return typeof value === "string" ? value : null;
}
