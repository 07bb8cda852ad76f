import { expect, test } from "vitest";
import { makeHref, parseRoute } from "../src/router";

test("any id survives an address", () => {
  const ids = ["run_1", "a/b", "50%", "ä ö", "?x=1#y", "..", "<script>"];
  for (const id of ids)
    expect(parseRoute(makeHref(["runs", id], { at: 7 }))).toEqual({ parts: ["runs", id], query: { at: "7" } });
});

test("an address that cannot be decoded is read as it is", () => {
  expect(parseRoute("#/runs/%E0%A4%A").parts).toEqual(["runs", "%E0%A4%A"]);
  expect(parseRoute("").parts).toEqual([]);
});
