/** Foreign text for people: nothing in it can hide, reorder or flood what is on the page. */

// Control characters, marks that change the direction of text, and characters without a width.
const UNSEEN =
  /[\u0000-\u0008\u000b\u000c\u000e-\u001f\u007f-\u009f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ufff9-\ufffb]/g;

/** Return text with characters that cannot be seen written as `\u{...}`. */
export function showUnseen(text: string): string {
  return text.replace(UNSEEN, (one) => `\\u{${one.charCodeAt(0).toString(16)}}`);
}

/** Return a JSON text with the same value and without characters that cannot be seen. */
export function escapeUnseen(json: string): string {
  return json.replace(UNSEEN, (one) => `\\u${one.charCodeAt(0).toString(16).padStart(4, "0")}`);
}

/** Return the beginning of a text on one line. */
export function summarize(text: string, length = 120): string {
  const line = showUnseen(
    text
      .slice(0, length * 4)
      .replace(/\s+/g, " ")
      .trim(),
  );
  return line.length > length ? `${line.slice(0, length - 1)}…` : line;
}

export function parseJson(text: string): { value: unknown } | { problem: string } {
  try {
    return { value: JSON.parse(text) as unknown };
  } catch (problem) {
    return { problem: problem instanceof Error ? problem.message : String(problem) };
  }
}

/** Parse the arguments of a call, unless they have a number that would be shown rounded: a person decides about it. */
export function parseArguments(text: string): { value: unknown } | { problem: string } {
  const parsed = parseJson(text);
  return "value" in parsed && hasRounded(parsed.value) ? { problem: "a number has more digits than fit here" } : parsed;
}

function hasRounded(value: unknown): boolean {
  if (typeof value === "number")
    return !Number.isFinite(value) || (Number.isInteger(value) && !Number.isSafeInteger(value));
  return typeof value === "object" && value !== null && Object.values(value).some(hasRounded);
}

export function formatJson(value: unknown): string {
  return typeof value === "string" ? value : (JSON.stringify(value, null, 2) ?? "");
}

export function formatCount(value: number): string {
  return value.toLocaleString("en");
}

export function formatBytes(bytes: number): string {
  if (bytes < 1000) return `${bytes} B`;
  const units = ["kB", "MB", "GB", "TB"];
  let size = bytes / 1000;
  let unit = 0;
  while (size >= 999.5 && unit < units.length - 1) {
    size /= 1000;
    unit += 1;
  }
  return `${size < 10 ? size.toFixed(1) : Math.round(size)} ${units[unit]}`;
}

/** Return a duration in two units at most: `0.4 ms`, `38 ms`, `1.2 s`, `2 min 5 s`, `3 h 4 min`, `2 d 3 h`. */
export function formatDuration(seconds: number): string {
  const s = Math.max(0, seconds);
  if (s > 0 && s < 0.00995) return `${Math.max(0.1, s * 1000).toFixed(1)} ms`;
  if (s < 0.9995) return `${Math.round(s * 1000)} ms`;
  if (s < 10) return `${s.toFixed(1)} s`;
  const whole = Math.round(s);
  if (whole < 60) return `${whole} s`;
  const pairs: [number, string, number, string][] = [
    [60, "min", 1, "s"],
    [3600, "h", 60, "min"],
    [86400, "d", 3600, "h"],
  ];
  const [size, name, smaller, smallerName] = whole < 3600 ? pairs[0]! : whole < 86400 ? pairs[1]! : pairs[2]!;
  const rest = Math.floor((whole % size) / smaller);
  return `${Math.floor(whole / size)} ${name}${rest ? ` ${rest} ${smallerName}` : ""}`;
}

export function formatTime(at: number): string {
  return new Date(at * 1000).toLocaleString("sv"); // 2026-11-18 17:32:15
}
