import { expect, test } from "vitest";
import { findChanges } from "../src/parts/difference";
import { inferSchema, makeDefault, planField, resolve } from "../src/parts/schema";
import { readNumber } from "../src/parts/schema_form";

const root = {
  type: "object",
  properties: {
    order: { type: "string" },
    amount: { type: "number" },
    reason: { enum: ["late", "other"], default: "other" },
    note: { anyOf: [{ type: "string" }, { type: "null" }], description: "For the books." },
    lines: { type: "array", items: { $ref: "#/$defs/Line" } },
    odd: { anyOf: [{ type: "string" }, { type: "number" }] },
  },
  $defs: {
    Line: { type: "object", properties: { count: { type: "integer" } }, required: ["count"] },
    Loop: { $ref: "#/$defs/Loop" },
  },
};

test("each type of a schema has its field", () => {
  const plan = (name: keyof typeof root.properties) => planField(root.properties[name], root, undefined);
  expect(plan("order").field).toEqual({ kind: "text", isLong: false });
  expect(plan("amount").field).toEqual({ kind: "number", isInteger: false });
  expect(plan("reason").field).toEqual({ kind: "choice", choices: ["late", "other"] });
  expect(plan("note")).toEqual({
    field: { kind: "text", isLong: false },
    isNullable: true,
    description: "For the books.",
  });
  expect(plan("lines").field.kind).toBe("list");
  expect(planField({ $ref: "#/$defs/Line" }, root, {}).field.kind).toBe("object");
  expect(plan("odd").field.kind).toBe("json");
});

test("references that lead nowhere or in a circle stand for anything", () => {
  expect(resolve({ $ref: "#/$defs/Loop" }, root)).toEqual({});
  expect(resolve({ $ref: "#/$defs/Missing" }, root)).toEqual({});
  expect(resolve({ $ref: "#/constructor" }, root)).toEqual({});
});

test("an unknown tool gets a form that fits its arguments", () => {
  expect(planField(inferSchema({ a: [1], b: null }), {}, {}).field.kind).toBe("object");
  expect(makeDefault(root.properties.reason, root)).toBe("other");
  expect(makeDefault(root.properties.note, root)).toBe(null);
});

test("numbers are read only when they are numbers", () => {
  expect(["1.5", "", "x", " 2 ", "1e3", "Infinity"].map((text) => readNumber(text, false))).toEqual([
    1.5,
    null,
    null,
    2,
    1000,
    null,
  ]);
  expect(readNumber("1.5", true)).toBe(null);
  expect(readNumber("9007199254740993", true)).toBe(null);
});

test("changes are told path by path", () => {
  const before = { a: 1, list: [1, 2], gone: null, same: { x: "y" } };
  const after = { a: 2, list: [1, 3, 4], same: { x: "y" }, added: true };
  expect(findChanges(before, after)).toEqual([
    { path: "a", before: 1, after: 2 },
    { path: "list[1]", before: 2, after: 3 },
    { path: "list[2]", after: 4 },
    { path: "gone", before: null },
    { path: "added", after: true },
  ]);
});
