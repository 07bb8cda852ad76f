import { expect, test } from "vitest";
import type { CellInfo, JsonObject } from "../src/api/types";
import { placeVersions } from "../src/parts/lanes";
import { addMessage, type Output, print, readResult } from "../src/parts/outputs";

const collect = (...messages: JsonObject[]) => messages.reduce<readonly Output[]>(addMessage, []);

test("texts of one stream are one output, and those of two are not", () => {
  const outputs = collect(
    { type: "output", data: "a" },
    { type: "output", data: "b\n" },
    { type: "output", data: "c", stream: "stderr" },
  );
  expect(outputs.map((one) => one.kind === "text" && [one.stream, one.text])).toEqual([
    ["stdout", "ab\n"],
    ["stderr", "c"],
  ]);
});

test("text is shown as a terminal shows it", () => {
  expect(print("10 %", "\r50 %\r100 %\ndone\n")).toBe("100 %\ndone\n");
  expect(print("a\n", "\u001b[31mred\u001b[0m\r\n")).toBe("a\nred\n");
});

test("a long output keeps its end and says what is missing", () => {
  const [output] = collect({ type: "output", data: "x".repeat(300_000) }, { type: "output", data: "end" });
  expect(output?.kind === "text" && output.text.endsWith("end") && output.text.length).toBe(200_000);
  expect(output?.kind === "text" && output.lost).toBe(100_003);
});

test("a question disappears when the code goes on or ends", () => {
  const asked = collect({ type: "input", id: "i", prompt: "who? " });
  expect(asked).toEqual([{ kind: "input", id: "i", prompt: "who? ", isSecret: false }]);
  expect(addMessage(asked, { type: "output", data: "hi" }).map((one) => one.kind)).toEqual(["text"]);
  expect(addMessage(asked, { type: "end" })).toEqual([]);
});

test("a display with a known id replaces that one", () => {
  const shown = (text: string) => ({ type: "display", display_id: "d", data: { "text/plain": text } });
  expect(collect(shown("1"), { type: "output", data: "x" }, shown("2")).map((one) => one.kind)).toEqual([
    "display",
    "text",
  ]);
});

test("a result has the outputs that its messages had", () => {
  const result = {
    stdout: "hello\n",
    repr: "42",
    data: {},
    displays: [{ data: { "text/html": "<b>" } }],
    error: { exception_type: "ValueError", exception_message: "no", traceback: "at" },
  };
  const kinds = readResult({ result } as unknown as CellInfo).map((one) => one.kind);
  expect(kinds).toEqual(["text", "display", "value", "error"]);
});

test("versions after a step back are a branch in a lane of their own", () => {
  const rows = placeVersions(
    [1, 2, 3].map((version) => ({ version, parent: version - 1 })).concat({ version: 4, parent: 1 }),
  );
  expect(rows.map(({ version, lane, joining }) => [version.version, lane, joining])).toEqual([
    [4, 0, []],
    [3, 1, []],
    [2, 1, [1]],
    [1, 0, [0, 1]],
  ]);
});
