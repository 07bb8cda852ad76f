import { expect, test } from "vitest";
import { EventParser } from "../src/api/events";

test("events are the same however the stream is cut", () => {
  const text =
    'retry: 250\n\nid: 4\nevent: run.queued\ndata: {"a":1}\n\n: alive\n\nid: 4/7.1\ndata: x\ndata: y\n\nevent: end\ndata: {}\n\n';
  const whole = new EventParser().push(text);
  expect(whole).toEqual([
    { id: "4", event: "run.queued", data: '{"a":1}' },
    { id: "4/7.1", event: "message", data: "x\ny" },
    { id: "4/7.1", event: "end", data: "{}" },
  ]);
  for (let size = 1; size < 9; size += 1) {
    const parser = new EventParser();
    const parts = [];
    for (let start = 0; start < text.length; start += size) parts.push(...parser.push(text.slice(start, start + size)));
    expect(parts).toEqual(whole);
    expect(parser.retry).toBe(250);
  }
});

test("an event without data is no event, and an unfinished one is not told", () => {
  const parser = new EventParser();
  expect(parser.push("event: lost\n\ndata: half")).toEqual([]);
  expect(parser.push("\n\n")).toEqual([{ id: null, event: "message", data: "half" }]);
});

test("line breaks may be those of any system", () => {
  expect(new EventParser().push("data: a\r\n\r\ndata: b\r\rdata: c\n\n").map((one) => one.data)).toEqual([
    "a",
    "b",
    "c",
  ]);
});
