import { expect, test } from "vitest";
import type { JsonObject } from "../src/api/types";
import { Levels } from "../src/audio/levels";
import { addToLog, EMPTY_LOG } from "../src/state/call_log";
import { CallRecorder, readRecording } from "../src/state/call_recorder";

const collect = (...messages: JsonObject[]) => messages.reduce(addToLog, EMPTY_LOG);
const makeAnswer = (status: string, part: JsonObject): JsonObject => ({
  type: "history_updated",
  removed: [],
  items: [{ item_id: "a", type: "message", role: "assistant", status, content: [{ type: "audio", ...part }] }],
});

test("words of an answer are not heard until the server says so", () => {
  const spoken = collect(
    { type: "transcript_delta", item_id: "a", delta: "We are" },
    { type: "transcript_delta", item_id: "a", delta: " open" },
  );
  expect(spoken.speeches).toMatchObject([{ who: "assistant", said: "", unheard: "We are open", isSettled: false }]);
  const heard = addToLog(spoken, makeAnswer("completed", { transcript: "We are open" }));
  expect(heard.speeches).toMatchObject([{ said: "We are open", unheard: "", isSettled: true }]);
  const cut = addToLog(spoken, makeAnswer("incomplete", { transcript: "We", generated_transcript: "We are open" }));
  expect(cut.speeches).toMatchObject([{ said: "We", unheard: " are open", isSettled: true }]);
});

test("an item stands after the one before it, and one that is removed is gone", () => {
  const item = (id: string, previous: string | null): JsonObject => ({
    item_id: id,
    previous_item_id: previous,
    type: "message",
    role: "user",
    content: [{ type: "input_text", text: id }],
  });
  const log = collect(
    { type: "history_updated", items: [item("1", null), item("3", "1")], removed: [] },
    { type: "history_updated", items: [item("2", "1")], removed: [] },
  );
  expect(log.speeches.map((one) => one.id)).toEqual(["1", "2", "3"]);
  const rest = addToLog(log, { type: "history_updated", items: [], removed: ["2"] });
  expect(rest.speeches.map((one) => one.id)).toEqual(["1", "3"]);
});

test("a tool call waits until it starts, and each answer has a latency", () => {
  const asked = collect(
    { type: "tool_approval_required", call_id: "c", tool: "credit", arguments: "{}" },
    { type: "metric", name: "time_to_first_audio", ms: 120 },
    { type: "metric", name: "tool_gap", ms: 7 },
  );
  expect(asked.waiting).toEqual([{ callId: "c", tool: "credit", arguments: "{}" }]);
  expect(asked.latencies).toEqual([120]);
  expect(addToLog(asked, { type: "tool_start", call_id: "c", tool: "credit", arguments: "{}" }).waiting).toEqual([]);
});

test("a recording of this page is read back, with the audio of both sides", async () => {
  const recorder = new CallRecorder();
  recorder.add("received", { type: "call", agent: "shop" }, 0);
  recorder.addCaller(new Int16Array([1, -1]), 40);
  recorder.add("received", { type: "audio", data: btoa("\u0002\u0000"), item_id: "a", content_index: 0 }, 90);
  const messages = readRecording(await recorder.makeBlob().text());
  expect(messages.map(({ at, audio }) => [at, audio?.who, audio && [...audio.samples]])).toEqual([
    [0, undefined, null],
    [0.04, "caller", [1, -1]],
    [0.09, "agent", [2]],
  ]);
});

test("a recording of a model is translated, also when its audio was left out", () => {
  const frames = [
    { type: "response.created" },
    { type: "response.output_audio_transcript.delta", item_id: "a", delta: "We are" },
    { type: "response.output_audio.delta", item_id: "a", delta: "[960 bytes of audio]" },
    { type: "conversation.item.truncated", item_id: "a", audio_end_ms: 348 },
    {
      type: "conversation.item.done",
      item: { id: "a", type: "message", role: "assistant", status: "incomplete", content: [{ type: "output_audio" }] },
    },
  ];
  const text = frames.map((frame, index) => JSON.stringify({ at: index, way: "received", frame })).join("\n");
  const log = readRecording(text).reduce((known, one) => addToLog(known, one.message), EMPTY_LOG);
  expect(log.speeches).toMatchObject([{ said: "We are", unheard: "", isSettled: true }]);
  expect(log.marks.map((one) => [one.at, one.title, one.text])).toEqual([
    [0, "Answer", "model"],
    [3, "Interrupted", "after 348 ms of it"],
  ]);
  expect(() => readRecording("<html>")).toThrow("Line 1");
});

test("what was not heard is not in the waveform, and pieces follow one another", () => {
  const levels = new Levels();
  const second = new Int16Array(24_000).fill(16_384);
  levels.add(second, 0);
  levels.add(second, 100); // it arrived early: it is played after the first
  expect(levels.values).toHaveLength(40);
  levels.cut(500);
  expect(levels.values).toHaveLength(10);
  levels.add(second, 1000);
  expect(levels.values[15]).toBeUndefined();
  expect(levels.values[25]).toBe(0.5);
});
