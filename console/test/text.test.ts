import { expect, test } from "vitest";
import { escapeUnseen, formatBytes, formatDuration, parseArguments, showUnseen, summarize } from "../src/text";

test("characters that hide or reorder text are written out", () => {
  expect(showUnseen("a\u202eb\u0000c\u200bd\u001b[31m")).toBe("a\\u{202e}b\\u{0}c\\u{200b}d\\u{1b}[31m");
  expect(showUnseen("tab\tline\nend")).toBe("tab\tline\nend");
});

test("escaped JSON has the same value", () => {
  const value = ["a\u202eb", "\u0000", "\n"];
  expect(escapeUnseen(JSON.stringify(value))).not.toContain("\u202e");
  expect(JSON.parse(escapeUnseen(JSON.stringify(value)))).toEqual(value);
});

test("a number that would be rounded is not parsed", () => {
  for (const exact of [
    '{"account": 9007199254740991, "x": 1.5e3}',
    '{"12345678901234567890": "12345678901234567890\\""}',
  ])
    expect(parseArguments(exact)).toEqual({ value: JSON.parse(exact) });
  for (const rounded of ['{"account": 9007199254740993}', "[-12345678901234567890]", '{"a": "\\\\", "b": 1e999}'])
    expect(parseArguments(rounded)).toHaveProperty("problem");
});

test("a summary is one line of bounded length, whatever the text", () => {
  expect(summarize(`${"x".repeat(5_000_000)}`, 20)).toHaveLength(20);
  expect(summarize("a\n\n  b")).toBe("a b");
});

test("durations have two units at most", () => {
  const shown = [0, 0.00002, 0.0031, 0.0384, 0.9999, 1.24, 59.6, 125, 3600, 11_000, 180_000].map(formatDuration);
  expect(shown).toEqual([
    "0 ms",
    "0.1 ms",
    "3.1 ms",
    "38 ms",
    "1.0 s",
    "1.2 s",
    "1 min",
    "2 min 5 s",
    "1 h",
    "3 h 3 min",
    "2 d 2 h",
  ]);
});

test("sizes are rounded to the unit that is shown", () => {
  expect([999, 1000, 9_960, 999_900, 12_345_678].map(formatBytes)).toEqual([
    "999 B",
    "1.0 kB",
    "10.0 kB",
    "1.0 MB",
    "12 MB",
  ]);
});
